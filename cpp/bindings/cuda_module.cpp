// The extension module ribbit._cuda: kernels compiled ahead of time, on arrays of a device. Names
// are those of ribbit._core where the same thing is meant; outputs are passed in, and the last
// argument is the handle of the stream.

#include "bindings/cuda_array.h"
#include "bindings/without_gil.h"
#include "core/philox_hd.h"
#include "cuda/host/device.h"
#include "cuda/host/leapfrog.h"
#include "cuda/host/random.h"

namespace ribbit::bindings {
namespace {

constexpr std::int64_t kMostChains = 65535;  // blocks along the second axis of a grid

cuda::StreamHandle handle(std::uintptr_t stream) {
  return reinterpret_cast<cuda::StreamHandle>(stream);
}

void check_chains(std::int64_t chains) {
  if (chains >= 1 && chains <= kMostChains) return;
  throw py::value_error("[_cuda] expected 1 to 65535 chains in one call, got " +
                        std::to_string(chains));
}

cuda::StreamAddress address_of(std::uint64_t seed, std::uint64_t step, int purpose, int layer,
                               const std::uint32_t* chains = nullptr) {
  if (step >> 40 != 0 || purpose < 0 || purpose > 255 || layer < 0 || layer > 65535) {
    throw py::value_error("[_cuda] expected step < 2^40, purpose < 256 and layer < 65536");
  }
  return {seed, step, purpose, layer, chains};
}

cuda::StreamAddress address_of(std::uint64_t seed, std::uint64_t step, int purpose, int layer,
                               const DeviceArray<const std::uint32_t>& chains) {
  check_chains(chains.lengths[0]);
  return address_of(seed, step, purpose, layer, chains.data);
}

// body(T{}) for the scalar type of an array.
template <class Body>
void for_scalar(const py::object& array, const char* name, const Body& body) {
  if (holds<float>(array, name)) {
    body(0.0F);
  } else {
    body(0.0);
  }
}

template <class T>
cuda::InverseMass<T> mass_of(const py::object& object, std::int64_t chains, std::int64_t dim) {
  if (object.is_none()) return {nullptr, 0};
  const bool shared = py::len(interface_of(object, "inverse_mass")["shape"]) == 1;
  const auto array = shared ? device_array<const T>(object, "inverse_mass", {dim})
                            : device_array<const T>(object, "inverse_mass", {chains, dim});
  return {array.data, shared ? 0 : dim};
}

void fill_normal(const py::object& out, std::uint64_t seed, std::uint64_t step,
                 const py::object& chains, int purpose, int layer, std::uintptr_t stream) {
  const auto ids = device_array<const std::uint32_t>(chains, "chains", {kAnyLength});
  const cuda::StreamAddress address = address_of(seed, step, purpose, layer, ids);
  for_scalar(out, "out", [&](auto zero) {
    const auto to = device_array<decltype(zero)>(out, "out", {ids.lengths[0], kAnyLength});
    const WithoutGil release;
    cuda::fill_normal(address, to.lengths[0], to.lengths[1], to.data, handle(stream));
  });
}

void fill_uniform(const py::object& out, std::uint64_t seed, std::uint64_t step,
                  const py::object& chains, int purpose, int layer, std::uintptr_t stream) {
  const auto ids = device_array<const std::uint32_t>(chains, "chains", {kAnyLength});
  const cuda::StreamAddress address = address_of(seed, step, purpose, layer, ids);
  const auto to = device_array<double>(out, "out", {ids.lengths[0], kAnyLength});
  const WithoutGil release;
  cuda::fill_uniform(address, to.lengths[0], to.lengths[1], to.data, handle(stream));
}

void kinetic_energy(const py::object& out, const py::object& momentum,
                    const py::object& inverse_mass, std::uintptr_t stream) {
  for_scalar(momentum, "momentum", [&](auto zero) {
    using T = decltype(zero);
    const auto p = device_array<const T>(momentum, "momentum", {kAnyLength, kAnyLength});
    check_chains(p.lengths[0]);
    const auto mass = mass_of<T>(inverse_mass, p.lengths[0], p.lengths[1]);
    const auto to = device_array<double>(out, "out", {p.lengths[0]});
    const WithoutGil release;
    cuda::kinetic_energy(p.data, mass, p.lengths[0], p.lengths[1], to.data, handle(stream));
  });
}

void finite_rows(const py::object& out, const py::object& first, const py::object& second,
                 std::uintptr_t stream) {
  for_scalar(first, "first", [&](auto zero) {
    using T = decltype(zero);
    const auto a = device_array<const T>(first, "first", {kAnyLength, kAnyLength});
    check_chains(a.lengths[0]);
    const auto b = device_array<const T>(second, "second", {a.lengths[0], a.lengths[1]});
    const auto to = device_array<bool>(out, "out", {a.lengths[0]});
    const WithoutGil release;
    cuda::finite_rows(a.data, b.data, a.lengths[0], a.lengths[1], to.data, handle(stream));
  });
}

void accept(const py::object& accepted, const py::object& rate, const py::object& error,
            std::uint64_t seed, std::uint64_t step, const py::object& chains, int purpose,
            std::uintptr_t stream) {
  const auto ids = device_array<const std::uint32_t>(chains, "chains", {kAnyLength});
  const std::int64_t count = ids.lengths[0];
  const cuda::StreamAddress address = address_of(seed, step, purpose, 0, ids);
  const auto errors = device_array<const double>(error, "energy_error", {count});
  const auto flags = device_array<bool>(accepted, "accepted", {count});
  const auto rates = device_array<double>(rate, "rate", {count});
  const WithoutGil release;
  cuda::accept(address, errors.data, count, flags.data, rates.data, handle(stream));
}

void select(const py::object& out, const py::object& accepted, const py::object& proposal,
            const py::object& old, std::uintptr_t stream) {
  for_scalar(out, "out", [&](auto zero) {
    using T = decltype(zero);
    const auto to = device_array<T>(out, "out", {kAnyLength, kAnyLength});
    const std::int64_t rows = to.lengths[0], n = to.lengths[1];
    check_chains(rows);
    const auto flags = device_array<const bool>(accepted, "accepted", {rows});
    const auto a = device_array<const T>(proposal, "proposal", {rows, n});
    const auto b = device_array<const T>(old, "old", {rows, n});
    const WithoutGil release;
    cuda::select(flags.data, a.data, b.data, rows, n, to.data, handle(stream));
  });
}

// draw(out, samples, P, mean, scale or rho): weights of samples 0, 1, .. into out (S, P).
template <class Draw>
void draw_samples(const py::object& out, const py::object& mean, const py::object& scale,
                  const char* name, const Draw& draw) {
  for_scalar(mean, "mean", [&](auto zero) {
    using T = decltype(zero);
    const auto m = device_array<const T>(mean, "mean", {kAnyLength});
    const auto s = device_array<const T>(scale, name, {m.lengths[0]});
    const auto to = device_array<T>(out, "out", {kAnyLength, m.lengths[0]});
    if (to.lengths[0] < 1 || to.lengths[0] >> 32 != 0) {
      throw py::value_error("[_cuda] expected 1 to 2^32 - 1 samples, got " +
                            std::to_string(to.lengths[0]));
    }
    const WithoutGil release;
    draw(m.data, s.data, to.lengths[0], m.lengths[0], to.data);
  });
}

void reparameterize(const py::object& out, const py::object& mean, const py::object& rho,
                    std::uint64_t seed, std::uint64_t step, std::uintptr_t stream) {
  const cuda::StreamAddress address = address_of(seed, step, kPurposeWeightNoise, 0);
  draw_samples(out, mean, rho, "rho", [&](const auto* m, const auto* r, auto s, auto n, auto* to) {
    cuda::reparameterize(address, m, r, s, n, to, handle(stream));
  });
}

void draw_weights(const py::object& out, const py::object& mean, const py::object& scale,
                  std::uint64_t seed, std::uintptr_t stream) {
  const cuda::StreamAddress address = address_of(seed, 0, kPurposeFitDraw, 0);
  draw_samples(out, mean, scale, "scale",
               [&](const auto* m, const auto* sd, auto s, auto n, auto* to) {
                 cuda::draw_scaled(address, m, sd, s, n, to, handle(stream));
               });
}

}  // namespace

void bind_cuda(py::module_& module) {
  py::register_exception<cuda::DeviceError>(module, "DeviceError", PyExc_RuntimeError);
  module.def("device_count", &cuda::device_count);
  module.def("device_name", &cuda::device_name);
  module.def("device_problem", &cuda::device_problem);
  module.def("runtime_version", &cuda::runtime_version);
  module.def("fill_normal", &fill_normal, py::arg("out"), py::arg("seed"), py::arg("step"),
             py::arg("chains"), py::arg("purpose"), py::arg("layer"), py::arg("stream"));
  module.def("fill_uniform", &fill_uniform, py::arg("out"), py::arg("seed"), py::arg("step"),
             py::arg("chains"), py::arg("purpose"), py::arg("layer"), py::arg("stream"));
  module.def("reparameterize", &reparameterize, py::arg("out"), py::arg("mean"), py::arg("rho"),
             py::arg("seed"), py::arg("step"), py::arg("stream"));
  module.def("draw_weights", &draw_weights, py::arg("out"), py::arg("mean"), py::arg("scale"),
             py::arg("seed"), py::arg("stream"));
  module.def("kinetic_energy", &kinetic_energy, py::arg("out"), py::arg("momentum"),
             py::arg("inverse_mass"), py::arg("stream"));
  module.def("finite_rows", &finite_rows, py::arg("out"), py::arg("first"), py::arg("second"),
             py::arg("stream"));
  module.def("accept", &accept, py::arg("accepted"), py::arg("rate"), py::arg("energy_error"),
             py::arg("seed"), py::arg("step"), py::arg("chains"), py::arg("purpose"),
             py::arg("stream"));
  module.def("select", &select, py::arg("out"), py::arg("accepted"), py::arg("proposal"),
             py::arg("old"), py::arg("stream"));
}

}  // namespace ribbit::bindings

#if !defined(RIBBIT_CUDA_MODULE)
#define RIBBIT_CUDA_MODULE _cuda
#endif
PYBIND11_MODULE(RIBBIT_CUDA_MODULE, module) {
  module.doc() = "Device kernels of ribbit. Arrays are checked, never converted.";
  ribbit::bindings::bind_cuda(module);
}
