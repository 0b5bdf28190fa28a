"""Chains that advance in blocks of draws, made by the calls of a sampler.

Shapes: C chains, K draws of a block, P parameters.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit._arrays.namespace import from_host, host_dtype, namespace
from ribbit._arrays.threads import Interrupted
from ribbit.distributed.ranks import RankAgreement
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array
from ribbit.results.state import AnyState

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Block", "CallSize", "GroupChains", "LocalChains", "Thinning", "joined_blocks"]

_BYTES = 1 << 22  # of the draws of a block, which stay in a cache until they are put down

# Positions (C, K, P), None in warmup that is not kept, and statistics (C, K); without rows, {}.
Block: TypeAlias = "tuple[Array | None, dict[str, Array]]"


@dataclass(frozen=True)
class Thinning:
    """The last `many` steps of every `period`, `gap` apart, give draws; 1 follows warmup."""

    period: int
    many: int = 1
    gap: int = 1

    @property
    def _first(self) -> int:
        return self.period - (self.many - 1) * self.gap

    def count(self, step: int) -> int:
        """Return how many draws steps 1 ... `step` give."""
        full, rest = divmod(step, self.period)
        inside = 0 if rest < self._first else 1 + (rest - self._first) // self.gap
        return full * self.many + inside

    def step(self, number: int) -> int:
        """Return the step of draw `number`, from 1."""
        full, place = divmod(number - 1, self.many)
        return full * self.period + self._first + place * self.gap

    def steps(self, step: int, count: int) -> npt.NDArray[np.int64]:
        """Return the first `count` steps after `step` that give draws, (count,)."""
        full, place = np.divmod(np.arange(count) + self.count(step), self.many)
        found: npt.NDArray[np.int64] = full * self.period + self._first + place * self.gap
        return found

    def stop(self, step: int, warmup: int, *, each: bool) -> int:
        """Return the step of the next draw or the end of warmup; `each` step of warmup if kept."""
        if step < warmup:
            return step + 1 if each else warmup
        return warmup + self.step(self.count(step - warmup) + 1)


class CallSize:
    """Number of steps of a call, which grows until a call takes about so many seconds."""

    def __init__(self, seconds: float = 0.1) -> None:
        """Begin with single steps."""
        self._seconds, self._most = seconds, 1
        self._began = 0.0
        self._whole = False  # whether the call could have been longer

    def size(self, left: int) -> int:
        """Return how many of `left` steps to make now."""
        self._began = time.perf_counter()
        self._whole = left >= self._most
        return min(self._most, left)

    def made(self, count: int) -> None:
        """Learn from the call that made `count` steps."""
        seconds = max(time.perf_counter() - self._began, 1e-6)
        if seconds > 4 * self._seconds:  # steps have become slower
            self._most = max(1, min(self._most, int(count * self._seconds / seconds)))
        # The last of several draws may come some steps before.
        elif self._whole and 2 * count > self._most:
            self._most = max(1, min(8 * count, int(count * self._seconds / seconds), 1 << 20))


class LocalChains:
    """The chains of a sampler in this process."""

    over = False  # whether the ranks of a group have agreed that the time is over
    largest = sys.maxsize  # draws of a block after warmup, at most

    def __init__(self, sampler: Any, state: AnyState, thinning: Thinning, *, each: bool) -> None:
        """Begin at `state`; each: whether every step of warmup is kept."""
        self.state = state  # after the last step
        # Step and statistics, (C,) or (C, K), of every call of the last block.
        self.calls: list[tuple[int, dict[str, Array]]] = []
        self._sampler, self._thinning, self._each = sampler, thinning, each
        self._counts = thinning.period > 1 and "diverging" in sampler._statistics
        # Diverging transitions (C,) since the last draw, if the run is thinned.
        self.divergences: Any = getattr(state, "divergences", None) if self._counts else None
        self._size = CallSize(sampler._call_seconds)
        self._in_blocks = bool(sampler._several)
        self._space: npt.NDArray[Any] = np.empty(0, host_dtype(state.position))
        row = state.position.shape[0] * sampler._density.full_dim * self._space.itemsize
        self._most = max(1, _BYTES // row)  # draws of a block
        self._error: BaseException | None = None  # that came after draws of the last block

    @property
    def step(self) -> int:
        """Steps made, warmup included."""
        return self.state.step

    @property
    def warming_up(self) -> bool:
        """Whether the next step is one of warmup."""
        return self.state.step < self.state.warmup

    def advance(
        self, most: int, seconds: float, guard: InterruptGuard, stop: int = sys.maxsize
    ) -> Block:
        """Make at most `most` draws in about `seconds`; positions are valid until the next call.

        Ends at step `stop`, at the end of warmup, and at Ctrl-C with the draws until then.
        """
        self.calls = []
        self.raise_deferred()
        end, warming, blocks = time.perf_counter() + seconds, self.warming_up, list[Block]()
        begun, last = self.state, (self.state, self.divergences)
        most = self._most if warming else min(most, self._most, self.largest)
        stop = stop if stop > self.step else sys.maxsize
        try:
            while most > 0 and not guard.flag.is_set():
                block, whole = self._move(most, guard, stop)
                if block is not None:
                    blocks.append(block)
                    most -= next(iter(block[1].values())).shape[1]
                last = self.state, self.divergences
                ended = self.step >= stop or self.warming_up != warming
                if whole or ended or self.over or time.perf_counter() >= end:
                    break
        except BaseException as error:
            self.state, self.divergences = last
            ours = guard.requested and isinstance(error, (Interrupted, KeyboardInterrupt))
            if not ours and self.state is begun:
                raise
            self._error = None if ours else error
        return blocks[0] if len(blocks) == 1 else joined_blocks(blocks)

    def raise_deferred(self) -> None:
        """Raise the error that came after the steps of the last block, if there was one."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _move(self, most: int, guard: InterruptGuard, stop: int) -> tuple[Block | None, bool]:
        """Make one call: its draws, None if it made none, and whether they use the shared space."""
        if self._in_blocks and len(stops := self._stops(most, stop)) > 1:
            found = self._several(stops, guard)
            if found is not None:
                return found, True
            self._in_blocks = False  # a step fails: the draws before it come one by one
        sampler, state, thinning = self._sampler, self.state, self._thinning
        left = 1
        if sampler._chunked:
            left = thinning.stop(state.step, state.warmup, each=self._each) - state.step
            left = min(left, stop - state.step)
        count = self._count(left, guard)
        if count == 0:
            return None, False
        after, info = sampler._advance(state, count, guard)
        at = after.step - after.warmup
        keep = thinning.count(at) > thinning.count(at - 1) if at > 0 else self._each
        position = sampler._density.completed(after, guard)[:, None, :] if keep else None
        self.calls.append((after.step, info))
        stats = self._made(after, {name: v[:, None] for name, v in info.items()}, drawn=keep)
        return ((position, stats) if keep or at <= 0 else None), False

    def _count(self, left: int, guard: InterruptGuard) -> int:
        """Return how many of `left` steps the next call makes; 0: none."""
        return self._size.size(left)

    def _stops(self, most: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the steps (K,) that a call of several keeps; fewer than two: make single ones."""
        state, thinning = self.state, self._thinning
        at = state.step - state.warmup
        if at < 0:
            left = min(-at, stop - state.step, self._most)
            left = left if self._sampler._several_in_warmup else 0
            return state.step + 1 + np.arange(self._size.size(left) if left > 1 else 0)
        before = thinning.count(at)
        size = self._size.size(thinning.step(before + most) - at) if most > 1 else 0
        return state.warmup + thinning.steps(at, thinning.count(at + size) - before)

    def _several(self, stops: npt.NDArray[np.int64], guard: InterruptGuard) -> Block | None:
        """Make the steps up to the last of `stops` in one call; None if a step fails."""
        state, kept = self.state, None
        if self._each or state.step >= state.warmup:  # the next block gets the same memory
            shape = state.position.shape[0], len(stops), self._sampler._density.full_dim
            size = int(np.prod(shape))
            if self._space.size < size:
                self._space = np.empty(size, self._space.dtype)
            kept = self._space[:size].reshape(shape)
        found = self._sampler._advance_several(state, stops, kept, guard)
        if found is None:
            return None
        after, info = found
        # A call may have ended at an earlier one of these steps.
        count = int(np.searchsorted(stops, after.step, side="right"))
        if kept is not None and count < len(stops):
            kept = np.ascontiguousarray(kept[:, :count])
        self.calls.append((after.step, info))
        return kept, self._made(after, info, drawn=True)

    def _made(self, after: AnyState, info: dict[str, Array], *, drawn: bool) -> dict[str, Array]:
        """Take a state, and return the statistics (C, K) to keep: all divergences since a draw."""
        self._size.made(after.step - self.state.step)
        self.state, info = after, dict(info)
        found = info.pop("divergences", info.get("diverging"))
        if self._counts:
            xp = namespace(found)
            info["divergences"] = found = xp.astype(found, xp.int64, copy=True)
            if after.step > after.warmup:
                if self.divergences is not None:
                    found[:, 0] += from_host(xp, self.divergences)
                self.divergences = None if drawn else found[:, 0]
        return info


class GroupChains(LocalChains):
    """Chains on a target whose rows lie on several ranks, which agree before each call.

    Rank 0 decides how many steps it makes and, by the seconds `left`, whether the time is over.
    """

    def __init__(
        self, *arguments: Any, ranks: RankAgreement, left: Callable[[], float], **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._ranks, self._left, self._first = ranks, left, self.step
        self._in_blocks, self._most = False, 1

    def _count(self, left: int, guard: InterruptGuard) -> int:
        count = super()._count(left, guard)
        over = self._left() <= 0.0 and self.step > self._first
        count, self.over = self._ranks.agree(lambda: self.state.position, count, over)
        return 0 if guard.requested or self.over else count


def joined_blocks(blocks: list[Block]) -> Block:
    """Join the draws of several calls."""
    if not blocks:
        return None, {}
    xp = namespace(*blocks[0][1].values())
    stats = {name: xp.concat([block[1][name] for block in blocks], axis=1) for name in blocks[0][1]}
    if blocks[0][0] is None:
        return None, stats
    return xp.concat([block[0] for block in blocks], axis=1), stats
