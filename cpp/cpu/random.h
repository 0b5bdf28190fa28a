#pragma once
// Random numbers by address for arrays (core/philox_hd.h says what an address is), and the sums
// over momenta that samplers need.

#include <cstdint>

namespace ribbit::cpu {

// Everything of an address but the element and the chain.
struct Stream {
  std::uint64_t seed;
  std::uint64_t step;  // 40 bits
  int purpose;         // 0..255
  int layer;           // 0..65535
};

// out: (chains, n); row c is drawn for chain number chain_ids[c].
template <class T>
void fill_normal(const Stream& stream, const std::uint32_t* chain_ids, std::int64_t chains,
                 std::int64_t n, T* out);

// Elements [first, first + count) of one chain, by the calling thread; first: a multiple of 4.
template <class T>
void fill_normal(const Stream& stream, std::uint32_t chain_id, std::int64_t first,
                 std::int64_t count, T* out);

// Uniforms in (0, 1) with 53 bits: element e takes words 2 (e % 2), 2 (e % 2) + 1 of block e / 2.
void fill_uniform(const Stream& stream, const std::uint32_t* chain_ids, std::int64_t chains,
                  std::int64_t n, double* out);

// Metropolis acceptance of energy errors (chains,): probability min(1, exp(-error)), accepted where
// log u < -error; 0 and false where an error is not finite. u: element 0 of a chain.
void accept(const Stream& stream, const std::uint32_t* chain_ids, std::int64_t chains,
            const double* energy_error, bool* accepted, double* probability);

// out: (samples, n) = mean + scale * normal, the sample number in the chain's place.
template <class T>
void draw_scaled(const Stream& stream, const T* mean, const T* scale, std::int64_t samples,
                 std::int64_t n, T* out);

// The same with scale = softplus(rho).
template <class T>
void reparameterize(const Stream& stream, const T* mean, const T* rho, std::int64_t samples,
                    std::int64_t n, T* out);

// 1/2 sum_i p[i]^2 m[i] of one chain; m: (n,), or null for ones.
template <class T>
double kinetic_energy(const T* p, const T* m, std::int64_t n);

// Of every chain: out[c] = 1/2 sum_i p[c, i]^2 m[i]; m: (n,) or (chains, n) with m_stride = n,
// null: ones.
template <class T>
void kinetic_energy(const T* p, const T* m, std::int64_t m_stride, std::int64_t chains,
                    std::int64_t n, double* out);

}  // namespace ribbit::cpu
