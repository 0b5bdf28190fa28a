"""Starts of chains at trained networks: a short fit of one member per chain, stopped early."""

# Shapes: C chains, P parameters, N rows.

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit import schedules
from ribbit._arrays import checks, overrides, random_numbers
from ribbit._arrays.namespace import from_host, namespace, to_host
from ribbit._arrays.threads import Interrupted
from ribbit._arrays.warning import warn
from ribbit.density import Density
from ribbit.errors import FitWarning, NonFiniteError
from ribbit.interrupt import InterruptGuard
from ribbit.progress import Progress, ProgressOption, check_progress
from ribbit.protocols import Array
from ribbit.results.fits import EnsembleFit
from ribbit.results.state import StochasticState
from ribbit.samplers.fit.training import predictive_of
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
    """Options of ``sample(init="ensemble")``, which starts each chain at a trained network.

    Each member is trained by Adam (Lakshminarayanan et al. 2017). A tenth of the rows (at least 50,
    at most a quarter) is held out and evaluated every `every` steps. A member that has not improved
    for `patience` evaluations returns to its best weights and continues at a fifth of the learning
    rate, twice; then it ends, at the latest after `max_steps`. A member that diverges or never
    improves on its random weights starts again from others. The start of chain c depends on (seed,
    c) and the target alone.

    Then `finish` more steps fit all rows, at a learning rate that falls to 0 as a cosine. For
    chains whose warmup forgets the start, as in :class:`MCLMC`, this leads to better modes. If they
    diverge, or time runs out, the member keeps its weights from before them.

    Parameters
    ----------
    learning_rate : float
        Learning rate of Adam.
    batch_size : int
        Rows per step; all rows if there are fewer.
    max_steps : int
        Largest number of steps of a member.
    every : int
        Steps between two evaluations of the held-out rows.
    patience : int
        Evaluations without improvement after which the learning rate falls or the member ends.
    restarts : int
        Largest number of new starts of a failed member.
    finish : int, optional
        Steps on all rows at the end. Default: 5,000 for :class:`MCLMC` without ``adjusted=True``, 0
        for other samplers and in :meth:`fit`.

    Raises
    ------
    TypeError, ValueError
        For arguments of the wrong type or out of range.

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
    finish: int | None = None

    def __post_init__(self) -> None:
        name = "EnsembleStart"
        checks.positive(name, "learning_rate", self.learning_rate)
        for option in ("batch_size", "max_steps", "every", "patience"):
            checks.integer(name, option, getattr(self, option), minimum=1, maximum=2**31)
        checks.integer(name, "restarts", self.restarts, minimum=0, maximum=100)
        if self.finish is not None:
            checks.integer(name, "finish", self.finish, minimum=0, maximum=2**31)

    def fit(
        self,
        target: Any,
        chains: int | Sequence[int] = 4,
        *,
        seed: checks.Seed = 0,
        progress: ProgressOption = None,
        executor: Any = None,
    ) -> EnsembleFit:
        """Fit the starts without sampling, as ``sample(init="ensemble")`` of most samplers does.

        Set ``finish=5_000`` for the starts of :class:`MCLMC`.

        Parameters
        ----------
        target
            A :class:`ribbit.Posterior`.
        chains : int or sequence of int
            Number of members (with ids 0, 1, ...), or their ids.
        seed : int, Generator, SeedSequence or None
            64-bit key.
        progress : bool or callable, optional
            As for :meth:`ribbit.HMC.sample`.
        executor : object with submit, or callable, optional
            Workers that fit the members, with bit-identical results; as for
            :meth:`ribbit.HMC.sample`.

        Returns
        -------
        EnsembleFit
            A member for each chain. ``settings`` has the steps and attempts of each, its score on
            the held-out rows, and its steps on all rows.

        Raises
        ------
        TypeError, ValueError
            For bad arguments, or a target that cannot be fitted so.
        KeyboardInterrupt
            After Ctrl-C; such a fit cannot be resumed.
        """
        name = "EnsembleStart.fit"
        density = Density(target, function=name, dropout=False)
        ids = checks.chain_ids(name, chains, each=4 * density.dim * density.dtype.itemsize)
        if len(set(ids.tolist())) != ids.size:
            raise ValueError(f"[{name}] expected distinct chain ids, got {ids.tolist()}")
        seed = checks.seed(name, seed)
        check_progress(name, progress)
        with InterruptGuard() as guard:
            try:
                theta, report = self._fitted(
                    name, target, ids, seed, guard, progress, None, executor
                )
            except Interrupted:
                raise KeyboardInterrupt from None
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
            predictive=predictive_of(target),
        )

    def _fitted(
        self,
        function: str,
        target: Any,
        ids: npt.NDArray[np.uint32],
        seed: int,
        guard: InterruptGuard,
        progress: ProgressOption,
        max_seconds: float | None,
        executor: Any = None,
        finish: int = 0,
    ) -> tuple[Array, dict[str, Any]]:
        """Fit a member for each chain; return positions (C, P) and a report of plain values."""
        # max_seconds: after which members stay where they are. finish: steps on all rows at the
        # end, if these settings have no number.
        overrides.needed(function, target, "advance")
        # A member also trains the parameters that are integrated out; starts leave them out.
        target = getattr(target, "joint", target)
        wanted = ("advance", "subset", "log_likelihood", "init")
        if not all(callable(getattr(target, name, None)) for name in wanted):
            raise TypeError(
                f"[{function}] expected a target with rows of data for init='ensemble', such as "
                f"Posterior, got {checks.summary(target)}: give init as positions"
            )
        end = None if max_seconds is None else time.perf_counter() + max_seconds
        how = self if self.finish is not None else dataclasses.replace(self, finish=finish)
        fit = _Ensemble(function, how, target, seed)
        with Progress(
            progress,
            total=self.max_steps + fit.last,
            chains=len(ids),
            title="ensemble start",
            fit=True,
        ) as reporter:
            trainings = _Trainings(how, fit, reporter, end)
            if executor is None:
                trainings.run(ids, guard)
            else:
                trainings.run_remote(ids, guard, executor)
            trainings.warn()
        return trainings.position, trainings.report()


class _Trainings:
    """The training of all members, here or with workers, with its display and time limit."""

    def __init__(
        self, how: EnsembleStart, fit: _Ensemble, reporter: Any, end: float | None
    ) -> None:
        self._how, self._fit, self._reporter, self._end = how, fit, reporter, end
        self.trainings: list[_TrainingState] = []
        self.ended_early = False

    def run(self, ids: npt.NDArray[np.uint32], guard: InterruptGuard) -> None:
        """Fit all members here."""
        training = self._fit.begin(ids)
        self.trainings = [training]
        while not training.done:
            self._fit.round(training, guard)
            if self._over():
                break
        self._finish()

    def run_remote(self, ids: npt.NDArray[np.uint32], guard: InterruptGuard, executor: Any) -> None:
        """Have workers fit them."""
        from ribbit.executor import Group, Workers  # not with ribbit: slow to load

        fit = self._fit
        with Workers(fit.function, fit.density, fit.make, executor) as workers:
            groups = [Group(fit.begin(ids[some])) for some in workers.parts(len(ids))]
            workers.groups = groups
            self.trainings = [group.state for group in groups]
            while not all(training.done for training in self.trainings):
                if guard.requested:
                    raise Interrupted
                for group in groups:
                    if group.error is not None:
                        raise group.error
                    if not group.state.done:
                        workers.submit(group)
                for _ in workers.collect():
                    self.trainings = [group.state for group in groups]
                if all(training.attempts.all() for training in self.trainings) and self._over():
                    break
        self._finish()

    def _over(self) -> bool:
        """Tell the display, and whether the time is."""
        how, trainings = self._how, self.trainings
        if self._reporter.wanted:
            steps = np.concatenate([training.made for training in trainings])
            rates = np.concatenate([training.rates(how.learning_rate) for training in trainings])
            done = min(how.max_steps + self._fit.last, int(steps.max()))
            self._reporter.update(done, {"learning_rate": rates}, float(steps.sum()))
        return self._end is not None and time.perf_counter() >= self._end

    def _finish(self) -> None:
        for training in self.trainings:
            if not training.done:
                self.ended_early = True
                if training.now is not None:
                    self._fit.keep(training, training.now)

    @property
    def position(self) -> Array:
        """The weights (C, P) of every member: its best, or those that its last steps led to."""
        found = [training.position for training in self.trainings]
        return found[0] if len(found) == 1 else self._fit.xp.concat(found, axis=0)

    def warn(self) -> None:
        """Warn of members that have failed in every attempt, or were lost in the steps behind."""
        if self.ended_early:
            return
        failed = self._chains([training.failed for training in self.trainings])
        lost = self._chains([training.lost for training in self.trainings])
        if failed:
            attempts = self._how.restarts + 1
            warn(
                f"[{self._fit.function}] expected a trained network as the start of every chain, "
                f"got none for chain {failed} in {attempts} attempt{'s' if attempts > 1 else ''}: "
                "the best weights that were met are the start. Is the target one that can be "
                "fitted?",
                FitWarning,
            )
        if lost:
            warn(
                f"[{self._fit.function}] expected finite numbers in the {self._fit.last:,} steps "
                f"on all rows, got others for chain {lost}: the weights before those steps are the "
                "start. A smaller learning_rate of rb.EnsembleStart may help, finish=0 leaves them "
                "out",
                FitWarning,
            )

    def _chains(self, places: list[npt.NDArray[np.intp]]) -> str:
        """Say which chains lie at these places of each training."""
        found = [training.ids[some] for training, some in zip(self.trainings, places, strict=True)]
        return ", ".join(str(i) for i in np.concatenate(found))

    def report(self) -> dict[str, Any]:
        """Return what was done."""
        steps, finished, attempts, best = (
            np.concatenate([getattr(training, name) for training in self.trainings])
            for name in ("steps", "finished", "attempts", "best")
        )
        return {
            "kind": "ensemble",
            **dataclasses.asdict(self._how),
            "rows_held_out": self._fit.held_rows,
            "steps": steps.tolist(),
            "finish_steps": finished.tolist(),
            "attempts": attempts.tolist(),
            "held_out_log_likelihood": [
                float(value) if np.isfinite(value) else None for value in best
            ],
        }


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
        """Whether a member is nowhere better than at its start (M,)."""
        return self.broken | ~self.improved


@dataclass
class _TrainingState:
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
        """The members that have not failed, those of `finish`."""
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


class _Ensemble:
    """How members are fitted: a function of (seed, chain) for each, in rounds; a job of workers."""

    def __init__(self, function: str, how: EnsembleStart, target: Any, seed: int) -> None:
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

    def begin(self, ids: npt.NDArray[np.uint32]) -> _TrainingState:
        """Return these members before their first step."""
        count = len(ids)
        return _TrainingState(
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

    def make(self, state: _TrainingState, end: int) -> tuple[_TrainingState, None]:
        """Fit for half a second, in a worker; no result depends on this time."""
        from ribbit.executor import SECONDS  # the worker has loaded it

        del end
        until = time.perf_counter() + SECONDS
        while not state.done:
            self.round(state, None)
            if time.perf_counter() >= until:
                break
        return state, None

    def round(self, training: _TrainingState, guard: InterruptGuard | None) -> None:
        """Make the steps of the active members up to the next look, and look.

        Phases: where they start; steps at each member's learning rate; who has improved, takes the
        next rate, or ends; what becomes of the attempt. Behind the last one: steps on all rows.
        """
        how = self.how
        if training.finish is not None:
            self._finish(training, training.finish, guard)
            return
        now = training.now = self._start(training, guard) if training.now is None else training.now
        if now.active.size and now.state.step < how.max_steps:
            steps = min(how.every, how.max_steps - now.state.step)
            self._move(now, steps, guard)
            now.active = now.active[~now.broken[now.active]]
            if now.active.size:
                training.steps[training.members[now.active]] += steps
                self._look(now, guard)
        if now.active.size and now.state.step < how.max_steps:
            return
        self.keep(training, now)
        failed, training.now = training.members[now.failed], None
        if failed.size and training.number < how.restarts:
            training.members, training.number = failed, training.number + 1
            return
        training.failed = failed
        training.done = not self.last or failed.size == len(training.ids)
        if not training.done:
            training.finish = self._begin_finish(training, guard)

    def _begin_finish(self, training: _TrainingState, guard: InterruptGuard | None) -> _Moving:
        """Put who has not failed where attempts have led, before steps on all rows."""
        # Orders of the rows of their own, which no attempt has.
        seed = (self.seed + (self.how.restarts + 1) * _ATTEMPT) % 2**64
        places = training.lasting
        start, ids = _rows(training.position, places), training.ids[places]
        return _Moving(
            state=self.steppers[-1].start(self.function, start, seed, ids, 0, guard),
            rate=np.full(len(places), len(_RATES)),
            broken=np.zeros(len(places), np.bool_),
            active=np.arange(len(places)),
        )

    def _finish(
        self, training: _TrainingState, last: _Moving, guard: InterruptGuard | None
    ) -> None:
        """Make steps on all rows; who leaves the finite numbers stays where they began."""
        if guard is not None and guard.requested:
            raise Interrupted
        self._move(last, min(self.how.every, self.last - last.state.step), guard)
        last.active = last.active[~last.broken[last.active]]
        if last.active.size and last.state.step < self.last:
            return
        training.lost = training.lasting[last.broken]
        places = training.lasting[last.active]
        _put(training.position, places, _rows(last.state.position, last.active))
        training.finished[places] = self.last
        training.done, training.finish = True, None

    def _start(self, training: _TrainingState, guard: InterruptGuard | None) -> _Attempt:
        """Put the members of an attempt on other weights than before."""
        seed = (self.seed + training.number * _ATTEMPT) % 2**64
        ids, count = training.ids[training.members], len(training.members)
        start = self.train.init(seed=seed, chains=ids.tolist())
        state = self.steppers[0].start(self.function, start, seed, ids, 0, guard)
        now = _Attempt(
            state=state,
            weights=self.xp.asarray(state.position, copy=True),
            peak=self._score(state.position, guard),
            improved=np.zeros(count, np.bool_),
            broken=np.zeros(count, np.bool_),
            waits=np.zeros(count, np.int64),
            rate=np.zeros(count, np.int64),
            active=np.arange(count),
        )
        self.keep(training, now)
        training.attempts[training.members] = training.number + 1
        return now

    def _look(self, now: _Attempt, guard: InterruptGuard | None) -> None:
        """See who has improved; who has not for long goes back, and on at the next rate."""
        active, position = now.active, now.state.position
        value = np.full(len(now.peak), -np.inf)
        value[active] = self._score(_rows(position, active), guard)
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

    def keep(self, training: _TrainingState, now: _Attempt) -> None:
        """Note the best weights of an attempt where they are better than those of earlier ones."""
        better = np.flatnonzero(~(now.peak <= training.best[training.members]))
        _put(training.position, training.members[better], _rows(now.weights, better))
        training.best[training.members[better]] = now.peak[better]

    def _score(self, position: Array, guard: InterruptGuard | None) -> npt.NDArray[np.float64]:
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

    The choice depends on (seed, N) alone, so that all chains have the same. If there are very few
    rows, none is held out, and all give the score.
    """
    rows = int(target.num_rows)
    if rows < _FEWEST_ROWS:
        return target, target, 0
    held = min(max(rows // 10, min(_FEWEST_HELD, rows // 4)), _MOST_HELD)
    order = random_numbers.epoch_rows(
        rows, seed=seed, chain=0, epoch=_HELD_OUT_EPOCH, begin=0, count=rows
    )
    return target.subset(np.sort(order[held:])), target.subset(np.sort(order[:held])), held
