"""HMC: its options and their defaults, bad options, bad arguments, bad starts."""

import json
import math

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import RibbitWarning
from ribbit.samplers import HMC
from tests.oracle import reference
from tests.support.targets import SDS, START, Gaussian, state_of


def tau(target, **options):
    return HMC(target, **options).settings["trajectory_length"]


def test_default_trajectory_length_and_mass():
    target = Gaussian(SDS)
    assert HMC(target).settings["inverse_mass_matrix"] == "adapt"  # it states no prior
    assert tau(target) == 1.0
    target.shared_prior_sd, target.temperature = 0.3, 4.0
    assert tau(target) == pytest.approx(0.3 * 2.0)
    assert HMC(target).settings["inverse_mass_matrix"] is None
    assert tau(target, inverse_mass_matrix="adapt") == 1.0
    assert tau(target, inverse_mass_matrix=np.ones(3)) == 1.0
    assert tau(target, trajectory_length=1.5) == 1.5
    assert tau(target, num_leapfrog_steps=5) is None
    target.prior_sd = np.array(SDS)
    hmc = HMC(target, step_size=0.1, inverse_mass_matrix="prior")
    assert hmc.settings["trajectory_length"] == 1.0
    state = state_of(rb.Chains(hmc, np.zeros(3), warmup=0))
    tempered = 4.0 * np.square(SDS)
    np.testing.assert_allclose(state.inverse_mass_matrix, tempered)
    for unusable in (None, np.inf, 0.0):
        target.shared_prior_sd = unusable
        assert HMC(target).settings["inverse_mass_matrix"] == "prior"
        given = HMC(target, trajectory_length=0.5)
        assert given.settings["inverse_mass_matrix"] is None  # its units are those of position
    target.prior_sd = np.array([1.0, np.inf, 1.0])
    assert HMC(target).settings["inverse_mass_matrix"] == "adapt"


def test_without_warmup_the_step_is_asked_for():
    with pytest.raises(ValueError, match=r"warmup must be at least 1 for step_size='auto'.*got 0"):
        rb.Chains(HMC(Gaussian(SDS), num_leapfrog_steps=2), START, warmup=0)


@pytest.mark.parametrize("given", [{}, {"inverse_mass_matrix": "adapt"}])
def test_a_warmup_too_short_for_the_mass(given):
    """Also by default, if the target states no prior; the message says what to do."""
    text = r"at least 20 to adapt the inverse mass matrix, got 0. Give inverse_mass_matrix \(ones, "
    steps = r"or your own variances\) and step_size, or a longer warmup$"
    with pytest.raises(ValueError, match=text + steps):
        HMC(Gaussian(SDS), **given).sample(5, warmup=0, init=START)
    with pytest.raises(ValueError, match=r"variances\), or a longer warmup$"):
        HMC(Gaussian(SDS), step_size=0.1, **given).sample(5, warmup=19, init=START)
    if given:
        with pytest.raises(ValueError, match=text + steps):
            rb.NUTS(Gaussian(SDS), **given).sample(5, warmup=0, init=START)
    HMC(Gaussian(SDS), inverse_mass_matrix=np.ones(3), step_size=0.1).sample(
        5, warmup=0, init=START
    )


# leapfrogs are counted: whether two chains have converged does not matter
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_the_step_is_found_on_short_trajectories():
    options = {"trajectory_length": 20.0, "step_size": "auto"}
    draws = HMC(Gaussian(SDS), **options).sample(200, warmup=200, init=START, save_warmup=True)
    steps = draws.warmup_stats["n_steps"]
    assert (20.0 / draws.stats["step_size"][:, -1]).min() > 25
    assert steps[:, :100].max() <= 40  # twice 20
    assert steps[:, 100:].max() > 40
    assert draws.stats["n_steps"].max() > 40
    fixed = HMC(Gaussian(SDS), randomize_length=False, **options)
    draws = fixed.sample(5, warmup=600, init=START, save_warmup=True)
    assert draws.warmup_stats["n_steps"][:, :540].max() == 20
    assert np.median(draws.warmup_stats["n_steps"][:, 540:]) > 25
    short = fixed.sample(5, warmup=100, init=START, save_warmup=True)
    assert np.median(short.warmup_stats["n_steps"]) > 25  # a short warmup has none to spare


