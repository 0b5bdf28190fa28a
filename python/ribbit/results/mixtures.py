"""Quantiles of mixtures of one law, shifted and scaled: of y, noise included, over draws."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ribbit._arrays.namespace import errstate, from_host
from ribbit.protocols import Array

if TYPE_CHECKING:
    import numpy.typing as npt

_ORDER = 8  # of Taylor's series around the nodes of a table
_BLOCK = 1 << 15  # values per pass: temporaries stay in cache


class Law(Protocol):
    """A symmetric law at location 0 and scale 1, float64 on arrays of any library."""

    def cdf(self, xp: ModuleType, z: Array) -> Array:
        """Distribution function."""
        ...

    def density(self, xp: ModuleType, z: Array) -> Array:
        """Density."""
        ...

    def quantile(self, p: float) -> float:
        """Inverse of the distribution function, p in (0, 1)."""
        ...


class Normal:
    """N(0, 1)."""

    # The array API has no erf: Taylor's series around a grid of spacing 1/32 in Hermite
    # polynomials, cdf(a + h) = cdf(a) + pdf(a) * sum over k >= 1 of (-1)^(k-1) He_(k-1)(a) h^k /
    # k!.

    _SPACING = 1.0 / 32.0
    _END = 9.0  # cdf(-9) = 1.1e-19

    def cdf(self, xp: ModuleType, z: Array) -> Array:
        """Distribution function, to an absolute error of 3e-16."""
        cdf, pdf = (from_host(xp, table) for table in _normal_nodes(self._SPACING, self._END))
        z = xp.clip(z, -self._END, self._END)
        nearest = xp.round(z * (1.0 / self._SPACING))
        a = nearest * self._SPACING
        h = z - a
        index = xp.reshape(xp.astype(nearest + self._END / self._SPACING, xp.int64), (-1,))
        previous, current = xp.ones_like(a), a  # He_0, He_1
        power = h * h * -0.5
        series = h + power * current
        for k in range(3, _ORDER + 1):
            previous, current = current, a * current - (k - 2) * previous
            power = power * (h * (-1.0 / k))
            series = series + power * current
        at, slope = (xp.reshape(xp.take(table, index), z.shape) for table in (cdf, pdf))
        return at + slope * series

    def density(self, xp: ModuleType, z: Array) -> Array:
        """Density."""
        return xp.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)

    def quantile(self, p: float) -> float:
        """Inverse of the distribution function."""
        from statistics import NormalDist  # not with ribbit: slow to load

        return NormalDist().inv_cdf(p)


@functools.lru_cache(maxsize=1)
def _normal_nodes(
    spacing: float, end: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    z = np.arange(-end, end + 0.5 * spacing, spacing)
    cdf = np.array([0.5 * math.erfc(-v / math.sqrt(2.0)) for v in z])
    return cdf, np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)


class StudentT:
    """Student's t with `df` degrees of freedom, beyond 1e30 as with 1e30."""

    # With s = asinh(z / sqrt(df)) the tail is C times the integral of cosh^-df beyond s. It is
    # tabled up to where it is exponential in s or vanishes: Taylor's series of cosh^-df around
    # nodes a 32nd of its width apart, whose coefficients follow from (cosh^-df)' = -df tanh
    # cosh^-df.

    def __init__(self, df: float) -> None:
        self._df = min(df, 1e30)
        self._spacing = 1.0 / (32.0 * math.sqrt(max(self._df, 1.0)))
        # cosh^-df = exp(-45) there, or tanh = 1
        self._end = math.acosh(math.exp(45.0 / self._df)) if self._df > 2.25 else 20.0
        if self._df > 1e6:  # acosh(1 + x) for an x that 1 + x loses
            self._end = math.sqrt(90.0 / self._df)
        count = math.ceil(self._end / self._spacing) + 1
        nodes = np.arange(count, dtype=np.float64) * self._spacing
        self._end = float(nodes[-1])
        self._table, self._norm = _student_nodes(self._df, nodes)

    def cdf(self, xp: ModuleType, z: Array) -> Array:
        """Distribution function, to an absolute error of 1e-15."""
        s = xp.asinh(xp.abs(z) * (1.0 / math.sqrt(self._df)))
        inside = xp.clip(s, 0.0, self._end)
        nearest = xp.round(inside * (1.0 / self._spacing))
        h = inside - nearest * self._spacing
        index = xp.reshape(xp.astype(nearest, xp.int64), (-1,))
        tail = xp.zeros_like(h)
        for coefficients in reversed(self._table):
            own = xp.take(from_host(xp, coefficients), index)
            tail = tail * h + xp.reshape(own, h.shape)
        tail = tail * xp.exp(-self._df * (s - inside))
        return xp.where(z < 0.0, tail, 1.0 - tail)

    def density(self, xp: ModuleType, z: Array) -> Array:
        """Density."""
        u = xp.abs(z) * (1.0 / math.sqrt(self._df))
        power = xp.exp(-0.5 * (self._df + 1.0) * xp.log1p(u * u))
        return power * (self._norm / math.sqrt(self._df))

    def quantile(self, p: float) -> float:
        """Inverse of the distribution function; beyond e^690 sqrt(df) infinite."""
        tail = min(p, 1.0 - p)
        last = float(self._table[0][-1])
        if tail <= last:
            s = self._end + math.log(last / tail) / self._df
        else:
            low, high = 0.0, self._end
            for _ in range(60):
                s = 0.5 * (low + high)
                z = -math.sqrt(self._df) * math.sinh(s)
                found = float(self.cdf(np, np.array([z]))[0])
                low, high = (s, high) if found > tail else (low, s)
            s = 0.5 * (low + high)
        z = math.sqrt(self._df) * math.sinh(s) if s < 690.0 else math.inf
        return z if p > 0.5 else -z


