"""Runs on a target that integrates a part out: what is kept is whole, what resumes is the rest."""

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import RibbitWarning
from tests.support.integrated import made
from tests.support.targets import same

# short runs whose bits are compared: whether they have converged does not matter
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")

SAMPLERS = {
    "HMC": lambda t: rb.HMC(t, step_size=0.02, num_leapfrog_steps=5),
    "NUTS": lambda t: rb.NUTS(t, step_size=0.02, max_tree_depth=4),
    "MCLMC": lambda t: rb.MCLMC(t, step_size=0.05, decoherence_length=0.5),
}
samplers = pytest.mark.parametrize("method", SAMPLERS)
RUN = {"warmup": 30, "thin": 2, "seed": 3, "progress": False}


@samplers
@pytest.mark.usefixtures("_threads")
def test_no_bit_depends_on_threads_chains_or_restarts(method):
    target, _ = made(hidden=(9,), rows=600, dtype=np.float32)
    sampler = SAMPLERS[method](target)
    rb.set_num_threads(2)
    whole = sampler.sample(6, chains=3, **RUN)
    assert whole.positions.shape == (3, 6, target.full_dim)
    assert whole.state.position.shape == (3, target.dim)
    for threads in (1, 3):
        rb.set_num_threads(threads)
        assert same(sampler.sample(6, chains=3, **RUN).positions, whole.positions)
    alone = sampler.sample(6, chains=[1], **RUN)
    assert same(alone.positions, whole.positions[1:2])
    first = sampler.sample(2, chains=3, **RUN)
    rest = SAMPLERS[method](target).sample(4, thin=2, resume=first, progress=False)
    joined = np.concatenate([first.positions, rest.positions], axis=1)
    assert same(joined, whole.positions)


def test_draws_are_those_of_the_whole_posterior(tmp_path):
    target, _ = made()
    x, y = np.array(target.x), np.array(target.y)
    draws = SAMPLERS["HMC"](target).sample(8, chains=2, predict_at=(x, y), save_warmup=True, **RUN)
    assert draws.warmup_positions.shape == (2, 30, target.full_dim)
    kept = draws.predict(x)
    np.testing.assert_array_equal(draws.prediction.mean, kept.mean)
    flat = draws.positions.reshape(-1, target.full_dim)
    np.testing.assert_allclose(kept.mean, target.joint.outputs(flat, x).mean(axis=0), rtol=1e-9)
    assert set(draws.to_datatree()["posterior"].data_vars) >= {"2.weight", "log_noise"}
    assert np.isfinite(draws.prediction.log_likelihood(y))

    draws.save(tmp_path / "draws.npz")
    again = rb.load(tmp_path / "draws.npz")
    assert same(again.positions, draws.positions)
    np.testing.assert_array_equal(again.predict(x).mean, kept.mean)
    one = SAMPLERS["HMC"](target).sample(3, resume=draws, thin=2, progress=False)
    two = SAMPLERS["HMC"](target).sample(3, resume=again, thin=2, progress=False)
    assert same(one.positions, two.positions)


def test_starts_of_both_sizes():
    target, _ = made()
    hmc = SAMPLERS["HMC"](target)
    whole = target.joint.init(1, 2)
    one = hmc.sample(3, init=whole, **RUN)
    assert same(one.positions, hmc.sample(3, init=target.init(1, 2), **RUN).positions)
    alone = hmc.sample(1, init=whole[0], chains=1, **RUN)
    assert alone.state.position.shape == (1, target.dim)
    last = hmc.sample(3, init=one.positions[:, -1], **RUN)
    assert np.all(np.isfinite(last.positions))


def test_rejected_draws_have_a_last_layer_of_their_own():
    """At a step so large that nothing is accepted: the rest stays, the last layer does not."""
    target, _ = made()
    hmc = rb.HMC(target, step_size=1e3, num_leapfrog_steps=2)
    with pytest.warns(RibbitWarning, match="of a chain diverged"):
        draws = hmc.sample(10, warmup=0, chains=1, progress=False)
    moved = np.any(np.diff(draws.positions[0], axis=0) != 0, axis=0)
    assert np.array_equal(np.flatnonzero(moved), np.arange(20, 26))


