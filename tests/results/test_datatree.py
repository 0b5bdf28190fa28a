"""Draws in ArviZ: a variable per parameter block, and data for loo and plots.

The `arviz` extra has all that is imported here; `.ci/run` installs it with `.[examples]`.
"""

import math
import warnings

import numpy as np
import pytest

import ribbit as rb
from ribbit.samplers import HMC
from tests.support.targets import OPTIONS, Gaussian

pytest.importorskip("arviz_base")

DRAWS = {"chains": 2, "seed": 3, "progress": False}


def sample(target, draws=40, **options):
    hmc = HMC(target, step_size=0.02, num_leapfrog_steps=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rb.errors.ConvergenceWarning)
        return hmc.sample(draws, warmup=20, **DRAWS, **options)


def regression(outputs=1, **options):
    x, y = rb.datasets.toy_regression(50, seed=0)
    if outputs > 1:
        y = np.stack([y, -y], axis=1)[:, :outputs]
    model = rb.mlp(1, (4,), outputs, activation="tanh")
    likelihood = options.pop("likelihood", rb.Gaussian())
    options = {"prior": rb.Normal(1.0), "likelihood": likelihood} | options
    return x, y, rb.Posterior(model, x, y, **options)


@pytest.fixture(scope="module")
def known():
    """x, y in units far from 1, draws of a standardised posterior, and their tree."""
    x, y = rb.datasets.toy_regression(50, seed=0)
    x, y = 100.0 + 30.0 * x, 1000.0 * y
    target = rb.Posterior(
        rb.mlp(1, (4,), 1, activation="tanh"),
        x,
        y,
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(),
        standardize=True,
    )
    draws = sample(target, save_warmup=True)
    return x, y, draws, draws.to_datatree(x, y, predict_at=x[:7], seed=5)


def test_a_variable_per_block(known):
    _, _, draws, tree = known
    posterior = tree["posterior"]
    assert list(posterior.data_vars) == ["0.weight", "0.bias", "2.weight", "2.bias", "log_noise"]
    assert posterior["2.weight"].dims == ("chain", "draw", "2.weight_in", "2.weight_out")
    assert posterior["0.bias"].dims == ("chain", "draw", "0.bias_out")
    assert posterior["log_noise"].dims == ("chain", "draw")
    assert posterior["2.weight"].attrs["layer"] == "Dense"
    flat = np.concatenate([v.values.reshape(2, 40, -1) for v in posterior.values()], axis=2)
    np.testing.assert_array_equal(flat, draws.positions)
    warmup = tree["warmup_posterior"]
    np.testing.assert_array_equal(warmup["log_noise"], draws.warmup_positions[:, :, -1])


def test_blocks_of_convolutions_have_their_axes():
    x = np.linspace(-1, 1, 3 * 4 * 4).reshape(3, 4, 4, 1).astype(np.float32)
    model = rb.Model([rb.Conv2D(2, 3), rb.Flatten(), rb.Dense(3)], input_shape=(4, 4, 1))
    y = np.arange(3)
    target = rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=rb.Categorical())
    tree = sample(target, 4).to_datatree(x, y)
    name = "0.weight"
    axes = [f"{name}_{axis}" for axis in ("column", "place", "in", "out")]
    assert tree["posterior"][name].dims == ("chain", "draw", *axes)
    assert tree["posterior"][name].attrs["layer"] == "Conv2D"
    assert tree["posterior_predictive"]["y"].dims == ("chain", "draw", "row")
    assert set(np.unique(tree["posterior_predictive"]["y"])) <= {0, 1, 2}


def test_rows_of_the_log_likelihood_are_those_of_the_draws(known):
    """By the normal density of each draw's mean and noise, in the user's units."""
    x, y, draws, tree = known
    density = tree["log_likelihood"]["y"]
    assert density.dims == ("chain", "draw", "row")
    mean = draws.predict(x, keep=True).samples
    sd = np.exp(draws.positions[:, :, -1:].astype(float)) * y.std()
    expected = -0.5 * ((y - mean) / sd) ** 2 - np.log(sd) - 0.5 * math.log(2 * math.pi)
    np.testing.assert_allclose(density, expected, rtol=1e-4, atol=1e-4)
    mixture = np.log(np.exp(density.values).mean(axis=(0, 1))).mean()
    assert mixture == pytest.approx(draws.predict(x).log_likelihood(y), abs=1e-9)


