"""Every sampler and fit on a target with learned scales: resume, chains, threads, predictions."""

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.threads import num_threads
from tests.support.scaled_targets import build, native

pytestmark = [  # a few draws of a short run
    pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning"),
]

SAMPLERS = {
    "hmc": lambda t: rb.HMC(t),
    "nuts": lambda t: rb.NUTS(t),
    "mclmc": lambda t: rb.MCLMC(t),
    "adjusted mclmc": lambda t: rb.MCLMC(t, adjusted=True),
    "sgld": lambda t: rb.SGLD(t, step_size=1e-4, batch_size=7),
    "preconditioned sgld": lambda t: rb.SGLD(
        t, step_size=1e-4, batch_size=7, preconditioner="rmsprop"
    ),
    "sghmc": lambda t: rb.SGHMC(t, step_size=1e-5, batch_size=7),
}
PLAN = {"warmup": 100, "thin": 2, "chains": 3, "seed": 4, "progress": False}
GRID = np.linspace(-1.0, 1.0, 24).reshape(8, 3)


def target(name="mixed", hyper="half-normal"):
    return native(build(name, hyper, rows=40), np.float32)


@pytest.mark.parametrize("name", SAMPLERS)
def test_runs_go_on_bit_for_bit_and_chains_are_their_own(name):
    t = target()
    sampler = SAMPLERS[name](t)
    whole = sampler.sample(12, **PLAN)
    assert np.isfinite(whole.positions).all()
    assert np.ptp(whole.positions[..., -1]) > 0  # a log scale moves
    first = sampler.sample(5, **PLAN)
    rest = SAMPLERS[name](t).sample(7, thin=2, resume=first, progress=False)
    assert np.concatenate([first.positions, rest.positions], axis=1).tobytes() == (
        whole.positions.tobytes()
    )
    before = num_threads()
    try:
        rb.set_num_threads(1)
        alone = SAMPLERS[name](t).sample(12, **{**PLAN, "chains": 2})
    finally:
        rb.set_num_threads(before)
    assert alone.positions.tobytes() == whole.positions[:2].tobytes()
    with pytest.raises(ValueError, match="prior"):
        SAMPLERS[name](target("mixed", "half-Cauchy")).sample(2, resume=first, progress=False)


@pytest.mark.parametrize("rule", ["sgld", "sghmc"])
def test_minibatch_steps_follow_the_oracle(rule):
    """Without noise, one full batch: position and velocity move along the oracle's gradient."""
    oracle, _, _ = case = build("horseshoe input", rows=20)
    t = native(case)
    start = t.init(seed=2, chains=2)
    grad = np.stack([oracle.parts(at)[2] for at in start])
    steps = {
        "seed": 0,
        "chains": np.arange(2, dtype=np.uint32),
        "first_step": 0,
        "batch_size": 20,
        "step_size": np.full(1, 1e-3),
        "noise": np.zeros(1),
        "prior": 1.0,
        "friction": 0.1,
        "previous_step_size": 1e-3,
        "decay": (0.9, 0.999),
        "epsilon": 1e-8,
        "adapt_until": 0,
    }
    velocity = None if rule == "sgld" else np.zeros_like(start)
    name = {"sgld": "langevin", "sghmc": "friction"}[rule]
    moved = t.advance(start, velocity, None, rule=name, **steps)[0]
    step = 0.5e-3 if rule == "sgld" else 1e-3
    np.testing.assert_allclose(moved - start, step * grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["mixed", "horseshoe weight"])
def test_bayes_by_backprop(name):
    """Its KL is that of independent samples; what it draws while it predicts are the same draws.

    5.5 standard errors of a difference whose parts have at most `error` each: a false-fail rate
    below 4e-8; the seeds are fixed.
    """
    t = target(name)
    bbb = rb.BBB(t, kl="sampled", num_samples=4, learning_rate=0.02)
    fit = bbb.fit(400, seed=2, progress=False)
    assert fit.elbo[-50:].mean() > fit.elbo[:10].mean()
    theta = fit.sample(3_000, seed=9)
    log_q = np.sum(
        -0.5 * ((theta - fit.mean) / fit.scale) ** 2 - np.log(fit.scale) - 0.5 * np.log(2 * np.pi),
        axis=1,
        dtype=np.float64,
    )
    kl = log_q - t.log_prior(theta)
    error = kl.std() / np.sqrt(3_000)
    still = rb.BBB(t, kl="sampled", num_samples=3_000, learning_rate=1e-12)
    found = still.fit(1, init=fit, seed=3, progress=False).kl[0]
    assert abs(kl.mean() - found) < 5.5 * np.sqrt(2) * error
    streamed = fit.predict(GRID, 50, seed=6)
    weights = t.outputs(fit.sample(50, seed=6), GRID)
    np.testing.assert_allclose(streamed.mean, weights.mean(axis=0), rtol=1e-4, atol=1e-5)
    # few rows and many draws ride in the lanes of other targets
    few = fit.predict(GRID[:2], 50, seed=6)
    np.testing.assert_allclose(few.mean, weights[:, :2].mean(axis=0), rtol=1e-4, atol=1e-5)
    sampler = rb.HMC(t)
    assert sampler.sample(3, warmup=20, chains=2, init=fit, progress=False).complete


def test_ensembles_and_swag():
    t = target()
    ensemble = rb.DeepEnsemble(t, members=2, batch_size=10).fit(60, progress=False)
    members = ensemble.draws().positions
    assert members.shape[-1] == t.dim
    swag = rb.SWAG(t, batch_size=10).fit(60, swag_epochs=20, progress=False)
    for fit in (ensemble, swag):
        draws = fit.draws(4)
        expected = t.outputs(draws.positions.reshape(-1, t.dim), GRID).mean(axis=0)
        np.testing.assert_allclose(draws.predict(GRID).mean, expected, rtol=1e-5, atol=1e-6)
    draws = rb.HMC(t).sample(3, warmup=20, chains=2, init=ensemble, progress=False)
    assert draws.complete


@pytest.mark.parametrize("name", ["hmc", "nuts"])
def test_running_predictions_are_those_of_the_draws(name):
    t = target()
    sampler = SAMPLERS[name](t)
    kept = sampler.sample(6, **PLAN, predict_at=GRID)
    streamed = sampler.sample(6, **PLAN, predict_at=GRID, save_draws=False)
    np.testing.assert_allclose(
        streamed.prediction.mean, kept.predict(GRID).mean, rtol=1e-5, atol=1e-6
    )
    # the monitor reads the noise where it is, not the last parameter
    counts = kept.settings["monitored"]
    noise = kept.monitored[:, :, counts["predictions"] :][:, :, : counts["log noise"]]
    assert np.array_equal(
        noise, np.float64(t.unravel(kept.positions)["log_noise"]).reshape(noise.shape)
    )
