#pragma once
// Networks of any layers: one panel of rows goes through all of them, forwards and backwards, in a
// workspace whose size does not depend on the number of rows.

#include <cstdint>
#include <vector>

#include "core/network.h"
#include "cpu/network/mlp_pass.h"
#include "cpu/network/mlp_plan.h"
#include "cpu/system/buffer.h"

namespace ribbit::cpu {

// One layer on its way: which values it reads and writes, and what else it keeps.
struct GraphNode {
  Stage stage;                     // the layer and its packed weights
  std::int64_t packed_third = -1;  // LSTM: recurrent weights, there and back
  std::int64_t packed_third_back = -1;
  int activation = -1;      // applied to what a norm or a sum gives; -1: none
  int in = 0, second = -1;  // values; 0 is the input of the network. A norm may add a second one
  int out = 0;
  bool in_delta = false, second_delta = false;  // parameters lie below: a delta goes down
  bool in_adds = false, second_adds = false;    // to what a layer further up sent there
  std::int64_t state = 0;                       // scalars per row that the way back needs

  // A convolution and a filter response norm above it, which alone reads it: its squares are added
  // up, and its deltas made, row by row while they are in cache. And a norm below a convolution of
  // stride 1, which alone reads it: its deltas pass the activation likewise. Numbers of nodes, -1:
  // none.
  int norm_above = -1, norm_below = -1;  // of a convolution
  int conv_above = -1, conv_below = -1;  // of a norm

  const Layer& layer() const { return stage.layer; }
  std::int64_t sites() const { return layer().in_size / layer().window.channels; }
};

// Where each array of a panel lies, in scalars per row. Arrays that are never needed at the same
// time share memory.
struct Layout {
  std::vector<std::int64_t> value, delta, state;
  std::int64_t size = 0;
};

class GraphPlan {
 public:
  // masks: dropout layers take part; otherwise they are the identity. linked: convolutions and
  // norms work together.
  explicit GraphPlan(const Network& network, bool masks = false, bool linked = true);

  std::vector<GraphNode> nodes;
  std::vector<std::int64_t> value_size;  // scalars per row
  std::int64_t packed_size = 0;          // scalars
  int output = 0;                        // value
  Layout forward, training;

  // The longest start of the graph before the first mask that hands on a single value.
  struct Prefix {
    std::size_t nodes = 0;
    int value = 0;
  };
  Prefix prefix;

  // Scalars that the layers work in, one after the other.
  template <class T>
  std::int64_t scratch() const;
  // Bytes of one thread's workspace.
  template <class T>
  std::int64_t workspace_bytes(bool backward) const;

 private:
  Layout layout(bool backward) const;
  Prefix before_masks() const;
  void link();
};

// What one thread works in.
template <class T>
class GraphSpace {
 public:
  GraphSpace(const GraphPlan& plan, bool backward);

  T* value(int v) { return at(layout_->value[static_cast<std::size_t>(v)]); }
  T* delta(int v) { return at(layout_->delta[static_cast<std::size_t>(v)]); }
  T* state(std::size_t node) { return at(layout_->state[node]); }
  T* scratch() { return scratch_.data(); }
  T* input() { return input_.data(); }  // (features, kPanel) for whoever packs rows

 private:
  T* at(std::int64_t offset) { return offset < 0 ? nullptr : slab_.data() + offset * kPanel; }

  const Layout* layout_;
  Buffer<T> slab_, scratch_, input_;
};

template <class T>
void pack_graph(const GraphPlan& plan, const T* theta, bool backward, int member, int members,
                T* packed);

// Steps of a range on one panel (features, kPanel) of the value that enters it; returns the last
// value. rows: valid ones, whose numbers masks see from `first` on.
template <class T>
const T* graph_forward(const GraphPlan& plan, const T* theta, const T* packed, const T* input,
                       GraphSpace<T>& space, const Masks* masks, std::int64_t first,
                       std::int64_t rows, StageRange range = {});

// Down from delta(plan.output); adds to grad (dim,).
template <class T>
void graph_backward(const GraphPlan& plan, const T* theta, const T* packed, const T* input,
                    GraphSpace<T>& space, T* grad);

// What a layer has at hand on the way back. Gradients are added to grad (dim,).
template <class T>
struct BackwardArgs {
  const T *theta, *packed;
  const T *in, *second, *out;
  T* state;
  T* delta;         // of out; may be destroyed
  T* delta_in;      // null: not wanted
  T* delta_second;  // null: not wanted
  T* scratch;       // scratch_size(node) scalars
  T* grad;

