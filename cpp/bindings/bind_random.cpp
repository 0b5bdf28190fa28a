// Random numbers by address.

#include "bindings/array.h"
#include "bindings/scalar.h"
#include "core/permutation_hd.h"
#include "core/philox_hd.h"
#include "cpu/random.h"
#include "cpu/system/dispatch.h"

namespace ribbit::bindings {
namespace {

cpu::Stream stream_of(std::uint64_t seed, std::uint64_t step, int purpose, int layer) {
  if (step >> 40 != 0 || purpose < 0 || purpose > 255 || layer < 0 || layer > 65535) {
    throw py::value_error("[_core] expected step < 2^40, purpose < 256 and layer < 65536");
  }
  return {seed, step, purpose, layer};
}

void fill_normal(const py::object& out, std::uint64_t seed, std::uint64_t step,
                 const py::object& chains, int purpose, int layer) {
  const cpu::Stream stream = stream_of(seed, step, purpose, layer);
  const py::array ids = checked<std::uint32_t>(chains, "chains", {kAny});
  for_scalar(out, "out", [&](auto zero) {
    using T = decltype(zero);
    py::array array = checked<T>(out, "out", {ids.shape(0), kAny}, true);
    const std::int64_t n = array.shape(1);
    T* values = mutable_data<T>(array);
    const WithoutGil release;
    cpu::fill_normal(stream, data<std::uint32_t>(ids), ids.shape(0), n, values);
  });
}

void fill_uniform(const py::object& out, std::uint64_t seed, std::uint64_t step,
                  const py::object& chains, int purpose, int layer) {
  const cpu::Stream stream = stream_of(seed, step, purpose, layer);
  const py::array ids = checked<std::uint32_t>(chains, "chains", {kAny});
  py::array array = checked<double>(out, "out", {ids.shape(0), kAny}, true);
  cpu::fill_uniform(stream, data<std::uint32_t>(ids), ids.shape(0), array.shape(1),
                    mutable_data<double>(array));
}

// Raw blocks, for known-answer tests: the scalar source that the vector kernels also use.
py::array_t<std::uint32_t> philox4x32(const py::object& counters, const py::object& key) {
  const py::array c = checked<std::uint32_t>(counters, "counters", {kAny, 4});
  const py::array k = checked<std::uint32_t>(key, "key", {2});
  py::array_t<std::uint32_t> out = empty<std::uint32_t>({c.shape(0), 4});
  const std::uint64_t seed =
      static_cast<std::uint64_t>(data<std::uint32_t>(k)[1]) << 32 | data<std::uint32_t>(k)[0];
  for (py::ssize_t i = 0; i < c.shape(0); ++i) {
    const std::uint32_t* at = data<std::uint32_t>(c) + 4 * i;
    cpu::instruction_set().fill_words(out.mutable_data() + 4 * i, 4,
                                      4 * static_cast<std::uint64_t>(at[0]), seed, at[1], at[2],
                                      at[3]);
  }
  return out;
}

// Rows begin..begin+count-1 of an epoch in their order.
py::array_t<std::int64_t> epoch_rows(std::int64_t rows, std::uint64_t seed, std::uint32_t chain,
                                     std::uint64_t epoch, std::int64_t begin, std::int64_t count) {
  if (rows < 1 || begin < 0 || count < 0 || count > rows - begin || epoch >> 40 != 0) {
    throw py::value_error("[_core] expected 0 <= begin, begin + count <= rows, epoch < 2^40");
  }
  py::array_t<std::int64_t> out = empty<std::int64_t>({count});
  const Permutation order = make_permutation(static_cast<Word64>(rows), seed, chain, epoch);
  cpu::instruction_set().permute_rows(order, static_cast<std::uint64_t>(begin), count,
                                      out.mutable_data());
  return out;
}

FloatArray reparameterize(const py::object& mean, const py::object& rho, std::int64_t samples,
                          std::uint64_t seed, std::uint64_t step) {
  const cpu::Stream stream = stream_of(seed, step, 5, 0);
  return for_scalar<FloatArray>(mean, "mean", [&](auto zero) {
    using T = decltype(zero);
    const py::array m = checked<T>(mean, "mean", {kAny});
    const py::array r = checked<T>(rho, "rho", {m.shape(0)});
    py::array_t<T> out = empty<T>({samples, m.shape(0)});
    T* values = out.mutable_data();
    {
      const WithoutGil release;
      cpu::reparameterize(stream, data<T>(m), data<T>(r), samples, m.shape(0), values);
    }
    return out;
  });
}

py::array_t<double> kinetic_energy(const py::object& momentum, const py::object& inverse_mass) {
  return for_scalar<py::array_t<double>>(momentum, "momentum", [&](auto zero) {
    using T = decltype(zero);
    const py::array p = checked<T>(momentum, "momentum", {kAny, kAny});
    const std::int64_t chains = p.shape(0), n = p.shape(1);
    const Mass<T> mass(inverse_mass, chains, n);
    py::array_t<double> out = empty<double>({chains});
    double* values = out.mutable_data();
    {
      const WithoutGil release;
      cpu::kinetic_energy(data<T>(p), mass.values, mass.stride, chains, n, values);
    }
    return out;
  });
}

// Whether accepted (chains,) and the probability (chains,).
Arrays<bool, double> accept(const py::object& energy_error, std::uint64_t seed, std::uint64_t step,
                            const py::object& chain_ids) {
  const py::array ids = checked<std::uint32_t>(chain_ids, "chains", {kAny});
  const std::int64_t chains = ids.shape(0);
  const py::array errors = checked<double>(energy_error, "energy_error", {chains});
  py::array_t<bool> accepted = empty<bool>({chains});
  py::array_t<double> probability = empty<double>({chains});
  cpu::accept(stream_of(seed, step, kPurposeAccept, 0), data<std::uint32_t>(ids), chains,
              data<double>(errors), accepted.mutable_data(), probability.mutable_data());
  return py::make_tuple(accepted, probability);
}

}  // namespace

void bind_random(py::module_& module) {
  module.def("fill_normal", &fill_normal, py::arg("out"), py::arg("seed"), py::arg("step"),
             py::arg("chains"), py::arg("purpose"), py::arg("layer") = 0);
  module.def("fill_uniform", &fill_uniform, py::arg("out"), py::arg("seed"), py::arg("step"),
             py::arg("chains"), py::arg("purpose"), py::arg("layer") = 0);
  module.def("philox4x32", &philox4x32, py::arg("counters"), py::arg("key"));
  module.def("epoch_rows", &epoch_rows, py::arg("rows"), py::arg("seed"), py::arg("chain"),
             py::arg("epoch"), py::arg("begin"), py::arg("count"));
  module.def("reparameterize", &reparameterize, py::arg("mean"), py::arg("rho"), py::arg("samples"),
             py::arg("seed"), py::arg("step") = 0);
  module.def("kinetic_energy", &kinetic_energy, py::arg("momentum"),
             py::arg("inverse_mass") = py::none());
  module.def("accept", &accept, py::arg("energy_error"), py::arg("seed"), py::arg("step"),
             py::arg("chains"));
}

}  // namespace ribbit::bindings
