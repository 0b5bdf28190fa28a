#include "cuda/host/random.h"

#include "cuda/host/launch.h"
#include "cuda/host/stream.h"
#include "cuda/kernels/random_kernels.h"
#include "cuda/kernels/variational_kernels.h"

namespace ribbit::cuda {
namespace {

template <bool FromRho, class T>
void draw(const StreamAddress& address, const T* mean, const T* scale, std::int64_t samples,
          std::int64_t n, T* out, StreamHandle stream) {
  constexpr std::int64_t kMost = 65535;  // blocks along the second axis of a grid
  for (std::int64_t first = 0; first < samples; first += kMost) {
    const std::int64_t count = samples - first < kMost ? samples - first : kMost;
    launch(stream, blocks_of((n + 3) / 4), count,
           Reparameterize<T, FromRho>{
               stream_of(address), {nullptr}, first, mean, scale, n, out + first * n});
  }
}

}  // namespace

template <class T>
void fill_normal(const StreamAddress& address, std::int64_t chains, std::int64_t n, T* out,
                 StreamHandle stream) {
  launch(stream, blocks_of((n + 3) / 4), chains, FillNormal<T>{stream_of(address), n, out});
}

void fill_uniform(const StreamAddress& address, std::int64_t chains, std::int64_t n, double* out,
                  StreamHandle stream) {
  launch(stream, blocks_of((n + 1) / 2), chains, FillUniform{stream_of(address), n, out});
}

template <class T>
void draw_scaled(const StreamAddress& address, const T* mean, const T* scale, std::int64_t samples,
                 std::int64_t n, T* out, StreamHandle stream) {
  draw<false>(address, mean, scale, samples, n, out, stream);
}

template <class T>
void reparameterize(const StreamAddress& address, const T* mean, const T* rho, std::int64_t samples,
                    std::int64_t n, T* out, StreamHandle stream) {
  draw<true>(address, mean, rho, samples, n, out, stream);
}

#define RIBBIT_INSTANTIATE(T)                                                                     \
  template void fill_normal(const StreamAddress&, std::int64_t, std::int64_t, T*, StreamHandle);  \
  template void draw_scaled(const StreamAddress&, const T*, const T*, std::int64_t, std::int64_t, \
                            T*, StreamHandle);                                                    \
  template void reparameterize(const StreamAddress&, const T*, const T*, std::int64_t,            \
                               std::int64_t, T*, StreamHandle);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cuda
