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

from ribbit._arrays import checks, overrides
from ribbit._arrays.threads import Interrupted
from ribbit._arrays.warning import warn
from ribbit.density import Density
from ribbit.errors import FitWarning
from ribbit.interrupt import InterruptGuard
from ribbit.progress import Progress, ProgressOption, check_progress
from ribbit.protocols import Array
from ribbit.results.fits import EnsembleFit
from ribbit.samplers.fit.members import Climb, Members
from ribbit.workers import Call, Workers

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["EnsembleStart"]


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
            predictive=target if callable(getattr(target, "predictive", None)) else None,
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
            After which members stay where they are; where steps on all rows began, if any has.
        executor : object with submit, or callable that makes one, optional
            Whose workers fit the members.
        finish : int
            Steps on all rows at the end, where these settings have no number.

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
        overrides.needed(function, target, "advance")
        # Of what is integrated out a member has a value of its own: starts leave it out again.
        target = getattr(target, "joint", target)
        wanted = ("advance", "subset", "log_likelihood", "init")
        if not all(callable(getattr(target, name, None)) for name in wanted):
            raise TypeError(
                f"[{function}] expected a target with rows of data for init='ensemble', such as "
                f"Posterior, got {checks.summary(target)}: give init as positions"
            )
        end = None if max_seconds is None else time.perf_counter() + max_seconds
        how = self if self.finish is not None else dataclasses.replace(self, finish=finish)
        fit = Members(function, how, target, seed)
        with Progress(
            progress,
            total=self.max_steps + fit.last,
            chains=len(ids),
            title="ensemble start",
            fit=True,
        ) as reporter:
            watch = _Watch(how, fit, reporter, end)
            if executor is None:
                watch.run(ids, guard)
            else:
                watch.run_elsewhere(ids, guard, executor)
            watch.warn()
        return watch.position, watch.report()


class _Watch:
    """Members on their way, here or with workers, seen by the display and by the clock."""

    def __init__(self, how: EnsembleStart, fit: Members, reporter: Any, end: float | None) -> None:
        self._how, self._fit, self._reporter, self._end = how, fit, reporter, end
        self.climbs: list[Climb] = []
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
        how, climbs = self._how, self.climbs
        if self._reporter.wanted:
            steps = np.concatenate([climb.made for climb in climbs])
            rates = np.concatenate([climb.rates(how.learning_rate) for climb in climbs])
            done = min(how.max_steps + self._fit.last, int(steps.max()))
            self._reporter.update(done, {"learning_rate": rates}, float(steps.sum()))
        return self._end is not None and time.perf_counter() >= self._end

    def _finish(self) -> None:
        for climb in self.climbs:
            if not climb.done:
                self.ended_early = True
                if climb.now is not None:
                    self._fit.keep(climb, climb.now)

    @property
    def position(self) -> Array:
        """The weights (C, P) of every member: its best, or those that its last steps led to."""
        found = [climb.position for climb in self.climbs]
        return found[0] if len(found) == 1 else self._fit.xp.concat(found, axis=0)

    def warn(self) -> None:
        """Warn of members that have failed in every attempt, or were lost in the steps behind."""
        if self.ended_early:
            return
        failed = self._chains([climb.failed for climb in self.climbs])
        lost = self._chains([climb.lost for climb in self.climbs])
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
        """Say which chains lie at these places of each climb."""
        found = [climb.ids[some] for climb, some in zip(self.climbs, places, strict=True)]
        return ", ".join(str(i) for i in np.concatenate(found))

    def report(self) -> dict[str, Any]:
        """Return what was done."""
        steps, finished, attempts, best = (
            np.concatenate([getattr(climb, name) for climb in self.climbs])
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
