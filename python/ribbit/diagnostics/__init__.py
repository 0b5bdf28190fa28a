"""Convergence of chains and distances between predictive distributions.

R-hat, effective sample size and Monte Carlo standard error follow Vehtari et al. (2021),
"Rank-normalization, folding, and localization", Bayesian Analysis 16. They agree with ArviZ for
each method, except ``mcse(method="sd")``. They take any number of quantities at once, in float64.
Draws in GPU memory are copied to the host.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.keywords import explain
from ribbit.errors import ShapeError
from ribbit.metrics import class_probabilities
from ribbit.results.convergence import as_host as as_host
from ribbit.results.convergence import (
    by_block,
    by_row,
    ess_block,
    mcse_block,
    positions_of,
    rhat_block,
)
from ribbit.results.outcome import RHAT as RHAT
from ribbit.results.outcome import divergences as divergences

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = [
    "agreement",
    "ess",
    "mcse",
    "nested_rhat",
    "predictive_ess",
    "predictive_rhat",
    "rhat",
    "total_variation",
    "weight_rhat",
]

Array: TypeAlias = "npt.NDArray[np.float64]"

_RHAT_METHODS = ("rank", "split", "folded", "z_scale", "identity")
_ESS_METHODS = ("bulk", "tail", "mean", "sd", "median", "identity")
_MCSE_METHODS = ("mean", "sd")


def rhat(a: npt.ArrayLike, *, method: str = "rank") -> Array:
    """Return the potential scale reduction factor R-hat.

    Parameters
    ----------
    a : (C, D, ...) array_like
        Draws: chains, draws, then any shape.
    method : {"rank", "split", "folded", "z_scale", "identity"}
        "rank" (the default): the larger of the rank-normalised split R-hat, before and after
        folding about the median (Vehtari et al. 2021, section 4). "z_scale" and "folded": one of
        the two. "split": chains split in halves, without ranks (Gelman et al. 2013, eq. 11.4).
        "identity": neither split nor ranks.

    Returns
    -------
    (...) ndarray of float64
        1 at convergence. NaN with fewer than two chains or four draws, if a draw is NaN or
        infinite, or if all draws are equal. Splitting an odd number of draws drops the middle one.

    Raises
    ------
    TypeError, ValueError
        If `a` is not a real array with at least two axes, or `method` is unknown.
    ImportError, RuntimeError
        If `a` is in GPU memory but not a CuPy array, and CuPy or a part it needs is missing.

    Examples
    --------
    >>> a = rb.random.normal((4, 500), seed=0)  # four chains of independent draws
    >>> bool(rb.diagnostics.rhat(a) < 1.01)
    True
    >>> a[0] += 2  # one of them elsewhere
    >>> bool(rb.diagnostics.rhat(a) > 1.2)
    True
    """
    checks.choice("rhat", "method", method, _RHAT_METHODS)
    function = functools.partial(rhat_block, method=method)
    return by_block("rhat", a, function, min_chains=2)


def nested_rhat(a: npt.ArrayLike, superchains: npt.ArrayLike, *, method: str = "rank") -> Array:
    """Return nested R-hat, for groups of chains that share a start.

    Chains with a common start agree before they have forgotten it, so plain R-hat is near 1 too
    early. Nested R-hat compares the variance B of the means of K groups (superchains) with the
    variance W within groups, between and within their chains: sqrt(1 + B / W). Chains may be short,
    down to a single draw.

    Parameters
    ----------
    a : (C, D, ...) array_like
        Draws: chains, draws, then any shape.
    superchains : (C,) array_like of int
        Number of each chain's group; chains with equal numbers share a start. Groups have equal
        weights. A group of one chain has no variance between its chains.
    method : {"rank", "identity"}
        "rank" (the default): the larger nested R-hat of the ranks' normal scores, before and after
        folding about the median, as in :func:`rhat` (chains are not split). "identity": of the
        draws themselves, as in the paper.

    Returns
    -------
    (...) ndarray of float64
        1 at convergence, up to noise: B is at least the variance of a draw divided by the effective
        draws of a group. NaN if a draw is NaN or infinite, or if all draws are equal.

    Raises
    ------
    TypeError, ValueError
        If `a` is not a real array with at least two axes, `superchains` are not C integers, there
        are fewer than two groups, or all groups have one chain with a single draw.

    References
    ----------
    Margossian, Hoffman, Sountsov, Riou-Durand, Vehtari and Gelman (2024), "Nested R-hat: assessing
    the convergence of Markov chain Monte Carlo when running many short chains", Bayesian Analysis.

    Examples
    --------
    >>> import numpy as np
    >>> import ribbit as rb
    >>> a = np.random.default_rng(1).normal(size=(8, 50))
    >>> a[4:] += 3.0  # the chains of the second start are elsewhere
    >>> bool(rb.diagnostics.nested_rhat(a, [0, 0, 0, 0, 1, 1, 1, 1]) > 1.5)
    True
    """
    name = "nested_rhat"
    checks.choice(name, "method", method, ("rank", "identity"))
    draws = as_host(a, name) if not hasattr(a, "positions") else a
    shape = tuple(getattr(draws, "shape", ()))
    if not hasattr(a, "positions") and len(shape) < 2:
        raise ShapeError(f"[{name}] expected a of shape (chains, draws, ...), got {shape}")
    chains = shape[0] if shape else 0
    given = checks.numeric(name, "superchains", superchains)
    if given.dtype.kind not in "iu" or given.shape != (chains,):
        raise ShapeError(
            f"[{name}] expected superchains as {chains} whole numbers, one for each chain of a, "
            f"got {checks.summary(given)}"
        )
    labels, groups = np.unique(given, return_inverse=True)
    if labels.size < 2:
        raise ValueError(
            f"[{name}] expected at least two superchains, got {labels.size}: chains of one start "
            "cannot show whether they have forgotten it"
        )
    if len(shape) > 1 and shape[1] == 1 and labels.size == chains:
        raise ValueError(
            f"[{name}] expected superchains of several chains, or chains of several draws, got "
            f"{chains} single draws"
        )
    function = functools.partial(rhat_block, superchains=groups, method=method)
    return by_block(name, draws, function, min_chains=2, min_draws=1)


def ess(a: npt.ArrayLike, *, method: str = "bulk", tail_probability: float = 0.05) -> Array:
    """Return the effective sample size (ESS).

    Parameters
    ----------
    a : (C, D, ...) array_like
        Draws: chains, draws, then any shape.
    method : {"bulk", "tail", "mean", "sd", "median", "identity"}
        "bulk" (the default): for rank-normalised split chains. "tail": the smaller ESS of the
        indicators of two quantiles. "median": for the median's indicator. "mean", "sd": for the
        split chains, and for their squared deviations. "identity": for the chains themselves. All
        use Geyer's initial monotone sequence (Vehtari et al. 2021, section 3.2).
    tail_probability : float
        For "tail": the quantiles are this and one minus this.

    Returns
    -------
    (...) ndarray of float64
        In draws; above C * D for antithetic chains (at most C * D * log10(C * D)). NaN with fewer
        than four draws or if a draw is NaN or infinite; the number of draws if all are equal.

    Raises
    ------
    TypeError, ValueError
        If `a` is not a real array with at least two axes, `method` is unknown, or
        `tail_probability` is not in (0, 0.5).

    Examples
    --------
    >>> a = rb.random.normal((4, 500), seed=0)
    >>> bool(rb.diagnostics.ess(a) > 1500)
    True
    >>> bool(rb.diagnostics.ess(np.repeat(a, 5, axis=1)) < 2500)  # of 10,000, each five times
    True
    """
    checks.choice("ess", "method", method, _ESS_METHODS)
    if not 0.0 < checks.real("ess", "tail_probability", tail_probability) < 0.5:
        raise ValueError(f"[ess] expected tail_probability in (0, 0.5), got {tail_probability!r}")
    function = functools.partial(ess_block, method=method, tail_probability=tail_probability)
    return by_block("ess", a, function, min_chains=1)


def mcse(a: npt.ArrayLike, *, method: str = "mean") -> Array:
    """Return the Monte Carlo standard error of the posterior mean or standard deviation.

    Parameters
    ----------
    a : (C, D, ...) array_like
        Draws: chains, draws, then any shape.
    method : {"mean", "sd"}
        "mean" (the default): sd / sqrt(ESS of the mean). "sd": by the delta method from the
        variance of (x - mean)^2 and the ESS of these squares, ``ess(a, method="sd")``. (arviz-stats
        uses the ESS of the mean here, which is much larger for antithetic chains.)

    Returns
    -------
    (...) ndarray of float64
        In units of `a`. NaN with fewer than four draws or if a draw is NaN or infinite.

    Raises
    ------
    TypeError, ValueError
        If `a` is not a real array with at least two axes, or `method` is unknown.

    Examples
    --------
    >>> a = rb.random.normal((4, 500), seed=0)
    >>> bool(abs(rb.diagnostics.mcse(a) * np.sqrt(2000) - 1) < 0.1)
    True
    """
    checks.choice("mcse", "method", method, _MCSE_METHODS)
    return by_block("mcse", a, functools.partial(mcse_block, method=method), min_chains=1)


def predictive_rhat(draws: Any, x: npt.ArrayLike, *, method: str = "rank") -> Array:
    """Return R-hat of the predictions at `x`, streamed over rows.

    Parameters
    ----------
    draws : Draws
        Result of a sampler.
    x : (N, ...) array_like
        Inputs.
    method : str
        As in :func:`rhat`.

    Returns
    -------
    (N, K) ndarray of float64
        For the mean function (regression, counts) or the class probabilities; (N,) for a single
        output whose y was (N,). Predictions may converge although weights do not (Izmailov et al.
        2021, section 5.2).

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> draws = rb.HMC(target).sample(50, warmup=50, seed=1, progress=False)
    >>> rb.diagnostics.predictive_rhat(draws, x).shape
    (20, 1)
    """
    checks.choice("predictive_rhat", "method", method, _RHAT_METHODS)
    return by_row("predictive_rhat", draws, x, lambda a: rhat(a, method=method))


def predictive_ess(draws: Any, x: npt.ArrayLike, *, method: str = "bulk") -> Array:
    """Return the effective sample size of the predictions at `x`, streamed over rows.

    Parameters
    ----------
    draws : Draws
        Result of a sampler.
    x : (N, ...) array_like
        Inputs.
    method : str
        As in :func:`ess`.

    Returns
    -------
    (N, K) ndarray of float64
        In draws, for the mean function (regression, counts) or the class probabilities; (N,) for a
        single output whose y was (N,).

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> draws = rb.HMC(target).sample(50, warmup=50, seed=1, progress=False)
    >>> rb.diagnostics.predictive_ess(draws, x).shape
    (20, 1)
    """
    checks.choice("predictive_ess", "method", method, _ESS_METHODS)
    return by_row("predictive_ess", draws, x, lambda a: ess(a, method=method))


def weight_rhat(draws: Any, *, method: str = "split") -> Array:
    """Return R-hat of every parameter: split R-hat without ranks, as ArviZ's ``method="split"``.

    Parameters
    ----------
    draws : Draws or (C, D, P) array_like
        Result of a sampler, or its positions.
    method : str
        As in :func:`rhat`.

    Returns
    -------
    (P,) ndarray of float64

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> draws = rb.HMC(target).sample(50, warmup=50, seed=1, progress=False)
    >>> rb.diagnostics.weight_rhat(draws).shape
    (10,)
    """
    checks.choice("weight_rhat", "method", method, _RHAT_METHODS)
    return rhat(positions_of("weight_rhat", draws), method=method)


def agreement(p: Any, q: Any) -> float:
    """Return the fraction of rows for which two predictive distributions name the same class.

    Parameters
    ----------
    p, q : (N, K) array_like, or Prediction
        Class probabilities; (N,) or (N, 1) is the probability of class 1 of two.

    Returns
    -------
    float
        In [0, 1]; a tie goes to the first class (Izmailov et al. 2021, section 6, "agreement").

    Raises
    ------
    TypeError, ValueError
        If p or q is not an array of probabilities, or their shapes differ.

    Examples
    --------
    >>> p = np.array([[0.9, 0.1], [0.4, 0.6]])
    >>> q = np.array([[0.7, 0.3], [0.8, 0.2]])
    >>> rb.diagnostics.agreement(p, q)
    0.5
    """
    first, second = _probability_pair("agreement", p, q)
    return float(np.mean(first.argmax(axis=1) == second.argmax(axis=1)))


def total_variation(p: Any, q: Any) -> float:
    """Return the total variation distance of two predictive distributions, averaged over rows.

    Parameters
    ----------
    p, q : (N, K) array_like, or Prediction
        Class probabilities; (N,) or (N, 1) is the probability of class 1 of two.

    Returns
    -------
    float
        Mean over rows of ``0.5 * sum_k |p - q|``, in [0, 1] (Izmailov et al. 2021, section 6).

    Raises
    ------
    TypeError, ValueError
        If p or q is not an array of probabilities, or their shapes differ.

    Examples
    --------
    >>> p = np.array([[0.9, 0.1], [0.4, 0.6]])
    >>> q = np.array([[0.7, 0.3], [0.8, 0.2]])
    >>> round(rb.diagnostics.total_variation(p, q), 6)
    0.3
    """
    first, second = _probability_pair("total_variation", p, q)
    return float(np.mean(0.5 * np.abs(first - second).sum(axis=1)))


def _probability_pair(name: str, p: Any, q: Any) -> tuple[Array, Array]:
    first, second = class_probabilities(name, "p", p), class_probabilities(name, "q", q)
    if first.shape != second.shape:
        raise ShapeError(
            f"[{name}] expected p and q of one shape, got {first.shape} and {second.shape}"
        )
    return first, second


explain(globals())
