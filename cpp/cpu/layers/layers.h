#pragma once
// Forward and backward of each layer on a block of panels. One layer per .cpp file.
// Gradients are added to parameters and assigned to activations.

#include "cpu/network/mlp_plan.h"
#include "cpu/system/dispatch.h"

namespace ribbit::cpu {

// Tiles of one direction of a dense layer; the unit in which threads share the packing.
std::int64_t dense_tiles(std::int64_t outs, int tile_outputs);

// Packs the share of weights that falls to `member` of `members` threads.
template <class T>
void dense_pack(const Stage& stage, const T* theta, bool backward, int member, int members,
                T* packed);

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

}  // namespace ribbit::cpu
