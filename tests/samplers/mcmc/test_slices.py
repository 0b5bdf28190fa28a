"""Native steps of more chains than threads, which threads take in slices: the same bits."""

import numpy as np
import pytest

import ribbit as rb
from ribbit.density import Density
from ribbit.samplers.mcmc.input_scales import InputScales
from ribbit.samplers.mcmc.isokinetic import Dynamics, Path

CHAINS, NONE = 5, np.zeros(0)


def steps(target, *, turns, mixing=None):
    """Steps of five chains, unequally many; one of them has steps that overflow."""
    density = Density(target, function="test")
    rng = np.random.default_rng(5)
    q = target.init(seed=1, chains=CHAINS)
    terms, grad = density.terms_and_grad(q, None)
    return Dynamics(density, "leapfrog").run(
        Path(q, rng.normal(size=q.shape).astype(q.dtype), grad, terms, NONE, NONE),
        seed=5,
        chains=np.arange(CHAINS, dtype=np.uint32),
        first_step=3,
        step_size=np.array([0.05, 0.05, 1e20, 0.05, 0.05]),
        decoherence_length=np.full(CHAINS, 3.0),
        num_steps=np.array([40, 33, 40, 1, 2]),
        inverse_mass=None,
        turns=turns,
        guard=None,
        mixing=mixing,
    )


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize("turns", [True, False])
@pytest.mark.parametrize("hidden", [(40,), (48, 48)])
def test_slices_change_no_bit(mixes, turns, hidden):
    """Steps of 1.4 and 10 million flops: 40 of them are cut in 2 and 16 by two threads."""
    x = rb.random.normal((600, 8), seed=3)
    target = rb.Posterior(
        rb.mlp(8, hidden, 1, activation="tanh"),
        x,
        np.sin(x.sum(axis=1)),
        prior=rb.Normal(0.5),
        likelihood=rb.Gaussian(0.3),
        dtype=np.float32,
    )
    ends, mixing = [], None
    if mixes:
        mixing = InputScales(Density(target, function="test")).identity(CHAINS)
        mixing = (mixing + 0.01 * np.abs(np.sin(np.arange(mixing.shape[1])))).astype(np.float32)
    for count in (1, 2, 3, 4):
        rb.set_num_threads(count)
        ends.append(steps(target, turns=turns, mixing=mixing))
    for end in ends[1:]:
        for a, b in zip(ends[0], end, strict=True):
            assert np.array_equal(a, b, equal_nan=True)
    lost = np.isnan(ends[0].errors)
    assert lost[2].sum() == (40 if turns else 1), "what overflows turns round, or ends its chain"
    assert not lost[[0, 1, 3, 4]].any()
