"""ribbit.plots: Axes with the right contents, and no global state."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import ribbit as rb
from ribbit import metrics, plots

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


@pytest.fixture
def ax():
    from matplotlib.figure import Figure

    return Figure().subplots()


@pytest.fixture(autouse=True)
def no_figures_left():
    yield
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is not None:
        plt.close("all")


def regression(rows=30, outputs=2):
    x = np.linspace(-1, 1, rows)
    mean = np.stack([x**2, -x], axis=1)[:, :outputs]
    return x, SimpleNamespace(
        mean=mean, std=np.full_like(mean, 0.5), epistemic_std=np.full_like(mean, 0.25)
    )


def classification(k):
    """Draws whose probabilities are a softmax of distances to k points on a circle."""
    angle = 2 * np.pi * np.arange(k) / k
    centres = np.stack([np.cos(angle), np.sin(angle)], axis=1)

    def predict(x):
        logits = -2 * ((x[:, None] - centres) ** 2).sum(axis=2)
        p = np.exp(logits)
        p /= p.sum(axis=1, keepdims=True)
        return SimpleNamespace(probs=p[:, 1:] if k == 2 else p)

    x = np.random.default_rng(1).normal(size=(60, 2))
    return SimpleNamespace(predict=predict), x, predict(x).probs.argmax(axis=1)


def chains(rng, *, chains=4, draws=50):
    positions = rng.normal(size=(chains, draws, 3))

    def predictive(theta, x):
        value = theta[:, :1, None] + theta[:, 1:2, None] * x[None]
        return SimpleNamespace(probs=None, mean=value)

    energy = rng.normal(size=(chains, draws))
    diverging = np.zeros((chains, draws), dtype=bool)
    diverging[-1, 7] = True
    return SimpleNamespace(
        positions=positions,
        stats={"lp": -energy, "energy": energy, "diverging": diverging},
        predictive=SimpleNamespace(predictive=predictive),
    )


def labels(ax):
    return ax.get_legend_handles_labels()[1]


def test_regression_band(ax, rng):
    x, p = regression()
    order = rng.permutation(len(x))
    shuffled = SimpleNamespace(
        mean=p.mean[order], std=p.std[order], epistemic_std=p.epistemic_std[order]
    )
    got = plots.regression_band(shuffled, x[order, None], p.mean[order], ax=ax, output=1)
    assert got is ax
    line = ax.lines[0]
    np.testing.assert_allclose(line.get_xdata(), x)
    np.testing.assert_allclose(line.get_ydata(), -x)
    outer, inner = ax.collections
    assert outer.get_paths()[0].vertices[:, 1].max() == pytest.approx(2.0)
    assert inner.get_paths()[0].vertices[:, 1].max() == pytest.approx(1.5)
    assert labels(ax) == ["y: ± 2 sd (with noise)", "function: ± 2 sd", "mean", "data"]


def test_observations_elsewhere(ax):
    x, p = regression(outputs=1)
    plots.regression_band(p, x, ([5.0, 6.0], [1.0, 2.0]), ax=ax)
    np.testing.assert_array_equal(ax.lines[1].get_xdata(), [5, 6])


@pytest.mark.parametrize("k", [2, 3, 9])
def test_decision_boundary(ax, k):
    draws, x, y = classification(k)
    assert plots.decision_boundary(draws, x, y, ax=ax, resolution=20) is ax
    image = ax.images[0].get_array()
    assert image.shape[:2] == (20, 20)
    assert np.isfinite(image).all()
    points = sum(len(c.get_offsets()) for c in ax.collections if len(c.get_offsets()) > 1)
    assert points >= len(x) - k
    assert labels(ax)[:2] == ["class 0", "class 1"]
    if k == 2:  # the probability of class 1 grows towards (-1, 0): left
        assert image[10, 0] > 0.9 > 0.1 > image[10, -1]


def test_trace(ax, rng):
    draws = chains(rng)
    plots.trace(draws, ax=ax)
    np.testing.assert_array_equal(ax.lines[2].get_ydata(), draws.stats["lp"][2])
    np.testing.assert_array_equal(ax.lines[4].get_xdata(), [7])
    assert labels(ax)[-1] == "divergent"
    other = ax.figure.add_subplot()
    plots.trace(draws, ax=other, parameter=1)
    np.testing.assert_array_equal(other.lines[0].get_ydata(), draws.positions[0, :, 1])
    for options, kind in [
        ({"parameter": 3}, ValueError),
        ({"parameter": 1.0}, TypeError),
        ({"statistic": "height"}, ValueError),
    ]:
        with pytest.raises(kind, match=r"\[plots.trace\] expected"):
            plots.trace(draws, ax=ax, **options)


def test_rhat_histogram(ax, rng):
    draws = chains(rng)
    plots.rhat_histogram(draws, np.linspace(-1, 1, 20)[:, None], ax=ax)
    first, second = labels(ax)
    assert first.startswith("predictions: median ")
    assert second.startswith("weights: median ")
    total = sum(bar.get_height() for container in ax.containers for bar in container)
    assert total == pytest.approx(2.0)
    with pytest.raises(ValueError, match=r"\[plots.rhat_histogram\] expected at least two chains"):
        plots.rhat_histogram(chains(rng, chains=1), np.zeros((3, 1)), ax=ax)


def test_energy(ax, rng):
    draws = chains(rng, draws=4000)
    plots.energy(draws, ax=ax)
    # independent energies: E-BFMI is 2, its sd with 4 x 4000 draws about 0.03
    value = float(labels(ax)[1].split("E-BFMI ")[1].rstrip(")"))
    assert value == pytest.approx(2.0, abs=0.25)
    for bad in (
        SimpleNamespace(stats={"lp": 0}),
        SimpleNamespace(stats={"energy": np.zeros((4, 1))}),
        SimpleNamespace(stats={"energy": np.full((4, 9), np.nan)}),
    ):
        with pytest.raises(ValueError, match=r"\[plots.energy\] expected"):
            plots.energy(bad, ax=ax)
    plots.energy(SimpleNamespace(stats={"energy": np.zeros((4, 9))}), ax=ax)  # a chain that rests


def test_pit_histogram(ax, rng):
    """Flat for calibrated samples and counts, a valley for predictions that are too sure.

    5,000 rows in 10 bins: a height has an sd of 0.042; 0.22 is 5.2 sd (10 bins: false 2e-6 each
    side, seeds fixed).
    """
    stats = pytest.importorskip("scipy.stats")
    y = rng.normal(size=5000)
    sure, rates = 0.4, 2.0 * np.ones(5000)

    class Law:
        kind = "regression"

        def __init__(self, scale):
            self.scale = scale

        def cdf(self, y):
            return stats.norm.cdf(y / self.scale)

    class Counts:
        kind = "count"

        def cdf(self, y):
            return stats.poisson.cdf(y, rates)

    def heights(y, p):
        axes = ax.figure.add_subplot()
        assert plots.pit_histogram(y, p, ax=axes) is axes
        found = axes.patches[-1].get_data().values
        assert found.sum() == pytest.approx(10.0)
        return found

    assert np.abs(heights(y, Law(1.0)) - 1).max() < 0.22
    assert np.abs(heights(rng.poisson(2.0, size=5000), Counts()) - 1).max() < 0.22
    assert np.abs(heights(y, rng.normal(size=(30, 5000))) - 1).max() < 0.22
    valley = heights(y, Law(sure))
    assert valley[0] > 2
    assert valley[-1] > 2
    assert valley[5] < 0.7
    assert heights(np.array([1e9, -1e9]), Law(1.0))[[0, -1]] == pytest.approx([5.0, 5.0])
    with pytest.raises(ValueError, match=r"\[plots.pit_histogram\] expected p as a Prediction, or"):
        plots.pit_histogram(y, y, ax=ax)


def test_swapped_arguments_are_told_the_order(ax):
    x, labels = np.linspace(-1, 1, 6)[:, None], np.arange(6) % 2
    target = rb.Posterior(
        rb.mlp(1, (), 2), x, labels, prior=rb.Normal(1.0), likelihood=rb.Categorical()
    )
    p = target.prior_predictive(x, 10)
    for probs in (p, p.probs):
        with pytest.raises(TypeError, match=r"expected plots\.reliability\(y, probs\), got"):
            plots.reliability(probs, labels, ax=ax)
    with pytest.raises(TypeError, match=r"expected plots\.pit_histogram\(y, p\), got a Prediction"):
        plots.pit_histogram(p, labels, ax=ax)


def test_reliability(ax, rng):
    p = rng.uniform(size=500)
    y = (rng.uniform(size=500) < p).astype(int)
    plots.reliability(y, p, ax=ax)
    assert f"ECE {metrics.ece(y, p):.3f}" in ax.get_title()
    with pytest.raises(ValueError, match=r"expected y in 0 ... 1"):
        plots.reliability(y + 1, p, ax=ax)


def test_nothing_global_is_touched(rng):
    """With ax given: no pyplot figure, no rcParams; pyplot is not even imported by it."""
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    axes = Figure().subplots(2, 3).ravel()
    before, current = dict(matplotlib.rcParams), plt.get_fignums()
    x, p = regression()
    draws, points, y = classification(2)
    plots.regression_band(p, x, ax=axes[0])
    plots.decision_boundary(draws, points, y, ax=axes[1], resolution=5)
    plots.trace(chains(rng), ax=axes[2])
    plots.rhat_histogram(chains(rng), x[:, None], ax=axes[3])
    plots.energy(chains(rng), ax=axes[4])
    plots.reliability([0, 1], [0.2, 0.7], ax=axes[5])
    assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == current
    axes[0].figure.canvas.draw()


def test_a_figure_is_made_without_ax(rng):
    import matplotlib.pyplot as plt

    count = len(plt.get_fignums())
    first, second = plots.energy(chains(rng)), plots.reliability([0, 1], [0.2, 0.7])
    assert first.figure is not second.figure
    assert len(plt.get_fignums()) == count + 2


def test_bad_input(ax):
    x, p = regression()
    for call in (
        lambda: plots.regression_band(p, np.zeros((30, 2)), ax=ax),
        lambda: plots.regression_band(p, x[:-1], ax=ax),
        lambda: plots.regression_band(p, x, np.zeros(29), ax=ax),
        lambda: plots.regression_band(p, x, (x,), ax=ax),
        lambda: plots.regression_band(p, x, ax=ax, output=2),
        lambda: plots.decision_boundary(
            SimpleNamespace(predict=None), np.zeros((3, 1)), [0, 1, 0], ax=ax
        ),
        lambda: plots.decision_boundary(
            SimpleNamespace(predict=None), np.zeros((3, 2)), [0, 1], ax=ax
        ),
    ):
        with pytest.raises(ValueError, match=r"\[plots\.\w+\] expected"):
            call()
    with pytest.raises(TypeError, match=r"\[plots.energy\] expected ax as matplotlib Axes"):
        plots.energy(SimpleNamespace(stats={}), ax="axes")
    with pytest.raises(TypeError, match=r"expected p as a Prediction .*, got"):
        plots.regression_band(SimpleNamespace(positions=x), x, ax=ax)
    for wrong in (plots.energy, plots.trace):
        with pytest.raises(TypeError, match=r"expected draws as Draws, got NoneType|got None"):
            wrong(None)


def test_without_matplotlib(monkeypatch):
    for name in [m for m in sys.modules if m.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "matplotlib>=3.8"'):
        plots.reliability([0, 1], [0.2, 0.7])


def test_trace_of_what_has_no_trace(rng):
    draws = chains(rng)
    draws.stats = {"lp": np.full((2, 5), np.nan)}
    with pytest.raises(ValueError, match=r"without: track it \(track_lp=True\)"):
        plots.trace(draws)
    draws.stats = {}
    with pytest.raises(ValueError, match="draws of a fit, which have no statistics"):
        plots.trace(draws)
