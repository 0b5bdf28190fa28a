"""NUTS on arrays of a device (made of the CPU, or CuPy's) against the native trees on NumPy."""

import numpy as np
import pytest

import ribbit as rb

MODEL = rb.mlp(5, (12, 7), 1)
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 5)), RNG.normal(size=(60, 1))


# the same draws twice: whether they have converged does not matter
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@pytest.mark.parametrize(
    "options",
    [
        {"step_size": [0.03, 0.01, 0.06], "inverse_mass_matrix": None, "max_tree_depth": 5},
        {"step_size": 0.05, "inverse_mass_matrix": "prior", "max_tree_depth": 4},
        {"max_tree_depth": 4},
    ],
    ids=["steps", "prior", "defaults"],
)
def test_draws_are_those_on_numpy(device, options):
    """Rounding of sums alone; chains leave the batch one by one."""
    given = {"prior": rb.Normal(0.7), "likelihood": rb.Gaussian(1.0), "dtype": "float64"}
    given["marginalize"] = None  # on the host alone NUTS would move the marginal by itself
    host = rb.Posterior(MODEL, X, Y, **given)
    on_device = rb.Posterior(MODEL, device.asarray(X), device.asarray(Y), **given)
    run = {"warmup": 4, "chains": 3, "seed": 4, "progress": False}
    known, found = (rb.NUTS(t, **options).sample(8, **run) for t in (host, on_device))
    assert not isinstance(found.positions, np.ndarray)
    np.testing.assert_allclose(found.positions.get(), known.positions, rtol=0, atol=1e-7)
    for name, values in known.stats.items():
        np.testing.assert_allclose(found.stats[name].get(), values, rtol=0, atol=1e-6, err_msg=name)
    other = rb.NUTS(on_device, **options).sample(8, **run | {"seed": 5})
    assert np.abs(other.positions.get() - known.positions).max() > 0.01  # control
