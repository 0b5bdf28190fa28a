#include "cuda/random.h"

#include "cuda/launch.h"
#include "cuda/random_kernels.h"
#include "cuda/stream.h"

namespace ribbit::cuda {

template <class T>
void fill_normal(const StreamAddress& address, std::int64_t chains, std::int64_t n, T* out,
                 StreamHandle stream) {
  launch(stream, blocks_of((n + 3) / 4), chains, FillNormal<T>{stream_of(address), n, out});
}

void fill_uniform(const StreamAddress& address, std::int64_t chains, std::int64_t n, double* out,
                  StreamHandle stream) {
  launch(stream, blocks_of((n + 1) / 2), chains, FillUniform{stream_of(address), n, out});
}

template void fill_normal(const StreamAddress&, std::int64_t, std::int64_t, float*, StreamHandle);
template void fill_normal(const StreamAddress&, std::int64_t, std::int64_t, double*, StreamHandle);

}  // namespace ribbit::cuda