def test_number_of_steps_is_the_ceiling_per_chain():
    hmc = HMC(
        Gaussian(SDS),
        step_size=np.array([0.1, 0.3, 2.0]),
        trajectory_length=0.9,
        randomize_length=False,
    )
    _, stats = rb.Chains(hmc, np.zeros((3, 3)), warmup=0).advance()
    assert stats["n_steps"][:, 0].tolist() == [9, 3, 1]  # 0.9 / 0.3 rounds to just above 3
    assert stats["step_size"][:, 0].tolist() == [0.1, 0.3, 2.0]
    with pytest.raises(ValueError, match=r"\[Chains\] step_size must .* 2 chains, got 3"):
        rb.Chains(hmc, np.zeros((2, 3)), warmup=0)


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_cap_warns_and_is_a_statistic():
    with pytest.warns(RibbitWarning, match="at most 50 leapfrog steps"):
        hmc = HMC(Gaussian(SDS), step_size=0.01, trajectory_length=1.0, max_num_leapfrog_steps=50)
    draws = hmc.sample(3, init=START)
    assert draws.stats["capped"].all()
    assert draws.stats["n_steps"].max() == 50
    with pytest.warns(RibbitWarning, match="at most 50 leapfrog steps"):  # twice 30
        hmc = HMC(Gaussian(SDS), step_size=0.01, num_leapfrog_steps=30, max_num_leapfrog_steps=50)
    draws = hmc.sample(200, init=START, warmup=0)
    capped = draws.stats["capped"]
    assert capped.any()
    assert not capped.all()
    assert (draws.stats["n_steps"][capped] == 50).all()
    with pytest.raises(ValueError, match="max_num_leapfrog_steps"):
        HMC(Gaussian(SDS), num_leapfrog_steps=51, max_num_leapfrog_steps=50)


class Narrow(Gaussian):
    """Sds of 4e-4 and 1 under a prior of sd 1: the default length takes some 2,000 leapfrogs."""

    shared_prior_sd = 1.0

    def __init__(self) -> None:
        super().__init__([4e-4, 1.0])

    def value_and_grad(self, theta, rows=None):
        with np.errstate(over="ignore"):  # steps that warmup tries
            return super().value_and_grad(theta, rows)


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@pytest.mark.parametrize(
    ("options", "most", "text"),
    [
        ({}, 2048, "default length takes at most 1024 leapfrogs on average, got 2 of 2 smaller"),
        ({"max_num_leapfrog_steps": 1500}, 1500, "at most 1500 leapfrog steps"),
    ],
)
def test_with_nothing_set_a_trajectory_costs_as_much_as_the_deepest_tree(options, most, text):
    hmc = HMC(Narrow(), **options)
    with pytest.warns(RibbitWarning, match=text):
        draws = hmc.sample(4, warmup=20, init=np.zeros((2, 2)), progress=False)
    assert 0.5 * most < draws.stats["n_steps"].max() <= most
    assert draws.stats["capped"].any()


@pytest.mark.parametrize(
    "given", [{"step_size": 0.1}, {"trajectory_length": 1.0}, {"num_leapfrog_steps": 2000}]
)
def test_what_is_given_is_not_cut_to_the_deepest_tree(given):
    assert HMC(Narrow(), **given).settings["max_num_leapfrog_steps"] == 100_000


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_lengths_are_uniform_by_address_and_differ_between_chains():
    hmc = HMC(Gaussian(SDS), step_size=0.1, trajectory_length=1.0)
    steps = hmc.sample(4000, init=START, warmup=0, seed=8).stats["n_steps"]
    # 20 values, 8,000 draws: chi squared of 19 exceeds 78 with probability 3e-9.
    counts = np.bincount(steps.reshape(-1), minlength=21)[1:]
    assert counts.size == 20
    assert np.sum((counts - 400.0) ** 2 / 400.0) < 78
    u = reference.uniform(1, seed=8, step=17, chain=1, purpose=reference.JITTER, layer=1)[0]
    assert steps[1, 17] == math.ceil(20 * u)
    assert (steps[0] != steps[1]).any()
    fixed = HMC(Gaussian(SDS), step_size=0.1, trajectory_length=1.0, randomize_length=False)
    assert (fixed.sample(50, init=START, warmup=0).stats["n_steps"] == 10).all()


