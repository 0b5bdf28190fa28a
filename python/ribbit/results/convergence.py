"""R-hat and effective sample size of quantities, a block at a time on the host."""

# Arrays are (M, C, D) float64 without NaN, D >= 4: quantities, chains, draws. Means are summed in
# the order of ArviZ, and FFTs run along memory. Equations: Vehtari et al. (2021), Bayesian Analysis
# 16, 667-718.

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import from_device, is_array, is_device_array, is_lazy, to_host
from ribbit.errors import DTypeError, ShapeError
from ribbit.results.lazy import Numbers, forget
from ribbit.results.running import by_chain, of_draws

if TYPE_CHECKING:
    import numpy.typing as npt


Array: TypeAlias = "npt.NDArray[np.float64]"

_BLOCK_ELEMENTS = (
    1 << 14
)  # draws in one block of quantities: larger scratch costs new pages in each call
_STORED_ELEMENTS = 1 << 22  # of draws on the disk, all of which each block reads
_ROW_ELEMENTS = 1 << 21  # predictions held at once, draws x rows: 16 MiB
# Normal quantiles by Wichura (1988), algorithm AS 241, Applied Statistics 37, 477, routine PPND16,
# whose relative error is about 1e-16: coefficients of numerator and denominator, the highest power
# first.
_MIDDLE = (
    (
        2.5090809287301226727e3,
        3.3430575583588128105e4,
        6.7265770927008700853e4,
        4.5921953931549871457e4,
        1.3731693765509461125e4,
        1.9715909503065514427e3,
        1.3314166789178437745e2,
        3.3871328727963666080e0,
    ),
    (
        5.2264952788528545610e3,
        2.8729085735721942674e4,
        3.9307895800092710610e4,
        2.1213794301586595867e4,
        5.3941960214247511077e3,
        6.8718700749205790830e2,
        4.2313330701600911252e1,
        1.0,
    ),
)
_TAIL = (
    (
        7.7454501427834140764e-4,
        2.27238449892691845833e-2,
        2.41780725177450611770e-1,
        1.27045825245236838258e0,
        3.64784832476320460504e0,
        5.76949722146069140550e0,
        4.63033784615654529590e0,
        1.42343711074968357734e0,
    ),
    (
        1.05075007164441684324e-9,
        5.47593808499534494600e-4,
        1.51986665636164571966e-2,
        1.48103976427480074590e-1,
        6.89767334985100004550e-1,
        1.67638483018380384940e0,
        2.05319162663775882187e0,
        1.0,
    ),
)
_FAR_TAIL = (
    (
        2.01033439929228813265e-7,
        2.71155556874348757815e-5,
        1.24266094738807843860e-3,
        2.65321895265761230930e-2,
        2.96560571828504891230e-1,
        1.78482653991729133580e0,
        5.46378491116411436990e0,
        6.65790464350110377720e0,
    ),
    (
        2.04426310338993978564e-15,
        1.42151175831644588870e-7,
        1.84631831751005468180e-5,
        7.86869131145613259100e-4,
        1.48753612908506148525e-2,
        1.36929880922735805310e-1,
        5.99832206555887937690e-1,
        1.0,
    ),
)


def rhat_block(
    a: Array, *, method: str = "rank", superchains: npt.NDArray[np.intp] | None = None
) -> Array:
    """R-hat (M,) by a method of `rhat`; nested if `superchains` (C,) from 0 to K - 1 are given."""
    formula, parts = _rhat_plain, a
    if superchains is not None:
        formula = functools.partial(_nested_plain, superchains=superchains)
    elif method != "identity":
        parts = _split(a)
    if method in ("identity", "split"):
        value = formula(parts)
    elif method == "folded":
        value = formula(_z_scale(_fold(parts)))
    else:
        value = formula(_z_scale(parts))
        if method == "rank":
            tail = formula(_z_scale(_fold(parts)))
            value = np.where(tail > value, tail, value)  # a NaN tail (two values only) gives bulk
    # rounding of the mean would give equal draws a variance of some 1e-34
    return np.where(_constant(a), np.nan, value)


