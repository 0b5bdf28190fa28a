// Reparameterised weights (Blundell et al. 2015, sec. 3.2), or two paths for each row
// (row_noise_steps.h).

#include "cpu/density/variational.h"

#include <cmath>
#include <stdexcept>

#include "core/prior_hd.h"
#include "cpu/density/minibatch.h"
#include "cpu/density/row_noise_steps.h"
#include "cpu/system/faults.h"

namespace ribbit::cpu {
namespace {

constexpr double kHalfLog2PiE = 1.4189385332046727;  // 1/2 log(2 pi e)

// The member's chunks of the closed values: E log q, and E log prior when it has a closed form.
// shared.scale holds the sds.
template <class T>
void closed_values(const Evaluator<T>& evaluator, const Member<T>& m, const T* mean, bool prior) {
  const KernelTable<T>& k = kernels<T>();
  const T* scale = m.shared.scale.data();
  T away[kChunk];  // from the prior's centre
  for (std::int64_t c = m.first(evaluator.chunk_count()); c < m.last(evaluator.chunk_count());
       ++c) {
    const std::int64_t begin = c * kChunk, end = std::min(evaluator.dim(), begin + kChunk);
    m.shared.chunk_log_q[static_cast<std::size_t>(c)] =
        -k.sum_log(scale + begin, end - begin) - kHalfLog2PiE * static_cast<double>(end - begin);
    if (!prior) continue;
    double total = 0;
    for (const PriorSegment& segment : evaluator.prior()) {
      const std::int64_t b = std::max(begin, segment.offset);
      const std::int64_t e = std::min(end, segment.offset + segment.size);
      if (b >= e) continue;
      const PriorConstants& p = segment.constants;
      const double squares =
          k.dot_weighted(evaluator.from_centre(mean, b, e, away), nullptr, e - b) +
          k.dot_weighted(scale + b, nullptr, e - b);
      total += static_cast<double>(e - b) * p.log_norm - 0.5 * p.p[1] * squares;
    }
    m.shared.chunk_log_prior[static_cast<std::size_t>(c)] = total;
  }
}

template <class T>
double kl_weight(const Evaluator<T>& evaluator, const VariationalSteps& steps, std::int64_t i) {
  const auto size = [](std::int64_t count) { return static_cast<double>(count); };
  return steps.kl_weight[i] * fault_factor(Fault::kMeanKl, 1.0 / size(evaluator.dim())) *
         fault_factor(Fault::kKlScale, 1.1) *
         fault_factor(Fault::kKlPerBatch,
                      std::ceil(size(evaluator.rows()) / size(steps.batch_rows)));
}

// Moves the member's chunks along the gradients of the step; false when not finite any more.
template <class T>
bool move_variational(const Evaluator<T>& evaluator, const Member<T>& m,
                      const VariationalSteps& steps, std::int64_t i,
                      const VariationalState<T>& state) {
  const KernelTable<T>& k = kernels<T>();
  const double count = static_cast<double>(steps.first_step + static_cast<std::uint64_t>(i)) + 1.0;
  const double weight = kl_weight(evaluator, steps, i);
  VariationalStep<T> u{};
  u.step = static_cast<T>(steps.step_size[i]);
  u.decay1 = static_cast<T>(steps.decay1);
  u.decay2 = static_cast<T>(steps.decay2);
  u.correct1 = static_cast<T>(1.0 / (1.0 - std::pow(steps.decay1, count)));
  u.correct2 = static_cast<T>(1.0 / (1.0 - std::pow(steps.decay2, count)));
  u.epsilon = static_cast<T>(steps.epsilon);
  u.samples = static_cast<T>(1.0 / static_cast<double>(steps.samples));
  u.entropy = static_cast<T>(weight);
  const std::int64_t begin = m.first(evaluator.chunk_count()) * kChunk;
  const std::int64_t end = std::min(evaluator.dim(), m.last(evaluator.chunk_count()) * kChunk);
  // Where the prior is not closed, it is in the gradients already.
  const T* centre = steps.closed ? evaluator.centre() : nullptr;
  bool finite = true;
  for (const PriorSegment& segment : evaluator.prior()) {
    const std::int64_t b = std::max(begin, segment.offset);
    const std::int64_t e = std::min(end, segment.offset + segment.size);
    if (b >= e) continue;
    if (steps.closed) {
      u.shrink =
          static_cast<T>(weight / (segment.a * segment.a * evaluator.temperatures().posterior));
    }
    const TeamSpace<T>& s = m.shared;
    const VariationalArrays<T> arrays{s.mean_gradient.data() + b,
                                      s.scale_gradient.data() + b,
                                      state.mean + b,
                                      state.rho + b,
                                      state.mean_first + b,
                                      state.mean_second + b,
                                      state.rho_first + b,
                                      state.rho_second + b,
                                      centre != nullptr ? centre + b : nullptr};
    finite = k.variational_update(u, arrays, e - b) && finite;
  }
  return finite;
}

}  // namespace

template <class T>
bool advance_variational(const Evaluator<T>& evaluator, const VariationalSteps& steps,
                         const VariationalState<T>& state, StochasticOutcome* outcome, Poll* poll) {
  const KernelTable<T>& k = kernels<T>();
  const bool row_noise = steps.estimator != Estimator::kReparam;
  // Where every noise is of rows and the prior is closed, weights are drawn for nobody.
  const bool draws = steps.estimator != Estimator::kLocal || !steps.closed ||
                     evaluator.traits().learns_noise || !evaluator.drawn(steps.estimator).empty();
  if (row_noise && evaluator.scaled()) {
    throw std::invalid_argument("[advance_variational] expected reparam with learned scales");
  }
  if (evaluator.masked()) throw std::invalid_argument("[advance_variational] expected no masks");
  if (row_noise && evaluator.group() != nullptr && steps.batch_rows == evaluator.rows()) {
    throw std::invalid_argument("[advance_variational] expected reparam with all rows of ranks");
  }
  Pass pass(evaluator, steps.batch_rows, steps.num_steps * steps.samples, 1);
  // Two paths of a batch of one shard are split over the team, all of their panels kept at once.
  constexpr std::int64_t kMostWhole = 64;
  const std::int64_t panels = panel_count(pass.rows);
  const MlpPlan* plan = evaluator.network_pass().mlp_plan();
  const bool split = row_noise && plan != nullptr && pass.shards == 1 && panels <= kMostWhole;
  const bool sharded = row_noise && !split;
  if (sharded) pass.shards = evaluator.shard_count(pass.rows, PassUse::kRowNoise);
  if (row_noise) {
    // Beside the two products there is noise or signs for every row, so that a thread is worth
    // having for fewer of them than those of Pass (measured: 8-50-1 on 500 rows).
    constexpr double kWorthRowNoise = 2e6;
    const double flops = 2.0 * evaluator.gradient_flops(pass.rows);
    pass.pieces = split ? std::min(panels, 1 + static_cast<std::int64_t>(flops / kWorthRowNoise))
                        : pass.shards;
    pass.threads =
        crew_size(flops * static_cast<double>(steps.num_steps * steps.samples), 1, pass.pieces);
  }
  const Batch<T>* everything = !pass.all   ? nullptr
                               : row_noise ? &evaluator.packed_batch()
                                           : &evaluator.full_batch();
  typename Evaluator<T>::Cut cut{nullptr, pass.shards, pass.shards, pass.pieces, 1};
  const RowGroup* group = evaluator.group();
  if (group != nullptr && pass.all) cut = evaluator.cut_of(*everything, 1);
  Crew crew(std::min(pass.threads, static_cast<int>(cut.threads())));
  std::unique_ptr<CallSpace<T>> space = evaluator.acquire(
      crew.size(), 1, cut.own, pass.rows, sharded ? PassUse::kRowNoise : PassUse::kGradient);
  const auto& own = sharded ? space->row_noise : space->threads;
  TeamSpace<T>& shared = *space->teams[0];
  prepare_batch(evaluator, shared, pass.rows);
  for (Buffer<T>* buffer :
       {&shared.theta, &shared.scale, &shared.mean_gradient, &shared.scale_gradient}) {
    buffer->resize(evaluator.dim());
  }
  if (row_noise) {
    for (Buffer<T>* buffer : {&shared.noise, &shared.second, &shared.second_gradient}) {
      buffer->resize(evaluator.dim());
    }
    shared.packed_second.resize(evaluator.network_pass().packed_size());
    shared.row_noise_grads.resize(2 * pass.shards * evaluator.dim());
    shared.shard_noise.resize(static_cast<std::size_t>(pass.shards * evaluator.learned_noises()));
    if (pass.all) shared.rows.clear();
    if (split && (!shared.row_noise || shared.row_noise->block() < panels)) {
      shared.row_noise = std::make_unique<RowNoiseSpace<T>>(*plan, panels);
    }
    if (split) {
      shared.panel_noise.resize(static_cast<std::size_t>(panels * evaluator.learned_noises()));
      shared.panel_ll.resize(static_cast<std::size_t>(panels));
    }
  }
  shared.chunk_log_q.resize(static_cast<std::size_t>(evaluator.chunk_count()));
  shared.chunk_log_prior.assign(static_cast<std::size_t>(evaluator.chunk_count()), 0.0);
  WishPoll wish(poll);
  Cancel cancel(group != nullptr ? &wish : poll);
  for_each_chain(crew, 1, cancel, [&](Team& team, int index, int thread, std::int64_t, int) {
    const Member<T> m{team,
                      index,
                      shared,
                      *own[static_cast<std::size_t>(thread)],
                      pass.all ? *everything : shared.batch,
                      cut.shards,
                      shared.grad.data(),
                      cut.pieces,
                      nullptr,
                      cut.group,
                      &wish};
    T *theta = shared.theta.data(), *scale = shared.scale.data();
    const std::int64_t chunks = evaluator.chunk_count();
    EpochRows epoch(steps.seed, 0, evaluator.rows(), steps.batch_rows);
    for (std::int64_t i = 0; i < steps.num_steps; ++i) {
      if (!m.settle()) return false;
      const std::int64_t begin = std::min(evaluator.dim(), m.first(chunks) * kChunk);
      const std::int64_t size = std::min(evaluator.dim(), m.last(chunks) * kChunk) - begin;
      const auto element = static_cast<std::uint64_t>(begin);
      const std::uint64_t step = steps.first_step + static_cast<std::uint64_t>(i);
      if (!pass.all && !take_batch(evaluator, m, epoch, step, false)) return false;
      k.softplus(state.rho + begin, scale + begin, size);
      closed_values(evaluator, m, state.mean, steps.closed);
      const std::uint32_t c1 = counter_step(step),
                          c3 = counter_purpose(kPurposeWeightNoise, 0, step);
      if (index == 0) {
        steps.log_likelihood[i] = 0;
        steps.log_prior[i] = 0;
      }
      const double prior = steps.closed ? 0.0 : kl_weight(evaluator, steps, i);
      for (std::int64_t sample = 0; sample < steps.samples; ++sample) {
        const auto c2 = static_cast<std::uint32_t>(sample);
        if (draws) {
          k.reparameterize(state.mean + begin, scale + begin, theta + begin, size, element,
                           steps.seed, c1, c2, c3);
        }
        if (row_noise) {
          if (!row_noise_gradient(evaluator, m, split, steps, i, sample, state.mean, prior)) {
            return false;
          }
        } else {
          const Wanted wanted{true, true, prior};
          if (!evaluator.run_shards(m, theta, wanted)) return false;
          evaluator.combine(m, theta, wanted, [&](std::int64_t b, std::int64_t e) {
            k.noise_gradient(m.grad + b, e - b, static_cast<std::uint64_t>(b), steps.seed, c1, c2,
                             c3, sample == 0, shared.mean_gradient.data() + b,
                             shared.scale_gradient.data() + b);
          });
          if (!m.barrier()) return false;
        }
        if (index == 0) {
          double ll = 0, logp = 0;
          evaluator.sum_terms(m, &ll, &logp);
          steps.log_likelihood[i] += ll / static_cast<double>(steps.samples);
          steps.log_prior[i] += logp / static_cast<double>(steps.samples);
        }
      }
      if (index == 0) {
        steps.log_q[i] = 0;
        for (const double chunk : shared.chunk_log_q) steps.log_q[i] += chunk;
        for (const double chunk : shared.chunk_log_prior) steps.log_prior[i] += chunk;
      }
      if (!move_variational(evaluator, m, steps, i, state)) {
        shared.failed.store(true, std::memory_order_relaxed);
      }
      if (!m.barrier()) return false;
      if (shared.failed.load(std::memory_order_relaxed)) {
        if (index == 0) *outcome = {i, largest_size(shared.mean_gradient.data(), evaluator.dim())};
        return true;
      }
      if (m.team.cancel().check()) return false;
    }
    if (index == 0) *outcome = {-1, 0.0};
    return true;
  });
  evaluator.release(std::move(space));
  return !cancel.cancelled();
}

#define RIBBIT_INSTANTIATE(T)                                                     \
  template bool advance_variational(const Evaluator<T>&, const VariationalSteps&, \
                                    const VariationalState<T>&, StochasticOutcome*, Poll*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
