"""Runs of SGLD and SGHMC: cycles of a schedule, what decides a draw, and runs that go wrong.

What goes wrong is a warning or an error, with what is left.
"""

import numpy as np
import pytest

import ribbit as rb
from ribbit import schedules
from ribbit.errors import NonFiniteError, RibbitWarning
from tests.samplers.sgmcmc.problem import CASES, DIM, X, target
from tests.support.targets import Foreign


def test_a_cyclical_run_keeps_one_draw_per_cycle():
    sampler = rb.SGLD(
        target(), step_size=1e-3, batch_size=20, schedule=schedules.cyclical(4, 25, exploration=0.2)
    )
    draws = sampler.sample(4, warmup=0, chains=2, seed=3, progress=False)
    assert draws.state.step == 100
    assert draws.settings["thin"] == 25
    np.testing.assert_allclose(draws.stats["step_size"], 1e-3 * sampler_end(25))
    every = sampler.sample(2, warmup=0, thin=50, chains=2, seed=3, progress=False)
    assert every.positions.tobytes() == draws.positions[:, 1::2].tobytes()
    for bad in ({"thin": 10}, {"thin": 26}):
        with pytest.raises(ValueError, match="thin as a multiple of 25, the steps of a cycle"):
            sampler.sample(2, warmup=0, **bad)
    text = "at most 4 draws at the ends of cycles of 25 steps"
    with pytest.raises(ValueError, match=text):
        sampler.sample(5, warmup=0)
    with pytest.raises(ValueError, match=text + r".* after 4 cycles"):
        sampler.sample(1, resume=draws)
    with pytest.raises(ValueError, match=text):
        sampler.sample(3, warmup=40, thin=50)


@pytest.mark.parametrize("make", [rb.SGLD, rb.BAOAB])
def test_a_cycle_gives_several_draws_from_its_end(make):
    """Those of a run that keeps every step, at the places that the schedule names."""
    options = {"step_size": 1e-3, "batch_size": 20}
    cycles = schedules.cyclical(3, 30, exploration=0.5, draws_per_cycle=3, sampling=0.4)
    assert cycles.gap == 4
    places = [22, 26, 30, 52, 56, 60, 82, 86, 90]
    sampler = make(target(), **options, schedule=cycles)
    draws = sampler.sample(9, warmup=7, chains=2, seed=3, progress=False)
    assert draws.state.step == 97
    assert "draws_per_cycle=3, sampling=0.4" in draws.settings["schedule"]
    factors = cycles.factors(0, 90)[np.array(places) - 1]
    np.testing.assert_allclose(draws.stats["step_size"], 1e-3 * np.tile(factors, (2, 1)))
    every, _ = rb.Chains(sampler, chains=2, seed=3, warmup=7).advance(97)
    assert every[:, np.array(places) + 6].tobytes() == draws.positions.tobytes()
    # stopped within a cycle, and in every second cycle
    first = sampler.sample(4, warmup=7, chains=2, seed=3, progress=False)
    assert first.state.step == 7 + 52
    rest = sampler.sample(5, resume=first, progress=False)
    assert rest.positions.tobytes() == draws.positions[:, 4:].tobytes()
    longer = make(
        target(),
        **options,
        schedule=schedules.cyclical(4, 30, exploration=0.5, draws_per_cycle=3, sampling=0.4),
    ).sample(6, warmup=7, thin=60, chains=2, seed=3, progress=False)
    assert longer.positions[:, :3].tobytes() == draws.positions[:, 3:6].tobytes()
    with pytest.raises(ValueError, match="at most 9 draws at the ends of cycles of 30 steps"):
        sampler.sample(10, warmup=0)


@pytest.mark.parametrize("warmup", [1, 40, 50, 500])
def test_draws_fall_on_cycle_ends_after_any_warmup(warmup):
    sampler = rb.SGLD(
        target(), step_size=1e-3, batch_size=20, schedule=schedules.cyclical(4, 25, exploration=0.2)
    )
    whole = sampler.sample(4, warmup=warmup, chains=2, seed=3, progress=False)
    np.testing.assert_allclose(whole.stats["step_size"], 1e-3 * sampler_end(25))
    assert whole.state.step == warmup + 100
    first = sampler.sample(1, warmup=warmup, chains=2, seed=3, progress=False)
    rest = sampler.sample(3, resume=first, progress=False)
    assert rest.positions.tobytes() == whole.positions[:, 1:].tobytes()


def test_draws_after_the_end_of_a_cosine_are_a_warning():
    sampler = rb.SGLD(target(), step_size=1e-3, batch_size=20, schedule=schedules.cosine(100))
    with pytest.warns(RibbitWarning, match="at most 100 steps, where the step size reaches 0"):
        draws = sampler.sample(5, warmup=150, chains=1, progress=False)
    assert np.ptp(draws.positions, axis=1).max() == 0
    sampler.sample(5, warmup=95, chains=1, progress=False)


def test_a_chain_far_out_is_a_warning():
    sampler = rb.SGLD(target(), step_size=0.02, batch_size=20)  # unstable, and finite so far
    with pytest.warns(
        RibbitWarning, match=r"prior standard deviations away, so its steps are too large"
    ):
        sampler.sample(1, warmup=20, chains=1, progress=False)


