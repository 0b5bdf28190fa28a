"""Members of an ensemble on their way: attempts scored by rows held out, then steps on all rows.

Shapes: C chains, P parameters, N rows.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ribbit import schedules
from ribbit._arrays import random_numbers
from ribbit._arrays.namespace import from_host, namespace, to_host
from ribbit._arrays.threads import Interrupted
from ribbit.density import Density
from ribbit.errors import NonFiniteError
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array
from ribbit.results.state import StochasticState
from ribbit.samplers.sgmcmc.rule import Rule
from ribbit.samplers.sgmcmc.stepper import Stepper

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Climb", "Members"]

_HELD_OUT_EPOCH = 2**40 - 1  # whose order of the rows says which are held out; no fit is so long
_FEWEST_HELD, _MOST_HELD = 50, 5_000  # rows, unless that is more than a quarter of them
_FEWEST_ROWS = 20  # of which some can be held out
_RATES = np.array([1.0, 0.2, 0.04])  # of Adam, one after the other, each until nothing improves
_MOVED = "position", "first_moment", "second_moment"
_ATTEMPT = 0x9E3779B97F4A7C15  # odd: attempts of a seed have seeds of their own


class Settings(Protocol):
    """What of :class:`ribbit.EnsembleStart` says how members are fitted."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def max_steps(self) -> int: ...
    @property
    def every(self) -> int: ...
    @property
    def patience(self) -> int: ...
    @property
    def restarts(self) -> int: ...
    @property
    def finish(self) -> int | None: ...


@dataclass
class _Moving:
    """M members that make steps."""

    state: StochasticState
    rate: npt.NDArray[np.int64]  # (M,), the number of the stepper of each
    broken: npt.NDArray[np.bool_]  # (M,), whether a member has left the finite numbers
    active: npt.NDArray[np.intp]  # members that still make steps


@dataclass
class _Attempt(_Moving):
    """M members that make steps from one start."""

    weights: Array  # (M, P), the best ones so far
    peak: npt.NDArray[np.float64]  # (M,), their log likelihood per row held out
    improved: npt.NDArray[np.bool_]  # (M,), whether they are better than the start
    waits: npt.NDArray[np.int64]  # (M,), looks without improvement

    @property
    def failed(self) -> npt.NDArray[np.bool_]:
        """Who is nowhere better than at the start (M,)."""
        return self.broken | ~self.improved


@dataclass
class Climb:
    """C members, in all attempts."""

    ids: npt.NDArray[np.uint32]
    position: Array  # (C, P), the best weights; at the end those after the steps on all rows
    best: npt.NDArray[np.float64]  # (C,), their log likelihood per row held out; NaN: not known yet
    steps: npt.NDArray[np.int64]  # (C,), without those on all rows
    attempts: npt.NDArray[np.int64]  # (C,)
    finished: npt.NDArray[np.int64]  # (C,), steps on all rows before `position`
    members: npt.NDArray[np.intp]  # of this attempt
    failed: npt.NDArray[np.intp]  # never better than at the start of the last attempt
    lost: npt.NDArray[np.intp]  # those that left the finite numbers in the steps on all rows
    number: int = 0  # of the attempt
    now: _Attempt | None = None  # None before its first round
    finish: _Moving | None = None  # those that have not failed, on all rows
    done: bool = False

    @property
    def lasting(self) -> npt.NDArray[np.intp]:
        """Who has not failed: the members of `finish`."""
        return np.setdiff1d(np.arange(len(self.ids)), self.failed)

    @property
    def made(self) -> npt.NDArray[np.int64]:
        """Steps of each member so far (C,), those on all rows too."""
        made = self.steps + self.finished
        if self.finish is not None:
            made[self.lasting] += self.finish.state.step
        return made

    def rates(self, learning_rate: float) -> npt.NDArray[np.float64]:
        """Learning rate of each member now (C,), the falling one of the end at its beginning."""
        rates = np.full(len(self.ids), learning_rate)
        if self.now is not None:
            rates[self.members] *= _RATES[np.minimum(self.now.rate, len(_RATES) - 1)]
        return rates


