#pragma once
// What a layer is handed by whoever sends panels through a network: below layers and networks both.

#include <cstdint>

#include "core/activation_hd.h"
#include "core/network.h"
#include "core/philox_hd.h"
#include "cpu/isa/kernel_table-inl.h"

namespace ribbit::cpu {

// One layer on buffers. Value 0 is the input; elementwise layers work in place where they can.
struct Stage {
  Layer layer;
  int in_value = 0;
  int out_value = 0;
  int derivative = -1;  // activation, dropout: which derivative buffer, -1: no gradient below
  bool applied_above = false;  // activation: the dense layer above applies the derivative
  bool merged = false;         // dropout: multiplies a derivative that is there already
  int scale_below = -1;        // dense: derivative buffer that scales the delta it sends down
  bool step_below = false;     // dense: the value below is a ReLU's, whose derivative is its sign
  bool needs_input_delta = false;  // dense: some layer below has parameters
  std::int64_t packed = -1;        // dense: offset of (ins -> outs) tiles
  std::int64_t packed_back = -1;   // dense: offset of (outs -> ins) tiles, -1: not needed
  int delta = -1;                  // dense: buffer of the deltas of its outputs
  std::int64_t narrow = -1;  // dense with one output: its sums among the narrow ones, -1: none
  int ratio = -1;            // concrete dropout: derivative buffer of d log factor / d logit
  int rate = -1;             // concrete dropout: which of the learned rates

  bool is_relu() const { return layer.op == Op::kActivation && layer.activation == kRelu; }
};

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
  std::int64_t marks = -1;               // of an embedding: as of TouchedTable, -1: a small table

  const Layer& layer() const { return stage.layer; }
  std::int64_t sites() const { return layer().in_size / layer().window.channels; }
};

// A table of parameters (rows, units) of whose gradient a panel touches few rows. marks: where the
// marks of its rows lie among those of all tables.
struct TouchedTable {
  std::int64_t offset, rows, units, marks;
};

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
  std::uint8_t* marks = nullptr;        // of the rows of large tables: those without are not zeros
                                        // yet. null: all of grad can be added to
};

// Which masks a pass of a masked plan draws: those of (seed, step, sample). rows: numbers of the
// pass's rows.
struct Masks {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint32_t sample = 0;
  bool shared = false;
  const std::int64_t* rows = nullptr;
  const std::uint32_t* samples = nullptr;  // of each row, instead of `sample`
  Word purpose = kPurposeMask;
  std::int64_t logits = 0;  // where in theta those of learned rates lie
  std::int64_t first = 0;   // number of the first row, where `rows` does not tell each one's

  MaskStream stream(const Layer& layer) const;
};

}  // namespace ribbit::cpu
