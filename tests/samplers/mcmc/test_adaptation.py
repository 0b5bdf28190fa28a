"""Warmup: the schedule, the recurrences, and that chains adapt alone."""

import math
import warnings

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import RibbitWarning
from ribbit.results import state as state_module
from ribbit.results.state import DualAveraging, Welford
from ribbit.samplers import HMC
from ribbit.samplers.mcmc.hamiltonian import windows
from tests.support.targets import Gaussian, Line, same


def stan_windows(warmup, start, end, base):
    """Stan's windowed_adaptation, counter by counter; the ends as counts of done transitions."""
    size, following, ends = base, start + base - 1, []
    for counter in range(warmup):
        in_window = start <= counter < warmup - end and counter != warmup
        if in_window and counter == following:
            ends.append(counter + 1)
            if following != warmup - end - 1:
                size *= 2
                following = counter + size
                if following != warmup - end - 1 and following + 2 * size >= warmup - end:
                    following = warmup - end - 1
    return ends


@pytest.mark.parametrize("warmup", [150, 175, 200, 225, 500, 800, 1000, 1225, 5000])
def test_windows_are_those_of_stan(warmup):
    first, ends = windows(warmup)
    assert first == 75
    assert sorted(ends) == stan_windows(warmup, 75, 50, 25)


@pytest.mark.parametrize("warmup", range(151, 175))
def test_no_window_is_too_short(warmup):
    assert windows(warmup) == (75, {warmup - 50})


def test_mass_of_every_short_warmup_is_sound():
    for warmup in (20, 21, 149, 150, 151, 152, 174, 175):
        hmc = HMC(
            Gaussian(SDS),
            step_size="auto",
            inverse_mass_matrix="adapt",
            max_num_leapfrog_steps=50,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RibbitWarning)  # L is capped before the first window
            state = hmc.sample(2, warmup=warmup, chains=2, init=np.zeros((2, 4))).state
        assert np.isfinite(state.inverse_mass).all()
        assert (state.inverse_mass > 0).all()
        assert (state.step_size > 1e-3).all()


def test_a_mass_needs_twenty_transitions():
    hmc = HMC(Gaussian(SDS), step_size=0.1, num_leapfrog_steps=2, inverse_mass_matrix="adapt")
    with pytest.raises(ValueError, match="warmup >= 20"):
        hmc.sample(2, warmup=19, init=np.zeros(4))


def test_windows_of_1000_steps():
    assert sorted(windows(1000)[1]) == [100, 150, 250, 450, 950]


@pytest.mark.parametrize("warmup", range(20, 150, 7))
def test_windows_of_a_short_warmup(warmup):
    first, ends = windows(warmup)
    assert first == int(0.15 * warmup)
    assert ends == {warmup - int(0.1 * warmup)}


def test_no_windows_in_a_very_short_warmup():
    assert all(windows(w)[1] == frozenset() for w in range(20))


def test_dual_averaging_is_the_papers():
    """Hoffman and Gelman 2014, algorithm 5, written out for one chain."""
    rng = np.random.default_rng(0)
    acceptance = rng.uniform(0.6, 1.0, size=(50, 2))
    dual = DualAveraging.start(np.array([0.1, 2.0]))
    for chain, first in enumerate((0.1, 2.0)):
        dual = DualAveraging.start(np.array([0.1, 2.0]))
        mu, h, average = math.log(10 * first), 0.0, 0.0
        for m, alpha in enumerate(acceptance[:, chain], start=1):
            h = (1 - 1 / (m + 10)) * h + (0.8 - alpha) / (m + 10)
            log_step = mu - math.sqrt(m) / 0.05 * h
            average = m**-0.75 * log_step + (1 - m**-0.75) * average
            dual = dual.update(acceptance[m - 1], 0.8)
            assert dual.step_size()[chain] == pytest.approx(math.exp(log_step), rel=1e-12)
            assert dual.average()[chain] == pytest.approx(math.exp(average), rel=1e-12)


def test_the_average_of_settled_updates_where_the_other_lags():
    """Chain 0 has accepted all and now nothing; chain 1 goes on as before."""
    dual = DualAveraging.start(np.array([0.1, 0.1]))
    for _ in range(100):
        dual = dual.update(np.array([0.95, 0.8]), 0.8)
        assert np.array_equal(dual.average(), [math.exp(v) for v in dual.log_average])
    average = 0.0
    for m in range(1, 21):
        # of fewer than 20 it would be noise
        assert np.array_equal(dual.average(), [math.exp(v) for v in dual.log_average])
        dual = dual.update(np.array([0.3, 0.8]), 0.8, settled=True)
        average = m**-0.75 * dual.log_step[0] + (1 - m**-0.75) * average
    assert (dual.count, dual.settled) == (120, 20)
    assert dual.log_settled[0] == pytest.approx(average, rel=1e-12)
    assert dual.average()[0] == math.exp(dual.log_settled[0])
    assert dual.average()[0] < math.exp(dual.log_average[0]) / 1.4
    assert dual.average()[1] == math.exp(dual.log_average[1])


