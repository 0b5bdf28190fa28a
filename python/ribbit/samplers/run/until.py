"""Runs that go on until their draws have converged: the rule, and who looks.

Shapes: C chains, D draws, P parameters, M predictions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import from_host, namespace, to_host
from ribbit.protocols import Array
from ribbit.results import verdicts
from ribbit.results.modes import superchains_of
from ribbit.results.running import RunningPrediction, inputs
from ribbit.results.stopping import Reached, reached
from ribbit.results.store.run_store import StoredRecord
from ribbit.samplers.run.growing import GrowingRecord
from ribbit.samplers.run.interrupt import InterruptGuard
from ribbit.samplers.run.target import Density

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Converged", "Watch", "counts"]

_MOST = 100_000  # draws per chain, where nobody says
_FIRST = 20  # draws before the first look, at least
_GROWTH = 4  # a look comes when draws are a fourth more;
_SURE = 0.6  # none before this share of the draws that the effective sample size asks for
_QUANTITIES, _QUICK = 32, 8  # predictions that are judged, and those of the quick look
_TRACED = 8192  # draws of all chains of which they are kept, at least
_LOOKED_AT, _SLACK = 1024, 0.02  # draws of all chains of the quick look; what R-hat may be more
_PENDING = 1 << 24  # bytes of positions that wait to be predicted with


@dataclass(frozen=True, eq=False)
class Converged:
    """A rule for ``sample(until=...)``: go on until the chains agree.

    Judged as :meth:`ribbit.Draws.summary` judges, which then says "converged" too, and by two
    limits of one's own. It is looked at after so many draws (each time a quarter more; none while
    the effective sample size is far too small), never by the clock, so that the same call ends
    after the same draw. Looking often makes a lucky pass
    likelier than looking once; `ess` is what guards against it (Vehtari et al. 2021, Bayesian
    Analysis 16, 667-718, recommend 400 with R-hat 1.01).

    Parameters
    ----------
    rhat : float
        What R-hat (rank-normalised, split chains; nested where chains shared starts) of every
        judged quantity is at most. Above 1.
    ess : float
        What the effective sample size (bulk) of each is at least, of all chains together.
    at : (N, ...) array, optional
        Inputs whose predictions are judged: all of up to 32 values, of more some, evenly spaced.
        Default: those of ``predict_at``; else rows of the data, where the target shows them; else
        what the summary judges without inputs, the log density and, of a density without
        predictions, parameters.

    Raises
    ------
    TypeError, ValueError
        For limits that are no numbers or out of range.

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


