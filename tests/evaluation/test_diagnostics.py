"""ribbit.diagnostics against arviz-stats and closed forms."""

import tracemalloc
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import special, stats

from ribbit import diagnostics
from ribbit.results import convergence

RHAT = ["rank", "split", "folded", "z_scale", "identity"]
ESS = ["bulk", "tail", "mean", "sd", "median", "identity"]
MCSE = ["mean", "sd"]
CASES = (
    [("rhat", method) for method in RHAT]
    + [("ess", method) for method in ESS]
    + [("mcse", method) for method in MCSE]
)


def autoregressive(rng, shape, phi):
    """Stationary AR(1) along axis 1 with unit variance."""
    noise = rng.normal(size=shape)
    out = np.empty(shape)
    out[:, 0] = noise[:, 0]
    for t in range(1, shape[1]):
        out[:, t] = phi * out[:, t - 1] + np.sqrt(1 - phi**2) * noise[:, t]
    return out


def inputs():
    rng = np.random.default_rng(3)
    plain = rng.normal(size=(4, 100))
    with_nan = plain.copy()
    with_nan[2, 5] = np.nan
    with_inf = plain.copy()
    with_inf[1, 7] = np.inf
    stuck = plain.copy()
    stuck[0] = 0.25  # one chain never moves
    apart = plain + np.arange(4)[:, None]
    repeats = np.repeat(rng.normal(size=(4, 25)), 4, axis=1)  # rejections repeat a state
    return {
        "plain": plain,
        "constant": np.full((3, 40), 2.5),
        "nan": with_nan,
        "all_nan": np.full((2, 10), np.nan),
        "inf": with_inf,
        "stuck": stuck,
        "apart": apart,
        "repeats": repeats,
        "coin": rng.integers(0, 2, size=(4, 60)).astype(float),
        "integers": rng.integers(0, 5, size=(2, 51)),
        "odd": rng.normal(size=(3, 101)),
        "short4": rng.normal(size=(4, 4)),
        "short5": rng.normal(size=(2, 5)),
        "short7": rng.normal(size=(2, 7)),
        "too_short": rng.normal(size=(4, 3)),
        "single_chain": rng.normal(size=(1, 200)),
        "single_draw": rng.normal(size=(4, 1)),
        "sticky": autoregressive(rng, (4, 400), 0.95),
        "antithetic": autoregressive(rng, (4, 400), -0.9),
        "alternating": np.tile([1.0, -1.0], (2, 30)) + 1e-3 * rng.normal(size=(2, 60)),
        "large_mean": 1e6 + rng.normal(size=(4, 100)),
        "float32": rng.normal(size=(4, 100)).astype(np.float32),
    }


# arviz-stats takes the ESS of the mean for the error of the sd: see the replicates below
@pytest.mark.parametrize(("name", "method"), [c for c in CASES if c != ("mcse", "sd")])
@pytest.mark.parametrize("case", sorted(inputs()))
def test_equals_arviz(case, name, method):
    arviz = pytest.importorskip("arviz_stats.base").array_stats
    a = inputs()[case]
    options = {"prob": 0.05} if method == "tail" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = getattr(arviz, name)(
            a.astype(np.float64), chain_axis=0, draw_axis=1, method=method, **options
        )
    if case == "inf":  # ArviZ ranks them; nothing is known of draws that are infinite
        expected = np.nan
    got = getattr(diagnostics, name)(a, method=method)
    assert got.shape == ()
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize(("name", "method"), CASES)
def test_blocks_and_shapes(rng, monkeypatch, name, method):
    """Every quantity alone, all at once and in blocks of two: the same bits."""
    a = rng.normal(size=(4, 50, 3, 5)).astype(np.float32)
    a[1, 3, 2, 2] = np.nan
    function = getattr(diagnostics, name)
    whole = function(a, method=method)
    assert whole.shape == (3, 5)
    assert np.isnan(whole[2, 2])
    assert np.isfinite(np.delete(whole.reshape(-1), 12)).all()
    monkeypatch.setattr(convergence, "_BLOCK_ELEMENTS", 400)
    np.testing.assert_array_equal(function(a, method=method), whole)
    alone = [[function(a[:, :, i, j], method=method) for j in range(5)] for i in range(3)]
    np.testing.assert_array_equal(alone, whole)


