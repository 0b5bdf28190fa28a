#include "cpu/density/log_density.h"

#include <algorithm>
#include <vector>

#include "core/philox_hd.h"
#include "cpu/density/chains.h"
#include "cpu/density/minibatch.h"

namespace ribbit::cpu {

template <class T>
bool LogDensity<T>::evaluate(const T* theta, std::int64_t chains, const std::int64_t* subset,
                             std::int64_t count, double* log_likelihood, double* log_prior, T* grad,
                             Poll* poll, const Masks* masks, double prior) const {
  const Evaluator<T>& evaluator = evaluator_;
  Batch<T> minibatch;
  FetchedRows<T> fetched;
  const bool elsewhere = subset != nullptr && evaluator.group() != nullptr;
  if (elsewhere) {
    const bool wish = poll != nullptr && poll->stop();
    if (!fetch_rows(evaluator, subset, count, wish, fetched)) return false;
  }
  if (subset != nullptr) {
    minibatch = evaluator.batch_of(subset, count, elsewhere ? &fetched : nullptr);
  }
  const Wanted wanted{true, grad != nullptr, prior};
  return evaluator.on_chains(chains, subset != nullptr ? minibatch : evaluator.full_batch(),
                             static_cast<double>(chains), grad, poll,
                             [&](Member<T>& m, std::int64_t chain) {
                               const T* at = theta + chain * evaluator.dim();
                               Masks own;
                               if (masks != nullptr) {
                                 own = *masks;
                                 own.rows = subset;
                                 own.first = evaluator.first_row();
                                 own.logits = evaluator.logits_at();
                                 own.sample += static_cast<std::uint32_t>(chain);
                                 m.masks = &own;
                               }
                               if (!evaluator.run_shards(m, at, wanted)) return false;
                               evaluator.combine(m, at, wanted, [](std::int64_t, std::int64_t) {});
                               if (!m.barrier() || !evaluator.rate_terms(m, at, wanted))
                                 return false;
                               if (m.index == 0)
                                 evaluator.sum_terms(m, log_likelihood + chain, log_prior + chain);
                               return true;
                             });
}

template <class T>
bool LogDensity<T>::complete(const T* theta, std::int64_t chains, std::int64_t draws,
                             std::uint64_t seed, const std::uint64_t* steps,
                             const std::uint32_t* chain_ids, T* out, Poll* poll) const {
  const Evaluator<T>& evaluator = evaluator_;
  const LastLayer& layer = *evaluator.last();
  const std::int64_t below = evaluator.noise_at(), weights = layer.terms() * layer.outputs;
  const std::int64_t all = chains * draws;
  return evaluator.on_chains(all, evaluator.full_batch(), static_cast<double>(all), nullptr, poll,
                             [&](const Member<T>& m, std::int64_t i) {
                               const T* at = theta + i * evaluator.dim();
                               T* to = out + i * (evaluator.dim() + weights);
                               std::vector<double> normals;
                               if (m.index == 0) {
                                 const std::uint64_t step = steps[i % draws];
                                 normals.resize(static_cast<std::size_t>(weights));
                                 kernels<double>().fill_normal(
                                     normals.data(), weights, 0, seed, counter_step(step),
                                     chain_ids[i / draws],
                                     counter_purpose(kPurposeLastLayer, 0, step));
                                 std::copy(at, at + below, to);
                                 std::copy(at + below, at + evaluator.dim(), to + below + weights);
                               }
                               return evaluator.draw_last(m, at, normals.data(), to + below);
                             });
}

template class LogDensity<float>;
template class LogDensity<double>;

}  // namespace ribbit::cpu
