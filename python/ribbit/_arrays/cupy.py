"""CuPy as a device; ``ribbit._backend`` alone imports this."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ribbit._arrays import kernel_sources
from ribbit._arrays.device import Kernel, TogetherRefused
from ribbit._arrays.kernel_compiler import Code, KernelCompiler
from ribbit._arrays.packages import advice
from ribbit.protocols import Array

_FEWEST = 80  # compute capability 8.0, times ten
_MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_LARGE_CLUSTERS = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
_PORTABLE = 8  # blocks of a cluster that need not be allowed


def nvrtc_version() -> str:
    """Return the version of the run-time compiler that CuPy finds, such as 13.1."""
    from cupy.cuda import nvrtc

    try:
        major, minor = nvrtc.getVersion()
    except Exception as error:  # CuPy's own, and those of the loader
        raise ImportError(str(error) or type(error).__name__) from error
    return f"{major}.{minor}"


def devices() -> tuple[int, str]:
    """Return how many devices there are, and the name of the current one."""
    import cupy

    if not cupy.is_available():
        return 0, ""
    runtime = cupy.cuda.runtime
    name = runtime.getDeviceProperties(cupy.cuda.Device().id)["name"]
    return int(runtime.getDeviceCount()), name.decode()


def _too_large(name: str, shared: int) -> RuntimeError:
    """Say that the current device gives a block less shared memory than a kernel needs."""
    return RuntimeError(
        f"[ribbit] expected a device that gives a block {shared / 1024:.0f} KiB of shared memory, "
        f"as {name.partition('<')[0]} needs for this network: compute capability 8.0, 9.0 and 10.0 "
        "do, 8.6, 8.9 and 12.0 give 99 KiB"
    )


def problem() -> Exception | None:
    """Return what keeps kernels from running: ImportError to install, RuntimeError to mend."""
    import cupy

    if not cupy.is_available():
        return RuntimeError("a CUDA device, got none: is a driver installed?")
    try:
        version = nvrtc_version()
    except ImportError as error:
        return ImportError(
            f"NVRTC, CUDA's run-time compiler, got none that CuPy finds ({error}): {advice('cupy')}"
        )
    capability = int(cupy.cuda.Device().compute_capability)
    text = f"{capability // 10}.{capability % 10}"
    if capability < _FEWEST:
        return RuntimeError(f"a CUDA device of compute capability 8.0 or more, got {text}")
    if capability not in cupy.cuda.nvrtc.getSupportedArchs():
        return ImportError(
            f"an NVRTC that compiles for compute capability {text}, got {version}: update "
            "nvidia-cuda-nvrtc, or the toolkit that CuPy finds"
        )
    return None


class CupyDevice:
    """The device that CuPy calls the current one."""

    def __init__(self, function: str = "ribbit") -> None:
        import cupy

        found = problem()
        if found is not None:
            raise type(found)(f"[{function}] expected {found}")
        self.xp: ModuleType = cupy
        self._cupy: Any = cupy
        self._compilers: dict[int, KernelCompiler] = {}  # by capability
        self._compiled: dict[tuple[int, str], Kernel] = {}  # by device and name

    @property
    def number(self) -> int:
        """Id of the current device."""
        return int(self._cupy.cuda.Device().id)

    @property
    def tensor_cores(self) -> bool:
        """Whether the current device multiplies TF32 numbers."""
        return int(self._cupy.cuda.Device().compute_capability) >= 80

    @property
    def clusters(self) -> bool:
        """Whether the current device runs clusters of blocks."""
        return int(self._cupy.cuda.Device().compute_capability) >= 90

    @property
    def cooperative(self) -> bool:
        """Whether the current device has cooperative launches."""
        return bool(self._cupy.cuda.Device().attributes["CooperativeLaunch"])

    @property
    def block_shared(self) -> int:
        """Bytes of shared memory that a block of the current device may ask for."""
        return int(self._cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"])

    @property
    def processors(self) -> int:
        """Multiprocessors of the current device."""
        return int(self._cupy.cuda.Device().attributes["MultiProcessorCount"])

    def kernels(self, names: Sequence[str]) -> dict[str, Kernel]:
        """Compile kernels with NVRTC, those that no file holds."""
        device = self.number
        missing = [name for name in names if (device, name) not in self._compiled]
        if missing:
            capability = int(self._cupy.cuda.Device().compute_capability)
            if capability not in self._compilers:
                nvrtc = self._cupy.cuda.nvrtc
                self._compilers[capability] = KernelCompiler(nvrtc, f"sm_{capability}")
            for name, code in self._compilers[capability](missing).items():
                self._compiled[device, name] = self._launcher(name, code)
        return {name: self._compiled[device, name] for name in names}

    def _launcher(self, name: str, code: Code) -> Kernel:
        from cupy.cuda import driver, get_current_stream
        from cupy.cuda.function import Module

        module = Module()  # on the current device
        module.load(code.cubin)
        function = module.get_function(code.symbol)
        handle = function.ptr

        threads, blocks = kernel_sources.threads_of(name), kernel_sources.blocks_of_cluster(name)
        together = kernel_sources.runs_together(name)
        granted, allowed = 0, blocks <= _PORTABLE

        def put(grid: tuple[int, int, int], arguments: bytes, shared: int) -> None:
            nonlocal granted, allowed
            if not allowed:
                driver.funcSetAttribute(handle, _LARGE_CLUSTERS, 1)
                allowed = True
            if shared > granted:
                try:
                    driver.funcSetAttribute(handle, _MOST_SHARED, shared)
                except driver.CUDADriverError as error:
                    raise _too_large(name, shared) from error
                granted = shared
            # The arguments are one struct: a list of one address. The driver copies it at once.
            block = ctypes.create_string_buffer(arguments, len(arguments))
            addresses = (ctypes.c_void_p * 1)(ctypes.addressof(block))
            given = (*grid, threads, 1, 1, shared, get_current_stream().ptr)
            if together:
                driver.launchCooperativeKernel(handle, *given, ctypes.addressof(addresses))
            else:
                driver.launchKernel(handle, *given, ctypes.addressof(addresses), 0)

        def launch(grid: tuple[int, int, int], arguments: bytes, shared: int = 0) -> None:
            if blocks == 1 and not together:
                put(grid, arguments, shared)
                return
            try:
                put(grid, arguments, shared)
            except (driver.CUDADriverError, RuntimeError) as error:
                what = (
                    f"{grid[0] * grid[1]} blocks at once" if together else f"clusters of {blocks}"
                )
                raise TogetherRefused(f"[ribbit] expected a device that runs {what}") from error

        # Keeps the module alive as long as the launcher.
        launch.function = function  # type: ignore[attr-defined]
        return launch

    def pointer(self, array: Array) -> int:
        """Return the address of a C-contiguous array on the current device."""
        if not isinstance(array, self._cupy.ndarray):
            raise TypeError(f"[ribbit] expected a CuPy array, got {type(array).__name__}")
        here = self.number
        if array.device.id != here:
            raise ValueError(
                f"[ribbit] expected arrays on the current device, {here}, got one on device "
                f"{array.device.id}: use `with cupy.cuda.Device({array.device.id}):`"
            )
        if not array.flags.c_contiguous:
            raise ValueError("[ribbit] expected a C-contiguous array, got strides of another order")
        return int(array.data.ptr)

    def stream(self) -> int:
        """Return the handle of the current stream."""
        return int(self._cupy.cuda.get_current_stream().ptr)

    def mark(self) -> Any:
        """Return what stands for all that the current stream was given so far."""
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record(self._cupy.cuda.get_current_stream())
        return event

    def wait(self, mark: Any) -> None:
        """Make the current stream wait for a mark."""
        self._cupy.cuda.get_current_stream().wait_event(mark)

    def free_bytes(self) -> int:
        """Return what the device has free, and what CuPy's pool holds unused."""
        free, _ = self._cupy.cuda.runtime.memGetInfo()
        return int(free) + int(self._cupy.get_default_memory_pool().free_bytes())

    def record(self, body: Callable[[], None]) -> Callable[[], None]:
        """Capture the launches of `body` as a graph; return what replays it."""
        stream = self._cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            try:
                body()
            finally:
                graph = stream.end_capture()

        def replay() -> None:
            graph.launch(self._cupy.cuda.get_current_stream())

        return replay
