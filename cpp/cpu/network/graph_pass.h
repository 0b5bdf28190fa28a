#pragma once
// Networks of any layers: one panel of rows goes through all of them, forwards and backwards, in a
// workspace whose size does not depend on the number of rows.

#include <cstdint>
#include <vector>

#include "core/network.h"
#include "cpu/layers/layers.h"
#include "cpu/network/network_pass.h"
#include "cpu/system/buffer.h"

namespace ribbit::cpu {

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
  std::vector<TouchedTable> tables;  // of embeddings, large ones

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
class GraphSpace : public PassSpace {
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
void pack_graph(const GraphPlan& plan, const T* theta, bool backward, const Part& part, T* packed);

// Steps of a range on one panel (features, kPanel) of the value that enters it; returns the last
// value. rows: valid ones, whose numbers masks see from `first` on. cancel: asked between the
// layers where it is not null; once cancelled null is returned.
template <class T>
const T* graph_forward(const GraphPlan& plan, const T* theta, const T* packed, const T* input,
                       GraphSpace<T>& space, const Masks* masks, std::int64_t first,
                       std::int64_t rows, StageRange range = {}, Cancel* cancel = nullptr);

// Down from delta(plan.output); adds to grad (dim,). marks: as of ShardArgs. Ends early when
// cancelled.
template <class T>
void graph_backward(const GraphPlan& plan, const T* theta, const T* packed, const T* input,
                    GraphSpace<T>& space, T* grad, Cancel* cancel = nullptr,
                    std::uint8_t* marks = nullptr);

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

}  // namespace ribbit::cpu
