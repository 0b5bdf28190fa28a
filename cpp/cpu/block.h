#pragma once
// Walks the layer table forwards and backwards for one block of panels in a workspace of its own.

#include "cpu/buffer.h"
#include "cpu/layers.h"
#include "cpu/plan.h"

namespace ribbit::cpu {

// One thread's activations, derivatives and deltas for up to `panels` panels.
template <class T>
class Workspace {
 public:
  Workspace(const Plan& plan, std::int64_t panels, bool backward);
  T* value(int v) { return slab_.data() + values_[static_cast<std::size_t>(v)]; }
  T* derivative(int d) { return slab_.data() + derivatives_[static_cast<std::size_t>(d)]; }
  T* delta(int which) { return slab_.data() + delta_[which]; }
  T* scratch() { return slab_.data() + scratch_; }
  std::int64_t panels() const { return panels_; }

 private:
  std::int64_t panels_;
  std::vector<std::int64_t> values_, derivatives_;
  std::int64_t delta_[2] = {0, 0};
  std::int64_t scratch_ = 0;
  Buffer<T> slab_;
};

template <class T>
void pack_weights(const Plan& plan, const T* theta, bool backward, int member, int members,
                  T* packed);

// input: (panels, features, kPanel). Returns the outputs (panels, K, kPanel), in the workspace
// unless the network is the identity.
template <class T>
const T* forward_block(const Plan& plan, const T* theta, const T* packed, const T* input,
                       std::int64_t panels, bool derivatives, Workspace<T>& space);

// Expects the deltas of the outputs in space.delta(0); adds to grad (dim,).
template <class T>
void backward_block(const Plan& plan, const T* packed, const T* input, std::int64_t panels,
                    Workspace<T>& space, T* grad);

}  // namespace ribbit::cpu
