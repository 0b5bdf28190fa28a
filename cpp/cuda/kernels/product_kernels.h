// C(m, n) = sum over k of A(m, k) B(k, n) for every chain: forward and backward passes of dense
// layers, convolutions and LSTMs are products that differ in where A, B and C lie.
//
// An operand has get(chain, row, column) and kAlongColumns, whether neighbours in memory are
// neighbours in its columns; find(chain, row, column), where it has that, is the address of a
// number, null for a zero. A sink has put(chain, slice, m, n, sum), or where kJoins says so
// put(chain, m, n, sums) for the columns n, n + 16, .. n + 48 of a tile at once; some have put4 and
// put2 for four and two columns side by side. The sum over k may be cut into slices that other
// blocks make: how many is decided by shapes alone, and whoever adds them up does so in a fixed
// order.
#pragma once

#include "core/activation_hd.h"
#include "cuda/kernels/block.h"

namespace ribbit::cuda {

// Element (i, j) of chain c at base + c chain_stride + i row_stride + j; transposed: (j, i).
template <class T, bool Transposed>
struct Matrix {
  static constexpr bool kAlongColumns = !Transposed;
  const T* base;
  Index chain_stride;
  Index row_stride;
  RIBBIT_DEVICE T get(Index chain, Index i, Index j) const {
    const T* at = base + chain * chain_stride;
    return Transposed ? at[j * row_stride + i] : at[i * row_stride + j];
  }
};

// A's rows with a row of ones below: the product with it has the sums of B's columns, the gradient
// of a bias.
template <class T, class Operand>
struct WithOnes {
  static constexpr bool kAlongColumns = Operand::kAlongColumns;
  Operand operand;
  Index rows;
  RIBBIT_DEVICE T get(Index chain, Index i, Index j) const {
    return i < rows ? operand.get(chain, i, j) : T(1);
  }
};

// Two or four floats side by side.
template <int Count>
RIBBIT_DEVICE void load_side(float* to, const float* from) {
  if constexpr (Count == 4) {
    load4(to, from);
  } else {
    load2(to, from);
  }
}
template <int Count>
RIBBIT_DEVICE void write_side(float* to, const float* from) {
  if constexpr (Count == 4) {
    write4(to, from);
  } else {
    write2(to, from);
  }
}

// value = f(sum + bias), and derivative = f'(..) unless null; (rows, width) per chain.
template <class T, int Code>
struct ActivationSink {
  static constexpr bool kJoins = false, kHasBias = true;
  const T* bias;  // chain c at bias + c bias_stride; null: none
  Index bias_stride;
  T* value;
  T* derivative;
  Index chain_stride;
  Index width;
  RIBBIT_DEVICE void put(Index chain, Index, Index m, Index n, T sum) const {
    const T z = bias != nullptr ? sum + bias[chain * bias_stride + n] : sum;
    T v, d;
    activation<Code, false, T>(z, v, d);
    const Index at = chain * chain_stride + m * width + n;
    value[at] = v;
    if (derivative != nullptr) derivative[at] = d;
  }
  // Columns n to n + 3, or n + 1, where values and derivatives lie at multiples of as many numbers.
  RIBBIT_DEVICE void put4(Index chain, Index, Index m, Index n, const T* sums) const {
    put_side<4>(chain, m, n, sums);
  }
  RIBBIT_DEVICE void put2(Index chain, Index, Index m, Index n, const T* sums) const {
    put_side<2>(chain, m, n, sums);
  }
  template <int Count>
  RIBBIT_DEVICE void put_side(Index chain, Index m, Index n, const T* sums) const {
    T v[Count], d[Count];
    const T* add = bias != nullptr ? bias + chain * bias_stride + n : nullptr;
    RIBBIT_UNROLL_ALL for (int i = 0; i < Count; ++i) {
      activation<Code, false, T>(add != nullptr ? sums[i] + add[i] : sums[i], v[i], d[i]);
    }
    write_sides<Count>(chain, m, n, v, d);
  }
  // The same with what was read of the bias before: once for all rows of a thread.
  template <int Count>
  RIBBIT_DEVICE void bias_of(Index chain, Index n, T (&add)[Count]) const {
    RIBBIT_UNROLL_ALL for (int i = 0; i < Count; ++i) {
      add[i] = bias != nullptr ? bias[chain * bias_stride + n + i] : T(0);
    }
  }
  template <int Count>
  RIBBIT_DEVICE void put_side(Index chain, Index m, Index n, const T* sums,
                              const T (&add)[Count]) const {
    T v[Count], d[Count];
    RIBBIT_UNROLL_ALL for (int i = 0; i < Count; ++i) {
      activation<Code, false, T>(bias != nullptr ? sums[i] + add[i] : sums[i], v[i], d[i]);
    }
    write_sides<Count>(chain, m, n, v, d);
  }

