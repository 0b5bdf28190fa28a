"""The figures by name; each is one module.

A module has NAME, TITLE, CLAIMS (of the paper, each with its criterion in words and in code), and:
``tasks(study)``, the runs it needs; ``numbers(study, found)`` from their arrays by name;
``table(numbers)``; ``draw(numbers)``, a matplotlib figure. BY_HAND says what is no default of
Ribbit's.
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
    """Whether a figure can be made of the study's data."""
    return study.images or not getattr(module(name), "NEEDS_IMAGES", False)