class Watch:
    """Takes the draws of one run, and looks at them when they have become a quarter more.

    What is looked at costs the same however many draws there are: of more than some thousand every
    second is left out, again and again. Three looks follow each other while they find nothing
    wrong: at a few quantities of a thousand draws, at the same of all draws, at all.

    Parameters
    ----------
    function : str
        Who asks, in errors.
    rule : Converged
    density : Density
    theta : (C, P) array
        Whole positions of the start: bad inputs are an error now.
    first, most : int
        See `counts`.
    running : RunningPrediction or None
        Predictions that are gathered anyway.
    origin : dict or None
        How the start was found: which chains shared one.
    tracked : bool
        Whether the sampler reports the log density.
    keeps : bool
        Whether positions are kept.
    """

    def __init__(
        self,
        function: str,
        rule: Converged,
        density: Density,
        theta: Array,
        first: int | None,
        most: int,
        *,
        running: RunningPrediction | None,
        origin: dict[str, Any] | None,
        tracked: bool,
        keeps: bool,
        guard: InterruptGuard,
    ) -> None:
        self.rule, self.most = rule, most
        self.last: Reached | None = None
        self.at = 0  # draws of the last look
        chains = theta.shape[0]
        first = max(_FIRST, math.ceil(rule.ess / chains)) if first is None else first
        self.next = min(most, first)
        self._chains, self._running = chains, running
        self._superchains = superchains_of({"start": origin}, chains)
        target = density.target
        self._predictive = target if callable(getattr(target, "predictive", None)) else None
        self._cap = max(_TRACED, 8 * math.ceil(rule.ess))
        self._pending: list[Array] = []
        self._waiting = 0  # bytes
        self._seen, self._every = 0, 1
        self._traced: list[npt.NDArray[np.float64]] = []  # (C, M) each
        self._x: Array | None = None
        self._choose(function, theta, guard)
        own = self._predictive is None and keeps  # parameters are judged
        if self._x is None and running is None and not tracked and not own:
            raise ValueError(
                f"[{function}] expected something to judge, got until= without inputs and a "
                "sampler that reports no log density: rb.Converged(at=x), or track_lp=True"
            )

    @property
    def met(self) -> bool:
        """Whether the last look found what was asked for."""
        return self.last is not None and self.last.met

    @property
    def expected(self) -> int:
        """How many draws it may take, for a display."""
        if self.last is None or math.isnan(self.last.ess) or self.met:
            return self.at if self.met else self.next
        guess = self.at * self.rule.ess / max(self.last.ess, 1.0)
        return max(self.next, min(self.most, math.ceil(guess)))

    @property
    def judged(self) -> Array | None:
        """Predictions that were looked at, (C, D', M); None where there are none."""
        traced = self._traced
        return np.stack(traced, axis=1) if traced else None

    def settings(self) -> dict[str, Any]:
        """Return the rule as plain values."""
        at = None if self._x is None else [int(n) for n in self._x.shape]
        return {"rhat": self.rule.rhat, "ess": self.rule.ess, "at": at}

    def take(self, position: Array) -> None:
        """Take one more draw, (C, P), which nobody changes."""
        if self._x is None:
            return
        if self._seen % self._every == 0:
            self._pending.append(position)
            self._waiting += int(np.prod(position.shape)) * position.dtype.itemsize
        self._seen += 1

    def take_several(self, positions: Array) -> None:
        """Take draws (C, K, P), in memory that the next call uses again."""
        if self._x is not None:
            for draw in range(positions.shape[1]):
                self.take(positions[:, draw].copy())

    def due(self, kept: int) -> bool:
        """Whether `look` has something to do."""
        return kept >= self.next or self._waiting >= _PENDING

    def owes(self, kept: int) -> bool:
        """Whether a look that was due at these draws, of a run that goes on, did not come about."""
        return self.at < kept and kept >= self.next

    def look(
        self,
        kept: int,
        record: GrowingRecord | StoredRecord,
        guard: InterruptGuard,
        confirm: Callable[[], bool],
        *,
        last: bool = False,
    ) -> None:
        """Predict with what waits, and judge when it is time, or the run ends.

        `confirm` asks the summary itself, once all else is as it should be.
        """
        self._predict(guard)
        due = kept >= self.next
        if not due and not last:
            return
        predictions = self.judged
        if predictions is None and self._running is not None:
            predictions = self._running.traced
        stats, where = record.statistics(kept), record.kept(kept)
        rule, final = self.rule, last or kept >= self.most
        found = None if final else self._first_looks(stats, where, predictions)
        if found is None:
            found = self._judge(stats, where, predictions)
        if found.met and rule.at is not None and where.shape[1]:
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
        if self._traced:
            arrays["traced"] = np.stack(self._traced)
        if self._pending:
            arrays["pending"] = np.stack([to_host(position) for position in self._pending])
        return plain, arrays

    def restore(
        self, plain: dict[str, Any], arrays: dict[str, npt.NDArray[Any]], xp: ModuleType
    ) -> None:
        """Go on from `pack`."""
        self._seen, self._every = int(plain["seen"]), int(plain["every"])
        self.next, self.at = int(plain["next"]), int(plain["at"])
        self.last = None if plain["last"] is None else Reached(*plain["last"])
        self._traced = list(arrays.get("traced", ()))
        self._pending = [from_host(xp, position) for position in arrays.get("pending", ())]
        self._waiting = sum(p.nbytes for p in arrays.get("pending", ()))

    def _first_looks(
        self, stats: dict[str, Array], where: Any, predictions: Any | None
    ) -> Reached | None:
        """Return what a look at a part finds that is not enough yet; None: all has to be judged."""
        shares: list[int | None] = [_LOOKED_AT]
        if predictions is not None and predictions.shape[2] > _QUICK:
            shares.append(None)
        for most in shares:
            found = self._judge(stats, where, predictions, few=True, most=most)
            if not (found.met or math.isnan(found.rhat)):
                return found
        return None

    def _judge(
        self,
        stats: dict[str, Array],
        where: Any,
        predictions: Any | None,
        *,
        few: bool = False,
        most: int | None = None,
    ) -> Reached:
        """Judge what the summary will; few: no more than some of it.

        most: draws of all chains to look at, by limits that are less strict: R-hat of few draws is
        noisy, and what passes here is looked at again.
        """
        rule = self.rule
        log_noise = verdicts.log_noise_of(self._predictive, where)
        own = verdicts.parameters_of(self._predictive, where)
        if few and predictions is not None:  # they decide
            stats = {name: values for name, values in stats.items() if name != "lp"}
            log_noise = None
            predictions = predictions[:, :, :: -(-predictions.shape[2] // _QUICK)]
        found = verdicts.find(
            stats, log_noise, predictions, own, superchains=self._superchains, most=most
        )
        if most is None:
            return reached(found, rule.rhat, rule.ess)
        return reached(found, rule.rhat + _SLACK, min(rule.ess, most) / 4, hasty=True)

    def _choose(self, function: str, theta: Array, guard: InterruptGuard) -> None:
        """Choose the rows whose predictions are judged, and predict with the start."""
        x = self.rule.at
        if x is not None and self._predictive is None:
            raise TypeError(
                f"[{function}] expected a target with predictions for Converged(at=...), got one "
                "without"
            )
        if x is None and self._running is None and self._predictive is not None:
            shown = getattr(self._predictive, "inputs", None)
            x = shown(_QUANTITIES) if callable(shown) else None
        if x is None:
            return
        assert self._predictive is not None
        x = inputs(function, x, self._predictive)
        check = getattr(self._predictive, "check_inputs", None)
        if check is not None:
            check(x)
        guard.begin_foreign()
        try:
            outputs = self._values(theta[:1, :], x[:1, ...]).shape[1]
            rows = max(1, _QUANTITIES // outputs)
            self._x = x[:: -(-x.shape[0] // rows), ...] if x.shape[0] > rows else x
            self._values(theta[:1, :], self._x)
        finally:
            guard.foreign = False

    def _values(self, theta: Array, x: Array) -> npt.NDArray[np.float64]:
        """Predictions (S, M) of weights (S, P), on the host."""
        assert self._predictive is not None
        terms = self._predictive.predictive(theta, x)
        values = to_host(terms.probs if terms.probs is not None else terms.mean)
        flat: npt.NDArray[np.float64] = values.reshape(theta.shape[0], -1).astype(np.float64)
        return flat

    def _predict(self, guard: InterruptGuard) -> None:
        """Predict with the draws that wait; all of them count, or none."""
        if not self._pending:
            return
        xp = namespace(self._pending[0])
        guard.begin_foreign()
        try:
            theta = xp.concat(self._pending, axis=0)
            values = self._values(theta, self._x)
        finally:
            guard.foreign = False
        traced = self._traced + list(values.reshape(len(self._pending), self._chains, -1))
        self._pending, self._waiting = [], 0
        while len(traced) * self._chains > 2 * self._cap:
            traced, self._every = traced[::2], 2 * self._every
        self._traced = traced  # in one piece: another thread may look
