"""Bayes by Backprop: what decides a fit, what it gives, bad input."""

import dataclasses

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import NonFiniteError
from ribbit.interrupt import InterruptGuard
from ribbit.results.fits import MeanField
from tests.oracle.reference import normal
from tests.support.linear_posterior import DIM, ROWS, X, Y, target


def network():
    x = np.random.default_rng(0).normal(size=(700, 6))
    return rb.Posterior(
        rb.mlp(6, (40, 30), 1),
        x,
        np.sin(x[:, 0]),
        prior=rb.Normal(0.7),
        likelihood=rb.Gaussian(),
    )


@pytest.mark.parametrize("batch", [48, 300, None])
def test_bits_do_not_depend_on_threads_or_restarts(batch):
    bbb = rb.BBB(network(), batch_size=batch, num_samples=2)
    rb.set_num_threads(2)
    whole = bbb.fit(5, seed=3, progress=False)
    assert np.all(whole.mean != bbb.fit(4, seed=3, progress=False).mean)
    for threads in (1, 3, 4):
        rb.set_num_threads(threads)
        again = bbb.fit(5, seed=3, progress=False)
        assert again.mean.tobytes() == whole.mean.tobytes()
        assert again.scale.tobytes() == whole.scale.tobytes()
        np.testing.assert_array_equal(again.elbo, whole.elbo)
    rb.set_num_threads(2)
    rest = bbb.fit(3, resume=bbb.fit(2, seed=3, progress=False), progress=False)
    assert rest.mean.tobytes() == whole.mean.tobytes()
    np.testing.assert_array_equal(rest.elbo, whole.elbo)


def test_a_fit_gives_draws_and_starts_others(tmp_path):
    density = network()
    fit = rb.BBB(density, batch_size=100).fit(3, seed=1, progress=False)
    assert fit.mean.dtype == np.float32
    assert "MeanField" in repr(fit)
    draws = fit.draws(50, seed=7)
    assert draws.positions.shape == (1, 50, density.dim)
    np.testing.assert_array_equal(draws.positions[0], fit.sample(50, seed=7))
    np.testing.assert_array_equal(draws.positions[0, :20], fit.sample(20, seed=7))
    z = np.stack([normal(density.dim, seed=7, step=0, chain=s, purpose=13) for s in range(50)])
    np.testing.assert_allclose(draws.positions[0], fit.mean + fit.scale * z, atol=1e-5)
    x = np.zeros((3, 6), np.float32)
    assert draws.predict(x).mean.shape == (3,)
    draws.save(tmp_path / "fit")
    back = rb.load(tmp_path / "fit")
    assert back.state is None
    np.testing.assert_array_equal(back.predict(x).mean, draws.predict(x).mean)
    hmc = rb.HMC(density, step_size=1e-3, num_leapfrog_steps=3)
    warm = hmc.sample(2, warmup=0, init=fit.sample(2, seed=1), progress=False)
    assert warm.positions.shape[0] == 2
    with pytest.raises(ValueError, match="got draws of a fit: give them as init"):
        hmc.sample(2, resume=draws)
    again = rb.BBB(density, batch_size=100).fit(1, init=fit, progress=False)
    assert np.abs(again.mean - fit.mean).max() < 0.2
    plain = MeanField(np.zeros(3), np.ones(3))
    assert plain.sample(4).shape == (4, 3)


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"num_samples": 0}, "num_samples"),
        ({"batch_size": ROWS + 1}, f"batch_size <= {ROWS}"),
        ({"kl": "exact"}, "kl"),
        ({"estimator": "score"}, "estimator"),
        ({"init_scale": -1.0}, "init_scale"),
        ({"kl_weighting": "half"}, "kl_weighting"),
    ],
)
def test_bad_options(options, text):
    with pytest.raises(ValueError, match=text):
        rb.BBB(target(), **options)


