// Kernels that show one step of products at a time, some with a planted fault: what their tests
// look at.
#pragma once

#include "cuda/kernels/tap_gradient_kernels.h"
#include "cuda/kernels/tensor_core.h"
#include "cuda/kernels/wide_product_kernels.h"
#include "cuda/kernels/wide_tensor_product_kernels.h"

namespace ribbit::cuda {

// out = in rounded to TF32; small: what is left of it.
struct Rounded {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  const float* in;
  float* out;
  float* small;
  Index n;
  RIBBIT_DEVICE void operator()(Block& block) const {
    block.last([&](int t) {
      for (Index i = block.x() * kBlock + t; i < n; i += block.width() * kBlock) {
        out[i] = Ops<float>::from_bits(Ops<float>::bits(tf32_factor(in[i])) & 0xffffe000u);
        float big = in[i];
        split_tf32(big, small[i]);
      }
    });
  }
};

// As the kernels of the last layers round.
struct RoundedToEven {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  const float* in;
  float* out;
  Index n;
  RIBBIT_DEVICE void operator()(Block& block) const {
    block.last([&](int t) {
      for (Index i = block.x() * kBlock + t; i < n; i += block.width() * kBlock) {
        out[i] = Ops<float>::from_bits(Ops<float>::bits(tf32_nearest(in[i])) & 0xffffe000u);
      }
    });
  }
};

// The fragments c of 8 warps += those of a times those of b: 2 x 2 fragments of each warp, as its
// threads hold them (256 threads, 8, 4 and 16 numbers).
struct WarpProducts {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  const float* a;
  const float* b;
  float* c;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Registers<float, 8> left(block);
    Registers<float, 4> right(block);
    Registers<float, 16> sums(block);
    block.last([&](int t) {
      RIBBIT_UNROLL_ALL for (int i = 0; i < 8; ++i) left(t)[i] = a[t * 8 + i];
      RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) right(t)[i] = b[t * 4 + i];
      RIBBIT_UNROLL_ALL for (int i = 0; i < 16; ++i) sums(t)[i] = c[t * 16 + i];
    });
    multiply_in_warps<2, 2>(block, left, right, sums);
    block.last(
        [&](int t) { RIBBIT_UNROLL_ALL for (int i = 0; i < 16; ++i) c[t * 16 + i] = sums(t)[i]; });
  }
};

// out (32, Matrices): matrices of 8 rows by 4 numbers, the first half of rows of 8 in shared
// memory. Fault: from the second number on.
template <int Matrices, bool Faulty>
struct MatricesOfRows {
  static constexpr int kBlock = kWarp;
  struct Shared {
    alignas(16) float value[33][8];
  };
  const float* in;
  float* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    block.phase([&](int t) {
      RIBBIT_UNROLL_ALL for (int i = 0; i < 8; ++i) shared.value[t][i] = in[t * 8 + i];
    });
    block.last([&](int t) {
      load_matrices<Matrices>(out + Matrices * t, t,
                              [&](int lane) { return shared.value[lane] + (Faulty ? 1 : 0); });
    });
  }
};

// out: 8 times a number of the other warp, by a product with ones. Fault: no barrier between
// filling shared memory and reading it; that the lanes of a warp meet is none.
template <bool Faulty>
struct FragmentsTooEarly {
  static constexpr int kBlock = 64;
  struct Shared {
    float value[kBlock];
  };
  const float* in;
  float* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    Registers<float, 4> left(block), sums(block);
    Registers<float, 2> right(block);
    const auto fill = [&](int t) { shared.value[t] = in[t]; };
    if constexpr (Faulty) {
      block.last(fill);
    } else {
      block.phase(fill);
    }
    block.last([&](int t) {
      // row g of a: number g of the four lanes that share it, of the other warp
      const int first = t < kWarp ? kWarp : 0, g = t % kWarp / 4;
      for (int r = 0; r < 4; ++r) left(t)[r] = shared.value[first + g + 8 * (r % 2)];
      for (int r = 0; r < 2; ++r) right(t)[r] = 1.0f;
      for (int r = 0; r < 4; ++r) sums(t)[r] = 0.0f;
    });
    multiply_in_warps<1, 1>(block, left, right, sums);
    block.last([&](int t) { out[t] = sums(t)[0]; });
  }
};

// out[t] = 8 in[0], by one product. Fault: how often is decided by a number in shared memory that a
// thread changes while others have not yet read it, so that some come back for a second one.
template <bool Faulty>
struct ProductOfSomeLanes {
  static constexpr int kBlock = 64;
  struct Shared {
    int left;
  };
  const float* in;
  float* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    Registers<float, 4> left(block), sums(block);
    Registers<float, 2> right(block);
    block.phase([&](int t) {
      for (int r = 0; r < 4; ++r) left(t)[r] = in[0];
      for (int r = 0; r < 2; ++r) right(t)[r] = 1.0f;
      for (int r = 0; r < 4; ++r) sums(t)[r] = 0.0f;
      if (t == 0) shared.left = 1;
    });
    while (shared.left > 0) {
      multiply_in_warps<1, 1>(block, left, right, sums);
      if constexpr (!Faulty) block.phase([&](int) {});
      const auto count = [&](int t) {
        if (t == 5) shared.left = 0;
      };
      if constexpr (Faulty) {
        block.last(count);
      } else {
        block.phase(count);
      }
    }
    block.last([&](int t) { out[t] = sums(t)[0]; });
  }
};

// First row and column of each thread of a wide product of M x N: out (256, 2).
template <int M, int N>
struct WidePlaces {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  using Rows = Matrix<float, false>;
  using Of = WideProduct<Rows, Rows, DeltaSink<float>, M, N, 1, 1, 1>;
  double* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    block.last([&](int t) { out[2 * t] = Of::row_of(t), out[2 * t + 1] = Of::column_of(t); });
  }
};

// Place among the rows and first column of each thread of TapGradient, of 16, 32 and 64 outs: out
// (3, 256, 2).
struct TapPlaces {
  static constexpr int kBlock = kThreads;
  using Shared = Nothing;
  template <int N>
  using Of = TapGradient<Sliding<8, 8, 16, 3, 3, 1, 1, 1, 1, 8, 8, 1, 1>, N>;
  double* out;
  template <class One>
  static RIBBIT_DEVICE void write(double* to, int t) {
    to[2 * t] = One::row_of(t), to[2 * t + 1] = One::column_of(t);
  }
  RIBBIT_DEVICE void operator()(Block& block) const {
    block.last([&](int t) {
      write<Of<16>>(out, t);
      write<Of<32>>(out + 2 * kThreads, t);
      write<Of<64>>(out + 4 * kThreads, t);
    });
  }
};

}  // namespace ribbit::cuda
