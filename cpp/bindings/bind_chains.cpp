// Chains. Python sees their state as bytes.

#include "chains/chains.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/density.h"
#include "bindings/kernel_options.h"
#include "bindings/pointer.h"

namespace ribbit::bindings {
namespace {

// An interrupt check with the flag that a density needs to end a cancelled call.
struct Call {
  PythonPoll poll;
  const InterruptFlag* flag;
  explicit Call(const InterruptFlag* interrupt) : poll(interrupt), flag(interrupt) {}
};
template <class T>
[[noreturn]] void end(const Density<T>& density, const Call& call) {
  density.end(call.poll, call.flag);
}
[[noreturn]] inline void end(const Pointer&, const Call& call) {
  call.poll.rethrow();
}

// Chains of dtype T on a density of class D.
template <class T, class D>
class ChainsOf {
 public:
  ChainsOf(const D& density, const Kernel& kernel, Run run, Fingerprint fingerprint,
           const py::object& bytes)
      : density_(density) {
    if (bytes.is_none()) {
      native_ = make_chains<T>(density.native(), kernel, std::move(run), std::move(fingerprint));
    } else {
      const auto given = bytes.cast<std::string_view>();
      call(nullptr, [&](cpu::Poll*) {
        native_ =
            load_chains<T>(density.native(), kernel, std::move(run), std::move(fingerprint), given);
        return true;
      });
    }
    constexpr std::int64_t kBytes = 1 << 22, kMost = 4096;  // the positions stay in a cache
    const std::int64_t each =
        native_->chains() * native_->full_dim() * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t capacity = std::clamp<std::int64_t>(kBytes / each, 1, kMost);
    block_ = std::make_shared<Block<T>>(native_->columns(), native_->chains(), capacity,
                                        native_->full_dim());
  }

  void start(const py::object& position, const InterruptFlag* interrupt) {
    const py::array at = checked<T>(position, "position", {native_->chains(), native_->full_dim()});
    call(interrupt, [&](cpu::Poll* poll) { return native_->start(data<T>(at), poll); });
  }

  py::tuple advance(std::int64_t most, double seconds, const InterruptFlag* interrupt) {
    std::shared_ptr<Block<T>> block;
    call(interrupt, [&](cpu::Poll* poll) {
      // Arrays of earlier calls that Python still holds must not change.
      if (block_.use_count() > 1) {
        block_ = std::make_shared<Block<T>>(native_->columns(), native_->chains(), block_->capacity,
                                            native_->full_dim());
      }
      block = block_;
      return native_->advance(*block, most, seconds, poll);
    });
    const py::capsule owner(new std::shared_ptr<Block<T>>(block), [](void* held) {
      delete static_cast<std::shared_ptr<Block<T>>*>(held);
    });
    py::dict statistics;
    for (std::size_t i = 0; i < block->columns.size(); ++i) {
      statistics[block->columns[i].name] = column(*block, i, owner);
    }
    if (!block->positions) return py::make_tuple(py::none(), statistics);
    const auto size = static_cast<py::ssize_t>(sizeof(T));
    const py::ssize_t dim = native_->full_dim();
    return py::make_tuple(
        py::array_t<T>({native_->chains(), block->count, native_->full_dim()},
                       {block->capacity * dim * size, dim * size, size}, block->position(), owner),
        statistics);
  }

  py::object position(const InterruptFlag* interrupt) const {
    py::array_t<T> out = empty<T>({native_->chains(), native_->full_dim()});
    T* to = out.mutable_data();
    call(interrupt, [&](cpu::Poll* poll) { return native_->position(to, poll); });
    return out;
  }
  // Returns body(chains) while no other thread moves them.
  template <class Body>
  auto look(const Body& body) const {
    const WithoutGil release;
    const std::lock_guard<std::mutex> lock(mutex_);
    return body(static_cast<const Chains<T>&>(*native_));
  }

 private:
  template <class Body>
  void call(const InterruptFlag* interrupt, const Body& body) const {
    Call call(interrupt);
    bool made = false;
    {
      const WithoutGil release;
      const std::lock_guard<std::mutex> lock(mutex_);
      made = body(&call.poll);
    }
    if (!made) end(density_, call);
  }
  py::object column(Block<T>& block, std::size_t i, const py::capsule& owner) const {
    const auto view = [&](const auto* values) -> py::object {
      using V = std::remove_const_t<std::remove_pointer_t<decltype(values)>>;
      const auto size = static_cast<py::ssize_t>(sizeof(V));
      return py::array_t<V>({native_->chains(), block.count}, {block.capacity * size, size}, values,
                            owner);
    };
    const void* values = block.values(i);
    switch (block.columns[i].dtype) {
      case '?':
        return view(static_cast<const bool*>(values));
      case 'q':
        return view(static_cast<const std::int64_t*>(values));
      default:
        return view(static_cast<const double*>(values));
    }
  }

