// Kernels with one planted fault each, and without it: what the tests of all kernels must notice.
#pragma once

#include "cuda/kernels/trajectory_kernels.h"

namespace ribbit::cuda {

// out = in backwards. Fault: no barrier between writing and reading shared memory.
template <bool Faulty>
struct MissingBarrier {
  static constexpr int kBlock = 64;
  struct Shared {
    double value[kBlock];
  };
  const double* in;
  double* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    if constexpr (Faulty) {
      block.last([&](int t) {
        shared.value[t] = in[t];
        out[t] = shared.value[kBlock - 1 - t];
      });
    } else {
      block.phase([&](int t) { shared.value[t] = in[t]; });
      block.last([&](int t) { out[t] = shared.value[kBlock - 1 - t]; });
    }
  }
};

// The same. Fault: the first phase is called the last one, which has no barrier after it.
template <bool Faulty>
struct PhaseCalledLast {
  static constexpr int kBlock = 64;
  using Shared = typename MissingBarrier<false>::Shared;
  const double* in;
  double* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    const auto fill = [&](int t) { shared.value[t] = in[t]; };
    if constexpr (Faulty) {
      block.last(fill);
    } else {
      block.phase(fill);
    }
    block.last([&](int t) { out[t] = shared.value[kBlock - 1 - t]; });
  }
};

// out = sum of in, plus sum of in^2. Fault: the first sum is read outside phases and nothing waits
// before its place is written again.
template <bool Faulty>
struct ReadBetweenPhases {
  static constexpr int kBlock = 64;
  using Shared = BlockSum<kBlock>;
  const double* in;
  double* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    block.phase([&](int t) { sum.value[t] = in[t]; });
    sum.reduce(block);
    const double first = sum.value[0];
    if constexpr (!Faulty) block.phase([&](int) {});
    block.phase([&](int t) { sum.value[t] = in[t] * in[t]; });
    sum.reduce(block);
    block.last([&](int t) { out[t] = first + sum.value[0]; });
  }
};

// out = 3, 2, 1: counts down in shared memory. Fault: who comes late leaves the loop before a
// barrier that the others wait at.
template <bool Faulty>
struct BarrierForSome {
  static constexpr int kBlock = 64;
  struct Shared {
    int left;
  };
  double* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    block.phase([&](int t) {
      if (t == 0) shared.left = 3;
    });
    while (shared.left > 0) {
      if constexpr (!Faulty) block.phase([&](int) {});
      block.phase([&](int t) {
        if (t != 0) return;
        out[3 - shared.left] = shared.left;
        --shared.left;
      });
    }
  }
};

// out[0] = sum of n numbers of in. Fault: one more.
template <bool Faulty>
struct ReadPastTheEnd {
  static constexpr int kBlock = 64;
  using Shared = BlockSum<kBlock>;
  const double* in;
  Index n;
  double* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    block.phase([&](int t) {
      double own = 0.0;
      for (Index i = t; Faulty ? i <= n : i < n; i += kBlock) own += in[i];
      sum.value[t] = own;
    });
    sum.reduce(block);
    block.last([&](int t) {
      if (t == 0) out[0] = sum.value[0];
    });
  }
};

// out[n - 1] = in[n - 1]. Fault: out[n].
template <bool Faulty>
struct WritePastTheEnd {
  static constexpr int kBlock = 64;
  using Shared = Nothing;
  const double* in;
  Index n;
  double* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    block.last([&](int t) {
      if (t == 0) out[Faulty ? n : n - 1] = in[n - 1];
    });
  }
};

// out[0] = in[n - 1], through shared memory. Fault: reads beyond its end.
template <bool Faulty>
struct SharedPastTheEnd {
  static constexpr int kBlock = 64;
  using Shared = typename MissingBarrier<false>::Shared;
  const double* in;
  Index n;
  double* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    block.phase([&](int t) { shared.value[t] = in[t < n ? t : n - 1]; });
    block.last([&](int t) {
      if (t == 0) out[0] = shared.value[Faulty ? kBlock - 1 + n : n - 1];
    });
  }
};

// out[0] = in[0] + in[1] + .. to n < kBlock. Fault: adds places that nobody wrote.
template <bool Faulty>
struct UnwrittenShared {
  static constexpr int kBlock = 64;
  using Shared = BlockSum<kBlock>;
  const double* in;
  Index n;
  double* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& sum = block.template shared<Shared>();
    block.phase([&](int t) {
      if (t < n) sum.value[t] = in[t];
      if (!Faulty && t >= n) sum.value[t] = 0.0;
    });
    sum.reduce(block);
    block.last([&](int t) {
      if (t == 0) out[0] = sum.value[0];
    });
  }
};

// out[t] = in[t]. Fault: a thread's own number, which nothing set.
template <bool Faulty>
struct UnwrittenRegister {
  static constexpr int kBlock = 64;
  using Shared = Nothing;
  const double* in;
  double* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Registers<double, 1> own(block);
    block.phase([&](int t) {
      if (!Faulty || t != 5) own(t)[0] = in[t];
    });
    block.last([&](int t) { out[t] = own(t)[0]; });
  }
};