def test_an_error_brings_the_draws_before_it():
    sampler = rb.SGLD(target(dtype=np.float32), step_size=0.02, batch_size=20)
    with pytest.raises(NonFiniteError, match="got others in chain") as caught:
        sampler.sample(10_000, warmup=0, chains=2, progress=False)
    draws = caught.value.draws
    assert not draws.complete
    assert len(draws) == caught.value.step
    assert np.isfinite(draws.positions).all()
    assert caught.value.largest_gradient > 0
    assert not np.isnan(caught.value.largest_gradient)


def sampler_end(steps):
    return 0.5 * (1 + np.cos(np.pi * (steps - 1) / steps))


# --- what decides a draw -------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@pytest.mark.parametrize("hidden", [(), (40, 30)])
@pytest.mark.parametrize("case", CASES)
def test_bits_do_not_depend_on_threads_chains_chunks_or_restarts(case, hidden):
    make, options, _ = CASES[case]
    options = {**options, "step_size": options["step_size"] / (1 if hidden == () else 10)}
    x = np.random.default_rng(0).normal(size=(700, 6))
    density = rb.Posterior(
        rb.mlp(6, hidden, 1),
        x,
        np.sin(x[:, 0]),
        prior=rb.Normal(0.7),
        likelihood=rb.Gaussian(0.3),
    )
    for batch in (48, 300, 700):
        sampler = make(density, batch_size=batch, **options)
        rb.set_num_threads(2)
        whole = sampler.sample(6, warmup=7, thin=3, chains=3, seed=8, progress=False)
        assert np.all(np.diff(whole.positions, axis=1) != 0)
        for threads in (1, 3, 4):
            rb.set_num_threads(threads)
            again = sampler.sample(6, warmup=7, thin=3, chains=3, seed=8, progress=False)
            assert again.positions.tobytes() == whole.positions.tobytes()
        alone = sampler.sample(6, warmup=7, thin=3, chains=[1], seed=8, progress=False)
        assert alone.positions.tobytes() == whole.positions[1:2].tobytes()
        first = sampler.sample(2, warmup=7, thin=3, chains=3, seed=8, progress=False)
        rest = sampler.sample(4, thin=3, resume=first, progress=False)
        joined = np.concatenate([first.positions, rest.positions], axis=1)
        assert joined.tobytes() == whole.positions.tobytes()
        every = sampler.sample(
            18, warmup=7, thin=1, chains=3, seed=8, save_warmup=True, progress=False
        )
        assert every.positions[:, 2::3].tobytes() == whole.positions.tobytes()
        stepped = rb.Chains(sampler, density.init(seed=8, chains=3), seed=8, warmup=7)
        stepped.advance(25)
        assert stepped.position.tobytes() == whole.positions[:, -1].tobytes()
    rb.set_num_threads(2)


def test_save_and_load(tmp_path):
    for make, options, _ in CASES.values():
        sampler = make(target(), batch_size=20, **options)
        draws = sampler.sample(5, warmup=4, chains=2, seed=1, progress=False)
        draws.save(tmp_path / "run")
        back = rb.load(tmp_path / "run")
        assert back.positions.tobytes() == draws.positions.tobytes()
        assert back.settings == draws.settings
        rest = [sampler.sample(3, resume=d, progress=False).positions for d in (draws, back)]
        assert rest[0].tobytes() == rest[1].tobytes()


def test_statistics_and_predictions():
    draws = rb.SGLD(target(), step_size=1e-3, batch_size=20, track_lp=True).sample(
        30, warmup=100, thin=5, chains=2, seed=1, predict_at=X[:4], progress=False
    )
    lp = target().value_and_grad(draws.positions[0])[0]
    np.testing.assert_allclose(draws.stats["lp"][0], lp)
    assert (draws.stats["step_size"] == 1e-3).all()
    np.testing.assert_allclose(draws.prediction.mean, draws.predict(X[:4]).mean)
    plain = rb.SGLD(target(), step_size=1e-3, batch_size=20).sample(3, progress=False)
    assert np.isnan(plain.stats["lp"]).all()
    assert "SGLD" in repr(plain)
    assert len(plain) == 3


# --- a run that explodes -------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["native", "python"])
@pytest.mark.parametrize("make", [rb.SGLD, rb.SGHMC])
def test_a_run_that_explodes_says_where_and_keeps_the_last_finite_state(make, path):
    density = target(np.float32)
    sampler = make(density if path == "native" else Foreign(density), step_size=1.0, batch_size=20)
    with pytest.raises(NonFiniteError, match=r"step size 1, largest \|gradient\|") as caught:
        sampler.sample(2, warmup=10_000, chains=3, seed=2, progress=False, init=np.zeros(DIM))
    error = caught.value
    assert error.step > 0
    assert error.step_size == 1.0
    assert not error.largest_gradient <= 1e6  # large, or not a number
    assert np.isfinite(error.state.position).all()
    assert error.state.step == error.step
    again = rb.Chains(sampler, np.zeros((3, DIM)), seed=2, warmup=0)
    again.advance(error.step)
    assert again.position.tobytes() == error.state.position.tobytes()
    with pytest.raises(NonFiniteError) as twice:
        again.advance()
    assert twice.value.step == error.step
