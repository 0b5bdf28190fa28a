"""HMC against the oracle, its rejections and its purity."""

import math

import numpy as np
import pytest

import ribbit as rb
from ribbit.density import Density
from ribbit.lockstep.hmc import leapfrog
from ribbit.samplers import HMC
from tests.oracle import reference
from tests.support.targets import SDS, START, Gaussian, Scripted, same, state_of


class Oracle:
    """The target as tests/oracle/reference.py wants it: one chain, one term."""

    def gradient(self, q):
        return -q / np.square(SDS), None

    def terms(self, q):
        return np.array([-0.5 * np.sum(np.square(q / np.array(SDS)))]), None


# --- what is computed ----------------------------------------------------------------------------


# the same draws twice: whether they have converged does not matter
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@pytest.mark.parametrize("mass", [None, np.array([1.0, 3.0, 0.2])])
@pytest.mark.parametrize("step_size_jitter", [0.0, 0.3])
@pytest.mark.parametrize("randomize_length", [True, False])
def test_draws_are_those_of_the_oracle(mass, step_size_jitter, randomize_length):
    options = {
        "step_size": 0.85,
        "step_size_jitter": step_size_jitter,
        "randomize_length": randomize_length,
    }
    draws = HMC(Gaussian(SDS), num_leapfrog_steps=7, inverse_mass_matrix=mass, **options).sample(
        60, init=START, seed=2**63 + 5, warmup=0
    )
    for chain in range(2):
        expected, accepted = reference.hmc_run(
            Oracle(),
            START[chain],
            60,
            seed=2**63 + 5,
            chain=chain,
            num_steps=7,
            inverse_mass=1.0 if mass is None else mass,
            **options,
        )
        assert np.array_equal(draws.stats["accepted"][chain], accepted)
        np.testing.assert_allclose(draws.positions[chain], expected, rtol=1e-11, atol=1e-12)
    assert 0 < draws.stats["accepted"].sum() < 120  # both branches are met


def test_statistics_fit_together():
    hmc = HMC(Gaussian(SDS), step_size=0.7, num_leapfrog_steps=5)
    draws = hmc.sample(200, init=START)
    s = draws.stats
    np.testing.assert_allclose(
        s["lp"], -0.5 * np.sum((draws.positions / SDS) ** 2, axis=-1), rtol=1e-12
    )
    np.testing.assert_allclose(s["acceptance_rate"], np.exp(np.minimum(0, -s["energy_error"])))
    assert s["accepted"].any()
    assert not s["accepted"].all()
    assert (s["energy"] + s["lp"] > 0).all()  # kinetic energy
    assert set(np.unique(s["n_steps"])) == set(range(1, 11))
    assert (s["step_size"] == 0.7).all()
    assert not s["diverging"].any()
    assert not s["capped"].any()
    rejected = np.argwhere(~s["accepted"][:, 1:])
    for c, d in rejected:  # a rejected proposal repeats the old draw
        assert same(draws.positions[c, d + 1], draws.positions[c, d])


# steps near the limit of stability, some beyond it: the control needs rejections
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_moments_of_a_gaussian():
    """Means and second moments within 5.5 standard errors: 12 checks, false-fail rate < 1e-6.

    The control accepts everything, which overstates the variance at this step size.
    """
    hmc = HMC(Gaussian(SDS), step_size=0.8, trajectory_length=1.6, step_size_jitter=0.5)

    def worst(draws):
        scaled = draws.positions[:, 100:] / SDS
        worst = 0.0
        for values in (scaled, scaled**2 - 1.0):
            batches = values.reshape(4, 20, -1, 3).mean(axis=2).reshape(80, 3)  # batch means
            error = batches.std(axis=0, ddof=1) / math.sqrt(80)
            worst = max(worst, np.abs(batches.mean(axis=0) / error).max())
        return worst

    start = np.zeros((4, 3))
    assert worst(hmc.sample(4100, init=start, seed=3)) < 5.5
    always = pytest.MonkeyPatch()
    with always.context() as patch:
        patch.setattr(
            "ribbit._arrays.transitions.accept",
            lambda xp, error, **_: (np.isfinite(error), np.ones_like(error)),
        )
        assert worst(hmc.sample(4100, init=start, seed=3)) > 5.5


