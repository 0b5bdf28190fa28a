#pragma once
// Options of kernels, as Python gives them.

#include <string>

#include "bindings/array.h"
#include "chains/options.h"

namespace ribbit::bindings {

// Returns the kernel with these options by name: numbers, bools, arrays, text or None. facts:
// "dim", "temperature", "shared_prior_sd" (None: not shared) and "prior_sd" ((dim,) or None).
// Throws TypeError for a value of another type, and ValueError for a value out of range.
Kernel kernel_of(const std::string& name, const py::dict& options, const py::dict& facts);

}  // namespace ribbit::bindings
