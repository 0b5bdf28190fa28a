"""Faults of the native core: each changes the draws that it should; the shipped core has none."""

import functools
from pathlib import Path

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core
from tests.support import faults
from tests.support import linear_posterior as linear
from tests.support.dropout_fits import fitted

SEED, CHAINS = 3, 4


def near():
    """Return starts of chains on the linear posterior, near its mean."""
    mean, scale = linear.optimum()
    return mean + scale * np.random.default_rng(SEED).normal(size=(CHAINS, linear.DIM))


def mcmc(make, steps=20, callable=False, **options):
    """Return positions after transitions on the linear posterior, or on a callable of it."""
    target = linear.target()
    if callable:
        target = rb.CallableDensity(target.value_and_grad, target.dim, batched=True)
    sampler = make(target, inverse_mass_matrix=None, **options)
    return rb.Chains(sampler, near(), seed=SEED, warmup=0).advance(steps)[0][:, -1]


def sgmcmc(make, **options):
    """Return positions after some steps of falling size on minibatches."""
    target = linear.target()
    schedule = rb.schedules.cosine(20)
    sampler = make(target, step_size=1e-3, batch_size=5, schedule=schedule, **options)
    return rb.Chains(sampler, near(), seed=SEED, warmup=0).advance(10)[0][:, -1]


def bbb(batch):
    fit = rb.BBB(linear.target(), learning_rate=0.01, batch_size=batch)
    return fit.fit(3, seed=SEED, progress=False).mean


def dropout():
    x = np.random.default_rng(SEED).normal(size=(6, 3))
    return fitted().draws(10, seed=SEED).predict(x, keep=True).samples


RUNS = {
    "HMC": functools.partial(mcmc, rb.HMC, step_size=0.06, num_leapfrog_steps=5),
    "HMC of a callable": functools.partial(
        mcmc, rb.HMC, callable=True, step_size=0.06, num_leapfrog_steps=5
    ),
    "NUTS": functools.partial(mcmc, rb.NUTS, step_size=0.03),
    "NUTS of a callable": functools.partial(mcmc, rb.NUTS, callable=True, step_size=0.03),
    "MCLMC": functools.partial(mcmc, rb.MCLMC, step_size=0.1, decoherence_length=0.3),
    "adjusted MCLMC": functools.partial(
        mcmc, rb.MCLMC, adjusted=True, step_size=0.1, decoherence_length=0.3
    ),
    "SGLD": functools.partial(sgmcmc, rb.SGLD),
    "SGHMC": functools.partial(sgmcmc, rb.SGHMC, friction=0.1),
    "BAOAB": functools.partial(sgmcmc, rb.BAOAB, friction=8.0),
    "BBB": functools.partial(bbb, None),
    "BBB of batches": functools.partial(bbb, 5),
    "MC dropout": dropout,
}


STOCHASTIC = {"SGLD", "SGHMC", "BAOAB"}
FITS = {"BBB", "BBB of batches"}
NATIVE = {"HMC", "NUTS", "MCLMC", "adjusted MCLMC"}
CALLABLE = {"HMC of a callable", "NUTS of a callable"}
ACCEPTING = {"HMC", "HMC of a callable", "adjusted MCLMC"}
CHANGED = {  # runs whose draws each fault changes
    "no accept step": ACCEPTING,
    "wrong sign of the energy": ACCEPTING,
    "stale energy": {"HMC", "NUTS"},
    "missing kinetic term": ACCEPTING | {"NUTS", "NUTS of a callable"},
    "momentum variance +10 %": {"HMC", "NUTS", "SGHMC", "BAOAB"} | CALLABLE,
    "full instead of half kicks": NATIVE,
    "wrong sign of the gradient": NATIVE,
    "prior precision +5 %": CALLABLE | NATIVE | STOCHASTIC | FITS,
    "noise scale +10 %": {"MCLMC"} | STOCHASTIC,
    "missing N/n": STOCHASTIC,
    "equal weights of states": {"NUTS"},
    "last state of a subtree": {"NUTS"},
    "new subtree always accepted": {"NUTS"},
    "no U-turn check inside a subtree": {"NUTS"},
    "energy of the kicks +10 %": {"adjusted MCLMC"},
    "kicks +20 %": {"MCLMC", "adjusted MCLMC"},
    "missing sqrt 2": STOCHASTIC,
    "no noise": STOCHASTIC,
    "half the gradient": STOCHASTIC | {"MC dropout"},  # its fit is trained
    "velocity not rescaled": {"SGHMC"},
    "mean instead of sum KL": FITS,
    "KL +10 %": FITS,
    "KL counted once per batch": {"BBB of batches"},
    "dropout scaled by 1 - rate": {"MC dropout"},
}


def bits():
    """Return the bytes of the result of each run."""
    return {name: np.asarray(run()).tobytes() for name, run in RUNS.items()}


@functools.cache
def right_bits():
    """Return the bytes of the right code."""
    return bits()


def names():
    return _core.FAULTS


@faults.needed
def test_without_a_fault_the_bits_are_those_of_the_core():
    assert faults.with_fault(None, bits) == right_bits()


@faults.needed
def test_every_fault_is_known():
    assert faults.with_fault(None, names) == tuple(CHANGED)


@faults.needed
@pytest.mark.parametrize("fault", CHANGED)
def test_a_fault_changes_the_draws_that_have_its_part(fault):
    right, wrong = right_bits(), faults.with_fault(fault, bits)
    assert {name for name in RUNS if wrong[name] != right[name]} == CHANGED[fault]


def test_the_core_has_no_faults():
    """It has neither the switch nor a fault's name. The fault build, the control, has both."""
    assert not hasattr(_core, "set_fault")
    assert named_in(_core.__file__) == []
    if (file := faults.core()) is not None:
        assert named_in(file) == list(CHANGED)


def named_in(file):
    content = Path(file).read_bytes()
    return [name for name in CHANGED if f"{name}\0".encode() in content]