def _student_nodes(
    df: float, a: npt.NDArray[np.float64]
) -> tuple[list[npt.NDArray[np.float64]], float]:
    """Return Taylor coefficients of the tail around the nodes `a`, from 0 on, by power, and C."""

    def power(s: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:  # cosh^-df
        return np.exp(-df * np.log1p(2.0 * np.sinh(0.5 * s) ** 2))

    where, weight = np.polynomial.legendre.leggauss(12)
    half = 0.5 * (a[1] - a[0])
    pieces = half * (power((a[:-1] + half)[:, None] + half * where) @ weight)
    beyond = power(a[-1:]) / (df * np.tanh(a[-1:]))
    integral = np.cumsum(np.concatenate([beyond, pieces[::-1]]))[::-1]
    norm = 0.5 / float(integral[0])
    slope, tanh = [power(a)], [np.tanh(a)]
    for k in range(_ORDER - 1):
        pairs = list(zip(tanh, reversed(slope), strict=True))
        squares = list(zip(tanh, reversed(tanh), strict=True))
        slope.append(-df / (k + 1) * np.sum([t * g for t, g in pairs], axis=0))
        tanh.append(((k == 0) - np.sum([t * u for t, u in squares], axis=0)) / (k + 1))
    series = [-norm * g / (k + 1) for k, g in enumerate(slope)]
    return [norm * integral, *series], norm


def mixture_quantile(
    xp: ModuleType, law: Law, mean: Array, scale: Array, q: Sequence[float]
) -> Array:
    """Return quantiles (Q, R) of equal mixtures of mean_s + scale_s * law, (R, S)."""
    # Newton's method on the distribution function inside a shrinking bracket, which is halved
    # whenever Newton leaves it or does not halve its step.
    rows, size = mean.shape
    block = max(1, _BLOCK // size)
    parts = []
    for low in range(0, rows, block):
        high = min(low + block, rows)
        own = scale if scale.shape[0] == 1 else scale[low:high, :]
        with errstate(xp):  # a quotient that overflows is a Newton step not taken
            one = [_solve(xp, law, mean[low:high, :], own, float(p)) for p in q]
        parts.append(xp.stack(one, axis=0))
    return xp.concat(parts, axis=1)


def _solve(xp: ModuleType, law: Law, mean: Array, sd: Array, p: float) -> Array:
    standard = law.quantile(p)
    if math.isinf(standard):  # beyond the numbers, whatever the widths
        return xp.full_like(mean[:, 0], standard)
    # A component without spread is a step: narrow it to 1e-12 of the means' size instead of 0.
    size = xp.max(xp.abs(mean), axis=-1)[:, None]
    sd = xp.where(sd > 1e-12 * size + 1e-150, sd, 1e-12 * size + 1e-150)
    # The mixture's quantile lies between the smallest and the largest of its components.
    ends = mean + sd * standard
    scale = xp.min(sd + xp.zeros_like(mean), axis=-1)
    low, high = xp.min(ends, axis=-1) - 1e-9 * scale, xp.max(ends, axis=-1) + 1e-9 * scale
    centre = xp.mean(mean, axis=-1)
    spread = xp.mean(sd * sd + (mean - centre[:, None]) ** 2, axis=-1) ** 0.5
    x = centre + standard * spread  # of the Gaussian with the same moments
    x = xp.where((x > low) & (x < high), x, 0.5 * (low + high))
    inverse = 1.0 / sd
    moved = high - low
    finished = low > high  # nowhere yet; a finished row rests, whatever rows share its block
    for _ in range(200):
        z = (x[:, None] - mean) * inverse
        excess = xp.mean(law.cdf(xp, z), axis=-1) - p
        slope = xp.mean(law.density(xp, z) * inverse, axis=-1)
        low = xp.where(excess < 0.0, x, low)
        high = xp.where(excess > 0.0, x, high)
        step = excess / xp.where(slope > 0.0, slope, 1.0)
        newton = x - step
        inside = (newton >= low) & (newton <= high) & (slope > 0.0)
        # Newton doubles the digits: after a step of 1e-9 sd nothing is left to gain.
        done = (inside & (xp.abs(step) <= 1e-9 * scale)) | (high - low <= 4e-16 * xp.abs(x))
        newton_helps = inside & (done | (xp.abs(step) <= 0.5 * moved))
        following = xp.where(newton_helps, newton, xp.where(done, x, 0.5 * (low + high)))
        moved = xp.abs(following - x)
        x = xp.where(finished, x, following)
        finished = finished | done
        if bool(xp.all(finished)):
            break
    return x