@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 4), st.integers(1, 12), st.integers(0, 3)),
        elements=st.floats(width=64),
    )
)
def test_any_input_gives_an_answer(a):
    """NaN, infinities, subnormals, equal values, empty axes: no warning, no exception."""
    with np.errstate(over="ignore"):
        for name, method in CASES:
            value = getattr(diagnostics, name)(a, method=method)
            assert value.shape == a.shape[2:]
            assert not np.any(value < 0)


def test_effective_sample_size_of_autoregression():
    """ESS / n = (1 - phi) / (1 + phi), and the MCSE is that of the long-run variance.

    Means over 40 quantities are within 10 %: over seeds their bias is at most 2.3 % and their sd at
    most 1.9 % (5.2 sd, false-fail rate 2e-7). Control: the ESS of phi = 0 is not that of 0.9.
    """
    rng = np.random.default_rng(5)
    for phi in (0.9, 0.5, -0.5):
        a = autoregressive(rng, (4, 2000, 40), phi)
        exact = 8000 * (1 - phi) / (1 + phi)
        assert abs(np.mean(diagnostics.ess(a)) / exact - 1) < 0.1
        error = np.sqrt((1 + phi) / (1 - phi) / 8000)
        assert abs(np.mean(diagnostics.mcse(a)) / error - 1) < 0.1
    control = diagnostics.ess(rng.normal(size=(4, 2000, 40)))
    assert abs(np.mean(control) / (8000 / 19) - 1) > 0.1


@pytest.mark.parametrize("phi", [-0.9, 0.0, 0.9])
def test_error_of_the_sd_is_that_of_replicates(phi):
    """Squares of AR(1) have correlations phi^(2t): phi and -phi have one error.

    800 replicates of 4 x 1,000 draws: the sd over replicates of the estimated sd has a relative
    error of 1 / sqrt(2 * 800) = 2.5 %, the mean of the estimates is off by 1 to 2 %; both are
    within 14 % of sqrt((1 + phi^2) / (1 - phi^2) / (2 * 4000)) (5 sd, false-fail rate 6e-7).
    Control: the same from the ESS of the mean, a sixth for phi = -0.9.
    """
    a = autoregressive(np.random.default_rng(11), (4, 1000, 800), phi)
    exact = np.sqrt((1 + phi**2) / (1 - phi**2) / 8000)
    assert abs(a.std(axis=(0, 1), ddof=1).std() / exact - 1) < 0.14
    assert abs(np.mean(diagnostics.mcse(a, method="sd")) / exact - 1) < 0.14
    by_mean = np.mean(1 / np.sqrt(2 * diagnostics.ess(a, method="mean")))
    assert (abs(by_mean / exact - 1) > 0.14) == (phi != 0)


def test_rhat_tells_chains_apart(rng):
    a = rng.normal(size=(4, 500))
    assert diagnostics.rhat(a) < 1.02
    assert diagnostics.rhat(a + np.arange(4)[:, None]) > 1.5
    wide = a * np.array([1, 1, 1, 5])[:, None]  # same means, different spread
    assert diagnostics.rhat(wide, method="split") < 1.02
    assert diagnostics.rhat(wide) > 1.1


def slow_nested_rhat(a, superchains):
    """Margossian et al. (2024), section 2, of one quantity (C, D), sum by sum."""
    groups = [[c for c, own in enumerate(superchains) if own == k] for k in set(superchains)]
    means, within = [], []
    for own in groups:
        chain_means = [sum(a[c]) / len(a[c]) for c in own]
        mean = sum(chain_means) / len(own)
        between = sum((m - mean) ** 2 for m in chain_means)
        between = between / (len(own) - 1) if len(own) > 1 else 0.0
        inside = 0.0
        for c, m in zip(own, chain_means, strict=True):
            if len(a[c]) > 1:
                inside += sum((v - m) ** 2 for v in a[c]) / (len(a[c]) - 1) / len(own)
        means.append(mean)
        within.append(between + inside)
    centre = sum(means) / len(means)
    b = sum((m - centre) ** 2 for m in means) / (len(means) - 1)
    return (1.0 + b / (sum(within) / len(within))) ** 0.5


