"""A linear model with Gaussian noise and normal prior: its log density is quadratic.

With precision L and mean mu the best mean-field Gaussian is N(mu, 1 / diag(L)), and the bound at
any (mean, scale) is known in closed form.
"""

import numpy as np

import ribbit as rb

ROWS, DIM, PRIOR, NOISE = 20, 3, 0.7, 0.4
RNG = np.random.default_rng(3)
X = RNG.normal(size=(ROWS, DIM - 1))
DESIGN = np.c_[X, np.ones(ROWS)]
Y = DESIGN @ [0.5, -1.0, 0.3] + NOISE * RNG.normal(size=ROWS)


def target(prior=None, **options):
    return rb.Posterior(
        rb.mlp(DIM - 1, (), 1),
        X,
        Y,
        prior=rb.Normal(PRIOR) if prior is None else prior,
        likelihood=rb.Gaussian(NOISE),
        **{"dtype": np.float64, **options},
    )


def optimum(temperature=1.0, likelihood_temperature=1.0, prior=PRIOR):
    likelihood = DESIGN.T @ DESIGN / NOISE**2 / likelihood_temperature
    precision = likelihood + np.eye(DIM) / prior**2
    mean = np.linalg.solve(precision, DESIGN.T @ Y / NOISE**2 / likelihood_temperature)
    return mean, np.sqrt(temperature / np.diag(precision))


def log_likelihood(theta, rows=slice(None)):
    residual = (Y[rows] - DESIGN[rows] @ theta) / NOISE
    return np.sum(-0.5 * residual**2 - np.log(NOISE) - 0.5 * np.log(2 * np.pi))
