"""HMC(trajectory_length="adapt"): ChEES against the oracle, its purity and what it says."""

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import RibbitWarning
from ribbit.samplers import HMC
from ribbit.samplers.mcmc.chees import Moves, log_length_gradient
from ribbit.store import load
from tests.oracle import chees_reference as oracle
from tests.support.targets import Gaussian, equal, posterior, same

SDS = np.array([1.0, 0.2, 0.05])


class Oracle:
    """The target as tests/oracle/reference.py wants it: one chain, one term."""

    def gradient(self, q):
        return -q / SDS**2, None

    def terms(self, q):
        return np.array([-0.5 * np.sum((q / SDS) ** 2)]), None


class Sized(Gaussian):
    """Says what its prior sds are: lengths begin at 2 at most."""

    shared_prior_sd = 2.0


# short runs: whether they have converged does not matter
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")


@pytest.mark.parametrize("mass", [None, (3,), (5, 3)])
def test_gradient_is_that_of_the_oracle(mass):
    rng = np.random.default_rng(0)
    start, end, momentum = rng.normal(size=(3, 5, 3))
    times, rates = rng.uniform(0.1, 2.0, size=5), np.array([1.0, 0.3, 0.0, 0.8, 1.0])
    inverse = None if mass is None else rng.uniform(0.5, 2.0, size=mass)
    ids = np.arange(5, dtype=np.uint32)
    found = log_length_gradient(Moves(start, end, momentum, times, inverse), rates, ids)
    if mass == (5, 3):  # each chain in its own coordinates: roots of the masses whiten them
        whole = np.sqrt(inverse)
        weights = rates[:, None] / rates.sum()
        start = (start - start.mean(axis=0)) / whole
        end = (end - (weights * end).sum(axis=0)) / whole
        growth = np.sum(end**2, axis=1) - np.sum(start**2, axis=1)
        outward = np.sum(end * whole * momentum, axis=1)
        expected = np.sum(rates * times * growth * outward) / rates.sum()
    else:
        velocity = momentum if inverse is None else inverse * momentum
        scale = 1.0 if inverse is None else inverse
        expected = oracle.gradient(list(start), list(end), list(velocity), times, rates, scale)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_only_the_set_of_chains_matters():
    rng = np.random.default_rng(1)
    start, end, momentum = rng.normal(size=(3, 6, 4))
    times, rates = rng.uniform(size=(2, 6))
    rates[4] = 0.0
    ids = np.arange(6, dtype=np.uint32)
    one = log_length_gradient(Moves(start, end, momentum, times, None), rates, ids)
    o = rng.permutation(6)
    moves = Moves(start[o], end[o], momentum[o], times[o], None)
    assert log_length_gradient(moves, rates[o], ids[o]) == one
    end[4] = np.inf  # its rate is 0
    assert log_length_gradient(Moves(start, end, momentum, times, None), rates, ids) == one
    assert log_length_gradient(Moves(start, end, momentum, times, None), 0 * rates, ids) == 0.0


