#include "cpu/density/stochastic_steps.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "core/update_hd.h"
#include "cpu/density/chains.h"
#include "cpu/density/minibatch.h"
#include "cpu/system/faults.h"

namespace ribbit::cpu {
namespace {

template <class T>
UpdateStep<T> update_step(const StochasticSteps& steps, std::int64_t i, std::uint32_t chain,
                          std::int64_t rows) {
  const std::uint64_t step = steps.first_step + static_cast<std::uint64_t>(i);
  const double eps = steps.step_size[i];
  const double noise = steps.noise[i] * fault_factor(Fault::kNoiseScale, 1.1) *
                       fault_factor(Fault::kNoRoot2, std::sqrt(0.5)) *
                       fault_factor(Fault::kNoNoise, 0.0);
  const double count = static_cast<double>(step) + 1.0;
  UpdateStep<T> u{};
  switch (steps.rule) {
    case kRuleLangevin:
      u.step = static_cast<T>(0.5 * eps);
      u.noise = static_cast<T>(noise * std::sqrt(eps));
      u.scale = static_cast<T>(1.0 / static_cast<double>(rows));
      break;
    case kRuleFriction:
      u.step = static_cast<T>(eps);
      u.noise = static_cast<T>(noise * std::sqrt(2.0 * steps.friction * eps));
      u.keep = static_cast<T>(
          (1.0 - steps.friction) *
          (planted(Fault::kUnscaledVelocity)
               ? 1.0
               : velocity_factor(eps, i == 0 ? steps.previous : steps.step_size[i - 1])));
      break;
    case kRuleAdam:
      u.step = static_cast<T>(eps);
      u.correct1 = static_cast<T>(1.0 / (1.0 - std::pow(steps.decay1, count)));
      u.correct2 = static_cast<T>(1.0 / (1.0 - std::pow(steps.decay2, count)));
      break;
    case kRuleKinetic: {
      const double keep = std::exp(-steps.friction * eps);
      u.step = static_cast<T>(eps);
      u.keep = static_cast<T>(keep);
      u.noise = static_cast<T>(noise * std::sqrt(-std::expm1(-2.0 * steps.friction * eps)));
      break;
    }
    case kRuleCount:
      unreachable();
  }
  u.step *= static_cast<T>(fault_factor(Fault::kHalfGradient, 0.5));
  u.decay1 = static_cast<T>(steps.decay1);
  u.decay2 = static_cast<T>(steps.decay2);
  u.epsilon = static_cast<T>(steps.epsilon);
  u.adapt = step < steps.adapt_until;
  u.key = steps.seed;
  u.c1 = counter_step(step);
  u.c2 = chain;
  u.c3 = counter_purpose(kPurposeUpdateNoise, 0, step);
  return u;
}

}  // namespace

template <class T>
bool advance(const Evaluator<T>& evaluator, const StochasticSteps& steps, T* theta, T* first,
             T* second, std::int64_t chains, StochasticOutcome* outcomes, Poll* poll, T* kept) {
  const RuleRow& rule = kRules[steps.rule];
  if ((rule.moments > 0 && first == nullptr) || (rule.moments > 1 && second == nullptr)) {
    throw std::invalid_argument("[advance] expected " +
                                std::string(rule.moments > 1 ? "first and second" : "first") +
                                " of the rule " + rule.name + ", got None");
  }
  const KernelTable<T>& k = kernels<T>();
  const Pass pass(evaluator, steps.batch_rows, steps.num_steps, chains);
  const Batch<T>* everything = pass.all ? &evaluator.full_batch() : nullptr;
  typename Evaluator<T>::Cut cut{evaluator.group(), pass.shards, pass.shards, pass.pieces,
                                 evaluator.group() != nullptr ? 1 : chains};
  if (pass.all) {
    const auto all = evaluator.cut_of(*everything, chains);
    if (all.group != nullptr) cut = all;
  }
  Crew crew(cut.group != nullptr ? std::min(pass.threads, static_cast<int>(cut.threads()))
                                 : pass.threads);
  std::unique_ptr<CallSpace<T>> space =
      evaluator.acquire(crew.size(), cut.teams, cut.own, pass.rows);
  for (int t = 0; t < crew.size(); ++t) {
    if (!leads_team(t, crew.size(), cut.teams)) continue;
    prepare_batch(evaluator, *space->teams[static_cast<std::size_t>(t)], pass.rows);
  }
  WishPoll wish(poll);
  Cancel cancel(cut.group != nullptr ? &wish : poll);
  evaluator.run_chains(
      cut, crew, chains, cancel,
      [&](Team& team, int index, int thread, std::int64_t chain, int first_thread) {
        TeamSpace<T>& shared = *space->teams[static_cast<std::size_t>(first_thread)];
        Member<T> m{team,
                    index,
                    shared,
                    *space->threads[static_cast<std::size_t>(thread)],
                    pass.all ? *everything : shared.batch,
                    cut.shards,
                    shared.grad.data(),
                    cut.pieces,
                    nullptr,
                    pass.all ? cut.group : nullptr,
                    &wish};
        const std::uint32_t id = steps.chain_ids[chain];
        T* position = theta + chain * evaluator.dim();
        const auto at = [&](T* array) {
          return array != nullptr ? array + chain * evaluator.dim() : nullptr;
        };
        T *moment1 = at(first), *moment2 = at(second);
        const std::int64_t chunks = evaluator.chunk_count();
        std::int64_t next = 0;  // of the positions that are kept
        EpochRows epoch(steps.seed, id, evaluator.rows(), steps.batch_rows,
                        steps.rule == kRuleKinetic);
        Masks masks{steps.seed, 0, id, false, pass.all ? nullptr : shared.rows.data()};
        masks.logits = evaluator.logits_at();
        masks.first = evaluator.first_row();
        if (evaluator.masked()) m.masks = &masks;
        if (index == 0) shared.failed = false;
        for (std::int64_t i = 0; i < steps.num_steps; ++i) {
          const std::uint64_t step = steps.first_step + static_cast<std::uint64_t>(i);
          masks.step = step;
          if (!pass.all && !take_batch(evaluator, m, epoch, step, true)) return false;
          const Wanted wanted{false, true, steps.prior};
          if (!evaluator.run_shards(m, position, wanted)) return false;
          UpdateStep<T> u = update_step<T>(steps, i, id, evaluator.rows());
          bool finite = true;
          const auto move = [&](std::int64_t b, std::int64_t e) {
            u.first_element = static_cast<std::uint64_t>(b);
            finite = k.update(steps.rule, u, m.grad + b, e - b, position + b,
                              moment1 != nullptr ? moment1 + b : nullptr,
                              moment2 != nullptr ? moment2 + b : nullptr) &&
                     finite;
          };
          if (evaluator.concrete()) {  // the learned rates see all of the weights before they move
            evaluator.combine(m, position, wanted, [](std::int64_t, std::int64_t) {});
            if (!m.barrier() || !evaluator.rate_terms(m, position, wanted)) return false;
            const std::int64_t begin = std::min(evaluator.dim(), m.first(chunks) * kChunk);
            const std::int64_t end = std::min(evaluator.dim(), m.last(chunks) * kChunk);
            if (begin < end) move(begin, end);
          } else {
            evaluator.combine(m, position, wanted, move);
          }
          if (!finite) shared.failed.store(true, std::memory_order_relaxed);
          if (!m.barrier()) return false;
          if (shared.failed.load(std::memory_order_relaxed)) {
            if (index != 0) return true;
            outcomes[chain] = {i, largest_size(m.grad, evaluator.dim())};
            return true;
          }
          // No member moves the position before all of them are at the next barrier.
          if (next < steps.num_kept && steps.keep[next] == i) {
            T* to = kept + (chain * steps.num_kept + next++) * evaluator.dim();
            const std::int64_t b = std::min(evaluator.dim(), m.first(chunks) * kChunk);
            const std::int64_t e = std::min(evaluator.dim(), m.last(chunks) * kChunk);
            std::copy(position + b, position + e, to + b);
          }
          if (m.team.cancel().check() || !m.settle()) return false;
        }
        if (index == 0) outcomes[chain] = {-1, 0.0};
        return true;
      });
  evaluator.release(std::move(space));
  return !cancel.cancelled();
}

#define RIBBIT_INSTANTIATE(T)                                                                  \
  template bool advance(const Evaluator<T>&, const StochasticSteps&, T*, T*, T*, std::int64_t, \
                        StochasticOutcome*, Poll*, T*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
