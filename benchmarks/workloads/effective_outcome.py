"""When an answer is there: effective samples and R-hat of quantities, all of them at once.

The definitions are arviz-stats' (Vehtari et al. 2021, doi:10.1214/20-BA1221): bulk, tail (5 % and
95 %) and mean ESS, rank-normalised split R-hat. Its own functions go through quantities one by one;
these are needed at every prefix of a run, on 66 of them, and are tested to be equal.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import rankdata

F64 = NDArray[np.float64]
ESS, RHAT = 400.0, 1.01  # at least, at most


def split(x: F64) -> F64:
    """Both halves of each chain: (C, D, Q) -> (2 C, D // 2, Q)."""
    half = x.shape[1] // 2
    return np.concatenate([x[:, :half], x[:, -half:]])


def normal_scores(x: F64) -> F64:
    """Return normal scores of the ranks over chains and draws, by quantity."""
    ranks = rankdata(x.reshape(-1, x.shape[2]), axis=0).reshape(x.shape)
    return np.asarray(ndtri((ranks - 0.375) / (x.shape[0] * x.shape[1] + 0.25)))


def mean_ess(x: F64) -> F64:
    """Effective samples (Q,) for the mean of split chains (C, D, Q): Geyer's monotone sequence."""
    chains, count, _ = x.shape
    means = x.mean(axis=1)
    length = 1 << (2 * count - 1).bit_length()
    spectrum = np.fft.rfft(x - means[:, None], length, axis=1)
    power = np.mean(spectrum.real**2 + spectrum.imag**2, axis=0)
    covariance = np.fft.irfft(power, length, axis=0)[:count] / count  # (D, Q), mean over chains
    within = covariance[0] * count / (count - 1.0)
    total = within * (count - 1.0) / count + (means.var(axis=0, ddof=1) if chains > 1 else 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        rho = 1.0 - (within - covariance) / total
    rho[0] = 1.0
    found = np.array([_time(column, count) for column in rho.T])
    draws = chains * count
    ess = draws / np.maximum(found, 1.0 / math.log10(draws))
    constant = np.ptp(x, axis=(0, 1)) <= np.finfo(float).resolution
    return np.where(constant, float(draws), ess)


def _time(rho: F64, count: int) -> float:
    """Integrated autocorrelation time of one quantity."""
    pairs = rho[: count - count % 2].reshape(-1, 2).sum(axis=1)[: (count - 1) // 2]
    if math.isnan(pairs[0]):
        return float("nan")
    negative = np.flatnonzero(~(pairs > 0.0))
    last = int(negative[0]) if negative.size else len(pairs) - 1
    # Of the pair that ends it, or of the last, the even half counts; where it ends it, if positive.
    even = float(rho[2 * last])
    even = max(even, 0.0) if negative.size else even
    return float(-1.0 + 2.0 * np.minimum.accumulate(pairs[:last]).sum() + even)


def least_ess(x: F64) -> F64:
    """Least of bulk, tail and squares ESS of quantities (C, D, Q): (Q,)."""
    low, high = np.quantile(x.reshape(-1, x.shape[2]), [0.05, 0.95], axis=0)
    squares = (x - x.mean(axis=(0, 1))) ** 2
    kinds = [normal_scores(split(x)), split(squares)]
    kinds += [split((x <= level).astype(np.float64)) for level in (low, high)]
    return np.asarray(np.min([mean_ess(kind) for kind in kinds], axis=0))


def rhat(x: F64) -> F64:
    """Rank-normalised split R-hat (Q,), the larger of bulk and folded."""

    def plain(z: F64) -> F64:
        count = z.shape[1]
        between = count * z.mean(axis=1).var(axis=0, ddof=1)
        within = z.var(axis=1, ddof=1).mean(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.sqrt((between / within + count - 1.0) / count))

    halves = split(x)
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    return np.maximum(plain(normal_scores(halves)), plain(normal_scores(folded)))


def judge(x: F64) -> tuple[float, float]:
    """Return least ESS and largest R-hat of quantities (C, D, Q); (0, inf) if not finite."""
    if not np.all(np.isfinite(x)):
        return 0.0, math.inf
    ess, scale = least_ess(x), rhat(x)
    return float(np.nan_to_num(ess).min()), float(np.nan_to_num(scale, nan=math.inf).max())


def holds(ess: float, scale: float) -> bool:
    """Whether these are an answer."""
    return ess >= ESS and scale <= RHAT


def grid(block: int, most: int) -> list[int]:
    """Draws per chain at which a run is judged: multiples of `block`, a quarter more each time."""
    points, at = [], block
    while at < most:
        points.append(at)
        at = max(at + block, round(1.25 * at / block) * block)
    return [*points, most]
