#pragma once
// Mean-field Gaussian steps (Bayes by Backprop): weights mean + softplus(rho) z, z by address.

#include "cpu/density/evaluator.h"
#include "cpu/density/mean_field.h"
#include "cpu/density/stochastic_steps.h"

namespace ribbit::cpu {

// In place; what each step saw goes to the steps' records. False when cancelled.
template <class T>
bool advance_variational(const Evaluator<T>& evaluator, const VariationalSteps& steps,
                         const VariationalState<T>& state, StochasticOutcome* outcome, Poll* poll);

}  // namespace ribbit::cpu