@pytest.mark.parametrize("mass", [None, np.array([1.0, 0.04, 0.01])])
def test_lengths_are_those_of_the_oracle(mass):
    """Every mean length of a warmup at a fixed step size, and the one that is kept."""
    start = SDS * np.random.default_rng(2).normal(size=(4, 3))
    step_size = 0.02 if mass is None else 0.2
    hmc = HMC(
        Sized(SDS),
        step_size=step_size,
        trajectory_length="adapt",
        inverse_mass_matrix=mass,
        max_num_leapfrog_steps=300,
    )
    state, found = hmc.init(start, seed=3, warmup=130), []
    for _ in range(130):
        found.append(state.trajectory_length[0])
        state, _ = hmc.step(state)
    found.append(state.trajectory_length[0])
    length = 2.0 if mass is None else 1.0
    expected = oracle.warmup(
        Oracle(),
        start,
        130,
        seed=3,
        step_size=step_size,
        length=length,
        most=300,
        inverse_mass=1.0 if mass is None else mass,
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert len(set(np.round(found, 6))) > 100  # it moves
    after, _ = hmc.step(state, num_steps=3)
    assert same(after.trajectory_length, state.trajectory_length)  # frozen


def test_long_directions_get_long_trajectories():
    """Of 1 and 8 sds beside a narrow one: lengths follow the widest."""
    found = {}
    for width in (1.0, 8.0):
        target = Sized([width, 0.1])
        start = np.array([width, 0.1]) * np.random.default_rng(4).normal(size=(8, 2))
        hmc = HMC(target, trajectory_length="adapt")
        draws = hmc.sample(5, warmup=500, init=start, seed=5, progress=False)
        found[width] = draws.state.trajectory_length[0]
    # Of a normal direction and lengths uniform on (0, 2 t) it is 1 - sin(4 t / sd) / (4 t / sd),
    # times a constant: largest at t = 1.12 sd.
    assert 0.7 < found[1.0] < 2.0
    assert 5.6 < found[8.0] < 16.0


@pytest.mark.parametrize("at", [30, 100, 119])
def test_a_warmup_that_is_cut_goes_on_bit_for_bit(at, tmp_path):
    target = posterior()
    hmc = HMC(target, trajectory_length="adapt", inverse_mass_matrix="adapt")
    how = {"chains": 3, "seed": 6, "progress": False}
    whole = hmc.sample(6, warmup=120, **how)
    state = hmc.init(target.init(seed=6, chains=3), seed=6, warmup=120)
    state, _ = hmc.step(state, num_steps=at)
    assert state.adaptation.lengths.count == at
    part = HMC(target, trajectory_length="adapt", inverse_mass_matrix="adapt")
    equal(whole, part.sample(6, resume=state, progress=False))
    with pytest.warns(RibbitWarning, match="at least one draw within max_seconds"):
        cut = hmc.sample(1, warmup=120, max_seconds=1e-9, **how)  # ends after a step
    cut.save(tmp_path / "cut.npz")
    loaded = load(tmp_path / "cut.npz")
    assert loaded.state.adaptation.lengths.count == loaded.state.step < 120
    equal(whole, part.sample(6, resume=loaded, progress=False))
    whole.save(tmp_path / "whole.npz")
    kept = load(tmp_path / "whole.npz").state.trajectory_length
    assert same(kept, whole.state.trajectory_length)
    assert (kept == kept[0]).all()


def test_chains_depend_on_their_set_alone():
    target = posterior()
    hmc = HMC(target, trajectory_length="adapt")
    how = {"warmup": 120, "seed": 7, "progress": False}
    one = hmc.sample(5, chains=[0, 1, 2], **how)
    turned = hmc.sample(5, chains=[2, 0, 1], **how)
    for row, chain in enumerate([2, 0, 1]):
        assert same(one.positions[chain], turned.positions[row])
    other = hmc.sample(5, chains=[0, 1, 3], **how)
    assert not same(one.positions[0], other.positions[0])  # as the docstring says
    fixed = HMC(target, trajectory_length=0.3)
    a, b = (fixed.sample(5, chains=ids, **how) for ids in ([0, 1, 2], [0, 1, 3]))
    assert same(a.positions[:2], b.positions[:2])  # the control


def test_what_is_said():
    target = posterior()
    draws = HMC(target, trajectory_length="adapt").sample(
        60, warmup=120, chains=2, seed=8, progress=False
    )
    assert draws.settings["trajectory_length"] == "adapt"
    assert draws.settings["coupled_chains"] is True
    assert "trajectory length" in str(draws.summary())
    assert "depend on the set of chains" in draws.summary().message
    plain = HMC(target).sample(60, warmup=120, chains=2, seed=8, progress=False)
    assert "coupled_chains" not in plain.settings
    assert "depend on the set of chains" not in plain.summary().message
    assert plain.state.trajectory_length is None


def test_with_nothing_else_set_the_marginal_density_is_moved():
    rng = np.random.default_rng(9)
    x = rng.normal(size=(30, 2))
    y = np.sin(x[:, :1]) + 0.1 * rng.normal(size=(30, 1))
    target = rb.Posterior(
        rb.mlp(2, (4,), 1), x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.1)
    )
    how = {"warmup": 30, "chains": 2, "progress": False}
    draws = HMC(target, trajectory_length="adapt").sample(3, **how)
    assert draws.state.position.shape[1] < draws.positions.shape[2] == target.dim
    assert draws.settings["integrated"] == HMC(target).sample(3, **how).settings["integrated"]
    kept = HMC(target, trajectory_length=1.0).sample(3, **how)  # the control
    assert kept.state.position.shape[1] == target.dim


def test_refusals():
    target, hmc = posterior(), HMC(posterior(), trajectory_length="adapt")
    with pytest.raises(ValueError, match=r"expected at least 2 chains for trajectory_length='ad"):
        hmc.sample(5, chains=1)
    with pytest.raises(ValueError, match=r"expected at least 2 chains .* got 1"):
        hmc.init(np.zeros(target.dim, np.float32), warmup=100)
    one = HMC(target).init(np.zeros(target.dim, np.float32), warmup=100)
    with pytest.raises(ValueError, match=r"\[HMC.step\] expected at least 2 chains"):
        hmc.step(one)
    with pytest.raises(ValueError, match=r"expected warmup >= 20 for trajectory_length='adapt'"):
        hmc.sample(5, warmup=19)
    with pytest.raises(ValueError, match="at most one of trajectory_length"):
        HMC(target, trajectory_length="adapt", num_leapfrog_steps=3)
    with pytest.raises(ValueError, match="trajectory_length"):
        HMC(target, trajectory_length="auto")


def test_a_state_of_another_sampler_and_back():
    """An adapted length stays with its sampler; another one has its own."""
    target = posterior()
    hmc = HMC(target, trajectory_length="adapt", inverse_mass_matrix="prior")
    draws = hmc.sample(3, warmup=120, chains=2, progress=False)
    other = HMC(target, trajectory_length=0.1).sample(3, resume=draws, progress=False)
    assert other.state.trajectory_length is None
    assert other.stats["n_steps"].max() <= 2 * np.ceil(0.1 / other.stats["step_size"].min())
    again = hmc.sample(3, resume=other, progress=False)
    assert (again.state.trajectory_length > 0).all()
