#pragma once
// What the threads of one call on a LogDensity work with; for log_density.cpp and advance.cpp.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "core/permutation_hd.h"
#include "cpu/density/log_density.h"
#include "cpu/system/shards.h"

namespace ribbit::cpu {

// Parameters are combined in chunks of this size; sums over the prior add chunks in order.
inline constexpr std::int64_t kChunk = 2048;
inline constexpr std::int64_t kMostShards = 16;
// Flops that pay for a thread's barriers, also where the threads share their cores with others (30
// us of work).
inline constexpr double kWorthThread = 4e6;

template <class T>
struct LogDensity<T>::Batch {
  Panels<T> x, y;  // x without values where panels are packed when they are needed
  const std::int64_t* numbers = nullptr;  // of the rows, null: 0, 1, ..; only where x has no values
  double scale = 1.0;                     // N / rows of the batch
  double constant = 0.0;                  // unscaled sum of the rows' constants
};

// What the threads of a team share.
template <class T>
struct LogDensity<T>::TeamSpace {
  Buffer<T> packed;       // weights in tiles
  Buffer<T> shard_grads;  // (shards, dim)
  double shard_ll[kMostShards];
  std::vector<double> chunk_prior;  // (chunks of theta,)

  // A shard that is split over the team only.
  std::unique_ptr<Workspace<T>> whole;  // values and deltas of the panels that are on their way
  std::vector<double> panel_noise;      // (panels,)
  std::vector<double> panel_ll;         // (panels,)
  std::vector<double> panel_rates;      // (panels, learned rates)

  // Minibatch steps only.
  Batch batch;
  std::vector<std::int64_t> rows;  // (batch,) row numbers
  Buffer<T> grad;                  // (dim,)
  std::atomic<bool> failed{false};

  // Mean-field steps only, (dim,) each.
  Buffer<T> theta, scale, mean_gradient, scale_gradient;
  std::vector<double> chunk_log_q, chunk_log_prior;  // (chunks of theta,); the second: closed form

  // Two paths only: noise or variances of the weights (dim,), packed, and gradients of each shard
  // by the weights of the two paths (shards, 2, dim) and of the log noise.
  Buffer<T> noise, second, second_gradient, packed_second, row_noise_grads;
  std::unique_ptr<RowNoiseSpace<T>> row_noise;  // of a whole small batch
  double shard_noise[kMostShards];
};

template <class T>
struct LogDensity<T>::CallSpace {
  std::vector<std::unique_ptr<Workspace<T>>> threads;
  std::vector<std::unique_ptr<TeamSpace>> teams;  // indexed by the team's first thread
  std::vector<std::unique_ptr<RowNoiseSpace<T>>> row_noise;
  std::vector<std::unique_ptr<GraphSpace<T>>> graphs;  // one per thread, or none

  GraphSpace<T>* graph(int thread) const {
    const auto t = static_cast<std::size_t>(thread);
    return t < graphs.size() ? graphs[t].get() : nullptr;
  }
};

// One thread's place in its team, and what the team works on.
template <class T>
struct LogDensity<T>::Member {
  Team& team;
  int index;
  TeamSpace& shared;
  Workspace<T>& own;
  const Batch& batch;
  std::int64_t shards;
  T* grad;               // (dim,) of the chain; null: not wanted
  GraphSpace<T>* graph;  // null for a plain network
  std::int64_t pieces;   // that a chain is worth
  const Masks* masks = nullptr;

  // The panels [first, last) of a shard.
  std::int64_t first_panel(std::int64_t shard) const {
    return panel_count(batch.x.rows) * shard / shards;
  }
  std::int64_t last_panel(std::int64_t shard) const { return first_panel(shard + 1); }

  // Where a shard adds up its gradient: a single shard needs no sum behind it.
  T* shard_grad(std::int64_t shard, std::int64_t dim) const {
    return shards == 1 ? grad : shared.shard_grads.data() + shard * dim;
  }
  // Whether its one shard is split over the team.
  bool splits() const { return team.size() > 1 && shards == 1 && pieces > 1; }
  bool barrier() const { return team.barrier(); }
  // The member's share [first, last) of count pieces of work.
  std::int64_t first(std::int64_t count) const { return part(count, index); }
  std::int64_t last(std::int64_t count) const { return part(count, index + 1); }
  // Rounded up, so that a single piece falls to member 0.
  std::int64_t part(std::int64_t count, std::int64_t i) const {
    return (count * i + team.size() - 1) / team.size();
  }
};

// The log likelihood of a batch at theta, a panel at a time. Here alone the likelihood is scaled by
// N / n and divided by the temperatures.
template <class T>
struct LogDensity<T>::PanelLikelihood {
  LikelihoodKind kind;
  int outputs;
  bool learned, values;
  double weight;  // of the gradient
  T scale;        // sd of Gaussian noise, or its log where that is learned

  PanelLikelihood(const LogDensity& density, const Batch& batch, const T* theta, bool wanted)
      : kind(density.likelihood_),
        outputs(static_cast<int>(density.network_.output_size())),
        learned(density.traits_.learns_noise),
        values(wanted),
        weight(batch.scale / (density.temperatures_.likelihood * density.temperatures_.posterior)),
        scale(learned ? theta[density.noise_at()] : static_cast<T>(density.scale_)) {}

