"""Poisson counts: distribution function and quantiles of mixtures, on arrays of any library."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from ribbit._arrays.namespace import errstate
from ribbit.protocols import Array
from ribbit.results.mixtures import Normal

__all__ = ["count_quantile", "poisson_cdf"]

_SUMMED = 40  # counts below are summed term by term
_LARGEST = float(np.finfo(np.float64).max)  # an infinite rate is taken as this one
_WIDE = 1e15  # larger numbers are bisected by their logarithms


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
