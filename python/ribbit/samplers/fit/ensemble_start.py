"""Starts of chains at trained networks: a short fit of one member per chain, stopped early.

Shapes: C chains, P parameters, N rows.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
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
    ... )  # doctest: +SKIP
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
                theta, report = self.fitted(name, target, ids, seed, guard, progress, None, 4)
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
        fit = _Fit(function, self, target, ids, seed, guard, end)
        with open_progress(
            progress, total=self.max_steps, chains=len(ids), title="ensemble start", fit=True
        ) as reporter:
            fit.run(reporter, stacklevel)
        return fit.position, fit.report()


class _Fit:
    """One fit of all members: who is where, and how good it was."""

    def __init__(
        self,
        function: str,
        how: EnsembleStart,
        target: Any,
        ids: npt.NDArray[np.uint32],
        seed: int,
        guard: InterruptGuard,
        end: float | None,
    ) -> None:
        self.function, self.how, self.ids, self.seed = function, how, ids, seed
        self.guard, self.end = guard, end
        self.xp = Density(target, function=function).xp
        self.train, self.held, self.held_rows = _shares(target, seed)
        density = Density(self.train, function=function)
        rows = int(self.train.num_rows)
        self.steppers = [
            Stepper(
                function,
                density,
                Rule("adam", prior=1.0),
                step_size=how.learning_rate * factor,
                batch_size=min(how.batch_size, rows),
                schedule=None,
            )
            for factor in _RATES
        ]
        count = len(ids)
        self.position = density.xp.zeros((count, density.dim), dtype=density._dtype)
        self.best = np.full(count, np.nan)  # log likelihood per row held out; NaN: not known yet
        self.steps = np.zeros(count, np.int64)  # that each member made in all
        self.attempts = np.zeros(count, np.int64)
        self.ended_early = False

    def run(self, reporter: Any, stacklevel: int) -> None:
        """Train all members, then the failed ones again; `stacklevel` of the warning about them."""
        todo = np.arange(len(self.ids))
        for attempt in range(self.how.restarts + 1):
            failed = self._attempt(todo, attempt, reporter)
            if failed.size == 0 or self.ended_early:
                break
            todo = failed
        if failed.size:
            warn(
                f"[{self.function}] expected a trained network as the start of every chain, got "
                f"none for chain {', '.join(str(i) for i in self.ids[failed])} in "
                f"{attempt + 1} attempt{'s' if attempt else ''}: the best weights that were met "
                "are the start. Is the target one that can be fitted?",
                stacklevel=stacklevel,
                category=FitWarning,
            )

    def _attempt(
        self, members: npt.NDArray[np.intp], attempt: int, reporter: Any
    ) -> npt.NDArray[np.intp]:
        """Train `members` from other weights than before; those that failed.

        Phases: where they start; rounds of steps at each member's learning rate; who has improved,
        takes the next rate, or ends.
        """
        how = self.how
        seed = (self.seed + attempt * _ATTEMPT) % 2**64
        start = self.train.init(seed=seed, chains=self.ids[members].tolist())
        state = self.steppers[0].start(self.function, start, seed, self.ids[members], 0, self.guard)
        count = len(members)
        peak = self._judge(state.position)  # of this attempt
        weights = self.xp.asarray(state.position, copy=True)  # there
        self._keep(members, weights, peak)
        self.attempts[members] = attempt + 1
        improved, broken = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        waits, rate = np.zeros(count, np.int64), np.zeros(count, np.int64)
        active = np.arange(count)
        while active.size and state.step < how.max_steps:
            steps = min(how.every, how.max_steps - state.step)
            state = self._round(state, active, rate, steps, broken)
            active = active[~broken[active]]
            if active.size == 0:
                break
            value = np.full(count, -np.inf)
            value[active] = self._judge(_rows(state.position, active))
            self.steps[members[active]] += steps
            risen = np.flatnonzero(value > peak)
            improved[risen] = True
            peak[risen] = value[risen]
            _put(weights, risen, _rows(state.position, risen))
            waits = np.where(value > -np.inf, waits + 1, waits)
            waits[risen] = 0
            calm = active[waits[active] >= how.patience]
            rate[calm] += 1
            waits[calm] = 0
            _put(state.position, calm, _rows(weights, calm))  # the next rate goes on from the best
            active = active[rate[active] < len(self.steppers)]
            if reporter.wanted:
                rates = np.full(len(self.ids), how.learning_rate)
                rates[members] *= _RATES[np.minimum(rate, len(_RATES) - 1)]
                done = min(how.max_steps, int(self.steps.max()))
                reporter.update(done, {"step_size": rates}, float(self.steps.sum()))
            if self.end is not None and time.perf_counter() >= self.end:
                self.ended_early = True
                break
        self._keep(members, weights, peak)
        failed = broken | ~improved
        return members[:0] if self.ended_early else members[failed]

    def _round(
        self,
        state: StochasticState,
        active: npt.NDArray[np.intp],
        rate: npt.NDArray[np.int64],
        steps: int,
        broken: npt.NDArray[np.bool_],
    ) -> StochasticState:
        """Make `steps` steps of the active members; marks those that left the finite numbers."""
        made = dataclasses.replace(
            state,
            position=self.xp.asarray(state.position, copy=True),
            first_moment=self.xp.asarray(state.first_moment, copy=True),
            second_moment=self.xp.asarray(state.second_moment, copy=True),
            step=state.step + steps,
        )
        for level in np.unique(rate[active]):
            places = active[rate[active] == level]
            while places.size:
                try:
                    part, _ = self.steppers[level].advance(_some(state, places), steps, self.guard)
                except NonFiniteError as error:  # this one alone: the others make theirs again
                    bad = state.chains[places] == error.chain
                    broken[places[bad]] = True
                    places = places[~bad]
                    continue
                for name in _MOVED:
                    _put(getattr(made, name), places, getattr(part, name))
                break
        return made

    def _keep(
        self,
        members: npt.NDArray[np.intp],
        weights: Array,
        value: npt.NDArray[np.float64],
    ) -> None:
        """Note weights (members, P) where they are better than those of earlier attempts."""
        better = np.flatnonzero(~(value <= self.best[members]))
        _put(self.position, members[better], _rows(weights, better))
        self.best[members[better]] = value[better]

    def _judge(self, position: Array) -> npt.NDArray[np.float64]:
        """Log likelihood per row held out (C,); -inf where it is not a number."""
        if self.guard.requested:
            raise Interrupted
        value = np.asarray(to_host(self.held.log_likelihood(position)), np.float64)
        known: npt.NDArray[np.float64] = np.where(np.isnan(value), -np.inf, value)
        return known / int(self.held.num_rows)

    def report(self) -> dict[str, Any]:
        """Return what was done."""
        return {
            "kind": "ensemble",
            **dataclasses.asdict(self.how),
            "rows_held_out": self.held_rows,
            "steps": self.steps.tolist(),
            "attempts": self.attempts.tolist(),
            "held_out_log_likelihood": [
                float(value) if np.isfinite(value) else None for value in self.best
            ],
        }


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
