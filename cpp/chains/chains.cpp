#include "chains/chains.h"

namespace ribbit {
namespace {

void check(const Run& run) {
  const auto refuse = [](const std::string& text) { throw std::invalid_argument(text); };
  if (run.chain_ids.empty()) refuse("there must be at least 1 chain");
  if (run.warmup >= kMostSteps) refuse("warmup must be below 2^40");
  const Thinning& thin = run.thinning;
  // The quotient keeps the product many * gap from overflowing.
  if (thin.period < 1 || thin.period >= static_cast<std::int64_t>(kMostSteps) || thin.many < 1 ||
      thin.gap < 1 || thin.many > thin.period / thin.gap) {
    refuse("thinning must have many * gap <= period < 2^40, got (" + std::to_string(thin.period) +
           ", " + std::to_string(thin.many) + ", " + std::to_string(thin.gap) + ")");
  }
}

}  // namespace

template <class T>
Chains<T>::Chains(Run run, Fingerprint fingerprint)
    : run_(std::move(run)), fingerprint_(std::move(fingerprint)) {
  check(run_);
}
template class Chains<float>;
template class Chains<double>;

}  // namespace ribbit