def test_step_size_jitter_changes_step_size_but_not_length():
    hmc = HMC(
        Gaussian(SDS),
        step_size=0.1,
        trajectory_length=1.0,
        step_size_jitter=0.2,
        randomize_length=False,
    )
    draws = hmc.sample(300, init=START, warmup=0)
    steps = draws.stats["step_size"]
    assert (draws.stats["n_steps"] == 10).all()
    assert steps.min() >= 0.08
    assert steps.max() <= 0.12
    assert np.ptp(steps) > 0.039
    assert np.unique(steps).size == steps.size
    u = reference.uniform(1, seed=0, step=17, chain=1, purpose=reference.JITTER)[0]
    assert steps[1, 17] == pytest.approx(0.1 * (0.8 + 0.4 * u), rel=1e-14)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"step_size": 0.0}, ValueError, "positive and finite, or 'auto', got 0.0"),
        ({"step_size": math.nan}, ValueError, "got nan"),
        ({"step_size": [[0.1]]}, ValueError, "positive and finite, or 'auto'"),
        ({"trajectory_length": "adapt"}, TypeError, "positive and finite, got .*adapt"),
        ({"trajectory_length": 1.0, "num_leapfrog_steps": 3}, ValueError, "exclude each other"),
        ({"num_leapfrog_steps": 0}, ValueError, "from 1 to .*, got 0"),
        ({"inverse_mass_matrix": "unit"}, ValueError, "'prior' or 'adapt'"),
        ({"inverse_mass_matrix": "prior"}, ValueError, "prior_sd"),
        ({"inverse_mass_matrix": np.ones(2)}, ValueError, r"shape \(2,\)"),
        ({"inverse_mass_matrix": np.eye(3)}, ValueError, r"shape \(3, 3\)"),
        ({"inverse_mass_matrix": [1.0, 0.0, 1.0]}, ValueError, "got 0 at index 1"),
        ({"inverse_mass_matrix": [1.0, 1.0, math.inf]}, ValueError, "got inf at index 2"),
    ],
)
def test_bad_options(options, error, text):
    """The table of options has a test of its own (test_kernel_options.py)."""
    name = next(iter(options))
    with pytest.raises(error, match=rf"^\[HMC\] .*{name}.*(?:{text})"):
        HMC(Gaussian(SDS), **options)


def test_numpy_scalars_are_numbers():
    zero_axes = {"step_size": np.array(0.1), "trajectory_length": np.sqrt(2.0)}
    found = HMC(Gaussian(SDS), **zero_axes, randomize_length=np.bool_(True)).settings
    assert found == HMC(Gaussian(SDS), step_size=0.1, trajectory_length=2.0**0.5).settings
    steps = HMC(Gaussian(SDS), num_leapfrog_steps=np.int64(5), target_accept=np.float32(0.5))
    assert json.loads(json.dumps(steps.settings))["num_leapfrog_steps"] == 5
    with pytest.raises(TypeError, match=r"got an array, int64 of shape \(2,\)"):
        HMC(Gaussian(SDS), num_leapfrog_steps=np.array([5, 6]))


