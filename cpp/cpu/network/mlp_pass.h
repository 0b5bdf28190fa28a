#pragma once
// Goes through the layer table forwards and backwards for a block of panels in a workspace of its
// own.

#include "cpu/layers/layers.h"
#include "cpu/network/mlp_plan.h"
#include "cpu/network/network_pass.h"
#include "cpu/system/buffer.h"

namespace ribbit::cpu {

// What is asked between the layers of a group of panels: null where these are short.
inline Cancel* between(const MlpPlan& plan, Cancel& cancel) {
  return plan.multiplications * kGroupPanels * kPanel >= kLongPanels ? &cancel : nullptr;
}

// One thread's values, deltas and derivatives. Values and deltas hold a whole block; so do those
// derivatives that scale a delta on its way down, as they lie where it will: products that write
// over the lines they read leave half as many for the caches to move (4 and 2 cycles a line,
// measured). Other derivatives are only of the group of panels that is on its way through the
// layers.
template <class T>
class Workspace : public PassSpace {
 public:
  Workspace(const MlpPlan& plan, bool backward);
  // For `panels` panels that are all kept, derivatives too, each apart: they outlive the deltas.
  Workspace(const MlpPlan& plan, std::int64_t panels);

  T* value(int v) { return slab_.data() + values_[static_cast<std::size_t>(v)]; }
  // Of the block's panel number `at`, where a panel has `width` rows of them.
  T* derivative(int d, std::int64_t at, std::int64_t width) {
    const Place& place = derivatives_[static_cast<std::size_t>(d)];
    return slab_.data() + place.offset + (place.whole_block ? at * width * kPanel : 0);
  }
  T* delta(int d) { return slab_.data() + deltas_[static_cast<std::size_t>(d)]; }
  T* narrow_sums() { return slab_.data() + narrow_; }  // (plan.narrow_size, lanes)
  T* scratch() { return slab_.data() + scratch_; }     // (block rows, widest delta)
  T* tile() { return slab_.data() + tile_; }           // for weights that are not packed
  std::int64_t block() const { return block_; }        // panels
  std::int64_t group() const { return group_; }        // panels
  std::int64_t bytes() const { return slab_.size() * static_cast<std::int64_t>(sizeof(T)); }

  Buffer<T> input;  // (block, inputs, kPanel) of rows that are packed when they are needed; or {}

 private:
  struct Place {
    std::int64_t offset;
    bool whole_block;
  };
  void allocate(const MlpPlan& plan, bool backward, bool share);

  std::int64_t block_, group_;
  std::vector<std::int64_t> values_, deltas_;
  std::vector<Place> derivatives_;
  std::int64_t narrow_ = 0, scratch_ = 0, tile_ = 0;
  Buffer<T> slab_;
};

template <class T>
void pack_weights(const MlpPlan& plan, const T* theta, bool backward, const Part& part, T* packed);

// Sends `panels` panels, at most a group, forward. input: (panels, features, kPanel); the values
// of the block's panel number `at` onwards are written. Returns the outputs (panels, K, kPanel).
// masks: of a masked plan, for rows first..first + rows - 1 of the pass. packed: null where the
// weights are packed tile by tile. cancel: asked between the layers where it is not null; once
// cancelled null is returned.
template <class T>
const T* forward_group(const MlpPlan& plan, const T* theta, const T* packed, const T* input,
                       std::int64_t at, std::int64_t panels, bool derivatives, Workspace<T>& space,
                       const Masks* masks = nullptr, std::int64_t first = 0, std::int64_t rows = 0,
                       StageRange range = {}, Cancel* cancel = nullptr);

// The deltas of a group's outputs are expected here, (panels, K, kPanel).
template <class T>
T* output_delta(const MlpPlan& plan, std::int64_t at, Workspace<T>& space);

// Sends a group's deltas down to the lowest dense layer, adding up the gradients of narrow layers
// on the way when wanted. input: (panels, features, kPanel) of the group.
// rates: (panels, plan.rates) gradients by the logits of learned rates, added to; null: none. Ends
// early when cancelled, as does block_gradient.
template <class T>
void backward_group(const MlpPlan& plan, const T* theta, const T* packed, const T* input,
                    std::int64_t at, std::int64_t panels, bool narrow, Workspace<T>& space,
                    double* rates = nullptr, Cancel* cancel = nullptr);

// Zeroes a member's part of every dense layer's gradient: its share of the inputs, and the biases
// where the first input is among them.
template <class T>
void clear_part(const MlpPlan& plan, const Part& part, T* grad);

// Adds the same part of the gradients over `rows` rows, the block's from panel number `at` on, but
// for the narrow layers. input: of these rows. scratch: like Workspace's.
template <class T>
void block_gradient(const MlpPlan& plan, const T* input, std::int64_t at, std::int64_t rows,
                    const Part& part, Workspace<T>& space, T* scratch, T* grad,
                    Cancel* cancel = nullptr);

// Adds to the sums of narrow layers what backward_group was not asked for.
template <class T>
void narrow_gradient(const MlpPlan& plan, const T* input, std::int64_t at, std::int64_t panels,
                     Workspace<T>& space, T* sums);

template <class T>
void clear_narrow_sums(const MlpPlan& plan, Workspace<T>& space);
template <class T>
void add_narrow_sums(const MlpPlan& plan, Workspace<T>& space, T* grad);

}  // namespace ribbit::cpu
