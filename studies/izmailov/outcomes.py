"""Outcomes: predicates on numbers per split, with margins that are written before the run.

Each split into training and test rows gives one difference. The mean over splits has a 95 %
interval (Student's t). The splits share rows, so the intervals are somewhat too short. If the
limit lies inside the interval, the outcome is UNKNOWN.
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
    """YES, NO or UNKNOWN, and the numbers that decide it."""

    status: str
    because: str


@dataclass(frozen=True)
class Claim:
    """A claim of the paper in our words, and its criterion.

    Attributes
    ----------
    text
        The claim.
    criterion
        The condition of `judge` in words.
    judge
        Returns the outcome for the numbers of a figure.
    of_paper
        False: HMC should do this; we do not ascribe the claim to the paper.
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
    """YES if the whole interval lies above the bar, NO if it lies below, else UNKNOWN."""
    mean, half = interval(values)
    text = f"{name}: {mean:+.4f} +- {half:.4f}, must be above {bar:g}"
    if mean - half > bar:
        return Outcome(YES, text)
    if mean + half < bar:
        return Outcome(NO, text)
    return Outcome(UNKNOWN, f"{text}, a limit that lies inside the interval")


def within(name: str, values: Sequence[float], margin: float) -> Outcome:
    """YES if the interval lies within +-margin, NO if it lies outside, else UNKNOWN."""
    mean, half = interval(values)
    text = f"{name}: {mean:+.4f} +- {half:.4f}, must be within +-{margin:g}"
    if abs(mean) + half < margin:
        return Outcome(YES, text)
    if abs(mean) - half > margin:
        return Outcome(NO, text)
    return Outcome(UNKNOWN, f"{text}, a limit that lies inside the interval")


def every(parts: Sequence[Outcome]) -> Outcome:
    """NO if one part is NO, else UNKNOWN if one is, else YES."""
    states = [part.status for part in parts]
    status = NO if NO in states else UNKNOWN if UNKNOWN in states else YES
    return Outcome(status, "; ".join(f"{part.because} ({part.status})" for part in parts))
