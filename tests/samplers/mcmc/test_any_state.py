"""A step from any state that a sampler made costs its own gradients and no other."""

import dataclasses
import gc
import itertools
import pickle
import types

import numpy as np
import pytest

import ribbit as rb
from ribbit.samplers.mcmc.hamiltonian import Evaluated

SAMPLERS = {
    "HMC": lambda target: rb.HMC(target, step_size=0.01, num_leapfrog_steps=3),
    "NUTS": lambda target: rb.NUTS(target, step_size=0.01),
    "MCLMC": lambda target: rb.MCLMC(target, step_size=0.01, decoherence_length=0.3),
    "adjusted MCLMC": lambda target: rb.MCLMC(
        target, adjusted=True, step_size=0.01, decoherence_length=0.3
    ),
}


def posterior():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((20, 2)).astype(np.float32)
    y = rng.standard_normal((20, 1)).astype(np.float32)
    return rb.Posterior(
        rb.mlp(2, [4], 1, activation="tanh"),
        x,
        y,
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.5),
    )


@pytest.fixture
def evaluations(monkeypatch):
    """Where the density was evaluated apart from the dynamics."""
    seen = []

    def counted(sampler):
        density = sampler._density
        plain = type(density).terms_and_grad

        def evaluate(position, guard):
            seen.append(np.array(position))
            return plain(density, position, guard)

        monkeypatch.setattr(density, "terms_and_grad", evaluate)
        return sampler

    return seen, counted


def same(a, b):
    return all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in ("position", "grad", "terms")
    )


@pytest.mark.parametrize("name", SAMPLERS)
def test_any_state(name, evaluations):
    seen, counted = evaluations
    target = posterior()
    sampler = counted(SAMPLERS[name](target))
    start = np.zeros((2, target.dim), np.float32)
    states = [sampler.init(start, seed=1)]
    for _ in range(3):
        states.append(sampler.step(states[-1])[0])
    other = sampler.init(start + 0.1, seed=2)
    seen.clear()
    for state, after in itertools.pairwise(states):
        assert same(sampler.step(state)[0], after)
    sampler.step(other)
    assert seen == []  # from the last state, from older ones, and from another start

    # Controls: those whose density is not known here.
    elsewhere = counted(SAMPLERS[name](posterior()))
    moved = dataclasses.replace(states[1], position=start + 0.2)
    read = pickle.loads(pickle.dumps(states[1]))
    for wanted, (by, state) in enumerate(
        [(elsewhere, states[1]), (sampler, moved), (sampler, read)], start=1
    ):
        after = by.step(state)[0]
        assert len(seen) == wanted
        assert np.array_equal(seen[-1], state.position)
    assert same(after, states[2])


@pytest.mark.parametrize("name", SAMPLERS)
def test_states_are_not_kept(name):
    target = posterior()
    sampler = SAMPLERS[name](target)
    state = sampler.init(np.zeros((2, target.dim), np.float32), seed=1)
    for _ in range(5):
        state = sampler.step(state)[0]
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
