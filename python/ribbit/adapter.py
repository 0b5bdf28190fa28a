"""Samplers that Python moves from state to state, and their chains.

Shapes: C chains, K draws of a block, P parameters.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ribbit._arrays.namespace import from_host, host_dtype, namespace, to_host
from ribbit.chains import Block, CallSize, PythonChains, Start, Thinning, joined_blocks
from ribbit.density import Density
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array
from ribbit.results.state import AnyState
from ribbit.sample import Sampler

if TYPE_CHECKING:
    import numpy.typing as npt


_BYTES = 1 << 22  # size of a block's draws, so that they stay in a cache


class LocalChains(PythonChains):
    """The chains of a sampler in this process."""

    def __init__(self, sampler: Any, state: AnyState, thinning: Thinning) -> None:
        """Begin at `state`."""
        super().__init__()
        self._at = state  # without the divergences since the last draw
        self.seed, self.ids, self.warmup = int(state.seed), state.chains, int(state.warmup)
        self._sampler, self._thinning, self._density = sampler, thinning, sampler._density
        self._counts = thinning.period > 1 and "diverging" in sampler._statistics
        # Diverging transitions (C,) since the last draw, if the run is thinned.
        self.divergences: Any = getattr(state, "divergences", None) if self._counts else None
        self._size = CallSize()
        self._stepper: Any = getattr(sampler, "_stepper", None)  # of SG-MCMC
        # A call of several draws may end early by the clock, and ranks have different clocks.
        several = self._stepper is not None and self._stepper.several
        self._in_blocks = several and self._density.group is None
        self._space: npt.NDArray[Any] = np.empty(0, host_dtype(state.position))
        row = state.position.shape[0] * self._density.full_dim * self._space.itemsize
        self._most = max(1, _BYTES // row)  # draws of a block

    @property
    def state(self) -> AnyState:
        """The state after the last step."""
        if not self._counts or self._at.divergences is self.divergences:
            return self._at  # type: ignore[no-any-return]
        found = None if self.divergences is None else to_host(self.divergences)
        return dataclasses.replace(self._at, divergences=found)  # type: ignore[no-any-return]

    def advance(
        self, most: int, seconds: float, guard: InterruptGuard, stop: int = sys.maxsize
    ) -> Block:
        """Make at most `most` draws, or all steps of warmup; see `chains.Chains`."""
        self.calls = []
        self.raise_deferred()
        end, warming, blocks = time.perf_counter() + seconds, self.warming_up, list[Block]()
        begun, last = self._at, (self._at, self.divergences)
        most = self._most if warming else min(most, self._most, self.largest)
        stop = stop if stop > self.step else sys.maxsize
        try:
            while most > 0 and not guard.flag.is_set():
                block, whole = self._move(most, guard, stop)
                if block is not None:
                    blocks.append(block)
                    most -= next(iter(block[1].values())).shape[1]
                last = self._at, self.divergences
                ended = self.step >= stop or self.warming_up != warming
                if whole or ended or time.perf_counter() >= end:
                    break
        except BaseException as error:
            self._at, self.divergences = last
            self._defer(error, guard, begun)
        return blocks[0] if len(blocks) == 1 else joined_blocks(blocks)

    def _move(self, most: int, guard: InterruptGuard, stop: int) -> tuple[Block | None, bool]:
        """Make one call. Return its draws or None, and whether they lie in the shared space."""
        if self._in_blocks and len(stops := self._stops(most)) > 1:
            found = self._several(stops, guard)
            if found is not None:
                return found, True
            self._in_blocks = False  # a step fails: the draws before it come one by one
        sampler, state, thinning = self._sampler, self._at, self._thinning
        last = min(thinning.stop(state.step, state.warmup), stop)
        left = last - state.step if sampler._chunked else 1
        after, info = sampler._advance(state, self._size.size(left), guard)
        at = after.step - after.warmup
        keep = thinning.count(at) > thinning.count(at - 1) if at > 0 else thinning.each
        position = self._density.completed(after, guard)[:, None, :] if keep else None
        self.calls.append((after.step, info))
        stats = self._made(after, {name: v[:, None] for name, v in info.items()}, drawn=keep)
        return ((position, stats) if keep or at <= 0 else None), False

    def _stops(self, most: int) -> npt.NDArray[np.int64]:
        """Return the steps (K,) whose draws one call makes. Fewer than two: make single steps."""
        state, thinning = self._at, self._thinning
        at = state.step - state.warmup
        if at < 0:
            return np.empty(0, np.int64)
        before = thinning.count(at)
        size = self._size.size(thinning.step(before + most) - at) if most > 1 else 0
        return self.warmup + thinning.step(np.arange(before, thinning.count(at + size)) + 1)

    def _several(self, stops: npt.NDArray[np.int64], guard: InterruptGuard) -> Block | None:
        """Make the steps up to the last of `stops` in one call; None if a step fails."""
        state = self._at
        shape = state.position.shape[0], len(stops), self._density.full_dim
        size = math.prod(shape)
        if self._space.size < size:  # the next block gets the same memory
            self._space = np.empty(size, self._space.dtype)
        kept = self._space[:size].reshape(shape)
        found = self._stepper.advance_several(state, stops, kept, guard)
        if found is None:
            return None
        after, info = found
        # A call may have ended at an earlier one of these steps.
        count = int(np.searchsorted(stops, after.step, side="right"))
        if count < len(stops):
            kept = np.ascontiguousarray(kept[:, :count])
        self.calls.append((after.step, info))
        return kept, self._made(after, info, drawn=True)

    def _made(self, after: AnyState, info: dict[str, Array], *, drawn: bool) -> dict[str, Array]:
        """Set the state. Return the statistics (C, K), with the divergences since the last draw."""
        self._size.made(after.step - self._at.step)
        self._at, info = after, dict(info)
        found = info.pop("divergences", info.get("diverging"))
        if self._counts:
            xp = namespace(found)
            info["divergences"] = found = xp.astype(found, xp.int64, copy=True)
            if after.step > after.warmup:
                if self.divergences is not None:
                    found[:, 0] += from_host(xp, self.divergences)
                self.divergences = None if drawn else found[:, 0]
        return info


class Stepwise(Sampler):
    """A sampler whose calls return the state after some steps."""

    # Names and dtypes of the statistics of a step.
    _statistics: ClassVar[dict[str, str]]
    # Whether one call makes several steps if no draw lies between them.
    _chunked: bool = True

    def __init__(self, density: Density) -> None:
        self._density = density

    @abstractmethod
    def _init(self, function: str, start: Start, guard: InterruptGuard | None) -> Any:
        """Return the state of chains at positions that are already checked."""

    @abstractmethod
    def _adopt(self, function: str, state: Any, guard: InterruptGuard | None) -> Any:
        """Check a state and put this sampler's fixed settings into it."""

    @abstractmethod
    def _advance(
        self, state: Any, num_steps: int, guard: InterruptGuard | None
    ) -> tuple[Any, dict[str, Array]]:
        """Make steps; a pure function of `state`."""

    def _statistics_of(self, *, thinned: bool) -> dict[str, str]:
        found = dict(self._statistics)
        if thinned and "diverging" in found:
            found["divergences"] = "int64"  # the draws do not tell how many diverged
        return found

    def _chains(
        self, name: str, density: Density, start: Start, guard: InterruptGuard | None
    ) -> LocalChains:
        if start.state is None:
            state = self._init(name, start, guard)
        else:
            state = self._adopt(name, start.state, guard)
        return LocalChains(self, state, start.thinning)
