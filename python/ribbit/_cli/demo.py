"""``python -m ribbit demo``: two networks sampled by HMC, a table of scores, and a picture."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ribbit import datasets, metrics
from ribbit._arrays.checks import seed as check_seed
from ribbit._arrays.packages import needing
from ribbit.kernels import HMC
from ribbit.models.zoo import mlp
from ribbit.results.draws import Draws
from ribbit.results.prediction import Prediction
from ribbit.targets.likelihoods import Gaussian
from ribbit.targets.posterior import Posterior
from ribbit.targets.priors import Normal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ribbit.results.summary import Summary


Array = npt.NDArray[np.float64]

_LEVEL = 0.9  # of the intervals
_NORMAL_QUANTILE = 1.6448536269514722  # at 95 %: the upper end of a 90 % interval


@dataclass(frozen=True, eq=False)
class Job:
    """One sampled network: its draws, its predictions at `x`, and its summary there."""

    x: Array
    draws: Draws
    prediction: Prediction
    summary: Summary
    seconds: float


@dataclass(frozen=True, eq=False)
class DemoResult:
    """What the demo found."""

    curve: Job  # a curve with a gap in the data; predictions on a grid that reaches past the data
    buildings: Job  # heating load of buildings; predictions at the test rows
    # figures on the test rows: of the network, and of linear regression
    scores: dict[str, tuple[float, float]]
    picture: str  # path of the picture


def run_demo(
    *, quick: bool = False, out: str | os.PathLike[str] = "ribbit-demo.png", seed: int = 0
) -> DemoResult:
    """Sample two networks, print a table, and save a picture."""
    check_seed("run_demo", seed)
    path = os.fspath(out)
    _check_writable(path)

    print("1 of 2: a noisy curve with a gap in the data")
    x, y = _curve()
    curve = _sample(x, y, np.linspace(-4.0, 4.0, 241)[:, None], 20, 2.0, draws=500, seed=seed)
    print(_outcome(curve))

    x, y = datasets.energy_efficiency()
    train, test = datasets.splits(len(y))[0]
    print(
        f"\n2 of 2: heating load of buildings from {x.shape[1]} columns, {len(train)} rows to "
        f"learn from, {len(test)} to test"
    )
    buildings = _sample(
        x[train], y[train], x[test], 30, 0.5, draws=250 if quick else 600, seed=seed
    )
    scores = _scores(buildings.prediction, _linear(x[train], y[train], x[test]), y[test])
    print(_outcome(buildings))
    print(f"\n{'on the test rows':<28}{'network':>12}{'linear regression':>20}")
    for name, (ours, linear) in scores.items():
        print(f"{name:<28}{ours:>12.3g}{linear:>20.3g}")

    _draw(path, curve, _curve(), buildings, y[test])
    print(f"\npicture: {path}")
    return DemoResult(curve, buildings, scores, path)


def _curve() -> tuple[Array, Array]:
    """Return 60 rows of a noisy sine, with none between x = -0.6 and 0.8."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-2.0, -0.6, 30), rng.uniform(0.8, 2.0, 30)])
    return x[:, None], np.sin(3.0 * x) + 0.1 * rng.normal(size=60)


def _sample(
    x: Array, y: Array, x_new: Array, width: int, prior: float, *, draws: int, seed: int
) -> Job:
    """Sample a tanh network with learned noise by HMC with its defaults, and predict at `x_new`."""
    target = Posterior(
        mlp(x.shape[1], (width,), 1, activation="tanh"),
        x,
        y,
        prior=Normal(prior, fan_in=True),
        likelihood=Gaussian(),
        standardize=True,
    )
    begin = time.perf_counter()
    found = HMC(target).sample(draws, chains=4, seed=seed)
    seconds = time.perf_counter() - begin
    if len(found) < 4:
        raise ValueError(f"interrupted after {len(found)} draws; the demo needs four at least")
    return Job(x_new, found, found.predict(x_new), found.summary(x_new), seconds)


