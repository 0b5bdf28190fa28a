"""Prior sds and noise that maximise the evidence of a Laplace approximation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays.warning import warn
from ribbit.density import Density
from ribbit.errors import FitWarning
from ribbit.interrupt import InterruptGuard
from ribbit.samplers.fit.curvature import SMALL, Mode, mode_near

if TYPE_CHECKING:
    import numpy.typing as npt


_ROUNDS = 100
_HALVINGS = 5
# Change of log scales, and gain in nats, that end the rounds; of large networks, whose rounds cost.
_CLOSE, _LEAST = 1e-7, 1e-11
_CLOSE_LARGE, _LEAST_LARGE = 1e-3, 1e-2
_FARTHEST = 1.0  # that a log scale moves in a round
_RANGE = math.log(1e4)  # that it moves in all: a group that the data never ask for has no best one
_FEWEST = 1e-3  # determined parameters of a group, however little the data say


def tuned(
    function: str,
    density: Density,
    subset: str,
    mode: Mode,
    *,
    prior: str | None,
    noise: bool,
    steps: int,
    guard: InterruptGuard,
) -> tuple[Density, Mode, dict[str, npt.NDArray[np.float64]]]:
    """Turn MacKay's fixed point until the scales stay; return target, mode and tuning."""
    # A group of d parameters with prior sd s and distances w from the prior's mean, of which the
    # data determine gamma = d - trace(covariance) / s^2, gets s^2 = |w|^2 / gamma; noise of n
    # numbers gets (its sum of squared residuals) / (n - all gammas) (MacKay 1992, equations 20 and
    # 21). Then the mode is found anew, as Immer et al. (2021b, algorithm 1) do with gradients. A
    # round that loses evidence is halved until it gains: the fixed point is one of linear models.
    evidence = _evidence(mode)
    scales, changes = _changes(density.target, subset, mode, prior=prior, noise=noise)
    begin = dict(scales)
    history: dict[str, list[float]] = {"log_evidence": [evidence]}
    for name, value in scales.items():
        history[name] = [value]
    small = mode.factor.shape[0] <= SMALL
    close, least = (_CLOSE, _LEAST) if small else (_CLOSE_LARGE, _LEAST_LARGE)
    for _ in range(_ROUNDS):
        for name, value in scales.items():
            away = math.log(value / begin[name])
            changes[name] = min(_RANGE - away, max(-_RANGE - away, changes[name]))
        if max(abs(change) for change in changes.values()) < close:
            break
        # The fixed point holds the curvature for constant: where it bends the evidence may fall.
        for halving in range(_HALVINGS):
            part = 0.5**halving
            sds = {name: scales[name] * math.exp(part * changes[name]) for name in scales}
            noise_sd = sds.pop("noise_sd", None)
            other = Density(density.target.rescaled(sds, noise_sd), function=function)
            found = mode_near(function, other, subset, mode.theta, steps, guard)
            gain = _evidence(found) - evidence
            if gain > 0.0:
                break
        else:
            break
        density, mode, evidence = other, found, evidence + gain
        scales, changes = _changes(density.target, subset, mode, prior=prior, noise=noise)
        history["log_evidence"].append(evidence)
        for name, value in scales.items():
            history[name].append(value)
        if gain < least:
            break
    else:
        warn(
            f"[{function}] expected scales that settle, got ones whose evidence still rose after "
            f"{_ROUNDS} rounds: see fit.tuning",
            FitWarning,
        )
    return density, mode, {name: np.array(values) for name, values in history.items()}


def _evidence(mode: Mode) -> float:
    volume = float(np.log(np.diagonal(mode.factor)).sum())
    return mode.log_density + 0.5 * len(mode.prior) * math.log(2.0 * math.pi) + volume


def _changes(
    target: Any, subset: str, mode: Mode, *, prior: str | None, noise: bool
) -> tuple[dict[str, float], dict[str, float]]:
    """Scales by name, and what their logarithms are to be changed by."""
    name = "LaplaceApproximation.fit"
    first, _ = target.subset_size(name, subset)
    variances = mode.variances
    scales: dict[str, float] = {}
    changes: dict[str, float] = {}
    if prior is not None:
        away = mode.theta.astype(np.float64) - target.prior_mean
        squares, determined = {}, {}
        for group, (place, sd) in target.prior_groups(name, subset).items():
            own = variances[place.start - first : place.stop - first]
            scales[group] = sd
            squares[group] = float(away[place] @ away[place]) / sd**2
            determined[group] = len(own) - float(own.sum()) / sd**2
        if prior == "shared":
            both = sum(squares.values()), sum(determined.values())
            changes = dict.fromkeys(scales, _change(*both))
        else:
            changes = {g: _change(squares[g], determined[g]) for g in scales}
    if noise:
        sd = target.noise_scale
        scales["noise_sd"] = sd
        residuals, count = target.residuals(mode.theta)
        changes["noise_sd"] = _change(residuals, count - mode.effective)
    return scales, changes


def _change(squares: float, determined: float) -> float:
    """Change of a log scale; squares in units of the scale."""
    wanted = 0.5 * math.log(max(squares, 1e-30) / max(determined, _FEWEST))
    return min(_FARTHEST, max(-_FARTHEST, wanted))
