"""Quantiles: exact from kept values, and streamed in bounded memory."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from types import EllipsisType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import from_host, running_sum
from ribbit.protocols import Array
from ribbit.results.contents import check_array, whole

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["QuantileSketch", "probabilities", "sorted_quantile"]


_BUDGET = 1024  # values kept per element
_PART = 1 << 18  # values that are sorted at once: no signal interrupts a sort


def probabilities(
    function: str, q: object, *, ends: bool, argument: str = "q"
) -> tuple[npt.NDArray[np.float64], bool]:
    """Return q as (Q,) float64 and whether it was one number; `ends` lets 0 and 1 in."""
    raw = checks.numeric(function, argument, q)
    if raw.ndim > 1 or raw.size == 0:
        raise ValueError(
            f"[{function}] expected {argument} as a number or (Q,), got shape {raw.shape}"
        )
    array = raw.astype(np.float64)
    good = (array >= 0.0) & (array <= 1.0) if ends else (array > 0.0) & (array < 1.0)
    interval = "[0, 1]" if ends else "(0, 1)"
    checks.all_true(function, f"{argument} in {interval}", argument, array, good)
    return np.atleast_1d(array), array.ndim == 0


def sorted_quantile(xp: ModuleType, values: Array, q: Sequence[float]) -> Array:
    """Quantiles of values sorted along the last axis, linear between neighbours (NumPy's default).

    Parameters
    ----------
    values : (..., S) float64 array, ascending
    q : (Q,) in [0, 1]

    Returns
    -------
    (Q, ...) array
    """
    size = values.shape[-1]
    result = []
    for p in q:
        place = float(p) * (size - 1)
        low = min(int(place), size - 1)
        high = min(low + 1, size - 1)
        below, above = values[..., low], values[..., high]
        result.append(below + (above - below) * (place - low))
    return xp.stack(result, axis=0)


class QuantileSketch:
    """Quantiles of a stream of arrays in bounded memory, with a guaranteed rank error.

    Every element of the arrays is its own stream; all advance together, so that the buffers of
    Manku, Rajagopalan and Lindsay (1998, "Approximate medians and other quantiles in one pass and
    with limited memory", the policy of section 3.4) share one schedule. Deterministic. Exact, with
    linear interpolation, until the buffers are full for the first time.

    Parameters
    ----------
    xp
        Library of the arrays.
    shape : tuple of int
        Shape of one array of the stream.
    dtype
        Dtype of the values kept.
    size : int
        Length of the stream; a longer one works with a larger error.
    budget : int
        Values kept per element.

    Attributes
    ----------
    rank_error : float
        A returned value's rank in the sorted stream (from 1) differs from q * (S - 1) + 1 by at
        most this; 0 while exact.
    """

    def __init__(
        self,
        xp: ModuleType,
        shape: tuple[int, ...],
        dtype: object,
        *,
        size: int,
        budget: int = _BUDGET,
    ) -> None:
        self._xp, self._shape, self._dtype = xp, shape, dtype
        self._plan = _Plan(*_best_plan(size, budget))
        self._buffers: dict[int, Array] = {}  # slot -> (..., k), sorted
        self._filling = xp.empty((*shape, self._plan.length), dtype=dtype)
        self._unsettled: list[_Work] = []

    @staticmethod
    def length(size: int, budget: int = _BUDGET) -> int:
        """Return how many values are kept of each element of a stream of `size` arrays, at most."""
        buffers, length = _best_plan(size, budget)
        return (buffers + 1) * length  # one more is being filled

    @property
    def count(self) -> int:
        """Arrays seen so far."""
        return self._plan.count

    @property
    def rank_error(self) -> float:
        """See the class."""
        return self._plan.rank_error

    def add(self, values: Array, stop: Callable[[], bool] | None = None) -> None:
        """Take the next array of the stream.

        A full buffer is sorted, and others are merged for its place, in parts of the first axis.
        When `stop` says so between two parts, the rest is left for who asks next.
        """
        xp, plan = self._xp, self._plan
        self._filling[..., plan.count % plan.length] = xp.astype(values, self._dtype, copy=False)
        full = plan.add()
        if full is None:
            return
        self._settle()
        slot, collapse = full
        if collapse is not None:
            slots, weights, first = collapse
            merged = [self._buffers.pop(s) for s in slots]
            self._buffers[slots[0]] = xp.empty_like(merged[0])
            make = functools.partial(self._merge, weights=weights, first=first)
            self._unsettled.append(_Work(merged, self._buffers[slots[0]], make))
        self._buffers[slot] = xp.empty_like(self._filling)
        self._unsettled.append(
            _Work([self._filling], self._buffers[slot], lambda parts: xp.sort(parts[0], axis=-1))
        )
        self._filling = xp.empty((*self._shape, plan.length), dtype=self._dtype)
        self._settle(stop)

    def _settle(self, stop: Callable[[], bool] | None = None) -> None:
        """Do what is left of sorting and merging."""
        while self._unsettled:
            if self._unsettled[0].advance():
                del self._unsettled[0]
            if stop is not None and stop():
                return

    def quantile(self, q: Sequence[float]) -> Array:
        """Quantiles (Q, ...) of what was seen; float64."""
        self._settle()
        if not self._shape:
            return self._quantile(q, (...,))
        kept = (len(self._buffers) + 1) * self._plan.length * math.prod(self._shape[1:])
        block = max(1, _PART // max(1, kept))
        size = self._shape[0]
        starts = range(0, max(1, size), block)
        return self._xp.concat(
            [self._quantile(q, (slice(low, min(low + block, size)), ...)) for low in starts], axis=1
        )

    def _quantile(self, q: Sequence[float], at: tuple[slice | EllipsisType, ...]) -> Array:
        """Do the same for a part of the first axis."""
        xp, plan = self._xp, self._plan
        left = plan.count % plan.length
        parts = [self._buffers[slot][at] for slot in sorted(self._buffers)]
        weights = [plan.weights[slot] for slot in sorted(self._buffers)]
        if left:
            parts.append(self._filling[at][..., :left])
            weights.append(1)
        values = xp.concat(parts, axis=-1)
        if plan.exact:
            return sorted_quantile(xp, xp.astype(xp.sort(values, axis=-1), xp.float64), q)
        per_value = np.concatenate(
            [np.full(part.shape[-1], w) for part, w in zip(parts, weights, strict=True)]
        )
        values, ranks = _ranked(xp, values, per_value)
        result = []
        for p in q:
            rank = round(float(p) * (plan.count - 1)) + 1
            index = xp.sum(xp.astype(ranks < rank, xp.int64), axis=-1, keepdims=True)
            result.append(xp.take_along_axis(values, index, axis=-1)[..., 0])
        return xp.astype(xp.stack(result, axis=0), xp.float64)

    def copy(self) -> QuantileSketch:
        """Return the same, which does not change as more values come."""
        self._settle()
        other = copy.copy(self)
        other._plan = copy.deepcopy(self._plan)
        other._buffers, other._unsettled = dict(self._buffers), []  # full ones are never changed
        other._filling = self._xp.asarray(self._filling, copy=True)
        return other

    def pack(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return what a file must hold: plain values, and arrays."""
        self._settle()
        plan = self._plan
        plain = {
            "buffers": plan.buffers,
            "length": plan.length,
            "count": plan.count,
            "weights": sorted(plan.weights.items()),
            "levels": sorted(plan._levels.items()),
            "merges": plan._merges,
            "bounds": [plan._low, plan._high],
        }
        arrays = {str(slot): values for slot, values in self._buffers.items()}
        return plain, {**arrays, "filling": self._filling}

    @staticmethod
    def unpack(xp: ModuleType, plain: dict[str, Any], arrays: dict[str, Array]) -> QuantileSketch:
        """Rebuild from :meth:`pack`; ValueError for what it cannot have returned."""
        filling = arrays["filling"]
        _check_packed(plain, arrays)
        sketch = QuantileSketch(xp, tuple(filling.shape[:-1]), filling.dtype, size=1)
        plan = sketch._plan = _Plan(int(plain["buffers"]), int(plain["length"]))
        plan.count, plan._merges = int(plain["count"]), int(plain["merges"])
        plan._low, plan._high = (int(v) for v in plain["bounds"])
        plan.weights = {int(slot): int(weight) for slot, weight in plain["weights"]}
        plan._levels = {int(slot): int(level) for slot, level in plain["levels"]}
        sketch._filling = filling
        sketch._buffers = {slot: arrays[str(slot)] for slot in plan.weights}
        return sketch

    def _merge(self, buffers: list[Array], weights: list[int], first: int) -> Array:
        """One buffer for several: the values at weighted ranks first, first + W, first + 2 W ..."""
        xp, total, k = self._xp, sum(weights), self._plan.length
        values = xp.concat(buffers, axis=-1)
        if len(set(weights)) == 1:
            # value i (from 0) covers the weighted ranks i * w + 1 ... (i + 1) * w
            index = (first + total * np.arange(k) - 1) // weights[0]
            return xp.take(xp.sort(values, axis=-1), from_host(xp, index), axis=-1)
        values, ranks = _ranked(xp, values, np.repeat(weights, k))
        hits = (ranks + (total - first)) // total  # wanted ranks up to and including each value
        before = xp.concat([xp.zeros_like(hits[..., :1]), hits[..., :-1]], axis=-1)
        infinity = xp.asarray(xp.inf, dtype=self._dtype)
        return xp.sort(xp.where(hits > before, values, infinity), axis=-1)[..., :k]


class _Work:
    """What is made of buffers (..., k), stream by stream, and how far along the first axis."""

    def __init__(
        self, buffers: list[Array], result: Array, make: Callable[[list[Array]], Array]
    ) -> None:
        self._buffers, self._result, self._make = buffers, result, make
        self._done = 0
        each = len(buffers) * math.prod(result.shape[1:])  # values of an element
        self._block = max(1, _PART // max(1, each))

    def advance(self) -> bool:
        """Make a part; whether it was the last one."""
        if self._result.ndim == 1:
            self._result[...] = self._make(self._buffers)
            return True
        low = self._done
        self._done = high = min(low + self._block, self._result.shape[0])
        self._result[low:high, ...] = self._make([b[low:high, ...] for b in self._buffers])
        return bool(high == self._result.shape[0])


def _check_packed(plain: dict[str, Any], arrays: dict[str, Array]) -> None:
    """Raise unless the buffers are those of a sketch and hold as many values as it counted."""
    filling = arrays["filling"]
    length = filling.shape[-1]
    if whole("length", plain["length"], below=2**31) != length or length < 1:
        raise ValueError(f"a buffer of {length} values, not {plain['length']}")
    buffers = whole("buffers", plain["buffers"], below=2**31)
    weights, levels = dict(plain["weights"]), dict(plain["levels"])
    for slot, weight in weights.items():
        whole("slot", slot, below=buffers)
        whole("weight", weight, below=2**63)
        check_array(f"sketch/{slot}", arrays[str(slot)], filling.dtype.name, filling.shape)
    for level in levels.values():
        whole("level", level, below=2**31)
    whole("merges", plain["merges"], below=2**63)
    count = whole("count", plain["count"], below=2**63)
    low, high = plain["bounds"]
    if isinstance(low, bool) or not isinstance(low, int) or low > 0:
        raise ValueError(f"bounds {low!r:.60}")
    whole("bounds", high, below=2**63)
    if levels.keys() != weights.keys() or length * sum(weights.values()) != count - count % length:
        raise ValueError(f"buffers of weights {sorted(weights.values())} for {count} values")


def _ranked(xp: ModuleType, values: Array, weights: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    """Sorted values and the weighted rank of the last copy of each, (..., n)."""
    order = xp.argsort(values, axis=-1)
    values = xp.take_along_axis(values, order, axis=-1)
    own = xp.take(from_host(xp, weights.astype(np.int64)), xp.reshape(order, (-1,)))
    return values, running_sum(xp, xp.reshape(own, order.shape))


class _Plan:
    """The schedule of a sketch, without values: which buffers are filled and merged when."""

    def __init__(self, buffers: int, length: int) -> None:
        self.buffers, self.length = buffers, length
        self.count = 0
        self.weights: dict[int, int] = {}
        self._levels: dict[int, int] = {}
        self._merges = 0
        # Bounds of (rank by the sketch) - (true rank), summed over merges.
        self._low, self._high = 0, 0

    @property
    def exact(self) -> bool:
        return self._merges == 0

    @property
    def rank_error(self) -> float:
        # 0.5: the rank asked for is rounded
        return 0.0 if self.exact else max(self._high, -self._low) + 0.5

    def add(self) -> tuple[int, tuple[list[int], list[int], int] | None] | None:
        """Count one value. When a buffer is full: its slot, and what must be merged before."""
        self.count += 1
        return None if self.count % self.length else self._place()

    def _place(self) -> tuple[int, tuple[list[int], list[int], int] | None]:
        collapse = None
        if len(self.weights) == self.buffers:
            lowest = min(self._levels.values())
            slots = [slot for slot, level in self._levels.items() if level == lowest]
            weights = [self.weights[slot] for slot in slots]
            total = sum(weights)
            # An odd total has a middle; an even one takes turns, so that the errors cancel.
            first = (total + 1) // 2 + (self._merges % 2 if total % 2 == 0 else 0)
            self._merges += 1
            self._low += 1 - first
            self._high += total - first
            for slot in slots:
                del self.weights[slot], self._levels[slot]
            self.weights[slots[0]], self._levels[slots[0]] = total, lowest + 1
            collapse = (slots, weights, first)
        free = [slot for slot in range(self.buffers) if slot not in self.weights]
        level = min(self._levels.values()) if len(free) == 1 and self._levels else 0
        self.weights[free[0]], self._levels[free[0]] = 1, level
        return free[0], collapse


@functools.lru_cache(maxsize=64)
def _best_plan(size: int, budget: int) -> tuple[int, int]:
    """Return number and length of the buffers with the smallest error after `size` values."""
    if size <= budget:
        return 2, max(1, -(-size // 2))
    best: tuple[float, int, int] | None = None
    for buffers in range(3, 16):
        length = budget // (buffers + 1)  # one more is being filled
        if length < 2:
            break
        plan = _Plan(buffers, length)
        for _ in range(min(size // length, 5_000)):
            plan._place()
        if best is None or plan.rank_error < best[0]:
            best = (plan.rank_error, buffers, length)
    if best is None:
        raise ValueError(f"[QuantileSketch] expected budget >= 8, got {budget}")
    return best[1], best[2]
