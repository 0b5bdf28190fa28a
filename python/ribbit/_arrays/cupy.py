"""CuPy as a device; ``ribbit._backend`` alone imports this."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ribbit._arrays import kernel_sources
from ribbit._arrays.device import THREADS, Kernel
from ribbit.protocols import Array

__all__ = ["CupyDevice", "nvrtc_version"]

_REBUILD = (
    "install a CUDA compiler (nvcc), then, from the root of ribbit, "
    'CMAKE_ARGS="-DRIBBIT_CUDA=ON" pip install ".[cuda13]"'
)


def nvrtc_version() -> str:
    """Return the version of the run-time compiler that CuPy finds, such as 13.1.

    Raises
    ------
    ImportError
        When CuPy is not installed, or it finds no compiler.
    """
    from cupy.cuda import nvrtc

    try:
        major, minor = nvrtc.getVersion()
    except Exception as error:  # CuPy's own, and those of the loader
        raise ImportError(str(error) or type(error).__name__) from error
    return f"{major}.{minor}"


class CupyDevice:
    """The device that CuPy calls the current one.

    Parameters
    ----------
    function : str
        Who asks for it, in errors.

    Raises
    ------
    ImportError
        When this build of ribbit has no CUDA module or it cannot be loaded, and when CuPy finds no
        run-time compiler (NVRTC).
    RuntimeError
        When there is no driver, no device, or one that the CUDA module has no code for.
    """

    def __init__(self, function: str = "ribbit") -> None:
        import cupy

        if not cupy.is_available():
            raise RuntimeError(f"[{function}] expected a CUDA device, got none: is a driver there?")
        try:
            native = importlib.import_module("ribbit._cuda")
        except ImportError as error:
            if isinstance(error, ModuleNotFoundError) and error.name == "ribbit._cuda":
                got = f"a build without it: {_REBUILD}"
            else:
                got = f"one that cannot be loaded ({error})"
            raise ImportError(f"[{function}] expected ribbit's CUDA module, got {got}") from error
        problem = native.device_problem()
        if problem:
            raise RuntimeError(f"[{function}] expected a CUDA device to run on, got {problem}")
        try:
            nvrtc_version()
        except ImportError as error:
            raise ImportError(
                f"[{function}] expected NVRTC, CUDA's run-time compiler, got none that CuPy finds "
                f'({error}): pip install ".[cuda13]" or ".[cuda12]", from the root of ribbit'
            ) from error
        self.xp: ModuleType = cupy
        self.native: Any = native
        self._cupy: Any = cupy
        self._compiled: dict[tuple[int, str], Kernel] = {}  # by device and name

    @property
    def number(self) -> int:
        """Id of the current device."""
        return int(self._cupy.cuda.Device().id)

    @property
    def tensor_cores(self) -> bool:
        """Whether the current device multiplies TF32 numbers."""
        return int(self._cupy.cuda.Device().compute_capability) >= 80

    def kernels(self, names: Sequence[str]) -> dict[str, Kernel]:
        """Compile kernels with NVRTC, all that are new in one go."""
        device = self.number
        missing = [name for name in names if (device, name) not in self._compiled]
        if missing:
            entries = [kernel_sources.entry(name) for name in missing]
            module = self._cupy.RawModule(
                code=kernel_sources.source(),
                options=kernel_sources.OPTIONS,
                name_expressions=entries,
                backend="nvrtc",
            )
            for name, entry in zip(missing, entries, strict=True):
                self._compiled[device, name] = self._launcher(module.get_function(entry))
        return {name: self._compiled[device, name] for name in names}

    def _launcher(self, function: Any) -> Kernel:
        from cupy.cuda import driver, get_current_stream

        handle = function.kernel.ptr  # loads the module on the current device

        granted = 0

        def launch(grid: tuple[int, int, int], arguments: bytes, shared: int = 0) -> None:
            nonlocal granted
            if shared > granted:
                function.max_dynamic_shared_size_bytes = granted = shared
            # The arguments are one struct: a list of one address. The driver copies it at once.
            block = ctypes.create_string_buffer(arguments, len(arguments))
            addresses = (ctypes.c_void_p * 1)(ctypes.addressof(block))
            driver.launchKernel(
                handle,
                *grid,
                THREADS,
                1,
                1,
                shared,
                get_current_stream().ptr,
                ctypes.addressof(addresses),
                0,
            )

        # Keeps the module alive as long as the launcher.
        launch.function = function  # type: ignore[attr-defined]
        return launch

    def pointer(self, array: Array) -> int:
        """Return the address of a C-contiguous array on the current device.

        Raises
        ------
        TypeError, ValueError
            For what is no CuPy array, lies on another device or is not C-contiguous.
        """
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
