#include "cpu/random.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/philox_hd.h"
#include "cpu/system/buffer.h"
#include "cpu/system/dispatch.h"
#include "cpu/system/faults.h"
#include "cpu/system/threads.h"

namespace ribbit::cpu {
namespace {

constexpr std::int64_t kElementsOfPiece = 1 << 16;  // elements per piece of work, a multiple of 4

struct Counter {
  std::uint32_t c1, c3;
  explicit Counter(const Stream& stream)
      : c1(static_cast<std::uint32_t>(stream.step)),
        c3(static_cast<std::uint32_t>(stream.purpose) << 24 |
           static_cast<std::uint32_t>(stream.layer) << 8 |
           static_cast<std::uint32_t>(stream.step >> 32 & 0xff)) {}
};

// Calls body(row, first, count) for runs of each of `rows` rows of n elements, in parallel.
template <class Body>
void for_each_run(std::int64_t rows, std::int64_t n, const Body& body) {
  const std::int64_t runs = (n + kElementsOfPiece - 1) / kElementsOfPiece;
  for_each_piece(rows * runs, rows * n, [&](std::int64_t i) {
    const std::int64_t first = i % runs * kElementsOfPiece;
    body(i / runs, first, std::min(kElementsOfPiece, n - first));
  });
}

// Makes momenta too wide, if that fault is planted.
template <class T>
void spoil(const Stream& stream, T* out, std::int64_t count) {
  if (!planted(Fault::kMomentumVariance) || stream.purpose != kPurposeMomentum) return;
  for (std::int64_t i = 0; i < count; ++i) out[i] *= static_cast<T>(std::sqrt(1.1));
}

}  // namespace

template <class T>
void fill_normal(const Stream& stream, const std::uint32_t* chain_ids, std::int64_t chains,
                 std::int64_t n, T* out) {
  const KernelTable<T>& k = kernels<T>();
  const Counter counter(stream);
  for_each_run(chains, n, [&](std::int64_t row, std::int64_t first, std::int64_t count) {
    k.fill_normal(out + row * n + first, count, static_cast<std::uint64_t>(first), stream.seed,
                  counter.c1, chain_ids[row], counter.c3);
    spoil(stream, out + row * n + first, count);
  });
}

template <class T>
void fill_normal(const Stream& stream, std::uint32_t chain_id, std::int64_t first,
                 std::int64_t count, T* out) {
  const Counter counter(stream);
  kernels<T>().fill_normal(out, count, static_cast<std::uint64_t>(first), stream.seed, counter.c1,
                           chain_id, counter.c3);
  spoil(stream, out, count);
}

void fill_uniform(const Stream& stream, const std::uint32_t* chain_ids, std::int64_t chains,
                  std::int64_t n, double* out) {
  const InstructionSet& isa = instruction_set();
  const Counter counter(stream);
  std::uint32_t few[4];  // of one element: no allocation
  std::vector<std::uint32_t> many;
  const std::int64_t count = (2 * n + 3) / 4 * 4;
  if (count > 4) many.resize(static_cast<std::size_t>(count));
  std::uint32_t* words = count > 4 ? many.data() : few;
  for (std::int64_t row = 0; row < chains; ++row) {
    isa.fill_words(words, count, 0, stream.seed, counter.c1, chain_ids[row], counter.c3);
    for (std::int64_t e = 0; e < n; ++e) {
      out[row * n + e] = uniform_of(words[2 * e], words[2 * e + 1]);
    }
  }
}

void accept(const Stream& stream, const std::uint32_t* chain_ids, std::int64_t chains,
            const double* energy_error, bool* accepted, double* probability) {
  for (std::int64_t c = 0; c < chains; ++c) {
    double u;
    fill_uniform(stream, chain_ids + c, 1, 1, &u);
    const double error = planted(Fault::kEnergySign) ? -energy_error[c] : energy_error[c];
    const bool finite = std::isfinite(error);
    accepted[c] = finite && (planted(Fault::kNoAccept) || std::log(u) < -error);
    probability[c] = finite ? std::exp(std::min(-error, 0.0)) : 0.0;
  }
}

template <class T>
void draw_scaled(const Stream& stream, const T* mean, const T* scale, std::int64_t samples,
                 std::int64_t n, T* out) {
  const KernelTable<T>& k = kernels<T>();
  const Counter counter(stream);
  for_each_run(samples, n, [&](std::int64_t row, std::int64_t first, std::int64_t count) {
    k.reparameterize(mean + first, scale + first, out + row * n + first, count,
                     static_cast<std::uint64_t>(first), stream.seed, counter.c1,
                     static_cast<std::uint32_t>(row), counter.c3);
  });
}

template <class T>
void reparameterize(const Stream& stream, const T* mean, const T* rho, std::int64_t samples,
                    std::int64_t n, T* out) {
  Buffer<T> scale(n);
  for_each_run(1, n, [&](std::int64_t, std::int64_t first, std::int64_t count) {
    kernels<T>().softplus(rho + first, scale.data() + first, count);
  });
  draw_scaled(stream, mean, scale.data(), samples, n, out);
}

template <class T>
double kinetic_energy(const T* p, const T* m, std::int64_t n) {
  return fault_factor(Fault::kNoKinetic, 0.0) * 0.5 * kernels<T>().dot_weighted(p, m, n);
}

template <class T>
void kinetic_energy(const T* p, const T* m, std::int64_t m_stride, std::int64_t chains,
                    std::int64_t n, double* out) {
  for_each_piece(chains, chains * n / 8, [&](std::int64_t c) {
    out[c] = kinetic_energy(p + c * n, m != nullptr ? m + c * m_stride : nullptr, n);
  });
}

#define RIBBIT_INSTANTIATE(T)                                                                      \
  template void fill_normal(const Stream&, const std::uint32_t*, std::int64_t, std::int64_t, T*);  \
  template void fill_normal(const Stream&, std::uint32_t, std::int64_t, std::int64_t, T*);         \
  template void draw_scaled(const Stream&, const T*, const T*, std::int64_t, std::int64_t, T*);    \
  template void reparameterize(const Stream&, const T*, const T*, std::int64_t, std::int64_t, T*); \
  template double kinetic_energy(const T*, const T*, std::int64_t);                                \
  template void kinetic_energy(const T*, const T*, std::int64_t, std::int64_t, std::int64_t,       \
                               double*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
