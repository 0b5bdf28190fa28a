"""What warmup of MCLMC finds: step, length, mass; and the blocks that it is cut into."""

import warnings

import numpy as np
import pytest

import ribbit as rb
from ribbit.samplers import MCLMC
from ribbit.samplers.mcmc.energy_tuning import block_end
from tests.support.stepwise import started
from tests.support.targets import SDS, Gaussian, posterior

pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")


@pytest.mark.parametrize("warmup", [1, 2, 7, 100, 101, 500, 1000, 4097, 10_000])
def test_blocks_end_at_the_same_steps_wherever_one_looks_from(warmup):
    ends = [block_end(step, warmup) for step in range(warmup)]
    assert ends[-1] == warmup
    assert ends[0] == 1
    for step, end in enumerate(ends):
        assert step < end <= step + 32
        assert all(ends[inside] == end for inside in range(step, end))
    for share in (0.1, 0.3, 0.5, 0.8):  # where windows begin and end
        mark = int(share * warmup)
        assert mark == 0 or mark in ends


@pytest.mark.full
@pytest.mark.parametrize("integrator", ["leapfrog", "mclachlan"])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e4])
def test_the_energy_variance_is_what_was_asked_for(integrator, scale):
    # whatever the units: nothing is known of them here
    target = Gaussian(scale * np.geomspace(0.5, 2.0, 30))
    sampler = MCLMC(target, desired_energy_var=(0.5, 0.02), step_limit=None, integrator=integrator)
    draws = sampler.sample(
        50, warmup=3000, init=np.zeros(30), chains=6, seed=1, thin=20, progress=False
    )
    found = draws.stats["energy_variance"][:, -1]
    assert np.all((found > 0.01) & (found < 0.04))
    expected = np.linalg.norm(scale * np.geomspace(0.5, 2.0, 30))
    np.testing.assert_allclose(draws.stats["decoherence_length"][:, -1], expected, rtol=0.35)
    assert len(np.unique(draws.stats["step_size"])) == 6  # each chain its own


@pytest.mark.parametrize(("dim", "share"), [(2, 1.0), (1250, 1.0), (5000, 0.0625), (125_000, 1e-4)])
def test_of_many_parameters_less_is_wanted_of_each(dim, share):
    """Settings have the numbers; what is given, or what nothing looks at, is of no size."""
    target = Gaussian(np.ones(dim))
    found = MCLMC(target).settings["desired_energy_var"]
    np.testing.assert_allclose(found, [0.5 * share, 0.02 * share], rtol=1e-12)
    for options in ({"desired_energy_var": (0.5, 0.02)}, {"adjusted": True}, {"step_size": 0.1}):
        assert MCLMC(target, **options).settings["desired_energy_var"] == [0.5, 0.02]


@pytest.mark.full
@pytest.mark.parametrize("integrator", ["leapfrog", "mclachlan"])
def test_steps_are_a_quarter_of_the_length_at_most(integrator):
    """At the defaults, from the last window on; not where anything is given but a limit."""
    target, start = Gaussian(np.ones(50)), np.random.default_rng(3).normal(size=(4, 50))
    run = {"warmup": 1000, "init": start, "seed": 1, "save_warmup": True, "progress": False}
    sampler = MCLMC(target, integrator=integrator)
    draws = sampler.sample(20, **run)
    turns = draws.stats["step_size"] / draws.stats["decoherence_length"]
    np.testing.assert_allclose(turns, 0.25)
    assert np.all(draws.warmup_stats["step_size"][:, 300:790] > 4.0)
    np.testing.assert_allclose(draws.warmup_stats["step_size"][:, 810:], 0.25 * 7.0, rtol=0.15)
    for options in (
        {"decoherence_length": 7.0},
        {"step_size": 5.0},
        {"step_size": 5.0, "step_limit": 0.25},
        {"step_limit": None},
    ):
        other = MCLMC(target, integrator=integrator, **options)
        assert other.settings["step_limit"] is None
        assert np.all(other.sample(20, **run).stats["step_size"][:, -1] > 4.0)
    for one in (sampler, MCLMC(target, desired_energy_var=(0.5, 0.02))):
        assert one.settings["step_limit"] == 0.25
    with pytest.raises(ValueError, match="step_limit as a number, None or 'auto'"):
        MCLMC(target, step_limit="None")
    other = MCLMC(target, decoherence_length=7.0, desired_energy_var=0.02, step_limit=0.1)
    np.testing.assert_allclose(other.sample(20, **run).stats["step_size"], 0.7)
    assert MCLMC(target, adjusted=True, step_limit=0.1).settings["step_limit"] is None