def test_bad_targets_and_starts():
    foreign = rb.CallableDensity(lambda t: (0.0, 0 * t), 2)
    with pytest.raises(TypeError, match="no likelihood to average"):
        rb.BBB(foreign)
    dropped = rb.Posterior(
        rb.Model([rb.Dense(3), rb.Dropout(0.1), rb.Dense(1)], input_shape=(2,)),
        X,
        Y,
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.1),
    )
    with pytest.raises(TypeError, match=r"without Dropout layers, got 1: Dropout\(0.1\)"):
        rb.BBB(dropped)
    bbb = rb.BBB(target())
    for init in (np.zeros(2), np.zeros((1, DIM))):
        with pytest.raises(ValueError, match=rf"expected init \({DIM},\)"):
            bbb.fit(1, init=init)
    with pytest.raises(ValueError, match="finite"):
        bbb.fit(1, init=[0.0, np.nan, 0.0])
    with pytest.raises(ValueError, match="num_epochs"):
        bbb.fit(0)
    with pytest.raises(TypeError, match=r"MeanField that BBB\.fit returned"):
        bbb.fit(1, resume=MeanField(np.zeros(DIM), np.ones(DIM)))
    with pytest.raises(ValueError, match="one of init and resume"):
        bbb.fit(1, init=np.zeros(DIM), resume=bbb.fit(1, progress=False))
    for mean, scale in ((np.zeros(2), np.ones(3)), (np.zeros((1, 2)), np.ones((1, 2)))):
        with pytest.raises(ValueError, match=r"\[MeanField\] expected"):
            MeanField(mean, scale)
    for scale in ([1.0, 0.0], [1.0, np.inf], [np.nan, 1.0]):
        with pytest.raises(ValueError, match="scale finite and > 0"):
            MeanField(np.zeros(2), np.array(scale))
    with pytest.raises(TypeError, match="float32 or float64"):
        MeanField(np.zeros(2, int), np.ones(2, int))


def test_a_fit_that_explodes_says_where():
    bbb = rb.BBB(target(dtype=np.float32), learning_rate=1e38)
    with pytest.raises(NonFiniteError, match=r"learning rate 1e\+38, largest") as caught:
        bbb.fit(100, seed=1, progress=False)
    fit = caught.value.state
    assert np.isfinite(fit.mean).all()
    assert not fit.complete
    assert len(fit.elbo) == caught.value.step


# whether it is a fit, not how good
@pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")
def test_scales_that_underflow_come_back():
    """Where softplus(rho) leaves the numbers, d entropy / d rho is still 1, and a fit is a fit."""
    for dtype in (np.float32, np.float64):
        density = target(dtype=dtype)
        state = np.zeros((6, DIM), dtype)
        state[1] = [-80, -300, -1e4]
        moved, *_ = density.advance_variational(
            state,
            seed=1,
            first_step=0,
            batch_size=ROWS,
            num_samples=1,
            estimator="reparam",
            closed=True,
            step_size=np.array([1e-3]),
            kl_weight=np.array([1.0]),
            decay=(0.9, 0.999),
            epsilon=1e-8,
        )
        np.testing.assert_allclose(moved[4] / 0.1, 1.0, rtol=1e-5)
    wild = rb.BBB(target(dtype=np.float32), learning_rate=30.0).fit(50, seed=1, progress=False)
    assert (wild.scale > 0).all()
    with pytest.raises(ValueError, match="init_scale in"):
        rb.BBB(target(), init_scale=1e-50)


def test_resume_and_starts():
    bbb = rb.BBB(target(), batch_size=8)
    fit = bbb.fit(2, seed=1, progress=False)
    for other in ({"batch_size": 10}, {"estimator": "local"}, {"learning_rate": 0.1}):
        sampler = rb.BBB(target(), **{"batch_size": 8} | other)
        with pytest.raises(ValueError, match=f"the same settings, got {next(iter(other))}="):
            sampler.fit(1, resume=fit)
    ensemble = rb.DeepEnsemble(target(), members=3, batch_size=8).fit(1, progress=False)
    tiny = rb.BBB(target(), batch_size=8, learning_rate=1e-12)
    np.testing.assert_allclose(tiny.fit(1, init=ensemble).mean, ensemble.theta[0], atol=1e-9)


def test_a_started_epoch_is_finished_first():
    """As after Ctrl-C in the middle of an epoch: the state of a fit that stopped at step 4 of 3."""
    bbb = rb.BBB(target(), batch_size=8)
    whole = bbb.fit(3, seed=1, progress=False)
    arrays, _, seed, records = bbb.fit(1, seed=1, progress=False).state
    moved, new, _, _ = bbb._advance(arrays, seed, 3, 1, InterruptGuard())
    part = dataclasses.replace(
        whole, state=(moved, 4, seed, np.concatenate([records, new], axis=1))
    )
    assert bbb.fit(2, resume=part, progress=False).mean.tobytes() == whole.mean.tobytes()
