// One source for CUDA and the CPU: a kernel is a struct with the call operator (Block&), written in
// phases. A phase is the code between two barriers, run once per thread. nvcc and NVRTC make a
// barrier after it; under any other compiler the threads of a phase run one after the other, in an
// order that changes from phase to phase, so that a missing barrier changes results. Code outside
// phases is the same for every thread of a block. No std headers: NVRTC has none.
//
// A block may copy to its shared memory while it computes: `copy` asks for it, `commit` ends a
// group of copies, and after `wait<N>` all groups but the last N are there, for the thread that
// asked; a barrier later for all. On the CPU they are made at the wait, so that reading early reads
// NaN.
//
// Blocks of a kernel with a `kCluster` run together by as many, along x, from sm_90 on: they meet,
// and each reads and writes the shared memory of the others. Those of a kernel with `kTogether` run
// at once, in a cooperative launch. On the CPU both are threads of the host.
//
// All members of a kernel have 8 bytes (pointers, Index, Word64, double), so that its arguments can
// be packed anywhere without knowing the type.
#pragma once

#include "core/ops_hd.h"

// Functions of sizes: for array bounds and on the device.
#if defined(__CUDACC_RTC__)
#define RIBBIT_SIZE __device__ constexpr
#elif defined(__CUDACC__)
#define RIBBIT_SIZE __host__ __device__ constexpr
#else
#define RIBBIT_SIZE constexpr
#endif

#if defined(__CUDACC__)
#define RIBBIT_DEVICE __device__ __forceinline__
#define RIBBIT_UNROLL_ALL _Pragma("unroll")
#define RIBBIT_UNROLL(times) _Pragma(RIBBIT_TEXT(unroll times))
#define RIBBIT_TEXT(text) #text
#else
#define RIBBIT_DEVICE inline
#define RIBBIT_UNROLL_ALL
#define RIBBIT_UNROLL(times)
#endif