// out = in. Fault: nothing waits for the copies.
template <bool Faulty>
struct CopyNotAwaited {
  static constexpr int kBlock = 64;
  struct Shared {
    float value[kBlock];
  };
  const float* in;
  float* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    block.last([&](int t) { block.template copy<1>(&shared.value[t], in + t, t != 5); });
    block.commit();
    if constexpr (!Faulty) block.template wait<0>();
    block.phase([](int) {});
    block.last([&](int t) { out[t] = shared.value[t]; });
  }
};

// out[b, t] = in[t] + (b + 1) mod 4, the neighbour's. Fault: nobody waits for the neighbour.
template <bool Faulty>
struct MissingMeeting {
  static constexpr int kBlock = 64;
  static constexpr int kCluster = 4;
  struct Shared {
    double value[kBlock];
  };
  const double* in;
  double* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    const int rank = block.rank();
    block.phase([&](int t) { shared.value[t] = in[t] + rank; });
    if constexpr (!Faulty) block.meet();
    block.last([&](int t) {
      out[rank * kBlock + t] = *block.peer(&shared.value[t], (rank + 1) % kCluster);
    });
    block.meet();  // nobody leaves while others read
  }
};

// The same through global memory, of blocks that run at once. Fault: the same.
template <bool Faulty>
struct MissingArrival {
  static constexpr int kBlock = 64;
  static constexpr int kTogether = 4;
  using Shared = Nothing;
  const double* in;
  double* shown;    // (kTogether, kBlock)
  Small* arrivals;  // 0
  double* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    const int rank = static_cast<int>(block.x());
    block.phase([&](int t) { shown[rank * kBlock + t] = in[t] + rank; });
    if constexpr (!Faulty) meet_in_memory(block, arrivals, kTogether, rank == 0);
    block.last([&](int t) { out[rank * kBlock + t] = shown[(rank + 1) % kTogether * kBlock + t]; });
  }
};

// GridTrajectory. Fault: no block waits for the others.
template <bool Faulty, class T, int Weights, int Lanes, int Blocks>
struct MaybeMeeting : InGrid<T, Weights, Lanes, Blocks> {
  RIBBIT_DEVICE void meet(Block& block) const {
    if constexpr (!Faulty) InGrid<T, Weights, Lanes, Blocks>::meet(block);
  }
};
template <class T, int Weights, int Lanes, int Blocks>
using Meeting = MaybeMeeting<false, T, Weights, Lanes, Blocks>;
template <class T, int Weights, int Lanes, int Blocks>
using NoMeeting = MaybeMeeting<true, T, Weights, Lanes, Blocks>;
template <template <class, int, int, int> class Way, class T, int Kind, int Code, int Last,
          int Lanes, class Units, int Blocks>
struct TrajectoryThat {
  using Chain = Trajectories<T, Kind, Code, Last, Lanes, Units, Blocks, Way>;
  static constexpr int kBlock = kThreads, kTogether = Blocks;
  using Shared = typename Chain::Shared;
  Chain chain;
  typename Chain::Exchange way;
  RIBBIT_DEVICE void operator()(Block& block) const { chain(block, way); }
};

// out[i] = in[i] of the first 48 numbers, by fours. Fault: those from the second number on.
enum class By { kCopy, kLoad, kWrite, kStore };
template <bool Faulty, By Way>
struct ByFours {
  static constexpr int kBlock = 64;
  struct Shared {
    alignas(16) float value[kBlock];
  };
  const float* in;
  float* out;
  RIBBIT_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    const auto at = [](int t) { return 4 * t + (Faulty ? 1 : 0); };
    block.phase([&](int t) {
      if constexpr (Way == By::kCopy) {
        if (t < 12) block.template copy<4>(shared.value + at(t), in + at(t), true);
      } else {
        shared.value[t] = in[t];
      }
    });
    block.commit();
    block.template wait<0>();
    block.phase([](int) {});
    block.last([&](int t) {
      if (t >= 12) return;
      float four[4];
      for (int i = 0; i < 4; ++i) four[i] = shared.value[at(t) + i];
      if constexpr (Way == By::kLoad) load4(four, shared.value + at(t));
      if constexpr (Way == By::kWrite) {
        write4(out + at(t), four);
      } else if constexpr (Way == By::kStore) {
        store_at_once<4>(out + at(t), four);
      } else {
        for (int i = 0; i < 4; ++i) out[at(t) + i] = four[i];
      }
    });
  }
};
template <bool Faulty>
using CopyOfFour = ByFours<Faulty, By::kCopy>;
template <bool Faulty>
using LoadOfFour = ByFours<Faulty, By::kLoad>;
template <bool Faulty>
using WriteOfFour = ByFours<Faulty, By::kWrite>;
template <bool Faulty>
using StoreOfFour = ByFours<Faulty, By::kStore>;

}  // namespace ribbit::cuda
