"""Runs of SGLD against their schedule, and runs that go wrong: warnings, errors, what is left."""

import numpy as np
import pytest

import ribbit as rb
from ribbit import schedules
from ribbit.errors import NonFiniteError
from tests.samplers.sgmcmc.test_stochastic import target


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
    with pytest.warns(RuntimeWarning, match="at most 100 steps, where the step size reaches 0"):
        draws = sampler.sample(5, warmup=150, chains=1, progress=False)
    assert np.ptp(draws.positions, axis=1).max() == 0
    sampler.sample(5, warmup=95, chains=1, progress=False)


def test_a_chain_far_out_is_a_warning():
    sampler = rb.SGLD(target(), step_size=0.02, batch_size=20)  # unstable, and finite so far
    with pytest.warns(RuntimeWarning, match=r"within 20 prior standard deviations, got .* chain 0"):
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
