#pragma once
// Two paths (mlp_row_noise.h) of the dense layers and convolutions of any network. The parameters
// of all other layers are drawn once for all rows.
//
// Flipout's signs belong to the channels of a row, the same at all sites of its image: so each row
// sees one set of weights, with the right distribution. Local noise is independent at each place:
// every output has the right distribution, but the sites of an image do not share weights.

#include "cpu/network/graph_pass.h"
#include "cpu/network/mlp_row_noise.h"

namespace ribbit::cpu {

// One thread's space for a panel and its second path.
template <class T>
class GraphRowNoiseSpace : public PassSpace {
 public:
  explicit GraphRowNoiseSpace(const GraphPlan& plan);
  static std::int64_t bytes(const GraphPlan& plan);

  GraphSpace<T> first;
  // dz / d(second path): local: (out size, kPanel), flipout: (out channels, kPanel)
  T* factor(std::size_t node) { return slab_.data() + factors_[node]; }
  T* input() { return slab_.data() + input_; }    // of the second path, or its delta: widest input
  T* signs() { return slab_.data() + signs_; }    // (channels, kPanel)
  T* output() { return slab_.data() + output_; }  // of the second path, or its delta

 private:
  std::vector<std::int64_t> factors_;
  std::int64_t input_ = 0, signs_ = 0, output_ = 0;
  Buffer<T> slab_;
};

// Packs a member's share of the weights of both paths. mean, second, drawn: (dim,).
template <class T>
void pack_graph_row_noise(const GraphPlan& plan, const T* mean, const T* second, const T* drawn,
                          const Part& part, T* packed_first, T* packed_second);

// Outputs of one panel, whose rows have numbers rows[0].. (null: first_row..), `count` valid ones.
// drawn: (dim,) drawn parameters. cancel: as of graph_forward.
template <class T>
const T* graph_row_noise_forward(const GraphPlan& plan, const RowNoiseWeights<T>& weights,
                                 const T* drawn, const T* input, const std::int64_t* rows,
                                 std::int64_t first_row, std::int64_t count,
                                 GraphRowNoiseSpace<T>& space, Cancel* cancel);

// Down from first.delta(plan.output); adds to the gradients (dim,) by the weights of the two paths,
// those of drawn parameters to the first.
template <class T>
void graph_row_noise_backward(const GraphPlan& plan, const RowNoiseWeights<T>& weights,
                              const T* drawn, const T* input, const std::int64_t* rows,
                              std::int64_t first_row, std::int64_t count,
                              GraphRowNoiseSpace<T>& space, T* first, T* second, Cancel* cancel);

}  // namespace ribbit::cpu