def test_unknown_option_and_bad_targets():
    with pytest.raises(TypeError, match="momentum"):
        HMC(Gaussian(SDS), momentum=1)
    with pytest.raises(TypeError, match="value_and_grad"):
        HMC(object())
    target = Gaussian(SDS)
    target.dim = 3.0
    with pytest.raises(TypeError, match=r"target\.dim"):
        HMC(target)
    target = Gaussian(SDS)
    target.dropout_layers = ("2: Dropout(0.1)",)
    with pytest.raises(TypeError, match=r"2: Dropout\(0\.1\)"):
        HMC(target, num_leapfrog_steps=1)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"num_draws": 0}, ValueError, "num_draws >= 1"),
        ({"num_draws": 2.5}, TypeError, "num_draws as an integer"),
        ({"warmup": -1}, ValueError, "warmup >= 0"),
        ({"thin": 0}, ValueError, "thin >= 1"),
        ({"chains": 0}, ValueError, "chains >= 1"),
        ({"chains": [1, 1]}, ValueError, "distinct"),
        ({"chains": 3}, ValueError, r"init \(3,\) or \(3, 3\)"),
        ({"seed": -1}, ValueError, "seed >= 0"),
        ({"seed": 2**64}, ValueError, "seed <="),
        ({"init": None}, ValueError, "init="),
        ({"init": np.zeros(4)}, ValueError, r"init \(3,\) or \(C, 3\), got shape \(4,\)"),
        ({"init": np.zeros((0, 3))}, ValueError, r"got shape \(0, 3\)"),
        ({"init": np.zeros(3) * 1j}, TypeError, "real numbers"),
        ({"init": "start"}, ValueError, "init as 'ensemble', got str 'start'"),
        ({"max_seconds": 0}, ValueError, "max_seconds > 0"),
        ({"save_draws": 1}, TypeError, "save_draws"),
        ({"predict_at": np.zeros((2, 3))}, TypeError, "predictions"),
        ({"progress": 3}, TypeError, "progress"),
        ({"resume": 3}, TypeError, "resume as Draws or a state"),
    ],
)
def test_bad_sample_arguments(arguments, error, text):
    target = Gaussian(SDS)
    hmc = HMC(target, step_size=0.1, num_leapfrog_steps=3)
    arguments = {"num_draws": 5, "init": START, **arguments}
    with pytest.raises(error, match=text):
        hmc.sample(arguments.pop("num_draws"), **arguments)
    assert target.calls <= 1  # before any work


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_initial_positions_name_the_place(bad):
    hmc = HMC(Gaussian(SDS), step_size=0.1, num_leapfrog_steps=3)
    start = START.copy()
    start[1, 2] = bad
    with pytest.raises(ValueError, match=r"finite position at .* got .* for chain 1, parameter 2"):
        rb.Chains(hmc, start, warmup=0)
    with pytest.raises(ValueError, match=r"\[HMC.sample\] .* for chain 9, parameter 2"):
        hmc.sample(2, init=start, chains=[4, 9], warmup=0)

    def started(target):
        rb.Chains(HMC(target, step_size=0.1, num_leapfrog_steps=3), START, warmup=0)

    class Bad(Gaussian):
        def value_and_grad(self, theta, rows=None):
            lp, grad = super().value_and_grad(theta)
            return np.where(theta[:, 0] == 0, bad, lp), grad

    with pytest.raises(ValueError, match=r"finite log density .* for chain 1"):
        started(Bad(SDS))

    class BadGradient(Gaussian):
        def value_and_grad(self, theta, rows=None):
            lp, grad = super().value_and_grad(theta)
            return lp, np.where(theta == 0.2, bad, grad)

    with pytest.raises(ValueError, match=r"gradient at .* got .* for chain 0, parameter 2"):
        started(BadGradient(SDS))


def test_float32_overflow_of_the_start_is_named():
    hmc = HMC(Gaussian(SDS, dtype=np.float32), step_size=0.1, num_leapfrog_steps=3)
    with pytest.raises(ValueError, match="chain 0, parameter 1"):
        rb.Chains(hmc, [0.0, 1e300, 0.0], warmup=0)
    assert rb.Chains(hmc, [0.0, 1.0, 0.0], warmup=0).position.dtype == np.float32
