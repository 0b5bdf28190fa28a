"""Outcomes: predicates on numbers per split, with margins that are written before the run.

Every number is a difference that each split into training and test rows gives once. Its mean has a
95 % interval by Student's t over the splits. The splits share rows, so the intervals are somewhat
too short; the margins are wide beside them or the outcome says that it cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

YES, NO, UNKNOWN = "reproduced", "not reproduced", "not testable at this size"
# 97.5 % quantiles of Student's t by degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class Outcome:
    """One of YES, NO and UNKNOWN, and the numbers that it rests on."""

    status: str
    because: str


@dataclass(frozen=True)
class Claim:
    """A claim of the paper in our words, and what decides it.

    Attributes
    ----------
    text
        The claim.
    criterion
        What `judge` asks, in words.
    judge
        From a figure's numbers to the outcome.
    of_paper
        False: what is expected of HMC, which we do not ascribe to the paper.
    """

    text: str
    criterion: str
    judge: Callable[[dict[str, Any]], Outcome]
    of_paper: bool = True


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half width of its 95 % interval; infinite for a single value."""
    found = np.asarray(values, dtype=float)
    if not np.isfinite(found).all():
        raise ValueError(f"[interval] expected finite values, got {found.tolist()}")
    if len(found) < 2:
        return float(found.mean()), math.inf
    t = _T[len(found) - 2] if len(found) - 2 < len(_T) else 2.0
    return float(found.mean()), t * float(found.std(ddof=1)) / math.sqrt(len(found))


def above(name: str, values: Sequence[float], bar: float) -> Outcome:
    """YES where the whole interval lies above the bar, NO where it lies below, else UNKNOWN."""
    mean, half = interval(values)
    text = f"{name}: {mean:+.4f} +- {half:.4f}, bar {bar:+g}"
    if mean - half > bar:
        return Outcome(YES, text)
    if mean + half < bar:
        return Outcome(NO, text)
    return Outcome(UNKNOWN, f"{text}; the interval holds the bar")


def within(name: str, values: Sequence[float], margin: float) -> Outcome:
    """YES where the interval lies in +-margin, NO where it lies outside, else UNKNOWN."""
    mean, half = interval(values)
    text = f"{name}: {mean:+.4f} +- {half:.4f}, margin {margin:g}"
    if abs(mean) + half < margin:
        return Outcome(YES, text)
    if abs(mean) - half > margin:
        return Outcome(NO, text)
    return Outcome(UNKNOWN, f"{text}; the interval holds the margin")


def every(parts: Sequence[Outcome]) -> Outcome:
    """NO if one part is NO, else UNKNOWN if one is, else YES."""
    states = [part.status for part in parts]
    status = NO if NO in states else UNKNOWN if UNKNOWN in states else YES
    return Outcome(status, "; ".join(f"{part.because} ({part.status})" for part in parts))