namespace ribbit::cuda {

using Index = long long;
using Small = unsigned int;    // an index inside a value of one chain's panel
constexpr int kThreads = 256;  // of a block, unless a kernel says otherwise
constexpr int kStaticShared = 48 * 1024;

// What moves 16 bytes at once, or 8, faults on a device unless they begin at a multiple of 16, or
// 8. On the CPU it is noted, for the launch to fail.
#if !defined(__CUDACC__) || defined(RIBBIT_WARPS_OF_FIBERS)
inline bool misplaced = false;
inline void expect_place(const void* address, int bytes = 16) {
  if (reinterpret_cast<Word64>(address) % Word64(bytes) != 0) {
    __atomic_store_n(&misplaced, true, __ATOMIC_RELAXED);  // clusters are several threads
  }
}
#else
RIBBIT_DEVICE void expect_place(const void*, int = 16) {}
#endif

// N numbers, 1, 2 or 4, from where they begin at a multiple of their bytes, or of 16; and to there,
// in memory that is not read again soon.
template <int N, class T>
RIBBIT_SIZE int bytes_at_once() {
  return N * sizeof(T) < 16 ? static_cast<int>(N * sizeof(T)) : 16;
}
template <int N, class T>
RIBBIT_DEVICE void load_at_once(T* to, const T* from) {
#if defined(__CUDA_ARCH__)
  struct alignas(bytes_at_once<N, T>()) Numbers {
    T value[N];
  };
  const Numbers numbers = *reinterpret_cast<const Numbers*>(from);
  RIBBIT_UNROLL_ALL for (int i = 0; i < N; ++i) to[i] = numbers.value[i];
#else
  expect_place(from, bytes_at_once<N, T>());
  for (int i = 0; i < N; ++i) to[i] = from[i];
#endif
}
template <int N, class T>
RIBBIT_DEVICE void store_at_once(T* to, const T* from) {
#if defined(__CUDA_ARCH__)
  if constexpr (N == 1) {
    to[0] = from[0];
  } else if constexpr (sizeof(T) == 8) {
    RIBBIT_UNROLL_ALL for (int i = 0; i < N; i += 2) {
      __stcs(reinterpret_cast<double2*>(to + i), make_double2(from[i], from[i + 1]));
    }
  } else if constexpr (N == 2) {
    __stcs(reinterpret_cast<float2*>(to), make_float2(from[0], from[1]));
  } else {
    __stcs(reinterpret_cast<float4*>(to), make_float4(from[0], from[1], from[2], from[3]));
  }
#else
  expect_place(to, bytes_at_once<N, T>());
  for (int i = 0; i < N; ++i) to[i] = from[i];
#endif
}

// The same, in memory that is read again. What is stored through a pointer the compiler may part.
template <int N, class T>
RIBBIT_DEVICE void put_at_once(T* to, const T* from) {
#if defined(__CUDA_ARCH__)
  if constexpr (N == 1) {
    to[0] = from[0];
  } else if constexpr (sizeof(T) == 8) {
    RIBBIT_UNROLL_ALL for (int i = 0; i < N; i += 2) {
      __stwb(reinterpret_cast<double2*>(to + i), make_double2(from[i], from[i + 1]));
    }
  } else if constexpr (N == 2) {
    __stwb(reinterpret_cast<float2*>(to), make_float2(from[0], from[1]));
  } else {
    __stwb(reinterpret_cast<float4*>(to), make_float4(from[0], from[1], from[2], from[3]));
  }
#else
  expect_place(to, bytes_at_once<N, T>());
  for (int i = 0; i < N; ++i) to[i] = from[i];
#endif
}

// Four floats from and to a multiple of 16 bytes.
RIBBIT_DEVICE void load4(float* to, const float* from) {
#if defined(__CUDA_ARCH__)
  const float4 four = *reinterpret_cast<const float4*>(from);
  to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
#else
  expect_place(from);
  for (int i = 0; i < 4; ++i) to[i] = from[i];
#endif
}
// Two floats from and to a multiple of 8 bytes.
RIBBIT_DEVICE void load2(float* to, const float* from) {
#if defined(__CUDA_ARCH__)
  const float2 two = *reinterpret_cast<const float2*>(from);
  to[0] = two.x, to[1] = two.y;
#else
  expect_place(from, 8);
  to[0] = from[0], to[1] = from[1];
#endif
}
RIBBIT_DEVICE void write2(float* to, const float* from) {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<float2*>(to) = make_float2(from[0], from[1]);
#else
  expect_place(to, 8);
  to[0] = from[0], to[1] = from[1];
#endif
}
// An address that the compiler takes as it is: it does not make it anew wherever it is used.
RIBBIT_DEVICE const float* as_it_is(const float* address) {
#if defined(__CUDA_ARCH__)
  const float* same;
  asm("mov.u64 %0, %1;" : "=l"(same) : "l"(address));
  return same;
#else
  return address;
#endif
}
// A thread's number which the compiler takes for a new one: what follows from it is computed here,
// not kept from outside of a loop in registers that the loop needs.
RIBBIT_DEVICE int anew(int thread) {
#if defined(__CUDA_ARCH__)
  int same;
  asm volatile("mov.u32 %0, %1;" : "=r"(same) : "r"(thread));
  return same;
#else
  return thread;
#endif
}
RIBBIT_DEVICE void write4(float* to, const float* from) {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
#else
  expect_place(to);
  for (int i = 0; i < 4; ++i) to[i] = from[i];
#endif
}

#if defined(__CUDACC__)

class Block {
 public:
  RIBBIT_DEVICE Index x() const { return blockIdx.x; }
  RIBBIT_DEVICE Index y() const { return blockIdx.y; }
  RIBBIT_DEVICE Index z() const { return blockIdx.z; }
  RIBBIT_DEVICE Index width() const { return gridDim.x; }
  template <class Body>
  RIBBIT_DEVICE void phase(const Body& body) const {
    body(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
  // The last phase of a kernel: nothing waits for it.
  template <class Body>
  RIBBIT_DEVICE void last(const Body& body) const {
    body(static_cast<int>(threadIdx.x));
  }
  // N numbers of global memory, 4 of them from a multiple of 16 bytes to one; zeros unless
  // `inside`.
  template <int N>
  RIBBIT_DEVICE void copy(float* to, const float* from, bool inside) const {
#if defined(__CUDA_ARCH__)
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
    if constexpr (N == 4) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
                   "r"(inside ? 16 : 0)
                   : "memory");
    } else {
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from),
                   "r"(inside ? 4 : 0)
                   : "memory");
    }
#else
    if constexpr (N == 4) expect_place(to), expect_place(from);
    for (int i = 0; i < N; ++i) to[i] = inside ? from[i] : 0.0f;
#endif
  }
  RIBBIT_DEVICE void commit() const {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
  }
  template <int Left>
  RIBBIT_DEVICE void wait() const {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
#endif
  }
  // Place of the block in its cluster.
  RIBBIT_DEVICE int rank() const {
#if defined(__CUDA_ARCH__)
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
#elif defined(RIBBIT_WARPS_OF_FIBERS)
    return fibers::rank();
#else
    return 0;
#endif
  }
  // Returns when all threads of the cluster have come: a barrier for it and for each block.
  RIBBIT_DEVICE void meet() const {
#if defined(__CUDA_ARCH__)
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#elif defined(RIBBIT_WARPS_OF_FIBERS)
    fibers::meet_cluster();
#endif
  }
  // What lies at `own` in the shared memory of another block.
  template <class S>
  RIBBIT_DEVICE S* peer(S* own, int rank) const {
#if defined(__CUDA_ARCH__)
    Word64 there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(own), "r"(rank));
    return reinterpret_cast<S*>(there);
