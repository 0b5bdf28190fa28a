"""Predictions that are normal in closed form: a linear model of normal weights, normal noise."""

# Shapes: N rows, K outputs.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ribbit._arrays.checks import Seed
from ribbit.protocols import Array
from ribbit.results.prediction import Prediction


class NormalPrediction(Prediction):
    """Predictions of a linearized network with normal weights, in closed form.

    With a known noise y is normal, and mean, intervals, cdf, crps and log likelihood are exact to
    rounding. A learned noise makes y a mixture of 64 normals, one for each equal part of the
    distribution of the noise; mean and sd are exact. ``epistemic_std`` is the sd of the function.

    Parameters
    ----------
    predictive : NormalNetwork
        ``draws()`` stand for the distribution of the noise. ``spread(x)`` returns mean and sd of
        the function, (N, K).
    x : (N, ...) array
    by_draws : function
        Returns the same as a mixture over draws.
    """

    def __init__(self, predictive: Any, x: Array, by_draws: Callable[[], Prediction]) -> None:
        draws = predictive.draws()
        super().__init__(predictive, x, positions=draws[None, :, :])
        self._spread = predictive.spread
        self._noise = predictive.noise_sd(draws)
        self._by_draws = by_draws

    def __repr__(self) -> str:
        return f"NormalPrediction({self.kind}, {self._x.shape[0]} rows, in closed form)"

    @property
    def epistemic_std(self) -> Array:
        """Standard deviation of the function, (N, K)."""
        return self._shaped(self._spread(self._x)[1])

    @property
    def aleatoric_std(self) -> Array:
        """Root of the mean noise variance, (N, K)."""
        mean, _, unit = self._spread(self._x)
        noise = np.sqrt((self._noise**2).mean(axis=0)) * unit
        return self._shaped(np.broadcast_to(noise, mean.shape))

    def sample(self, num_samples: int, *, seed: Seed = 0) -> Array:
        """Draw y at all rows: for each sample one of ``num_draws`` weight vectors, and its noise.

        For more samples than ``num_draws``, weights repeat: give ``predict`` a larger one.
        """
        return self._by_draws().sample(num_samples, seed=seed)

    def _quantiles(self, function: str, levels: list[float], *, noise: bool) -> Array:
        from statistics import NormalDist  # not with ribbit: slow to load

        if noise:
            return super()._quantiles(function, levels, noise=noise)
        mean, sd, _ = self._spread(self._x)
        standard = NormalDist()
        ends = {0.0: -np.inf, 1.0: np.inf}
        z = [ends[q] if q in ends else standard.inv_cdf(q) for q in levels]
        return self._shaped(mean + np.array(z)[:, None, None] * sd)