 private:
  template <int Count>
  RIBBIT_DEVICE void write_sides(Index chain, Index m, Index n, const T (&v)[Count],
                                 const T (&d)[Count]) const {
    const Index at = chain * chain_stride + m * width + n;
    write_side<Count>(value + at, v);
    if (derivative != nullptr) write_side<Count>(derivative + at, d);
  }
};

// Whether a sink has a bias_of.
template <class Sink>
RIBBIT_SIZE auto has_bias(int) -> decltype(Sink::kHasBias) {
  return Sink::kHasBias;
}
template <class Sink>
RIBBIT_SIZE bool has_bias(...) {
  return false;
}

// delta (rows, width) per chain = sum, times derivative unless null, plus `first` unless null: what
// is there already, or the delta of a value above, which is times derivative too if `slopes`.
template <class T>
struct DeltaSink {
  static constexpr bool kJoins = false;
  T* delta;
  const T* derivative;
  Index chain_stride;
  Index width;
  const T* first;
  Index first_stride;  // from chain to chain
  Index slopes;
  RIBBIT_DEVICE void put(Index chain, Index, Index m, Index n, T sum) const {
    const Index inside = m * width + n, at = chain * chain_stride + inside;
    const T factor = derivative != nullptr ? derivative[at] : T(0);
    if (derivative != nullptr) sum *= factor;
    if (first != nullptr) {
      const T there = first[chain * first_stride + inside];
      sum = (slopes != 0 ? there * factor : there) + sum;
    }
    delta[at] = sum;
  }
  // Columns n to n + 3, or n + 1, where all that is read and written lies at multiples of as many
  // numbers.
  RIBBIT_DEVICE void put4(Index chain, Index, Index m, Index n, const T* sums) const {
    put_side<4>(chain, m, n, sums);
  }
  RIBBIT_DEVICE void put2(Index chain, Index, Index m, Index n, const T* sums) const {
    put_side<2>(chain, m, n, sums);
  }
  template <int Count>
  RIBBIT_DEVICE void put_side(Index chain, Index m, Index n, const T* sums) const {
    T result[Count];
    make<Count>(chain, m * width + n, sums, result);
    write_side<Count>(delta + (chain * chain_stride + m * width + n), result);
  }
  // The same, not written; inside: of the chain's numbers.
  template <int Count>
  RIBBIT_DEVICE void make(Index chain, Index inside, const T* sums, T* result) const {
    const Index at = chain * chain_stride + inside;
    T factor[Count], there[Count];
    RIBBIT_UNROLL_ALL for (int i = 0; i < Count; ++i) factor[i] = there[i] = T(0);
    if (derivative != nullptr) load_side<Count>(factor, derivative + at);
    if (first != nullptr) load_side<Count>(there, first + (chain * first_stride + inside));
    RIBBIT_UNROLL_ALL for (int i = 0; i < Count; ++i) {
      const T sum = derivative != nullptr ? sums[i] * factor[i] : sums[i];
      const T part = slopes != 0 ? there[i] * factor[i] : there[i];
      result[i] = first != nullptr ? part + sum : sum;
    }
  }
};

// Gradient of weights (rows, width) and, in row `rows`, of the bias: chain c of slice s at
// grad + s slice_stride + c chain_stride, plus what is there if `add`.
template <class T>
struct GradientSink {
  static constexpr bool kJoins = false;
  T* grad;
  Index chain_stride;
  Index slice_stride;
  Index weight_offset;
  Index bias_offset;
  Index rows;
  Index width;
  Index add;
  RIBBIT_DEVICE void put(Index chain, Index slice, Index m, Index n, T sum) const {
    const Index inside = m < rows ? weight_offset + m * width + n : bias_offset + n;
    T* at = grad + slice * slice_stride + chain * chain_stride + inside;
    *at = add != 0 ? *at + sum : sum;
  }
};

// Tiles of M x N outputs, K terms at a time; each of 16 x 16 threads owns M/16 x N/16 outputs,
// thread (i, j) those with m = i mod 16 and n = j mod 16. Grid: (tiles of m, tiles of n, chains x
// slices).
template <class T, class A, class B, class Sink, int M, int N, int K>
struct Product {
  static constexpr int kBlock = kThreads;
  static constexpr int kSide = 16, kRows = M / kSide, kColumns = N / kSide;
  static_assert(kSide * kSide == kBlock && M % kSide == 0 && N % kSide == 0);
  static_assert(!Sink::kJoins || kColumns == 4);
  // One more per line: threads that write a column then meet different banks.
  struct Shared {
    T a[K][M + 1];
    T b[K][N + 1];
  };
  A a;
  B b;
  Sink sink;
  Index m, n, k;
  Index slices;
  Index slice_length;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& tile = block.template shared<Shared>();
    Registers<T, kRows * kColumns> sums(block);
    const Index m0 = block.x() * M, n0 = block.y() * N;
    const Index chain = block.z() / slices, slice = block.z() % slices;
    const Index begin = slice * slice_length;
    const Index end = begin + slice_length < k ? begin + slice_length : k;
    block.last([&](int t) {
      T(&sum)[kRows * kColumns] = sums(t);
      RIBBIT_UNROLL_ALL for (int i = 0; i < kRows * kColumns; ++i) sum[i] = T(0);
    });
    for (Index k0 = begin; k0 < end; k0 += K) {
      block.phase([&](int t) {
        RIBBIT_UNROLL_ALL for (int i = t; i < M * K; i += kBlock) {
          const int kk = A::kAlongColumns ? i % K : i / M, mm = A::kAlongColumns ? i / K : i % M;
          const bool inside = m0 + mm < m && k0 + kk < end;
          tile.a[kk][mm] = inside ? a.get(chain, m0 + mm, k0 + kk) : T(0);
        }
        RIBBIT_UNROLL_ALL for (int i = t; i < N * K; i += kBlock) {
          const int nn = B::kAlongColumns ? i % N : i / K, kk = B::kAlongColumns ? i / N : i % K;
          const bool inside = n0 + nn < n && k0 + kk < end;
          tile.b[kk][nn] = inside ? b.get(chain, k0 + kk, n0 + nn) : T(0);
        }
      });
      block.phase([&](int t) {
        T(&sum)[kRows * kColumns] = sums(t);
        const int i0 = t / kSide, j0 = t % kSide;
        RIBBIT_UNROLL_ALL for (int kk = 0; kk < K; ++kk) {
          T left[kRows], right[kColumns];
          RIBBIT_UNROLL_ALL for (int i = 0; i < kRows; ++i) left[i] = tile.a[kk][i0 + i * kSide];
          RIBBIT_UNROLL_ALL for (int j = 0; j < kColumns; ++j) {
            right[j] = tile.b[kk][j0 + j * kSide];
          }
          RIBBIT_UNROLL_ALL for (int i = 0; i < kRows; ++i) {
            RIBBIT_UNROLL_ALL for (int j = 0; j < kColumns; ++j) {
              sum[i * kColumns + j] = Ops<T>::fma(left[i], right[j], sum[i * kColumns + j]);
            }
          }
        }
      });
    }
    block.last([&](int t) {
      const T(&sum)[kRows * kColumns] = sums(t);
      const int i0 = t / kSide, j0 = t % kSide;
      RIBBIT_UNROLL_ALL for (int i = 0; i < kRows; ++i) {
        const Index mm = m0 + i0 + i * kSide;
        if constexpr (Sink::kJoins) {
          if (mm < m) sink.put(chain, mm, n0 + j0, sum + i * kColumns);
        } else {
          RIBBIT_UNROLL_ALL for (int j = 0; j < kColumns; ++j) {
            const Index nn = n0 + j0 + j * kSide;
            if (mm < m && nn < n) sink.put(chain, slice, mm, nn, sum[i * kColumns + j]);
          }
        }
      }
    });
  }
};

}  // namespace ribbit::cuda
