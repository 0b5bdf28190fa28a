"""Rows of a memory-mapped file, which stay where they lie until somebody needs some of them."""

# Shapes: N rows of D numbers.

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.checks import BLOCK, row_blocks
from ribbit.errors import DataError

if TYPE_CHECKING:
    import numpy.typing as npt

_AT_ONCE = 16  # rows far from one another: the system maps pages around each, too
_COMPARED = 64  # rows that tell whether a file is the one that was meant
# In the order of RowFormat in cpu/layers/rows.h.
_FLOATS = ["float16", "float32", "float64"]
_FORMATS = [*_FLOATS, "uint8", "int8", "uint16", "int16", "uint32", "int32", "int64"]


def mapped(value: Any) -> Any:
    """Return rows of a memory-mapped file as `MappedRows`, anything else as it is."""
    # Rows mapped to be changed in memory (mode "c"), not contiguous, or of a dtype or byte order
    # that the core does not read are ordinary arrays.
    if not isinstance(value, np.memmap) or getattr(value, "_mmap", None) is None:
        return value
    plain = value.dtype.isnative and value.dtype.name in _FORMATS and value.flags.c_contiguous
    if not plain or value.ndim == 0 or value.size == 0 or value.mode == "c":
        return value
    return MappedRows(value)


class MappedRows:
    """Rows (N, ...) of a file; ``rows[2:5]`` is an array in memory, in the units they stand for."""

    def __init__(
        self,
        source: np.memmap[Any, Any],  # (N, ...), in C order
        dtype: Any = None,  # of what is read; that of the file unless told
        # (D,) float64: a number v of the file stands for (v - mean) / scale
        mean: npt.NDArray[np.float64] | None = None,
        scale: npt.NDArray[np.float64] | None = None,
        *,
        checked: bool = False,  # whether all rows are known to be what a network can take
    ) -> None:
        self.source = source.view()
        self.source.flags.writeable = False
        self.dtype: np.dtype[Any] = np.dtype(source.dtype if dtype is None else dtype)
        self._mean, self._scale, self.checked = mean, scale, checked

    def __repr__(self) -> str:
        return f"MappedRows({self.source.filename}, {self.dtype}, {self.shape})"

    @property
    def shape(self) -> tuple[int, ...]:
        """That of an array of all of them."""
        return tuple(self.source.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.source.ndim

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, rows: Any) -> npt.NDArray[Any]:
        if isinstance(rows, tuple):
            rows, rest = rows[0], rows[1:]
            if any(one is not Ellipsis for one in rest):
                raise IndexError("[MappedRows] expected rows alone")
        return self._read(np.asarray(self.source[rows]))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("[MappedRows] expected a copy to be allowed")
        checks.memory("MappedRows", self.source.size, self.dtype, f"rows of shape {self.shape}")
        found = self[:]
        return found if dtype is None else found.astype(dtype)

    def reshape(self, shape: tuple[int, ...]) -> MappedRows:
        """Return the same with rows of another shape."""
        source: Any = self.source.reshape(shape)
        return MappedRows(source, self.dtype, self._mean, self._scale, checked=self.checked)

    def part(self, rows: slice) -> MappedRows:
        """Return some rows, one behind the other."""
        source: Any = self.source[rows]
        return MappedRows(source, self.dtype, self._mean, self._scale, checked=self.checked)

    def moved(self, mean: npt.NDArray[np.float64], scale: npt.NDArray[np.float64]) -> MappedRows:
        """Return the same in other units: (v - mean) / scale, in float64 until it is rounded."""
        mean, scale = (np.ascontiguousarray(a, np.float64).reshape(-1) for a in (mean, scale))
        return MappedRows(self.source, np.float64, mean, scale)

    def read_as(self, dtype: Any) -> MappedRows:
        """Return the same in another dtype."""
        return MappedRows(self.source, dtype, self._mean, self._scale)

    def known(self) -> MappedRows:
        """Return the same, checked."""
        return MappedRows(self.source, self.dtype, self._mean, self._scale, checked=True)

    def parts(self, *, images: bool) -> tuple[Any, bool, Any, Any]:
        """Return what the core reads: numbers, whether they are bytes of images, mean, scale."""
        return np.asarray(self.source), images, self._mean, self._scale

    def blocks(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield all rows, some at a time, with the number of the first; memory does not grow."""
        for part in row_blocks(len(self), math.prod(self.shape[1:])):
            yield part.start, self[part]
            self._forget()

    def some(self, numbers: int) -> npt.NDArray[Any]:
        """Return rows, evenly spaced, of about as many numbers."""
        places = np.arange(0, len(self), -(-self.source.size // numbers))
        found = []
        for part in np.array_split(places, -(-places.size // _AT_ONCE)):
            found.append(self[part])
            self._forget()
        return np.concatenate(found)

    def check_finite(self, function: str, name: str) -> None:
        """Raise a DataError that names the first place that is no number in the dtype."""
        if self.source.dtype.kind != "f" and self._mean is None:
            return
        for first, rows in self.blocks():
            good = np.isfinite(rows)
            if good.all():
                continue
            where = np.unravel_index(int(np.argmin(good)), good.shape)
            at = (first + int(where[0]), *map(int, where[1:]))
            place = f"{name}[{', '.join(map(str, at))}]"
            raise DataError(
                f"[{function}] expected finite {self.dtype} values in {name}, got a file where "
                f"{place} is {self.source[at]}"
            )

    def _read(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        with np.errstate(over="ignore", invalid="ignore"):
            if self._mean is None or self._scale is None:
                return np.array(rows, dtype=self.dtype, order="C", copy=True)
            flat = rows.reshape(-1, self._mean.size).astype(np.float64)
            moved = (flat - self._mean) / self._scale
            return moved.reshape(rows.shape).astype(self.dtype)

    def _forget(self) -> None:
        """Let go of the pages that were read: they are the system's cache, not our memory."""
        if self.source.size > BLOCK and hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(OSError, ValueError):
                self.source._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as the name of the file: whoever gets it opens it there."""
        source = self.source
        if source.filename is None:
            raise TypeError(
                "[MappedRows] expected rows of a file with a name, got one that was given open: "
                "np.load(path, mmap_mode='r') keeps the name"
            )
        # A view of some rows has the offset of the whole file still.
        begin = np.frombuffer(source._mmap, np.uint8).ctypes.data  # type: ignore[attr-defined]
        skipped = source.offset - source.offset % mmap.ALLOCATIONGRANULARITY
        offset = skipped + source.ctypes.data - begin
        place = str(source.filename), offset, source.shape, source.dtype.str, _digest(source)
        return _opened, (*place, self.dtype.str, self._mean, self._scale, self.checked)


def _opened(
    path: str,
    offset: int,
    shape: tuple[int, ...],
    stored: str,
    digest: str,
    dtype: str,
    mean: npt.NDArray[np.float64] | None,
    scale: npt.NDArray[np.float64] | None,
    checked: bool,
) -> MappedRows:
    source: np.memmap[Any, Any] = np.memmap(path, stored, "r", offset, shape)
    if _digest(source) != digest:
        raise DataError(f"[MappedRows] expected the rows of {path} as they were, got others")
    return MappedRows(source, dtype, mean, scale, checked=checked)


def _digest(source: npt.NDArray[Any]) -> str:
    """Of some rows, evenly spaced."""
    import hashlib  # not with ribbit: slow to load

    some = source[:: -(-len(source) // _COMPARED)]
    return hashlib.blake2b(np.ascontiguousarray(some).data.cast("B"), digest_size=16).hexdigest()