def test_a_state_of_the_ordinary_posterior_is_refused():
    target, _ = made()
    whole = rb.HMC(target.joint, step_size=0.01, num_leapfrog_steps=2)
    state = whole.sample(1, warmup=0, chains=1, progress=False).state
    with pytest.raises(ValueError, match="expected a state of dim 21, got 27"):
        SAMPLERS["HMC"](target).sample(2, resume=state, progress=False)


@pytest.mark.parametrize("make", [rb.HMC, rb.NUTS])
def test_samplers_with_nothing_set_move_the_marginal(make):
    target, options = made()[0].joint, {"warmup": 30, "seed": 3, "chains": 2, "progress": False}
    sampler = make(target)
    draws = sampler.sample(6, **options)
    assert draws.state.position.shape == (2, target.marginal.dim) == (2, 21)
    assert draws.positions.shape == (2, 6, target.dim) == (2, 6, 27)
    assert draws.settings["integrated"] == "last layer"
    assert "last layer: states and lp hold the other parameters" in str(draws.summary())
    assert same(draws.positions, make(target.marginal).sample(6, **options).positions)
    first = sampler.sample(2, **options)
    rest = make(target).sample(4, resume=first, progress=False)
    assert same(np.concatenate([first.positions, rest.positions], axis=1), draws.positions)
    chains = rb.Chains.load(sampler, bytes(first.state))
    assert same(chains.advance(4)[0], draws.positions[:, 2:])
    fit = sampler.sample(2, init=target.init(1, 2), **options)
    assert fit.state.position.shape == (2, 21)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (rb.HMC, {"step_size": 0.01}),
        (rb.HMC, {"num_leapfrog_steps": 3}),
        (rb.HMC, {"trajectory_length": 0.1}),
        (rb.HMC, {"inverse_mass_matrix": "prior"}),
        (rb.NUTS, {"step_size": 0.01}),
        (rb.NUTS, {"inverse_mass_matrix": "adapt"}),
        (rb.MCLMC, {"adjusted": True}),  # never
    ],
)
def test_samplers_move_the_whole_where_something_is_set(make, options):
    target, run = made()[0].joint, {"warmup": 30, "chains": 2, "progress": False}
    draws = make(target, **options).sample(2, **run)
    assert draws.state.position.shape == (2, target.dim)
    assert "integrated" not in draws.settings
    assert "integrated" not in str(draws.summary())


@pytest.mark.parametrize("make", [rb.HMC, rb.NUTS])
def test_a_state_says_which_part_goes_on(make):
    target = made()[0].joint
    whole = make(target, step_size=0.01).sample(2, warmup=30, chains=2, progress=False)
    rest = make(target).sample(2, resume=whole, progress=False)
    assert rest.state.position.shape == (2, target.dim)


def test_targets_of_ones_own():
    """The protocol without the native code: half of a normal pair, the other half drawn anew."""

    class Half:
        dim, full_dim = 1, 2

        def value_and_grad(self, theta, rows=None):
            return -0.5 * theta[:, 0] ** 2, -theta

        def complete(self, position, *, seed, step, chains):
            other = np.array([[1000.0 * seed + step + 0.1 * c] for c in chains])
            return np.concatenate([position, other], axis=1)

        def reduce(self, function, position):
            return position[..., :1]

    draws = rb.HMC(Half(), step_size=0.5, num_leapfrog_steps=2).sample(
        3, warmup=4, chains=2, seed=2, init=np.zeros(2), progress=False
    )
    known = [[2005, 2006, 2007], [2005.1, 2006.1, 2007.1]]
    np.testing.assert_allclose(draws.positions[:, :, 1], known)
