"""Computes numbers, outcome and table of a figure from its runs, and writes them as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from studies.izmailov import figures
from studies.izmailov.study import Study, Task, write


def make(study: Study, name: str) -> dict[str, Any]:
    """Run missing tasks and return the figure's numbers, outcomes and table."""
    figure = figures.module(name)
    tasks = figure.tasks(study)
    found = {task.name: study.found(task) for task in tasks}
    before = {task.key for one in earlier(study, name) for task in one}
    own = [task for task in tasks if task.key not in before]
    numbers = figure.numbers(study, found)
    head, rows = figure.table(numbers)
    return {
        "name": name,
        "title": figure.TITLE,
        "claims": judged(figure, numbers),
        "by_hand": getattr(figure, "BY_HAND", ""),
        "head": head,
        "rows": rows,
        "numbers": numbers,
        "size": study.size.name,
        "splits": list(figure.splits(study) if hasattr(figure, "splits") else study.size.splits),
        "runs": len(found),
        "seconds": sum(float(found[task.name]["seconds"]) for task in own),
    }


def judged(figure: Any, numbers: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the claims of a figure with their outcomes."""
    out = []
    for claim in figure.CLAIMS:
        outcome = claim.judge(numbers)
        words = {"claim": claim.text, "of_paper": claim.of_paper, "criterion": claim.criterion}
        out.append({**words, "outcome": outcome.status, "because": outcome.because})
    return out


def earlier(study: Study, name: str) -> Iterator[list[Task]]:
    """Yield the tasks of earlier figures, which count the time of shared runs."""
    for other in figures.NAMES[: figures.NAMES.index(name)]:
        yield figures.module(other).tasks(study)


def write_result(folder: Path, name: str, result: dict[str, Any]) -> None:
    """Write a figure's JSON file, by rename."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / f"{name}.json", (json.dumps(result, indent=1) + "\n").encode())


def read_result(folder: Path, name: str) -> dict[str, Any] | None:
    """Read the JSON file of a figure; None if the file does not exist."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    return found
