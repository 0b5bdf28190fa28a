"""SGLD, SGHMC and their schedules: what the schedules give, bad input."""

import dataclasses

import numpy as np
import pytest

import ribbit as rb
from ribbit import schedules
from tests.samplers.sgmcmc.problem import X, Y, target

# --- schedules -----------------------------------------------------------------------------------


def test_schedules():
    np.testing.assert_array_equal(schedules.constant().factors(5, 3), 1.0)
    np.testing.assert_allclose(
        schedules.polynomial(0.5, offset=2.0).factors(2, 2), [2.0**-0.5, 2.5**-0.5]
    )
    found = schedules.cosine(10, final=0.2).factors(0, 15)
    np.testing.assert_allclose(found[[0, 5, 10, 14]], [1.0, 0.6, 0.2, 0.2])
    cycle = schedules.cyclical(3, 4, exploration=0.5)
    expected = 0.5 * (1 + np.cos(np.pi * np.array([0, 1, 2, 3, 0, 1]) / 4))
    np.testing.assert_allclose(cycle.factors(4, 6), expected)
    np.testing.assert_array_equal(cycle.noise(4, 6), [0, 0, 1, 1, 0, 0])
    for schedule in (found, cycle):
        assert repr(schedule)


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options", "text"),
    [
        (rb.SGLD, {"batch_size": 76}, "batch_size <= 75, the rows of the data"),
        (rb.SGLD, {"batch_size": 0}, "batch_size"),
        (rb.SGLD, {"step_size": 0.0}, "step_size"),
        (rb.SGLD, {"step_size": np.nan}, "step_size"),
        (rb.SGLD, {"preconditioner": "adam"}, "preconditioner"),
        (rb.SGHMC, {"friction": 0.0}, "friction"),
        (rb.SGHMC, {"friction": 1.0}, "friction"),
        (rb.SGHMC, {"friction": -0.1}, "friction"),
        (schedules.polynomial, {"power": 0.0}, "power"),
        (schedules.cosine, {"num_steps": 0}, "num_steps"),
        (schedules.cosine, {"num_steps": 5, "final": 2.0}, "final"),
        (schedules.cyclical, {"num_cycles": 0, "num_steps": 3}, "num_cycles"),
        (schedules.cyclical, {"num_cycles": 1, "num_steps": 3, "exploration": 1.0}, "exploration"),
        (schedules.cyclical, {"num_cycles": 1, "num_steps": 3, "draws_per_cycle": 0}, "draws_per_"),
        (schedules.cyclical, {"num_cycles": 1, "num_steps": 9, "sampling": 0.0}, "sampling"),
        (
            schedules.cyclical,
            {"num_cycles": 1, "num_steps": 99, "exploration": 0.9, "draws_per_cycle": 2},
            "sampling <= 0.1",
        ),
        (schedules.cyclical, {"num_cycles": 1, "num_steps": 8, "draws_per_cycle": 3}, "cycle <= 2"),
    ],
)
def test_bad_numbers(make, options, text):
    call = (
        (lambda: make(target(), **{"batch_size": 20, **options}))
        if make
        in (
            rb.SGLD,
            rb.SGHMC,
        )
        else (lambda: make(**options))
    )
    with pytest.raises(ValueError, match=text):
        call()


def test_bad_kinds():
    with pytest.raises(TypeError, match=r"schedule of rb\.schedules"):
        rb.SGLD(target(), batch_size=20, schedule="cosine")
    with pytest.raises(TypeError, match=r"unknown momentum=: expected "):
        rb.SGLD(target(), momentum=0.9)
    with pytest.raises(ValueError, match="batch_size=None for a target without num_rows"):
        rb.SGLD(rb.CallableDensity(lambda t: (0.0, 0 * t), 2))
    dropped = rb.Posterior(
        rb.Model([rb.Dense(3), rb.Dropout(0.1), rb.Dense(1)], input_shape=(2,)),
        X,
        Y,
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.1),
    )
    for make in (rb.SGLD, rb.SGHMC):
        with pytest.raises(TypeError, match=r"without Dropout layers, got 1: Dropout\(0.1\)"):
            make(dropped, batch_size=20)
    sgld, sghmc = rb.SGLD(target(), batch_size=20), rb.SGHMC(target(), batch_size=20)
    run = {"warmup": 0, "progress": False}
    state = sgld.sample(1, **run).state
    with pytest.raises(ValueError, match="a sampler of another kind"):
        sghmc.sample(2, resume=state)
    with pytest.raises(TypeError, match="expected a StochasticState, got"):
        sgld.sample(2, resume=rb.HMC(target(), step_size=0.1).sample(1, **run))
    with pytest.raises(ValueError, match="state of dim 3, got 2"):
        sgld.sample(2, resume=dataclasses.replace(state, position=state.position[:, :2]))
    with pytest.raises(ValueError, match="moves in warmup, got 0"):
        rb.Chains(rb.SGLD(target(), batch_size=20, preconditioner="rmsprop"), warmup=0)
    with pytest.raises(ValueError, match="a finite position"):
        rb.Chains(sgld, np.array([0.0, np.inf, 0.0]))


# --- fewer rows than a batch has by default ------------------------------------------------------

MADE = {
    rb.SGLD: lambda sampler: sampler.sample(3, warmup=0, progress=False).positions,
    rb.SGHMC: lambda sampler: sampler.sample(3, warmup=0, progress=False).positions,
    rb.BAOAB: lambda sampler: sampler.sample(3, warmup=0, progress=False).positions,
    rb.DeepEnsemble: lambda fit: fit.fit(3, progress=False).predict(X).mean,
    rb.SWAG: lambda fit: fit.fit(4, progress=False).predict(X).mean,
    rb.LaplaceApproximation: lambda fit: fit.fit(3, progress=False).predict(X).mean,
}


@pytest.mark.filterwarnings("ignore::ribbit.errors.RibbitWarning")  # of runs of three steps
@pytest.mark.parametrize("kind", MADE)
def test_the_default_is_all_of_fewer_rows(kind):
    """75 rows, nothing set: the bits of batch_size=None, which are not those of a batch of 20."""
    options = {"step_size": 1e-4} if kind in (rb.SGLD, rb.SGHMC, rb.BAOAB) else {}
    found = MADE[kind](kind(target(), **options))
    np.testing.assert_array_equal(found, MADE[kind](kind(target(), batch_size=None, **options)))
    assert (found != MADE[kind](kind(target(), batch_size=20, **options))).any()
