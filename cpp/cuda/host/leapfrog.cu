#include "cuda/host/leapfrog.h"

#include "cuda/host/launch.h"
#include "cuda/host/stream.h"
#include "cuda/kernels/leapfrog_kernels.h"

namespace ribbit::cuda {

template <class T>
void kinetic_energy(const T* p, InverseMass<T> mass, std::int64_t chains, std::int64_t dim,
                    double* out, StreamHandle stream) {
  launch(stream, 1, chains, KineticEnergy<T>{p, mass.values, mass.stride, dim, out});
}

template <class T>
void finite_rows(const T* first, const T* second, std::int64_t chains, std::int64_t dim, bool* out,
                 StreamHandle stream) {
  launch(stream, 1, chains, FiniteRows<T>{first, second, dim, out});
}

void accept(const StreamAddress& address, const double* error, std::int64_t chains, bool* accepted,
            double* rate, StreamHandle stream) {
  launch(stream, (chains + kThreads - 1) / kThreads, 1,
         Accept{stream_of(address), error, chains, accepted, rate});
}

template <class T>
void select(const bool* accepted, const T* proposal, const T* old, std::int64_t chains,
            std::int64_t n, T* out, StreamHandle stream) {
  launch(stream, blocks_of(n), chains, Select<T>{accepted, proposal, old, n, out});
}

#define RIBBIT_INSTANTIATE(T)                                                                     \
  template void kinetic_energy(const T*, InverseMass<T>, std::int64_t, std::int64_t, double*,     \
                               StreamHandle);                                                     \
  template void finite_rows(const T*, const T*, std::int64_t, std::int64_t, bool*, StreamHandle); \
  template void select(const bool*, const T*, const T*, std::int64_t, std::int64_t, T*,           \
                       StreamHandle);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cuda
