// Matrix products of a warp on tensor cores (sm_80 and later): TF32 numbers, float32 sums.
//
// TF32 has float32's exponents and 10 bits behind the leading one. A float32 number is big + small,
// both in TF32, to 2^-22 of it; three products, small big + big small + big big, are then as
// accurate as float32 (3xTF32; Markidis et al. 2018, "NVIDIA tensor core programmability,
// performance & precision", section V). What tensor cores do while they add is not documented;
// measured, they truncate (Fasi et al. 2021, "Numerical behavior of NVIDIA tensor cores"). Long
// sums are therefore added up outside of them, rounded to nearest (Ootomo and Yokota 2022,
// "Recovering single precision accuracy from tensor cores while surpassing the FP32 theoretical
// peak performance").
//
// Under any other compiler than CUDA's the product of a warp is made from the fragments of its 32
// threads, laid out as the PTX ISA says; sums are truncated, once for every product of fragments.
#pragma once

#include "cuda/kernels/block.h"

namespace ribbit::cuda {

constexpr int kWarp = 32;

// The TF32 number nearest to a, ties away from zero, above the largest one infinity: as a factor
// of products on tensor cores, which do not look at the other bits. A device leaves rubbish there.
RIBBIT_DEVICE float tf32_factor(float a) {
#if defined(__CUDA_ARCH__)
  Word bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(a));
  return Ops<float>::from_bits(bits);
#else
  const Word bits = Ops<float>::bits(a);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return Ops<float>::from_bits(0x7fffffffu);  // NaN
  if ((bits & 0x7fffffffu) == 0x7f800000u) return a;
  return Ops<float>::from_bits((bits + 0x1000u) & 0xffffe000u);
#endif
}

// The same with ties to even, for which sm_90 has an instruction; rubbish in the other bits
// likewise.
RIBBIT_DEVICE float tf32_nearest(float a) {
  Word bits;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(a));
#else
  bits = Ops<float>::bits(a);
#if defined(__CUDA_ARCH__)
  if (fabsf(a) < __int_as_float(0x7f800000)) bits += 0xfffu + (bits >> 13 & 1u);
#else
  if ((bits & 0x7fffffffu) > 0x7f800000u) bits = 0x7fffffffu;  // NaN
  if ((bits & 0x7fffffffu) < 0x7f800000u) bits += 0xfffu + (bits >> 13 & 1u);
  if (bits != 0x7fffffffu) bits &= 0xffffe000u;
#endif
#endif
  return Ops<float>::from_bits(bits);
}

// x = big + small, of which tensor cores see all but 2^-23 of x; x becomes big, the TF32 number
// nearest to it. Of infinity and NaN, whatever big is, small is NaN, so a product with both has it.
RIBBIT_DEVICE void split_tf32(float& x, float& small) {
  const float big = Ops<float>::from_bits((Ops<float>::bits(x) + 0x1000u) & 0xffffe000u);
  small = x - big;
  x = big;
}

#if defined(__CUDACC__)

// c += a b for matrices (16, 8), (8, 8) and (16, 8) whose numbers the 32 threads of a warp share.
#if defined(RIBBIT_WARPS_OF_FIBERS)
void multiply_fragments(float* c, const float* a, const float* b);  // tests/support/cuda
#else
RIBBIT_DEVICE void multiply_fragments(float* c, const float* a, const float* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(Ops<float>::bits(a[0])), "r"(Ops<float>::bits(a[1])), "r"(Ops<float>::bits(a[2])),
        "r"(Ops<float>::bits(a[3])), "r"(Ops<float>::bits(b[0])), "r"(Ops<float>::bits(b[1])));
}
#endif

#endif

#if !defined(__CUDACC__) || defined(RIBBIT_WARPS_OF_FIBERS)

// sum rounded towards zero; what float32 cannot hold is infinite.
inline float truncated(double sum) {
  const float near = static_cast<float>(sum);
  const Word bits = Ops<float>::bits(near);
  const bool further = __builtin_fabs(static_cast<double>(near)) > __builtin_fabs(sum);
  const bool infinite = (bits & 0x7fffffffu) == 0x7f800000u;
  return further && !infinite ? Ops<float>::from_bits(bits - 1u) : near;
}

