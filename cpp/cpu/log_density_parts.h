#pragma once
// What the threads of one call on a LogDensity work with; for log_density.cpp and advance.cpp.

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "cpu/chains.h"
#include "cpu/log_density.h"

namespace ribbit::cpu {

// Parameters are combined in chunks of this size; sums over the prior add chunks in order.
inline constexpr std::int64_t kChunk = 2048;
inline constexpr std::int64_t kMostShards = 16;

template <class T>
struct LogDensity<T>::Batch {
  Panels<T> x, y;
  double scale = 1.0;     // N / rows of the batch
  double constant = 0.0;  // unscaled sum of the rows' constants
};

// What the threads of a team share.
template <class T>
struct LogDensity<T>::TeamSpace {
  Buffer<T> packed;       // weights in tiles
  Buffer<T> shard_grads;  // (shards, dim)
  double shard_ll[kMostShards];
  std::vector<double> chunk_prior;  // (chunks of theta,)

  // Minibatch steps only.
  Batch batch;
  std::vector<std::int64_t> rows;       // (batch,) row numbers
  Buffer<T> grad;                       // (dim,)
  std::unique_ptr<Workspace<T>> whole;  // values and deltas of a whole small batch
  std::vector<double> panel_noise;      // (panels,)
  std::vector<Buffer<T>> scratch;       // of each member
  std::atomic<bool> failed{false};
};

template <class T>
struct LogDensity<T>::CallSpace {
  std::vector<std::unique_ptr<Workspace<T>>> threads;
  std::vector<std::unique_ptr<TeamSpace>> teams;  // indexed by the team's first thread
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
  T* grad;  // (dim,) of the chain; null: not wanted

  // Where a shard adds up its gradient: a single shard needs no sum behind it.
  T* shard_grad(std::int64_t shard, std::int64_t dim) const {
    return shards == 1 ? grad : shared.shard_grads.data() + shard * dim;
  }
  bool barrier() const { return team.barrier(); }
  // The member's share [first, last) of count pieces of work.
  std::int64_t first(std::int64_t count) const { return part(count, index); }
  std::int64_t last(std::int64_t count) const { return part(count, index + 1); }
  // Rounded up, so that a single piece falls to member 0.
  std::int64_t part(std::int64_t count, std::int64_t i) const {
    return (count * i + team.size() - 1) / team.size();
  }
};

// Runs body(member, chain) on the threads of each chain; passes: gradients in all.
template <class T>
template <class Body>
bool LogDensity<T>::on_chains(std::int64_t chains, const Batch& batch, double passes, T* grad,
                              Poll* poll, const Body& body) const {
  const std::int64_t shards = shard_count(batch.x.rows);
  const double flops = 6.0 * passes * static_cast<double>(batch.x.rows * dim_);
  Crew crew(static_cast<int>(std::min<std::int64_t>(threads_for(flops), chains * shards)));
  std::unique_ptr<CallSpace> space = borrow(crew.size(), shards);
  Cancel cancel(poll);
  for_each_chain(crew, chains, cancel,
                 [&](Team& team, int index, int thread, std::int64_t chain, int first_thread) {
                   const Member member{team,
                                       index,
                                       *space->teams[static_cast<std::size_t>(first_thread)],
                                       *space->threads[static_cast<std::size_t>(thread)],
                                       batch,
                                       shards,
                                       grad != nullptr ? grad + chain * dim_ : nullptr};
                   return body(member, chain);
                 });
  give_back(std::move(space));
  return !cancel.cancelled();
}

}  // namespace ribbit::cpu
