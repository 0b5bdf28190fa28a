#pragma once
// What the threads of one call on an Evaluator work with.

#include <atomic>
#include <memory>
#include <vector>

#include "cpu/density/last_layer.h"
#include "cpu/density/row_group.h"
#include "cpu/layers/row_blocks.h"
#include "cpu/network/mlp_row_noise.h"
#include "cpu/network/network_pass.h"
#include "cpu/system/pieces.h"
#include "cpu/system/threads.h"

namespace ribbit::cpu {

template <class T>
struct Batch {
  BatchRows<T> x;
  Panels<T> y;
  Panels<T> weights;      // of the rows, one column; no rows: each counts once
  double scale = 1.0;     // N / rows of the batch
  double constant = 0.0;  // unscaled sum of the rows' constants

  // (kPanel,), or null.
  const T* row_weights(std::int64_t p) const {
    return weights.rows > 0 ? weights.panel(p) : nullptr;
  }
};

// The rows of a batch, wherever they were, in its order.
template <class T>
struct FetchedRows {
  Buffer<std::byte> sent, received;
  Buffer<std::byte> x;  // (batch, features) bytes of images, or numbers
  Buffer<T> y, weights;
  std::vector<double> constants;
  // like: how inputs lie where they came from.
  Rows<T> inputs(const Rows<T>& like) const {
    return like.bytes != nullptr ? Rows<T>(reinterpret_cast<const std::uint8_t*>(x.data()))
                                 : Rows<T>(reinterpret_cast<const T*>(x.data()));
  }
};

template <class T>
struct KeptShard {
  std::unique_ptr<Workspace<T>> space;
  std::vector<const T*> features;  // (panels,)
};

// What the threads of a team share.
template <class T>
struct TeamSpace {
  Buffer<T> packed;            // weights in tiles
  Buffer<T> shard_grads;       // (shards, dim); of a group its own shards
  Buffer<std::uint8_t> marks;  // (shards, touched_.marks()), where rows of large tables are marked
  double shard_ll[kMostShards];
  Pieces pieces;                    // shards that are not begun
  std::vector<double> chunk_prior;  // (chunks of theta,)

  std::unique_ptr<GradientExchange<T>> exchange;  // of a group

  // Learned scales only: weights (dim,), what multiplies them, and what each scale gets of their
  // gradient, by chunks.
  Buffer<T> weights;
  std::vector<double> multipliers, scale_sums;

  // A shard that is split over the team only.
  std::unique_ptr<Workspace<T>> whole;  // values and deltas of the panels that are on their way
  std::vector<double> panel_noise;      // (panels, log noises that are learned)
  std::vector<double> panel_ll;         // (panels,)
  std::vector<double> panel_rates;      // (panels, learned rates)

  // Minibatch steps only.
  Batch<T> batch;
  std::vector<std::int64_t> rows;  // (batch,) row numbers
  FetchedRows<T> fetched;          // of a group
  Buffer<T> grad;                  // (dim,)
  std::atomic<bool> failed{false};

  // Mean-field steps only, (dim,) each.
  Buffer<T> theta, scale, mean_gradient, scale_gradient;
  std::vector<double> chunk_log_q, chunk_log_prior;  // (chunks of theta,); the second: closed form

  // Isokinetic steps only: where a step leads, (dim,) each, and sums of chunks (2, chunks, 3).
  Buffer<T> far_position, far_velocity, far_grad, mixed_grad;
  std::vector<double> chunk_sums;
  // No-U-turn transitions only: vectors (dim,) of the tree, and sums of each chunk of theta.
  Buffer<T> tree;
  std::vector<double> tree_sums;

  // Two paths only: noise or variances of the weights (dim,), packed, and gradients of each shard
  // by the weights of the two paths (shards, 2, dim) and of the log noise.
  Buffer<T> noise, second, second_gradient, packed_second, row_noise_grads;
  std::unique_ptr<RowNoiseSpace<T>> row_noise;  // of a whole small batch
  std::vector<double> shard_noise;              // (shards, log noises that are learned)

