"""Pictures of chains: traces, R-hat, energies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit import diagnostics
from ribbit._arrays import checks
from ribbit.diagnostics import RHAT, as_host, divergences
from ribbit.plots.style import COLORS, GREY, finish, has, new_axes

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.axes import Axes

__all__ = ["energy", "rhat_histogram", "trace"]


def trace(
    draws: Any, *, ax: Axes | None = None, parameter: int | None = None, statistic: str = "lp"
) -> Axes:
    """Plot a statistic, or one parameter, of every chain against the number of the draw.

    Parameters
    ----------
    draws : Draws
    ax : matplotlib Axes, optional
    parameter : int, optional
        Number of a parameter to show instead of a statistic.
    statistic : str
        A name in ``draws.stats``; "lp" is the log density.

    Returns
    -------
    matplotlib.axes.Axes
        Divergent draws are marked on the lower edge.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> hmc = rb.HMC(target, step_size=0.05, num_leapfrog_steps=10)
    >>> draws = hmc.sample(20, warmup=0, seed=1, progress=False)
    >>> rb.plots.trace(draws).get_xlabel()
    'draw'
    """
    name = "plots.trace"
    has(name, "draws", draws, "positions", "Draws")
    ax = new_axes(name, ax)
    if parameter is not None:
        number = checks.integer(
            name, "parameter", parameter, minimum=0, maximum=draws.positions.shape[2] - 1
        )
        values, label = as_host(draws.positions[:, :, number]), f"parameter {number}"
    else:
        if not draws.stats:
            raise ValueError(
                f"[{name}] expected draws of a sampler, got draws of a fit, which have no "
                "statistics: give parameter="
            )
        statistic = checks.choice(name, "statistic", statistic, draws.stats)
        values, label = as_host(draws.stats[statistic]), statistic
        if np.isnan(values).all():
            raise ValueError(
                f"[{name}] expected a statistic with numbers, got {statistic!r} without: track it "
                "(track_lp=True), or give parameter="
            )
    for chain, row in enumerate(values):
        ax.plot(row, color=COLORS[chain % len(COLORS)], lw=0.9, alpha=0.85, label=f"chain {chain}")
    if "diverging" in draws.stats:
        at = np.flatnonzero(as_host(divergences(draws.stats)).any(axis=0))
        if len(at):
            ax.plot(
                at,
                np.full(len(at), 0.01),
                "|",
                color=COLORS[3],
                ms=9,
                transform=ax.get_xaxis_transform(),
                label="divergent",
            )
    ax.set_xlabel("draw")
    ax.set_ylabel("log density" if label == "lp" else label)
    ax.margins(x=0.01)
    finish(ax, legend=len(values) <= 8)
    return ax


def rhat_histogram(draws: Any, x: npt.ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Plot histograms of R-hat of the predictions and of the weights (Izmailov et al. 2021).

    Parameters
    ----------
    draws : Draws
        Draws of at least two chains.
    x : (N, ...) array_like
        Inputs of the predictions.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib.axes.Axes
        Split R-hat without ranks for both; the dotted line is the limit of
        :meth:`ribbit.Draws.summary`.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> hmc = rb.HMC(target, step_size=0.05, num_leapfrog_steps=10)
    >>> draws = hmc.sample(20, warmup=0, seed=1, progress=False)
    >>> rb.plots.rhat_histogram(draws, x).get_xlabel()
    'split R-hat, without ranks'
    """
    name = "plots.rhat_histogram"
    has(name, "draws", draws, "positions", "Draws")
    ax = new_axes(name, ax)
    values = {
        "predictions": diagnostics.predictive_rhat(draws, x, method="split").reshape(-1),
        "weights": diagnostics.weight_rhat(draws),
    }
    finite = {key: value[np.isfinite(value)] for key, value in values.items()}
    everything = np.concatenate(list(finite.values()))
    if everything.size == 0:
        raise ValueError(
            f"[{name}] expected at least two chains of four draws that moved, got R-hat undefined"
        )
    low, high = min(0.99, everything.min()), max(1.12, float(np.quantile(everything, 0.995)))
    edges = np.linspace(low, high, 51)
    for color, (key, value) in zip(COLORS, finite.items(), strict=False):
        if value.size == 0:
            continue
        ax.hist(
            np.minimum(value, high),
            bins=edges.tolist(),
            weights=np.full(value.size, 1.0 / value.size),
            color=color,
            alpha=0.5,
            label=f"{key}: median {np.median(value):.3f}, worst {value.max():.3f}",
        )
    ax.axvline(RHAT, color=GREY, ls=":", lw=1.2)
    ax.set_ylim(top=1.25 * ax.get_ylim()[1])  # room for the legend
    ax.set_xlabel("split R-hat, without ranks")
    ax.set_ylabel("fraction")
    finish(ax, legend=True)
    return ax


def energy(draws: Any, *, ax: Axes | None = None) -> Axes:
    """Plot the distributions of the energy and of its change between draws (Betancourt 2016).

    If the second is much narrower than the first, momentum refreshes cannot cross the energy
    levels. The legend shows the smallest E-BFMI over the chains; a value below 0.3 is suspicious.

    Parameters
    ----------
    draws : Draws
        Draws of HMC, at least two.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib.axes.Axes

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> hmc = rb.HMC(target, step_size=0.05, num_leapfrog_steps=10)
    >>> draws = hmc.sample(20, warmup=0, seed=1, progress=False)
    >>> rb.plots.energy(draws).get_xlabel()
    'energy, centred per chain'
    """
    name = "plots.energy"
    has(name, "draws", draws, "stats", "Draws")
    ax = new_axes(name, ax)
    if "energy" not in draws.stats:
        raise ValueError(f"[{name}] expected draws with an energy, got {sorted(draws.stats)}")
    values = np.asarray(as_host(draws.stats["energy"]), dtype=np.float64)
    if values.shape[1] < 2 or not np.isfinite(values).all():
        raise ValueError(f"[{name}] expected two or more finite energies per chain, got others")
    change = np.diff(values, axis=1)
    spread = values.var(axis=1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        fraction = np.mean(change**2, axis=1) / spread
    series = {
        "energy": (values - values.mean(axis=1, keepdims=True)).reshape(-1),
        f"change per draw (E-BFMI {np.nanmin(fraction) if np.any(spread > 0) else np.nan:.2f})": (
            change.reshape(-1)
        ),
    }
    width = max(float(np.abs(v).max()) for v in series.values()) or 1.0
    count = int(np.clip(2.0 * np.sqrt(values.size), 15, 80))
    edges = np.linspace(-width, width, count).tolist()
    for color, (label, value) in zip(COLORS, series.items(), strict=False):
        ax.hist(
            value, bins=edges, density=True, histtype="stepfilled", color=color, alpha=0.3, lw=0
        )
        ax.hist(value, bins=edges, density=True, histtype="step", color=color, lw=1.5, label=label)
    ax.set_ylim(top=1.25 * ax.get_ylim()[1])  # room for the legend
    ax.set_xlabel("energy, centred per chain")
    ax.set_ylabel("density")
    finish(ax, legend=True)
    return ax
