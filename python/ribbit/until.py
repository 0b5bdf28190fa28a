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

from ribbit._arrays import checks, overrides
from ribbit._arrays.namespace import from_host, host_dtype, namespace, to_host
from ribbit.density import Density
from ribbit.interrupt import InterruptGuard, foreign
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
from ribbit.sinks import Sink

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Converged", "ConvergenceMonitor", "counts"]

_MAX_DRAWS = 100_000  # per chain without max_draws
_FIRST = 20  # draws before the first check, at least
_GROWTH = 4  # a check comes when there are a quarter more draws
_SURE = 0.6  # no check before this share of the draws that ess asks for
_QUICK, _SLACK = 1024, 0.02  # draws of all chains of the quick check; what R-hat may be more
_BATCH = 1 << 22  # bytes of positions that are predicted with together


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
    """Return the draws before the first check, None for the rule's own, and the largest number."""
    if until is None and max_draws is not None:
        raise ValueError(f"[{function}] expected until= together with max_draws, got none")
    if until is not None and not isinstance(until, Converged):
        got = checks.summary(until)
        raise TypeError(f"[{function}] expected until as rb.Converged(...), got {got}")
    first = num_draws
    if first is not None:
        first = checks.integer(function, "num_draws", first, minimum=1, maximum=2**39)
    if until is None:
        if first is None:
            expected = "num_draws, or until=rb.Converged(...)"
            raise TypeError(f"[{function}] expected {expected}, got neither")
        return first, first
    most = _MAX_DRAWS if max_draws is None else max_draws
    most = checks.integer(function, "max_draws", most, minimum=1, maximum=2**39)
    if first is not None and first > most:
        expected = f"num_draws <= max_draws = {most} (with until= it is the least number of draws)"
        raise ValueError(f"[{function}] expected {expected}, got {first}")
    return first, most


class Check(NamedTuple):
    """The largest R-hat, of some quantities, and the smallest number of effective draws."""

    met: bool
    rhat: float
    ess: float
    of: str


