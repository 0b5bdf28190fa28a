"""HMC against the oracle, its options, its rejections and what decides a draw."""

import math
import re
import warnings

import numpy as np
import pytest

import reference
import ribbit as rb
from ribbit.samplers import HMC, leapfrog, metropolis
from targets import OPTIONS, TARGETS, Gaussian, Scripted, equal, posterior, same

SDS = [1.0, 2.0, 0.5]
START = np.array([[0.3, -1.0, 0.2], [0.0, 0.5, 0.0]])


class Oracle:
    """The target as tests/reference.py wants it: one chain, one term."""

    def gradient(self, q):
        return -q / np.square(SDS), None

    def terms(self, q):
        return np.array([-0.5 * np.sum(np.square(q / np.array(SDS)))]), None


# --- what is computed ----------------------------------------------------------------------------


@pytest.mark.parametrize("mass", [None, np.array([1.0, 3.0, 0.2])])
@pytest.mark.parametrize("jitter", [0.0, 0.3])
def test_draws_are_those_of_the_oracle(mass, jitter):
    options = {"step_size": 0.85, "jitter": jitter}
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
    assert (s["n_steps"] == 5).all()
    assert (s["step_size"] == 0.7).all()
    assert not s["diverging"].any()
    assert not s["capped"].any()
    rejected = np.argwhere(~s["accepted"][:, 1:])
    for c, d in rejected:  # a rejected proposal repeats the old draw
        assert same(draws.positions[c, d + 1], draws.positions[c, d])


def test_moments_of_a_gaussian():
    """Means and second moments within 5.5 standard errors: 12 checks, false-fail rate < 1e-6.

    The control accepts everything, which overstates the variance at this step size.
    """
    hmc = HMC(Gaussian(SDS), step_size=0.8, trajectory_length=1.6, jitter=0.5)

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
            "ribbit.samplers.hmc.accept",
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


# --- options -------------------------------------------------------------------------------------


def tau(target, **options):
    return HMC(target, **options).settings["trajectory_length"]


def test_default_trajectory_length():
    target = Gaussian(SDS)
    with pytest.raises(ValueError, match=r"trajectory_length or num_leapfrog_steps.*'prior'"):
        HMC(target)
    target.shared_prior_sd, target.temperature = 0.3, 4.0
    assert tau(target) == pytest.approx(math.pi / 2 * 0.3 * 2.0)
    assert tau(target, inverse_mass_matrix="adapt") == math.pi / 2
    assert tau(target, inverse_mass_matrix=np.ones(3)) == math.pi / 2
    assert tau(target, trajectory_length=1.5) == 1.5
    assert tau(target, num_leapfrog_steps=5) is None
    target.prior_sd = np.array(SDS)
    hmc = HMC(target, inverse_mass_matrix="prior")
    assert hmc.settings["trajectory_length"] == math.pi / 2
    state = hmc.init(np.zeros(3))
    np.testing.assert_allclose(state.inverse_mass, 4.0 * np.square(SDS))  # tempered variances
    target.shared_prior_sd = np.inf
    with pytest.raises(ValueError, match="finite prior sd"):
        HMC(target)


def test_number_of_steps_is_the_ceiling_per_chain():
    hmc = HMC(Gaussian(SDS), step_size=np.array([0.1, 0.3, 2.0]), trajectory_length=0.9)
    state, info = hmc.step(hmc.init(np.zeros((3, 3))))
    assert state.num_steps.tolist() == [9, 3, 1]  # 0.9 / 0.3 rounds to just above 3
    assert info["n_steps"].tolist() == [9, 3, 1]
    assert info["step_size"].tolist() == [0.1, 0.3, 2.0]
    with pytest.raises(ValueError, match=r"step_size as a number or \(2,\)"):
        hmc.init(np.zeros((2, 3)))


def test_cap_warns_and_is_a_statistic():
    with pytest.warns(RuntimeWarning, match="at most 50 leapfrog steps"):
        hmc = HMC(Gaussian(SDS), step_size=0.01, trajectory_length=1.0, max_num_leapfrog_steps=50)
    draws = hmc.sample(3, init=START)
    assert draws.stats["capped"].all()
    assert (draws.stats["n_steps"] == 50).all()
    with pytest.raises(ValueError, match="max_num_leapfrog_steps"):
        HMC(Gaussian(SDS), num_leapfrog_steps=51, max_num_leapfrog_steps=50)


