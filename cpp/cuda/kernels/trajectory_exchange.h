// How the blocks of one chain add up their parts of a gradient: alone, through the shared memory of
// a cluster, or through global memory. Each way gives the same bits: parts of the rows, sections,
// are added in their order.
#pragma once

#include "cuda/kernels/trajectory_layout.h"

namespace ribbit::cuda {

// Parts of a gradient, at most: blocks of a chain have one or two of them each, or all.
constexpr int kSections = 16;

// N numbers that other multiprocessors wrote: past L1, which does not see that.
template <int N, class T>
RIBBIT_DEVICE void take_written(T (&to)[N], const T* from) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 4 && N == 4) {
    const float4 all = __ldcg(reinterpret_cast<const float4*>(from));
    to[0] = all.x, to[1] = all.y, to[2] = all.z, to[3] = all.w;
  } else {
    RIBBIT_UNROLL_ALL for (int i = 0; i < N; ++i) to[i] = __ldcg(from + i);
  }
#else
  take(to, from);
#endif
}

// Returns when as many blocks have come as run at once without being a cluster; `leads`: one of
// them. `arrived`, in global memory, is theirs alone: its first bit changes when the last one comes
// and says, at the next meeting, nothing any more. What the blocks wrote before they all read after
// it. A phase.
RIBBIT_DEVICE void meet_in_memory(Block& block, Small* arrived, int blocks, bool leads) {
#if defined(RIBBIT_WARPS_OF_FIBERS)
  static_cast<void>(block), static_cast<void>(arrived), static_cast<void>(blocks);
  static_cast<void>(leads);
  fibers::meet_cluster();
#else
  constexpr Small kLast = 0x80000000u;
  const Small own = leads ? kLast - static_cast<Small>(blocks - 1) : 1u;
  block.phase([&](int t) {
    if (t != 0) return;
#if defined(__CUDA_ARCH__)
    Small before, now;
    asm volatile("atom.add.acq_rel.gpu.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(arrived), "r"(own)
                 : "memory");
    do {
      asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(arrived) : "memory");
    } while (((before ^ now) & kLast) == 0);
#elif !defined(__CUDACC__)
    const Small before = __atomic_fetch_add(arrived, own, __ATOMIC_ACQ_REL);
    while (((before ^ __atomic_load_n(arrived, __ATOMIC_ACQUIRE)) & kLast) == 0) block.rest();
#endif
  });
#endif
}

// One block has all sections.
template <class T, int Weights, int Lanes, int Blocks>
struct Alone {
  struct Shared {};
  RIBBIT_DEVICE int rank(const Block&) const { return 0; }
};

// Blocks of a cluster, each of which writes sums to all others; from sm_90 on.
template <class T, int Weights, int Lanes, int Blocks>
struct InCluster {
  static constexpr int kEach = kSections / Blocks;
  // Sums of each of the block's sections, where the weights lie; of each section and lane log
  // likelihood and its slope by log noise.
  struct Shared {
    alignas(16) T sums[kEach][Weights];
    double terms[kEach][2][Lanes];
  };
  RIBBIT_DEVICE int rank(const Block& block) const { return block.rank(); }
  RIBBIT_DEVICE void meet(Block& block) const { block.meet(); }
  // Of a section of this block, its number `which`.
  RIBBIT_DEVICE T* sums(Block&, Shared& m, int which) const { return m.sums[which]; }
  RIBBIT_DEVICE double* terms(Block&, Shared& m, int which, int i) const {
    return m.terms[which][i];
  }
  // Adds up all sections: four weights from e on, terms of a lane.
  RIBBIT_DEVICE void add(Block& block, Shared& m, int sections, int e, T (&sum)[4]) const {
    for (int s = 0; s < sections; ++s) {
      T part[4];
      take(part, block.peer(m.sums[s % kEach] + e, s / kEach));
      RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) sum[i] += part[i];
    }
  }
  RIBBIT_DEVICE double add_terms(Block& block, Shared& m, int sections, int i, int lane) const {
    double sum = 0.0;
    for (int s = 0; s < sections; ++s) {
      sum += *block.peer(&m.terms[s % kEach][i][lane], s / kEach);
    }
    return sum;
  }
  RIBBIT_DEVICE void give_all(Block& block, Shared& m, int e, const T (&sum)[4]) const {
    RIBBIT_UNROLL_ALL for (int s = 0; s < Blocks; ++s) {
      give(block.peer(m.sums[0] + e, s), sum);
    }
  }
  template <int N>
  RIBBIT_DEVICE void take_all(Block&, Shared& m, int e, T (&line)[N]) const {
    take(line, m.sums[0] + e);
  }
};

