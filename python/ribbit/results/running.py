"""Predictive statistics that grow draw by draw, in memory that does not."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit._arrays import checks, overrides
from ribbit._arrays.namespace import (
    from_host,
    host_dtype,
    is_array,
    namespace,
    require_memory,
    to_host,
)
from ribbit.errors import ShapeError
from ribbit.protocols import Array, Predictive, PredictiveTerms
from ribbit.results.archive import check_array, whole
from ribbit.results.lazy import Numbers, chunks

if TYPE_CHECKING:
    import numpy.typing as npt

_Batch: TypeAlias = tuple[PredictiveTerms, "Array | None"]  # with the log density of y (C, N)
ARRAYS = ("mean", "noise_sd", "probs", "noise_scale")
"""Fields of PredictiveTerms that are arrays or None."""

# Multiply-adds per call while sampling: about 20 ms, so that Ctrl-C is noticed.
_CALL = 4 * 10**8
# Bytes of the predictions that are kept where draws are not, of all chains.
_KEPT = 1 << 26
# Bytes of the values that moments add up together, and of those that a run predicts at once.
_BLOCK, _AT_ONCE = 1 << 20, 1 << 22
# Arrays of Moments that a file holds.
_FLOATS = ("float32", "float64")
_MOMENTS = ("first", "sum", "squares", "noise", "entropy")


class Moments:
    """Running statistics of predictions; every draw counts once, in the order it comes."""

    # Sums are float64 and taken draw by draw, so that chunking changes no bit. Means and squares
    # are relative to the first draw, which keeps the digits of a small spread around a large mean.

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.count = 0
        self._first: Array = None  # (N, K)
        self._sum: Array = None
        self._squares: Array = None
        self._noise: Array = None  # sum of noise variances, broadcastable to (N, K)
        self._entropy: Array = None  # sum of entropies, (N,)
        self._binary = False

    @staticmethod
    def of_sums(kind: str, count: int, sums: tuple[Array, ...], *, binary: bool) -> Moments:
        """Wrap the sums of `predictive_moments` for `count` draws."""
        moments = Moments(kind)
        moments.count, moments._binary = count, binary
        moments._first, moments._sum, moments._squares, extra = sums
        if kind == "classification":
            moments._entropy = extra
        else:
            moments._noise = extra
        return moments

    def copy(self) -> Moments:
        """Return the same, which does not change as more draws come."""
        return copy.copy(self)  # arrays are replaced, not changed

    def joined(self, other: Moments) -> Moments:
        """Return the statistics of the draws of both."""
        if self.count == 0 or other.count == 0:
            return other.copy() if self.count == 0 else self.copy()
        both = self.copy()
        shift = other._first - self._first  # the sums of the other are relative to its first draw
        both._sum = both._sum + (other._sum + other.count * shift)
        squares = other._squares + 2.0 * shift * other._sum + other.count * shift**2
        both._squares = both._squares + squares
        for name in ("_noise", "_entropy"):
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(both, name, None if mine is None else mine + theirs)
        both.count += other.count
        return both

    def add(self, terms: PredictiveTerms) -> None:
        """Take S more draws."""
        xp, draws = namespace(terms.values), terms.values.shape[0]
        self._binary = terms.binary
        block = max(1, _BLOCK // (8 * math.prod(terms.values.shape[1:])))
        for low in range(0, draws, block):
            high = min(low + block, draws)
            values = xp.astype(terms.values[low:high, ...], xp.float64)
            if self.count == 0:
                self._first = xp.asarray(values[0, ...], copy=True)
            deltas = values - self._first
            self._sum = _added(xp, self._sum, deltas)
            self._squares = _added(xp, self._squares, deltas * deltas)
            if self.kind == "classification":
                self._entropy = _added(xp, self._entropy, _entropy(xp, values, self._binary))
            else:
                noise: Array = terms.noise_sd
                each = noise.shape[0] > 1
                sd = xp.astype(noise[low:high, ...] if each else noise, xp.float64)
                shape = (high - low, *sd.shape[1:])
                self._noise = _added(xp, self._noise, xp.broadcast_to(sd * sd, shape))
            self.count += high - low

    @property
    def mean(self) -> Array:
        """(N, K); probabilities of classes sum to one in float64, also for float32 networks."""
        mean = self._first + self._sum / self.count
        if self.kind != "classification" or self._binary:
            return mean
        return mean / namespace(mean).sum(mean, axis=-1, keepdims=True)

    @property
    def variance(self) -> Array:
        """Variance over draws of the mean function (divided by S), (N, K)."""
        xp = namespace(self._sum)
        variance = self._squares / self.count - (self._sum / self.count) ** 2
        return xp.where(variance < 0.0, 0.0, variance)  # rounding; NaN stays

    @property
    def noise_variance(self) -> Array:
        """Mean over draws of the noise variance, (N, K)."""
        return self._noise / self.count + 0.0 * self._sum

    @property
    def entropy(self) -> Array:
        """Entropy of the mean probabilities, (N,)."""
        return _entropy(namespace(self._sum), self.mean, self._binary)

    @property
    def mean_entropy(self) -> Array:
        """Mean over draws of the entropy, (N,)."""
        return self._entropy / self.count


def _added(xp: Any, total: Array, values: Array) -> Array:
    """Return a total (...) with values (S, ...) added one after the other; None is no total yet."""
    if xp is np:  # in the same order
        rows = values if total is None else np.concatenate([total[None], values])
        return np.add.accumulate(rows, axis=0)[-1]
    for s in range(values.shape[0]):
        total = values[s, ...] if total is None else total + values[s, ...]
    return total


class LogMeanExp:
    """Running log of the mean over draws of exp(log density), per row, on the host."""

    def __init__(self) -> None:
        self.count = 0
        self._top: Any = None  # largest so far, (N,)
        self._sum: Any = None  # of exp(value - top), draw by draw

    def add(self, values: Array) -> None:
        """Take S more draws, (S, N)."""
        rows = to_host(values).astype(np.float64)
        self.count += len(rows)
        if self._top is None:
            self._top, self._sum, rows = rows[0], np.ones_like(rows[0]), rows[1:]
        tops = np.fmax.accumulate(np.concatenate([self._top[None], rows]))
        safe = _finite(tops[1:])
        factors, terms = np.exp(tops[:-1] - safe), np.exp(rows - safe)
        # A new largest value of any row rescales the sum; the draws up to the next one add up.
        starts = np.flatnonzero((factors != 1.0).any(axis=1)).tolist()
        for low, high in itertools.pairwise([0, *starts, len(rows)]):
            if low < high:
                self._sum = _added(np, self._sum * factors[low], terms[low:high])
        self._top = tops[-1]

    def joined(self, other: LogMeanExp) -> LogMeanExp:
        """Return the statistics of the draws of both."""
        if self.count == 0 or other.count == 0:
            return copy.copy(other if self.count == 0 else self)
        both = LogMeanExp()
        both._top = np.where(other._top > self._top, other._top, self._top)
        safe = _finite(both._top)
        both._sum = self._sum * np.exp(self._top - safe) + other._sum * np.exp(other._top - safe)
        both.count = self.count + other.count
        return both

    def mean_over_rows(self, weights: npt.NDArray[np.float64] | None = None) -> float:
        """Mean over rows, by weights (N,) of theirs, of the log of the mean over draws."""
        with np.errstate(divide="ignore", invalid="ignore"):
            rows = _finite(self._top) + np.log(self._sum) - math.log(self.count)
            rows = np.where(self._top == -np.inf, -np.inf, rows)
            if weights is None:
                return float(np.mean(rows))
            used = weights > 0  # -inf of a row that does not count is nothing
            return float(np.average(rows[used], weights=weights[used]))


def _finite(top: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return what to subtract before exp: -inf against -inf is no mass either way."""
    return np.where(np.isfinite(top), top, 0.0)


