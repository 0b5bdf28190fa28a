"""The figures by name; each is one module.

A module has NAME, TITLE and CLAIMS, each claim with its criterion in words and in code. It has
``tasks(study)``, the runs that it needs, and ``numbers(study, found)``, which computes numbers from
the arrays of the runs. ``table(numbers)`` returns a table and ``draw(numbers)`` a matplotlib
figure. BY_HAND lists settings that are not defaults of Ribbit, separated by "; ".
"""

from __future__ import annotations

import importlib
from typing import Any

from studies.izmailov.study import Study

NAMES = (
    "rhat",
    "step_size",
    "trajectory",
    "chains",
    "methods",
    "closeness",
    "temperature",
    "priors",
    "tuned",
    "covariate_shift",
    "regression",
)


def module(name: str) -> Any:
    """Import the figure of a name."""
    return importlib.import_module(f"studies.izmailov.figures.{name}")


def fits(name: str, study: Study) -> bool:
    """Return whether the study's data suit a figure."""
    return study.images or not getattr(module(name), "NEEDS_IMAGES", False)