// Blocks of a cooperative launch, which run at once: through global memory.
template <class T, int Weights, int Lanes, int Blocks>
struct InGrid {
  static constexpr int kEach = kSections / Blocks;
  static constexpr int kAtOnce = 8;  // sections that a thread reads before it adds them
  struct Shared {};

  T* parts;         // (C, kSections + 1, Weights): of each section, of all
  double* lanes;    // (C, kSections, 2, Lanes)
  Small* arrivals;  // (C,), 0 at first

  RIBBIT_DEVICE int rank(const Block& block) const { return static_cast<int>(block.x()); }
  RIBBIT_DEVICE void meet(Block& block) const {
    meet_in_memory(block, arrivals + block.y(), Blocks, block.x() == 0);
  }
  RIBBIT_DEVICE T* sums(Block& block, Shared&, int which) const {
    return part(block, rank(block) * kEach + which);
  }
  RIBBIT_DEVICE double* terms(Block& block, Shared&, int which, int i) const {
    return term(block, rank(block) * kEach + which, i);
  }
  // Sections that are not there add nothing: a sum that began with 0 is never -0.
  RIBBIT_DEVICE void add(Block& block, Shared&, int sections, int e, T (&sum)[4]) const {
    RIBBIT_UNROLL_ALL for (int first = 0; first < kSections; first += kAtOnce) {
      T read[kAtOnce][4] = {};
      RIBBIT_UNROLL_ALL for (int s = 0; s < kAtOnce; ++s) {
        if (first + s < sections) take_written(read[s], part(block, first + s) + e);
      }
      RIBBIT_UNROLL_ALL for (int s = 0; s < kAtOnce; ++s) {
        RIBBIT_UNROLL_ALL for (int i = 0; i < 4; ++i) sum[i] += read[s][i];
      }
    }
  }
  RIBBIT_DEVICE double add_terms(Block& block, Shared&, int sections, int i, int lane) const {
    double sum = 0.0;
    RIBBIT_UNROLL_ALL for (int first = 0; first < kSections; first += kAtOnce) {
      double read[kAtOnce][1] = {};
      RIBBIT_UNROLL_ALL for (int s = 0; s < kAtOnce; ++s) {
        if (first + s < sections) take_written(read[s], term(block, first + s, i) + lane);
      }
      RIBBIT_UNROLL_ALL for (int s = 0; s < kAtOnce; ++s) sum += read[s][0];
    }
    return sum;
  }
  RIBBIT_DEVICE void give_all(Block& block, Shared&, int e, const T (&sum)[4]) const {
    give(part(block, kSections) + e, sum);
  }
  template <int N>
  RIBBIT_DEVICE void take_all(Block& block, Shared&, int e, T (&line)[N]) const {
    take_written(line, part(block, kSections) + e);
  }

 private:
  RIBBIT_DEVICE T* part(const Block& block, int s) const {
    return parts + (block.y() * (kSections + 1) + s) * Weights;
  }
  RIBBIT_DEVICE double* term(const Block& block, int s, int i) const {
    return lanes + ((block.y() * kSections + s) * 2 + i) * Lanes;
  }
};

}  // namespace ribbit::cuda
