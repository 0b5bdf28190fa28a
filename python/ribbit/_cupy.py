"""CuPy as a device; ``ribbit._backend`` alone imports this."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ribbit import kernels
from ribbit._device import THREADS, Kernel
from ribbit.protocols import Array

__all__ = ["CupyDevice"]

_REBUILD = "install a CUDA compiler (nvcc) and build ribbit again with RIBBIT_CUDA=ON"


class CupyDevice:
    """The device that CuPy calls the current one.

    Raises
    ------
    ImportError
        When this build of ribbit has no CUDA module.
    RuntimeError
        When there is no driver or no device.
    """

    def __init__(self) -> None:
        import cupy

        if not cupy.is_available():
            raise RuntimeError("[ribbit] expected a CUDA device, got none: is a driver there?")
        try:
            from ribbit import _cuda
        except ImportError as error:
            raise ImportError(f"[ribbit] this build has no CUDA module: {_REBUILD}") from error
        self.xp: ModuleType = cupy
        self.native: Any = _cuda
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
            entries = [kernels.entry(name) for name in missing]
            module = self._cupy.RawModule(
                code=kernels.source(),
                options=kernels.OPTIONS,
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

    def after(self, earlier: Any) -> Any:
        """Return the current stream, made to wait for all that `earlier`, one such, was given."""
        current = self._cupy.cuda.get_current_stream()
        if earlier is not None and earlier.ptr != current.ptr:
            current.wait_event(earlier.record())
        return current

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
