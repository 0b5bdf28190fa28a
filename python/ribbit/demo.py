"""The main job on a real data set: ``python -m ribbit demo``.

HMC over a 10-50-1 network with learned noise on scikit-learn's diabetes data (442 patients, 10
measurements, disease progression after a year; Efron et al. 2004), beside linear regression.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ribbit import datasets, diagnostics, metrics
from ribbit._checks import seed as check_seed
from ribbit.draws import Draws
from ribbit.likelihoods import Gaussian
from ribbit.posterior import Posterior
from ribbit.priors import Normal
from ribbit.samplers.hmc import HMC
from ribbit.zoo import mlp

__all__ = ["DemoResult", "run_demo"]

Array = npt.NDArray[np.float64]

_HIDDEN = 50
_CHAINS = 4
_LEVEL = 0.9  # of the intervals
_SPLIT = 0  # of datasets.splits


@dataclass(frozen=True)
class Scores:
    """How good a predictive distribution is on the test rows.

    Attributes
    ----------
    rmse : float
        In the unit of the target.
    log_likelihood : float
        Mean log predictive density per test row, in that unit too.
    coverage : float
        Fraction of the test rows inside their 90 % intervals.
    width : float
        Mean width of these intervals.
    """

    rmse: float
    log_likelihood: float
    coverage: float
    width: float


@dataclass(frozen=True)
class DemoResult:
    """What the demo found.

    Attributes
    ----------
    hmc, linear : Scores
    rhat_median, rhat_worst : float
        R-hat of the predictions at the test rows.
    ess_median : float
        Effective sample size of the predictions, median over test rows.
    acceptance : float
    divergences : int
    gradients_per_second : float
        All chains, warmup included.
    seconds : float
        Of sampling.
    draws : Draws
    picture : str
    """

    hmc: Scores
    linear: Scores
    rhat_median: float
    rhat_worst: float
    ess_median: float
    acceptance: float
    divergences: int
    gradients_per_second: float
    seconds: float
    draws: Draws
    picture: str


def run_demo(
    *, quick: bool = False, out: str | os.PathLike[str] = "ribbit-demo.png", seed: int = 0
) -> DemoResult:
    """Sample, print a table, and save a picture.

    Parameters
    ----------
    quick : bool
        Fewer draws: a few seconds, and rough figures.
    out : path
        Where the picture goes; the suffix chooses the format.
    seed : int
        Of the chains; the split of the data stays.

    Returns
    -------
    DemoResult

    Raises
    ------
    ImportError
        Without scikit-learn, matplotlib or rich.
    OSError
        If the picture cannot be written; found before the sampling.
    ValueError
        If `out` has an unknown suffix, `seed` is out of range, or Ctrl-C came before four draws.
    """
    check_seed("run_demo", seed)
    _need_packages()
    from rich.console import Console
    from sklearn.datasets import load_diabetes

    path = os.fspath(out)
    _check_writable(path)
    console = Console()
    x, y = load_diabetes(return_X_y=True, scaled=False)
    train, test = datasets.splits(len(y))[_SPLIT]
    scaler = datasets.standardize(x[train], y[train])
    x_test = scaler.transform(x[test])
    console.print(
        f"[bold]Ribbit demo[/bold]: diabetes data, {len(train)} training rows, {len(test)} test "
        f"rows; HMC over a {x.shape[1]}-{_HIDDEN}-1 tanh network with learned noise, "
        f"{_CHAINS} chains"
    )
    draws, seconds = _sample(scaler, quick=quick, seed=seed)
    if len(draws) < 4:
        raise ValueError(
            f"[run_demo] expected at least four draws per chain, got {len(draws)} (interrupted)"
        )
    hmc, lower, upper, mean = _score_draws(draws, scaler, x_test, y[test])
    rhat = diagnostics.predictive_rhat(draws, x_test)
    gradients = sum(
        float(stats["n_steps"].sum()) for stats in (draws.stats, draws.warmup_stats or {}) if stats
    )
    result = DemoResult(
        hmc=hmc,
        linear=_linear_regression(scaler, x_test, y[test]),
        rhat_median=float(np.median(rhat)),
        rhat_worst=float(np.max(rhat)),
        ess_median=float(np.median(diagnostics.predictive_ess(draws, x_test))),
        acceptance=float(np.mean(draws.stats["acceptance_rate"])),
        divergences=int(np.sum(draws.stats["diverging"])),
        gradients_per_second=gradients / seconds,
        seconds=seconds,
        draws=draws,
        picture=path,
    )
    console.print(_table(result))
    _draw(path, draws, x_test, y[test], mean, lower, upper)
    console.print(f"picture: {path}", soft_wrap=True, highlight=False)
    return result


def _sample(scaler: datasets.Scaler, *, quick: bool, seed: int) -> tuple[Draws, float]:
    assert scaler.y is not None
    target = Posterior(
        mlp(scaler.x.shape[1], (_HIDDEN,), 1, activation="tanh"),
        scaler.x,
        scaler.y,
        prior=Normal(0.7, fan_in=True),
        likelihood=Gaussian(),
    )
    hmc = HMC(target, step_size="auto", inverse_mass_matrix="prior", jitter=0.1)
    begin = time.perf_counter()
    draws = hmc.sample(
        60 if quick else 500,
        warmup=60 if quick else 300,
        chains=_CHAINS,
        seed=seed,
        progress=True,
        keep_warmup=True,
    )
    return draws, time.perf_counter() - begin


def _score_draws(
    draws: Draws, scaler: datasets.Scaler, x_test: Array, y_test: Array
) -> tuple[Scores, Array, Array, Array]:
    """Scores of the mixture over draws, interval ends and mean, in the unit of the target."""
    assert scaler.y_scale is not None
    prediction = draws.predict(x_test)
    mean = np.asarray(scaler.inverse_y(prediction.mean))[:, 0]
    ends = prediction.quantile([0.5 - _LEVEL / 2, 0.5 + _LEVEL / 2], noise=True)
    lower, upper = (np.asarray(scaler.inverse_y(end))[:, 0] for end in ends)
    scores = Scores(
        rmse=metrics.rmse(y_test, mean),
        log_likelihood=prediction.log_likelihood(scaler.transform_y(y_test))
        - math.log(scaler.y_scale),
        coverage=metrics.coverage(y_test, lower, upper),
        width=float(np.mean(upper - lower)),
    )
    return scores, lower, upper, mean


def _linear_regression(scaler: datasets.Scaler, x_test: Array, y_test: Array) -> Scores:
    """Least squares with Gaussian residuals, their variance divided by the degrees of freedom."""
    from sklearn.linear_model import LinearRegression

    assert scaler.y is not None
    fit = LinearRegression().fit(scaler.x, scaler.y)
    rows, columns = scaler.x.shape
    residual = scaler.y - fit.predict(scaler.x)
    std = math.sqrt(float(residual @ residual) / (rows - columns - 1))
    mean, sd = scaler.inverse_y(fit.predict(x_test), np.full(len(x_test), std))
    half = 1.6448536269514722 * sd  # the 95 % quantile of a normal
    log_density = -0.5 * ((y_test - mean) / sd) ** 2 - np.log(sd) - 0.5 * math.log(2 * math.pi)
    return Scores(
        rmse=metrics.rmse(y_test, mean),
        log_likelihood=float(np.mean(log_density)),
        coverage=metrics.coverage(y_test, mean - half, mean + half),
        width=float(np.mean(2.0 * half)),
    )


def _table(result: DemoResult) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title="test rows", title_justify="left")
    table.add_column("")
    table.add_column("HMC network", justify="right", style="bold")
    table.add_column("linear regression", justify="right")
    hmc, linear = result.hmc, result.linear
    for name, spec, attribute in (
        ("RMSE", ".2f", "rmse"),
        ("log likelihood per row", ".3f", "log_likelihood"),
        ("90 % interval coverage", ".0%", "coverage"),
        ("90 % interval width", ".0f", "width"),
    ):
        table.add_row(name, *(format(getattr(scores, attribute), spec) for scores in (hmc, linear)))
    table.add_section()
    chains, kept, _ = result.draws.positions.shape
    for name, value in (
        ("R-hat of the predictions", f"{result.rhat_median:.3f} (worst {result.rhat_worst:.3f})"),
        ("ESS of the predictions", f"{result.ess_median:.0f} of {chains * kept}"),
        ("acceptance, divergences", f"{result.acceptance:.2f}, {result.divergences}"),
        ("gradients per second", f"{result.gradients_per_second:,.0f}"),
        ("seconds", f"{result.seconds:.1f}"),
    ):
        table.add_row(name, value, "")
    return table


def _draw(
    path: str, draws: Draws, x_test: Array, y_test: Array, mean: Array, lower: Array, upper: Array
) -> None:
    """Left: truth against the bands, rows sorted by prediction. Right: R-hat."""
    from matplotlib.figure import Figure  # not pyplot: no window, no global state

    from ribbit import plots
    from ribbit._plot_style import COLORS, INK, finish

    figure = Figure(figsize=(11.0, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.7, 1.0])
    order = np.argsort(mean)
    rank = np.arange(len(mean))
    inside = ((lower <= y_test) & (y_test <= upper))[order]
    left.vlines(
        rank,
        lower[order],
        upper[order],
        color=COLORS[0],
        alpha=0.25,
        lw=5,
        label="90 % interval",
    )
    left.plot(rank, mean[order], "_", color=COLORS[0], ms=7, mew=2, label="prediction")
    truth = y_test[order]
    left.plot(rank[inside], truth[inside], "o", color=INK, ms=4, label="truth, inside")
    left.plot(rank[~inside], truth[~inside], "o", color=COLORS[3], ms=5, label="truth, outside")
    left.set_xlabel("test rows, sorted by prediction")
    left.set_ylabel("disease progression")
    left.set_title(f"{inside.sum()} of {len(inside)} test rows inside", fontsize="medium")
    finish(left, legend=False)
    left.legend(frameon=False, fontsize="small", ncols=2, loc="upper left")
    left.set_ylim(top=1.15 * max(float(upper.max()), float(y_test.max())))
    plots.rhat_histogram(draws, x_test, ax=right)
    right.set_title("R-hat, split chains", fontsize="medium")
    figure.savefig(path, dpi=150)


def _need_packages() -> None:
    import importlib

    missing = []
    for package, name in (
        ("sklearn", "scikit-learn"),
        ("matplotlib", "matplotlib"),
        ("rich", "rich"),
    ):
        try:
            importlib.import_module(package)
        except ImportError:
            missing.append(name)
    if missing:
        raise ImportError(
            f"[run_demo] expected {', '.join(missing)}, got no such package: "
            'pip install ".[examples]"'
        )


def _check_writable(path: str) -> None:
    """Raise OSError or ValueError before the work, not after it."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"[run_demo] expected a folder for the picture, got {folder}")
    if os.path.isdir(path) or not os.access(folder, os.W_OK):
        raise PermissionError(f"[run_demo] expected a file that can be written, got {path}")
    from matplotlib.backend_bases import FigureCanvasBase

    kinds = FigureCanvasBase.get_supported_filetypes()
    suffix = os.path.splitext(path)[1].lstrip(".").lower()
    if suffix and suffix not in kinds:
        raise ValueError(f"[run_demo] expected a picture in {sorted(kinds)}, got .{suffix}")