  // f, delta: (outputs, kPanel) of panel p of the batch. Adds to the log likelihood, where values
  // are wanted, and to its derivative by the log noise (unweighted), where that is learned.
  void operator()(const Batch& batch, std::int64_t p, const T* f, T* delta, double& ll,
                  double& noise) const {
    kernels<T>().likelihood_panel(kind, f, batch.y.panel(p), outputs, batch.x.valid(p), scale,
                                  weight, delta, values ? &ll : nullptr,
                                  learned ? &noise : nullptr);
  }
};

// How minibatches of one size are worked on, decided by shapes alone.
template <class T>
struct LogDensity<T>::Pass {
  std::int64_t rows, shards, pieces;
  bool all;         // the batch is all of the data
  int threads = 1;  // worth having

  Pass(const LogDensity& density, std::int64_t batch_rows, std::int64_t gradients,
       std::int64_t chains)
      : rows(batch_rows),
        shards(density.shard_count(batch_rows)),
        pieces(density.pieces(batch_rows, shards)),
        all(batch_rows == density.rows_) {
    const double each = density.gradient_flops(rows);
    const double flops = each * static_cast<double>(gradients * chains);
    pieces = std::min(pieces, 1 + static_cast<std::int64_t>(each / kWorthThread));
    threads = static_cast<int>(std::min<std::int64_t>(threads_for(flops), chains * pieces));
  }
};

// Which rows a step of a chain takes.
class EpochRows {
 public:
  EpochRows(std::uint64_t seed, std::uint32_t chain, std::int64_t rows, std::int64_t batch)
      : seed_(seed), chain_(chain), rows_(rows), batch_(batch) {}

  struct Places {
    std::int64_t begin, count;
  };
  // Places of the step's batch in its epoch, whose order row() then gives.
  Places take(std::uint64_t step) {
    const auto batches = static_cast<std::uint64_t>((rows_ + batch_ - 1) / batch_);
    if (!known_ || step / batches != epoch_) {
      epoch_ = step / batches;
      order_ = make_permutation(static_cast<Word64>(rows_), seed_, chain_, epoch_);
      known_ = true;
    }
    const std::int64_t begin = static_cast<std::int64_t>(step % batches) * batch_;
    return {begin, std::min(batch_, rows_ - begin)};
  }
  std::int64_t row(std::int64_t place) const {
    return static_cast<std::int64_t>(permute(order_, static_cast<Word64>(place)));
  }

 private:
  std::uint64_t seed_;
  std::uint32_t chain_;
  std::int64_t rows_, batch_;
  bool known_ = false;
  std::uint64_t epoch_ = 0;
  Permutation order_{};
};

// The largest finite |g|, infinity when there is none.
template <class T>
double largest_size(const T* g, std::int64_t n) {
  double largest = -1;
  for (std::int64_t e = 0; e < n; ++e) {
    const double size = std::abs(static_cast<double>(g[e]));
    if (std::isfinite(size)) largest = std::max(largest, size);
  }
  return largest < 0 ? std::numeric_limits<double>::infinity() : largest;
}

// The member's chunks of the log prior and, when wanted, of grad = sum of shards + prior's. Each
// chunk [begin, end) is then given to `next`, while it is in the first-level cache.
template <class T>
template <class Next>
void LogDensity<T>::combine(const Member& m, const T* theta, Wanted wanted,
                            const Next& next) const {
  const KernelTable<T>& k = kernels<T>();
  T* grad = m.grad;
  for (std::int64_t c = m.first(chunk_count()); c < m.last(chunk_count()); ++c) {
    const std::int64_t begin = c * kChunk, end = std::min(dim_, begin + kChunk);
    if (wanted.gradient && m.shards > 1) {
      k.tree_sum(m.shared.shard_grads.data() + begin, dim_, m.shards, end - begin, grad + begin);
    }
    double logp = 0;
    for (const PriorSegment& segment : prior_) {
      if (wanted.prior == 0.0) break;
      const std::int64_t b = std::max(begin, segment.offset);
      const std::int64_t e = std::min(end, segment.offset + segment.size);
      if (b >= e) continue;
      const double keep = concrete_ ? keep_of(theta, segment.offset) : 1.0;
      k.prior_segment(segment.kind, segment.a * std::sqrt(keep), segment.b, segment.c, theta + b,
                      e - b, wanted.prior / temperatures_.posterior,
                      wanted.values && keep == 1.0 ? &logp : nullptr,
                      wanted.gradient ? grad + b : nullptr);
    }
    m.shared.chunk_prior[static_cast<std::size_t>(c)] = logp;
    next(begin, end);
  }
}

// Runs body(member, chain) on the threads of each chain; passes: gradients in all.
template <class T>
template <class Body>
bool LogDensity<T>::on_chains(std::int64_t chains, const Batch& batch, double passes, T* grad,
                              Poll* poll, const Body& body) const {
  const std::int64_t shards = shard_count(batch.x.rows), parts = pieces(batch.x.rows, shards);
  const double flops = passes * gradient_flops(batch.x.rows);
  Crew crew(static_cast<int>(std::min<std::int64_t>(threads_for(flops), chains * parts)));
  std::unique_ptr<CallSpace> space = acquire(crew.size(), chains, shards, batch.x.rows);
  Cancel cancel(poll);
  for_each_chain(crew, chains, cancel,
                 [&](Team& team, int index, int thread, std::int64_t chain, int first_thread) {
                   Member member{team,
                                 index,
                                 *space->teams[static_cast<std::size_t>(first_thread)],
                                 *space->threads[static_cast<std::size_t>(thread)],
                                 batch,
                                 shards,
                                 grad != nullptr ? grad + chain * dim_ : nullptr,
                                 space->graph(thread),
                                 parts};
                   return body(member, chain);
                 });
  release(std::move(space));
  return !cancel.cancelled();
}

}  // namespace ribbit::cpu
