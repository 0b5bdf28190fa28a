"""How the demo judges a predictive distribution: on test rows, in the unit of the target."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ribbit import datasets, metrics
from ribbit.results.draws import Draws

__all__ = ["LEVEL", "RHAT", "Band", "Scores", "converged", "score_draws"]

Array = npt.NDArray[np.float64]

LEVEL = 0.9  # of the intervals
RHAT = 1.01  # of the worst prediction: what the tables call converged (Vehtari et al. 2021)


@dataclass(frozen=True)
class Scores:
    """How good a predictive distribution is on the test rows.

    Attributes
    ----------
    rmse : float
        In the unit of the target.
    log_likelihood : float
        Mean log predictive density per test row, in that unit too.
    coverage : float
        Fraction of the test rows inside their 90 % intervals.
    width : float
        Mean width of these intervals.
    """

    rmse: float
    log_likelihood: float
    coverage: float
    width: float


@dataclass(frozen=True, eq=False)
class Band:
    """Mean and 90 % intervals of y at N inputs, each (N,), in the unit of the target."""

    mean: Array
    lower: Array
    upper: Array


def converged(rhat: float) -> bool:
    """Whether chains with this largest R-hat of the predictions agree, as the tables show it."""
    return round(rhat, 3) <= RHAT


def score_draws(
    draws: Draws, scaler: datasets.Scaler, x_test: Array, y_test: Array
) -> tuple[Scores, Band]:
    """Judge the mixture over draws; `x_test` is standardised, `y_test` is not."""
    assert scaler.y_scale is not None
    prediction = draws.predict(x_test)
    mean = np.asarray(scaler.inverse_y(prediction.mean))
    ends = prediction.interval(LEVEL)
    lower, upper = (np.asarray(scaler.inverse_y(end)) for end in ends)
    scores = Scores(
        rmse=metrics.rmse(y_test, mean),
        log_likelihood=prediction.log_likelihood(scaler.transform_y(y_test))
        - math.log(float(scaler.y_scale)),
        coverage=metrics.coverage(y_test, lower, upper),
        width=float(np.mean(upper - lower)),
    )
    return scores, Band(mean, lower, upper)
