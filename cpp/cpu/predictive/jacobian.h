#pragma once
// The outputs of single rows and their derivatives by the parameters.

#include "cpu/layers/rows.h"
#include "cpu/network/network_pass.h"
#include "cpu/system/threads.h"

namespace ribbit::cpu {

// theta: (network.dim(),). f: (rows, outputs); jacobian: (rows, outputs, network.dim()). Dropout
// layers are inactive. A row is the work of one thread: how many there are changes no bit. False
// when cancelled.
template <class T>
bool jacobian(const Network& network, const T* theta, const Rows<T>& x, std::int64_t rows, T* f,
              T* jacobian, Poll* poll);

}  // namespace ribbit::cpu