def test_python_trajectory_with_different_lengths_per_chain():
    target = Density(Gaussian(SDS), function="test")
    rng = np.random.default_rng(1)
    q, p = rng.normal(size=(2, 5, 3))
    steps, eps = np.array([3, 1, 7, 3, 2]), np.array([0.1, 0.2, 0.05, 0.3, 0.1])
    mass, grad = rng.uniform(0.5, 2.0, size=(5, 3)), target.terms_and_grad(q)[1]
    together = leapfrog(target, q, p, grad, eps, steps, mass, None)
    for c in range(5):
        one = slice(c, c + 1)
        alone = leapfrog(target, q[one], p[one], grad[one], eps[one], steps[one], mass[one], None)
        for a, b in zip(together, alone, strict=True):
            assert same(a[one], b)
        expected = reference.leapfrog(
            lambda x: -x / np.square(SDS), q[c], p[c], eps[c], steps[c], mass[c]
        )
        np.testing.assert_allclose(together[0][c], expected[0], rtol=1e-12)
        np.testing.assert_allclose(together[1][c], expected[1], rtol=1e-12, atol=1e-14)


def test_python_trajectory_is_reversible():
    target, rng = Density(Gaussian(SDS), function="test"), np.random.default_rng(2)
    q, p = rng.normal(size=(2, 1, 3))
    options = np.array([0.1]), np.array([50]), None, None
    end, turned, _, grad, _ = leapfrog(target, q, p, target.terms_and_grad(q)[1], *options)
    back = leapfrog(target, end, -turned, grad, *options)[0]
    np.testing.assert_allclose(back, q, atol=1e-13)


# --- rejection -----------------------------------------------------------------------------------


def spoil(which, value):
    def end(q, p, terms, g):
        array = {"position": q, "momentum": p, "terms": terms, "gradient": g}[which]
        array[1, -1] = value
        return q, p, terms, g

    return end


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", ["position", "momentum", "terms", "gradient"])
def test_a_proposal_that_is_not_finite_is_rejected(which, value, dtype):
    hmc = HMC(Scripted(4, spoil(which, value), dtype=dtype), step_size=0.1, num_leapfrog_steps=1)
    chains = rb.Chains(hmc, np.full((3, 4), -0.125), warmup=0)
    before = state_of(chains)
    _, stats = chains.advance()  # position -0.125 -> 0.125: energy error exactly 0
    after, info = state_of(chains), {name: values[:, 0] for name, values in stats.items()}
    assert info["accepted"].tolist() == [True, False, True]
    assert info["diverging"].tolist() == [False, True, False]
    assert info["acceptance_rate"].tolist() == [1.0, 0.0, 1.0]
    assert info["energy_error"][1] == np.inf
    assert np.isfinite(info["energy"]).all()
    for name in ("position", "grad", "terms"):
        assert same(getattr(after, name)[1], getattr(before, name)[1])
        assert name == "terms" or not same(getattr(after, name)[0], getattr(before, name)[0])


def test_divergence_threshold():
    def far(q, p, terms, g):
        terms[0] -= 900.0
        terms[1] -= 1100.0
        return q, p, terms, g

    def diverging(**options):
        hmc = HMC(Scripted(4, far), step_size=0.1, num_leapfrog_steps=1, **options)
        stats = rb.Chains(hmc, np.full((3, 4), -0.125), warmup=0).advance()[1]
        assert stats["accepted"][:, 0].tolist() == [False, False, True]
        return stats["diverging"][:, 0].tolist()

    assert diverging() == [False, True, False]
    assert diverging(divergence_threshold=800.0)[0]


# it diverges on purpose
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_python_trajectory_stops_where_the_density_is_lost():
    class Box(Gaussian):
        """NaN outside of |x| < 1; would raise on NaN input, as user code may."""

        def value_and_grad(self, theta, rows=None):
            assert np.isfinite(theta).all()
            lp, grad = super().value_and_grad(theta)
            out = np.abs(theta).max(axis=1) > 1
            return np.where(out, np.nan, lp), np.where(out[:, None], np.nan, grad)

    draws = HMC(Box([1.0, 1.0]), step_size=0.2, num_leapfrog_steps=10).sample(
        200, init=np.zeros((3, 2))
    )
    assert np.abs(draws.positions).max() <= 1
    diverging = draws.stats["diverging"]
    assert diverging.any()
    assert not diverging.all()
    assert not draws.stats["accepted"][diverging].any()


