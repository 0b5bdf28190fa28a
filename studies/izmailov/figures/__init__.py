"""The figures by name; each is one module.

A module has NAME, TITLE, CLAIM (the paper's, in our words), CRITERION (of the verdict, in words; in
code: `judge`), and: ``tasks(study)``, the runs it needs; ``numbers(study, found)`` from their
arrays by name; ``judge(numbers)``; ``table(numbers)``; ``draw(numbers)``, a matplotlib figure.
"""

from __future__ import annotations

import importlib
from typing import Any

NAMES = ("rhat",)


def module(name: str) -> Any:
    """Import the figure of a name."""
    return importlib.import_module(f"studies.izmailov.figures.{name}")
