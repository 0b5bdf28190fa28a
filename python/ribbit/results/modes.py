"""Chains that have landed in a far worse mode than the others, and chains that share a start.

Shapes: C chains, D draws per chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit.results.convergence import median
from ribbit.results.streaming import as_host

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["fallen", "far_below", "superchains_of"]

Array: TypeAlias = "npt.NDArray[np.float64]"

_FEWEST_CHAINS = 4  # of which one can be told from the others
_MANY_CHAINS = 8  # of which several may be far below
_FAR = 10.0  # spreads


def fallen(lp: Any | None, settings: Mapping[str, Any]) -> tuple[str, str]:
    """Return which chains are far below the others, and a sentence that says what to do.

    Parameters
    ----------
    lp : (C, D) array or None
        Log density of the draws.
    settings : dict
        Of the draws; "chains" are their ids.

    Returns
    -------
    names, sentence : str
        Empty where there is none, or no log density.
    """
    if lp is None or 0 in lp.shape:
        return "", ""
    host = np.asarray(as_host(lp), dtype=np.float64)
    chains = far_below(host)
    if chains.size == 0:
        return "", ""
    ids = settings.get("chains", range(host.shape[0]))
    means = host.mean(axis=1)
    rest = median(np.delete(means, chains))
    names = ", ".join(f"{ids[c]} ({means[c]:,.0f})" for c in chains)
    which = "Chain" if chains.size == 1 else "Chains"
    sentence = (
        f" {which} {names} landed far below the others, whose log density has a median of "
        f"{rest:,.0f}: in a worse mode, of which a longer run may not lead out. Every mean and "
        "prediction has these draws in it. Sample again from trained networks (init='ensemble') or "
        "with another seed, or take the draws of the other chains and say so."
    )
    return ", ".join(str(ids[c]) for c in chains), sentence


def far_below(lp: Array) -> npt.NDArray[np.intp]:
    """Return chains of a log density (C, D) that are far below the others.

    A chain is, when its mean is below the median of the others' means by more than ten times (of
    four chains twenty times) the larger one of their spread and of the sd of the log density within
    a chain (the median chain's). The spread is half the range of the others; of eight chains or
    more that of their upper three quarters, so that several may be far below. Modes of one network
    differ by many times what a chain does within one, so that the spread decides; where chains
    agree it is 0, and what a chain does by itself decides. Of chains whose means come from one
    normal law under 1 % of the runs have one that is named.
    """
    chains, size = lp.shape
    if chains < _FEWEST_CHAINS or size < 2:
        return np.zeros(0, np.intp)
    with np.errstate(invalid="ignore", over="ignore"):
        means, within = lp.mean(axis=1), lp.std(axis=1, ddof=1)
    if not (np.isfinite(means).all() and np.isfinite(within).all()):
        return np.zeros(0, np.intp)
    own = median(within)
    found = []
    for c in range(chains):
        others = np.sort(np.delete(means, c))
        upper = others[len(others) // 4 if chains >= _MANY_CHAINS else 0 :]
        reach = (_FAR if chains > _FEWEST_CHAINS else 2.0 * _FAR) * max(0.5 * np.ptp(upper), own)
        if means[c] < median(others) - reach:
            found.append(c)
    return np.array(found, np.intp)


def superchains_of(settings: Mapping[str, Any], chains: int) -> npt.NDArray[np.intp] | None:
    """Return which chains have shared a start, 0 .. K - 1 (C,); None where each had its own."""
    start = settings.get("start")
    found = start.get("superchains") if isinstance(start, dict) else None
    if not isinstance(found, list) or len(found) != chains:
        return None
    if not all(isinstance(number, int) for number in found):
        return None
    return np.unique(np.asarray(found), return_inverse=True)[1].astype(np.intp)