#elif defined(RIBBIT_WARPS_OF_FIBERS)
    return fibers::of_rank(own, rank);
#else
    return own;
#endif
  }
  // Memory of the block, uninitialised; once per kernel. What is larger than every device has for a
  // block must be asked for by the launch.
  template <class S>
  RIBBIT_DEVICE S& shared() const {
#if defined(RIBBIT_WARPS_OF_FIBERS)
    return *reinterpret_cast<S*>(fibers::memory());
#else
    if constexpr (sizeof(S) > kStaticShared) {
      extern __shared__ __align__(16) unsigned char dynamic_bytes[];
      return *reinterpret_cast<S*>(dynamic_bytes);
    } else {
      alignas(16) static __shared__ unsigned char bytes[sizeof(S)];
      return *reinterpret_cast<S*>(bytes);
    }
#endif
  }
};

// N numbers that each thread keeps from phase to phase.
template <class T, int N>
class Registers {
 public:
  using Numbers = T[N];
  RIBBIT_DEVICE explicit Registers(const Block&) {}
  RIBBIT_DEVICE Numbers& operator()(int) { return values_; }

 private:
  Numbers values_;
};

// Blocks that a multiprocessor must be able to hold: a kernel's kResident, which limits registers.
template <class Kernel>
RIBBIT_SIZE auto resident_blocks(int) -> decltype(Kernel::kResident) {
  return Kernel::kResident;
}
template <class Kernel>
RIBBIT_SIZE int resident_blocks(...) {
  return 0;  // no limit
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kBlock, resident_blocks<Kernel>(0))
    run(const Kernel kernel) {
  Block block;
  kernel(block);
}
// The same for kernels with a kCluster.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
template <class Kernel>
__global__ void __cluster_dims__(Kernel::kCluster, 1, 1)
    __launch_bounds__(Kernel::kBlock, resident_blocks<Kernel>(0))
        run_clusters(const Kernel kernel) {
  Block block;
  kernel(block);
}
#endif

#else

// Blocks that run together, each with a thread of its own.
class Cluster {
 public:
  virtual ~Cluster() = default;
  virtual void meet() = 0;
  virtual void rest() = 0;  // of a block that waits in a loop: lets others run
  virtual unsigned char* memory(int rank) = 0;
};

