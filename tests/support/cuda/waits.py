"""Whether the host waits for a device.

One made of the CPU counts. CuPy's is given a kernel that lasts longer than all that the host does
meanwhile: where the host has waited, it is over.
"""

import contextlib
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

SECONDS = 1.0  # of that kernel: many processes may share the host

_SOURCE = r"""
extern "C" __global__ void last(unsigned long long nanoseconds) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - begin < nanoseconds);
}
"""

_running: list[Any] = []  # an event behind each, the innermost last


@cache
def _kernel(cupy: ModuleType) -> Any:
    kernel = cupy.RawKernel(_SOURCE, "last")
    kernel((1,), (1,), (cupy.uint64(1),))  # compiles and loads it
    cupy.cuda.get_current_stream().synchronize()
    return kernel


def _begin(cupy: ModuleType) -> Any:
    kernel = _kernel(cupy)
    cupy.cuda.get_current_stream().synchronize()
    kernel((1,), (1,), (cupy.uint64(int(1e9 * SECONDS)),))
    return cupy.cuda.get_current_stream().record()


@contextlib.contextmanager
def no_waits(device: ModuleType) -> Iterator[None]:
    """Raise AssertionError where the host waited for the device inside, but in `allowed`."""
    if device.__name__ == "cupy":
        _running.append(_begin(device))
        try:
            yield
            assert not _running[-1].done, "the host waited for the device"
        finally:
            _running.pop()
        return
    before = device.waits
    yield
    assert device.waits == before, "the host waited for the device"


@contextlib.contextmanager
def allowed(device: ModuleType) -> Iterator[None]:
    """Let the host wait, inside of `no_waits`."""
    if device.__name__ == "cupy":
        assert not _running[-1].done, "the host waited for the device"
        yield
        _running[-1] = _begin(device)
        return
    before = device.waits
    yield
    device.waits = before
