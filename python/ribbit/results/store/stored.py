"""Arrays of a run as they are read: a chunk at a time.

Shapes: C chains, D draws, P parameters.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks
from ribbit.results.store.columns import decoded, read_rows
from ribbit.results.store.layout import Layout

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["StoredArray", "StoredStatistics"]

_CACHED = 1 << 25  # bytes of decoded chunks, of all arrays together
_NAME = "draws"

# The chunks that were read last, by array and number; the latest is the last. Replaced, never
# changed: another thread may read it.
_recent: dict[tuple[int, int], npt.NDArray[Any]] = {}
_numbers = itertools.count()


class StoredArray:
    """An array (C, D, ...) on the disk; what is indexed is read, and becomes a NumPy array.

    It knows its shape, indexing with numbers, slices and arrays, ``reshape((C * D, ...))`` of what
    fits into memory, and ``numpy.asarray``. Every file that is read is checked against the
    checksum in its run's checkpoint.

    Parameters
    ----------
    folder : Path
    layout : Layout
    count : int
        Draws that count, D.
    digests : sequence of sequences of int
        Checksums by stretch and piece.
    held : dict of arrays
        Stretches that are in memory alone, after the disk has failed.
    checked : int, optional
        Draws that the checksums are of, where these are more than count.
    """

    lazy = True

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        count: int,
        digests: Any,
        held: Mapping[int, npt.NDArray[Any]] | None = None,
        *,
        checked: int | None = None,
    ) -> None:
        self._folder, self._layout = folder, layout
        self._checked = count if checked is None else checked
        self._digests, self._held = digests, dict(held or {})
        self._number = _known_by_number(self)
        self.shape: tuple[int, ...] = (layout.shape[0], count, *layout.shape[2:])
        self.dtype = np.dtype(layout.dtype)

    @property
    def ndim(self) -> int:
        """Axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def __len__(self) -> int:
        return self.shape[0]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"[{_NAME}] expected indexing, got .{name}: the draws are on the disk "
            "(numpy.asarray(draws.positions) is all of them)"
        )

    def __repr__(self) -> str:
        return f"StoredArray({self.shape}, {self.dtype}, {self._folder / self._layout.name})"

    def __array_namespace__(self, api_version: str | None = None) -> ModuleType:
        """Return NumPy: what indexing gives are its arrays."""
        return np

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return all of it in memory."""
        if copy is False:
            raise ValueError(f"[{_NAME}] expected copy=None, got False: the draws are on the disk")
        array: npt.NDArray[Any] = self[...]
        return array if dtype is None else array.astype(dtype, copy=False)

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        parts = list(key) if isinstance(key, tuple) else [key]
        if any(part is Ellipsis for part in parts):
            at = next(i for i, part in enumerate(parts) if part is Ellipsis)
            named = sum(part is not None for part in parts) - 1
            parts[at : at + 1] = [slice(None)] * (self.ndim - named)
        if any(part is None for part in parts) or len(parts) > self.ndim:
            return self._all(key)
        parts += [slice(None)] * (self.ndim - len(parts))
        chains, draws, *rest = parts
        if isinstance(draws, int | np.integer):
            row = int(draws) + (self.shape[1] if draws < 0 else 0)
            if not 0 <= row < self.shape[1]:
                raise IndexError(f"[{_NAME}] expected a draw below {self.shape[1]}, got {draws}")
            chunk, place = divmod(row, self._layout.length)
            found: npt.NDArray[Any] = self._stretch(chunk)[(chains, place, *rest)]
            return found.copy()
        if not isinstance(draws, slice) or not isinstance(chains, slice | int | np.integer):
            return self._all(key)
        return self._sliced(chains, draws, tuple(rest))

    def _all(self, key: Any) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = np.asarray(self)[key]
        return found

    def reshape(self, *shape: Any) -> npt.NDArray[Any]:
        """Return all of it in memory in another shape."""
        return np.asarray(self).reshape(*shape)

    def _sliced(self, chains: Any, draws: slice, rest: tuple[Any, ...]) -> npt.NDArray[Any]:
        """Join what one stretch after another gives; nothing else is in memory."""
        start, stop, step = draws.indices(self.shape[1])
        if step < 0:
            last = range(start, stop, step)
            if not last:
                return self._sliced(chains, slice(0, 0), rest)
            forward = self._sliced(chains, slice(last[-1], start + 1, -step), rest)
            axis = 0 if isinstance(chains, int | np.integer) else 1
            return np.flip(forward, axis)
        length = self._layout.length
        axis = 0 if isinstance(chains, int | np.integer) else 1
        empty = np.empty((self.shape[0], 0, *self.shape[2:]), self.dtype)[(chains, slice(0), *rest)]
        total = len(range(start, stop, step))
        result: npt.NDArray[Any] | None = None
        filled = 0
        while start < stop:
            chunk = start // length
            end = min(stop, (chunk + 1) * length)
            place = slice(start - chunk * length, end - chunk * length, step)
            part = self._stretch(chunk)[(chains, place, *rest)]
            if result is None:
                shape = list(part.shape)
                shape[axis] = total
                checks.memory(_NAME, int(np.prod(shape, dtype=np.int64)), self.dtype, "draws")
                result = np.empty(shape, self.dtype)
            count = part.shape[axis]
            result[(slice(None),) * axis + (slice(filled, filled + count),)] = part
            filled += count
            start += count * step
        return empty if result is None else result

    def _stretch(self, chunk: int) -> npt.NDArray[Any]:
        """Return the counted draws (C, n, ...) of a stretch; the last few are remembered."""
        layout = self._layout
        key = (self._number, chunk)
        cached = _recent.get(key)
        if cached is not None:
            _remember(key, cached)
            return cached
        low = chunk * layout.length
        rows = min(layout.rows(chunk), self.shape[1] - low)
        _make_room(self.size // self.shape[1] * rows * self.dtype.itemsize)
        if chunk in self._held:
            raw = self._held[chunk][:, :rows]
        else:
            digests, all_rows = list(self._digests[chunk]), min(layout.length, self._checked - low)
            raw = read_rows(_NAME, self._folder, layout, chunk, all_rows, digests)[:, :rows]
        found = decoded(raw, layout.stored, layout.dtype)
        _remember(key, found)
        return found

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._number = _known_by_number(self)


def _known_by_number(array: StoredArray) -> int:
    """Return a number of its own for an array, whose chunks are forgotten with it."""
    number = next(_numbers)
    weakref.finalize(array, _forget, number)
    return number


def _remember(key: tuple[int, int], found: npt.NDArray[Any]) -> None:
    """Make a chunk the one that was read last."""
    global _recent
    _recent = {other: chunk for other, chunk in _recent.items() if other != key} | {key: found}


def _make_room(size: int) -> None:
    """Drop the chunks that were not read for longest, until so many bytes more can be kept."""
    global _recent
    recent = dict(_recent)
    size += sum(chunk.nbytes for chunk in recent.values())
    while recent and size > _CACHED:
        size -= recent.pop(next(iter(recent))).nbytes
    _recent = recent


def _forget(number: int) -> None:
    """Drop the chunks of an array."""
    global _recent
    _recent = {key: chunk for key, chunk in _recent.items() if key[0] != number}


class StoredStatistics(Mapping[str, Any]):
    """Statistics (C, D) by name, read when they are asked for."""

    def __init__(self, arrays: dict[str, StoredArray]) -> None:
        self._arrays = arrays

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return np.asarray(self._arrays[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"StoredStatistics({', '.join(self._arrays)})"
