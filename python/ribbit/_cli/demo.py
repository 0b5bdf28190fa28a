"""Two jobs with a table and a picture each: ``python -m ribbit demo``.

HMC over an 8-30-1 network with learned noise on the heating load of 768 buildings (8 columns;
Tsanas and Xifara 2012), beside linear regression. Then five methods on one curve of 20,000 rows:
`ribbit._cli.demo_methods`.

Width and prior sd were chosen by R-hat on other seeds: of 20 units some chains stay for hundreds of
draws where the log density is 130 lower, and under a prior sd of 0.7 steps are twice as small.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit import datasets, diagnostics, metrics
from ribbit._arrays.checks import seed as check_seed
from ribbit._cli.demo_methods import METHODS, Comparison, compare_methods, quiet
from ribbit._cli.demo_methods_view import draw_methods, methods_notes, methods_table
from ribbit._cli.demo_scores import Array, Band, Scores, converged, score_draws
from ribbit.models.zoo import mlp
from ribbit.results.draws import Draws
from ribbit.samplers.mcmc.hmc import HMC
from ribbit.targets.likelihoods import Gaussian
from ribbit.targets.posterior import Posterior
from ribbit.targets.priors import Normal

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["DemoResult", "run_demo"]

_HIDDEN = 30
_CHAINS = 4
_SPLIT = 0  # of datasets.splits


@dataclass(frozen=True)
class DemoResult:
    """What the demo found.

    Attributes
    ----------
    hmc, linear : Scores
        On the buildings, as all up to `picture`.
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
    methods : Comparison or None
        Five methods on one curve; None when Ctrl-C ended the sampling before it.
    methods_picture : str or None
        None when no method came to an end.
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
    methods: Comparison | None = None
    methods_picture: str | None = None


def run_demo(
    *,
    quick: bool = False,
    out: str | os.PathLike[str] = "ribbit-demo.png",
    seed: int = 0,
    store: str | os.PathLike[str] | None = None,
) -> DemoResult:
    """Sample, print two tables, and save two pictures.

    After Ctrl-C it shows what there is and runs nothing more.

    Parameters
    ----------
    quick : bool
        Fewer draws and rows: some seconds, and rough figures.
    out : path
        Where the picture of the buildings goes; the suffix chooses the format. The picture of
        the five methods lies beside it, with "-methods" before the suffix.
    seed : int
        Of the chains and fits; the data and their split stay.
    store : path, optional
        A folder in whose "demo" the draws of the buildings are kept; the same call goes on there.

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

    path = os.fspath(out)
    methods_path = "-methods".join(os.path.splitext(path))
    _check_writable(path)
    _check_writable(methods_path)
    console = Console()
    folder = None if store is None else os.path.join(store, "demo")
    result = _buildings(console, path, folder, quick=quick, seed=seed)
    if not result.draws.complete:
        console.print("interrupted: the five methods were not run")
        return result
    console.print()
    comparison = _methods(console, quick=quick, seed=seed)
    picture = None
    if comparison.results:
        draw_methods(methods_path, comparison)
        console.print(f"picture: {methods_path}", soft_wrap=True, highlight=False)
        picture = methods_path
    return replace(result, methods=comparison, methods_picture=picture)


def _buildings(
    console: Console, path: str, folder: str | None, *, quick: bool, seed: int
) -> DemoResult:
    """Do the first job; its picture goes to `path`."""
    x, y = datasets.energy_efficiency()
    train, test = datasets.splits(len(y))[_SPLIT]
    scaler = datasets.standardize(x[train], y[train])
    x_test = scaler.transform(x[test])
    console.print(
        f"[bold]Ribbit demo 1 of 2[/bold]: heating load of buildings, {len(train)} training rows, "
        f"{len(test)} test rows; HMC over an {x.shape[1]}-{_HIDDEN}-1 tanh network with learned "
        f"noise, {_CHAINS} chains"
    )
    draws, seconds = _sample(scaler, folder, quick=quick, seed=seed)
    if folder is not None:
        console.print(f"run: {folder}", soft_wrap=True, highlight=False)
    if len(draws) < 4:
        raise ValueError(
            f"[run_demo] expected at least four draws per chain, got {len(draws)} (interrupted)"
        )
    hmc, band = score_draws(draws, scaler, x_test, y[test])
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
    _draw(path, draws, x_test, y[test], band)
    console.print(f"picture: {path}", soft_wrap=True, highlight=False)
    return result


def _methods(console: Console, *, quick: bool, seed: int) -> Comparison:
    """Do the second job, all but its picture."""
    console.print(
        f"[bold]Ribbit demo 2 of 2[/bold]: the noisy curve of Blundell et al. (2015), "
        f"{'4,000' if quick else '20,000'} rows, a fifth for testing; a 1-20-20-20-20-1 ReLU "
        "network with learned noise, five methods"
    )
    comparison = compare_methods(quick=quick, seed=seed)
    if comparison.results:
        console.print(methods_table(comparison))
        console.print(methods_notes(comparison), highlight=False)
    if len(comparison.results) < len(METHODS):
        console.print("interrupted: the other methods were not run")
    return comparison


def _sample(
    scaler: datasets.Scaler, folder: str | None, *, quick: bool, seed: int
) -> tuple[Draws, float]:
    assert scaler.y is not None
    target = Posterior(
        mlp(scaler.x.shape[1], (_HIDDEN,), 1, activation="tanh"),
        scaler.x,
        scaler.y,
        prior=Normal(0.5, fan_in=True),
        likelihood=Gaussian(),
    )
    begin = time.perf_counter()
    with quiet():
        draws = HMC(target).sample(  # nothing set
            60 if quick else 1000,
            warmup=60 if quick else None,
            chains=_CHAINS,
            seed=seed,
            progress=True,
            keep_warmup=True,
            store=folder,
        )
    return draws, draws.seconds or time.perf_counter() - begin


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
        ("90 % interval width", ".1f", "width"),
    ):
        table.add_row(name, *(format(getattr(scores, attribute), spec) for scores in (hmc, linear)))
    table.add_section()
    chains, kept, _ = result.draws.positions.shape
    for name, value in (
        ("R-hat of the predictions", f"{result.rhat_median:.3f} (worst {result.rhat_worst:.3f})"),
        ("chains", "converged" if converged(result.rhat_worst) else "not converged"),
        ("ESS of the predictions", f"{result.ess_median:.0f} of {chains * kept}"),
        ("acceptance, divergences", f"{result.acceptance:.2f}, {result.divergences}"),
        ("gradients per second", f"{result.gradients_per_second:,.0f}"),
        ("seconds", f"{result.seconds:.1f}"),
    ):
        table.add_row(name, value, "")
    return table


def _draw(path: str, draws: Draws, x_test: Array, y_test: Array, band: Band) -> None:
    """Left: truth against the bands, rows sorted by prediction. Right: R-hat."""
    from matplotlib.figure import Figure  # not pyplot: no window, no global state

    from ribbit import plots
    from ribbit.plots.style import COLORS, INK, finish

    figure = Figure(figsize=(11.0, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.7, 1.0])
    mean, lower, upper = band.mean, band.lower, band.upper
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
    left.set_xlabel("building (test rows, sorted by prediction)")
    left.set_ylabel("heating load (kWh/m²)")
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