// What runs a block on the CPU; the tests have the only ones.
class Block {
 public:
  Block(const Index (&place)[3], Index width, int threads, void* shared, Word64 seed,
        Cluster* cluster = nullptr, int rank = 0)
      : place_{place[0], place[1], place[2]},
        width_(width),
        threads_(threads),
        shared_(shared),
        state_(seed),
        cluster_(cluster),
        rank_(rank) {}
  int rank() const { return rank_; }
  void meet() { cluster_->meet(); }
  void rest() { cluster_->rest(); }
  template <class S>
  S* peer(S* own, int rank) const {
    const auto at = reinterpret_cast<unsigned char*>(own) - static_cast<unsigned char*>(shared_);
    return reinterpret_cast<S*>(cluster_->memory(rank) + at);
  }
  Index x() const { return place_[0]; }
  Index y() const { return place_[1]; }
  Index z() const { return place_[2]; }
  Index width() const { return width_; }
  int threads() const { return threads_; }
  template <class Body>
  void phase(const Body& body) {
    // t = (first + i stride) mod threads visits each thread once when stride is odd: threads are a
    // power of two.
    const int mask = threads_ - 1, first = next() & mask, stride = next() | 1;
    for (int i = 0; i < threads_; ++i) body((first + i * stride) & mask);
  }
  template <class Body>
  void last(const Body& body) {
    phase(body);
  }
  template <class S>
  S& shared() const {
    return *static_cast<S*>(shared_);
  }
  ~Block() { delete[] copies_; }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  template <int N>
  void copy(float* to, const float* from, bool inside) {
    if constexpr (N == 4) expect_place(to), expect_place(from);
    if (asked_ == room_) {
      room_ = 2 * room_ + 1024;
      Copy* more = new Copy[static_cast<Word64>(room_)];
      for (Index i = 0; i < asked_; ++i) more[i] = copies_[i];
      delete[] copies_;
      copies_ = more;
    }
    copies_[asked_++] = {to, inside ? from : nullptr, N};
  }
  void commit() {
    if (groups_ == kMostGroups) __builtin_trap();
    ends_[groups_++] = asked_;
  }
  template <int Left>
  void wait() {
    const int whole = groups_ - Left;
    if (whole <= 0) return;
    const Index end = ends_[whole - 1];
    for (Index i = 0; i < end; ++i) {
      const Copy& one = copies_[i];
      for (int k = 0; k < one.count; ++k) one.to[k] = one.from != nullptr ? one.from[k] : 0.0f;
    }
    for (Index i = end; i < asked_; ++i) copies_[i - end] = copies_[i];
    for (int i = 0; i < Left; ++i) ends_[i] = ends_[whole + i] - end;
    asked_ -= end;
    groups_ = Left;
  }

 private:
  static constexpr int kMostGroups = 8;
  struct Copy {
    float* to;
    const float* from;
    int count;
  };
  int next() {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<int>(state_ >> 40) & 0xffff;
  }
  Index place_[3];
  Index width_;
  int threads_;
  void* shared_;
  Word64 state_;
  Cluster* cluster_;
  int rank_;
  Copy* copies_ = nullptr;  // that were asked for, by groups
  Index asked_ = 0, room_ = 0;
  Index ends_[kMostGroups] = {};
  int groups_ = 0;
};

template <class T, int N>
class Registers {
 public:
  using Numbers = T[N];
  explicit Registers(const Block& block) : values_(new Numbers[block.threads()]) {
    __builtin_memset(static_cast<void*>(values_), 0xff, sizeof(Numbers) * block.threads());  // NaN
  }
  ~Registers() { delete[] values_; }
  Registers(const Registers&) = delete;
  Registers& operator=(const Registers&) = delete;
  Numbers& operator()(int thread) { return values_[thread]; }

 private:
  Numbers* values_;
};

#endif

struct Nothing {};  // shared memory of kernels that need none

// Sum of one double per thread, in value[0] for every thread after the call: a tree whose shape
// depends on the number of threads alone.
template <int Threads>
struct BlockSum {
  double value[Threads];
  RIBBIT_DEVICE void reduce(Block& block) {
    for (int half = Threads / 2; half > 0; half /= 2) {
      block.phase([&](int t) {
        if (t < half) value[t] += value[t + half];
      });
    }
  }
};

}  // namespace ribbit::cuda
