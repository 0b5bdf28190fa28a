"""Prior sds and noise that maximise the evidence of a Laplace approximation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit.errors import FitWarning
from ribbit.samplers.fit.curvature import Mode, mode_near
from ribbit.samplers.run.caution import warn
from ribbit.samplers.run.interrupt import InterruptGuard
from ribbit.samplers.run.target import Density

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["tuned"]

_ROUNDS = 100
_CLOSE, _CLOSE_ENOUGH = 1e-6, 1e-3  # change of log scales that ends, in small and large networks
_SMALL = 1000
_FARTHEST = 1.0  # nats that a log scale moves in a round
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
    """Turn MacKay's fixed point until the scales stay.

    A group of d parameters with prior sd s and distances w from the prior's mean, of which the data
    determine gamma = d - trace(covariance) / s^2, gets s^2 = |w|^2 / gamma; noise of n numbers
    gets (its sum of squared residuals) / (n - all gammas) (MacKay 1992, equations 20 and 21). Then
    the mode is found anew, as Immer et al. (2021b, algorithm 1) do with gradients.

    Parameters
    ----------
    prior : {"shared", "layers"} or None
        One factor for all prior sds of the subset, or an sd for each array of parameters.
    noise : bool
        Whether the known noise is one of the scales.
    steps : int
        Newton steps of a round.

    Returns
    -------
    density : Density
        The target with the scales found.
    mode : Mode
        Its mode.
    tuning : dict of (R,) arrays
        See :class:`ribbit.LaplaceFit`.
    """
    history: dict[str, list[float]] = {"log_evidence": []}
    size = mode.factor.shape[0]
    close = _CLOSE if size <= _SMALL else _CLOSE_ENOUGH
    settled = False
    for turn in range(_ROUNDS + 1):
        target = density.target
        scales, updates = _updates(target, subset, mode, prior=prior, noise=noise)
        history["log_evidence"].append(_evidence(mode))
        for name, value in scales.items():
            history.setdefault(name, []).append(value)
        settled = all(abs(change) < close for change in updates.values())
        if settled or turn == _ROUNDS:
            break
        sds = {name: scales[name] * math.exp(updates[name]) for name in scales}
        noise_sd = sds.pop("noise_sd", None)
        density = Density(target.rescaled(sds, noise_sd), function=function)
        mode = mode_near(function, density, subset, mode.theta, steps, guard)
    if not settled:
        warn(
            f"[{function}] expected scales that settle, got ones that still moved after {_ROUNDS} "
            "rounds: see fit.tuning",
            stacklevel=4,
            category=FitWarning,
        )
    return density, mode, {name: np.array(values) for name, values in history.items()}


def _evidence(mode: Mode) -> float:
    volume = float(np.log(np.diagonal(mode.factor)).sum())
    return mode.log_density + 0.5 * len(mode.prior) * math.log(2.0 * math.pi) + volume


def _updates(
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
