"""SWAG on a linear model: its covariance is that of the iterates, in closed form.

Not with the shipped defaults: gradient descent at a rate so large that the iterates move, on six
rows, where the law of the iterates can be had by going through all orders of an epoch.
"""

import numpy as np
import pytest

import ribbit as rb
from tests.oracle import swag_reference

ROWS, DIM, PRIOR, NOISE, BATCH = 6, 2, 1.5, 0.8, 2
RNG = np.random.default_rng(11)
X = RNG.normal(size=(ROWS, DIM - 1))
DESIGN = np.c_[X, np.ones(ROWS)]
Y = DESIGN @ [0.8, -0.4] + NOISE * RNG.normal(size=ROWS)
MEMBERS, EPOCHS = 64, 2_000


def scores(found, expected):
    """Errors of a mean over members in standard errors, which the members tell of."""
    error = found.std(axis=0, ddof=1) / np.sqrt(MEMBERS)
    return np.abs(found.mean(axis=0) - expected) / error


# iterates of a small rate spread less than the posterior, as they should here
@pytest.mark.filterwarnings("ignore:.*spread of the posterior:ribbit.errors.FitWarning")
@pytest.mark.parametrize(("rate", "momentum"), [(0.1, 0.0), (0.05, 0.5)])
def test_moments_are_the_stationary_ones(rate, momentum):
    """Four means over 64 independent members within 7.5 standard errors.

    By chance: 4 * 2.7e-10 with Student's t of 63 degrees of freedom. The variance around a path's
    own mean falls short by about (1 + 2 sum of correlations) / 2,000, within one standard error.
    """
    target = rb.Posterior(
        rb.mlp(DIM - 1, (), 1),
        X,
        Y,
        prior=rb.Normal(PRIOR),
        likelihood=rb.Gaussian(NOISE),
        dtype=np.float64,
    )
    swag = rb.SWAG(
        target,
        members=MEMBERS,
        learning_rate=rate,
        batch_size=BATCH,
        optimizer="sgd",
        momentum=momentum,
    )
    fit = swag.fit(500, swag_epochs=EPOCHS, seed=4, progress=False)
    mean, spread = swag_reference.stationary_law(
        DESIGN, Y, noise=NOISE, prior=PRIOR, batch=BATCH, rate=rate, momentum=momentum
    )
    assert scores(fit.mean, mean).max() < 7.5
    assert scores(fit.variance, np.diag(spread)).max() < 7.5

    # the controls: the posterior's moments are others (its variance over 100 times as large), and
    # so is the spread at another rate
    precision = DESIGN.T @ DESIGN / NOISE**2 + np.eye(DIM) / PRIOR**2
    posterior = np.linalg.inv(precision)
    away = scores(fit.mean, np.linalg.solve(precision, DESIGN.T @ Y / NOISE**2))
    assert away.max() > 15.0
    assert (100.0 * fit.variance.mean(axis=0) < np.diag(posterior)).all()
    assert scores(fit.variance, np.diag(posterior)).min() > 20.0
    _, other = swag_reference.stationary_law(
        DESIGN, Y, noise=NOISE, prior=PRIOR, batch=BATCH, rate=0.8 * rate, momentum=momentum
    )
    assert scores(fit.variance, np.diag(other)).min() > 20.0
