#pragma once
// Many steps of microcanonical dynamics in one call: what MCLMC needs beside the target.

#include "core/isokinetic_hd.h"
#include "cpu/density/evaluator.h"

namespace ribbit::cpu {

// Parameters first to first + inputs * outputs - 1, (inputs, outputs) in C order: the weights of a
// layer and, as one more input, its biases.
struct InputBlock {
  std::int64_t first, inputs, outputs;
  std::int64_t size() const { return inputs * outputs; }
};

// Symmetric matrices (inputs, inputs), one for each block, behind each other for each chain: what
// is whitened is multiplied by them from the left, before it is scaled: by the same within a block,
// else the two do not commute, and gradients would need the other order.
template <class T>
struct Mixing {
  const InputBlock* blocks;  // ascending
  std::int64_t count;        // 0: none
  const T* matrices;         // (chains, stride)
  std::int64_t stride;
};

// num_steps[c] >= 1 steps of size step_size[c] of each chain, (chains, dim) arrays, in place. In
// whitened coordinates, of which q is scale times what `mixing` makes of them; the velocity's
// length does not matter. Step i of the call adds noise of the address (seed, refresh, first_step +
// i, chain id) to the direction, as much as makes it forget itself over the time length[c];
// infinity: none.
template <class T>
struct IsokineticSteps {
  std::int64_t chains;
  std::uint64_t seed, first_step;
  const std::uint32_t* chain_ids;  // (chains,)
  Integrator integrator;
  const std::int64_t* num_steps;  // (chains,)
  std::int64_t columns;           // the largest of them
  const double *step_size, *length;
  const T* scale;  // (dim,), or (chains, dim) with scale_stride = dim; null: ones
  std::int64_t scale_stride;
  Mixing<T> mixing;
  bool turns;  // a step that is not finite is undone and the chain turned round; else it ends there
  T *position, *velocity, *grad;  // grad: at the position
  double* terms;                  // (chains, 2) tempered log likelihood and prior there
  double* energy;                 // (chains,) what the kicks gained in all
  double* energy_error;  // (chains, columns) of each step: that less what the log density gained,
                         // NaN where the step was not finite; 0 behind the last
};

// Of every chain. False when cancelled.
template <class T>
bool isokinetic(const Evaluator<T>& evaluator, const IsokineticSteps<T>& all, Poll* poll);

}  // namespace ribbit::cpu
