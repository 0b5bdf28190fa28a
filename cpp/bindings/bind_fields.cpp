// The bytes of chains, as Python reads and writes them.

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/array.h"
#include "chains/chains.h"
#include "chains/fields.h"
#include "chains/hamiltonian_state.h"

namespace ribbit::bindings {
namespace {

// Calls body(V()) with the type of a field's numbers.
template <class Body>
auto with_type(char dtype, const Body& body) {
  switch (dtype) {
    case 'f':
      return body(float());
    case 'd':
      return body(double());
    case 'q':
      return body(std::int64_t());
    case 'Q':
      return body(std::uint64_t());
    case 'I':
      return body(std::uint32_t());
    default:
      return body(std::uint8_t());
  }
}

// Throws std::invalid_argument unless HMC or NUTS can have written these fields.
template <class T>
void check_fields(const FieldReader& reader) {
  std::string kernel, target;
  std::uint64_t seed = 0, warmup = 0;
  std::vector<std::uint32_t> ids;
  reader("kernel", kernel);
  reader("target", target);
  reader("seed", seed);
  reader("warmup", warmup);
  reader("chains", ids, reader.rows("chains"));
  for (const char* name : {"kernel", "seed", "warmup", "chains", "step"}) {
    if (reader.dtype(name) == '\0') FieldReader::fail(std::string("there is no ") + name);
  }
  for (std::size_t begin = 0; begin < target.size();) {
    const std::size_t end = target.find('\n', begin);
    if (target.substr(begin, end - begin).find('=') == std::string::npos ||
        end == std::string::npos) {
      FieldReader::fail("target");
    }
    begin = end + 1;
  }
  if (std::set<std::uint32_t>(ids.begin(), ids.end()).size() != ids.size() ||
      warmup >= kMostSteps) {
    FieldReader::fail("chains or warmup");
  }
  const auto rows = static_cast<std::int64_t>(ids.size());
  HamiltonianState<T> state(HamiltonianTuner(Nuts(), seed, std::move(ids), warmup));
  state.fields(reader);
  if (state.position.empty()) FieldReader::fail("position");
  state.check(static_cast<std::int64_t>(state.position.size()) / rows);
}

// Whole numbers, texts and arrays by name. The arrays are views of the bytes.
py::dict read_fields(const py::bytes& bytes) {
  const auto data = bytes.cast<std::string_view>();
  const FieldReader reader(data);
  if (reader.dtype("position") == 'f') {
    check_fields<float>(reader);
  } else {
    check_fields<double>(reader);
  }
  py::dict found;
  for (const std::string& name : reader.names()) {
    const FieldReader::Field& field = reader.field(name);
    const FieldHead& head = field.head;
    if (head.dtype == 'S') {
      found[name.c_str()] = py::str(field.data.data(), field.data.size());
      continue;
    }
    found[name.c_str()] = with_type(head.dtype, [&](auto type) -> py::object {
      using V = decltype(type);
      std::vector<py::ssize_t> shape(head.shape, head.shape + head.axes);
      py::array_t<V> array(shape, reinterpret_cast<const V*>(field.data.data()), bytes);
      array.attr("flags").attr("writeable") = false;
      return head.axes == 0 ? py::object(array.attr("item")()) : py::object(array);
    });
  }
  return found;
}

py::bytes write_fields(const py::dict& fields) {
  FieldWriter writer;
  for (const auto& [key, value] : fields) {
    const auto name = key.cast<std::string>();
    if (py::isinstance<py::str>(value)) {
      writer(name.c_str(), value.cast<std::string>());
    } else if (!py::isinstance<py::array>(value)) {
      writer(name.c_str(), value.cast<std::uint64_t>());
    } else {
      const py::array array = py::array::ensure(value, py::array::c_style);
      const char dtype = array.dtype().char_() == 'l'   ? 'q'
                         : array.dtype().char_() == 'L' ? 'Q'
                                                        : array.dtype().char_();
      if (array.ndim() < 1 || array.ndim() > 2) throw py::value_error("a field has 1 or 2 axes");
      with_type(dtype, [&](auto type) {
        using V = decltype(type);
        if (dtype != dtype_code<V>()) throw py::type_error("no chains have such numbers: " + name);
        const auto* values = static_cast<const V*>(array.data());
        writer.put(
            name.c_str(), values, static_cast<int>(array.ndim()),
            static_cast<std::uint64_t>(array.shape(0)),
            static_cast<std::uint64_t>(array.size() / std::max<py::ssize_t>(array.shape(0), 1)));
      });
    }
  }
  return py::bytes(writer.finish());
}

}  // namespace

void bind_fields(py::module_& module) {
  module.def(
      "read_fields", &read_fields, py::arg("bytes"),
      "Return the fields in the bytes of chains by name: ints, texts, and read-only arrays.");
  module.def("write_fields", &write_fields, py::arg("fields"),
             "Return the bytes of chains with these fields.");
}

}  // namespace ribbit::bindings
