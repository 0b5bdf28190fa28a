#include <algorithm>
#include <type_traits>
#include <utility>

#include "chains/chains.h"
#include "chains/fields.h"
#include "chains/hamiltonian_chains.h"
#include "cpu/system/dispatch.h"

namespace ribbit {
namespace {

// Compares fingerprints. Throws and names the first part that differs.
Match compare(const Fingerprint& now, const std::string& before) {
  if (now.empty() || before.empty()) return Match::kUnknown;
  std::size_t common = 0;
  for (const auto& [name, value] : now) {
    const std::string wanted = name + "=" + value + "\n";
    const std::size_t at = ("\n" + before).find("\n" + name + "=");
    if (at == std::string::npos) continue;
    if (before.compare(at, wanted.size(), wanted) != 0) {
      throw std::invalid_argument("the chains belong to a target with another " + name);
    }
    ++common;
  }
  const auto parts = static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'));
  return common == now.size() && common == parts ? Match::kSame : Match::kOtherParts;
}

template <class T, class D>
auto make(const D& density, const Kernel& kernel, Run run, Fingerprint fingerprint,
          const FieldReader* reader, bool in_core = true) {
  return std::visit(
      [&](const auto& options) -> std::unique_ptr<Chains<T>> {
        using K = std::decay_t<decltype(options)>;
        auto chains = std::make_unique<HamiltonianChains<T, D, K>>(density, options, std::move(run),
                                                                   std::move(fingerprint));
        if (reader != nullptr) {
          std::string target;
          (*reader)("target", target);
          const Match match = compare(chains->fingerprint(), target);
          chains->read(*reader, match == Match::kSame && !in_core ? Match::kUnknown : match);
        }
        return chains;
      },
      kernel);
}

const char* dtype_name(char code) {
  return code == 'f' ? "float32" : code == 'd' ? "float64" : "another dtype";
}

}  // namespace

template <class T, class D>
std::unique_ptr<Chains<T>> make_chains(const D& density, const Kernel& kernel, Run run,
                                       Fingerprint fingerprint) {
  return make<T>(density, kernel, std::move(run), std::move(fingerprint), nullptr);
}

template <class T, class D>
std::unique_ptr<Chains<T>> load_chains(const D& density, const Kernel& kernel, Run run,
                                       Fingerprint fingerprint, std::string_view bytes) {
  const FieldReader reader(bytes);
  std::string name, instruction_set;
  reader("kernel", name);
  reader("instruction set", instruction_set);
  run.chain_ids.clear();
  reader("seed", run.seed);
  const std::int64_t chains = reader.rows("chains");
  reader("chains", run.chain_ids, chains);
  if (run.chain_ids.size() != static_cast<std::size_t>(chains)) FieldReader::fail("chains");
  reader("warmup", run.warmup);
  const std::string wanted = std::holds_alternative<Nuts>(kernel) ? "nuts" : "hmc";
  if (name != wanted) {
    throw std::invalid_argument("expected chains of kernel '" + wanted + "', got '" + name + "'");
  }
  if (const char dtype = reader.dtype("position"); dtype != dtype_code<T>()) {
    throw std::invalid_argument(std::string("expected chains of ") + dtype_name(dtype_code<T>()) +
                                ", got chains of " + dtype_name(dtype));
  }
  const std::string now = cpu::instruction_set().name;
  if (!instruction_set.empty() && instruction_set != now) {
    throw std::invalid_argument(
        "the chains ran with the instruction set " + instruction_set + ", this process uses " +
        now + ". Set RIBBIT_ISA=" + instruction_set + " to continue them with the same rounding");
  }
  // Chains that moved in Python have no instruction set, and terms of their own.
  const bool in_core = !instruction_set.empty();
  return make<T>(density, kernel, std::move(run), std::move(fingerprint), &reader, in_core);
}

#define RIBBIT_INSTANTIATE(T, D)                                                                 \
  template std::unique_ptr<Chains<T>> make_chains<T>(const D&, const Kernel&, Run, Fingerprint); \
  template std::unique_ptr<Chains<T>> load_chains<T>(const D&, const Kernel&, Run, Fingerprint,  \
                                                     std::string_view);
RIBBIT_INSTANTIATE(float, cpu::LogDensity<float>)
RIBBIT_INSTANTIATE(double, cpu::LogDensity<double>)
RIBBIT_INSTANTIATE(double, cpu::PointerDensity)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit
