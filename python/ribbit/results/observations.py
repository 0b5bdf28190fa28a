"""The law of y at each row: the mixture over draws, noise included."""

# Shapes: S draws, n rows, K outputs, Q levels. Terms of draws have draws first; everything is
# float64.

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import mixtures, random_numbers
from ribbit._arrays.namespace import errstate, running_sum
from ribbit.errors import DataError
from ribbit.protocols import Array, PredictiveTerms
from ribbit.results.mixtures import Law, Normal, StudentT, mixture_quantile

if TYPE_CHECKING:
    import numpy.typing as npt

_PICK, _FIRST, _SECOND = (
    random_numbers.FIT_LAYERS[name] for name in ("picks", "noise", "second noise")
)
_MOST_NODES = 600  # of the integral of crps
_BLOCK = 1 << 15  # values per pass: temporaries stay in cache
_SUMMED = 40  # counts below are summed term by term
_LARGEST = float(np.finfo(np.float64).max)  # an infinite rate is taken as this one
_WIDE = 1e15  # larger numbers are bisected by their logarithms


def law_of(terms: PredictiveTerms) -> Law:
    """Return the law of the noise of a regression at scale 1."""
    return Normal() if terms.noise_df is None else StudentT(terms.noise_df)


def components(xp: ModuleType, terms: PredictiveTerms) -> tuple[Array, Array]:
    """Return means and widths of noise of the mixture of each row and output, (n K, S) each."""
    # In C order, so that sums over draws do not depend on how rows were divided.
    values = xp.permute_dims(xp.astype(terms.values, xp.float64), (1, 2, 0))
    width = xp.permute_dims(xp.astype(terms.noise_width, xp.float64), (1, 2, 0))
    pair = [xp.reshape(a, (-1,)) for a in (values, width + xp.zeros_like(values))]
    mean, width = (xp.reshape(a, (-1, values.shape[-1])) for a in pair)
    return mean, width


def quantiles(xp: ModuleType, kind: str, terms: PredictiveTerms, levels: Sequence[float]) -> Array:
    """Quantiles (Q, n, K) of y: to rounding, or of counts the smallest that reach the level."""
    if xp is np:
        return mixtures.quantiles(kind, terms, levels)
    mean, width = components(xp, terms)
    if kind == "count":
        found = [count_quantile(xp, mean, xp.full_like(mean[:, 0], q)) for q in levels]
        result = xp.stack(found, axis=0)
    else:
        result = mixture_quantile(xp, law_of(terms), mean, width, levels)
    return xp.reshape(result, (len(levels), *terms.values.shape[1:]))


def cdf(xp: ModuleType, kind: str, terms: PredictiveTerms, y: Array) -> Array:
    """P(Y <= y) of y (n, K), the mixture over draws."""
    if xp is np:
        return mixtures.cdf(kind, terms, y)
    mean, width = components(xp, terms)
    flat = xp.reshape(y, (-1, 1))
    parts = []
    for rows in _blocks(mean):
        if kind == "count":
            parts.append(xp.mean(poisson_cdf(xp, xp.floor(flat[rows, :]), mean[rows, :]), axis=-1))
        else:
            z = (flat[rows, :] - mean[rows, :]) / _wide(xp, width[rows, :])
            parts.append(xp.mean(law_of(terms).cdf(xp, z), axis=-1))
    return xp.reshape(xp.concat(parts), y.shape)


def crps(xp: ModuleType, terms: PredictiveTerms, y: Array) -> Array:
    """Continuous ranked probability score (n, K) of y (n, K) under the mixture over draws."""
    # E|Y - y| has a closed form per draw. E|Y - Y'| / 2 is the integral of F (1 - F), by the
    # trapezoidal rule: the integrand is smooth at the scale of the noise and vanishes at both ends.
    df = terms.noise_df
    if df is not None and df <= 1.0:
        return xp.full_like(y, xp.inf)  # no mean
    if xp is np:
        return mixtures.crps(terms, y)
    law = law_of(terms)
    mean, width = components(xp, terms)
    flat = xp.reshape(y, (-1, 1))
    parts = []
    for rows in _blocks(mean):
        own, sd = mean[rows, :], _wide(xp, width[rows, :])
        with errstate(xp):
            z = (flat[rows, :] - own) / sd
            tail = 1.0 if df is None else (df + z * z) * (1.0 / (df - 1.0))
            near = xp.abs(z) < 1e150  # z * z is finite; beyond the density vanishes
            slope = xp.where(near, 2.0 * tail * law.density(xp, z), 0.0)
            distance = sd * (z * (2.0 * law.cdf(xp, z) - 1.0) + slope)
        parts.append(xp.mean(distance, axis=-1) - _half_spread(xp, law, df, own, sd))
    return xp.reshape(xp.concat(parts), y.shape)


def _half_spread(xp: ModuleType, law: Law, df: float | None, mean: Array, sd: Array) -> Array:
    """E|Y - Y'| / 2 of each row of a mixture (R, S)."""
    low, high = xp.min(mean, axis=-1), xp.max(mean, axis=-1)
    centre, widest, least = 0.5 * (low + high), xp.max(sd, axis=-1), xp.min(sd, axis=-1)
    reach = 0.5 * (high - low)
    if df is None:
        # exp(-(pi / 0.7)^2) = 2e-9 is left of the integrand's spectrum at that spacing
        end = reach + 9.0 * widest
        nodes = _nodes(2.0 * float(xp.max(end / least)) / 0.7)
    else:
        # z = centre + least sinh(u): tails fall as exp(-(df - 1) u), and beyond the end as z^-df
        end = xp.asinh(reach / least + widest / least) + min(40.0 / (df - 1.0), 10.0)
        apart = float(xp.max(reach / least))
        nodes = _nodes(2.0 * float(xp.max(end)) * max(4.0, 2.0 * min(apart, 1e3)))
    total = tails = xp.zeros_like(centre)
    for i in range(nodes + 1):
        u = end * (2.0 * i / nodes - 1.0)
        place = centre + (u if df is None else least * xp.sinh(u))
        f = xp.mean(law.cdf(xp, (place[:, None] - mean) / sd), axis=-1)
        last = f * (1.0 - f) * (1.0 if df is None else least * xp.cosh(u))
        total = total + (0.5 if i in (0, nodes) else 1.0) * last
        if df is not None and i in (0, nodes):
            tails = tails + f * (1.0 - f) * xp.abs(place - centre) * (1.0 / (df - 1.0))
    return total * (2.0 / nodes) * end + tails


def _nodes(wanted: float) -> int:
    return int(min(max(math.ceil(wanted), 32), _MOST_NODES))


def picks(count: int, draws: int, seed: int) -> npt.NDArray[np.int64]:
    """Return numbers of draws (count,), each of (seed, its place), with replacement."""
    u = _uniform(np, (count, 1), seed, np.arange(count), _PICK)[:, 0]
    found: npt.NDArray[np.int64] = np.minimum((u * draws).astype(np.int64), draws - 1)
    return found


def sample(
    xp: ModuleType, kind: str, terms: PredictiveTerms, seed: int, numbers: npt.NDArray[np.int64]
) -> Array:
    """Return one y (S, n, K) of each draw, labels (S, n, 1), for samples by number."""
    values = xp.astype(terms.values, xp.float64)
    shape = tuple(values.shape)
    flat = shape[0], math.prod(shape[1:])
    if kind == "classification":
        if terms.binary:
            u = xp.reshape(_uniform(xp, flat, seed, numbers, _FIRST), shape)
            return xp.astype(u < values, xp.int64)
        u = xp.reshape(_uniform(xp, shape[:2], seed, numbers, _FIRST), (*shape[:2], 1))
        passed = u > running_sum(xp, values)[..., :-1]  # the last has what is left
        return xp.sum(xp.astype(passed, xp.int64), axis=-1, keepdims=True)
    if kind == "count":
        u = xp.reshape(_uniform(xp, flat, seed, numbers, _FIRST), (-1,))
        found = count_quantile(xp, xp.reshape(values, (-1, 1)), u)
        if not bool(xp.all(found < 2.0**63)):
            raise DataError(
                "[Prediction.sample] expected rates whose counts are below 2**63, got a count of "
                f"{float(xp.max(found)):.3g}: ask for quantile or interval, which are float64"
            )
        return xp.astype(xp.reshape(found, shape), xp.int64)
    if terms.noise_df is None:
        counter = _counter(seed, numbers, _FIRST)
        noise = random_numbers.normal(xp, flat, np.dtype(np.float64), **counter)
    else:
        # Bailey (1994, Math. Comp. 62): the polar method for Student's t
        u, v = (_uniform(xp, flat, seed, numbers, layer) for layer in (_FIRST, _SECOND))
        df = float(terms.noise_df)
        noise = (df * xp.expm1(xp.log(u) * (-2.0 / df))) ** 0.5 * xp.cos(2.0 * math.pi * v)
    return values + xp.astype(terms.noise_width, xp.float64) * xp.reshape(noise, shape)


def _uniform(
    xp: ModuleType, shape: tuple[int, int], seed: int, numbers: npt.NDArray[np.int64], layer: int
) -> Array:
    return random_numbers.uniform(xp, shape, **_counter(seed, numbers, layer))


def _counter(seed: int, numbers: npt.NDArray[np.int64], layer: int) -> dict[str, Any]:
    """Return the counter of the random numbers of samples by number."""
    own = {"purpose": random_numbers.FIT_DRAW, "layer": layer}
    return {"seed": seed, "step": 0, "chains": numbers.astype(np.uint32), **own}


def _blocks(mean: Array) -> list[slice]:
    """Rows of (R, S), some at a time."""
    size, rows = mean.shape[0], max(1, _BLOCK // mean.shape[-1])
    return [slice(low, min(low + rows, size)) for low in range(0, size, rows)]


def _wide(xp: ModuleType, width: Array) -> Array:
    """Widths that can be divided by."""
    return xp.where(width > 1e-150, width, 1e-150)


def poisson_cdf(xp: ModuleType, count: Array, rate: Array) -> Array:
    """Return P(y <= count) of a Poisson variable, counts >= -1, to an absolute error of 1e-6."""
    # Below 40 a sum, to rounding; from there on the normal approximation of Peizer and Pratt (1968,
    # JASA 63), off by at most 8e-7.
    few = xp.clip(rate, 0.0, 700.0)  # exp(-700) is a float64; P(y < 40) is 0 beyond
    term = xp.exp(-few)
    total = xp.where(count >= 0.0, term, 0.0)
    for j in range(1, _SUMMED):
        term = term * few * (1.0 / j)
        total = total + xp.where(count >= float(j), term, 0.0)
    many = xp.clip(rate, 1.0, _LARGEST)
    k = xp.clip(count, float(_SUMMED), None) + 0.0 * many
    ratio = xp.clip((k + 0.5) / many, None, 1e100)  # whose square is finite
    d = ratio - 1.0
    near = xp.abs(d) < 1e-3
    apart = xp.where(near, 1.0, d)
    spread = 2.0 * (ratio * xp.log(ratio) - d) / (apart * apart)
    spread = xp.where(near, 1.0 - d * (1.0 / 3.0 - d * (1.0 / 6.0 - d / 10.0)), spread)
    z = (k + 2.0 / 3.0 - many + 0.02 / (k + 1.0)) * (spread / many) ** 0.5
    value = xp.where(count < float(_SUMMED), total, Normal().cdf(xp, z))
    return xp.clip(value, 0.0, 1.0)


def count_quantile(xp: ModuleType, rate: Array, q: Array) -> Array:
    """Return the smallest counts (R,) with P(y <= count) >= q (R,), mixtures of rates (R, S)."""
    # Beyond 2**53 they are the next float64 numbers. They are infinite if that many rates are.
    with errstate(xp):
        rate = xp.clip(rate, 0.0, _LARGEST)
        top = xp.max(rate, axis=-1)
        low = xp.full_like(top, -1.0)
        high = xp.clip(xp.ceil(top + 12.0 * top**0.5 + 60.0), None, _LARGEST)  # P(y > it) < 1e-17
        while True:
            middle = xp.floor(low + 0.5 * (high - low))
            apart = (high > 2.0 * _WIDE) & (high > 4.0 * (low + 1.0))
            middle = xp.where(apart, xp.floor(((low + 1.0) ** 0.5) * high**0.5), middle)
            between = (middle > low) & (middle < high)
            if not bool(xp.any(between)):
                break
            reached = xp.mean(poisson_cdf(xp, middle[:, None], rate), axis=-1) >= q
            high = xp.where(between & reached, middle, high)
            low = xp.where(between & ~reached, middle, low)
    return xp.where(high >= _LARGEST, xp.inf, high)
