"""What training returns: approximations that give draws.

Shapes: P parameters, S draws, E epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit import _backend, _checks
from ribbit.draws import Draws
from ribbit.errors import DTypeError, ShapeError
from ribbit.protocols import Array, Predictive

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["MeanField", "drawn"]


def _nothing() -> npt.NDArray[np.float64]:
    return np.zeros(0)


@dataclass(frozen=True, eq=False, repr=False)
class MeanField:
    """A Gaussian with independent parameters: what :class:`ribbit.BBB` fits.

    Parameters
    ----------
    mean, scale : (P,) array
        float32 or float64, both the same; scale > 0 is the standard deviation.
    elbo : (E,) array
        Evidence lower bound, tempered as the target is, one number per epoch: the mean over its
        steps, each at the parameters before the step.
    expected_log_likelihood : (E,) array
        E_q[log likelihood] of all rows, untempered.
    kl : (E,) array
        E_q[log q] - E_q[log prior] / temperature.
    complete : bool
        False when the fit was interrupted.
    settings : dict
        How it was made: plain values.
    predictive : Predictive or None
        What predicts; the target.
    state : tuple or None
        What ``fit(resume=...)`` goes on from.

    Raises
    ------
    TypeError, ValueError
        If the arrays do not fit, or a scale is not positive and finite.
    """

    mean: Array
    scale: Array
    elbo: npt.NDArray[np.float64] = field(default_factory=_nothing)
    expected_log_likelihood: npt.NDArray[np.float64] = field(default_factory=_nothing)
    kl: npt.NDArray[np.float64] = field(default_factory=_nothing)
    complete: bool = True
    settings: dict[str, Any] = field(default_factory=dict)
    predictive: Predictive | None = None
    state: Any = None

    def __post_init__(self) -> None:
        name = "MeanField"
        xp = _backend.namespace(self.mean, self.scale, function=name)
        for array, what in ((self.mean, "mean"), (self.scale, "scale")):
            if array.ndim != 1 or array.shape[0] == 0:
                raise ShapeError(f"[{name}] expected {what} (P,), got shape {tuple(array.shape)}")
            if array.dtype not in (xp.float32, xp.float64):
                raise DTypeError(
                    f"[{name}] expected {what} as float32 or float64, got {array.dtype}"
                )
        if self.mean.shape != self.scale.shape or self.mean.dtype != self.scale.dtype:
            raise ShapeError(
                f"[{name}] expected mean and scale alike, got {self.mean.dtype} "
                f"{self.mean.shape} and {self.scale.dtype} {self.scale.shape}"
            )
        host = _backend.to_host(self.scale)
        _checks.all_true(
            name, "scale finite and > 0", "scale", host, np.isfinite(host) & (host > 0)
        )

    def __repr__(self) -> str:
        text = f"MeanField({self.mean.shape[0]} parameters"
        if len(self.elbo):
            text += f", {len(self.elbo)} epochs, elbo {self.elbo[-1]:.4g}"
        return text + (")" if self.complete else ", INCOMPLETE)")

    def sample(self, num_samples: int, seed: int = 0) -> Array:
        """Draw weights mean + scale * eps (Blundell et al. 2015, section 3.2).

        Parameters
        ----------
        num_samples : int
            S, >= 1.
        seed : int
            64-bit key; sample s depends on (seed, s) alone.

        Returns
        -------
        (S, P) array
        """
        name = "MeanField.sample"
        count = _checks.integer(name, "num_samples", num_samples, minimum=1, maximum=2**32 - 1)
        xp = _backend.namespace(self.mean)
        noise = _backend.normal(
            xp,
            (count, int(self.mean.shape[0])),
            _backend.host_dtype(self.mean),
            seed=_checks.seed(name, seed),
            step=0,
            chains=np.arange(count, dtype=np.uint32),
            purpose=_backend.WEIGHT_NOISE,
        )
        return self.mean + self.scale * noise

    def draws(self, num_draws: int, *, seed: int = 0) -> Draws:
        """Return independent draws of the approximation as one chain.

        Parameters
        ----------
        num_draws : int
            S, >= 1.
        seed : int
            64-bit key.

        Returns
        -------
        Draws
            positions (1, S, P); ``predict`` works where the fit had a target.
        """
        positions = self.sample(num_draws, seed)[None, ...]
        return drawn(positions, self.predictive, self.settings, seed)


def drawn(
    positions: Array, predictive: Predictive | None, settings: dict[str, Any], seed: int
) -> Draws:
    """Draws of a fit: positions (C, S, P), no statistics, no state to go on from."""
    return Draws(
        positions=positions,
        stats={},
        complete=True,
        state=None,
        settings={**settings, "seed": seed, "chains": list(range(positions.shape[0]))},
        predictive=predictive,
    )
