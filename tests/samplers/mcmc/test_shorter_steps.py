"""`MCLMC.discretization_bias`: its steps, what it refuses, and that draws stay as they are."""

import dataclasses
import pickle

import numpy as np
import pytest

import ribbit as rb
from ribbit.samplers import MCLMC
from tests.support.stepwise import stepped
from tests.support.targets import Gaussian, posterior

pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")


@pytest.fixture(scope="module")
def run():
    """A sampler of a small network, and its draws."""
    sampler = MCLMC(posterior())
    return sampler, sampler.sample(20, warmup=500, chains=3, seed=1, progress=False)


def ways(sampler, state, share, every, parts):
    """Terms (C, parts / 2, M) of the second half of a way, one step after the other."""
    state = dataclasses.replace(state, step_size=state.step_size * share)
    found = []
    for step in range(parts * every):
        state, _ = stepped(sampler, state)
        if step >= parts // 2 * every and (step + 1) % every == 0:
            found.append(state.terms)
    return np.stack(found, axis=1)


def test_it_is_the_difference_between_both_ways(run):
    sampler, draws = run
    found = sampler.discretization_bias(draws, num_steps=1300, progress=False)
    short, own = (ways(sampler, draws.state, *way, 130) for way in ((0.1, 10), (1.0, 1)))
    expected = (own.mean(axis=1) - short.mean(axis=1)) / 0.99
    np.testing.assert_allclose(found.by_chain, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.bias, expected.mean(axis=0), rtol=1e-9, atol=1e-9)
    spread = np.sqrt(short.var(axis=1).mean(axis=0))
    np.testing.assert_allclose(found.sd, spread, rtol=1e-9)
    assert found.names == ("log likelihood", "log prior")
    assert (found.num_steps, found.num_still, found.set_by) == (1300, 0, "desired_energy_var")
    assert found.num_gradients == 3 * 1430


@pytest.mark.parametrize(
    "options",
    [
        {"integrator": "mclachlan"},
        {"step_size": 0.3},
        {"step_size": 0.3, "decoherence_length": 2.0, "inverse_mass_matrix": "prior"},
        {"inverse_mass_matrix": "inputs"},
        {"adjusted": True},
    ],
)
def test_whatever_the_sampler_has_it_is_of_the_draws(run, options):
    """Their integrator, steps, lengths and scales; the control: a sampler with other ones."""
    sampler, draws = run
    expected = sampler.discretization_bias(draws, progress=False)
    other = MCLMC(posterior(), **options)
    found = other.discretization_bias(draws, progress=False)
    np.testing.assert_array_equal(found.by_chain, expected.by_chain)
    assert found.set_by == "desired_energy_var"
    if not other.settings["adjusted"]:
        own = other.sample(20, warmup=500, chains=3, seed=1, progress=False)
        back = sampler.discretization_bias(own, progress=False)
        np.testing.assert_array_equal(
            back.by_chain, other.discretization_bias(own, progress=False).by_chain
        )
        assert not np.array_equal(back.by_chain, expected.by_chain)
        assert back.set_by == ("step_size" if "step_size" in options else "desired_energy_var")


@pytest.mark.parametrize("step", [1e-12, 1e30])
def test_chains_that_do_not_move_are_told(step):
    sampler = MCLMC(posterior(), step_size=step, decoherence_length=1.0)
    draws = sampler.sample(5, warmup=0, chains=2, seed=1, progress=False)
    found = sampler.discretization_bias(draws, progress=False)
    assert found.num_still == 2
    assert found.summary().converged is None


@pytest.mark.full
def test_advice_that_is_followed_makes_it_less():
    """Normals, whose step the limit sets: half of it has a quarter of the bias."""
    start = np.random.default_rng(3).normal(size=(16, 200))
    found = []
    for limit in (1.0, 0.5):
        sampler = MCLMC(Gaussian(np.ones(200)), step_limit=limit)
        draws = sampler.sample(50, warmup=1000, init=start, seed=1, progress=False)
        found.append(sampler.discretization_bias(draws, num_steps=20_000, progress=False))
    assert [one.set_by for one in found] == ["step_limit", "step_limit"]
    error = np.hypot(found[0].error, found[1].error)[0]
    assert found[1].bias[0] - found[0].bias[0] > 4.0 * error


