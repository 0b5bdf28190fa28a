#pragma once
// Energies and the accept step in device memory; formulas in leapfrog_kernels.h.
// Shapes: C chains, P parameters. mass: inverse mass (P,) with stride 0, (C, P) with stride P, or
// null.

#include <cstdint>

#include "cuda/host/random.h"

namespace ribbit::cuda {

template <class T>
struct InverseMass {
  const T* values;
  std::int64_t stride;
};

// out (C,) = 0.5 sum p^2 mass.
template <class T>
void kinetic_energy(const T* p, InverseMass<T> mass, std::int64_t chains, std::int64_t dim,
                    double* out, StreamHandle stream);
// out (C,): whether all of both (C, P) is finite.
template <class T>
void finite_rows(const T* first, const T* second, std::int64_t chains, std::int64_t dim, bool* out,
                 StreamHandle stream);
// accepted, rate (C,) for energy errors (C,).
void accept(const StreamAddress& address, const double* error, std::int64_t chains, bool* accepted,
            double* rate, StreamHandle stream);
// out (C, n) = proposal where accepted (C,), else old.
template <class T>
void select(const bool* accepted, const T* proposal, const T* old, std::int64_t chains,
            std::int64_t n, T* out, StreamHandle stream);

}  // namespace ribbit::cuda
