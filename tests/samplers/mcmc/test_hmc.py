"""HMC against the oracle, its rejections and its purity."""

import math

import numpy as np
import pytest

from ribbit.samplers import HMC, leapfrog, metropolis
from tests.oracle import reference
from tests.support.targets import SDS, START, Gaussian, Scripted, same


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
    target = Gaussian(SDS)
    rng = np.random.default_rng(1)
    q, p = rng.normal(size=(2, 5, 3))
    steps, eps = np.array([3, 1, 7, 3, 2]), np.array([0.1, 0.2, 0.05, 0.3, 0.1])
    mass = rng.uniform(0.5, 2.0, size=(5, 3))
    together = leapfrog(target, q, p, eps, steps, inverse_mass_matrix=mass)
    for c in range(5):
        alone = leapfrog(target, q[c], p[c], eps[c], int(steps[c]), inverse_mass_matrix=mass[c])
        for a, b in zip(together, alone, strict=True):
            assert same(a[c], b)
        expected = reference.leapfrog(
            lambda x: -x / np.square(SDS), q[c], p[c], eps[c], steps[c], mass[c]
        )
        np.testing.assert_allclose(together.position[c], expected[0], rtol=1e-12)
        np.testing.assert_allclose(together.momentum[c], expected[1], rtol=1e-12, atol=1e-14)


def test_leapfrog_is_reversible():
    target, rng = Gaussian(SDS), np.random.default_rng(2)
    q, p = rng.normal(size=(2, 3))
    end = leapfrog(target, q, p, 0.1, 50)
    back = leapfrog(target, end.position, -end.momentum, 0.1, 50)
    np.testing.assert_allclose(back.position, q, atol=1e-13)
    assert end.logdensity.shape == ()
    assert end.grad.shape == (3,)


def test_metropolis_uses_the_uniforms_of_hmc():
    draws = HMC(Gaussian(SDS), step_size=0.9, num_leapfrog_steps=4).sample(
        20, init=START, seed=4, warmup=0
    )
    for step in range(20):
        accepted, rate = metropolis(draws.stats["energy_error"][:, step], seed=4, step=step)
        assert np.array_equal(accepted, draws.stats["accepted"][:, step])
        assert np.array_equal(rate, draws.stats["acceptance_rate"][:, step])
    accepted, rate = metropolis(np.array([np.nan, np.inf, -np.inf]))
    assert not accepted.any()
    assert not rate.any()


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
    before = hmc.init(np.full((3, 4), -0.125))
    after, info = hmc.step(before)  # position -0.125 -> 0.125: energy error exactly 0
    assert info["accepted"].tolist() == [True, False, True]
    assert info["diverging"].tolist() == [False, True, False]
    assert info["acceptance_rate"].tolist() == [1.0, 0.0, 1.0]
    assert info["energy_error"][1] == np.inf
    assert np.isfinite(info["energy"]).all()
    for name in ("position", "logdensity", "grad", "terms"):
        assert same(getattr(after, name)[1], getattr(before, name)[1])
        assert name in ("logdensity", "terms") or not same(
            getattr(after, name)[0], getattr(before, name)[0]
        )


def test_divergence_threshold():
    def far(q, p, terms, g):
        terms[0] -= 900.0
        terms[1] -= 1100.0
        return q, p, terms, g

    hmc = HMC(Scripted(4, far), step_size=0.1, num_leapfrog_steps=1)
    _, info = hmc.step(hmc.init(np.full((3, 4), -0.125)))
    assert info["diverging"].tolist() == [False, True, False]
    assert info["accepted"].tolist() == [False, False, True]
    hmc = HMC(Scripted(4, far), step_size=0.1, num_leapfrog_steps=1, divergence_threshold=800.0)
    assert hmc.step(hmc.init(np.full((3, 4), -0.125)))[1]["diverging"][0]


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


def test_step_is_pure_and_nothing_is_aliased():
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
        # Of one length for both chains: the buffers are those of both together.
        HMC(t, step_size=0.5, num_leapfrog_steps=4, randomize_length=False)
        for t in (Recycling(SDS), Gaussian(SDS))
    )
    state = odd.init(start)
    kept = state.position.copy(), state.grad.copy(), state.terms.copy()
    start[:] = 7.0
    first, _ = odd.step(state, num_steps=3)
    again, _ = odd.step(state, num_steps=3)
    expected, _ = plain.step(plain.init(START), num_steps=3)
    assert same(first.position, again.position)
    assert same(first.position, expected.position)
    assert same(first.grad, expected.grad)
    for array, old in zip((state.position, state.grad, state.terms), kept, strict=True):
        assert same(array, old)
    with pytest.raises(AttributeError):
        state.step = 3


def test_exceptions_of_the_target_come_through():
    error = ZeroDivisionError("mine")

    class Raises(Gaussian):
        def value_and_grad(self, theta, rows=None):
            if self.calls > 20:
                raise error
            return super().value_and_grad(theta)

    with pytest.raises(ZeroDivisionError) as caught:
        HMC(Raises(SDS), step_size=0.1, num_leapfrog_steps=3).sample(100, init=START)
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

    state = HMC(Mixed(SDS), step_size=0.1, num_leapfrog_steps=2).init(START)
    assert state.logdensity.dtype == state.grad.dtype == np.float64
