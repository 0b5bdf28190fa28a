"""Arrays that are read when they are indexed: mapped files, rounded draws, arrays end to end."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import is_array, is_lazy, namespace
from ribbit.protocols import Array

if TYPE_CHECKING:
    import numpy.typing as npt

Numbers: TypeAlias = "npt.NDArray[np.int64]"  # draw d of chain c of C has number d C + c

# Values per chunk of draws: bounds the memory of a pass, about 8 MB in float64.
CHUNK = 1 << 20


class MappedArray(np.memmap[Any, Any]):
    """A file of a run that is mapped, and read in parts; what is computed from it is in memory."""

    @property
    def lazy(self) -> bool:
        """Whether it is the file itself."""
        return self._mmap is not None  # type: ignore[attr-defined]


def chain_groups(array: Any) -> list[tuple[int, int]]:
    """Return first and last of the chains that are read together, one group after the other."""
    if not isinstance(array, JoinedArray):
        return [(0, array.shape[0])]
    groups: list[tuple[int, int]] = []
    for part in array.parts if array.axis == 0 else array.parts[:1]:
        start = groups[-1][1] if groups else 0
        groups += [(start + low, start + high) for low, high in chain_groups(part)]
    return groups


def chunks(positions: Any, values_per_draw: int, every: int = 1) -> Iterator[tuple[Numbers, Array]]:
    """Yield numbers and weights (S, P) of every `every`-th draw (C, D, P), draw by draw."""
    # Chains that lie in different folders are read one folder after the other.
    xp = namespace(positions)
    chains, draws, dim = positions.shape
    draws = -(-draws // every)
    for first, last in chain_groups(positions):
        own = np.arange(first, last)
        # also bounds the copy of the weights
        size = max(1, CHUNK // (max(values_per_draw, dim, 1) * len(own)))
        for low in range(0, draws, size):
            high = min(low + size, draws)
            taken = slice(low * every, (high - 1) * every + 1, every)
            chunk = xp.permute_dims(positions[first:last, taken, :], (1, 0, 2))
            numbers = chains * np.arange(low, high)[:, None] + own
            yield numbers.ravel(), xp.reshape(chunk, (-1, dim))
            forget(positions)


def forget(array: Any) -> None:
    """Let go of the pages of mapped files: they are the system's cache, not our memory."""
    if isinstance(array, JoinedArray):
        for part in array.parts:
            forget(part)
        return
    source = array.source if isinstance(array, RoundedArray) else array
    # Dropping pages of a private mapping (mode "c") would drop changes.
    if isinstance(source, np.memmap) and source.mode == "r" and hasattr(mmap, "MADV_DONTNEED"):
        with contextlib.suppress(OSError, ValueError):
            source._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def in_memory(array: Any) -> bool:
    """Whether it is an array of some library, and not what reads one as it is indexed."""
    if isinstance(array, np.ndarray):
        return not is_lazy(array)
    return is_array(array) and (
        hasattr(array, "__dlpack__") or hasattr(array, "__cuda_array_interface__")
    )


def join_arrays(parts: Sequence[Any], axis: int) -> Any:
    """Join arrays along an axis; where one is not in memory, the result is not either."""
    if len(parts) == 1:
        return parts[0]
    if all(in_memory(part) for part in parts):
        xp = namespace(*parts)
        if xp is np:  # cupy says by itself
            total = sum(part.size for part in parts)
            checks.memory("concatenate", total, parts[0].dtype, "the joined draws")
        joined: Array = xp.concat(list(parts), axis=axis)
        return joined
    return JoinedArray(parts, axis)


class _LazyArray:
    """What indexing, ``numpy.asarray`` and ``reshape`` turn into a NumPy array in memory."""

    lazy = True
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        """Axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shape}, {self.dtype})"

    def __array_namespace__(self, api_version: str | None = None) -> ModuleType:
        """Return NumPy: what indexing gives are its arrays."""
        return np

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"[draws] expected indexing, got .{name}: the draws are on the disk "
            "(numpy.asarray(draws.positions) is all of them)"
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return all of it in memory."""
        if copy is False:
            raise ValueError("[draws] expected copy=None, got False: the draws are not in memory")
        checks.memory("draws", self.size, self.dtype, "all draws")
        array = self._all()
        return array if dtype is None else array.astype(dtype, copy=False)

    def _all(self) -> npt.NDArray[Any]:
        raise NotImplementedError

    def reshape(self, *shape: Any) -> npt.NDArray[Any]:
        """Return all of it in memory in another shape."""
        return np.asarray(self).reshape(*shape)


