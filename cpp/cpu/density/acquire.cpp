// What the calls on an Evaluator work in: kept between calls, asked for before it is taken.

#include <algorithm>
#include <string>

#include "cpu/density/evaluator.h"
#include "cpu/system/memory.h"

namespace ribbit::cpu {

// Workspaces for all threads, and what the first thread of each team shares with the others.
template <class T>
std::unique_ptr<CallSpace<T>> Evaluator<T>::acquire(int threads, std::int64_t chains,
                                                    std::int64_t shards, std::int64_t rows,
                                                    PassUse use) const {
  std::unique_ptr<CallSpace<T>> space;
  {
    std::scoped_lock lock(spaces_mutex_);
    if (!spaces_.empty()) {
      space = std::move(spaces_.back());
      spaces_.pop_back();
    }
  }
  if (!space) space = std::make_unique<CallSpace<T>>();
  const bool row_noise = use == PassUse::kRowNoise;
  auto& spaces = row_noise ? space->row_noise : space->threads;
  const std::int64_t missing =
      std::max<std::int64_t>(0, threads - static_cast<std::int64_t>(spaces.size()));
  const std::int64_t packed = pass_->packed_size();
  if (pass_->large_spaces()) {
    const std::int64_t each = pass_->space_bytes(use);
    std::int64_t shared = 0;  // scalars that the teams do not have yet
    for (int t = 0; t < threads; ++t) {
      if (!leads_team(t, threads, chains)) continue;
      const auto number = static_cast<std::size_t>(t);
      // Two paths have two of each, and sums of them.
      shared += row_noise ? 2 * (shards * dim_ + packed) + 7 * dim_
                          : shards * dim_ + packed + (scaled() ? dim_ : 0);
      if (number >= space->teams.size()) continue;
      const TeamSpace<T>& team = *space->teams[number];
      shared -= row_noise
                    ? team.row_noise_grads.size() + team.packed_second.size() + team.packed.size()
                    : team.shard_grads.size() + team.packed.size() + team.weights.size();
    }
    require_memory(
        missing * each + std::max<std::int64_t>(0, shared) * static_cast<std::int64_t>(sizeof(T)),
        workspaces_named(missing, each) + " for 32 rows, and partial gradients");
  }
  for (std::int64_t i = 0; i < missing; ++i) spaces.push_back(pass_->space(use));
  while (static_cast<int>(space->teams.size()) < threads) {
    space->teams.push_back(std::make_unique<TeamSpace<T>>());
  }
  for (int t = 0; t < threads; ++t) {
    if (!leads_team(t, threads, chains)) continue;
    TeamSpace<T>& team = *space->teams[static_cast<std::size_t>(t)];
    const bool twins = has_team(threads, chains) && may_be_twins(shards);
    team.packed.resize(twins ? threads * packed : packed);
    team.pieces.clear(threads);
    team.chunk_prior.resize(static_cast<std::size_t>(chunk_count()));
    if (scaled()) {
      team.weights.resize(dim_);
      team.multipliers.resize(static_cast<std::size_t>(scales_->sums()));
      team.scale_sums.resize(static_cast<std::size_t>(scales_->sums()));
    }
    if (row_noise) continue;
    team.shard_grads.resize((twins ? 2 : 1) * shards * dim_);
    team.marks.resize(shards * touched_.marks());
    if (group_ != nullptr && !team.exchange) {
      team.exchange = std::make_unique<GradientExchange<T>>(*group_, dim_);
    }
    if (last_) {
      team.last.resize(*last_, shards, threads);
      keep_shards(team, rows, shards);
    }
    if (has_team(threads, chains) && shards == 1 && pieces(rows, 1) > 1) {
      prepare_split(team, rows, threads);
    }
  }
  return space;
}

template <class T>
void Evaluator<T>::release(std::unique_ptr<CallSpace<T>> space) const {
  std::scoped_lock lock(spaces_mutex_);
  spaces_.push_back(std::move(space));
}

#define RIBBIT_INSTANTIATE(T)                                                                   \
  template std::unique_ptr<CallSpace<T>> Evaluator<T>::acquire(int, std::int64_t, std::int64_t, \
                                                               std::int64_t, PassUse) const;    \
  template void Evaluator<T>::release(std::unique_ptr<CallSpace<T>>) const;
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