@pytest.mark.parametrize("draws", [1, 2, 25])
@pytest.mark.parametrize("superchains", [[0, 0, 1, 1, 2, 2], [7, 3, 7, 3, 3, 9]])
def test_nested_rhat_equals_the_slow_one(rng, superchains, draws):
    a = rng.normal(size=(6, draws, 2)) + rng.normal(size=(6, 1, 2))
    got = diagnostics.nested_rhat(a, superchains, method="identity")
    wanted = [slow_nested_rhat(a[:, :, i].tolist(), superchains) for i in range(2)]
    np.testing.assert_allclose(got, wanted, rtol=1e-12)
    # ranks: the same of normal scores, and of those after folding
    ranks = special.ndtri((stats.rankdata(a[:, :, 0]) - 0.375) / (6 * draws + 0.25))
    far = np.abs(a[:, :, 0] - np.median(a[:, :, 0]))
    folded = special.ndtri((stats.rankdata(far) - 0.375) / (6 * draws + 0.25))
    both = [
        slow_nested_rhat(scores.reshape(6, draws).tolist(), superchains)
        for scores in (ranks, folded)
    ]
    assert diagnostics.nested_rhat(a, superchains)[0] == pytest.approx(max(both), rel=1e-10)


def test_nested_rhat_sees_starts_that_are_not_forgotten(rng):
    """64 short chains from each of 4 starts.

    B / W of the control is F(3, 252) / 64 / (some 4 effective draws): over 1.05 with probability
    below 1e-9.
    """
    start = np.repeat(np.arange(4), 64)
    a = autoregressive(rng, (256, 10), 0.5)
    a = a + 0.7 * start[:, None]
    assert diagnostics.nested_rhat(a, start) > 1.2
    assert diagnostics.nested_rhat(a - 0.7 * start[:, None], start) < 1.05  # the control


def test_nested_rhat_of_bad_input():
    a = np.ones((4, 9))
    for bad in ([0, 0, 1], [0.0, 0.0, 1.0, 1.0], "four", [[0, 0, 1, 1]]):
        with pytest.raises((TypeError, ValueError), match="superchains"):
            diagnostics.nested_rhat(a, bad)
    with pytest.raises(ValueError, match="two superchains"):
        diagnostics.nested_rhat(a, [1, 1, 1, 1])
    with pytest.raises(ValueError, match="single draws"):
        diagnostics.nested_rhat(a[:, :1], [0, 1, 2, 3])
    assert np.isnan(diagnostics.nested_rhat(a, [0, 0, 1, 1]))  # all equal


def test_memory_does_not_grow_with_quantities():
    a = np.random.default_rng(0).normal(size=(4, 20, 50_000)).astype(np.float32)  # 16 MB
    tracemalloc.start()
    diagnostics.weight_rhat(a)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 2**20


@pytest.mark.parametrize("function", [diagnostics.rhat, diagnostics.ess, diagnostics.mcse])
def test_bad_input(function):
    name = function.__name__
    with pytest.raises(ValueError, match=rf"\[{name}\] expected a of shape"):
        function(np.zeros(5))
    with pytest.raises(TypeError, match=rf"\[{name}\] expected a as an array of real numbers"):
        function(np.zeros((2, 5), dtype=complex))
    with pytest.raises(ValueError, match=rf"\[{name}\] expected method"):
        function(np.zeros((2, 5)), method="geweke")


def test_bad_tail_probability():
    with pytest.raises(ValueError, match=r"\[ess\] expected tail_probability in \(0, 0.5\)"):
        diagnostics.ess(np.zeros((2, 5)), method="tail", tail_probability=0.5)


class _Line:
    """Predictive of y = theta_0 + theta_1 x; counts what it is asked for."""

    def __init__(self, classification=False):
        self.classification = classification
        self.largest = 0

    def predictive(self, theta, x):
        value = theta[:, 0, None, None] + theta[:, 1, None, None] * x[None]
        self.largest = max(self.largest, value.size)
        if self.classification:
            p = 1 / (1 + np.exp(-value))
            probs = np.concatenate([1 - p, p], axis=2)
            return SimpleNamespace(probs=probs, mean=None)
        return SimpleNamespace(probs=None, mean=value)


