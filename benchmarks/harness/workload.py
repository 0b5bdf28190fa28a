"""What every workload has: a goal, a reference that is computed once, an error to raise."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


class WrongAnswerError(AssertionError):
    """An entry did not compute what the reference computes."""


@dataclass(frozen=True)
class Goal:
    """Target of a workload: ratio to the best rival, share of FMA peak, seconds per unit.

    `against` names one rival and the ratio to it.
    """

    ratio: float | None = None
    share: float | None = None
    seconds: float | None = None
    against: tuple[str, float] | None = None


class Workload:
    """A workload whose `expected` is computed once, here or in another process."""

    expected: Any = None

    @property
    def reduced(self) -> Any:
        """The same work on a smaller problem, for runs that check answers and time nothing."""
        return self

    @property
    def quick(self) -> Any:
        """The same work on fewer rows, where its reference and its rivals take a minute else."""
        return self

    def compute_expected(self) -> dict[str, Any]:
        """Compute the reference now rather than inside something timed."""
        expected: dict[str, Any] = self.expected or {}
        return expected

    def use_expected(self, expected: dict[str, Any]) -> None:
        """Take the reference from another process instead of computing it again."""
        if expected:
            self.__dict__["expected"] = expected


def save(workload: Any, path: Path) -> None:
    """Write what a workload is, and its reference where it has been computed, for a process."""
    bare = replace(workload)  # its fields: data are made again where they are needed
    bare.use_expected(workload.__dict__.get("expected", {}))
    path.write_bytes(pickle.dumps(bare))


def load(path: Path) -> Any:
    """Read a workload that `save` has written."""
    return pickle.loads(path.read_bytes())


def on_threads(workload: Any, threads: int) -> Any:
    """Return the same workload, with what it has computed, for another number of threads."""
    other = copy.copy(workload)
    object.__setattr__(other, "threads", threads)
    return other


def num_parameters(sizes: tuple[int, ...]) -> int:
    """Weights and biases of an MLP with these layer widths."""
    return sum((a + 1) * b for a, b in pairwise(sizes))


def gradient_flops(sizes: tuple[int, ...], rows: int) -> float:
    """Multiplies and adds of the dense layers in one gradient; activations are not counted.

    Forward and weight gradient cost 2 N in out each, the input gradient the same except in the
    first layer, which needs none.
    """
    products = [a * b for a, b in pairwise(sizes)]
    return 2.0 * rows * (3 * sum(products) - products[0])


def relative_error(value: Any, expected: Any) -> float:
    """2-norm of the difference over the 2-norm of what is expected; float64."""
    wanted = np.asarray(expected, np.float64).ravel()
    missed = np.asarray(value, np.float64).ravel() - wanted
    return float(np.linalg.norm(missed) / np.linalg.norm(wanted))


def check_errors(name: str, errors: Mapping[str, float], limit: float) -> None:
    """Raise when a relative error is above the limit, or NaN."""
    for key, error in errors.items():
        if not error <= limit:
            raise WrongAnswerError(
                f"[{name}] expected {key} within {limit:g} of the float64 reference, "
                f"got {error:.3g}"
            )


def check_scores(name: str, scores: Mapping[str, float], limit: float) -> None:
    """Raise when a statistic is further than `limit` standard errors from its law's mean."""
    for key, score in scores.items():
        if not abs(score) <= limit:
            raise WrongAnswerError(
                f"[{name}] expected {key} within {limit:g} standard errors, got {score:.1f}"
            )


def check_replicates(
    name: str, expected: Mapping[str, Any], answer: Mapping[str, Any], tolerance: float
) -> dict[str, float]:
    """Hold statistics against those of replicated reference runs.

    Returns them in standard deviations of the replicates; raises when one is beyond `tolerance`.
    For a right answer they are t statistics with replicates - 1 degrees of freedom: beyond 25 with
    7 degrees, or beyond 10 with 15, in less than 2 of 1e7.
    """
    scores = {}
    for key, values in expected.items():
        spread = max(float(np.std(values, ddof=1)), 1e-3 * float(np.abs(np.mean(values))), 1e-12)
        scores[key] = (float(answer[key]) - float(np.mean(values))) / spread
        if not abs(scores[key]) <= tolerance:
            raise WrongAnswerError(
                f"[{name}] expected {key} {np.mean(values):.4g} within "
                f"{tolerance:g} x {spread:.2g}, got {float(answer[key]):.4g}"
            )
    return scores