def test_progress_counts_to_the_end(run):
    sampler, draws = run
    seen = []
    sampler.discretization_bias(draws, progress=seen.append)
    assert seen[-1]["done"] == seen[-1]["total"] == 2200


def test_the_default_is_a_tenth_of_the_steps_and_2000_at_least(run):
    sampler, draws = run
    assert sampler.discretization_bias(draws, progress=False).num_steps == 2000
    longer = dataclasses.replace(draws.state, step=draws.state.warmup + 41_234)
    assert sampler.discretization_bias(dataclasses.replace(draws, state=longer)).num_steps == 4000


def test_draws_stay_as_they_are(run):
    sampler, draws = run
    before = pickle.dumps(draws.state)
    sampler.discretization_bias(draws)
    assert pickle.dumps(draws.state) == before
    go_on = {"resume": draws, "progress": False}
    fresh = MCLMC(posterior())
    np.testing.assert_array_equal(
        sampler.sample(5, **go_on).positions, fresh.sample(5, **go_on).positions
    )


def test_the_mclachlan_integrator_has_two_gradients_in_a_step():
    sampler = MCLMC(Gaussian(np.geomspace(0.5, 2.0, 10)), integrator="mclachlan")
    draws = sampler.sample(5, warmup=200, init=np.zeros(10), chains=2, seed=1, progress=False)
    found = sampler.discretization_bias(draws)
    assert found.num_gradients == 2 * 2 * 2200
    assert found.names == ("log density",)


class Split(Gaussian):
    """A log density in three parts."""

    def terms_and_grad(self, theta):
        lp, grad = self.value_and_grad(theta)
        return lp[:, None] * np.array([0.5, 0.25, 0.25]), grad


class Named(Split):
    """One that says what they are."""

    term_names = ("one", "two", "three")


@pytest.mark.parametrize(
    ("kind", "names"),
    [(Split, ("term 0", "term 1", "term 2")), (Named, ("one", "two", "three"))],
)
def test_terms_have_the_names_of_their_target(kind, names):
    sampler = MCLMC(kind(np.ones(10)))
    draws = sampler.sample(5, warmup=200, init=np.zeros(10), chains=2, seed=1, progress=False)
    assert sampler.discretization_bias(draws, num_steps=1000).names == names


def test_it_goes_on_from_a_file(run, tmp_path):
    sampler, draws = run
    draws.save(tmp_path / "draws.npz")
    again = sampler.discretization_bias(rb.load(tmp_path / "draws.npz"))
    np.testing.assert_array_equal(again.by_chain, sampler.discretization_bias(draws).by_chain)


def test_what_is_refused(run):
    sampler, draws = run
    target = posterior()
    with pytest.raises(TypeError, match="expected Draws, got"):
        sampler.discretization_bias(draws.positions)
    hmc = rb.HMC(target).sample(5, warmup=20, chains=2, seed=1, progress=False)
    with pytest.raises(TypeError, match="their state, got draws of HMC"):
        sampler.discretization_bias(hmc)
    fit = rb.DeepEnsemble(target, members=2, batch_size=3).fit(1, progress=False)
    with pytest.raises(TypeError, match="got draws without one"):
        sampler.discretization_bias(fit.draws())
    adjusted = MCLMC(target, adjusted=True).sample(5, chains=2, seed=1, progress=False)
    with pytest.raises(ValueError, match="these have no bias"):
        sampler.discretization_bias(adjusted)
    one = sampler.sample(5, warmup=200, chains=1, seed=1, progress=False)
    with pytest.raises(ValueError, match="two chains or more, got one"):
        sampler.discretization_bias(one)
    early = dataclasses.replace(draws, state=dataclasses.replace(draws.state, step=300))
    with pytest.raises(ValueError, match="ended after 300 of 500 steps"):
        sampler.discretization_bias(early)
    for steps in (0, 999, 1550):
        with pytest.raises(ValueError, match="num_steps"):
            sampler.discretization_bias(draws, num_steps=steps)
    wider = rb.Posterior(
        target.model, target.x, target.y, prior=rb.Normal(9.0), likelihood=target.likelihood
    )
    with pytest.raises(ValueError, match="prior"):
        MCLMC(wider).discretization_bias(draws)


def test_the_summary_of_draws_says_that_there_is_this(run):
    assert "discretization_bias(draws)" in run[1].summary().message
