#pragma once
// Random numbers by address into device memory. Shapes: C chains, n numbers each.

#include <cstdint>

#include "cuda/host/address.h"
#include "cuda/host/device.h"

namespace ribbit::cuda {

template <class T>
void fill_normal(const StreamAddress& address, std::int64_t chains, std::int64_t n, T* out,
                 StreamHandle stream);
void fill_uniform(const StreamAddress& address, std::int64_t chains, std::int64_t n, double* out,
                  StreamHandle stream);

// out (samples, n) = mean + scale * normal, the sample's number in the chain's place; the address's
// chains are not read.
template <class T>
void draw_scaled(const StreamAddress& address, const T* mean, const T* scale, std::int64_t samples,
                 std::int64_t n, T* out, StreamHandle stream);
// The same with scale = softplus(rho).
template <class T>
void reparameterize(const StreamAddress& address, const T* mean, const T* rho, std::int64_t samples,
                    std::int64_t n, T* out, StreamHandle stream);

}  // namespace ribbit::cuda