# --- purity --------------------------------------------------------------------------------------


def test_chains_continue_alone_and_nothing_is_aliased():
    class Recycling(Gaussian):
        """Returns the same buffers every time and spoils what it was given."""

        def value_and_grad(self, theta, rows=None):
            lp, grad = super().value_and_grad(theta)
            if not hasattr(self, "buffers"):
                self.buffers = np.empty_like(lp), np.empty_like(grad)
            self.buffers[0][:], self.buffers[1][:] = lp, grad
            theta[:] = np.nan
            return self.buffers

    start = START.copy()
    odd, plain = (
        # The same length for both chains: the buffers are for both together.
        HMC(t, step_size=0.5, num_leapfrog_steps=4, randomize_length=False)
        for t in (Recycling(SDS), Gaussian(SDS))
    )
    chains = rb.Chains(odd, start, warmup=0)
    start[:] = 7.0
    copies, saved = [chains.copy(), chains.copy()], chains.save()
    expected = rb.Chains(plain, START, warmup=0)
    wanted, _ = expected.advance(3)
    for copy in copies:
        positions, _ = copy.advance(3)
        assert same(positions, wanted)
        assert same(state_of(copy).grad, state_of(expected).grad)
        kept = positions.copy()
        copy.advance(3)
        assert same(positions, kept)
    assert chains.save() == saved
    with pytest.raises(AttributeError):
        state_of(chains).step = 3
    with pytest.raises(ValueError, match="read-only"):
        state_of(chains).position[0, 0] = 3


@pytest.mark.parametrize("kind", [HMC, rb.NUTS])
def test_exceptions_of_the_target_come_through(kind):
    error = ZeroDivisionError("mine")

    class Raises(Gaussian):
        def value_and_grad(self, theta, rows=None):
            if self.calls > 20:
                raise error
            return super().value_and_grad(theta)

    sampler = kind(Raises(SDS), step_size=0.1, inverse_mass_matrix=np.ones(3))
    with pytest.raises(ZeroDivisionError) as caught:
        sampler.sample(100, init=START, warmup=0)
    assert caught.value is error
    assert any(entry.name == "value_and_grad" for entry in caught.traceback)


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        (lambda lp, g: lp, TypeError),
        (lambda lp, g: (lp, g, 0), TypeError),
        (lambda lp, g: None, TypeError),
        (lambda lp, g: (lp.sum(), g), ValueError),
        (lambda lp, g: (lp[:, None], g), ValueError),
        (lambda lp, g: (lp, g[:, :2]), ValueError),
        (lambda lp, g: (lp, g[0]), ValueError),
        (lambda lp, g: ("lp", g), TypeError),
        (lambda lp, g: (lp.tolist(), g), TypeError),
        (lambda lp, g: (lp, g.astype(int)), TypeError),
        (lambda lp, g: (lp, g + 1j), TypeError),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_rubbish_from_the_target(returned, error, late):
    class Rubbish(Gaussian):
        def value_and_grad(self, theta, rows=None):
            pair = super().value_and_grad(theta)
            return returned(*pair) if self.calls > 5 * late else pair

    with pytest.raises(error, match=r"^\[HMC\] expected .*got"):
        HMC(Rubbish(SDS), step_size=0.1, num_leapfrog_steps=3).sample(5, init=START)


def test_float32_results_are_converted():
    class Mixed(Gaussian):
        def value_and_grad(self, theta, rows=None):
            lp, grad = super().value_and_grad(theta)
            return lp.astype(np.float32), grad.astype(np.float32)

    hmc = HMC(Mixed(SDS), step_size=0.1, num_leapfrog_steps=2)
    state = state_of(rb.Chains(hmc, START, warmup=0))
    assert state.terms.dtype == state.grad.dtype == np.float64