def test_warmup_begins_hot():
    sampler = MCLMC(Gaussian(np.ones(30)), desired_energy_var=(0.5, 0.005), step_limit=None)
    draws = sampler.sample(
        1, warmup=2000, init=np.zeros(30), chains=4, seed=1, save_warmup=True, progress=False
    )
    square = draws.warmup_stats["energy_error"] ** 2 / 30
    hot, cold = square[:, 150:300].mean(), square[:, 1600:].mean()
    assert 0.2 < hot < 0.8
    assert 0.0025 < cold < 0.01


def test_the_adapted_mass_is_the_variances():
    sd = np.geomspace(0.1, 10.0, 20)
    sampler = MCLMC(Gaussian(sd), inverse_mass_matrix="adapt")
    draws = sampler.sample(2, warmup=16_000, init=np.zeros(20), chains=3, seed=1, progress=False)
    found = draws.state.inverse_mass
    assert found.shape == (3, 20)
    assert np.all(np.abs(np.log(found / sd**2)) < 3.0)
    # whitened coordinates are about round: their norm is that of a standard normal
    np.testing.assert_allclose(draws.state.decoherence_length, np.sqrt(20), rtol=0.6)


def test_a_step_that_is_too_long_shrinks():
    class Cliff(Gaussian):
        def value_and_grad(self, theta, rows=None):
            lp, grad = super().value_and_grad(theta)
            return np.where(np.abs(theta).max(axis=1) > 0.05, np.nan, lp), grad

    target = Cliff(np.full(5, 1.0))
    sampler = MCLMC(target)
    draws = sampler.sample(20, warmup=600, init=np.zeros(5), chains=2, seed=1, progress=False)
    assert (draws.stats["step_size"] < 0.05).all()
    assert (np.abs(draws.positions) <= 0.05).all()


def test_energy_errors_whose_squares_are_infinite_count_for_nothing():
    sampler = MCLMC(Gaussian(np.ones(3)))
    state = started(sampler, np.zeros((2, 3)), warmup=2000)
    usual = np.array([[0.3, -0.2, 0.1]] * 2)
    far = usual.copy()
    far[1, 1] = 1e200
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = sampler._moves.tuning.observe(state, far, 1).errors
        without = sampler._moves.tuning.observe(state, usual, 1).errors
        longer = sampler._moves.tuning.observe(
            state, np.array([[np.inf, -1e155, np.nan]] * 2), 1
        ).errors
    assert np.isfinite(found.needed).all()
    assert np.isfinite(longer.needed).all()
    np.testing.assert_array_equal(found.needed[0], without.needed[0])
    assert 0.0 < found.weight[1] < without.weight[1]  # the control: it is another sum


def test_defaults_are_those_of_each_form():
    target = posterior()
    for adjusted, warmup, thin in ((False, 10_000, 20), (True, 500, 1)):
        sampler = MCLMC(target, adjusted=adjusted)
        assert (sampler._default_warmup, sampler._default_thin) == (warmup, thin)
    draws = MCLMC(target).sample(3, chains=1, progress=False)
    assert draws.state.step == 10_060
    assert draws.settings["warmup"] == 10_000
    assert draws.settings["thin"] == 20
    # however many draws a rule may ask for
    draws = MCLMC(target).sample(chains=2, until=rb.Converged(rhat=10.0, ess=1), progress=False)
    assert draws.settings["warmup"] == 10_000
    # half of all steps where there are many draws
    draws = MCLMC(target).sample(600, chains=1, progress=False)
    assert draws.settings["warmup"] == 12_000
    assert (
        MCLMC(target, adjusted=True).sample(2, chains=1, progress=False).settings["warmup"] == 500
    )
    hmc = rb.HMC(target, step_size=0.01, num_leapfrog_steps=1)
    assert hmc.sample(3, chains=1, progress=False).state.step == 503


@pytest.mark.parametrize(("adjusted", "least"), [(False, 100), (True, 20)])
def test_warmup_too_short_to_adapt(adjusted, least):
    sampler = MCLMC(posterior(), adjusted=adjusted)
    with pytest.raises(ValueError, match=rf"\[MCLMC.sample\] expected warmup >= {least} for"):
        sampler.sample(1, warmup=least - 1)
    fixed = MCLMC(posterior(), adjusted=adjusted, step_size=0.1, decoherence_length=1.0)
    fixed.sample(1, warmup=0, thin=1)


def test_adjusted_warmup_reaches_its_acceptance():
    draws = MCLMC(Gaussian(np.geomspace(0.5, 2.0, 30)), adjusted=True).sample(
        300, init=np.zeros(30), chains=4, seed=1, progress=False
    )
    rate = draws.stats["acceptance_rate"].mean(axis=1)
    assert np.all((rate > 0.8) & (rate < 0.97))
    length = np.linalg.norm(np.geomspace(0.5, 2.0, 30))
    np.testing.assert_allclose(draws.state.decoherence_length, length, rtol=0.35)