class RoundedArray(_LazyArray):
    """Draws of a file that holds fewer digits, in the dtype of the run."""

    def __init__(self, source: npt.NDArray[Any], dtype: str) -> None:
        self.source = source
        self.shape, self.dtype = tuple(source.shape), np.dtype(dtype)

    def _all(self) -> npt.NDArray[Any]:
        return self[...]

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        values = np.asarray(self.source[key])
        if values.dtype == np.uint16:
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(self.dtype, copy=False)


def encoded(values: npt.NDArray[Any], stored: str) -> npt.NDArray[Any]:
    """Round to what a file holds; a bfloat16 is the upper half of a float32, ties to even."""
    with np.errstate(over="ignore"):
        if stored != "bfloat16":
            return values.astype(stored, copy=False)
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    kept = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    kept[np.isnan(values)] = 0x7FC0
    return kept.astype(np.uint16)


class JoinedArray(_LazyArray):
    """Arrays (C, D, ...) end to end along chains or draws; nothing is read before it is indexed."""

    def __init__(self, parts: Sequence[Any], axis: int) -> None:
        self.parts, self.axis = list(parts), axis
        self._ends = np.cumsum([part.shape[axis] for part in parts]).tolist()
        shape = list(parts[0].shape)
        shape[axis] = self._ends[-1]
        self.shape: tuple[int, ...] = tuple(shape)
        self.dtype = np.dtype(parts[0].dtype)

    def _all(self) -> npt.NDArray[Any]:
        array = np.empty(self.shape, self.dtype)
        begin = 0
        for part, end in zip(self.parts, self._ends, strict=True):
            array[(slice(None),) * self.axis + (slice(begin, end),)] = part[...]
            begin = end
        return array

    def __getitem__(self, key: Any) -> Any:
        keys = list(key) if isinstance(key, tuple) else [key]
        if any(one is Ellipsis for one in keys):
            at = next(i for i, one in enumerate(keys) if one is Ellipsis)
            keys[at : at + 1] = [slice(None)] * (self.ndim - len(keys) + 1)
        if len(keys) > self.ndim:
            return np.asarray(self)[key]
        keys += [slice(None)] * (self.ndim - len(keys))
        if not all(isinstance(one, slice | int | np.integer) for one in keys):
            return np.asarray(self)[key]
        own = keys[self.axis]
        if not isinstance(own, slice):
            return np.asarray(self._at(keys, int(own)))
        result_axis = sum(isinstance(one, slice) for one in keys[: self.axis])
        return self._slice(keys, own, result_axis)

    def _at(self, keys: list[Any], index: int) -> Any:
        count = self.shape[self.axis]
        place = index + count if index < 0 else index
        if not 0 <= place < count:
            raise IndexError(f"[draws] expected an index below {count}, got {index}")
        part = int(np.searchsorted(self._ends, place, side="right"))
        keys[self.axis] = place - (self._ends[part - 1] if part else 0)
        return self.parts[part][tuple(keys)]

    def _slice(self, keys: list[Any], own: slice, axis: int) -> npt.NDArray[Any]:
        chosen = range(*own.indices(self.shape[self.axis]))
        if chosen.step < 0:
            forward = chosen[::-1]
            found = self._slice(keys, slice(forward.start, forward.stop, forward.step), axis)
            return np.flip(found, axis)
        found_parts: list[npt.NDArray[Any]] = []
        begin = 0
        for part, end in zip(self.parts, self._ends, strict=True):
            # the first chosen index that is not before this part
            first = chosen.start
            if first < begin:
                first += -(-(begin - first) // chosen.step) * chosen.step
            stop = min(chosen.stop, end)
            if first < stop or (part is self.parts[-1] and not found_parts):
                keys[self.axis] = slice(first - begin, max(first, stop) - begin, chosen.step)
                found_parts.append(np.asarray(part[tuple(keys)]))
            begin = end
        return found_parts[0] if len(found_parts) == 1 else np.concatenate(found_parts, axis=axis)
