#pragma once
// Forward and backward of each layer on a block of panels. One layer per .cpp file.
// Gradients are added to parameters and assigned to activations.

#include "cpu/layers/layer_pass.h"
#include "cpu/layers/part.h"
#include "cpu/system/dispatch.h"

namespace ribbit::cpu {

// Tiles of one direction of a dense layer.
std::int64_t dense_tiles(std::int64_t outs, int tile_outputs);

// A thread's part of a matrix (rows, columns) that lies at theta + offset: tiles of columns for
// rows to be multiplied by it, or, transposed, tiles of rows.
template <class T>
void pack_matrix(const T* theta, std::int64_t offset, std::int64_t rows, std::int64_t columns,
                 bool transposed, const Part& part, T* packed);

// Packs a thread's part of the weights.
template <class T>
void dense_pack(const Stage& stage, const T* theta, bool backward, const Part& part, T* packed);

// x: (panels, ins, kPanel) -> y: (panels, outs, kPanel)
template <class T>
void dense_forward(const Stage& stage, const T* theta, const T* packed, const T* x,
                   std::int64_t panels, T* y, Finish finish = kFinishPlain, T* tile = nullptr);

// Without packed weights, packed: null, the tiles are packed one by one into `tile`, scratch of
// dense_tile(layer) scalars.
template <class T>
std::int64_t dense_tile(const Layer& layer);

// delta: (panels, outs, kPanel) -> delta_below: (panels, ins, kPanel), times scale of that shape
// (null: 1), or as kFinishStep says.
template <class T>
void dense_backward(const Stage& stage, const T* packed, const T* delta, const T* scale,
                    Finish finish, std::int64_t panels, T* delta_below, const T* theta = nullptr,
                    T* tile = nullptr);

// Adds the weight gradient of x (panels, ins, kPanel) and delta (panels, outs, kPanel), zeros
// behind the last row, to grad, for inputs first..last-1, and with input 0 that of the bias.
// scratch: (panels * kPanel, outs).
template <class T>
void dense_gradient(const Stage& stage, const T* x, const T* delta, std::int64_t rows,
                    std::int64_t first, std::int64_t last, T* scratch, T* grad);

// value may be z itself; derivative null: not wanted. n scalars.
template <class T>
void activation_forward(const Stage& stage, const T* z, std::int64_t n, T* value, T* derivative);

template <class T>
void activation_backward(const T* derivative, std::int64_t n, T* delta);

// x, y: one panel (in_size, kPanel), (out_size, kPanel).
template <class T>
void conv_pack(const Stage& stage, const T* theta, bool backward, const Part& part, T* packed);
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

// state: (out_size, kPanel) of a max pool with an activation: the largest of each window, null
// without one.
template <class T>
void pool_forward(const GraphNode& node, const T* x, T* y, T* state);
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
void lstm_pack(const GraphNode& node, const T* theta, bool backward, const Part& part, T* packed);
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

// delta *= derivative of the activation at z; n scalars. scratch: 2 kSlopeRun.
template <class T>
void times_slope(int activation, const T* z, std::int64_t n, T* delta, T* scratch);

inline constexpr std::int64_t kSlopeRun = 1024, kSlopeScratch = 3 * kSlopeRun;

// below = delta, or added to it; they may be the same.
template <class T>
void hand_down(const T* delta, std::int64_t n, bool add, T* below);

}  // namespace ribbit::cpu