def test_dual_averaging_stays_finite():
    dual = DualAveraging.start(np.array([1.0, 1.0]))
    for _ in range(20_000):
        dual = dual.update(np.array([0.0, 1.0]), 0.8)
    assert np.isfinite(dual.step_size()).all()
    assert (dual.step_size() > 0).all()


def test_welford_is_the_variance_with_shrinkage():
    x = np.random.default_rng(1).normal(size=(30, 2, 3)).astype(np.float32)
    welford = Welford.start(np, (2, 3))
    for row in x:
        welford = welford.update(np, row)
    expected = 30 / 35 * x.astype(float).var(axis=0, ddof=1) + 1e-3 * 5 / 35
    np.testing.assert_allclose(welford.variance(), expected, rtol=1e-12)


SDS = np.array([1.0, 3.0, 0.1, 0.02])


# three leapfrogs of a normal law in 50 dimensions, 300 draws: they need not have converged
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_step_size_reaches_target_accept():
    """Mean acceptance over 8 chains within 0.1 of a target of 0.7.

    Random step sizes break periodicity.

    The run is deterministic; control: the step sizes times 1.5 must miss.
    """
    options = {"num_leapfrog_steps": 3, "step_size_jitter": 0.3}
    target, start = Gaussian(np.ones(50)), np.zeros((8, 50))
    hmc = HMC(target, step_size="auto", target_accept=0.7, **options)
    draws = hmc.sample(300, warmup=300, init=start, seed=1)
    assert abs(draws.stats["acceptance_rate"].mean() - 0.7) < 0.1
    larger = HMC(target, step_size=1.5 * draws.state.step_size, **options)
    rates = larger.sample(300, resume=draws).stats["acceptance_rate"].mean()
    assert abs(rates - 0.7) > 0.1


@pytest.mark.full
# 20 draws of a network of 181 parameters have not converged
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::ribbit.errors.NoiseWarning")
@pytest.mark.filterwarnings(
    "ignore:.*expected steps with which the default:ribbit.errors.RibbitWarning"
)
@pytest.mark.parametrize("warmup", [None, 150, 1000])
def test_defaults_accept_where_data_have_little_noise(warmup, monkeypatch):
    """With nothing set all chains accept 0.5 or more, 0.7 on average (0.9 is aimed for).

    The run is deterministic; control: the average over all of a default warmup accepts nothing.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4))
    y = np.sin(2 * x[:, 0]) * x[:, 1] + np.cos(x[:, 2]) + 0.01 * rng.normal(size=200)
    target = rb.Posterior(
        rb.mlp(4, (30,), 1, activation="tanh"),
        x,
        (y - y.mean()) / y.std(),
        prior=rb.Normal(0.7),
        likelihood=rb.Gaussian(),
    )

    def accepted():
        draws = rb.HMC(target).sample(20, warmup=warmup, chains=4, seed=0, progress=False)
        return draws.stats["acceptance_rate"].mean(axis=1)

    rates = accepted()
    assert rates.min() > 0.5
    assert rates.mean() > 0.7
    if warmup is None:
        monkeypatch.setattr(HMC, "_several", False)
        monkeypatch.setattr(state_module, "_LAG", math.inf)
        assert accepted().max() < 0.1


def test_adapted_mass_finds_the_scales():
    """Every chain's variances within a factor 2 of the truth; the identity is off by 2500."""
    hmc = HMC(Gaussian(SDS), step_size="auto", inverse_mass_matrix="adapt", step_size_jitter=0.2)
    draws = hmc.sample(10, warmup=450, init=np.zeros((3, 4)), seed=2)
    ratio = draws.state.inverse_mass / SDS**2
    assert ratio.shape == (3, 4)
    assert (ratio > 0.5).all()
    assert (ratio < 2.0).all()
    assert draws.state.adaptation is None
    assert (draws.stats["n_steps"] < 10).all()  # whitened: few steps for pi / 2
    assert np.unique(draws.state.step_size).size == 3