def _nested_plain(a: Array, superchains: npt.NDArray[np.intp]) -> Array:
    """sqrt(1 + B / W) of (M, C, n), B between superchains (Margossian et al. 2024, eq. 8)."""
    chain_means = a.mean(axis=2)
    within_chain = a.var(axis=2, ddof=1) if a.shape[2] > 1 else np.zeros_like(chain_means)
    count = int(superchains.max()) + 1
    means, within = np.empty((2, len(a), count))
    for k in range(count):
        own = superchains == k
        means[:, k] = chain_means[:, own].mean(axis=1)
        within[:, k] = within_chain[:, own].mean(axis=1)
        if own.sum() > 1:
            within[:, k] += chain_means[:, own].var(axis=1, ddof=1)
    result: Array = np.sqrt(1.0 + means.var(axis=1, ddof=1) / within.mean(axis=1))
    return result


def _rhat_plain(a: Array) -> Array:
    """sqrt(((n - 1) W + B) / (n W)) of (M, C, n)."""
    n = a.shape[2]
    between = n * a.mean(axis=2).var(axis=1, ddof=1)
    within = a.var(axis=2, ddof=1).mean(axis=1)
    result: Array = np.sqrt((between / within + n - 1) / n)
    return result


def ess_block(a: Array, *, method: str, tail_probability: float = 0.05) -> Array:
    """Effective sample size (M,) by a method of :func:`ribbit.diagnostics.ess`."""
    if method == "identity":
        return _ess_plain(a)
    if method == "mean":
        return _ess_plain(_split(a))
    if method == "bulk":
        return _ess_plain(_z_scale(_split(a)))
    if method == "sd":
        deviation = a - a.mean(axis=(1, 2), keepdims=True)
        return _ess_plain(_split(deviation * deviation))
    if method == "median":
        return _ess_quantile(a, 0.5)
    return np.minimum(_ess_quantile(a, tail_probability), _ess_quantile(a, 1.0 - tail_probability))


def _ess_quantile(a: Array, probability: float) -> Array:
    quantile = np.quantile(a.reshape(len(a), -1), probability, axis=1)
    return _ess_plain(_split((a <= quantile[:, None, None]).astype(np.float64)))


def _ess_plain(a: Array) -> Array:
    """C n / tau of (M, C, n), tau from Geyer's initial monotone sequence."""
    chains, n = a.shape[1:]
    covariance = _autocovariance(a).mean(axis=1)  # (M, n)
    within = covariance[:, :1] * n / (n - 1.0)
    total = within * (n - 1.0) / n
    if chains > 1:
        total = total + a.mean(axis=2).var(axis=1, ddof=1)[:, None]
    rho = 1.0 - (within - covariance) / total
    rho[:, 0] = 1.0
    # pairs[k] = rho[2k] + rho[2k + 1]; the sequence ends at the first pair that is not positive, or
    # near the longest lag; the even term of that last pair still counts when it is positive
    pairs = rho[:, 0 : n - n % 2 : 2] + rho[:, 1::2]
    k = np.arange(pairs.shape[1])
    stop = ~(pairs > 0.0) | (2 * k + 1 >= n - 3)
    last = stop.argmax(axis=1)
    monotone = np.minimum.accumulate(pairs, axis=1)
    head = np.where(k < last[:, None], monotone, 0.0).sum(axis=1)
    rows = np.arange(len(a))
    even = rho[rows, 2 * last]
    even = np.where((pairs[rows, last] >= 0.0) | (even > 0.0), even, 0.0)
    size = chains * n
    tau = np.maximum(-1.0 + 2.0 * head + even, 1.0 / np.log10(size))
    tau = np.where(np.isnan(rho[:, 1]), np.nan, tau)  # infinite draws
    return np.where(_constant(a), float(size), size / tau)


def chance_limit(
    chains: int, draws: int, count: int, superchains: npt.NDArray[np.intp] | None = None
) -> float:
    """Return an R-hat that the largest of `count` independent quantities hardly exceeds."""
    # R-hat^2 is 1 + (F - 1) / n for halves of n draws and an F of the halves' means, nested R-hat^2
    # is 1 + F / n for groups of n draws: with the 99.9 % quantile of the largest of `count`
    # independent F (Paulson's approximation).
    if draws < 4:
        return math.nan
    size, groups, more = draws // 2, 2 * chains, 1.0
    if superchains is not None:
        groups, more = int(superchains.max()) + 1, 0.0
        size = draws * len(superchains) // groups
    first, second = groups - 1, groups * (size - 1)
    z = -float(lower_quantile(np.array([1e-3 / count]))[0])
    a, b = 2.0 / (9.0 * first), 2.0 / (9.0 * second)
    if (1.0 - b) ** 2 <= z * z * b:  # a few draws of one chain: no quantile, as if there were many
        b = 0.0
    root = math.sqrt((1.0 - a) ** 2 * b + (1.0 - b) ** 2 * a - z * z * a * b)
    f = (((1.0 - a) * (1.0 - b) + z * root) / ((1.0 - b) ** 2 - z * z * b)) ** 3
    return math.sqrt(1.0 + (f - more) / size)