def test_y_is_drawn_with_its_noise(known):
    """Residuals over the noise sd are normal: their mean square is 1 within 7 standard errors.

    4,000 draws; a fair run exceeds that once in 4e11. Without the noise it would be 0.
    """
    x, y, draws, tree = known
    drawn = tree["posterior_predictive"]["y"]
    assert drawn.dims == ("chain", "draw", "row")
    mean = draws.predict(x, keep=True).samples
    sd = np.exp(draws.positions[:, :, -1:].astype(float)) * y.std()
    z = (drawn.values - mean) / sd
    assert abs((z**2).mean() - 1.0) < 7 * math.sqrt(2 / z.size)
    np.testing.assert_array_equal(tree["predictions"]["y"].dims, ("chain", "draw", "row"))
    assert tree["predictions"]["y"].shape == (2, 40, 7)
    again = draws.to_datatree(predict_at=x[:7], seed=5)
    other = draws.to_datatree(predict_at=x[:7], seed=6)
    assert again["predictions"].equals(tree["predictions"])
    assert not other["predictions"].equals(tree["predictions"])


def test_data_are_there_as_they_were_given(known):
    x, y, _, tree = known
    np.testing.assert_array_equal(tree["observed_data"]["y"], y)
    np.testing.assert_array_equal(tree["constant_data"]["x"], x)
    np.testing.assert_array_equal(tree["predictions_constant_data"]["x"], x[:7])
    assert tree["constant_data"]["x"].dims == ("row", "input")


def test_several_outputs():
    x, y, target = regression(outputs=2)
    tree = sample(target, 5).to_datatree(x, y)
    assert tree["posterior_predictive"]["y"].dims == ("chain", "draw", "row", "output")
    assert tree["observed_data"]["y"].dims == ("row", "output")
    assert tree["log_likelihood"]["y"].shape == (2, 5, 50)
    x, y, target = regression(likelihood=rb.Gaussian(0.1))
    tree = sample(target, 5).to_datatree(x, y[:, None])  # a column for y without one
    assert tree["observed_data"]["y"].dims == ("row",)
    assert "log_noise" not in tree["posterior"]


def test_draws_of_a_file_and_of_fits(known, tmp_path):
    x, y, draws, tree = known
    draws.save(tmp_path / "draws.npz")
    back = rb.load(tmp_path / "draws.npz").to_datatree(x, y, predict_at=x[:7], seed=5)
    assert all(back[name].equals(tree[name]) for name in tree.children)
    x, y, target = regression()
    model = rb.Model([rb.Dense(4), rb.Dropout(0.1), rb.Dense(1)], input_shape=(1,))
    masked = rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fits = [
            rb.BBB(target, learning_rate=1e-3, batch_size=50).fit(2, progress=False).draws(6),
            rb.MCDropout(masked, learning_rate=1e-3, batch_size=50).fit(2, progress=False).draws(6),
        ]
    for found in fits:
        some = found.to_datatree(x, y)
        density = some["log_likelihood"]["y"].values
        mixture = np.log(np.exp(density).mean(axis=(0, 1))).mean()
        expected = found.predict(x).log_likelihood(y)
        assert np.isfinite(expected)
        assert mixture == pytest.approx(expected, abs=1e-6), found


def test_what_does_not_fit_is_refused(known):
    x, y, draws, _ = known
    for arguments, message in [
        ({"x": x}, "expected x and y of the observed rows, got x alone"),
        ({"y": y}, "got y alone"),
        ({"x": x, "y": y[:-1]}, "expected y with 50 rows"),
        ({"x": x[:, :0], "y": y}, "expected"),
        ({"seed": -1}, "expected seed"),
    ]:
        with pytest.raises(ValueError, match=message):
            draws.to_datatree(**arguments)
    plain = HMC(Gaussian([1.0, 2.0]), **OPTIONS["adapted"]).sample(4, init=[0.0, 0.0], chains=2)
    with pytest.raises(TypeError, match=r"\[Draws.to_datatree\] expected draws of a target with"):
        plain.to_datatree(x, y)
    _, _, target = regression()
    gone = sample(target, 4, save_draws=False, predict_at=x)
    with pytest.raises(ValueError, match=r"\[Draws.to_datatree\] expected kept draws"):
        gone.to_datatree(x, y)


def test_summary_and_loo_run(known):
    stats = pytest.importorskip("arviz_stats")
    pytest.importorskip("xarray_einstats")
    _, _, draws, tree = known
    table = stats.summary(tree)
    assert "0.weight[0, 3]" in table.index
    assert len(table) == draws.positions.shape[2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of large Pareto shapes
        found = stats.loo(tree)
    assert found.n_data_points == 50
    assert np.isfinite(found.elpd)


def test_plot_trace_dist_runs(known, tmp_path):
    pytest.importorskip("matplotlib").use("Agg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plots = pytest.importorskip("arviz_plots")
        plots.plot_trace_dist(known[3], var_names=["log_noise", "2.weight"]).savefig(
            tmp_path / "trace.png"
        )
    assert (tmp_path / "trace.png").stat().st_size > 10_000
