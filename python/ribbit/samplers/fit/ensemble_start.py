"""Starts of chains at trained networks: a short fit of one member per chain, stopped early.

Shapes: C chains, P parameters, N rows.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks, random_numbers
from ribbit._arrays.namespace import from_host, namespace, to_host
from ribbit._arrays.threads import Interrupted
from ribbit.errors import FitWarning, NonFiniteError
from ribbit.protocols import Array
from ribbit.results.fits import EnsembleFit
from ribbit.results.state import StochasticState
from ribbit.samplers.run import options
from ribbit.samplers.run.caution import warn
from ribbit.samplers.run.interrupt import InterruptGuard
from ribbit.samplers.run.progress import open_progress
from ribbit.samplers.run.run import ProgressOption
from ribbit.samplers.run.target import Density
from ribbit.samplers.run.worker import SECONDS
from ribbit.samplers.run.workers import Call, Workers
from ribbit.samplers.sgmcmc.rule import Rule
from ribbit.samplers.sgmcmc.stepper import Stepper

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["EnsembleStart"]

_HELD_OUT_EPOCH = 2**40 - 1  # whose order of the rows says which are held out; no fit is so long
_FEWEST_HELD, _MOST_HELD = 50, 5_000  # rows, unless that is more than a quarter of them
_FEWEST_ROWS = 20  # of which some can be held out
_RATES = np.array([1.0, 0.2, 0.04])  # of Adam, one after the other, each until nothing improves
_MOVED = "position", "first_moment", "second_moment"
_ATTEMPT = 0x9E3779B97F4A7C15  # odd: attempts of a seed have seeds of their own


@dataclass(frozen=True, kw_only=True)
class EnsembleStart:
    """Starts each chain at a network trained by Adam: ``sample(init="ensemble")`` with settings.

    A tenth of the rows (50 at least, a quarter at most) is held out and judges the weights after
    `every` steps. A member that has not improved for `patience` looks goes back to its best ones
    and goes on at a fifth of the learning rate, twice; it ends there, or at `max_steps`. Chain c's
    start is a function of (seed, c) and the target alone. A member that leaves the finite numbers
    or never improves on its random weights starts again, from other ones.

    Parameters
    ----------
    learning_rate : float
        Of Adam.
    batch_size : int
        Rows of a step, at most; all rows where there are fewer.
    max_steps : int
        Steps of a member, at most.
    every : int
        Steps between two looks at the rows held out.
    patience : int
        Looks without improvement after which a member ends.
    restarts : int
        How often a failed member starts again.

    Raises
    ------
    TypeError, ValueError
        For arguments of another kind or out of range.

    References
    ----------
    Lakshminarayanan, Pritzel and Blundell (2017), "Simple and scalable predictive uncertainty
    estimation using deep ensembles"; Sommer et al. (2025), "Microcanonical Langevin ensembles"
    (chains that start at the members).

    Examples
    --------
    >>> import numpy as np
    >>> import ribbit as rb
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (8,), 1), x, x**2, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.1)
    ... )
    >>> draws = rb.MCLMC(target).sample(
    ...     20, warmup=200, thin=5, init=rb.EnsembleStart(max_steps=400), progress=False
    ... )
    >>> draws.positions.shape
    (4, 20, 25)
    """

    learning_rate: float = 5e-3
    batch_size: int = 64
    max_steps: int = 20_000
    every: int = 50
    patience: int = 20
    restarts: int = 2

    def __post_init__(self) -> None:
        name = "EnsembleStart"
        checks.positive(name, "learning_rate", self.learning_rate)
        for option in ("batch_size", "max_steps", "every", "patience"):
            checks.integer(name, option, getattr(self, option), minimum=1, maximum=2**31)
        checks.integer(name, "restarts", self.restarts, minimum=0, maximum=100)

    def fit(
        self,
        target: Any,
        chains: int | Sequence[int] = 4,
        *,
        seed: int = 0,
        progress: ProgressOption = None,
        executor: Any = None,
    ) -> EnsembleFit:
        """Fit the starts alone: what ``sample(init="ensemble")`` would begin at.

        Parameters
        ----------
        target
            A :class:`ribbit.Posterior`.
        chains : int or sequence of int
            How many members (their ids are 0, 1, ...), or their ids.
        seed : int
            64-bit key.
        progress : bool or callable, optional
            As for :meth:`ribbit.HMC.sample`.
        executor : object with submit, or callable, optional
            Workers that fit the members, the same bits; as for :meth:`ribbit.HMC.sample`.

        Returns
        -------
        EnsembleFit
            A member for each chain; ``settings`` say how many steps and attempts each took, and
            how good it is on the rows held out.

        Raises
        ------
        TypeError, ValueError
            For bad arguments, or a target that cannot be fitted so.
        KeyboardInterrupt
            After Ctrl-C: there is nothing to go on from.
        """
        name = "EnsembleStart.fit"
        density = Density(target, function=name)
        options.no_dropout(name, target)
        ids = checks.chain_ids(name, chains, each=4 * density.dim * density.dtype.itemsize)
        if len(set(ids.tolist())) != ids.size:
            raise ValueError(f"[{name}] expected distinct chain ids, got {ids.tolist()}")
        seed = checks.seed(name, seed)
        with InterruptGuard() as guard:
            try:
                theta, report = self.fitted(
                    name, target, ids, seed, guard, progress, None, 4, executor
                )
            except Interrupted:
                raise guard.exception from None
        return EnsembleFit(
            theta=theta,
            complete=True,
            settings={
                "sampler": "EnsembleStart",
                **report,
                "members": len(ids),
                "num_rows": int(target.num_rows),
                "seed": seed,
            },
            predictive=target if callable(getattr(target, "predictive", None)) else None,
        )

    def fitted(
        self,
        function: str,
        target: Any,
        ids: npt.NDArray[np.uint32],
        seed: int,
        guard: InterruptGuard,
        progress: ProgressOption,
        max_seconds: float | None,
        stacklevel: int = 5,
        executor: Any = None,
    ) -> tuple[Array, dict[str, Any]]:
        """Fit a member for each chain.

        Parameters
        ----------
        function : str
            Who asks, for errors and warnings.
        target
            Of the run; see :class:`ribbit.protocols.NativeSteps`.
        ids : (C,) uint32 array
            Chains.
        seed : int
            64-bit key.
        guard : InterruptGuard
        progress
            As for ``sample``.
        max_seconds : float or None
            After which members stay where they are.
        stacklevel : int
            Of the warning about failed members, that of ``sample`` unless told.
        executor : object with submit, or callable that makes one, optional
            Whose workers fit the members.

        Returns
        -------
        position : (C, P) array
        report : dict
            What was done, as plain values.

        Raises
        ------
        TypeError
            For a target without native minibatch steps or rows to hold out.
        Interrupted
            After Ctrl-C.
        """
        # Of what is integrated out a member has a value of its own: starts leave it out again.
        target = getattr(target, "joint", target)
        wanted = ("advance", "subset", "log_likelihood", "init")
        if not all(callable(getattr(target, name, None)) for name in wanted):
            raise TypeError(
                f"[{function}] expected a target with rows of data for init='ensemble', such as "
                f"Posterior, got {checks.summary(target)}: give init as positions"
            )
        end = None if max_seconds is None else time.perf_counter() + max_seconds
        fit = _Fit(function, self, target, seed)
        with open_progress(
            progress, total=self.max_steps, chains=len(ids), title="ensemble start", fit=True
        ) as reporter:
            watch = _Watch(fit, reporter, end)
            if executor is None:
                watch.run(ids, guard)
            else:
                watch.run_elsewhere(ids, guard, executor)
            watch.warn(stacklevel)
        return watch.position, watch.report()


@dataclass
class _Attempt:
    """Members on their way from one start.

    Attributes
    ----------
    state : StochasticState
        Of M members.
    weights : (M, P) array
        The best ones so far.
    peak : (M,) array
        Their log likelihood per row held out.
    improved, broken : (M,) bool arrays
        Whether they are better than the start; whether a member has left the finite numbers.
    waits, rate : (M,) int64 arrays
        Looks without improvement; which learning rate.
    active : int array
        Who makes steps.
    """

    state: StochasticState
    weights: Array
    peak: npt.NDArray[np.float64]
    improved: npt.NDArray[np.bool_]
    broken: npt.NDArray[np.bool_]
    waits: npt.NDArray[np.int64]
    rate: npt.NDArray[np.int64]
    active: npt.NDArray[np.intp]

    @property
    def failed(self) -> npt.NDArray[np.bool_]:
        """Who is nowhere better than at the start (M,)."""
        return self.broken | ~self.improved


@dataclass
class _Climb:
    """Some members, in all attempts.

    Attributes
    ----------
    ids : (C,) uint32 array
    position : (C, P) array
        The best weights of all attempts so far.
    best : (C,) array
        Their log likelihood per row held out; NaN: not known yet.
    steps, attempts : (C,) int64 arrays
        That each member made in all.
    members : (M,) int array
        Who takes part in this attempt.
    number : int
        Of the attempt, from 0.
    now : _Attempt or None
        None before its first round.
    done : bool
        No attempt follows.
    """

    ids: npt.NDArray[np.uint32]
    position: Array
    best: npt.NDArray[np.float64]
    steps: npt.NDArray[np.int64]
    attempts: npt.NDArray[np.int64]
    members: npt.NDArray[np.intp]
    number: int = 0
    now: _Attempt | None = None
    done: bool = False


class _Fit:
    """How members are fitted: a function of (seed, chain) for each, in rounds.

    It is a job of workers; see :class:`ribbit.samplers.run.worker.Job`.
    """

    def __init__(self, function: str, how: EnsembleStart, target: Any, seed: int) -> None:
        self.function, self.how, self.seed = function, how, seed
        self.train, self.held, self.held_rows = _shares(target, seed)
        self.density = Density(self.train, function=function)
        rows = int(self.train.num_rows)
        self.steppers = [
            Stepper(
                function,
                self.density,
                Rule("adam", prior=1.0),
                step_size=how.learning_rate * factor,
                batch_size=min(how.batch_size, rows),
                schedule=None,
            )
            for factor in _RATES
        ]

    @property
    def xp(self) -> ModuleType:
        """Library of the arrays."""
        return self.density.xp

    def begin(self, ids: npt.NDArray[np.uint32]) -> _Climb:
        """Return these members before their first step."""
        count = len(ids)
        return _Climb(
            ids=ids,
            position=self.xp.zeros((count, self.density.dim), dtype=self.density._dtype),
            best=np.full(count, np.nan),
            steps=np.zeros(count, np.int64),
            attempts=np.zeros(count, np.int64),
            members=np.arange(count),
        )

    def make(self, state: _Climb, stops: tuple[int, ...]) -> list[_Climb]:
        """Go on for a while: what a worker does. How long it is changes nothing."""
        del stops
        until = time.perf_counter() + SECONDS
        while not state.done:
            self.round(state, None)
            if time.perf_counter() >= until:
                break
        return [state]

    def round(self, climb: _Climb, guard: InterruptGuard | None) -> None:
        """Make the steps of the active members up to the next look, and look.

        Phases: where they start; steps at each member's learning rate; who has improved, takes the
        next rate, or ends; what becomes of the attempt.
        """
        how = self.how
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
        climb.done = not now.failed.any() or climb.number >= how.restarts
        if not climb.done:
            climb.members, climb.number = climb.members[now.failed], climb.number + 1
            climb.now = None

    def _start(self, climb: _Climb, guard: InterruptGuard | None) -> _Attempt:
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
        now.active = active[now.rate[active] < len(self.steppers)]

    def _move(self, now: _Attempt, steps: int, guard: InterruptGuard | None) -> None:
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

    def keep(self, climb: _Climb, now: _Attempt) -> None:
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


class _Watch:
    """Members on their way, here or with workers, seen by the display and by the clock."""

    def __init__(self, fit: _Fit, reporter: Any, end: float | None) -> None:
        self._fit, self._reporter, self._end = fit, reporter, end
        self.climbs: list[_Climb] = []
        self.ended_early = False

    def run(self, ids: npt.NDArray[np.uint32], guard: InterruptGuard) -> None:
        """Fit all members here."""
        climb = self._fit.begin(ids)
        self.climbs = [climb]
        while not climb.done:
            self._fit.round(climb, guard)
            if self._over():
                break
        self._finish()

    def run_elsewhere(
        self, ids: npt.NDArray[np.uint32], guard: InterruptGuard, executor: Any
    ) -> None:
        """Have workers fit them."""
        fit = self._fit
        with Workers(fit.function, fit.density, fit, executor) as workers:
            calls = [Call(fit.begin(ids[some])) for some in workers.cut(len(ids))]
            workers.take(calls)
            self.climbs = [call.state for call in calls]
            while not all(climb.done for climb in self.climbs):
                for call in calls:
                    idle = call.future is None and not call.state.done
                    if idle and not workers.holds(call):
                        workers.give(call)
                for call, made in workers.collect(guard):
                    (call.state,) = made.found
                for call in calls:
                    if call.error is not None:
                        raise call.error
                self.climbs = [call.state for call in calls]
                if all(climb.attempts.all() for climb in self.climbs) and self._over():
                    break
        self._finish()

    def _over(self) -> bool:
        """Tell the display, and whether the time is."""
        how, climbs = self._fit.how, self.climbs
        if self._reporter.wanted:
            steps = np.concatenate([climb.steps for climb in climbs])
            rates = np.concatenate([_rates_of(climb, how.learning_rate) for climb in climbs])
            done = min(how.max_steps, int(steps.max()))
            self._reporter.update(done, {"step_size": rates}, float(steps.sum()))
        return self._end is not None and time.perf_counter() >= self._end

    def _finish(self) -> None:
        for climb in self.climbs:
            if not climb.done:
                self.ended_early = True
                if climb.now is not None:
                    self._fit.keep(climb, climb.now)

    @property
    def position(self) -> Array:
        """The best weights (C, P) of every member."""
        found = [climb.position for climb in self.climbs]
        return found[0] if len(found) == 1 else self._fit.xp.concat(found, axis=0)

    def warn(self, stacklevel: int) -> None:
        """Warn of members that have failed in every attempt."""
        if self.ended_early:
            return
        chains = np.concatenate(
            [climb.ids[climb.members[climb.now.failed]] for climb in self.climbs if climb.now]
        )
        if not chains.size:
            return
        attempts = self._fit.how.restarts + 1
        warn(
            f"[{self._fit.function}] expected a trained network as the start of every chain, got "
            f"none for chain {', '.join(str(i) for i in chains)} in "
            f"{attempts} attempt{'s' if attempts > 1 else ''}: the best weights that were met "
            "are the start. Is the target one that can be fitted?",
            stacklevel=stacklevel,
            category=FitWarning,
        )

    def report(self) -> dict[str, Any]:
        """Return what was done."""
        steps, attempts, best = (
            np.concatenate([getattr(climb, name) for climb in self.climbs])
            for name in ("steps", "attempts", "best")
        )
        return {
            "kind": "ensemble",
            **dataclasses.asdict(self._fit.how),
            "rows_held_out": self._fit.held_rows,
            "steps": steps.tolist(),
            "attempts": attempts.tolist(),
            "held_out_log_likelihood": [
                float(value) if np.isfinite(value) else None for value in best
            ],
        }


def _rates_of(climb: _Climb, learning_rate: float) -> npt.NDArray[np.float64]:
    rates = np.full(len(climb.ids), learning_rate)
    if climb.now is not None:
        rates[climb.members] *= _RATES[np.minimum(climb.now.rate, len(_RATES) - 1)]
    return rates


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
