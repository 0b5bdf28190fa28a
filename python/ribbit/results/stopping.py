"""Why a run has ended, where it was to go on until it has converged."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ribbit.results.verdicts import Findings, effective, judge

__all__ = ["Reached", "reached"]


class Reached(NamedTuple):
    """What draws have of what a rule asks for.

    Attributes
    ----------
    met : bool
    rhat : float
        The largest of the quantities that a summary judges; NaN where none is known.
    ess : float
        The smallest effective sample size of them, of all chains.
    of : str
        What has that R-hat: "predictions", "log density", ...
    """

    met: bool
    rhat: float
    ess: float
    of: str


def reached(found: Findings, rhat: float, ess: float, *, hasty: bool = False) -> Reached:
    """Judge findings as a summary does, and by the limits of a rule.

    hasty: without the effective sample size where R-hat says no.
    """
    of, worst = found.worst
    if hasty and not worst <= rhat:
        return Reached(False, worst, math.nan, of)
    least = min((_least_ess(found.quantities[name]) for name in found.judged), default=math.nan)
    converged = judge(found)[0] is True
    return Reached(converged and worst <= rhat and least >= ess, worst, least, of)


def _least_ess(values: Any) -> float:
    """Return the smallest bulk ESS of (C, D, M), that of the summary; NaN where none is known."""
    found = effective(values)
    return float(found.min()) if found.size else math.nan