def far_below(lp: Array) -> npt.NDArray[np.intp]:
    """Return the chains with a far lower log density (C, D) than the others."""
    # A mean lies below the median of the others' means by ten times (four chains: twenty times) the
    # larger of two spreads: the sd within the median chain, and half the range of the others' means
    # (eight chains or more: of their upper three quarters). Fewer than 1 % of the runs whose means
    # come from one normal law have such a chain.
    chains, size = lp.shape
    if chains < 4 or size < 2:
        return np.zeros(0, np.intp)
    with np.errstate(invalid="ignore", over="ignore"):
        means, within = lp.mean(axis=1), lp.std(axis=1, ddof=1)
    if not (np.isfinite(means).all() and np.isfinite(within).all()):
        return np.zeros(0, np.intp)
    own = median(within)
    found = []
    for c in range(chains):
        others = np.sort(np.delete(means, c))
        # The median; `median()` sorts again, for every chain.
        middle = others[[(chains - 2) // 2, (chains - 1) // 2]].mean()
        upper = others[len(others) // 4 if chains >= 8 else 0 :]
        reach = (10.0 if chains > 4 else 20.0) * max(0.5 * np.ptp(upper), own)
        if means[c] < middle - reach:
            found.append(c)
    return np.array(found, np.intp)


def mcse_block(a: Array, *, method: str) -> Array:
    """Monte Carlo standard error (M,) by a method of :func:`ribbit.diagnostics.mcse`."""
    flat = a.reshape(len(a), -1)
    if method == "mean":
        return np.asarray(flat.std(axis=1, ddof=1) / np.sqrt(_ess_plain(_split(a))))
    deviation = a - a.mean(axis=(1, 2), keepdims=True)
    # The squares mix at their own pace: for an antithetic chain far slower than the mean does.
    size = _ess_plain(_split(deviation * deviation))
    square = (deviation * deviation).reshape(len(a), -1)
    variance = square.mean(axis=1)
    variance_of_variance = ((square * square).mean(axis=1) - variance**2) / size
    value = np.sqrt(variance_of_variance / variance / 4.0)
    return np.where(_constant(a), np.nan, value)


def _split(a: Array) -> Array:
    """(M, C, D) -> (M, 2 C, D // 2): first halves, then second halves."""
    half = a.shape[2] // 2
    return np.concatenate([a[:, :, :half], a[:, :, -half:]], axis=1)


def _fold(a: Array) -> Array:
    return np.abs(a - _medians(a.reshape(len(a), -1))[:, None, None])


def median(values: Array) -> float:
    """Median of (n,)."""
    return float(_medians(values[None])[0])


def _medians(flat: Array) -> Array:
    """Median of every row (M, n); np.median imports np.ma, 20 ms of the first short run."""
    middle = flat.shape[1] // 2
    two = [middle] if flat.shape[1] % 2 else [middle - 1, middle]
    ordered = np.partition(flat, [*two, flat.shape[1] - 1], axis=1)
    # NaN sorts to the end, and is what such a row has.
    return np.where(np.isnan(ordered[:, -1]), np.nan, ordered[:, two].mean(axis=1))


def _z_scale(a: Array) -> Array:
    """Return normal scores of the ranks over chains and draws; ties share their mean rank."""
    flat = a.reshape(len(a), -1)
    n = flat.shape[1]
    order = flat.argsort(axis=1)  # not stable: equal values get the same score in any order
    ordered = np.take_along_axis(flat, order, axis=1)
    new = ordered[:, 1:] != ordered[:, :-1]
    table = _normal_scores(n)
    scores = np.empty_like(flat)
    if new.all():
        np.put_along_axis(scores, order, table[None, ::2], axis=1)
        return scores.reshape(a.shape)
    position = np.broadcast_to(np.arange(n), flat.shape)
    first = np.zeros(flat.shape, dtype=np.intp)  # first and last place of the run of equal values
    first[:, 1:] = np.where(new, position[:, 1:], 0)
    np.maximum.accumulate(first, axis=1, out=first)
    last = np.full(flat.shape, n - 1, dtype=np.intp)
    last[:, :-1] = np.where(new, position[:, :-1], n - 1)
    last = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
    np.put_along_axis(scores, order, table[first + last], axis=1)
    return scores.reshape(a.shape)


@functools.lru_cache(maxsize=8)
def _normal_scores(n: int) -> Array:
    """Tabulate the normal quantile of (rank - 3/8) / (n + 1/4) (Blom 1958), ranks 1, 1.5, ... n."""
    ranks = 1.0 + 0.5 * np.arange(n, dtype=np.float64)
    half: Array = (ranks - 0.375) / (n + 0.25)  # up to the middle, which is 1/2
    below = lower_quantile(half)
    below[-1] = 0.0
    table = np.concatenate([below, -below[-2::-1]])
    table.setflags(write=False)
    return table


def _autocovariance(a: Array) -> Array:
    """(M, C, n) at lags 0 ... n - 1 by FFT, divided by n at every lag (the biased estimate)."""
    n = a.shape[2]
    length = _fft_length(2 * n)
    spectrum = np.fft.rfft(a - a.mean(axis=2, keepdims=True), n=length, axis=2)
    power = spectrum.real**2 + spectrum.imag**2
    result: Array = np.fft.irfft(power, n=length, axis=2)[:, :, :n] / n
    return result


def _fft_length(n: int) -> int:
    """Return the smallest 2^a 3^b 5^c >= n."""
    best = 1 << (n - 1).bit_length()
    five = 1
    while five < best:
        three = five
        while three < best:
            two = three << max(0, (-(-n // three) - 1).bit_length())
            best = min(best, two)
            three *= 3
        five *= 5
    return best


def _constant(a: Array) -> npt.NDArray[np.bool_]:
    flat = a.reshape(len(a), -1)
    result: npt.NDArray[np.bool_] = flat.max(axis=1) == flat.min(axis=1)
    return result


def lower_quantile(p: Array) -> Array:
    """Return the standard normal's quantile of probabilities 0 < p <= 1/2."""
    below = p - 0.5
    result = np.empty_like(p)
    middle = below >= -0.425
    q = below[middle]
    result[middle] = q * _ratio(_MIDDLE, 0.180625 - q * q)
    r = np.sqrt(-np.log(p[~middle]))
    near = r <= 5.0
    result[~middle] = -np.where(near, _ratio(_TAIL, r - 1.6), _ratio(_FAR_TAIL, r - 5.0))
    return result


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Array) -> Array:
    """Return the ratio of two polynomials."""
    values = []
    for one in coefficients:
        value = np.full_like(x, one[0])
        for coefficient in one[1:]:
            value = value * x + coefficient
        values.append(value)
    return np.asarray(values[0] / values[1])


def by_block(
    name: str,
    a: npt.ArrayLike,
    function: Callable[[Array], Array],
    *,
    min_chains: int,
    min_draws: int = 4,
) -> Array:
    """Apply `function` to blocks (M, C, D) of a (C, D, ...); NaN for fewer chains or draws."""
    if hasattr(a, "positions"):
        raise DTypeError(
            f"[{name}] expected an array (C, D, ...), got {type(a).__name__}: give its positions, "
            "or ask for predictive_rhat(draws, x) or predictive_ess(draws, x)"
        )
    # Draws on the disk are read in blocks of their quantities.
    given: Any = a
    draws: Any = a if is_lazy(a) and given.ndim == 3 else as_host(a, name)
    if draws.ndim < 2:
        raise ShapeError(f"[{name}] expected a of shape (chains, draws, ...), got {draws.shape}")
    chains, length, *rest = draws.shape
    flat: Any = draws
    if not is_lazy(draws):
        if not draws.flags.c_contiguous:  # it is copied
            checks.memory(name, draws.size, draws.dtype, f"a of shape {draws.shape}")
        flat = draws.reshape(chains, length, -1) if draws.size else draws.reshape(chains, length, 0)
    count = int(np.prod(rest, dtype=np.int64))
    result = np.full(count, np.nan)
    if chains < min_chains or length < min_draws:
        return result.reshape(rest)
    most = _BLOCK_ELEMENTS if flat is not a else _STORED_ELEMENTS
    block = max(1, most // (chains * length))
    for begin in range(0, count, block):
        part = np.ascontiguousarray(flat[:, :, begin : begin + block].transpose(2, 0, 1))
        values = part.astype(np.float64, copy=False)
        good = np.isfinite(values).all(axis=(1, 2))
        if good.any():
            # constant or infinite draws make 0 / 0 and inf - inf: the answer is NaN, not a warning
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                target = result[begin : begin + len(part)]
                target[good] = function(values if good.all() else values[good])
        if flat is a:
            forget(a)
    return result.reshape(rest)


def positions_of(name: str, draws: Any) -> Any:
    """Positions (C, D, P) of Draws, or the array itself."""
    positions = getattr(draws, "positions", draws)
    if positions is not draws and positions.shape[1] == 0:
        raise ValueError(f"[{name}] expected draws with positions, got none (save_draws=False?)")
    return positions


def by_row(name: str, draws: Any, x: Any, function: Callable[[npt.ArrayLike], Array]) -> Array:
    """Apply `function` to the predictions (C, D, n, K) of one block of rows after another."""
    if not hasattr(draws, "positions"):
        raise TypeError(f"[{name}] expected draws as Draws, got {checks.summary(draws)}")
    positions = positions_of(name, draws)
    predictive = getattr(draws, "predictive", None)
    if predictive is None:
        raise TypeError(
            f"[{name}] expected draws of a target with predictions, such as Posterior, got one "
            "without"
        )
    checks.unmasked(name, "x", x)
    x = checks.matched(name, x, getattr(predictive, "columns", None))
    if is_device_array(x):
        x = from_device(name, "x", x)
    elif not is_array(x) or isinstance(x, np.ndarray):
        x = checks.numeric(name, "x", x)
    if len(x.shape) == 0 or x.shape[0] == 0:
        raise ShapeError(f"[{name}] expected x of shape (N, ...) with rows, got {x.shape}")
    block = max(1, _ROW_ELEMENTS // max(1, positions.shape[0] * positions.shape[1]))
    parts = []
    for begin in range(0, x.shape[0], block):
        rows = x[begin : begin + block]

        def values(numbers: Numbers, theta: Any, rows: Any = rows, row: int = begin) -> Any:
            """Return what draws predict at some rows, (S, n, K)."""
            terms = of_draws(predictive, "predictive", numbers, theta, rows, row=row)
            return np.concatenate([as_host(_values(one), name) for one in terms])

        parts.append(function(by_chain(positions, len(rows), values)))
    found = np.concatenate(parts)
    return found[:, 0] if getattr(predictive, "flat", False) and found.shape[1] == 1 else found


def _values(terms: Any) -> Any:
    """Return probabilities, or means if there are none, (S, n, K)."""
    return terms.mean if terms.probs is None else terms.probs


def as_host(a: Any, function: str = "ribbit") -> npt.NDArray[Any]:
    """Return a NumPy array; one on a device, of whatever library, is copied here."""
    if type(a) is np.ndarray and a.dtype.kind in "fiub" and a.nbytes <= 1 << 28:
        return a
    if is_device_array(a):
        a = to_host(a if hasattr(a, "get") else from_device(function, "a", a))
    return checks.numeric(function, "a", a)