def test_the_summary_says_that_the_draws_are_biased():
    target = Gaussian(SDS)
    draws = MCLMC(target).sample(50, warmup=300, init=np.zeros(3), progress=False)
    text = " ".join(draws.summary().text.split())
    assert "energy variance per parameter" in text
    assert "The draws have a bias" in text
    adjusted = MCLMC(target, adjusted=True).sample(50, warmup=100, init=np.zeros(3), progress=False)
    assert "bias" not in adjusted.summary().text
    work = next(row for row in draws.summary().rows if row.name == "gradients after warmup")
    assert work.value == f"{4 * 50 * 20:,}"


class Narrowing:
    """Nine directions of sd 1 where the first is below 30, of 0.1 beyond; its own mean is 120."""

    array_namespace, dtype, dim = np, np.dtype(np.float64), 10

    def value_and_grad(self, theta, rows=None):
        first, others = theta[:, 0], theta[:, 1:]
        share = 1.0 / (1.0 + np.exp(-np.clip(first - 30.0, -50.0, 50.0)))
        precision, slope = 1.0 + 99.0 * share, 99.0 * share * (1.0 - share)
        square = np.sum(others**2, axis=1)
        value = -((first - 120.0) ** 2) / 800.0 - 0.5 * precision * square
        grad = -theta * precision[:, None]
        grad[:, 0] = (120.0 - first) / 400.0 - 0.5 * slope * square + 4.5 * slope / precision
        return value + 4.5 * np.log(precision), grad


@pytest.mark.parametrize(
    ("start", "options", "grown"),
    [
        (-40.0, {}, True),  # steps are found in the wide part, and are too long beyond
        (120.0, {}, False),
        (-40.0, {"step_size": 1.0, "decoherence_length": 5.0}, False),  # nothing was aimed at
    ],
)
def test_the_summary_says_where_energy_errors_have_grown(start, options, grown):
    init = np.zeros((4, 10))
    init[:, 0] = start
    draws = MCLMC(Narrowing(), **options).sample(
        100, warmup=400, init=init, chains=4, seed=1, progress=False
    )
    (row,) = (r for r in draws.summary().rows if r.name == "energy variance per parameter")
    assert ("aimed at" in row.value) == (not options)
    text = " ".join(draws.summary().text.split())
    assert ("times the value that warmup aimed at" in text) == grown
    if grown:
        found = draws.stats["energy_variance"][:, -1]
        assert f"The energy variance of {np.sum(found > 0.1)} of 4 chains" in text


def test_the_summary_says_that_resumed_steps_may_be_of_a_larger_variance():
    target = Gaussian(np.ones(1000))
    first = MCLMC(target, desired_energy_var=0.5, step_limit=None).sample(
        20, warmup=400, init=np.zeros(1000), chains=2, progress=False
    )
    draws = MCLMC(target, desired_energy_var=0.001).sample(20, resume=first, progress=False)
    text = " ".join(draws.summary().text.split())
    assert "resume= keeps the steps" in text
    assert "begin a new run" not in first.summary().text  # the control


@pytest.mark.filterwarnings("ignore::ribbit.errors.ScaleWarning")
def test_steps_that_move_nothing_are_warned_of():
    """Columns with an sd of 1,000: in float32 the step falls below what moves a parameter.

    Trajectories then had 100,000 leapfrogs each that led nowhere, without a word. Controls: columns
    of unit scale, and float64.
    """
    rng = np.random.default_rng(9)
    x = rng.normal(size=(150, 3))
    y = x[:, 0] + 0.4 * rng.normal(size=150)

    def run(scale, dtype):
        target = rb.Posterior(
            rb.Model([rb.Dense(1)], input_shape=(3,)),
            scale * x,
            y,
            prior=rb.Normal(1.0),
            likelihood=rb.Gaussian(0.4),
            dtype=dtype,
        )
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            sampler = MCLMC(target, adjusted=True, max_num_leapfrog_steps=500)
            sampler.sample(4, warmup=100, progress=False)
        return [str(w.message) for w in found if "that move the parameters" in str(w.message)]

    assert run(1.0, np.float32) == []
    assert run(1e3, np.float64) == []
    found = run(1e3, np.float32)
    assert found
    assert all("dtype=np.float64" in text for text in found)


def test_progress_counts_the_gradients_of_all_steps_of_a_call():
    seen = []
    sampler = MCLMC(posterior(), step_size=0.01, decoherence_length=1.0, integrator="mclachlan")
    draws = sampler.sample(4, warmup=100, thin=50, chains=2, progress=seen.append)
    assert draws.state.step == seen[-1]["done"] == 300
    counted = seen[-1]["gradients_per_second"] * seen[-1]["elapsed"]
    assert counted == pytest.approx(2 * 300 * 2, rel=1e-6)