def _outcome(job: Job) -> str:
    chains, draws, _ = job.draws.positions.shape
    return f"{chains} chains of {draws} draws in {job.seconds:.1f} s. {job.summary.message}"


def _linear(x: Array, y: Array, x_new: Array) -> tuple[Array, float]:
    """Return predictions of least squares, and the sd of its residuals."""
    design = np.column_stack([np.ones(len(x)), x])
    weights, _, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    residual = y - design @ weights
    std = math.sqrt(float(residual @ residual) / (len(y) - int(rank)))
    return np.column_stack([np.ones(len(x_new)), x_new]) @ weights, std


def _scores(
    ours: Prediction, linear: tuple[Array, float], y: Array
) -> dict[str, tuple[float, float]]:
    """Judge both predictions of `y`."""
    lower, upper = (np.asarray(end) for end in ours.interval(_LEVEL))
    mean, std = linear
    half = _NORMAL_QUANTILE * std
    log_density = -0.5 * ((y - mean) / std) ** 2 - math.log(std * math.sqrt(2.0 * math.pi))
    return {
        "RMSE (kWh/m²)": (metrics.rmse(y, np.asarray(ours.mean)), metrics.rmse(y, mean)),
        "log density per row": (float(ours.log_likelihood(y)), float(np.mean(log_density))),
        "rows in 90 % intervals": (
            metrics.coverage(y, lower, upper),
            metrics.coverage(y, mean - half, mean + half),
        ),
        "width of these intervals": (float(np.mean(upper - lower)), 2.0 * half),
    }


def _draw(path: str, curve: Job, data: tuple[Array, Array], buildings: Job, y_test: Array) -> None:
    """Left: the bands of the curve, wide where there are no data. Right: the buildings."""
    from matplotlib.figure import Figure  # not pyplot: no window, no global state

    from ribbit import plots

    figure = Figure(figsize=(11.0, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    plots.regression_band(curve.prediction, curve.x, data, ax=left)
    left.set_ylim(-2.2, 3.2)  # room for the legend
    left.set_title("The bands widen where there are no data", fontsize="medium")
    _draw_buildings(right, buildings.prediction, y_test)
    figure.savefig(path, dpi=150)


def _draw_buildings(ax: Axes, prediction: Prediction, y: Array) -> None:
    """Draw the interval of every test row, sorted by prediction, and the true value."""
    from ribbit.plots.style import COLORS, INK, finish

    lower, upper = (np.asarray(end) for end in prediction.interval(_LEVEL))
    order = np.argsort(np.asarray(prediction.mean))
    lower, upper, y = lower[order], upper[order], y[order]
    row, inside = np.arange(len(y)), (lower <= y) & (y <= upper)
    ax.vlines(row, lower, upper, color=COLORS[0], alpha=0.4, lw=5, label="90 % interval")
    ax.plot(row[inside], y[inside], "o", color=INK, ms=3, label="true value, inside")
    ax.plot(row[~inside], y[~inside], "o", color=COLORS[3], ms=5, label="true value, outside")
    ax.set_xlabel("building (test rows, sorted by prediction)")
    ax.set_ylabel("heating load (kWh/m²)")
    ax.set_title(f"{inside.sum()} of {len(y)} buildings lie in their interval", fontsize="medium")
    finish(ax, legend=True)


def _check_writable(path: str) -> None:
    """Raise an error before the sampling if the picture cannot be written after it."""
    with needing("demo", "matplotlib"):
        from matplotlib.backend_bases import FigureCanvasBase
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"there is no folder {folder} for the picture")
    if os.path.isdir(path) or not os.access(folder, os.W_OK):
        raise PermissionError(f"{path} cannot be written")
    kinds = FigureCanvasBase.get_supported_filetypes()
    suffix = os.path.splitext(path)[1].lstrip(".").lower()
    if suffix and suffix not in kinds:
        raise ValueError(f"a picture cannot be written as .{suffix}; use one of {sorted(kinds)}")