  // Where the last layer is integrated out only; of each shard what its way forwards left, and
  // where the features of each of its panels lie; {}: it goes forwards twice.
  LastLayerSpace<T> last;
  std::vector<KeptShard<T>> kept;
};

template <class T>
struct CallSpace {
  std::vector<std::unique_ptr<PassSpace>> threads, row_noise;  // for gradients, and by two paths
  std::vector<std::unique_ptr<TeamSpace<T>>> teams;            // indexed by the team's first thread
};

// One thread's place in its team, and what the team works on.
template <class T>
struct Member {
  Team& team;
  int index;
  TeamSpace<T>& shared;
  PassSpace& own;  // of the PassUse that the call acquired
  const Batch<T>& batch;
  std::int64_t shards;
  T* grad;              // (dim,) of the chain; null: not wanted
  std::int64_t pieces;  // that a chain is worth
  const Masks* masks = nullptr;
  const RowGroup* group = nullptr;  // null: all rows of the batch are here
  const WishPoll* wish = nullptr;   // of a group
  bool twin = false;  // all members move the same theta, each a copy (Evaluator::may_be_twins)
  int turn = 0;       // of twins: which half of shard_grads

  // The panels [first, last) of a shard.
  std::int64_t first_panel(std::int64_t shard) const {
    if (group != nullptr) return group->first_panel(shard);
    return panel_count(batch.x.rows) * shard / shards;
  }
  std::int64_t last_panel(std::int64_t shard) const { return first_panel(shard + 1); }

  T* shard_grads(std::int64_t dim) const { return shared.shard_grads.data() + turn * shards * dim; }
  // Where a shard adds up its gradient: a single shard needs no sum behind it.
  T* shard_grad(std::int64_t shard, std::int64_t dim) const {
    return shards == 1 ? grad : shard_grads(dim) + (shard - first_shard()) * dim;
  }
  // The shards whose rows are here: first_shard(), .. , of own_shards().
  std::int64_t first_shard() const { return group != nullptr ? group->own_first() : 0; }
  std::int64_t own_shards() const { return group != nullptr ? group->own_shards() : shards; }
  // Whether its one shard is split over the team.
  bool splits() const { return team.size() > 1 && shards == 1 && pieces > 1; }
  bool barrier() const { return team.barrier(); }
  bool gather() const { return team.gather(); }
  bool settle() const { return team.settle(index); }
  // The member's share [first, last) of count pieces of work.
  std::int64_t first(std::int64_t count) const { return part(count, index); }
  std::int64_t last(std::int64_t count) const { return part(count, index + 1); }
  // Pieces of work that each give their own result: a share of them, before a barrier,
  void own_pieces(std::int64_t count) const {
    if (count > team.size()) shared.pieces.own(index, first(count), last(count));
  }
  // and body(piece) on those of the share and, where others are late, on some of theirs. False when
  // cancelled.
  template <class Body>
  bool each_piece(std::int64_t count, const Body& body) const {
    if (count <= team.size()) {  // nobody has one that is not begun
      if (first(count) < last(count)) body(first(count));
      return !team.cancel().cancelled();
    }
    for (std::int64_t piece; (piece = shared.pieces.take(index, team.size())) >= 0;) {
      if (team.cancel().cancelled()) return false;
      body(piece);
    }
    return true;
  }
  // The chunks of theta that it moves.
  std::int64_t first_chunk(std::int64_t count) const { return twin ? 0 : first(count); }
  std::int64_t last_chunk(std::int64_t count) const { return twin ? count : last(count); }
  // Rounded up, so that a single piece falls to member 0.
  std::int64_t part(std::int64_t count, std::int64_t i) const {
    return (count * i + team.size() - 1) / team.size();
  }
};

}  // namespace ribbit::cpu
