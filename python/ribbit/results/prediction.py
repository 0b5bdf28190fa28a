"""Predictions from draws: streamed over the draws, in memory that does not grow with them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ribbit._arrays import checks
from ribbit._arrays.namespace import namespace
from ribbit.protocols import Array, Predictive, PredictiveTerms
from ribbit.results import observations
from ribbit.results.quantiles import probabilities, sorted_quantile
from ribbit.results.running import (
    ARRAYS,
    LogMeanExp,
    Moments,
    RunningPrediction,
    inputs,
    join,
    same_rows,
)

__all__ = ["Prediction"]

# Values per chunk of draws: bounds the memory of a pass, about 8 MB in float64.
_CHUNK = 1 << 20
_UNSET: object = object()


class Prediction:
    """What draws say about y at inputs x.

    Computed when first asked for, in one pass over the draws. All draws of all chains weigh the
    same; a rejected proposal repeats the old draw and so counts again. Noise is that of the
    untempered likelihood.

    Parameters
    ----------
    predictive : Predictive
    x : (N, ...) array
    positions : (C, D, P) array, optional
        The draws.
    keep : bool
        Keep the predictions of every draw, (C, D, N, K), as :attr:`samples`.
    running : RunningPrediction, optional
        Statistics gathered while sampling, used instead of a pass.
    """

    def __init__(
        self,
        predictive: Predictive,
        x: Array,
        *,
        positions: Array | None = None,
        keep: bool = False,
        running: RunningPrediction | None = None,
    ) -> None:
        self._predictive = predictive
        self._x = inputs("Draws.predict", x)
        self._positions = positions
        self._keep = checks.boolean("Draws.predict", "keep", keep)
        self.running = running
        self._moments = None if running is None else running.moments
        self._kept: PredictiveTerms | None = None

    @property
    def kind(self) -> str:
        """Kind of the likelihood: "regression", "classification" or "count"."""
        return self._predictive.kind

    @property
    def num_draws(self) -> int:
        """Draws behind the statistics, all chains together, S."""
        if self._positions is not None:
            return int(self._positions.shape[0] * self._positions.shape[1])
        return 0 if self._moments is None else self._moments.count

    def __repr__(self) -> str:
        return f"Prediction({self.kind}, {self._x.shape[0]} rows, {self.num_draws} draws)"

    @property
    def mean(self) -> Array:
        """Mean of y, (N, K) float64 (regression and counts)."""
        return self._statistics("mean", "regression", "count").mean

    @property
    def std(self) -> Array:
        """Standard deviation of y, (N, K): epistemic and aleatoric in quadrature."""
        moments = self._statistics("std", "regression", "count")
        return (moments.variance + moments.noise_variance) ** 0.5

    @property
    def epistemic_std(self) -> Array:
        """Standard deviation over draws of the mean of y, or of the probabilities, (N, K)."""
        kinds = ("regression", "count", "classification")
        return self._statistics("epistemic_std", *kinds).variance ** 0.5

    @property
    def aleatoric_std(self) -> Array:
        """Root of the noise variance averaged over draws, (N, K)."""
        return self._statistics("aleatoric_std", "regression", "count").noise_variance ** 0.5

    @property
    def probs(self) -> Array:
        """Class probabilities averaged over draws, (N, K) (Bernoulli: of y = 1)."""
        return self._statistics("probs", "classification").mean

    @property
    def entropy(self) -> Array:
        """Entropy of `probs` in nats, (N,): the total uncertainty."""
        return self._statistics("entropy", "classification").entropy

    @property
    def mutual_information(self) -> Array:
        """Entropy of the mean minus mean of the entropies in nats, (N,): what is epistemic."""
        moments = self._statistics("mutual_information", "classification")
        xp = namespace(moments.mean)
        information = moments.entropy - moments.mean_entropy
        return xp.where(information < 0.0, 0.0, information)

    @property
    def samples(self) -> Array:
        """What each draw predicts, (C, D, N, K): means, or probabilities. Needs ``keep=True``."""
        if not self._keep:
            raise ValueError("[Prediction.samples] expected predict(x, keep=True), got keep=False")
        kept = self._all_kept()
        values = kept.values
        xp = namespace(values)
        assert self._positions is not None
        chains, draws = self._positions.shape[:2]
        shaped = xp.reshape(values, (draws, chains, *values.shape[1:]))
        return xp.permute_dims(shaped, (1, 0, 2, 3))

    @property
    def quantile_rank_error(self) -> float:
        """Bound on the rank error of :meth:`mean_quantile`, in draws; 0 when it is exact."""
        if self._positions is not None or self.running is None or self.running.sketch is None:
            return 0.0
        return self.running.sketch.rank_error

    def quantile(self, q: float | Sequence[float], *, noise: object = _UNSET) -> Array:
        """Quantiles of y: of the mixture of the draws' noise, so of what will be observed.

        Parameters
        ----------
        q : float or (Q,)
            In (0, 1).
        noise
            Refused: :meth:`mean_quantile` gives the quantiles without noise.

        Returns
        -------
        (N, K) or (Q, N, K) array, float64
            Regression: to rounding. Counts: the smallest count whose probability not to be
            exceeded is q or more.

        Raises
        ------
        TypeError
            For a classification, where y is a label.
        ValueError
            For q out of range, or when the draws were not kept.

        See Also
        --------
        mean_quantile : quantiles of the function, narrower by the noise.
        interval : two of them.
        """
        name = "Prediction.quantile"
        if noise is not _UNSET:
            raise TypeError(
                f"[{name}] expected no noise=, got noise={noise!r}: quantile and interval are of "
                "y and include the noise; mean_quantile and mean_interval are of the function"
            )
        levels, single = probabilities(name, q, ends=False)
        result = self._quantiles_of_y(name, levels.tolist())
        return result[0, ...] if single else result

    def interval(self, coverage: float = 0.9) -> tuple[Array, Array]:
        """Return the central interval that holds a new y with probability `coverage`.

        Parameters
        ----------
        coverage : float
            In (0, 1).

        Returns
        -------
        lower, upper : (N, K) array, float64
            As :meth:`quantile` gives them, with the same errors.

        Examples
        --------
        >>> lower, upper = p.interval(0.9)  # doctest: +SKIP
        >>> rb.metrics.coverage(y, lower, upper)  # doctest: +SKIP
        0.91
        """
        name = "Prediction.interval"
        ends = self._quantiles_of_y(name, _ends(name, coverage))
        return ends[0, ...], ends[1, ...]

    def mean_quantile(self, q: float | Sequence[float]) -> Array:
        """Quantiles over draws of the function: of y's mean, or of the class probabilities.

        They say how well the function is known, not where y will lie: :meth:`quantile` does.

        Parameters
        ----------
        q : float or (Q,)
            In [0, 1]; linear between neighbouring draws.

        Returns
        -------
        (N, K) or (Q, N, K) array, float64

        Raises
        ------
        ValueError
            For q out of range; or when the draws were not kept and no quantiles were named in
            ``sample``.
        """
        name = "Prediction.mean_quantile"
        levels, single = probabilities(name, q, ends=True)
        result = self._quantiles_of_mean(name, levels.tolist())
        return result[0, ...] if single else result

    def mean_interval(self, coverage: float = 0.9) -> tuple[Array, Array]:
        """Return the central interval of the function: of y's mean, or of the probabilities.

        Parameters
        ----------
        coverage : float
            In (0, 1).

        Returns
        -------
        lower, upper : (N, K) array, float64
            As :meth:`mean_quantile` gives them, with the same errors.
        """
        name = "Prediction.mean_interval"
        ends = self._quantiles_of_mean(name, _ends(name, coverage))
        return ends[0, ...], ends[1, ...]

    def log_likelihood(self, y: Array | None = None) -> float:
        """Mean over rows of the log predictive density, the mixture over draws.

        Parameters
        ----------
        y : (N,) or (N, K) array, optional
            May be left out after ``sample(predict_at=(x, y))``.

        Returns
        -------
        float
            In nats per row, in the units of y.
        """
        name = "Prediction.log_likelihood"
        if y is None:
            if self.running is None or self.running.density is None:
                raise ValueError(f"[{name}] expected y, got none (nor predict_at=(x, y) in sample)")
            if self.running.density.count == 0:
                raise ValueError(f"[{name}] expected at least one draw, got none")
            return self.running.density.mean_over_rows()
        if self._positions is None or self._positions.shape[1] == 0:
            raise ValueError(
                f"[{name}] expected kept draws for a y given now, got none: sample with "
                "predict_at=(x, y) and call log_likelihood() without y"
            )
        same_rows(name, y, self._x)
        density = LogMeanExp()
        for first, theta in self._chunks(self._values_per_draw()):
            density.add(self._predictive.log_likelihood(theta, self._x, y, **self._number(first)))
        return density.mean_over_rows()

    def _statistics(self, name: str, *kinds: str) -> Moments:
        if self.kind not in kinds:
            instead = (
                "probs, epistemic_std, entropy, mutual_information"
                if self.kind == "classification"
                else "mean, std, epistemic_std, aleatoric_std"
            )
            raise TypeError(
                f"[Prediction.{name}] expected a {' or '.join(kinds)} likelihood, "
                f"got {self.kind}: ask for {instead}"
            )
        if self._moments is None:
            moments = Moments(self.kind)
            native = getattr(self._predictive, "predictive_moments", None)
            if self._keep:
                moments.add(self._all_kept())
            elif native is not None and self.num_draws > 0:
                sums, binary = native(self._positions, self._x)
                moments = Moments.of_sums(self.kind, self.num_draws, sums, binary=binary)
            else:
                for first, theta in self._chunks(self._values_per_draw()):
                    moments.add(self._predictive.predictive(theta, self._x, **self._number(first)))
            self._moments = moments
        if self._moments.count == 0:
            raise ValueError(f"[Prediction.{name}] expected at least one draw, got none")
        return self._moments

    def _values_per_draw(self, rows: int | None = None) -> int:
        """Values that one draw predicts: N K, found from one row."""
        _, theta = next(self._chunks(_CHUNK))
        shape = self._predictive.outputs(theta[:1, :], self._x[:1, ...]).shape
        return int(math.prod(shape[1:])) * (self._x.shape[0] if rows is None else rows)

    def _number(self, first: int, row: int = 0) -> dict[str, int]:
        """Keywords of a predictive that needs the numbers of its draws and rows."""
        numbered = getattr(self._predictive, "numbered", False)
        return {"first": first, "row": row} if numbered else {}

    def _chunks(self, values_per_draw: int) -> Iterator[tuple[int, Array]]:
        """First number and draws (S, P), draw by draw and within a draw chain by chain."""
        assert self._positions is not None
        xp = namespace(self._positions)
        chains, draws, dim = self._positions.shape
        # also bounds the copy of the weights
        size = max(1, _CHUNK // (max(values_per_draw, dim) * chains))
        for low in range(0, draws, size):
            chunk = xp.permute_dims(self._positions[:, low : min(low + size, draws), :], (1, 0, 2))
            yield low * chains, xp.reshape(chunk, (-1, dim))

    def _all_kept(self) -> PredictiveTerms:
        if self._kept is None:
            self._kept = self._all_draws(self._x)
        return self._kept

    def _all_draws(self, x: Array, row: int = 0) -> PredictiveTerms:
        """Predictions of all draws at x, whose first row has number `row`: (S, n, K)."""
        chunks = list(self._chunks(max(1, self._values_per_draw(x.shape[0]))))
        parts = [
            self._predictive.predictive(theta, x, **self._number(first, row))
            for first, theta in chunks
        ]
        xp = namespace(chunks[0][1])
        return join(xp, parts, axis=0)

    def _quantiles_of_y(self, function: str, levels: list[float]) -> Array:
        if self.kind == "classification":
            raise TypeError(
                f"[{function}] expected a regression or counts, got classification, where y is a "
                "label: ask for probs, or for mean_quantile and mean_interval of the probabilities"
            )
        if self._positions is None or self._positions.shape[1] == 0:
            raise ValueError(
                f"[{function}] expected kept draws, got none (keep_draws=False?): what was "
                "gathered while sampling gives mean_quantile, without the noise"
            )

        def of_y(xp: Any, terms: PredictiveTerms) -> Array:
            return observations.quantiles(xp, self.kind, terms, levels)

        return self._by_rows(of_y)

    def _quantiles_of_mean(self, function: str, levels: list[float]) -> Array:
        if self._positions is not None and self._positions.shape[1] > 0:

            def of_mean(xp: Any, terms: PredictiveTerms) -> Array:
                values = xp.permute_dims(xp.astype(terms.values, xp.float64), (1, 2, 0))
                return sorted_quantile(xp, xp.sort(values, axis=-1), levels)

            return self._by_rows(of_mean)
        if self.running is not None and self.running.sketch is not None:
            return self.running.sketch.quantile(levels)
        raise ValueError(
            f"[{function}] expected kept draws, or quantiles= named in sample, got neither"
        )

    def _by_rows(self, function: Callable[[Any, PredictiveTerms], Array]) -> Array:
        """Join what a function makes of all draws at one block of rows after another, (Q, N, K)."""
        rows = self._x.shape[0]
        block = max(1, 4 * _CHUNK // (self.num_draws * self._values_per_draw(1)))
        result = []
        for low in range(0, rows, block):
            high = min(low + block, rows)
            if self._keep:
                terms = _rows(self._all_kept(), low, high)
            else:
                terms = self._all_draws(self._x[low:high, ...], low)
            xp = namespace(terms.values)
            result.append(function(xp, terms))
        return xp.concat(result, axis=1)


def _ends(function: str, coverage: float) -> list[float]:
    """Levels of the ends of a central interval."""
    inside = checks.fraction(function, "coverage", coverage)
    return [0.5 - 0.5 * inside, 0.5 + 0.5 * inside]


def _rows(terms: PredictiveTerms, low: int, high: int) -> PredictiveTerms:
    def cut(array: Array | None) -> Array | None:
        return array if array is None or array.shape[1] == 1 else array[:, low:high, ...]

    arrays: dict[str, Any] = {name: cut(getattr(terms, name)) for name in ARRAYS}
    return dataclasses.replace(terms, **arrays)