def test_jitter_changes_step_size_but_not_length():
    hmc = HMC(Gaussian(SDS), step_size=0.1, trajectory_length=1.0, jitter=0.2)
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
        ({"step_size": 0.0}, ValueError, "step_size > 0"),
        ({"step_size": -1.0}, ValueError, "step_size > 0"),
        ({"step_size": math.nan}, ValueError, "step_size finite"),
        ({"step_size": "fast"}, ValueError, "'auto'"),
        ({"step_size": None}, TypeError, "step_size as a number"),
        ({"step_size": True}, TypeError, "step_size as a number"),
        ({"step_size": [[0.1]]}, ValueError, "step_size as a number"),
        ({"step_size": []}, ValueError, "step_size"),
        ({"step_size": [0.1, 0.0]}, ValueError, "step_size > 0"),
        ({"trajectory_length": 0.0}, ValueError, "trajectory_length > 0"),
        ({"trajectory_length": 1.0, "num_leapfrog_steps": 3}, ValueError, "at most one"),
        ({"num_leapfrog_steps": 0}, ValueError, "num_leapfrog_steps >= 1"),
        ({"num_leapfrog_steps": 2.0}, TypeError, "num_leapfrog_steps as an integer"),
        ({"inverse_mass_matrix": "unit"}, ValueError, "'prior' or 'adapt'"),
        ({"inverse_mass_matrix": "prior"}, ValueError, "prior_sd"),
        ({"inverse_mass_matrix": np.ones(2)}, ValueError, r"inverse_mass_matrix \(3,\)"),
        ({"inverse_mass_matrix": np.eye(3)}, ValueError, r"inverse_mass_matrix \(3,\)"),
        ({"inverse_mass_matrix": [1.0, 0.0, 1.0]}, ValueError, r"inverse_mass_matrix\[1\] is 0"),
        ({"inverse_mass_matrix": [1.0, 1.0, math.inf]}, ValueError, "finite and > 0"),
        ({"jitter": 1.0}, ValueError, "jitter"),
        ({"jitter": -0.1}, ValueError, "jitter"),
        ({"target_acceptance": 1.0}, ValueError, "target_acceptance"),
        ({"max_num_leapfrog_steps": 0}, ValueError, "max_num_leapfrog_steps"),
        ({"divergence_threshold": 0.0}, ValueError, "divergence_threshold"),
    ],
)
def test_bad_options(options, error, text):
    keys = {"trajectory_length", "num_leapfrog_steps", "inverse_mass_matrix"}
    if not keys & set(options):
        options = {"num_leapfrog_steps": 3, **options}
    with pytest.raises(error, match=r"^\[HMC\] expected .*got") as caught:
        HMC(Gaussian(SDS), **options)
    assert re.search(text, str(caught.value))


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
        ({"init": np.zeros(4)}, ValueError, "position"),
        ({"init": np.zeros((0, 3))}, ValueError, "position"),
        ({"init": np.zeros(3) * 1j}, TypeError, "real numbers"),
        ({"init": "start"}, TypeError, "real numbers"),
        ({"max_seconds": 0}, ValueError, "max_seconds > 0"),
        ({"keep_draws": 1}, TypeError, "keep_draws"),
        ({"quantiles": [0.5]}, ValueError, "predict_at"),
        ({"predict_at": np.zeros((2, 3))}, TypeError, "predictions"),
        ({"progress": 3}, TypeError, "progress"),
        ({"resume": 3}, TypeError, "State"),
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
    hmc = HMC(Gaussian(SDS), num_leapfrog_steps=3)
    start = START.copy()
    start[1, 2] = bad
    with pytest.raises(ValueError, match=r"initial position, got .* for chain 1, parameter 2"):
        hmc.init(start)
    with pytest.raises(ValueError, match=r"for chain 9, parameter 2"):
        hmc.sample(2, init=start, chains=[4, 9])

    class Bad(Gaussian):
        def value_and_grad(self, theta, rows=None):
            lp, grad = super().value_and_grad(theta)
            return np.where(theta[:, 0] == 0, bad, lp), grad

    with pytest.raises(ValueError, match=r"finite log density .* for chain 1"):
        HMC(Bad(SDS), num_leapfrog_steps=3).init(START)

    class BadGradient(Gaussian):
        def value_and_grad(self, theta, rows=None):
            lp, grad = super().value_and_grad(theta)
            return lp, np.where(theta == 0.2, bad, grad)

    with pytest.raises(ValueError, match=r"gradient, got .* for chain 0, parameter 2"):
        HMC(BadGradient(SDS), num_leapfrog_steps=3).init(START)