class ConvergenceMonitor:
    """Keeps the monitored quantities of a run; with a rule it checks if they have converged."""

    # Batches and checks depend on the number of draws alone, not on time: so does the rounding of
    # a user's predictions.

    def __init__(
        self,
        function: str,
        rule: Converged | None,
        density: Density,
        theta: Array,
        first: int | None,
        max_draws: int,
        *,
        running: RunningPrediction | None,
        origin: dict[str, Any] | None,
        guard: InterruptGuard,
    ) -> None:
        """Begin with chains at theta (C, P); `origin` says which chains shared a start."""
        self.rule, self.max_draws = rule, max_draws
        self.last_check: Check | None = None
        self.checked_at, self.check_at = 0, sys.maxsize  # draws of the last check and the next
        self._chains = theta.shape[0]
        self._cap = max(KEPT, LEAST * self._chains)
        if rule is not None:
            first = max(_FIRST, math.ceil(rule.ess / self._chains)) if first is None else first
            self.check_at = min(max_draws, first)
            self._cap = max(self._cap, 8 * math.ceil(rule.ess))
        self._seen, self._every = 0, 1
        fits = _BATCH // (math.prod(theta.shape) * host_dtype(theta).itemsize)
        self._batch = max(1, min(fits, self._cap // self._chains))
        self._waiting: list[Array] = []  # (C, K, P) each, `_batch` draws together at most
        self._count = 0  # draws that wait
        self._kept: list[npt.NDArray[np.float64]] = []  # (C, K, M) each
        # For the first draws that still wait. A reader of the folder of a resumed run has these.
        self._partial: npt.NDArray[np.float64] | None = None
        at = None if rule is None else rule.at
        with foreign(guard):
            shown = callable(getattr(density.target, "inputs", None))
            if at is None and running is not None and not shown:  # the target has no data
                at = running.x
            if at is not None or density.monitor is None:
                monitor = Monitor(function, density.target, at, theta)
                density.monitor = monitor if at is None else None
            else:
                monitor = density.monitor
            self._monitor: Monitor = monitor
            self._counts = monitor.counts(theta)
        if rule is None:
            return
        if rule.at is not None and self._monitor.x is None:
            expected = "a target with predictions for Converged(at=...)"
            raise TypeError(f"[{function}] expected {expected}, got one without")
        name = "weights" if self._monitor.x is None else "predictions"
        known = {name: np.zeros((self._chains, 1, 1))}
        hidden = has_hidden(self._monitor.predictive)
        found = cannot_be_met(Evidence(known, {}, {"start": origin}, hidden=hidden))
        if found is not None:
            raise ValueError(f"[{function}] until= cannot be met: {found}")

    @property
    def met(self) -> bool:
        """Whether the last check found what the rule asks for."""
        return self.last_check is not None and self.last_check.met

    @property
    def expected_draws(self) -> int:
        """Number of draws that the run takes as far as one can tell, for a display."""
        last = self.last_check
        if self.rule is None or last is None or math.isnan(last.ess):
            return min(self.max_draws, self.check_at)
        if last.met:
            return self.checked_at
        guess = math.ceil(self.checked_at * self.rule.ess / max(last.ess, 1.0))
        return max(self.check_at, min(self.max_draws, guess))

    @property
    def monitored(self) -> npt.NDArray[np.float64] | None:
        """Monitored quantities of all draws so far, (C, D', M); None while some wait."""
        if self._unpredicted() or not (parts := self._predicted()):
            return None
        return np.concatenate(self._thinned(parts)[0], axis=1)

    def _unpredicted(self) -> int:
        """Return how many of the draws that wait have no predictions yet."""
        return self._count - (0 if self._partial is None else self._partial.shape[1])

    def _predicted(self) -> list[npt.NDArray[np.float64]]:
        return self._kept if self._partial is None else [*self._kept, self._partial]

    def _thinned(
        self, parts: list[npt.NDArray[np.float64]]
    ) -> tuple[list[npt.NDArray[np.float64]], int]:
        """Return every second draw, again and again, until they are few; and the draws per kept."""
        every = self._every
        while sum([part.shape[1] for part in parts]) * self._chains > 2 * self._cap:
            parts, every = [np.concatenate(parts, axis=1)[:, ::2]], 2 * every
        return parts, every

    def settings(self) -> dict[str, Any]:
        """Return what is monitored, and the rule, as plain values."""
        every = self._thinned(self._predicted())[1]
        found = {"monitored": {**self._counts, "every": every, **self._monitor.describe()}}
        if self.rule is not None:
            found["until"] = {"rhat": self.rule.rhat, "ess": self.rule.ess}
        return found

    def append(self, positions: Array) -> None:
        """Take draws (C, K, P), in memory that may change later."""
        count = positions.shape[1]
        part = positions[:, -self._seen % self._every : count : self._every, :]
        self._seen += count
        if part.shape[1]:
            self._waiting.append(namespace(positions).asarray(part, copy=True))
            self._count += part.shape[1]

    def room(self, count: int) -> int:
        """Return how many draws may follow `count` of them until `check` has something to do."""
        free = self._batch - self._count
        next_one = -(-self._seen // self._every)
        left = (next_one + free - 1) * self._every + 1 - self._seen if free else 0
        return min(self.check_at - count, left)

    def due(self, count: int) -> bool:
        """Whether `check` has something to do after so many draws."""
        return self.checked_at < count >= self.check_at or self._count == self._batch

    def check(
        self,
        count: int,
        sink: Sink,
        settings: dict[str, Any],
        guard: InterruptGuard,
        confirm: Callable[[], bool],
        *,
        last: bool = False,
    ) -> None:
        """Predict with the draws that wait, and check the rule when it is time, or the run ends."""
        due = self.checked_at < count >= self.check_at
        self.predict(guard, partial=not self.due(count))
        if self.rule is None or not (due or last):
            return
        stats, rule = sink.stats(count), self.rule
        found = None
        if not last and count < self.max_draws:
            found = self._examine(rule, stats, settings, quick=True)
        if found is None or found.met or math.isnan(found.rhat):
            found = self._examine(rule, stats, settings, quick=False)
        if found.met:
            sink.positions(count)  # joins blocks, which Ctrl-C must not cut in two
            with foreign(guard):
                found = found._replace(met=confirm())
        self.last_check, self.checked_at = found, count
        if due:  # else a run that resumes from a folder checks when it would have anyway
            vain = 0.0 if found.met or not found.ess > 0.0 else _SURE * rule.ess / found.ess
            following = count
            while following == count or following < min(4.0, vain) * count:
                following += max(1, -(-following // _GROWTH))
            self.check_at = min(self.max_draws, following)

    def _examine(
        self, rule: Converged, stats: dict[str, Array], settings: dict[str, Any], *, quick: bool
    ) -> Check:
        """Compare the draws with the limits, and with the summary's outcome."""
        limit, least, most = rule.rhat, rule.ess, None
        if quick:  # looser limits, because R-hat of few draws is noisy
            limit, least, most = limit + _SLACK, min(least, _QUICK) / 4, _QUICK
        target = self._monitor.predictive
        evidence = evidence_of_values(
            self.monitored, self._counts, stats, settings, target, most=most
        )
        of, rhat = evidence.worst
        if quick and not rhat <= limit:
            return Check(False, rhat, math.nan, of)
        ess = evidence.least[1]
        met = rhat <= limit and ess >= least
        if met and not quick:
            met = outcome_of(evidence) in (CONVERGED, PREDICTIONS)
        return Check(met, rhat, ess, of)

    def predict(self, guard: InterruptGuard, *, partial: bool = True) -> None:
        """Predict with the waiting draws; with `partial` also before the batch is complete."""
        if not self._waiting or (partial and not self._unpredicted()):
            return
        with foreign(guard):
            values = self._values()
        if partial:
            self._partial = values
            return
        kept, every = self._thinned([*self._kept, values])
        # In this order: another thread may ask for `monitored`, and gets None in between.
        self._partial, self._kept, self._every, self._waiting = None, kept, every, []
        self._count = 0

    def _values(self) -> npt.NDArray[np.float64]:
        """Return the monitored quantities (C, K, M) of the waiting draws."""
        xp = namespace(self._waiting[0])
        theta = xp.concat(self._waiting, axis=1)
        flat = xp.reshape(theta, (-1, theta.shape[2]))
        return self._monitor.values(flat).reshape((*theta.shape[:2], -1))

    def pack(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return what a checkpoint must hold: plain values, and arrays."""
        # Predictions of the core are quick enough for every checkpoint.
        target = self._monitor.predictive
        core = overrides.own(target, "predictive_moments", ("predictive",))
        quick = self._monitor.x is None or core is not None
        if self._waiting and self._partial is None and quick:
            self._partial = self._values()  # for readers of the folder
        plain = {
            "seen": self._seen,
            "every": self._every,
            "next": self.check_at,
            "at": self.checked_at,
            "last": None if self.last_check is None else list(self.last_check),
            "partial": 0 if self._partial is None else self._partial.shape[1],
        }
        parts = {"kept": self._predicted(), "pending": [to_host(part) for part in self._waiting]}
        return plain, {name: np.concatenate(own, axis=1) for name, own in parts.items() if own}

    def restore(
        self, plain: dict[str, Any], arrays: dict[str, npt.NDArray[Any]], xp: ModuleType
    ) -> None:
        """Restore what `pack` returned."""
        self._seen, self._every = int(plain["seen"]), int(plain["every"])
        self.check_at, self.checked_at = int(plain["next"]), int(plain["at"])
        self.last_check = None if plain["last"] is None else Check(*plain["last"])
        self._kept = [arrays["kept"]] if "kept" in arrays else []
        if partial := int(plain["partial"]):
            whole = arrays["kept"]
            self._kept, self._partial = [whole[:, :-partial]], whole[:, -partial:]
        self._waiting = [from_host(xp, arrays["pending"])] if "pending" in arrays else []
        self._count = sum([part.shape[1] for part in self._waiting])
