"""A learned noise sd that has nearly vanished: data without noise, a posterior without width."""

# Shapes: C chains, P parameters.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays.namespace import to_host

if TYPE_CHECKING:
    from ribbit.targets.spec import DensitySpec

__all__ = ["vanishing_noise"]

_SMALL = 0.03  # of the sd of y: a noise sd below it is as good as none
_ADVISED = 0.05  # of the sd of y


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
