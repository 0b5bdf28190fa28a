"""Predictions from draws: streamed over the draws, in memory that does not grow with them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks, overrides, records
from ribbit._arrays.keywords import explain
from ribbit._arrays.namespace import from_host, host_dtype, is_array, is_lazy, namespace, to_host
from ribbit.errors import DTypeError, KindError, MissingError, ShapeError
from ribbit.protocols import Array, Predictive, PredictiveTerms
from ribbit.results import lazy, observations
from ribbit.results.running import (
    ARRAYS,
    LogMeanExp,
    Moments,
    RunningPrediction,
    inputs,
    join,
    of_draws,
    same_rows,
)

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Prediction"]

# Bytes of predictions per block of rows: of weights in memory, and of weights on the disk, which
# are read again for each block.
_HELD, _HELD_OF_DISK = 1 << 24, 3 << 25
# Values that NumPy sorts at once, which no signal interrupts: about 20 ms.
_PART = 1 << 18


class Prediction:
    """Predictions of y at inputs x, averaged over draws.

    Computed on first use, in one pass over the draws. All draws of all chains have equal weights; a
    rejected proposal repeats the old draw, which then counts again. Noise comes from the untempered
    likelihood. Shapes are (N, K) for K outputs; a single output is (N,) if the target's y was (N,).

    Parameters
    ----------
    predictive : Predictive
    x : (N, ...) array
    positions : (C, D, P) array, optional
        The draws.
    keep : bool
        Keep the predictions of every draw, (C, D, N, K), as :attr:`samples`.
    running : RunningPrediction, optional
        Statistics gathered while sampling, used instead of a pass. Without positions, quantiles,
        scores and samples come from the evenly spaced draws whose predictions it kept.
    samples : (C, D, N[, K]) array, optional
        Predictions of each draw while sampling, on disk.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> draws = rb.HMC(target).sample(50, warmup=50, seed=1, progress=False)
    >>> p = draws.predict(x)
    >>> p.mean.shape, p.std.shape
    ((20, 1), (20, 1))
    >>> lower, upper = p.interval(0.9)
    >>> bool((lower < p.mean).all())
    True
    """

    def __init__(
        self,
        predictive: Predictive,
        x: Array,
        *,
        positions: Array | None = None,
        keep: bool = False,
        running: RunningPrediction | None = None,
        samples: Array | None = None,
    ) -> None:
        records.check_predictive("Prediction", predictive)
        if running is not None and not isinstance(running, RunningPrediction):
            got = checks.summary(running)
            raise TypeError(f"[Prediction] running must be statistics of a run, got {got}")
        if positions is None and running is None:
            raise TypeError("[Prediction] expected positions or running, got neither")
        if positions is not None:
            records.check_axes("Prediction", "positions", positions, "C S P", {})
        self._predictive = predictive
        self._x = inputs("Draws.predict", x, predictive)
        self._positions = positions
        self._keep = checks.boolean("Draws.predict", "keep", keep)
        self.running, self._stored = running, samples
        self._moments = None if running is None else running.moments
        self._kept: PredictiveTerms | None = None
        self._flat = bool(getattr(predictive, "flat", False))

    @property
    def kind(self) -> str:
        """The likelihood's kind: "regression", "classification" or "count"."""
        return self._predictive.kind

    @property
    def num_draws(self) -> int:
        """Number of draws S, of all chains together."""
        if self._positions is not None:
            return int(self._positions.shape[0] * self._positions.shape[1])
        return 0 if self._moments is None else self._moments.count

    @property
    def _size(self) -> int:
        """Draws whose predictions can be had."""
        kept = None if self._positions is not None else self._all_kept()
        return self.num_draws if kept is None else int(kept.values.shape[0])

    def __repr__(self) -> str:
        return f"Prediction({self.kind}, {self._x.shape[0]} rows, {self.num_draws} draws)"

    @property
    def mean(self) -> Array:
        """Mean of y, (N, K) float64 (regression and counts)."""
        return self._shaped(self._statistics("mean", "regression", "count").mean)

    @property
    def std(self) -> Array:
        """Standard deviation of y, (N, K): epistemic and aleatoric added in quadrature."""
        moments = self._statistics("std", "regression", "count")
        return self._shaped((moments.variance + moments.noise_variance) ** 0.5)

    @property
    def epistemic_std(self) -> Array:
        """Standard deviation over draws of the mean of y, or of the probabilities, (N, K)."""
        kinds = ("regression", "count", "classification")
        return self._shaped(self._statistics("epistemic_std", *kinds).variance ** 0.5)

    @property
    def aleatoric_std(self) -> Array:
        """Root of the noise variance averaged over draws, (N, K)."""
        moments = self._statistics("aleatoric_std", "regression", "count")
        return self._shaped(moments.noise_variance**0.5)

    @property
    def probs(self) -> Array:
        """Class probabilities averaged over draws, (N, K), with sum one (Bernoulli: of y = 1)."""
        return self._shaped(self._statistics("probs", "classification").mean)

    @property
    def entropy(self) -> Array:
        """Entropy of `probs` in nats, (N,): the total uncertainty."""
        return self._statistics("entropy", "classification").entropy

    @property
    def mutual_information(self) -> Array:
        """Entropy of the mean minus mean of the entropies, in nats, (N,): epistemic uncertainty."""
        moments = self._statistics("mutual_information", "classification")
        xp = namespace(moments.mean)
        information = moments.entropy - moments.mean_entropy
        return xp.where(information < 0.0, 0.0, information)

    @property
    def samples(self) -> Array:
        """Predictions of each draw, (C, D, N, K): means, or probabilities.

        Needs ``keep=True``, or a run with ``Store(keep="predictions")``.
        """
        if self._stored is not None:
            return self._stored
        if not self._keep:
            raise MissingError(
                "[Prediction.samples] expected predict(x, keep=True), got keep=False"
            )
        kept = self._all_kept()
        values = kept.values
        xp = namespace(values)
        assert self._positions is not None
        chains, draws = self._positions.shape[:2]
        shaped = xp.reshape(values, (draws, chains, *values.shape[1:]))
        return self._shaped(xp.permute_dims(shaped, (1, 0, 2, 3)))

    def quantile(self, q: float | Sequence[float]) -> Array:
        """Quantiles of a new y: of the mixture of the draws' distributions, with noise.

        Parameters
        ----------
        q : float or (Q,)
            In (0, 1).

        Returns
        -------
        (N, K) or (Q, N, K) array, float64
            Regression: to rounding. Counts: the smallest count with a cdf of at least q.

        Raises
        ------
        TypeError
            For a classification, because y is a label.
        ValueError
            For q out of range, or without draws.

        See Also
        --------
        credible_quantile : quantiles of the function, narrower by the noise.
        interval : lower and upper quantile.
        """
        name = "Prediction.quantile"
        levels, single = _probabilities(name, q, ends=False)
        result = self._quantiles(name, levels.tolist(), noise=True)
        return result[0, ...] if single else result

    def interval(self, coverage: float = 0.9) -> tuple[Array, Array]:
        """Return the central interval that contains a new y with probability `coverage`.

        Parameters
        ----------
        coverage : float
            In (0, 1).

        Returns
        -------
        lower, upper : (N, K) array, float64
            From :meth:`quantile`, with the same errors.

        Examples
        --------
        >>> x = np.linspace(-1, 1, 20)[:, None]
        >>> target = rb.Posterior(
        ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
        ... )
        >>> draws = rb.HMC(target).sample(50, warmup=50, seed=1, progress=False)
        >>> lower, upper = draws.predict(x).interval(0.9)
        >>> rb.metrics.coverage(2 * x, lower, upper) > 0.8
        True
        """
        name = "Prediction.interval"
        ends = self._quantiles(name, _ends(name, coverage), noise=True)
        return ends[0, ...], ends[1, ...]

    def credible_quantile(self, q: float | Sequence[float]) -> Array:
        """Quantiles over draws of the function: of y's mean, or of the class probabilities.

        They show how well the function is known. For quantiles of a new y use :meth:`quantile`.

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
            For q out of range, or without draws.
        """
        name = "Prediction.credible_quantile"
        levels, single = _probabilities(name, q, ends=True)
        result = self._quantiles(name, levels.tolist(), noise=False)
        return result[0, ...] if single else result

    def credible_interval(self, coverage: float = 0.9) -> tuple[Array, Array]:
        """Return the central credible interval of the function: of y's mean, or of probabilities.

        Parameters
        ----------
        coverage : float
            In (0, 1).

        Returns
        -------
        lower, upper : (N, K) array, float64
            From :meth:`credible_quantile`, with the same errors.
        """
        name = "Prediction.credible_interval"
        ends = self._quantiles(name, _ends(name, coverage), noise=False)
        return ends[0, ...], ends[1, ...]

    def cdf(self, y: Array) -> Array:
        """Probability that a new observation is at most y, averaged over draws.

        For a regression these are the PIT values, uniform if the predictions are calibrated
        (:func:`ribbit.plots.pit_histogram`).

        Parameters
        ----------
        y : (N,) or (N, K) array

        Returns
        -------
        (N, K) array, float64
            To an absolute error of 1e-12 (counts in GPU memory: 1e-6).

        Raises
        ------
        TypeError, ValueError
            For a classification, without draws, or for a y of the wrong shape.
        """
        name = "Prediction.cdf"
        self._need_y(name)
        known = self._observed(name, y)

        def of_y(xp: Any, terms: PredictiveTerms, rows: slice) -> Array:
            return observations.cdf(xp, self.kind, terms, known[rows, :])

        return self._shaped(self._by_rows(of_y, axis=0))

    def crps(self, y: Array) -> float:
        """Continuous ranked probability score of y, averaged over rows and outputs.

        E|Y - y| - E|Y - Y'| / 2 for independent Y, Y' of the predictive distribution, a mixture
        over draws (Gneiting and Raftery 2007, eq. 21; smaller is better). For counts, score
        samples: ``metrics.crps(y, p.sample(1000))``.

        Parameters
        ----------
        y : (N,) or (N, K) array

        Returns
        -------
        float
            In units of y, to 1e-9 of the mixture's sd (GPU: to 1e-6 of the score, 1e-3 if the noise
            of draws differs a hundredfold); infinite for Student-t noise with ``df <= 1``.

        Raises
        ------
        TypeError, ValueError
            For anything but a regression, without draws, or for a y of the wrong shape.
        """
        name = "Prediction.crps"
        if self.kind != "regression":
            raise TypeError(
                f"[{name}] expected a regression, got {self.kind}: for counts score samples, "
                "metrics.crps(y, p.sample(1000)); for labels metrics.brier(y, p)"
            )
        self._need_draws(name)
        known = self._observed(name, y)

        def of_y(xp: Any, terms: PredictiveTerms, rows: slice) -> Array:
            return observations.crps(xp, terms, known[rows, :])

        scores = self._by_rows(of_y, axis=0)
        return float(namespace(scores).mean(scores))

    def sample(self, num_samples: int, *, seed: checks.Seed = 0) -> Array:
        """Return samples of y at all rows: for each a random draw, plus its noise.

        Parameters
        ----------
        num_samples : int
            n, >= 1.
        seed : int, Generator, SeedSequence or None
            64-bit key: sample i depends on (seed, i) and the draws alone.

        Returns
        -------
        (n, N, K) array
            float64; labels and counts as int64, labels of a Categorical (n, N).

        Raises
        ------
        TypeError, ValueError
            For arguments out of range, or without draws.

        Examples
        --------
        >>> x = np.linspace(-1, 1, 20)[:, None]
        >>> target = rb.Posterior(
        ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
        ... )
        >>> draws = rb.HMC(target).sample(50, warmup=50, seed=1, progress=False)
        >>> y = draws.predict(x).sample(1000, seed=1)
        >>> bool(0 < (y.max(axis=1) > 2.5).mean() < 1)  # P(some row exceeds 2.5)
        True
        """
        name = "Prediction.sample"
        count = checks.integer(name, "num_samples", num_samples, minimum=1, maximum=2**31 - 1)
        key = checks.seed(name, seed)
        self._need_draws(name)
        picks = observations.picks(count, self._size, key)
        dim = 0 if self._positions is None else self._positions.shape[2]
        block = max(1, lazy.CHUNK // max(self._values_per_draw(), dim))
        order = self._reading_order(picks)
        parts = []
        for low in range(0, count, block):
            places = order[low : low + block]
            terms = self._terms_of(picks[places])
            xp = namespace(terms.values)
            parts.append(observations.sample(xp, self.kind, terms, key, places))
        found = xp.concat(parts, axis=0)
        del parts
        found = xp.take(found, xp.asarray(np.argsort(order)), axis=0)
        labels = self.kind == "classification" and not terms.binary
        return found[..., 0] if labels else self._shaped(found)

    def log_likelihood(
        self, y: Array | None = None, *, sample_weight: npt.ArrayLike | None = None
    ) -> float:
        """Mean over rows of the log predictive density, a mixture over draws.

        Parameters
        ----------
        y : (N,) or (N, K) array, optional
            May be left out after ``sample(predict_at=(x, y))``.
        sample_weight : (N,) array, optional
            How often each row counts in the mean.

        Returns
        -------
        float
            In nats per row, in the units of y.
        """
        name = "Prediction.log_likelihood"
        weights = checks.row_weights(name, sample_weight)
        if weights is not None:
            same_rows(name, weights, self._x, of="sample_weight")
            weights = None if checks.counts_once(weights) else weights
        if y is None:
            if self.running is None or self.running.density is None:
                raise ValueError(f"[{name}] expected y, got none (nor predict_at=(x, y) in sample)")
            if self.running.density.count == 0:
                raise ValueError(f"[{name}] expected at least one draw, got none")
            return self.running.density.mean_over_rows(weights)
        if self._positions is None or self._positions.shape[1] == 0:
            raise ValueError(
                f"[{name}] expected kept draws for a y given now, got none: sample with "
                "predict_at=(x, y) and call log_likelihood() without y"
            )
        same_rows(name, y, self._x)
        density = LogMeanExp()
        for numbers, theta in lazy.chunks(self._positions, self._values_per_draw()):
            given = numbers, theta, self._x, y
            for values in of_draws(self._predictive, "log_likelihood", *given):
                density.add(values)
        return density.mean_over_rows(weights)

    def _statistics(self, name: str, *kinds: str) -> Moments:
        if self.kind not in kinds:
            instead = (
                "probs, epistemic_std, entropy, mutual_information"
                if self.kind == "classification"
                else "mean, std, epistemic_std, aleatoric_std"
            )
            raise KindError(
                f"[Prediction.{name}] expected a {' or '.join(kinds)} likelihood, "
                f"got {self.kind}: ask for {instead}"
            )
        if self._moments is None:
            moments = Moments(self.kind)
            native = overrides.own(self._predictive, "predictive_moments", ("predictive",))
            in_parts = is_lazy(self._positions)  # a chunk at a time
            if self._keep:
                moments.add(self._all_kept())
            elif native is not None and self.num_draws > 0 and not in_parts:
                sums, binary = native(self._positions, self._x)
                moments = Moments.of_sums(self.kind, self.num_draws, sums, binary=binary)
            else:
                for numbers, theta in lazy.chunks(self._positions, self._values_per_draw()):
                    for terms in of_draws(self._predictive, "predictive", numbers, theta, self._x):
                        moments.add(terms)
            self._moments = moments
        if self._moments.count == 0:
            raise MissingError(f"[Prediction.{name}] expected at least one draw, got none")
        return self._moments

    def _shaped(self, array: Array) -> Array:
        """Drop the axis (..., 1) of a single output where y had none."""
        return array[..., 0] if self._flat and array.shape[-1] == 1 else array

    def _values_per_draw(self, rows: int | None = None) -> int:
        """Values that one draw predicts: N K, found from one row."""
        if self._positions is None:
            shape = self._all_kept().values.shape[::2]
        else:
            _, theta = next(lazy.chunks(self._positions, lazy.CHUNK))
            shape = self._predictive.outputs(theta[:1, :], self._x[:1, ...]).shape
        return int(math.prod(shape[1:])) * (self._x.shape[0] if rows is None else rows)

    def _bytes_per_row(self) -> int:
        """Return the bytes that one draw predicts per row."""
        terms = self._terms_of(np.zeros(1, np.int64), 2)
        arrays = [getattr(terms, name) for name in ARRAYS]
        rows = terms.values.shape[1]
        own = [a for a in arrays if a is not None and a.shape[1] == rows]
        return sum(math.prod(a.shape) * host_dtype(a).itemsize // rows for a in own)

    def _reading_order(self, numbers: lazy.Numbers) -> lazy.Numbers:
        """Places of draws by number in the order of `chunks`, in which a folder is read once."""
        if self._positions is None:
            return np.argsort(numbers, kind="stable")
        ends = [end for _, end in lazy.chain_groups(self._positions)]
        group = np.searchsorted(ends, numbers % self._positions.shape[0], side="right")
        return np.lexsort((numbers, group))

    def _terms_of(self, numbers: lazy.Numbers, rows: int | None = None) -> PredictiveTerms:
        """Predictions of some draws by number at the first rows."""
        if self._positions is None:
            kept = _cut(self._all_kept(), 0, rows, axis=1)
            cuts = [_cut(kept, s, s + 1, axis=0) for s in numbers.tolist()]
            return join(namespace(kept.values), cuts, axis=0)
        chains, xp = self._positions.shape[0], namespace(self._positions)
        unique, places = np.unique(numbers, return_inverse=True)
        theta = xp.stack([self._positions[s % chains, s // chains, :] for s in unique.tolist()])
        parts = of_draws(self._predictive, "predictive", unique, theta, self._x[:rows, ...])
        found = join(xp, list(parts), axis=0)
        if len(unique) == len(numbers) and (places[1:] > places[:-1]).all():
            return found
        again = xp.asarray(places)
        arrays: dict[str, Any] = {
            name: xp.take(array, again, axis=0)
            for name in ARRAYS
            if (array := getattr(found, name)) is not None and array.shape[0] == len(unique)
        }
        return dataclasses.replace(found, **arrays)

    def _observed(self, function: str, y: Array) -> Array:
        """Return y as (N, K) float64 in the library of the draws."""
        one = self._terms_of(np.zeros(1, np.int64), 1).values
        xp, columns = namespace(one), one.shape[-1]
        if not is_array(y) or xp is np:
            y = from_host(xp, checks.numeric(function, "y", y))
        elif namespace(y) is not xp:
            raise DTypeError(
                f"[{function}] expected y as {xp.__name__} array, got {checks.summary(y)}"
            )
        shape = tuple(y.shape)
        if shape != (self._x.shape[0], columns) and (shape, columns) != ((self._x.shape[0],), 1):
            raise ShapeError(
                f"[{function}] expected y of shape ({self._x.shape[0]}, {columns}), got {shape}"
            )
        y = xp.astype(y, xp.float64)
        if not bool(xp.all(xp.isfinite(y))):
            checks.finite(function, "y", to_host(y))
        return xp.reshape(y, (-1, columns))

    def _all_kept(self) -> PredictiveTerms:
        if self._kept is None:
            self._kept = self._all_draws(self._x)
        return self._kept

    def _all_draws(self, x: Array, row: int = 0) -> PredictiveTerms:
        """Predictions of all draws at x, whose first row has number `row`: (S, n, K)."""
        whole: PredictiveTerms | None = None
        # some weights at a time: the weights of a folder can exceed the memory
        for numbers, theta in lazy.chunks(self._positions, self._values_per_draw(x.shape[0])):
            terms = of_draws(self._predictive, "predictive", numbers, theta, x, row=row)
            part = join(namespace(theta), list(terms), axis=0)
            if len(numbers) == self.num_draws:
                return part
            whole = _empty_terms(part, self.num_draws) if whole is None else whole
            first, last = int(numbers[0]), int(numbers[-1])
            places = slice(first, last + 1) if last - first < len(numbers) else numbers
            for name in ARRAYS:
                if (array := getattr(whole, name)) is not None:
                    array[places, ...] = getattr(part, name)
        assert whole is not None
        return whole

    def _need_y(self, function: str) -> None:
        """Raise unless y has quantiles and the draws are there."""
        if self.kind == "classification":
            raise TypeError(
                f"[{function}] expected a regression or counts, got classification, where y is a "
                "label: ask for probs, or for credible_quantile and credible_interval of the "
                "probabilities"
            )
        self._need_draws(function)

    def _need_draws(self, function: str) -> None:
        """Raise unless there are draws, or the predictions of some."""
        if self.num_draws == 0:
            raise ValueError(f"[{function}] expected at least one draw, got none")
        if self._positions is None and self._kept is None:
            self._kept = None if self.running is None else self.running.kept
            if self._kept is None:
                raise ValueError(
                    f"[{function}] no draw was kept, and the predictions of one draw take more "
                    "than 64 MiB. Predict at fewer rows, or sample with save_draws=True."
                )

    def _quantiles(self, function: str, levels: list[float], *, noise: bool) -> Array:
        """Quantiles (Q, N, K) of y, or without its noise of the function."""
        (self._need_y if noise else self._need_draws)(function)

        def of_rows(xp: Any, terms: PredictiveTerms, rows: slice) -> Array:
            del rows
            if noise:
                return observations.quantiles(xp, self.kind, terms, levels)
            draws, count, outputs = terms.values.shape
            part = max(1, _PART // (draws * outputs)) if xp is np else count
            found = []
            for low in range(0, count, part):
                values = terms.values[:, low : min(low + part, count), :]
                values = xp.permute_dims(xp.astype(values, xp.float64), (1, 2, 0))
                found.append(_sorted_quantile(xp, xp.sort(values, axis=-1), levels))
            return xp.concat(found, axis=1)

        return self._shaped(self._by_rows(of_rows, axis=1))

    def _by_rows(
        self, function: Callable[[Any, PredictiveTerms, slice], Array], *, axis: int
    ) -> Array:
        """Join what a function makes of all draws at one block of rows after another."""
        rows = self._x.shape[0]
        kept = self._all_kept() if self._keep or self._positions is None else None
        held = _HELD_OF_DISK if is_lazy(self._positions) else _HELD
        block = max(1, held // (self._size * self._bytes_per_row()))
        result = []
        for low in range(0, rows, block):
            high = min(low + block, rows)
            if kept is not None:
                terms = _cut(kept, low, high, axis=1)
            else:
                terms = self._all_draws(self._x[low:high, ...], low)
            xp = namespace(terms.values)
            result.append(function(xp, terms, slice(low, high)))
            del terms  # free them before the next block
        return xp.concat(result, axis=axis)


def _probabilities(function: str, q: object, *, ends: bool) -> tuple[npt.NDArray[np.float64], bool]:
    """Return q as (Q,) float64 and whether it was one number; `ends` lets 0 and 1 in."""
    raw = checks.numeric(function, "q", q)
    if raw.ndim > 1 or raw.size == 0:
        raise ValueError(f"[{function}] expected q as a number or (Q,), got shape {raw.shape}")
    array = raw.astype(np.float64)
    good = (array >= 0.0) & (array <= 1.0) if ends else (array > 0.0) & (array < 1.0)
    interval = "[0, 1]" if ends else "(0, 1)"
    checks.all_true(function, f"q in {interval}", "q", array, good)
    return np.atleast_1d(array), array.ndim == 0


def _sorted_quantile(xp: Any, values: Array, q: Sequence[float]) -> Array:
    """Return quantiles (Q, ...) of ascending values (..., S), linear as NumPy's default."""
    result = []
    for p in q:
        place = float(p) * (values.shape[-1] - 1)
        low = int(place)
        below, above = values[..., low], values[..., min(low + 1, values.shape[-1] - 1)]
        result.append(below + (above - below) * (place - low))
    return xp.stack(result, axis=0)


def _ends(function: str, coverage: float) -> list[float]:
    """Levels of the ends of a central interval."""
    inside = checks.fraction(function, "coverage", coverage)
    return [0.5 - 0.5 * inside, min(0.5 + 0.5 * inside, math.nextafter(1.0, 0.0))]


def _empty_terms(terms: PredictiveTerms, draws: int) -> PredictiveTerms:
    """Return terms like these for so many draws, to be filled."""
    arrays: dict[str, Any] = {}
    for name in ARRAYS:
        if (array := getattr(terms, name)) is not None:
            xp = namespace(array)
            arrays[name] = xp.empty((draws, *array.shape[1:]), dtype=array.dtype)
    return dataclasses.replace(terms, **arrays)


def _cut(terms: PredictiveTerms, low: int, high: int | None, axis: int) -> PredictiveTerms:
    """Return the terms of some draws (axis 0) or rows (axis 1)."""
    at = (slice(None),) * axis + (slice(low, high), ...)
    found = {name: getattr(terms, name) for name in ARRAYS}
    arrays: dict[str, Any] = {
        name: array if array is None or array.shape[axis] == 1 else array[at]
        for name, array in found.items()
    }
    return dataclasses.replace(terms, **arrays)


explain(globals())
