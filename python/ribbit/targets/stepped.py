"""Noise sds that vanish: data without noise, and targets that take whole steps."""

# With targets such as grades a network with a noise sd per row can be exactly right for all rows of
# one value of y at once; its sd there then goes to 0 and the density has no bound. Shapes: C
# chains, D draws, P parameters, N rows, J columns of y.

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays.mapped import MappedRows
from ribbit._arrays.namespace import from_host, namespace, to_host
from ribbit._arrays.warning import warn
from ribbit.errors import NoiseWarning
from ribbit.targets.likelihoods import HeteroscedasticGaussian

if TYPE_CHECKING:
    import numpy.typing as npt

    from ribbit.targets.spec import DensitySpec

# A value is frequent from so many rows on, and from this share of them on; y takes steps where
# frequent values have this share of the rows.
_FEWEST, _SHARE, _ENOUGH = 10, 0.05, 0.25
_LEAST = 0.01  # of the sd of y: what is advised at least
_COLLAPSED = 0.01  # of a step: a noise sd below it says that a row is known exactly
_ROWS, _DRAWS = 256, 32  # that are looked at, evenly spaced
_SMALL = 0.03  # of the sd of y: a noise sd below it is as good as none
_ADVISED = 0.05  # of the sd of y


def step_of(y: npt.NDArray[Any]) -> tuple[float, int, float]:
    """Return the step between values of a column (N,), the frequent ones and their share."""
    # The step is the distance of a frequent value to its nearest neighbour, the median over the
    # rows of frequent values; if no value is frequent, the least distance of two values. NaN for a
    # constant.
    values, counts = np.unique(np.asarray(y, np.float64), return_counts=True)
    if values.size < 2:
        return math.nan, 0, 0.0
    gaps = np.diff(values)
    nearest = np.minimum(np.append(np.inf, gaps), np.append(gaps, np.inf))
    frequent = counts >= max(_FEWEST, _SHARE * y.size)
    if not frequent.any():
        return float(gaps.min()), 0, 0.0
    order = np.argsort(nearest[frequent], kind="stable")
    weights = np.cumsum(counts[frequent][order])
    middle = int(np.searchsorted(weights, 0.5 * weights[-1]))
    step = float(nearest[frequent][order][middle])
    return step, int(frequent.sum()), float(weights[-1] / y.size)


def warn_of_steps(spec: DensitySpec) -> None:
    """Warn of y that takes few values under a noise sd that has no floor."""
    likelihood = spec.likelihood
    if not isinstance(likelihood, HeteroscedasticGaussian) or likelihood.min_sd > 0.0:
        return
    y = to_host(spec.seen[1])
    for column in range(y.shape[1]):
        step, count, share = step_of(y[:, column])
        if not (share >= _ENOUGH and math.isfinite(step)):
            continue
        advised, units = _advised(step, y[:, column]), _units(spec)
        name = "y" if y.shape[1] == 1 else f"y column {column}"
        many = f"{count} value{'' if count == 1 else 's'}"
        warn(
            f"[Posterior] expected targets of many values for a noise sd per row, got {name} with "
            f"{many} in {share:.0%} of the rows: if the network fits many rows "
            "exactly, their sd goes to 0 and the density is unbounded. Give "
            f"HeteroscedasticGaussian(min_sd={advised:.2g}), the sd of rounding to steps of "
            f"{step:.3g}{units}",
            NoiseWarning,
        )
        return


def collapse(spec: DensitySpec, network: Any, positions: Any) -> tuple[float, str] | None:
    """Return how often the noise sd of rows has vanished, and advice; None if unknown."""
    # Share of rows and draws (some, evenly spaced) whose noise sd is below a hundredth of a step of
    # y.
    likelihood = spec.likelihood
    if not isinstance(likelihood, HeteroscedasticGaussian) or 0 in positions.shape:
        return None
    xp = namespace(positions)
    inputs, targets = spec.seen
    every = np.linspace(0, inputs.shape[0] - 1, min(inputs.shape[0], _ROWS)).astype(np.int64)
    x: Any = inputs[every] if isinstance(inputs, MappedRows) else None
    if x is None:
        x = xp.take(inputs, from_host(xp, every), axis=0)
    x = xp.reshape(x, (-1, *spec.model.input_shape))
    each = max(1, _DRAWS // positions.shape[0])
    draws = np.linspace(0, positions.shape[1] - 1, min(each, positions.shape[1])).astype(np.int64)
    theta = xp.take(positions, from_host(xp, draws), axis=1)
    theta = xp.reshape(theta, (-1, positions.shape[2]))
    sd = np.asarray(to_host(network.predictive(theta, x).noise_sd))  # (S, N, J)
    y = to_host(targets)
    steps = np.array([step_of(y[:, j])[0] for j in range(y.shape[1])])
    if not np.isfinite(steps).any():
        return None
    share = (sd < _COLLAPSED * steps).mean(axis=(0, 1))
    worst = int(np.argmax(share))
    floor = _advised(float(steps[worst]), y[:, worst])
    return float(share[worst]), f"HeteroscedasticGaussian(min_sd={floor:.2g}){_units(spec)}"


def _advised(step: float, y: npt.NDArray[Any]) -> float:
    """Return the sd of rounding to steps, or 1 % of the sd of y if that is larger."""
    return max(step / math.sqrt(12.0), _LEAST * float(np.std(y, dtype=np.float64)))


def _units(spec: DensitySpec) -> str:
    return "" if spec.units is None else " (in units of the standardised y)"


def vanishing_noise(spec: DensitySpec, noise_at: int, positions: Any) -> tuple[str, str] | None:
    """Say how small the smallest noise sd is, and what to do about it; None where it is not."""
    noises = spec.likelihood.noises(spec.model.output_shape)
    if not noises:
        return None
    spreads = np.std(np.asarray(to_host(spec.seen[1]), np.float64), axis=0)
    if noises == 1:
        spreads = spreads.mean(keepdims=True)
    logs = to_host(positions)[:, noise_at : noise_at + noises].astype(np.float64)
    sds = np.exp(np.median(logs, axis=0))
    small = np.flatnonzero((sds > 0.0) & (sds < _SMALL * spreads))
    if not small.size:
        return None
    sd, spread = float(sds[small[0]]), float(spreads[small[0]])
    of = "y" if noises == 1 else f"column {small[0]} of y"
    known = _ADVISED * spread
    each = np.where(sds < _SMALL * spreads, _ADVISED * spreads, sds)
    advised = ", ".join(f"{v:.2g}" for v in each)
    advised = advised if noises == 1 else f"[{advised}]"
    # The sd at which the density of a precision with Gamma(3, rate) has its mode, were y fitted
    # exactly: N values of y add N / 2 to the concentration.
    rate = known**2 * (3.0 + 0.5 * spec.total_rows * spec.y.shape[1] / noises)
    units = "" if spec.units is None else ", in standardised units"
    return (
        f"{sd:.2g} ({sd / spread:.1%} of the sd of {of})",
        f"a known noise sd, such as rb.Gaussian({advised}), or a prior that keeps it from "
        f"vanishing, rb.Gaussian(log_noise_prior=rb.GammaPrecision(3.0, {rate:.2g})){units}",
    )
