"""ribbit.metrics against scikit-learn and closed forms."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ribbit as rb
from ribbit import diagnostics, metrics

CLASSIFICATION = [metrics.accuracy, metrics.nll, metrics.ece, metrics.brier]


def classes(rng, rows, k):
    logits = rng.normal(size=(rows, k)) * 2
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return rng.integers(0, k, size=rows), probs


@pytest.mark.parametrize("k", [2, 3, 10])
def test_equals_scikit_learn(rng, k):
    sk = pytest.importorskip("sklearn.metrics")
    y, probs = classes(rng, 300, k)
    labels = np.arange(k)
    assert metrics.accuracy(y, probs) == sk.accuracy_score(y, probs.argmax(axis=1))
    assert metrics.nll(y, probs) == pytest.approx(sk.log_loss(y, probs, labels=labels), rel=1e-12)
    if k == 2:
        expected = sk.brier_score_loss(y, probs[:, 1])
    else:
        expected = np.mean(np.sum((probs - np.eye(k)[y]) ** 2, axis=1))
    assert metrics.brier(y, probs) == pytest.approx(expected, rel=1e-12)


def test_regression_and_ranking_equal_scikit_learn(rng):
    sk = pytest.importorskip("sklearn.metrics")
    y, mean = rng.normal(size=(2, 100, 3))
    expected = np.sqrt(sk.mean_squared_error(y.ravel(), mean.ravel()))
    assert metrics.rmse(y, mean) == pytest.approx(expected, rel=1e-12)
    label = rng.integers(0, 2, size=400)
    for score in (rng.normal(size=400), rng.integers(0, 5, size=400) + label):  # without, with ties
        expected = sk.roc_auc_score(label, score)
        assert metrics.auroc(label, score) == pytest.approx(expected, rel=1e-12)
        assert metrics.auroc(label.astype(bool), score[:, None]) == pytest.approx(expected)


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_rmse_of_any_unit(unit):
    """Its squares are no numbers, and NumPy would warn of them."""
    y, mean = unit * np.array([1.0, 2.0]), unit * np.array([1.0, 4.0])
    assert metrics.rmse(y, mean) / unit == pytest.approx(2**0.5, rel=1e-12)
    assert metrics.rmse([1.7e308], [-1.7e308]) == np.inf


def test_one_column_is_one_column_on_either_side(rng):
    """(N,) against (N, 1) must not become (N, N)."""
    y, mean = rng.normal(size=(2, 50))
    expected = np.sqrt(np.mean((y - mean) ** 2))
    for a in (y, y[:, None]):
        for b in (mean, mean[:, None]):
            assert metrics.rmse(a, b) == pytest.approx(expected, rel=1e-14)
            assert metrics.coverage(a, b - 1, b + 1) == np.mean(np.abs(y - mean) <= 1)


@pytest.mark.parametrize("metric", CLASSIFICATION)
def test_forms_of_two_classes(rng, metric):
    p = rng.uniform(size=80)
    y = rng.integers(0, 2, size=80)
    two = metric(y, np.stack([1 - p, p], axis=1))
    assert metric(y, p) == pytest.approx(two, rel=1e-14)
    assert metric(y[:, None], p[:, None]) == pytest.approx(two, rel=1e-14)
    assert metric(y.astype(float), p.astype(np.float32)) == pytest.approx(two, rel=1e-6)


def test_ece_by_hand():
    # confidences 0.8, 0.8 (one right), 0.55 (right), 0.95 (right)
    probs = np.array([[0.8, 0.2], [0.8, 0.2], [0.45, 0.55], [0.05, 0.95]])
    y = np.array([0, 1, 1, 1])
    assert metrics.ece(y, probs) == pytest.approx((2 * 0.3 + 0.45 + 0.05) / 4)
    assert metrics.ece(y, probs, bins=1) == pytest.approx(abs(0.75 - probs.max(axis=1).mean()))
    # a bin owns its upper edge: 0.75 belongs to (0.5, 0.75] and 0.8 to (0.75, 1]
    edge = np.array([[0.75, 0.25], [0.8, 0.2]])
    assert metrics.ece([0, 1], edge, bins=4) == pytest.approx((0.25 + 0.8) / 2)
    assert metrics.ece([0, 0], [[1.0, 0.0]] * 2) == 0.0


def test_ece_of_calibrated_probabilities():
    """Labels drawn from the probabilities: ECE is sampling noise; sharpened ones are far off.

    20,000 rows, 20 bins: ECE is about 0.003 with sd 0.001; the bound 0.01 is 7 sd away
    (false-fail rate below 1e-10). Control: probabilities pushed towards 0 and 1.
    """
    rng = np.random.default_rng(11)
    p = rng.uniform(size=20_000)
    y = (rng.uniform(size=p.size) < p).astype(int)
    assert metrics.ece(y, p) < 0.01
    assert metrics.ece(y, p**3 / (p**3 + (1 - p) ** 3)) > 0.05


def test_extreme_probabilities():
    assert metrics.nll([0], [[0.0, 1.0]]) == np.inf
    value = metrics.nll([1], [[0.0, 1.0]])
    assert value == 0.0
    assert not np.signbit(value)
    assert metrics.brier([0], [[0.0, 1.0]]) == 1.0
    assert metrics.brier([0], [[0.0, 1.0, 0.0]]) == 2.0
    assert metrics.accuracy([0, 1], [0.5, 0.5]) == 0.5  # a tie goes to class 0


def test_coverage():
    y = np.array([0.0, 1.0, 2.0, 3.0])
    assert metrics.coverage(y, [0, 0, 0, 0], [0, 1, 1, 9]) == 0.75
    assert metrics.coverage(y, np.full(4, -np.inf), np.full(4, np.inf)) == 1.0
    with pytest.raises(ValueError, match=r"\[coverage\] expected lower <= upper"):
        metrics.coverage(y, y + 1, y)


def test_auroc_limits():
    assert metrics.auroc([0, 0, 1, 1], [1, 2, 3, 4]) == 1.0
    assert metrics.auroc([1, 1, 0, 0], [1, 2, 3, 4]) == 0.0
    assert metrics.auroc([0, 1, 0, 1], [7, 7, 7, 7]) == 0.5
    assert metrics.auroc([0, 1], [-np.inf, np.inf]) == 1.0
    with pytest.raises(ValueError, match=r"\[auroc\] expected labels of both kinds"):
        metrics.auroc([1, 1], [1, 2])
    with pytest.raises(ValueError, match=r"\[auroc\] expected score without NaN"):
        metrics.auroc([0, 1], [1, np.nan])
    with pytest.raises(ValueError, match=r"\[auroc\] expected score of shape"):
        metrics.auroc([0, 1], [1, 2, 3])


@pytest.mark.parametrize("metric", CLASSIFICATION)
def test_bad_classification_input(metric):
    good = np.full((3, 2), 0.5)
    for y, probs, kind in [
        ([0, 1], good, ValueError),  # rows differ
        ([0, 1, 2], good, ValueError),  # label out of range
        ([0, 1, -1], good, ValueError),
        ([0, 1, 0.5], good, TypeError),
        ([0, 1, np.nan], good, (TypeError, ValueError)),
        (["a", "b", "c"], good, TypeError),
        (np.zeros((3, 2)), good, ValueError),  # one-hot labels
        ([], np.zeros((0, 2)), ValueError),
        ([0, 1, 0], np.full((3, 2), 0.6), ValueError),
        ([0, 1, 0], np.array([[1.5, -0.5]] * 3), ValueError),
        ([0, 1, 0], np.full((3, 2), np.nan), ValueError),
        ([0, 1, 0], np.zeros((3, 2, 2)), ValueError),
        ([0, 1, 0], good.astype(complex), TypeError),
        ([0, 1, 0], None, TypeError),
    ]:
        with pytest.raises(kind, match=rf"\[{metric.__name__}\] expected .*, got"):
            metric(y, probs)


def test_bad_regression_input():
    y = np.zeros(3)
    for mean, kind in [
        (np.zeros(4), ValueError),
        (np.zeros((3, 2)), ValueError),
        (np.array([0, np.nan, 0]), ValueError),
        (np.zeros((3, 1, 1)), ValueError),
        (np.zeros(3, dtype=complex), TypeError),
        ("abc", TypeError),
    ]:
        with pytest.raises(kind, match=r"\[rmse\] expected .*, got"):
            metrics.rmse(y, mean)
    with pytest.raises(ValueError, match=r"\[rmse\] expected"):
        metrics.rmse([], [])
    for bins, kind in [(0, ValueError), (2.5, TypeError), (True, TypeError)]:
        with pytest.raises(kind, match=r"\[ece\] expected bins"):
            metrics.ece([0], [0.3], bins=bins)


ANYTHING = st.one_of(
    hnp.arrays(
        st.sampled_from([np.float64, np.float32, np.int64, np.bool_, np.complex64]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    st.sampled_from([None, "text", [], [[0.5], [1]], object()]),
)


@given(ANYTHING, ANYTHING)
def test_rubbish_is_a_typed_error(first, second):
    for metric in (*CLASSIFICATION, metrics.rmse, metrics.auroc):
        text, value = f"[{metric.__name__}] expected", 0.0
        try:
            with np.errstate(all="ignore"):
                value = metric(first, second)
        except (TypeError, ValueError) as error:
            text = str(error)
        assert text.startswith(f"[{metric.__name__}] expected")
        assert isinstance(value, float)
        assert not np.isnan(value)


def test_crps_of_samples(rng):
    """By its definition, over all pairs; of a single sample it is the absolute error."""
    y, drawn = rng.normal(size=20), rng.normal(size=(7, 20))
    pairs = np.abs(drawn[:, None] - drawn[None]).mean(axis=(0, 1))
    expected = np.mean(np.abs(drawn - y).mean(axis=0) - 0.5 * pairs)
    assert metrics.crps(y, drawn) == pytest.approx(expected, rel=1e-12)
    assert metrics.crps(y[:, None], drawn[..., None]) == pytest.approx(expected, rel=1e-12)
    assert metrics.crps(y, drawn[:1]) == pytest.approx(np.abs(drawn[0] - y).mean(), rel=1e-12)
    for bad in (drawn[:, :3], drawn[0], np.zeros((0, 20))):
        with pytest.raises(ValueError, match=r"\[crps\] expected p"):
            metrics.crps(y, bad)
    with pytest.raises(ValueError, match=r"\[crps\] expected finite"):
        metrics.crps(y, np.full((2, 20), np.nan))


def test_crps_is_smallest_for_the_truth(rng):
    """Of 2,000 rows drawn from N(0, 1): the truth beats a shifted, a wide and a narrow one."""
    stats = pytest.importorskip("scipy.stats")
    y = rng.normal(size=2000)
    levels = (np.arange(200) + 0.5) / 200
    scores = [
        metrics.crps(y, np.repeat(stats.norm.ppf(levels, loc, scale)[:, None], 2000, axis=1))
        for loc, scale in ((0, 1), (0.5, 1), (0, 2), (0, 0.5))
    ]
    assert scores[0] == pytest.approx(0.5642, abs=0.05)  # 1 / sqrt(pi)
    assert scores[0] == min(scores)


# ten draws, given in two forms
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_a_prediction_will_do(rng):
    """Where probabilities or means stand."""
    x = rng.normal(size=(30, 2))
    y = (x[:, 0] > 0).astype(int)
    p = posterior(x, y, rb.Categorical(), 2)
    for metric in CLASSIFICATION:
        assert metric(y, p) == metric(y, p.probs)
    assert metrics.nll(y, p) == pytest.approx(-p.log_likelihood(y), rel=1e-6)
    q = posterior(x, y, rb.Bernoulli(), 1)
    assert q.probs.shape == (30,)
    for function in (diagnostics.agreement, diagnostics.total_variation):
        assert function(p, q) == function(p.probs, q.probs)
        assert function(p, p.probs) == function(p, p)
    r = posterior(x, x[:, 0], rb.Gaussian(0.3), 1)
    assert metrics.rmse(x[:, 0], r) == metrics.rmse(x[:, 0], r.mean)
    assert metrics.nll(x[:, 0], r) == -r.log_likelihood(x[:, 0])
    with pytest.raises(TypeError, match=r"Prediction\.probs\] expected a classification"):
        metrics.ece(y, r)


def posterior(x, y, likelihood, outputs):
    target = rb.Posterior(
        rb.mlp(2, (4,), outputs), x, y, prior=rb.Normal(1.0), likelihood=likelihood
    )
    hmc = rb.HMC(target, step_size=0.02, num_leapfrog_steps=5)
    return hmc.sample(10, warmup=10, chains=2, progress=False).predict(x)


def predictions(likelihood, outputs, y):
    x = np.linspace(-1, 1, len(y))[:, None]
    model = rb.mlp(1, (), outputs)
    target = rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=likelihood)
    return target.prior_predictive(x, 10)


def test_swapped_arguments_are_told_the_order():
    y, labels = np.linspace(0.1, 2.0, 6), np.arange(6) % 2
    p, c = predictions(rb.Gaussian(0.1), 1, y), predictions(rb.Categorical(), 2, labels)
    for function, second in (("accuracy", "probs"), ("nll", "probs"), ("ece", "probs")):
        for probs in (c, c.probs, c.probs[:, 1]):
            with pytest.raises(
                TypeError, match=rf"\[{function}\] .*{function}\(y, {second}\), got"
            ):
                getattr(metrics, function)(probs, labels)
    for call, wrong in {
        "rmse(y, mean)": (p, y),
        "crps(y, p)": (p, y),
        "coverage(y, lower, upper)": (p, y - 1, y),
        "auroc(label, score)": (c.probs[:, 1], labels),
    }.items():
        with pytest.raises(TypeError, match=re.escape(f"expected {call}, got")):
            getattr(metrics, call.partition("(")[0])(*wrong)
    with pytest.raises(ValueError, match=re.escape("lower <= upper in coverage(y, lower, upper)")):
        metrics.coverage(y - 1, y + 1, y)
    with pytest.raises(ValueError, match=re.escape("in crps(y, p), got")):
        metrics.crps(np.ones((5, 6)), y)