  const D& density_;
  std::unique_ptr<Chains<T>> native_;
  std::shared_ptr<Block<T>> block_;  // arrays in Python keep it alive
  mutable std::mutex mutex_;         // a call that moves the chains, or looks at them, holds it
};

// Chains of any dtype on any density.
class PythonChains {
 public:
  PythonChains(const py::object& target, const std::string& kernel, const py::dict& options,
               const py::dict& facts, std::uint64_t seed, const py::object& chain_ids,
               std::uint64_t warmup,
               const std::tuple<std::int64_t, std::int64_t, std::int64_t>& thinning,
               bool save_warmup, const py::dict& fingerprint, const py::object& bytes)
      : target_(target) {
    Run run;
    run.seed = seed;
    run.warmup = warmup;
    run.save_warmup = save_warmup;
    run.thinning = {std::get<0>(thinning), std::get<1>(thinning), std::get<2>(thinning)};
    if (!chain_ids.is_none()) {
      const py::array ids = checked<std::uint32_t>(chain_ids, "chains", {kAny});
      run.chain_ids.assign(data<std::uint32_t>(ids), data<std::uint32_t>(ids) + ids.size());
    }
    Fingerprint parts;
    for (const auto& [name, value] : fingerprint) {
      parts.emplace_back(name.cast<std::string>(), value.cast<std::string>());
    }
    const Kernel parsed = kernel_of(kernel, options, facts);
    const auto dim = facts["dim"].cast<std::int64_t>();
    if (py::isinstance<Pointer>(target)) {
      make<double>(target.cast<const Pointer&>(), dim, parsed, run, parts, bytes);
      return;
    }
    std::visit(
        [&](const auto& density) {
          using T = typename std::decay_t<decltype(density)>::Scalar;
          make<T>(density, dim, parsed, run, parts, bytes);
        },
        target.cast<const LogDensity&>().of);
  }

  template <class Body>
  auto visit(const Body& body) {
    return std::visit([&](auto& of) { return body(*of); }, of_);
  }

 private:
  template <class T, class D>
  void make(const D& density, std::int64_t dim, const Kernel& kernel, const Run& run,
            const Fingerprint& parts, const py::object& bytes) {
    if (dim != density.native().dim()) {
      throw py::value_error("[_core] the target has " + std::to_string(density.native().dim()) +
                            " parameters, but its facts say " + std::to_string(dim));
    }
    of_ = std::make_unique<ChainsOf<T, D>>(density, kernel, run, parts, bytes);
  }
  py::object target_;  // keeps the density alive
  std::variant<std::unique_ptr<ChainsOf<float, Density<float>>>,
               std::unique_ptr<ChainsOf<double, Density<double>>>,
               std::unique_ptr<ChainsOf<double, Pointer>>>
      of_;
};

}  // namespace

void bind_chains(py::module_& module) {
  py::register_exception<FunctionFailed>(module, "FunctionFailed", PyExc_ValueError);
  using C = PythonChains;
  const auto native = [](C& self, const auto& body) {
    return self.visit([&](auto& of) { return of.look(body); });
  };
  py::class_<C>(module, "Chains", "Chains of a sampler on a density.")
      .def(py::init<const py::object&, const std::string&, const py::dict&, const py::dict&,
                    std::uint64_t, const py::object&, std::uint64_t,
                    const std::tuple<std::int64_t, std::int64_t, std::int64_t>&, bool,
                    const py::dict&, const py::object&>(),
           py::arg("target"), py::arg("kernel"), py::arg("options"), py::kw_only(),
           py::arg("facts"), py::arg("seed"), py::arg("chains"), py::arg("warmup"),
           py::arg("thinning"), py::arg("save_warmup"), py::arg("fingerprint"),
           py::arg("bytes") = py::none())
      .def(
          "start",
          [](C& self, const py::object& position, const InterruptFlag* interrupt) {
            self.visit([&](auto& of) { of.start(position, interrupt); });
          },
          py::arg("position"), py::arg("interrupt") = nullptr)
      .def(
          "advance",
          [](C& self, std::int64_t most, double seconds, const InterruptFlag* interrupt) {
            return self.visit([&](auto& of) { return of.advance(most, seconds, interrupt); });
          },
          py::arg("most"), py::arg("seconds"), py::arg("interrupt") = nullptr)
      .def(
          "position",
          [](C& self, const InterruptFlag* interrupt) {
            return self.visit([&](auto& of) { return of.position(interrupt); });
          },
          py::arg("interrupt") = nullptr)
      .def("save",
           [native](C& self) {
             return py::bytes(native(self, [](const auto& of) { return of.save(); }));
           })
      .def("summary",
           [native](C& self) {
             const Summary found = native(self, [](const auto& of) { return of.summary(); });
             py::dict out;
             const auto put = [&out](const char* name, const auto& values) {
               out[name] = py::array_t<typename std::decay_t<decltype(values)>::value_type>(
                   static_cast<py::ssize_t>(values.size()), values.data());
             };
             put("acceptance_rate", found.acceptance_rate);
             put("divergences", found.divergences);
             put("gradients", found.gradients);
             put("step_size", found.step_size);
             return out;
           })
      .def_property_readonly(
          "step",
          [native](C& self) { return native(self, [](const auto& of) { return of.step(); }); })
      .def_property_readonly("warming_up",
                             [native](C& self) {
                               return native(self, [](const auto& of) { return of.warming_up(); });
                             })
      .def_property_readonly("full_dim", [native](C& self) {
        return native(self, [](const auto& of) { return of.full_dim(); });
      });
}

}  // namespace ribbit::bindings
