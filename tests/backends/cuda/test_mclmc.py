"""MCLMC on arrays of a device against the same run on NumPy: there a loop over gradients."""

import numpy as np
import pytest

import ribbit as rb

MODEL = rb.mlp(5, (12, 7), 1)
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 5)), RNG.normal(size=(60, 1))
OPTIONS = {"prior": rb.Normal(0.7), "likelihood": rb.Gaussian(1.0), "dtype": "float64"}


# the same draws twice: whether they have converged does not matter
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@pytest.mark.parametrize(
    ("options", "how"),
    [
        ({"step_size": 0.05, "decoherence_length": 1.0}, {"warmup": 0, "thin": 3}),
        (
            {
                "step_size": 0.05,
                "decoherence_length": 1.0,
                "integrator": "mclachlan",
                "inverse_mass_matrix": "prior",
            },
            {"warmup": 0, "thin": 1},
        ),
        (
            {"adjusted": True, "step_size": 0.1, "decoherence_length": 0.5},
            {"warmup": 0, "thin": 1},
        ),
    ],
)
def test_draws_are_those_of_numpy(device, options, how):
    on_device = rb.Posterior(MODEL, device.asarray(X), device.asarray(Y), **OPTIONS)
    host = rb.Posterior(MODEL, X, Y, **OPTIONS)
    here, there = (
        rb.MCLMC(t, **options).sample(8, chains=3, seed=4, **how) for t in (host, on_device)
    )
    assert not isinstance(there.positions, np.ndarray)
    np.testing.assert_allclose(there.positions.get(), here.positions, rtol=0, atol=1e-9)
    for name, values in here.stats.items():
        np.testing.assert_allclose(there.stats[name].get(), values, rtol=1e-6, atol=1e-8)
    rest = rb.MCLMC(on_device, **options).sample(2, resume=there, thin=how["thin"])
    assert rest.state.step == there.state.step + 2 * how["thin"]


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_warmup_on_a_device(device):
    target = rb.Posterior(MODEL, device.asarray(X), device.asarray(Y), **OPTIONS)
    draws = rb.MCLMC(target, inverse_mass_matrix="adapt").sample(2, warmup=100, chains=2, thin=2)
    assert (draws.state.step_size > 0).all()
    assert draws.state.inverse_mass.shape == (2, target.dim)