class RunningPrediction:
    """Predictive statistics gathered while sampling (``predict_at=``)."""

    def __init__(
        self, target: Any, x: Array, y: Array | None, *, dim: int, keep: bool, function: str
    ) -> None:
        if not callable(getattr(target, "predictive", None)):
            raise TypeError(
                f"[{function}] expected a target with predictions for predict_at, "
                f"got {type(target).__name__}"
            )
        self.predictive: Predictive = target
        self.x = inputs(function, x, target)
        self.y = y if y is None or is_array(y) else checks.numeric(function, "y", y)
        if y is not None:
            same_rows(function, self.y, self.x)
        self.moments = Moments(target.kind)
        self.density = None if y is None else LogMeanExp()
        # Blocks of every thin-th draw, (D, C, N, K); (D, 1, ...) if chains do not differ.
        self._kept: list[dict[str, Array]] | None = [] if keep else None  # None: no draw is kept
        self._thin = 1
        self._noise_df: float | None = None
        self._dim = dim
        self._function = function
        self.shape: tuple[int, ...] = ()  # of what a draw predicts, (N, K)
        self.dtype = ""

    def prepare(self, theta: Array, guard: Any) -> None:
        """Check the inputs before draws of chains (C, P) come."""
        chains = theta.shape[0]
        one = self.evaluate(theta[:1, :], guard, rows=1)[0].values
        outputs = self.x.shape[0] * math.prod(one.shape[2:])
        self.shape, self.dtype = (self.x.shape[0], *one.shape[2:]), host_dtype(one).name
        # Moments, and what a step of all chains predicts.
        require_memory(
            self._function, namespace(one), (4 + chains) * outputs, np.float64, "predictive moments"
        )
        self.evaluate(theta[:1, :], guard)

    @property
    def kept(self) -> PredictiveTerms | None:
        """Predictions of the kept draws (S, N, K), draw by draw; None if no draw was kept."""
        if not self._kept:
            return None
        xp, whole = namespace(self.x), self._every(self._thin)[0]
        chains = max(array.shape[1] for array in whole.values())
        terms: dict[str, Any] = {
            name: array[0, ...]
            if array.shape[1] < chains
            else xp.reshape(array, (-1, *array.shape[2:]))
            for name, array in whole.items()
        }
        return PredictiveTerms(**terms, binary=self.moments._binary, noise_df=self._noise_df)

    def _keep(self, terms: PredictiveTerms, before: int, draws: int) -> None:
        """Keep the draws whose turn it is, after `before` draws of each chain."""
        if self._kept is None:
            return
        xp, count, block, size = namespace(terms.values), terms.values.shape[0], {}, 0
        for name in ARRAYS:
            if (array := getattr(terms, name)) is not None:
                chains = count // draws if array.shape[0] == count else 1
                array = xp.broadcast_to(array, (draws * chains, *array.shape[1:]))
                block[name] = xp.reshape(array, (draws, chains, *array.shape[1:]))
                size += math.prod(block[name].shape[1:]) * host_dtype(array).itemsize
        if size > _KEPT:
            self._kept = None
            return
        thin = self._thin
        while -(-(before + draws) // thin) * size > _KEPT:
            thin *= 2
        if thin > self._thin:
            self._kept, self._thin = self._every(thin), thin
        first = -before % thin
        if first < draws:
            part = {name: array[first::thin, ...] for name, array in block.items()}
            self._kept.append({n: xp.asarray(array, copy=True) for n, array in part.items()})
            self._noise_df = terms.noise_df

    def _every(self, thin: int) -> list[dict[str, Array]]:
        """Return every thin-th draw of the run in one block, in arrays that hold no others."""
        xp, step = namespace(self.x), thin // self._thin
        if not self._kept:
            return []
        whole = {n: xp.concat([b[n] for b in self._kept], axis=0) for n in self._kept[0]}
        return [{n: xp.asarray(a[::step, ...], copy=step > 1) for n, a in whole.items()}]

    def room(self, chains: int) -> int:
        """Return the draws of so many chains to predict with at once."""
        # One, unless the rounding of the core does not depend on it: blocks end by the clock.
        if overrides.own(self.predictive, "predictive_moments", ("predictive",)) is None:
            return 1
        return max(1, _AT_ONCE // (8 * chains * math.prod(self.shape)))

    def evaluate(self, theta: Array, guard: Any, rows: int | None = None) -> _Batch:
        """Predictions of weights (S, P), at the first `rows` inputs: nothing is counted yet."""
        size, block = rows or self.x.shape[0], max(32, _CALL // (self._dim * theta.shape[0]))
        parts, densities = [], []
        guard.begin_foreign()
        try:
            for low in range(0, size, block):
                some = slice(low, min(low + block, size))
                parts.append(self.predictive.predictive(theta, self.x[some, ...]))
                if self.y is not None:
                    given = theta, self.x[some, ...], self.y[some, ...]
                    densities.append(self.predictive.log_likelihood(*given))
        finally:
            guard.foreign = False
        xp = namespace(theta)
        return join(xp, parts), xp.concat(densities, axis=1) if densities else None

    def add(self, batch: _Batch, chains: int) -> None:
        """Count what :meth:`evaluate` returned of draws of all chains, draw after draw."""
        terms, density = batch
        self._keep(terms, self.moments.count // chains, terms.values.shape[0] // chains)
        self.moments.add(terms)
        if self.density is not None and density is not None:
            self.density.add(density)

    def copy(self) -> RunningPrediction:
        """Return the same, which does not change as more draws come."""
        other = copy.copy(self)
        other.moments = self.moments.copy()
        other.density = copy.copy(self.density)  # its arrays are replaced, not changed
        other._kept = None if self._kept is None else list(self._kept)
        return other

    def joined(self, other: RunningPrediction, *, axis: str) -> RunningPrediction:
        """Return what both gathered at the same inputs: the other has more "draws" or "chains"."""
        both = copy.copy(self)
        both.moments, both.density = self.moments.joined(other.moments), None
        if self.density is not None and other.density is not None:
            both.density = self.density.joined(other.density)
        both._thin = thin = max(self._thin, other._thin)  # both are powers of two
        if self._kept is None or other._kept is None:
            both._kept = None
            return both
        both._kept = self._every(thin) + other._every(thin)
        if axis == "chains" and len(both._kept) == 2:
            xp, (one, two) = namespace(self.x), map(_of_each_chain, both._kept)
            same = all(one[name].shape[0] == two[name].shape[0] for name in one)
            whole = {name: xp.concat([one[name], two[name]], axis=1) for name in one if same}
            both._kept = [whole] if same else None
        return both

    def pack(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return what a file must hold: plain values, and arrays."""
        moments, density = self.moments, self.density
        plain: dict[str, Any] = {"count": moments.count, "binary": moments._binary}
        arrays = {"x": self.x}
        arrays |= {name: getattr(moments, f"_{name}") for name in _MOMENTS}
        if density is not None:
            plain["density"] = density.count
            arrays |= {"density/top": density._top, "density/sum": density._sum}
        if self._kept:
            plain["kept"] = {"thin": self._thin, "noise_df": self._noise_df}
            arrays |= {f"kept/{name}": a for name, a in self._every(self._thin)[0].items()}
        return plain, {name: array for name, array in arrays.items() if array is not None}

    def restore(self, plain: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Continue from what :meth:`pack` returned; ValueError if it cannot have returned this."""
        _check_packed(self.predictive.kind, plain, arrays)
        xp, moments = namespace(self.x), self.moments
        given, arrays = arrays, {name: from_host(xp, value) for name, value in arrays.items()}
        moments.count, moments._binary = int(plain["count"]), bool(plain["binary"])
        for name in _MOMENTS:
            setattr(moments, f"_{name}", arrays.get(name))
        if "density" in plain:
            self.density = LogMeanExp()
            self.density.count = int(plain["density"])
            tops, sums = (given.get(f"density/{name}") for name in ("top", "sum"))
            self.density._top, self.density._sum = tops, sums
        if "kept" in plain:
            own = {name: arrays[f"kept/{name}"] for name in ARRAYS if f"kept/{name}" in arrays}
            self._kept, self._thin = [own], int(plain["kept"]["thin"])
            self._noise_df = plain["kept"]["noise_df"]


def _of_each_chain(block: dict[str, Array]) -> dict[str, Array]:
    """Return arrays (D, C, ...) of a block with those that all chains share, (D, 1, ...)."""
    chains = max(array.shape[1] for array in block.values())
    return {
        name: namespace(array).broadcast_to(array, (array.shape[0], chains, *array.shape[2:]))
        for name, array in block.items()
    }


def _check_packed(kind: str, plain: dict[str, Any], arrays: dict[str, Array]) -> None:
    count = whole("prediction/count", plain["count"], below=2**63)
    rows = arrays["x"].shape[:1]
    outputs = arrays["first"].shape[1:] if count else ()
    shapes: dict[str, tuple[int | None, ...]] = {}
    if count:
        shapes = dict.fromkeys(("first", "sum", "squares"), (*rows, *outputs))
        if kind == "classification":
            shapes["entropy"] = rows
        else:
            shapes["noise"] = _or_ones(arrays["noise"], (*rows, *outputs))
    if "density" in plain:
        if whole("density/count", plain["density"], below=2**63) != count:
            raise ValueError(f"{plain['density']} draws of the density where {count} were made")
        shapes |= dict.fromkeys(("density/top", "density/sum"), rows) if count else {}
    for name, shape in shapes.items():
        check_array(f"prediction/{name}", arrays[name], "float64", shape)
    if "kept" in plain:
        df, thin = plain["kept"]["noise_df"], whole("thin", plain["kept"]["thin"], below=2**63)
        names = {"probs"} if kind == "classification" else {"mean", "noise_sd"}
        names |= {name for name in ARRAYS if f"kept/{name}" in arrays}
        draws, chains = arrays["kept/probs" if "probs" in names else "kept/mean"].shape[:2]
        known = df is None or (isinstance(df, float) and df > 0.0 and "noise_scale" in names)
        if not known or thin < 1 or not 0 < draws * chains <= count:
            raise ValueError(
                f"{draws} draws of {chains} chains of {count} kept, noise_df {df!r:.60}"
            )
        for name in names:
            array, all_of = arrays[f"kept/{name}"], (draws, chains, *rows, *outputs)
            shape = all_of if name in ("mean", "probs") else (draws, *_or_ones(array, all_of)[1:])
            check_array(f"kept/{name}", array, _FLOATS, shape)


def _or_ones(array: Array, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return `shape` with 1 for each axis along which the array is not as long."""
    return tuple(n if array.shape[i : i + 1] == (n,) else 1 for i, n in enumerate(shape))


def inputs(function: str, x: Array, predictive: Any) -> Array:
    """Return x as an array with at least one row; lists are converted, frames matched by name."""
    checks.unmasked(function, "x", x)
    x = checks.matched(function, x, getattr(predictive, "columns", None))
    if not is_array(x) or isinstance(x, np.ndarray):
        x = checks.numeric(function, "x", x)
    if x.ndim == 0 or x.shape[0] == 0:
        raise ShapeError(f"[{function}] expected x (N, ...) with N >= 1, got shape {x.shape}")
    return x


def same_rows(function: str, y: Array, x: Array, *, of: str = "y") -> None:
    """Raise unless y, or what else is called `of`, has as many rows as x."""
    shape = y.shape if is_array(y) else checks.numeric(function, "y", y).shape
    if shape[:1] != x.shape[:1]:
        raise ShapeError(f"[{function}] expected {of} with {x.shape[0]} rows, got shape {shape}")


def _entropy(xp: Any, probs: Array, binary: bool) -> Array:
    """Entropy in nats over K outputs, (N, K) -> (N,)."""

    def part(p: Array) -> Array:
        return -p * xp.log(xp.where(p > 0.0, p, 1.0))

    parts = part(probs) + part(1.0 - probs) if binary else part(probs)
    return xp.sum(parts, axis=-1)


def by_chain(
    positions: Any,
    rows: int,
    function: Callable[[Numbers, Array], npt.NDArray[Any]],
    every: int = 1,
) -> npt.NDArray[Any]:
    """Return function(numbers, draws (S, P)) -> (S, ...) of draws (C, D, P) as (C, D', ...)."""
    chains, draws, _ = positions.shape
    result: Any = None
    for numbers, theta in chunks(positions, rows, every):
        part = function(numbers, theta)
        if result is None:
            result = np.empty((chains, -(-draws // every), *part.shape[1:]), part.dtype)
        result[numbers % chains, numbers // chains] = part
    assert result is not None, "no draws"
    return np.asarray(result)


def of_draws(
    predictive: Any, method: str, numbers: Numbers, theta: Array, *data: Array, row: int = 0
) -> Iterator[Any]:
    """Yield a method's result: for all draws, or per run of numbers if `numbered` is set."""
    ask = getattr(predictive, method)
    if not getattr(predictive, "numbered", False):
        yield ask(theta, *data)
        return
    ends = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
    for low, high in itertools.pairwise(ends):
        yield ask(theta[low:high, :], *data, first=int(numbers[low]), row=row)


def join(xp: Any, parts: list[PredictiveTerms], axis: int = 1) -> PredictiveTerms:
    """Make one PredictiveTerms of chunks of rows (axis 1) or draws (axis 0)."""
    first = parts[0]
    if len(parts) == 1:
        return first
    sizes = [p.values.shape[axis] for p in parts]

    def joined(arrays: list[Array]) -> Array | None:
        if arrays[0] is None:
            return None
        if all(a.shape[axis] == 1 for a in arrays) and max(sizes) > 1:
            return arrays[0]  # broadcast along this axis
        return xp.concat(arrays, axis=axis)

    arrays: dict[str, Any] = {name: joined([getattr(p, name) for p in parts]) for name in ARRAYS}
    return dataclasses.replace(first, **arrays)
