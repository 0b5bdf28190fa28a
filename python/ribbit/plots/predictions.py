"""Pictures of predictions: bands, boundaries, calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit import metrics
from ribbit._arrays import checks
from ribbit.diagnostics import as_host
from ribbit.errors import ShapeError
from ribbit.plots.style import COLORS, GREY, INK, finish, has, line, new_axes, palette_of

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.axes import Axes

__all__ = ["decision_boundary", "pit_histogram", "regression_band", "reliability"]


def regression_band(
    p: Any,
    x: npt.ArrayLike,
    y: npt.ArrayLike | None = None,
    *,
    ax: Axes | None = None,
    output: int = 0,
) -> Axes:
    """Plot the predictive mean with bands of two standard deviations against a single input.

    Parameters
    ----------
    p : Prediction
        ``draws.predict(x)`` of a regression.
    x : (N,) or (N, 1) array_like
        The inputs, in any order.
    y : (N,) or (N, K) array_like, optional
        Observations at `x`, or a pair (x, y) of observations elsewhere.
    ax : matplotlib Axes, optional
    output : int
        Index of one of the K outputs.

    Returns
    -------
    matplotlib.axes.Axes
        The outer band is for a new y, with noise; the inner one is for the function alone.

    Raises
    ------
    ImportError, ValueError
        Without matplotlib; if `x` has more than one column or not as many rows as `p`.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> hmc = rb.HMC(target, step_size=0.05, num_leapfrog_steps=10)
    >>> draws = hmc.sample(20, warmup=0, seed=1, progress=False)
    >>> axes = rb.plots.regression_band(draws.predict(x), x, (x, 2 * x))
    >>> axes.figure.savefig("band.png")
    """
    name = "plots.regression_band"
    has(name, "p", p, "epistemic_std", "a Prediction (draws.predict(x))")
    ax = new_axes(name, ax)
    mean, std, epistemic = (
        as_host(a).reshape(len(a), -1) for a in (p.mean, p.std, p.epistemic_std)
    )
    place = line(name, "x", x, rows=len(mean))
    column = checks.integer(name, "output", output, minimum=0, maximum=mean.shape[1] - 1)
    order = np.argsort(place, kind="stable")
    place, mean = place[order], mean[order, column]
    total = 2.0 * std[order, column]
    inner = 2.0 * epistemic[order, column]
    blue = COLORS[0]
    for half, alpha, label in (
        (total, 0.16, "y: ± 2 sd (with noise)"),
        (inner, 0.34, "function: ± 2 sd"),
    ):
        ax.fill_between(place, mean - half, mean + half, color=blue, alpha=alpha, lw=0, label=label)
    ax.plot(place, mean, color=blue, lw=1.8, label="mean")
    if y is not None:
        if isinstance(y, tuple):
            if len(y) != 2:
                raise ValueError(f"[{name}] expected y or a pair (x, y), got {len(y)} arrays")
            at = line(name, "x of y", y[0])
            seen = checks.numeric(name, "y", y[1])
        else:
            at, seen = line(name, "x", x), checks.numeric(name, "y", y)
        if seen.ndim not in (1, 2) or seen.size == 0:
            raise ShapeError(f"[{name}] expected y of shape (N,) or (N, K), got {seen.shape}")
        checks.finite(name, "y", seen)
        seen = seen.reshape(len(seen), -1)
        if len(seen) != len(at) or seen.shape[1] <= column:
            raise ShapeError(f"[{name}] expected y with {len(at)} rows, got shape {seen.shape}")
        ax.plot(at, seen[:, column], ".", color=INK, ms=5, alpha=0.55, mew=0, label="data")
    ax.set_xlabel("x")
    ax.set_ylabel("y")
    ax.margins(x=0)
    finish(ax, legend=True)
    return ax


def decision_boundary(
    draws: Any,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    ax: Axes | None = None,
    resolution: int = 150,
    margin: float = 0.5,
) -> Axes:
    """Plot the predictive class probabilities over two inputs.

    Parameters
    ----------
    draws : Draws or Fit
        Anything with ``predict(x)`` of a classification.
    x : (N, 2) array_like
        Points to show; the picture reaches `margin` beyond them.
    y : (N,) array_like of int
        Their labels.
    ax : matplotlib Axes, optional
    resolution : int
        Grid points per direction.
    margin : float
        In units of x.

    Returns
    -------
    matplotlib.axes.Axes
        Two classes: the probability of class 1 with contours at 0.1, 0.5 and 0.9. More: the colour
        of the most probable class, paler for larger entropy.

    Examples
    --------
    >>> x, y = rb.datasets.two_moons(60, seed=0)
    >>> target = rb.Posterior(
    ...     rb.mlp(2, (5,), 2), x, y, prior=rb.Normal(1.0), likelihood=rb.Categorical()
    ... )
    >>> hmc = rb.HMC(target, step_size=0.05, num_leapfrog_steps=10)
    >>> draws = hmc.sample(20, warmup=0, progress=False)
    >>> axes = rb.plots.decision_boundary(draws, x, y, resolution=20)
    >>> axes.figure.savefig("boundary.png")
    """
    name = "plots.decision_boundary"
    has(name, "draws", draws, "predict", "Draws")
    ax = new_axes(name, ax)
    known = getattr(getattr(draws, "predictive", None), "columns", None)
    points = checks.numeric(name, "x", checks.matched(name, x, known))
    if points.ndim != 2 or points.shape[1] != 2 or len(points) == 0:
        raise ShapeError(f"[{name}] expected x of shape (N, 2), got {points.shape}")
    checks.finite(name, "x", points)
    labels = metrics.class_labels(name, "y", y)
    if len(labels) != len(points):
        raise ShapeError(f"[{name}] expected {len(points)} labels in y, got {len(labels)}")
    resolution = checks.integer(name, "resolution", resolution, minimum=2, maximum=4000)
    margin = checks.real(name, "margin", margin)
    if margin < 0:
        raise ValueError(f"[{name}] expected margin >= 0, got {margin!r}")
    low, high = points.min(axis=0) - margin, points.max(axis=0) + margin
    first, second = (np.linspace(low[i], high[i], resolution) for i in range(2))
    grid = np.stack(np.meshgrid(first, second), axis=-1).reshape(-1, 2)
    probs = metrics.class_probabilities(name, "probs", as_host(draws.predict(grid).probs))
    classes = probs.shape[1]
    labels = metrics.class_labels(name, "y", y, classes=classes)
    box = (low[0], high[0], low[1], high[1])
    if classes == 2:
        from matplotlib.colors import LinearSegmentedColormap

        colors = LinearSegmentedColormap.from_list("ribbit", [COLORS[0], "#f7f7f7", COLORS[1]])
        p = probs[:, 1].reshape(resolution, resolution)
        image = ax.imshow(
            p,
            extent=box,
            origin="lower",
            cmap=colors,
            vmin=0,
            vmax=1,
            aspect="auto",
            interpolation="bilinear",
            alpha=0.6,
        )
        ax.contour(
            first,
            second,
            p,
            levels=[0.1, 0.5, 0.9],
            colors=INK,
            linewidths=[0.7, 1.6, 0.7],
            linestyles=["dashed", "solid", "dashed"],
        )
        if ax.figure is not None:
            ax.figure.colorbar(image, ax=ax, label="probability of class 1", pad=0.02)
    else:
        palette = palette_of(classes)
        entropy = -np.sum(np.where(probs > 0, probs * np.log(np.maximum(probs, 1e-300)), 0), axis=1)
        strength = 0.7 * (1.0 - entropy / np.log(classes))[:, None]
        shade = 1.0 - strength * (1.0 - palette[probs.argmax(axis=1)])
        ax.imshow(
            shade.reshape(resolution, resolution, 3), extent=box, origin="lower", aspect="auto"
        )
    palette = palette_of(classes)
    for label in range(classes):
        mine = labels == label
        ax.scatter(
            points[mine, 0],
            points[mine, 1],
            s=16,
            color=palette[label],
            edgecolors="white",
            linewidths=0.6,
            label=f"class {label}",
            zorder=3,
        )
    ax.set_xlabel("x 0")
    ax.set_ylabel("x 1")
    finish(ax, legend=True, grid=False)
    return ax


def reliability(y: npt.ArrayLike, probs: Any, *, ax: Axes | None = None, bins: int = 20) -> Axes:
    """Plot accuracy against confidence of the top label, in the bins of :func:`ribbit.metrics.ece`.

    Parameters
    ----------
    y : (N,) array_like of int
    probs : (N, K) array_like, or a Prediction
        (N,) or (N, 1): probability of class 1 of two.
    ax : matplotlib Axes, optional
    bins : int

    Returns
    -------
    matplotlib.axes.Axes
        The area of a dot grows with the rows in its bin. The red lines are the gaps; their weighted
        mean is the ECE.

    Examples
    --------
    >>> x, y = rb.datasets.two_moons(60, seed=0)
    >>> target = rb.Posterior(
    ...     rb.mlp(2, (5,), 2), x, y, prior=rb.Normal(1.0), likelihood=rb.Categorical()
    ... )
    >>> hmc = rb.HMC(target, step_size=0.05, num_leapfrog_steps=10)
    >>> draws = hmc.sample(20, warmup=0, progress=False)
    >>> axes = rb.plots.reliability(y, draws.predict(x).probs)
    >>> axes.figure.savefig("reliability.png")
    """
    name = "plots.reliability"
    ax = new_axes(name, ax)
    labels, p = metrics.labelled(name, y, probs)
    error = metrics.ece(labels, p, bins=bins)
    confidence, correct, rows = metrics.calibration_bins(labels, p, bins)
    used = rows > 0
    mean_confidence, accuracy = confidence[used] / rows[used], correct[used] / rows[used]
    ax.plot([0, 1], [0, 1], color=GREY, ls="--", lw=1.2, label="calibrated")
    ax.vlines(
        mean_confidence, accuracy, mean_confidence, color=COLORS[3], lw=1.6, alpha=0.6, label="gap"
    )
    ax.plot(mean_confidence, accuracy, color=COLORS[0], lw=1.2, alpha=0.7)
    ax.scatter(
        mean_confidence,
        accuracy,
        s=12 + 160 * rows[used] / rows.max(),
        color=COLORS[0],
        edgecolors="white",
        linewidths=0.8,
        zorder=3,
        label="bin (area: rows)",
    )
    ax.set_xlim(min(1.0 / p.shape[1], mean_confidence.min()) - 0.02, 1.02)
    ax.set_ylim(-0.02, 1.02)
    ax.set_xlabel("confidence")
    ax.set_ylabel("accuracy")
    ax.set_title(f"ECE {error:.3f}, accuracy {metrics.accuracy(labels, p):.3f}", fontsize="medium")
    finish(ax, legend=True)
    return ax


def pit_histogram(y: npt.ArrayLike, p: Any, *, ax: Axes | None = None, bins: int = 10) -> Axes:
    """Plot how the observations fall into the quantiles of their predictive distributions.

    The PIT of a row is the predictive probability of at most the observed y (Dawid 1984). Flat:
    calibrated. A valley: intervals too narrow; a hill: too wide; a slope: biased.

    Parameters
    ----------
    y : (N,) or (N, K) array_like
        Observations; all outputs are counted together.
    p : Prediction, or (S, N) or (S, N, K) array_like
        Prediction of a regression or counts, or samples of y with noise.
    ax : matplotlib Axes, optional
    bins : int

    Returns
    -------
    matplotlib.axes.Axes
        Rows in each bin divided by the expected rows. Counts and samples have a cdf with steps; a
        row is spread over the height of its step (Czado, Gneiting and Held 2009). The grey band
        contains 95 % of the bins of a calibrated prediction with independent rows.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> hmc = rb.HMC(target, step_size=0.05, num_leapfrog_steps=10)
    >>> draws = hmc.sample(20, warmup=0, seed=1, progress=False)
    >>> rb.plots.pit_histogram(2 * x, draws.predict(x)).get_xlabel()
    'predictive probability of at most y (PIT)'
    """
    name = "plots.pit_histogram"
    ax = new_axes(name, ax)
    count = checks.integer(name, "bins", bins, minimum=2, maximum=1000)
    upper, lower = (a.reshape(-1) for a in _pit(name, y, p))
    edges = np.linspace(0.0, 1.0, count + 1)
    # share of a row's step [lower, upper] below each edge
    height = np.where(upper > lower, upper - lower, 1.0)
    share = np.clip((edges[:, None] - lower) / height, 0.0, 1.0)
    share = np.where(upper > lower, share, edges[:, None] >= np.minimum(upper, 1.0 - 1e-16))
    share[0] = 0.0
    rows = np.diff(share.sum(axis=1))
    expected = len(upper) / count
    half = 1.96 * np.sqrt((1.0 - 1.0 / count) / expected)
    ax.axhspan(max(0.0, 1.0 - half), 1.0 + half, color=GREY, alpha=0.3, lw=0, label="95 % of bins")
    ax.axhline(1.0, color=GREY, ls="--", lw=1.2, label="calibrated")
    ax.stairs(rows / expected, edges, fill=True, color=COLORS[0], alpha=0.6, label="observed")
    ax.set_xlim(0.0, 1.0)
    ax.set_xlabel("predictive probability of at most y (PIT)")
    ax.set_ylabel("rows over rows expected")
    finish(ax, legend=True)
    return ax


def _pit(
    name: str, y: npt.ArrayLike, p: Any
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """P(Y <= y) and P(Y < y), which are one but for counts and samples."""
    metrics.in_order(name, y, "p")
    if hasattr(type(p), "cdf"):
        upper = as_host(p.cdf(y))
        return upper, as_host(p.cdf(np.asarray(y) - 1.0)) if p.kind == "count" else upper
    seen, drawn = checks.numeric(name, "y", y), checks.numeric(name, "p", p)
    if drawn.ndim < 2 or drawn.size == 0 or drawn.shape[1:] != seen.shape:
        raise ShapeError(
            f"[{name}] expected p as a Prediction, or samples (S, N) for y (N,), got p "
            f"{drawn.shape} and y {seen.shape}"
        )
    checks.finite(name, "y", seen)
    checks.finite(name, "p", drawn)
    # the observation is one of S + 1 that are alike: its rank among them, spread over its step
    size = len(drawn) + 1.0
    return ((drawn <= seen).sum(axis=0) + 1.0) / size, (drawn < seen).sum(axis=0) / size
