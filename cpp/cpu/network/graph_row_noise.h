#pragma once
// Two paths (paired.h) of the dense layers and convolutions of any network. The parameters of all
// other layers are drawn once for all rows.
//
// Flipout's signs belong to the channels of a row, the same at all places of its image: so each row
// sees one set of weights, with the right distribution. Local noise is independent at each place:
// every output has the right distribution, but the places of an image do not share weights.

#include "cpu/network/graph_pass.h"
#include "cpu/network/mlp_row_noise.h"

namespace ribbit::cpu {

// One thread's space for a panel and its second path.
template <class T>
class PairedWalkSpace {
 public:
  explicit PairedWalkSpace(const Walk& walk);
  static std::int64_t bytes(const Walk& walk);

  WalkSpace<T> first;
  // dz / d(second path): local: (out size, kPanel), flipout: (out channels, kPanel)
  T* factor(std::size_t step) { return slab_.data() + factors_[step]; }
  T* input() { return slab_.data() + input_; }    // of the second path, or its delta: widest input
  T* signs() { return slab_.data() + signs_; }    // (channels, kPanel)
  T* output() { return slab_.data() + output_; }  // of the second path, or its delta

 private:
  std::vector<std::int64_t> factors_;
  std::int64_t input_ = 0, signs_ = 0, output_ = 0;
  Buffer<T> slab_;
};

// Whether a layer has two paths.
bool is_paired(const Layer& layer);

// Packs a member's share of the weights of both paths. mean, second, drawn: (dim,).
template <class T>
void pack_paired_walk(const Walk& walk, const T* mean, const T* second, const T* drawn, int member,
                      int members, T* packed_first, T* packed_second);

// Outputs of one panel, whose rows have numbers rows[0].. (null: first_row..), `count` valid ones.
// drawn: (dim,) drawn parameters.
template <class T>
const T* paired_walk_forward(const Walk& walk, const PairedWeights<T>& weights, const T* drawn,
                             const T* input, const std::int64_t* rows, std::int64_t first_row,
                             std::int64_t count, PairedWalkSpace<T>& space);

// Down from first.delta(walk.output); adds to the gradients (dim,) by the weights of the two paths,
// those of drawn parameters to the first.
template <class T>
void paired_walk_backward(const Walk& walk, const PairedWeights<T>& weights, const T* drawn,
                          const T* input, const std::int64_t* rows, std::int64_t first_row,
                          std::int64_t count, PairedWalkSpace<T>& space, T* first, T* second);

}  // namespace ribbit::cpu
