"""What `Prediction.sample` adds to a draw of a fit depends on nothing that the draw is made of.

With one seed for both, which is what the defaults are, a draw and its noise have addresses that
differ in their layer alone; where they met, y had 2.0 times its variance. Draws are one or two of a
prediction here, not the 1,000 of the default, among which a single y hardly shows it.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.random_numbers import FIT_LAYERS
from ribbit.results import observations

SEEDS = 3000
# |z| of a normal is beyond it once in 3.5 million; the variance of 3,000 normals is nearly one.
BOUND = 5.1
AT = np.array([[3.0]])
NOISE = 1.0


def target(noise: float = NOISE) -> rb.Posterior:
    """One weight, no bias: a normal posterior."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10, 1))
    return rb.Posterior(
        rb.Model([rb.Dense(1, bias=False)], input_shape=(1,)),
        x,
        0.8 * x[:, 0] + 0.7 * rng.normal(size=10),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(noise),
        dtype=np.float64,
    )


def z_of(values: list[float], variance: float) -> float:
    return (float(np.var(values, ddof=1)) / variance - 1.0) / (2.0 / (len(values) - 1)) ** 0.5


def of_laplace() -> float:
    """One draw and one y of each seed: the variance of both."""
    fit = rb.LaplaceApproximation(target()).fit(50, progress=False)
    found = [fit.predict(AT, num_draws=1, seed=s).sample(1, seed=s)[0, 0] for s in range(SEEDS)]
    return z_of(found, 9.0 * float(fit.covariance[0, 0]) + NOISE**2)


def of_mean_field() -> float:
    fit = rb.MeanField(np.array([0.5]), np.array([0.4]), predictive=target())
    found = [fit.predict(AT, 1, seed=s).sample(1, seed=s)[0, 0] for s in range(SEEDS)]
    return z_of(found, 9.0 * 0.16 + NOISE**2)


def of_swag() -> float:
    """Two draws, of deviations alone, one of which is picked; its noise is a thousandth."""
    sampler = rb.SWAG(target(1e-3), learning_rate=0.1, batch_size=3, max_rank=2)
    fit = sampler.fit(20, swag_epochs=10, progress=False)
    alone = dataclasses.replace(
        fit, squares=0.0 * fit.squares, deviations=np.array([[[1.0], [0.0]]])
    )
    found = [alone.predict(AT, num_draws=2, seed=s).sample(1, seed=s)[0, 0] for s in range(SEEDS)]
    return z_of(found, 9.0 * 0.5 + 1e-6)


CASES = {"laplace": of_laplace, "mean field": of_mean_field, "swag": of_swag}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")
def test_one_seed_for_draws_and_samples_keeps_the_law(name: str) -> None:
    assert abs(CASES[name]()) < BOUND


@pytest.mark.parametrize(
    ("name", "layer", "shared"),
    [
        ("laplace", "_FIRST", "Gaussian"),
        ("mean field", "_FIRST", "weights"),
        ("swag", "_PICK", "low rank"),
    ],
)
@pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")
def test_a_shared_layer_is_found(
    name: str, layer: str, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observations, layer, FIT_LAYERS[shared])
    assert abs(CASES[name]()) > BOUND


def test_no_two_uses_share_a_layer() -> None:
    assert len(set(FIT_LAYERS.values())) == len(FIT_LAYERS)