def test_float32_overflow_of_the_start_is_named():
    hmc = HMC(Gaussian(SDS, dtype=np.float32), num_leapfrog_steps=3)
    with pytest.raises(ValueError, match="chain 0, parameter 1"):
        hmc.init([0.0, 1e300, 0.0])
    assert hmc.init([0.0, 1.0, 0.0]).position.dtype == np.float32


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
        HMC(t, step_size=0.5, num_leapfrog_steps=4) for t in (Recycling(SDS), Gaussian(SDS))
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

    state = HMC(Mixed(SDS), num_leapfrog_steps=2).init(START)
    assert state.logdensity.dtype == state.grad.dtype == np.float64


# --- what decides a draw -------------------------------------------------------------------------


@pytest.fixture(params=list(TARGETS))
def any_target(request):
    return TARGETS[request.param]()


@pytest.fixture(params=list(OPTIONS))
def hmc(request, any_target):
    return HMC(any_target, **OPTIONS[request.param])


def test_a_draw_does_not_depend_on_the_other_chains(hmc):
    together = hmc.sample(12, warmup=30, chains=5, seed=9)
    for chains in ([0], [3], [2, 4], [4, 2], [1, 2, 3]):
        equal(together, hmc.sample(12, warmup=30, chains=chains, seed=9), chains)


def test_a_draw_does_not_depend_on_thinning(hmc):
    every = hmc.sample(12, warmup=40, chains=2, seed=9)
    assert every.stats["accepted"].any(axis=1).all()  # chains that stand still are always equal
    for thin in (2, 3, 5):
        thinned = hmc.sample(12 // thin, warmup=40, chains=2, thin=thin, seed=9)
        equal(every, thinned, rows=slice(thin - 1, thin * (12 // thin), thin))


def test_a_draw_does_not_depend_on_progress_or_what_is_kept(hmc, capfd):
    plain = hmc.sample(8, warmup=40, chains=2, seed=9, progress=False)
    assert capfd.readouterr() == ("", "")
    seen = []
    equal(plain, hmc.sample(8, warmup=40, chains=2, seed=9, progress=seen.append))
    assert seen
    assert seen[-1]["done"] == 48
    assert seen[-1]["draws"] == 8
    equal(plain, hmc.sample(8, warmup=40, chains=2, seed=9, progress=True))
    equal(plain, hmc.sample(8, warmup=40, chains=2, seed=9, keep_warmup=True))
    x = np.zeros((4, 3), dtype=np.float32)
    equal(plain, hmc.sample(8, warmup=40, chains=2, seed=9, predict_at=x))


def test_a_draw_does_not_depend_on_the_number_of_threads():
    from ribbit import _core

    hmc = HMC(posterior(), step_size=0.02, num_leapfrog_steps=10)
    before = _core.num_threads()
    try:
        runs = []
        for threads in (1, 2, 4):
            rb.set_num_threads(threads)
            runs.append(hmc.sample(10, chains=3, seed=1))
        equal(runs[0], runs[1])
        equal(runs[0], runs[2])
    finally:
        rb.set_num_threads(before)


def test_seed_and_chain_change_a_draw(hmc):
    a = hmc.sample(5, warmup=20, chains=2, seed=1).positions
    b = hmc.sample(5, warmup=20, chains=2, seed=2).positions
    assert not np.isclose(a, b).any()
    assert not np.isclose(a[0], a[1]).any()


def test_step_is_what_sample_does(any_target):
    hmc = HMC(any_target, **OPTIONS["fixed"])
    draws = hmc.sample(6, chains=2, seed=5, warmup=0)
    state = hmc.init(any_target.init(seed=5, chains=2), seed=5)
    for d in range(6):
        state, info = hmc.step(state)
        assert same(state.position, draws.positions[:, d])
        for name, value in info.items():
            assert same(value, draws.stats[name][:, d])
    equal(draws, hmc.sample(6, init=any_target.init(seed=5, chains=2), seed=5, warmup=0))


def test_no_warning_from_a_plain_run(hmc):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hmc.sample(5, warmup=20, chains=2)


def test_chains_that_only_diverge_are_a_warning():
    target = Gaussian(SDS)
    with pytest.warns(RuntimeWarning, match=r"only diverging transitions for chain 0, 1: use a sm"):
        HMC(target, step_size=1e3, num_leapfrog_steps=3).sample(10, warmup=0, init=START)
    HMC(target, step_size=0.1, num_leapfrog_steps=3).sample(10, warmup=0, init=START)
