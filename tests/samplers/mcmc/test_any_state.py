"""Chains that continue from a state of a known target cost their own gradients alone."""

import gc
import pickle
import types

import numpy as np
import pytest

import ribbit as rb
from ribbit.samplers.mcmc.mclmc import Evaluated
from tests.support.stepwise import started, stepped
from tests.support.targets import Gaussian, same

SAMPLERS = {
    "HMC": lambda target: rb.HMC(target, step_size=0.01, num_leapfrog_steps=3),
    "NUTS": lambda target: rb.NUTS(target, step_size=0.01, max_tree_depth=3),
    "MCLMC": lambda target: rb.MCLMC(target, step_size=0.01, decoherence_length=0.3),
    "adjusted MCLMC": lambda target: rb.MCLMC(
        target, adjusted=True, step_size=0.01, decoherence_length=0.3
    ),
}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", SAMPLERS)
def test_gradients_of_chains_that_continue(name, known):
    """MCLMC evaluates what it reads in any case."""
    target = Gaussian([1.0, 2.0, 0.5])
    if known:
        target.fingerprint = {"data": "a"}
    sampler = SAMPLERS[name](target)
    chains = rb.Chains(sampler, np.full((2, 3), 0.1), seed=1, warmup=0)
    chains.advance(2)
    saved, costs, positions = chains.save(), [], []
    for load in (False, True):
        before = target.calls
        if load:
            chains = rb.Chains.load(sampler, saved)
        positions.append(chains.advance()[0])
        costs.append(target.calls - before)
    assert same(*positions)
    assert costs[1] - costs[0] == (0 if known and "MCLMC" not in name else 1)


def test_states_are_not_kept():
    target = Gaussian([1.0, 2.0, 0.5])
    sampler = SAMPLERS["MCLMC"](target)
    state = started(sampler, np.zeros((2, target.dim)), seed=1)
    for _ in range(5):
        state = stepped(sampler, state)[0]
    gc.collect()
    assert len(sampler._evaluated._known) == 1
    assert state in sampler._evaluated
    assert state not in pickle.loads(pickle.dumps(sampler._evaluated))


def test_arrays_without_weak_references():
    """The last state alone is known, and kept."""

    class Plain:
        __slots__ = ()

    first, second = (
        types.SimpleNamespace(terms=Plain(), position=Plain(), grad=Plain()) for _ in range(2)
    )
    known = Evaluated()
    for state in (first, second):
        known.add(state)
        assert state in known
    assert first not in known