  T* norm_state = nullptr;              // convolution: of the norm above
  const GraphNode* norm = nullptr;      // convolution: the norm below,
  const BackwardArgs* below = nullptr;  // and what it has at hand
};

// One step of the two ways. x, second: the values it reads.
template <class T>
void node_forward(const GraphPlan& plan, std::size_t s, const T* theta, const T* packed, const T* x,
                  const T* second, GraphSpace<T>& space, const Masks* masks, std::int64_t first,
                  std::int64_t rows);
template <class T>
BackwardArgs<T> backward_args(const GraphPlan& plan, std::size_t s, const T* theta, const T* packed,
                              const T* input, GraphSpace<T>& space, T* grad);
template <class T>
void node_backward(const GraphNode& node, const BackwardArgs<T>& args);

// Each layer in a file of its own. x, y: one panel (in_size, kPanel), (out_size, kPanel).
template <class T>
void conv_pack(const Stage& stage, const T* theta, bool backward, int member, int members,
               T* packed);
template <class T>
void conv_forward(const Stage& stage, const T* theta, const T* packed, const T* x, T* y,
                  T* squares = nullptr);  // (out channels, kPanel) sums of y^2, null: not wanted
template <class T>
void conv_backward(const GraphNode& node, const BackwardArgs<T>& args);
// delta -> delta_below, assigned or added: what rows first..last-1 of delta allow beyond those
// before. Returns how many rows of stride 1 are done.
template <class T>
std::int64_t conv_input_delta(const Stage& stage, const T* packed, const T* delta, bool add,
                              std::int64_t first, std::int64_t last, T* delta_below);
template <class T>
void conv_weight_gradient(const Layer& layer, const T* x, const T* delta, T* scratch, T* weights,
                          T* bias);

template <class T>
void pool_forward(const GraphNode& node, const T* x, T* y);
template <class T>
void pool_backward(const GraphNode& node, const BackwardArgs<T>& args);

// Scalars that a norm keeps per row for the way back, and scalars that it works in.
std::int64_t norm_state(const Layer& layer);
std::int64_t norm_scratch(const Layer& layer);
template <class T>
void norm_forward(const GraphNode& node, const T* theta, const T* x, const T* second, T* y,
                  T* state);
template <class T>
void norm_backward(const GraphNode& node, const BackwardArgs<T>& args);
// The parts that a convolution calls for sites first..last-1: deltas past the activation, from
// cleared sums; and deltas of the norm's input, in place.
template <class T>
void norm_clear_sums(const GraphNode& node, T* state);
template <class T>
void norm_delta(const GraphNode& node, const BackwardArgs<T>& args, std::int64_t first,
                std::int64_t last);
template <class T>
void norm_input_delta(std::int64_t channels, const T* state, const T* z, std::int64_t first,
                      std::int64_t last, T* delta);

template <class T>
void embedding_forward(const GraphNode& node, const T* theta, const T* tokens, T* y);
template <class T>
void embedding_backward(const GraphNode& node, const BackwardArgs<T>& args);

template <class T>
void lstm_pack(const GraphNode& node, const T* theta, bool backward, int member, int members,
               T* packed);
template <class T>
void lstm_forward(const GraphNode& node, const T* theta, const T* packed, const T* x, T* y,
                  T* state);
template <class T>
void lstm_layer_backward(const GraphNode& node, const BackwardArgs<T>& args);

template <class T>
void dropout_forward(const GraphNode& node, const Masks& masks, std::int64_t first,
                     std::int64_t rows, const T* x, T* y, T* state);
template <class T>
void dropout_backward(const GraphNode& node, const BackwardArgs<T>& args);

// Sums of two values, and activations: elementwise.
template <class T>
void elementwise_forward(const GraphNode& node, const T* x, const T* second, T* y);
template <class T>
void elementwise_backward(const GraphNode& node, const BackwardArgs<T>& args);

inline constexpr std::int64_t kSlopeRun = 1024, kSlopeScratch = 3 * kSlopeRun;

// below = delta, or added to it; they may be the same.
template <class T>
void hand_down(const T* delta, std::int64_t n, bool add, T* below);

}  // namespace ribbit::cpu
