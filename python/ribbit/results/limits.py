"""What R-hat may be before a verdict calls chains not converged."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ribbit.results.normal_scores import lower_quantile

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["FEWEST", "RHAT", "nested_limit", "rhat_limit"]

RHAT = 1.05  # of runs that are not short
FEWEST = 4  # draws per chain that have an R-hat


def rhat_limit(chains: int, draws: int, count: int = 1) -> float:
    """Return the R-hat that a verdict lets pass for the largest of `count` quantities.

    1.05; in short runs what independent draws of one law hardly ever exceed, so that noise is not
    taken for a finding: R-hat^2 is 1 + (F - 1) / n for halves of n draws and an F of the halves'
    means, here its 99.9 % quantile (Paulson's approximation), or that of the largest of `count`
    independent ones.
    """
    if draws < FEWEST:
        return math.nan
    half = draws // 2
    f = _largest_f(2 * chains - 1, 2 * chains * (half - 1), count)
    return max(RHAT, math.sqrt(1.0 + (f - 1.0) / half))


def nested_limit(superchains: npt.NDArray[np.intp], draws: int, count: int = 1) -> float:
    """Return the nested R-hat that a verdict lets pass; as `rhat_limit`, of groups of chains.

    Its square is 1 + F / n for groups of n draws.
    """
    groups = int(superchains.max()) + 1
    each = draws * len(superchains) // groups
    if each < 2:
        return math.nan
    return max(RHAT, math.sqrt(1.0 + _largest_f(groups - 1, groups * (each - 1), count) / each))


def _largest_f(first: int, second: int, count: int) -> float:
    """Return the 99.9 % quantile of the largest of `count` F of so many degrees of freedom."""
    z = -float(lower_quantile(np.array([1e-3 / count]))[0])
    a, b = 2.0 / (9.0 * first), 2.0 / (9.0 * second)
    if (1.0 - b) ** 2 <= z * z * b:  # a few draws of one chain: no quantile, as if there were many
        b = 0.0
    root = math.sqrt((1.0 - a) ** 2 * b + (1.0 - b) ** 2 * a - z * z * a * b)
    quantile: float = (((1.0 - a) * (1.0 - b) + z * root) / ((1.0 - b) ** 2 - z * z * b)) ** 3
    return quantile
