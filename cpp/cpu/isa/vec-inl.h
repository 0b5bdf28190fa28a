// SIMD vectors as wide as the instruction set of this translation unit, and what is done with them.
#pragma once

#include "cpu/isa/ops-inl.h"
#include "cpu/isa/vec_arithmetic-inl.h"
#include "cpu/isa/vec_lanes-inl.h"
#include "cpu/isa/vec_types-inl.h"