@pytest.mark.parametrize("classification", [False, True])
def test_predictions_are_streamed(rng, monkeypatch, classification):
    positions = rng.normal(size=(4, 30, 2))
    x = rng.normal(size=(100, 1))
    line = _Line(classification)
    draws = SimpleNamespace(positions=positions, predictive=line)
    terms = line.predictive(positions.reshape(120, 2), x)
    values = (terms.probs if classification else terms.mean).reshape(4, 30, 100, -1)
    line.largest = 0
    monkeypatch.setattr(convergence, "_ROW_ELEMENTS", 1000)
    got = diagnostics.predictive_rhat(draws, x)
    assert line.largest <= 2000
    np.testing.assert_allclose(got, diagnostics.rhat(values), rtol=1e-12)
    got = diagnostics.predictive_ess(draws, x, method="mean")
    np.testing.assert_allclose(got, diagnostics.ess(values, method="mean"), rtol=1e-10)
    np.testing.assert_array_equal(
        diagnostics.weight_rhat(draws), diagnostics.rhat(positions, method="split")
    )


def test_draws_without_positions():
    draws = SimpleNamespace(positions=np.zeros((4, 0, 2)), predictive=_Line())
    for call in (
        lambda: diagnostics.weight_rhat(draws),
        lambda: diagnostics.predictive_rhat(draws, np.zeros((2, 1))),
        lambda: diagnostics.predictive_ess(draws, np.zeros((2, 1))),
    ):
        with pytest.raises(ValueError, match="save_draws"):
            call()
    foreign = SimpleNamespace(positions=np.zeros((4, 9, 2)), predictive=None)
    with pytest.raises(TypeError, match=r"\[predictive_rhat\] expected draws of a target with"):
        diagnostics.predictive_rhat(foreign, np.zeros((2, 1)))
    with pytest.raises(ValueError, match=r"\[predictive_ess\] expected x of shape"):
        diagnostics.predictive_ess(
            SimpleNamespace(positions=np.zeros((4, 9, 2)), predictive=_Line()), np.zeros((0, 1))
        )


def test_agreement_and_total_variation():
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
    q = np.array([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.3, 0.3, 0.4]])
    assert diagnostics.agreement(p, q) == pytest.approx(2 / 3)
    assert diagnostics.total_variation(p, q) == pytest.approx((0.1 + 0.4 + 0.0) / 3)
    assert diagnostics.agreement(p, p) == 1.0
    assert diagnostics.total_variation(p, p) == 0.0
    # the probability of class 1 alone is the same distribution
    one, two = np.array([0.1, 0.9, 0.6]), np.array([0.4, 0.8, 0.4])
    assert diagnostics.total_variation(one, two) == pytest.approx((0.3 + 0.1 + 0.2) / 3)
    assert diagnostics.agreement(one[:, None], two[:, None]) == pytest.approx(2 / 3)


@pytest.mark.parametrize("function", [diagnostics.agreement, diagnostics.total_variation])
def test_bad_probabilities(function):
    good = np.full((3, 2), 0.5)
    for bad, kind in [
        (np.full((4, 2), 0.5), ValueError),
        (np.full((3, 2), 0.7), ValueError),
        (np.array([[1.5, -0.5]] * 3), ValueError),
        (np.full((3, 2), np.nan), ValueError),
        (np.full((3, 2), 0.5 + 0j), TypeError),
        (np.array([["a", "b"]] * 3), TypeError),
    ]:
        with pytest.raises(kind, match=rf"\[{function.__name__}\] expected .*, got"):
            function(good, bad)


def test_draws_given_for_their_positions_are_told_so():
    draws = SimpleNamespace(positions=np.zeros((2, 5, 1)))
    for function in (diagnostics.rhat, diagnostics.ess, diagnostics.mcse):
        with pytest.raises(TypeError, match="give its positions"):
            function(draws)