class Members:
    """How members are fitted: a function of (seed, chain) for each, in rounds; a job of workers."""

    def __init__(self, function: str, how: Settings, target: Any, seed: int) -> None:
        self.function, self.how, self.seed = function, how, seed
        self.train, self.held, self.held_rows = _shares(target, seed)
        self.density = Density(self.train, function=function)
        self.steppers = [self._stepper(self.density, factor, None) for factor in _RATES]
        self.last = how.finish or 0  # steps on all rows
        if self.last:
            whole = self.density if self.train is target else Density(target, function=function)
            self.steppers.append(self._stepper(whole, 1.0, schedules.cosine(self.last)))

    def _stepper(
        self, density: Density, factor: float, schedule: schedules.Schedule | None
    ) -> Stepper:
        return Stepper(
            self.function,
            density,
            Rule("adam", prior=1.0),
            step_size=self.how.learning_rate * factor,
            batch_size=min(self.how.batch_size, int(density.target.num_rows)),
            schedule=schedule,
        )

    @property
    def xp(self) -> ModuleType:
        """Library of the arrays."""
        return self.density.xp

    def begin(self, ids: npt.NDArray[np.uint32]) -> Climb:
        """Return these members before their first step."""
        count = len(ids)
        return Climb(
            ids=ids,
            position=self.xp.zeros((count, self.density.dim), dtype=self.density._dtype),
            best=np.full(count, np.nan),
            steps=np.zeros(count, np.int64),
            attempts=np.zeros(count, np.int64),
            finished=np.zeros(count, np.int64),
            members=np.arange(count),
            failed=np.arange(0),
            lost=np.arange(0),
        )

    def make(self, state: Climb, end: int) -> tuple[Climb, None]:
        """Fit for half a second, in a worker; no result depends on this time."""
        from ribbit.executor import SECONDS  # the worker has loaded it

        del end
        until = time.perf_counter() + SECONDS
        while not state.done:
            self.round(state, None)
            if time.perf_counter() >= until:
                break
        return state, None

    def round(self, climb: Climb, guard: InterruptGuard | None) -> None:
        """Make the steps of the active members up to the next look, and look.

        Phases: where they start; steps at each member's learning rate; who has improved, takes the
        next rate, or ends; what becomes of the attempt. Behind the last one: steps on all rows.
        """
        how = self.how
        if climb.finish is not None:
            self._finish(climb, climb.finish, guard)
            return
        now = climb.now = self._start(climb, guard) if climb.now is None else climb.now
        if now.active.size and now.state.step < how.max_steps:
            steps = min(how.every, how.max_steps - now.state.step)
            self._move(now, steps, guard)
            now.active = now.active[~now.broken[now.active]]
            if now.active.size:
                climb.steps[climb.members[now.active]] += steps
                self._look(now, guard)
        if now.active.size and now.state.step < how.max_steps:
            return
        self.keep(climb, now)
        failed, climb.now = climb.members[now.failed], None
        if failed.size and climb.number < how.restarts:
            climb.members, climb.number = failed, climb.number + 1
            return
        climb.failed = failed
        climb.done = not self.last or failed.size == len(climb.ids)
        if not climb.done:
            climb.finish = self._begin_finish(climb, guard)

    def _begin_finish(self, climb: Climb, guard: InterruptGuard | None) -> _Moving:
        """Put who has not failed where attempts have led, before steps on all rows."""
        # Orders of the rows of their own, which no attempt has.
        seed = (self.seed + (self.how.restarts + 1) * _ATTEMPT) % 2**64
        places = climb.lasting
        start, ids = _rows(climb.position, places), climb.ids[places]
        return _Moving(
            state=self.steppers[-1].start(self.function, start, seed, ids, 0, guard),
            rate=np.full(len(places), len(_RATES)),
            broken=np.zeros(len(places), np.bool_),
            active=np.arange(len(places)),
        )

    def _finish(self, climb: Climb, last: _Moving, guard: InterruptGuard | None) -> None:
        """Make steps on all rows; who leaves the finite numbers stays where they began."""
        if guard is not None and guard.requested:
            raise Interrupted
        self._move(last, min(self.how.every, self.last - last.state.step), guard)
        last.active = last.active[~last.broken[last.active]]
        if last.active.size and last.state.step < self.last:
            return
        climb.lost = climb.lasting[last.broken]
        places = climb.lasting[last.active]
        _put(climb.position, places, _rows(last.state.position, last.active))
        climb.finished[places] = self.last
        climb.done, climb.finish = True, None

    def _start(self, climb: Climb, guard: InterruptGuard | None) -> _Attempt:
        """Put the members of an attempt on other weights than before."""
        seed = (self.seed + climb.number * _ATTEMPT) % 2**64
        ids, count = climb.ids[climb.members], len(climb.members)
        start = self.train.init(seed=seed, chains=ids.tolist())
        state = self.steppers[0].start(self.function, start, seed, ids, 0, guard)
        now = _Attempt(
            state=state,
            weights=self.xp.asarray(state.position, copy=True),
            peak=self._judge(state.position, guard),
            improved=np.zeros(count, np.bool_),
            broken=np.zeros(count, np.bool_),
            waits=np.zeros(count, np.int64),
            rate=np.zeros(count, np.int64),
            active=np.arange(count),
        )
        self.keep(climb, now)
        climb.attempts[climb.members] = climb.number + 1
        return now

    def _look(self, now: _Attempt, guard: InterruptGuard | None) -> None:
        """See who has improved; who has not for long goes back, and on at the next rate."""
        active, position = now.active, now.state.position
        value = np.full(len(now.peak), -np.inf)
        value[active] = self._judge(_rows(position, active), guard)
        risen = np.flatnonzero(value > now.peak)
        now.improved[risen] = True
        now.peak[risen] = value[risen]
        _put(now.weights, risen, _rows(position, risen))
        now.waits = np.where(value > -np.inf, now.waits + 1, now.waits)
        now.waits[risen] = 0
        calm = active[now.waits[active] >= self.how.patience]
        now.rate[calm] += 1
        now.waits[calm] = 0
        _put(position, calm, _rows(now.weights, calm))
        now.active = active[now.rate[active] < len(_RATES)]

    def _move(self, now: _Moving, steps: int, guard: InterruptGuard | None) -> None:
        """Make `steps` steps of the active members; marks those that left the finite numbers."""
        state = now.state
        made = dataclasses.replace(
            state,
            position=self.xp.asarray(state.position, copy=True),
            first_moment=self.xp.asarray(state.first_moment, copy=True),
            second_moment=self.xp.asarray(state.second_moment, copy=True),
            step=state.step + steps,
        )
        for level in np.unique(now.rate[now.active]):
            places = now.active[now.rate[now.active] == level]
            while places.size:
                try:
                    part, _ = self.steppers[level].advance(_some(state, places), steps, guard)
                except NonFiniteError as error:  # this one alone: the others make theirs again
                    bad = state.chains[places] == error.chain
                    now.broken[places[bad]] = True
                    places = places[~bad]
                    continue
                for name in _MOVED:
                    _put(getattr(made, name), places, getattr(part, name))
                break
        now.state = made

    def keep(self, climb: Climb, now: _Attempt) -> None:
        """Note the best weights of an attempt where they are better than those of earlier ones."""
        better = np.flatnonzero(~(now.peak <= climb.best[climb.members]))
        _put(climb.position, climb.members[better], _rows(now.weights, better))
        climb.best[climb.members[better]] = now.peak[better]

    def _judge(self, position: Array, guard: InterruptGuard | None) -> npt.NDArray[np.float64]:
        """Log likelihood per row held out (C,); -inf where it is not a number."""
        if guard is not None and guard.requested:
            raise Interrupted
        value = np.asarray(to_host(self.held.log_likelihood(position)), np.float64)
        known: npt.NDArray[np.float64] = np.where(np.isnan(value), -np.inf, value)
        return known / int(self.held.num_rows)


