"""What the package asks of a device: kernels by name, memory, streams."""

# A kernel is named by its C++ type, such as ``FillNormal<float>`` (``cpp/cuda``); its arguments are
# the members of that type, 8 bytes each, packed in their order.

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, TypeAlias

from ribbit.protocols import Array

Field: TypeAlias = Any  # int, float, an array or None

# cuda/kernels/block.h
THREADS = 256
STATIC_SHARED = 48 * 1024
MOST_ALONG_Y = 65535  # blocks along the second axis of a grid
_MOST_BLOCKS = 4096  # of a loop over elements, per row of the grid


class TogetherRefused(RuntimeError):
    """The device does not run as many blocks at once, as a cluster or in a cooperative launch."""


class Kernel(Protocol):
    """A compiled kernel."""

    def __call__(self, grid: tuple[int, int, int], arguments: bytes, shared: int = 0) -> None:
        """Launch on the current stream; raise `TogetherRefused` if too many blocks wait."""
        # shared: bytes of a block in addition to `STATIC_SHARED`.
        ...


class Device(Protocol):
    """An array library whose memory is a device's."""

    xp: ModuleType

    @property
    def number(self) -> int:
        """Which of its kind in this machine is the current one."""
        ...

    @property
    def tensor_cores(self) -> bool:
        """Whether it multiplies TF32 numbers: compute capability 8.0 or more."""
        ...

    @property
    def clusters(self) -> bool:
        """Whether blocks of a cluster share their memory: compute capability 9.0 or more."""
        ...

    @property
    def cooperative(self) -> bool:
        """Whether it has launches all of whose blocks run at once."""
        ...

    @property
    def block_shared(self) -> int:
        """Bytes of shared memory that a block may ask for."""
        ...

    @property
    def processors(self) -> int:
        """Multiprocessors: how many blocks run at once, at least."""
        ...

    def kernels(self, names: Sequence[str]) -> dict[str, Kernel]:
        """Compile kernels; those compiled before come from memory."""
        ...

    def pointer(self, array: Array) -> int:
        """Return the address of a C-contiguous array's first element."""
        ...

    def stream(self) -> int:
        """Return the handle of the current stream."""
        ...

    def mark(self) -> Any:
        """Return what stands for all that the current stream was given so far."""
        ...

    def wait(self, mark: Any) -> None:
        """Make the current stream wait for a mark; the host does not."""
        ...

    def free_bytes(self) -> int:
        """Return how much memory can be had."""
        ...

    def record(self, body: Callable[[], None]) -> Callable[[], None]:
        """Return what launches the same kernels as `body`, which launches and does nothing else."""
        ...


def pack(device: Device, fields: Iterable[Field]) -> bytes:
    """Return the members of a kernel as bytes: None is a null pointer, an array its address."""
    layout, values = ["="], []
    for field in fields:
        if isinstance(field, float):
            layout.append("d")
            values.append(field)
        elif isinstance(field, int):
            layout.append("q" if field < 0 else "Q")
            values.append(field)
        else:
            layout.append("Q")
            values.append(0 if field is None else device.pointer(field))
    return struct.pack("".join(layout), *values)


@dataclass(frozen=True)
class Launch:
    """One launch for any number of chains."""

    name: str
    fields: tuple[Field, ...]  # its members
    grid: tuple[int, int, int]  # blocks of one chain
    chains_along: int = 1  # axis of the grid that is multiplied by the chains; -1: none
    shared: int = 0  # bytes that a block has to be granted: 0 up to `STATIC_SHARED`

    def grid_of(self, chains: int) -> tuple[int, int, int]:
        """Return the grid for the first `chains` chains."""
        x, y, z = self.grid
        if self.chains_along == 1:
            return x, y * chains, z
        return x, y, z * chains if self.chains_along == 2 else z


def blocks_of(count: int) -> int:
    """Blocks of a loop over `count` elements."""
    return max(1, min(_MOST_BLOCKS, -(-count // THREADS)))


def numbers_at_once(device: Device, n: int, size: int, *arrays: Array) -> int:
    """Return how many numbers of `size` bytes, 4, 2 or 1, move at once in rows of `n`."""
    # As ``load_at_once`` of ``block.h`` wants them: from a multiple of their bytes, or of 16.
    addresses = [device.pointer(array) for array in arrays]

    def fit(many: int) -> bool:
        place = min(16, many * size)
        return n % many == 0 and all(address % place == 0 for address in addresses)

    return next(many for many in (4, 2, 1) if fit(many))
