#pragma once
// How panels of rows go through a network, whatever its layers: dense ones alone as a table of
// stages (mlp_pass.h), any others as a graph (graph_pass.h). Chosen once, where a network is taken
// up; called per shard, or per panels that travel together, never within a panel.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/network.h"
#include "cpu/layers/layer_pass.h"
#include "cpu/layers/part.h"
#include "cpu/layers/row_blocks.h"
#include "cpu/system/threads.h"

namespace ribbit::cpu {

struct MlpPlan;
template <class T>
struct RowNoiseWeights;

// Shards of a batch whose sums are kept until a tree adds them.
inline constexpr std::int64_t kMostShards = 16;

// Multiplications of panels that travel together, from which on a thread asks between the layers
// too whether the call is to end: some milliseconds.
inline constexpr std::int64_t kLongPanels = std::int64_t{1} << 24;

// What a thread's space is for. kRowNoise: gradients by two paths (mlp_row_noise.h).
enum class PassUse { kForward, kGradient, kRowNoise };

// What one thread works in: its pass alone knows what that is.
class PassSpace {
 public:
  virtual ~PassSpace() = default;
};

// Stages first..last-1 of a plan.
struct StageRange {
  std::size_t first = 0, last = static_cast<std::size_t>(-1);
};

// The rows of a batch: packed into panels, or without values where each panel is packed when it is
// needed, from where the rows lie.
template <class T>
struct BatchRows : Panels<T> {
  Rows<T> source;
  const std::int64_t* numbers = nullptr;  // of the rows, null: 0, 1, ..
};

// What the outputs of a panel are worth.
template <class T>
class PanelLoss {
 public:
  // f, delta: (outputs, kPanel) of a panel of the batch; the delta is written.
  virtual void operator()(std::int64_t panel, const T* f, T* delta) = 0;

 protected:
  ~PanelLoss() = default;
};

// The panels [first, last) of a batch under one vector of weights.
template <class T>
struct ShardArgs {
  const BatchRows<T>& rows;
  std::int64_t first, last;
  const T* theta;
  const T* packed;     // null where they are packed tile by tile
  const Masks* masks;  // of a pass with masks
  T* grad;             // (dim,) of zeros; null: not wanted
  // (rows of all touched_tables(),) of zeros, set to 1 where a row is added to; grad may then have
  // anything in these tables, and has it still in rows without a mark. null: all of grad is zeros
  std::uint8_t* marks = nullptr;
};

// The same along two paths.
template <class T>
struct RowNoiseArgs {
  const BatchRows<T>& rows;
  std::int64_t first, last;
  const RowNoiseWeights<T>& weights;
  const T* drawn;               // (dim,) what is drawn once for all rows
  const std::int64_t* numbers;  // of all rows of the batch, for their noise; null: 0, 1, ..
  T *by_first, *by_second;      // (dim,) of zeros: gradients by the weights of the two paths
};

template <class T>
class NetworkPass {
 public:
  virtual ~NetworkPass() = default;

  // Scalars of all packed weights.
  virtual std::int64_t packed_size() const = 0;
  // Whether they are worth packing for panels so few that they are read once.
  virtual bool packs_always() const = 0;
  // Packs a member's share.
  virtual void pack(const T* theta, bool backward, const Part& part, T* packed) const = 0;

  virtual std::unique_ptr<PassSpace> space(PassUse use) const = 0;
  virtual std::int64_t space_bytes(PassUse use) const = 0;
  // Whether that may be much: asked for before it is taken.
  virtual bool large_spaces() const = 0;

  // Into how many shards a batch is cut, by shapes alone. dim: scalars of a shard's gradient.
  virtual std::int64_t shard_count(PassUse use, std::int64_t rows, std::int64_t dim) const = 0;

  // Rows numbers[0..count) of x (null: 0..), packed where that is done beforehand. Both must
  // outlive out.
  virtual void take_rows(const Rows<T>& x, const std::int64_t* numbers, std::int64_t count,
                         BatchRows<T>& out) const = 0;
  // Panels from this one on, as many as travel together.
  virtual const T* panels_at(const BatchRows<T>& rows, std::int64_t panel,
                             PassSpace& space) const = 0;
  virtual std::int64_t group() const = 0;  // panels that travel together

  // Stages before the first mask, and scalars per row of the one value that they hand on.
  struct Prefix {
    std::size_t stages;
    std::int64_t width;
  };
  virtual Prefix prefix() const = 0;
  // Sends `panels` panels, at most a group, through a range of stages; returns what the last one
  // gives, null once cancelled. input: what enters the first one. masks: for rows first.. of the
  // pass, `rows` valid.
  virtual const T* forward(const T* theta, const T* packed, const T* input, std::int64_t panels,
                           const Masks* masks, std::int64_t first, std::int64_t rows,
                           StageRange range, PassSpace& space, Cancel& cancel) const = 0;

  // A shard forwards, to the loss and, where a gradient is wanted, back. Ends early when cancelled.
  virtual void run_shard(const ShardArgs<T>& shard, PassSpace& space, PanelLoss<T>& loss,
                         Cancel& cancel) const = 0;

  // Tables so large that it pays to know which rows of their gradient a shard has touched.
  virtual std::vector<TouchedTable> touched_tables() const { return {}; }

  // The same with noise for each row; its space is one of kRowNoise. mean, second, drawn: (dim,).
  virtual void pack_row_noise(const T* mean, const T* second, const T* drawn, const Part& part,
                              T* packed_first, T* packed_second) const = 0;
  virtual void run_row_noise(const RowNoiseArgs<T>& shard, PassSpace& space, PanelLoss<T>& loss,
                             Cancel& cancel) const = 0;

  // Dropout rates that are learned.
  virtual int rates() const { return 0; }
  // Of a network of dense layers alone, else null. What only those do reads it: to learn rates, to
  // split a shard over a team, to let samples ride in lanes.
  virtual const MlpPlan* mlp_plan() const { return nullptr; }
};

// masks: dropout layers take part; otherwise they are the identity. concrete: with rates that are
// learned, by networks of dense layers alone.
template <class T>
std::unique_ptr<const NetworkPass<T>> make_network_pass(const Network& network, bool masks,
                                                        bool concrete = false);

}  // namespace ribbit::cpu