def _some(state: StochasticState, rows: npt.NDArray[np.intp]) -> StochasticState:
    """Return the chains `rows` of a state; a chain does not depend on the others."""
    arrays = {name: _rows(getattr(state, name), rows) for name in ("logdensity", *_MOVED)}
    return dataclasses.replace(state, chains=state.chains[rows], **arrays)


def _rows(array: Array, rows: npt.NDArray[np.intp]) -> Array:
    xp = namespace(array)
    return xp.take(array, from_host(xp, rows), axis=0)


def _put(array: Array, rows: npt.NDArray[np.intp], values: Array) -> None:
    if rows.size:
        array[from_host(namespace(array), rows), :] = values


def _shares(target: Any, seed: int) -> tuple[Any, Any, int]:
    """Return the target of the rows to train on, that of those held out, and their number.

    Which rows depends on (seed, N) alone: all chains have the same. Of very few rows none is held
    out; all judge then.
    """
    rows = int(target.num_rows)
    if rows < _FEWEST_ROWS:
        return target, target, 0
    held = min(max(rows // 10, min(_FEWEST_HELD, rows // 4)), _MOST_HELD)
    order = random_numbers.epoch_rows(
        rows, seed=seed, chain=0, epoch=_HELD_OUT_EPOCH, begin=0, count=rows
    )
    return target.subset(np.sort(order[held:])), target.subset(np.sort(order[:held])), held
