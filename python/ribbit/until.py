"""The monitor of a run, and the rule that ends a run when its draws have converged.

Shapes: C chains, D draws, P parameters, M quantities.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import from_host, host_dtype, namespace, to_host
from ribbit.density import Density
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array
from ribbit.results.monitor import KEPT, LEAST, Monitor
from ribbit.results.outcome import (
    Evidence,
    cannot_be_met,
    evidence_of_values,
    has_hidden,
    outcome_of,
)
from ribbit.results.running import RunningPrediction, inputs
from ribbit.results.summary import CONVERGED, PREDICTIONS

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Converged", "Watch", "counts"]

_MOST = 100_000  # draws per chain without max_draws
_FIRST = 20  # draws before the first look, at least
_GROWTH = 4  # a look comes when there are a quarter more draws
_SURE = 0.6  # no look before this share of the draws that ess asks for
_LOOKED_AT, _SLACK = 1024, 0.02  # draws of all chains of the quick look; what R-hat may be more
_PENDING = 1 << 20  # bytes of positions that wait to be predicted with


@dataclass(frozen=True, eq=False)
class Converged:
    """A rule for ``sample(until=...)``: sample until the chains agree.

    The run ends when :meth:`ribbit.Draws.summary` says "converged" or "predictions converged,
    weights did not", and R-hat and effective draws (ESS) reach the limits below. The defaults are
    from Vehtari et al. (2021, Bayesian Analysis 16, 667-718). Limits looser than R-hat 1.05 and 100
    effective draws have no effect. The run checks after fixed numbers of draws, each a quarter
    larger, so that the same call ends after the same draw. Frequent checks raise the chance of a
    lucky pass; `ess` guards against it.

    Parameters
    ----------
    rhat : float
        Largest R-hat of any monitored quantity (rank-normalised, split chains; nested if chains
        shared starts). Above 1.
    ess : float
        Smallest number of effective draws, bulk or tail, of any monitored quantity, in all chains
        together.
    at : (N, ...) array, optional
        Inputs whose predictions are monitored: all if they give up to 32 values, else evenly spaced
        ones. Default: some training inputs and points between them; without data, inputs of
        ``predict_at``; for a density without predictions, up to 128 parameters.

    Raises
    ------
    TypeError, ValueError
        For limits that are not numbers or out of range.

    Examples
    --------
    >>> import numpy as np
    >>> import ribbit as rb
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> rule = rb.Converged(rhat=1.02, ess=200, at=x)
    >>> draws = rb.HMC(target).sample(until=rule, max_draws=5_000, progress=False)
    >>> draws.settings["stopped"]["reason"]
    'converged'
    """

    rhat: float = 1.01
    ess: float = 400
    at: Any = None

    def __post_init__(self) -> None:
        rhat = checks.real("Converged", "rhat", self.rhat)
        if not rhat > 1.0:
            raise ValueError(f"[Converged] expected rhat > 1, got {rhat!r}")
        object.__setattr__(self, "rhat", rhat)
        object.__setattr__(self, "ess", checks.positive("Converged", "ess", self.ess))
        # A frame stays one until it is known in which order a target has the columns.
        if self.at is not None and checks.column_names("Converged", "at", self.at) is None:
            object.__setattr__(self, "at", inputs("Converged", self.at, None))


def counts(
    function: str, num_draws: int | None, until: object, max_draws: int | None
) -> tuple[int | None, int]:
    """Return the draws before the first look, None for the rule's own, and the most there may be.

    Without a rule both are `num_draws`.
    """
    if until is None:
        if max_draws is not None:
            raise ValueError(f"[{function}] expected until= together with max_draws, got none")
        if num_draws is None:
            raise TypeError(
                f"[{function}] expected num_draws, or until=rb.Converged(...), got neither"
            )
        count = checks.integer(function, "num_draws", num_draws, minimum=1, maximum=2**39)
        return count, count
    if not isinstance(until, Converged):
        raise TypeError(
            f"[{function}] expected until as rb.Converged(...), got {checks.summary(until)}"
        )
    most = _MOST if max_draws is None else max_draws
    most = checks.integer(function, "max_draws", most, minimum=1, maximum=2**39)
    if num_draws is None:
        return None, most
    first = checks.integer(function, "num_draws", num_draws, minimum=1, maximum=2**39)
    if first > most:
        raise ValueError(
            f"[{function}] expected num_draws <= max_draws = {most} (with until= it is the least "
            f"number of draws), got {first}"
        )
    return first, most


class Reached(NamedTuple):
    """The largest R-hat, of some quantities, and the smallest number of effective draws."""

    met: bool
    rhat: float
    ess: float
    of: str


class Watch:
    """Takes the draws of one run and keeps what is monitored; with a rule it also checks them.

    The cost does not grow with the draws: of more than some thousand every second is left out,
    again and again. A look at a thousand draws precedes the look at all. `running`: its inputs are
    monitored if the target has no data. `origin`: which chains shared a start.
    """

    def __init__(
        self,
        function: str,
        rule: Converged | None,
        density: Density,
        theta: Array,
        first: int | None,
        most: int,
        *,
        running: RunningPrediction | None,
        origin: dict[str, Any] | None,
        guard: InterruptGuard,
    ) -> None:
        self.rule, self.most = rule, most
        self.last: Reached | None = None
        self.at = 0  # draws of the last look
        self._chains = theta.shape[0]
        self.next, self._cap = sys.maxsize, KEPT
        if rule is not None:
            first = max(_FIRST, math.ceil(rule.ess / self._chains)) if first is None else first
            self.next = min(most, first)
            self._cap = max(KEPT, 8 * math.ceil(rule.ess))
        self._cap = max(self._cap, LEAST * self._chains)
        self._pending: list[Array] = []  # (C, K, P) each
        self._waiting = 0  # bytes
        self._seen, self._every = 0, 1
        self._kept: list[npt.NDArray[np.float64]] = []  # (C, K, M) each
        at = None if rule is None else rule.at
        guard.begin_foreign()
        try:
            shown = callable(getattr(density.target, "inputs", None))
            if at is None and running is not None and not shown:
                at = running.x
            self._monitor = Monitor(function, density.target, at, theta)
            self._counts = self._monitor.counts(theta)
        finally:
            guard.foreign = False
        if rule is not None:
            self._check(function, rule, origin)

    def _check(self, function: str, rule: Converged, origin: dict[str, Any] | None) -> None:
        """Raise for a rule that no run of these chains can meet."""
        if rule.at is not None and self._monitor.x is None:
            raise TypeError(
                f"[{function}] expected a target with predictions for Converged(at=...), got one "
                "without"
            )
        name = "weights" if self._monitor.x is None else "predictions"
        known = {name: np.zeros((self._chains, 1, 1))}
        hidden = has_hidden(self._monitor.predictive)
        found = cannot_be_met(Evidence(known, {}, {"start": origin}, hidden=hidden))
        if found is not None:
            raise ValueError(f"[{function}] until= cannot be met: {found}")

    @property
    def met(self) -> bool:
        """Whether the last look found what was asked for."""
        return self.last is not None and self.last.met

    @property
    def expected(self) -> int:
        """How many draws it may take, for a display."""
        if self.rule is None:
            return self.most
        if self.last is None or math.isnan(self.last.ess) or self.met:
            return self.at if self.met else self.next
        guess = self.at * self.rule.ess / max(self.last.ess, 1.0)
        return max(self.next, min(self.most, math.ceil(guess)))

    @property
    def monitored(self) -> npt.NDArray[np.float64] | None:
        """Monitored quantities of all draws so far, (C, D', M); None while some wait."""
        kept = self._kept
        return np.concatenate(kept, axis=1) if kept and not self._pending else None

    def settings(self) -> dict[str, Any]:
        """Return what is monitored, and the rule, as plain values."""
        found = {"monitored": {**self._counts, "every": self._every, **self._monitor.describe()}}
        if self.rule is not None:
            found["until"] = {"rhat": self.rule.rhat, "ess": self.rule.ess}
        return found

    def take(self, positions: Array) -> None:
        """Take draws (C, K, P), in memory that may change later."""
        count = positions.shape[1]
        part = positions[:, -self._seen % self._every : count : self._every, :]
        self._seen += count
        if part.shape[1]:
            part = namespace(positions).asarray(part, copy=True)
            self._pending.append(part)
            self._waiting += int(np.prod(part.shape)) * host_dtype(part).itemsize

    def due(self, kept: int) -> bool:
        """Whether `look` has something to do."""
        return kept >= self.next or self._waiting >= _PENDING

    def owes(self, kept: int) -> bool:
        """Whether a look that was due at these draws, of a run that goes on, did not come about."""
        return self.at < kept and kept >= self.next

    def look(
        self,
        kept: int,
        record: Any,
        settings: dict[str, Any],
        guard: InterruptGuard,
        confirm: Callable[[], bool],
        *,
        last: bool = False,
    ) -> None:
        """Predict with the draws that wait; check the rule when it is time, or the run ends.

        `settings` describe the draws; `confirm` asks the summary itself, once all else is as it
        should be.
        """
        self.predict(guard)
        due = kept >= self.next
        if self.rule is None or not (due or last):
            return
        stats = record.statistics(kept)  # of a Record that grows, or is on the disk
        found = None if last or kept >= self.most else self._first_look(stats, settings)
        if found is None:
            evidence = self._evidence(stats, settings)
            found = self._reached(evidence, self.rule.rhat, self.rule.ess)
        if found.met:
            record.upto(kept)  # joins blocks, which Ctrl-C must not cut in two
            guard.begin_foreign()
            try:
                found = found._replace(met=confirm())
            finally:
                guard.foreign = False
        self.last, self.at = found, kept
        if due:  # else a run that goes on from a folder looks when it would have anyway
            self.next = min(self.most, self._next(kept, found))

    def _next(self, kept: int, found: Reached) -> int:
        """Return the draws of the next look: a quarter more, again and again while in vain."""
        assert self.rule is not None
        vain = 0.0
        if not found.met and found.ess > 0.0:
            vain = min(4.0, _SURE * self.rule.ess / found.ess) * kept
        following = kept
        while following == kept or following < vain:
            following += max(1, -(-following // _GROWTH))
        return following

    def pack(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return what a checkpoint must hold: plain values, and arrays."""
        plain = {
            "seen": self._seen,
            "every": self._every,
            "next": self.next,
            "at": self.at,
            "last": None if self.last is None else list(self.last),
        }
        arrays = {}
        if self._kept:
            arrays["kept"] = np.concatenate(self._kept, axis=1)
        if self._pending:
            arrays["pending"] = np.concatenate([to_host(p) for p in self._pending], axis=1)
        return plain, arrays

    def restore(
        self, plain: dict[str, Any], arrays: dict[str, npt.NDArray[Any]], xp: ModuleType
    ) -> None:
        """Go on from `pack`."""
        self._seen, self._every = int(plain["seen"]), int(plain["every"])
        self.next, self.at = int(plain["next"]), int(plain["at"])
        self.last = None if plain["last"] is None else Reached(*plain["last"])
        self._kept = [arrays["kept"]] if "kept" in arrays else []
        self._pending = [from_host(xp, arrays["pending"])] if "pending" in arrays else []
        self._waiting = sum(p.nbytes for p in arrays.get("pending", np.zeros((0, 1))))

    def _first_look(self, stats: dict[str, Array], settings: dict[str, Any]) -> Reached | None:
        """Return what few draws show if it is not enough yet; None: all draws must be checked.

        Limits are less strict, because R-hat of few draws is noisy.
        """
        assert self.rule is not None
        evidence = self._evidence(stats, settings, most=_LOOKED_AT)
        least = min(self.rule.ess, _LOOKED_AT) / 4
        found = self._reached(evidence, self.rule.rhat + _SLACK, least, hasty=True)
        return None if found.met or math.isnan(found.rhat) else found

    def _evidence(
        self, stats: dict[str, Array], settings: dict[str, Any], most: int | None = None
    ) -> Evidence:
        """Return what the draws show; most: draws of all chains to look at."""
        values, target = self.monitored, self._monitor.predictive
        return evidence_of_values(values, self._counts, stats, settings, target, most=most)

    def _reached(
        self, evidence: Evidence, rhat: float, ess: float, *, hasty: bool = False
    ) -> Reached:
        """Check the outcome and the limits of a rule; hasty: R-hat first."""
        of, worst = evidence.worst
        if hasty and not worst <= rhat:
            return Reached(False, worst, math.nan, of)
        least = evidence.least[1]
        met = worst <= rhat and least >= ess
        if met and not hasty:
            met = outcome_of(evidence) in (CONVERGED, PREDICTIONS)
        return Reached(met, worst, least, of)

    def predict(self, guard: InterruptGuard) -> None:
        """Predict with the draws that wait; all of them count, or none."""
        if not self._pending:
            return
        xp = namespace(self._pending[0])
        guard.begin_foreign()
        try:
            theta = xp.concat(self._pending, axis=1)
            flat = xp.reshape(theta, (-1, theta.shape[2]))
            values = self._monitor.values(flat).reshape((*theta.shape[:2], -1))
        finally:
            guard.foreign = False
        kept = [*self._kept, values]
        while sum(part.shape[1] for part in kept) * self._chains > 2 * self._cap:
            kept, self._every = [np.concatenate(kept, axis=1)[:, ::2]], 2 * self._every
        self._kept = kept  # before nothing is pending: another thread may look
        self._pending, self._waiting = [], 0
