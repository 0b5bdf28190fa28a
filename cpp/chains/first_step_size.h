#pragma once
// The search for the first step sizes of chains.

#include <vector>

#include "chains/hmc.h"

namespace ribbit {

// Returns step sizes (chains,) at which one leapfrog step is accepted about half the time (Hoffman
// and Gelman 2014, algorithm 4). Empty when cancelled.
template <class T, class D>
std::vector<double> find_first_step_size(const D& density, const ChainsView<T>& view,
                                         cpu::Poll* poll);

}  // namespace ribbit