def test_mass_is_adapted_at_a_fixed_step_size_too():
    hmc = HMC(Gaussian(SDS), step_size=0.3, inverse_mass_matrix="adapt", trajectory_length=1.5)
    draws = hmc.sample(5, warmup=300, init=np.zeros((2, 4)))
    assert (draws.stats["step_size"] == 0.3).all()
    assert draws.state.inverse_mass is not None


def test_adaptation_ends_with_warmup_and_state_keeps_it():
    options = {"inverse_mass_matrix": "adapt", "num_leapfrog_steps": 8}
    hmc = HMC(Gaussian(SDS), step_size="auto", **options)
    state = hmc.init(np.zeros((2, 4)), warmup=100)
    sizes = []
    for _ in range(105):
        state, info = hmc.step(state)
        sizes.append(info["step_size"].copy())
    assert state.adaptation is None
    assert same(sizes[100], sizes[104])
    assert not same(sizes[98], sizes[99])
    masses = hmc.step(hmc.init(np.zeros((2, 4)), warmup=100), num_steps=89)[0].inverse_mass
    assert masses is None  # until the window ends at 90
    assert (
        hmc.step(hmc.init(np.zeros((2, 4)), warmup=100), num_steps=90)[0].inverse_mass is not None
    )


def test_chains_adapt_alone():
    """A stuck neighbour changes no bit of a chain's warmup."""

    class Wall(Line):
        def value_and_grad(self, theta, rows=None):
            lp, grad = super().value_and_grad(theta)
            stuck = theta[:, 0] > 100.0
            return np.where(stuck, -1e6 * (theta[:, 0] - 200.0) ** 2, lp), grad

    hmc = HMC(Wall([1.0, 2.0]), step_size="auto", inverse_mass_matrix="adapt", num_leapfrog_steps=5)
    start = np.array([[0.0, 0.0], [200.0, 0.0], [0.5, 0.1]])
    together = hmc.sample(5, warmup=60, init=start, save_warmup=True)
    alone = hmc.sample(5, warmup=60, init=start[2:], chains=[2], save_warmup=True)
    assert same(together.positions[2:], alone.positions)
    assert same(together.warmup_positions[2:], alone.warmup_positions)
    assert not np.isclose(together.state.step_size[1], together.state.step_size[2])


def test_adapting_needs_a_warmup():
    hmc = HMC(Gaussian(SDS), step_size="auto", num_leapfrog_steps=3)
    with pytest.raises(ValueError, match="warmup >= 1"):
        hmc.sample(5, warmup=0, init=np.zeros(4))
    with pytest.raises(ValueError, match=r"\[HMC.init\] expected warmup >= 1 for step_size='auto'"):
        hmc.init(np.zeros(4))
    assert hmc.sample(1, init=np.zeros(4)).settings["warmup"] == 500
    fixed = HMC(Gaussian(SDS), step_size=0.01, num_leapfrog_steps=3)
    assert fixed.sample(1, init=np.zeros(4), warmup=0).settings["warmup"] == 0


def test_flat_and_impossible_densities_end():
    class Flat(Gaussian):
        def value_and_grad(self, theta, rows=None):
            return np.zeros(len(theta)), np.zeros_like(theta)

    hmc = HMC(Flat(SDS), step_size="auto", num_leapfrog_steps=2)
    assert np.isfinite(hmc.init(np.zeros(4), warmup=1).step_size).all()

    class Spike(Gaussian):
        def value_and_grad(self, theta, rows=None):
            return np.where((theta == 0).all(axis=1), 0.0, -np.inf), np.zeros_like(theta)

    draws = HMC(Spike(SDS), step_size="auto", num_leapfrog_steps=2).sample(
        3, warmup=30, init=np.zeros((2, 4))
    )
    assert draws.stats["diverging"].all()
    assert not draws.positions.any()


def test_cap_is_reported_after_warmup():
    hmc = HMC(
        Gaussian([1e-3, 1.0]), step_size="auto", trajectory_length=1.0, max_num_leapfrog_steps=20
    )
    with pytest.warns(RibbitWarning, match="at most 20 leapfrog steps"):
        draws = hmc.sample(3, warmup=50, init=np.zeros((2, 2)))
    assert draws.stats["capped"].all()


def test_trees_have_a_warmup_of_their_own():
    """Theirs are brief until the last window ends: none counts as settled, all do of HMC's."""
    settled = []
    for kind in (rb.NUTS, HMC):
        sampler = kind(Gaussian(SDS), inverse_mass_matrix=None)
        state = sampler.init(np.zeros((2, 4)), warmup=30)
        for _ in range(3):
            state, _ = sampler.step(state)
        settled.append(state.adaptation.dual.settled)
    assert settled == [0, 3]