// The same for the fragments of all 32 threads: lane 4 g + t has
//   a: (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)   b: (t, g), (t + 4, g)
//   c: (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1)
// (PTX ISA, "Matrix Fragments for mma.m16n8k8").
inline void multiply_fragments_of_warp(float* const (&c)[kWarp], const float* const (&a)[kWarp],
                                       const float* const (&b)[kWarp]) {
  double left[16][8], right[8][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    const int g = lane / 4, t = lane % 4;
    // What is no TF32 number is cut off to one, as the device does.
    const auto cut = [](float x) {
      return static_cast<double>(Ops<float>::from_bits(Ops<float>::bits(x) & 0xffffe000u));
    };
    left[g][t] = cut(a[lane][0]);
    left[g + 8][t] = cut(a[lane][1]);
    left[g][t + 4] = cut(a[lane][2]);
    left[g + 8][t + 4] = cut(a[lane][3]);
    right[t][g] = cut(b[lane][0]);
    right[t + 4][g] = cut(b[lane][1]);
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int r = 0; r < 4; ++r) {
      const int row = lane / 4 + r / 2 * 8, column = lane % 4 * 2 + r % 2;
      double sum = static_cast<double>(c[lane][r]);
      for (int k = 0; k < 8; ++k) sum += left[row][k] * right[k][column];
      c[lane][r] = truncated(sum);
    }
  }
}

#endif

// Two or four matrices of 8 rows by 4 numbers in shared memory: to[q] is number lane % 4 of row
// lane / 4 of matrix q. from(lane): where row lane % 8 of matrix lane / 8 begins, at a multiple of
// 16 bytes, the same for all lanes of a warp. All of them must come; with two matrices those from
// 16 on say nothing.
template <int Matrices, class From>
RIBBIT_DEVICE void load_matrices(float* to, int lane, const From& from) {
  static_assert(Matrices == 2 || Matrices == 4);
#if defined(__CUDA_ARCH__)
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(from(lane)));
  Word bits[Matrices];
  if constexpr (Matrices == 4) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
                 : "r"(at)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(bits[0]), "=r"(bits[1])
                 : "r"(at)
                 : "memory");
  }
  RIBBIT_UNROLL_ALL for (int q = 0; q < Matrices; ++q) to[q] = Ops<float>::from_bits(bits[q]);
#else
  for (int q = 0; q < Matrices; ++q) {
    const float* row = from(8 * q + lane / 4);
    expect_place(row);
    to[q] = row[lane % 4];
  }
#endif
}

// c(i, j) += a(i) b(j) for I fragments of 16 rows and J of 8 columns: Registers of 4 I, 2 J and,
// from `first` on, 4 I J numbers, c by rows. A step of whole warps between two phases or within one
// (`last`): it waits for the threads of a warp but for no other, so it takes no place of a barrier,
// and every thread of the block must come to it.
template <int I, int J, int Sums>
RIBBIT_DEVICE void multiply_in_warps(Block& block, Registers<float, 4 * I>& a,
                                     Registers<float, 2 * J>& b, Registers<float, Sums>& c,
                                     int first = 0) {
  static_assert(Sums % (4 * I * J) == 0);
#if defined(__CUDACC__)
  (void)block;
  RIBBIT_UNROLL_ALL for (int i = 0; i < I; ++i) {
    RIBBIT_UNROLL_ALL for (int j = 0; j < J; ++j) {
      multiply_fragments(c(0) + first + 4 * (i * J + j), a(0) + 4 * i, b(0) + 2 * j);
    }
  }
#else
  for (int warp = 0; warp < block.threads(); warp += kWarp) {
    for (int i = 0; i < I; ++i) {
      for (int j = 0; j < J; ++j) {
        float* sums[kWarp];
        const float *left[kWarp], *right[kWarp];
        for (int lane = 0; lane < kWarp; ++lane) {
          sums[lane] = c(warp + lane) + first + 4 * (i * J + j);
          left[lane] = a(warp + lane) + 4 * i;
          right[lane] = b(warp + lane) + 2 * j;
        }
        multiply_fragments_of_warp(sums, left, right);
      }
    }
  }
#endif
}

}  // namespace ribbit::cuda
