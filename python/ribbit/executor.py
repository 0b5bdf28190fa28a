"""Chains on an executor: what moves them is with workers, who make steps ahead of the run.

The run itself stays where it was called: it keeps draws, predicts, shows progress, writes folders
and ends as any other. Only its steps come from elsewhere, and since a chain's draws are decided by
(seed, chain id, step) alone, they are the same bits. Workers get a state and step numbers, and
return states. A fit whose members are chains of an optimiser moves in the same way.

Shapes: C chains.
"""

from __future__ import annotations

import bisect
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np

from ribbit.adapter import Thinning
from ribbit.errors import NonFiniteError
from ribbit.interrupt import InterruptGuard
from ribbit.parts import joined, joined_statistics, part
from ribbit.protocols import Array
from ribbit.results.state import AnyState
from ribbit.worker import SECONDS, Steps
from ribbit.workers import Call, Workers

__all__ = ["Elsewhere", "MovedSampler", "elsewhere"]

_GROWTH = 8  # of a task's steps from one to the next
_BYTES = 1 << 26  # of the states that a task returns


@dataclass
class _Group(Call):
    """Chains that move in one task."""

    ready: deque[tuple[AnyState, dict[str, Any]]] = field(default_factory=deque)
    steps: int = 1  # of the next task
    seconds: float = 0.0  # that what is ready took


@contextlib.contextmanager
def elsewhere(
    function: str, sampler: Any, executor: Any, thinning: Thinning, *, each: bool
) -> Iterator[Any]:
    """Return the sampler that a run uses: `sampler` itself without an executor.

    Workers stop behind the steps that give draws; `each`: behind every step of warmup, too.
    """
    if executor is None:
        yield sampler
        return

    def until(step: int, warmup: int) -> int:
        return thinning.stop(step, warmup, each=each)

    with MovedSampler(function, sampler, executor, until) as moved:
        yield moved


class Elsewhere:
    """Chains whose steps are made by workers.

    `mover` has ``_density``, ``_chunked`` and ``_advance(state, num_steps, guard)``; `until` maps
    (step, warmup) to the step at which the run looks at the chains next. Steps are made `ahead`: a
    run takes all that lead to the next stop. `end` is the last step that can be asked for.
    """

    _ahead = True
    end: int | None = None

    def __init__(
        self, function: str, mover: Any, executor: Any, until: Callable[[int, int], int]
    ) -> None:
        self._mover, self._until = mover, until
        self._density = mover._density
        self._workers = Workers(function, self._density, Steps(mover), executor)
        self._groups: list[_Group] = []
        self._stops: list[int] = []  # decided so far: all groups stop at the same steps
        self._last: AnyState | None = None  # what the run was given
        self._failed: tuple[NonFiniteError, int] | None = None  # of a worker, by this step

    @property
    def _chunked(self) -> bool:
        """That of who makes the steps."""
        return bool(self._mover._chunked)

    def __enter__(self) -> Self:
        self._workers.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._workers.__exit__(kind, error, trace)

    def _advance(
        self, state: AnyState, num_steps: int, guard: InterruptGuard | None
    ) -> tuple[AnyState, dict[str, Array]]:
        """Return the state at the next stop, at most `num_steps` on."""
        if state is not self._last:
            self._begin(state)
        while self._failed is None and not all(group.ready for group in self._groups):
            self._hand_out()
            for group, made in self._workers.collect(guard):
                self._take(group, made.found, made.seconds)
            self._look_for_errors()
        if self._failed is not None:
            return self._again(num_steps, guard)
        self._hand_out()
        found = [group.ready.popleft() for group in self._groups]
        self._last = joined([one for one, _ in found])
        self._stops = self._stops[bisect.bisect_right(self._stops, self._last.step) :]
        return self._last, joined_statistics([info for _, info in found])

    def _begin(self, state: AnyState) -> None:
        """Cut the chains into groups."""
        parts = self._workers.cut(state.position.shape[0])
        self._groups = [_Group(part(state, chains)) for chains in parts]
        self._workers.take(self._groups)
        self._stops, self._failed = [], None
        self._last = state

    def _stop(self, step: int, steps: int) -> int:
        """Return the first stop behind `step`, decided by whoever gets there first."""
        place = bisect.bisect_right(self._stops, step)
        if place == len(self._stops):
            assert self._last is not None
            end = step + 1
            if self._chunked:
                end = self._until(step, getattr(self._last, "warmup", 0))
            self._stops.append(end if end - step < 2 * steps else step + steps)
        return self._stops[place]

    def _hand_out(self) -> None:
        """Give every group a task whose worker has none and whose results may run out."""
        for group in self._groups:
            if group.future is not None or group.seconds * len(group.ready) > SECONDS:
                continue
            if group.error is not None or self._workers.holds(group):
                continue
            if self.end is not None and group.state.step >= self.end:
                continue
            if not group.stops:
                size = sum(a.nbytes for a in _arrays(group.state))
                most, at = max(1, _BYTES // max(size, 1)), group.state.step
                stops: list[int] = []
                while len(stops) < most and at - group.state.step < group.steps and at != self.end:
                    at = self._stop(at, group.steps)
                    stops.append(at)
                group.stops = tuple(stops)
            self._workers.give(group)

    def _take(self, group: _Group, found: list[Any], seconds: float) -> None:
        """Keep what a worker has made, and learn from its seconds."""
        group.ready.extend(found)
        count = group.stops[-1] - group.state.step
        group.state, group.stops = found[-1][0], ()
        group.seconds = seconds / len(found)
        rate = count / max(seconds, 1e-6)
        group.steps = max(1, min(_GROWTH * count, int(rate * SECONDS)))

    def _look_for_errors(self) -> None:
        """Once nothing comes any more behind which a task failed: its steps are made here.

        All chains together then fail as in a run without workers: at the step of the first one,
        with all of them in the state that the error carries.
        """
        for group in self._groups:
            if group.error is not None and not group.ready:
                self._failed = group.error, group.stops[-1]
                self._workers.drop()
                return

    def _again(
        self, num_steps: int, guard: InterruptGuard | None
    ) -> tuple[AnyState, dict[str, Array]]:
        assert self._last is not None
        assert self._failed is not None
        error, by = self._failed
        if self._last.step >= by:  # it was that worker alone
            raise error
        self._last, info = self._mover._advance(self._last, num_steps, guard)
        return self._last, info


class MovedSampler(Elsewhere):
    """What a run needs of a sampler, with the steps made by workers."""

    _several = _several_in_warmup = False
    _call_seconds = 0.1

    @property
    def _title(self) -> str:
        title: str = self._mover._title
        return title

    @property
    def settings(self) -> dict[str, Any]:
        """Those of the sampler: who makes the steps does not matter."""
        found: dict[str, Any] = self._mover.settings
        return found

    @property
    def _statistics(self) -> dict[str, str]:
        """Those of the sampler."""
        found: dict[str, str] = self._mover._statistics
        return found

    def _settled(self, warmup: int) -> int | None:
        found: int | None = self._mover._settled(warmup)
        return found


def _arrays(state: Any) -> Iterator[Any]:
    """Yield the arrays of a state."""
    for name in state.__dataclass_fields__:
        value = getattr(state, name)
        if isinstance(value, np.ndarray):
            yield value
        elif hasattr(value, "__dataclass_fields__"):
            yield from _arrays(value)
