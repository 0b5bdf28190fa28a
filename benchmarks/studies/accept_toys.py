"""Small kernels that ask a device what the next kernels build on; nothing of them is shipped.

Clusters of 8 and 16 blocks that read each other's shared memory, a cooperative launch with a
barrier of the whole grid, and the wavefronts of 16-byte shared loads by the map of lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["SOURCE", "TOYS", "toy"]

TOYS = {
    "graph": "launches captured on one stream, replayed on two",
    "cluster-8": "a cluster of 8 blocks adds through distributed shared memory",
    "cluster-16": "the same of 16, which has to be asked for",
    "cooperative": "a barrier of the whole grid",
    "lanes": "clocks of 16-byte shared loads by the map of lanes",
}

SOURCE = r"""
template <int Size>
__device__ void add_peers(float* out) {
  __shared__ float own;
  unsigned rank, cluster;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(cluster));
  if (threadIdx.x == 0) own = float(rank + 1) * float(cluster + 1);
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  if (threadIdx.x == 0) {
    const unsigned here = (unsigned)__cvta_generic_to_shared(&own);
    float sum = 0;
    for (unsigned r = 0; r < Size; ++r) {
      unsigned there;
      float value;
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(r));
      asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
      sum += value;
    }
    out[blockIdx.x] = sum;
  }
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}
extern "C" __global__ void __cluster_dims__(8, 1, 1) cluster_8(float* out) { add_peers<8>(out); }
extern "C" __global__ void __cluster_dims__(16, 1, 1) cluster_16(float* out) { add_peers<16>(out); }

extern "C" __global__ void cooperative(float* out, unsigned* arrived) {
  if (threadIdx.x == 0) {
    out[blockIdx.x] = float(blockIdx.x);
    __threadfence();
    atomicAdd(arrived, 1u);
    while (*(volatile unsigned*)arrived < gridDim.x) {}
    __threadfence();
    float sum = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += *(volatile float*)(out + i);
    out[gridDim.x + blockIdx.x] = sum;
  }
}

extern "C" __global__ void plus_one(float* x) { x[blockIdx.x * 256 + threadIdx.x] += 1.0f; }

// Clocks of 256 loads of 16 bytes: every lane its own, pairs (n, n ^ 1) one, pairs (n, n ^ 2) one.
extern "C" __global__ void lanes(float* out, long long* clocks) {
  __shared__ __align__(16) float cells[4096];
  for (int i = threadIdx.x; i < 4096; i += 32) cells[i] = float(i);
  __syncwarp();
  const unsigned n = threadIdx.x;
  const unsigned base = (unsigned)__cvta_generic_to_shared(cells);
  const unsigned maps[3] = {n, n >> 1, (n & 1) | (n >> 2 << 1)};
  for (int which = 0; which < 3; ++which) {
    const unsigned at = base + 16 * maps[which];
    float4 sum = make_float4(0, 0, 0, 0);
    const long long begun = clock64();
#pragma unroll 16
    for (int i = 0; i < 256; ++i) {
      float4 v;
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                   : "r"(at + (i & 15) * 512));
      sum.x += v.x; sum.y += v.y; sum.z += v.z; sum.w += v.w;
    }
    const long long ended = clock64();
    out[which * 32 + n] = sum.x + sum.y + sum.z + sum.w;
    if (n == 0) clocks[which] = ended - begun;
  }
}
"""


def toy(name: str) -> Callable[[bool, Path], Iterator[dict[str, Any]]]:
    """Return the step of a toy; rehearsed, its source is compiled where NVRTC is."""

    def run(rehearse: bool, folder: Path) -> Iterator[dict[str, Any]]:
        if rehearse:
            from tests.support.cuda import nvrtc

            if nvrtc.library() is None:
                yield {"compiled": False}
                return
            options = ("--std=c++17", "--gpu-architecture=sm_90")
            made = nvrtc.compiled(SOURCE, (), options)
            yield {"compiled": True, "bytes": len(made.cubin)}
            return
        yield from _ON_DEVICE[name.partition("-")[0]](name)

    return run


def _module() -> Any:
    import cupy

    return cupy.RawModule(code=SOURCE, options=("--std=c++17",), backend="nvrtc")


def _graph(name: str) -> Iterator[dict[str, Any]]:
    import cupy

    kernel, x = _module().get_function("plus_one"), cupy.zeros(1024, dtype=cupy.float32)
    kernel((4,), (256,), (x,))
    stream, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        for _ in range(3):
            kernel((4,), (256,), (x,))
        graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
    graph.launch(other)
    other.synchronize()
    assert (x.get() == 7.0).all(), x.get()[:4]
    yield {"replayed": 2}


def _cluster(name: str) -> Iterator[dict[str, Any]]:
    import cupy
    from cupy.cuda import driver

    size = int(name.rpartition("-")[2])
    function = _module().get_function(f"cluster_{size}")
    if size > 8:
        driver.funcSetAttribute(function.kernel.ptr, 14, 1)  # non-portable sizes are allowed
    out = cupy.zeros(4 * size, dtype=cupy.float32)
    function((4 * size,), (128,), (out,))
    total = size * (size + 1) / 2
    expected = np.repeat(np.arange(1, 5) * total, size)
    assert (out.get() == expected).all(), out.get()
    yield {"blocks": size}


def _cooperative(name: str) -> Iterator[dict[str, Any]]:
    import ctypes

    import cupy
    from cupy.cuda import driver, get_current_stream

    blocks = int(cupy.cuda.Device().attributes["MultiProcessorCount"])
    out = cupy.zeros(2 * blocks, dtype=cupy.float32)
    arrived = cupy.zeros(1, dtype=cupy.uint32)
    function = _module().get_function("cooperative")
    held = [ctypes.c_void_p(array.data.ptr) for array in (out, arrived)]
    addresses = (ctypes.c_void_p * 2)(*(ctypes.addressof(one) for one in held))
    driver.launchCooperativeKernel(
        function.kernel.ptr, blocks, 1, 1, 128, 1, 1, 0, get_current_stream().ptr,
        ctypes.addressof(addresses),
    )  # fmt: skip
    assert (out.get()[blocks:] == blocks * (blocks - 1) / 2).all()
    yield {"blocks": blocks}


def _lanes(name: str) -> Iterator[dict[str, Any]]:
    import cupy

    out, clocks = cupy.zeros(96, dtype=cupy.float32), cupy.zeros(3, dtype=cupy.int64)
    function = _module().get_function("lanes")
    for _ in range(2):
        function((1,), (32,), (out, clocks))
    own, neighbours, second = (int(n) / 256 for n in clocks.get())
    yield {"clocks: own": own, "n and n^1": neighbours, "n and n^2": second}


_ON_DEVICE: dict[str, Callable[[str], Iterator[dict[str, Any]]]] = {
    "graph": _graph,
    "cluster": _cluster,
    "cooperative": _cooperative,
    "lanes": _lanes,
}
