"""The results of `benchmarks.effective`: JSON lines, one per run, the last of a run counts."""

from __future__ import annotations

import datetime
import hashlib
import importlib.util
import json
import os
import statistics
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from benchmarks.workloads.effective_outcome import holds

Line = dict[str, Any]
RESULTS = machine.ROOT / "benchmarks" / "results" / "effective.jsonl"
PROTOCOL = 1  # of what is judged; lines of another are not looked at
DRAWS, GRADIENTS, SECONDS, EFFECTIVE, RHAT, NLL = range(6)  # of a point of a curve
LOADED = 0.5  # more of the machine's load than cores


def code() -> str:
    """Short digest of the sources of the Ribbit that would be imported, as committed.

    With "+" where they are changed; "" where it is not installed or not from a checkout.
    """
    found = importlib.util.find_spec("ribbit")
    if found is None or found.origin is None:
        return ""
    root = Path(found.origin).resolve().parents[2]
    try:
        trees = _git("rev-parse", "HEAD:cpp", "HEAD:python", root=root)
        changed = _git("status", "--porcelain", "--", "cpp", "python", root=root)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return hashlib.sha256(trees.encode()).hexdigest()[:10] + ("+" if changed else "")


def commit() -> str:
    """Commit of the checkout, "+" when something but docs and results is changed."""
    try:
        apart = (":!docs", ":!benchmarks/results")
        changed = _git("status", "--porcelain", "--", ".", *apart)
        return _git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str, root: Path = machine.ROOT) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def load() -> float:
    """Count the processes that want a core, mean over the last minute."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0


def header(problem: str, entry: str, seed: int) -> Line:
    """Return what every line begins with."""
    return {
        "protocol": PROTOCOL,
        "problem": problem,
        "entry": entry,
        "seed": seed,
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "code": code(),
        "machine": f"{machine.processor()}, {machine.vector_sets()}",
        "cores": len(machine.cores()),
        "load": [load(), load()],
    }


def read(path: Path = RESULTS) -> dict[tuple[str, str, int], Line]:
    """Last line of each (problem, entry, seed)."""
    if not path.is_file():
        return {}
    lines = [json.loads(text) for text in path.read_text().splitlines() if text.strip()]
    return {
        (line["problem"], line["entry"], line["seed"]): line
        for line in lines
        if line["protocol"] == PROTOCOL
    }


def append(line: Line, path: Path = RESULTS) -> None:
    """Add a line at once, so that a run that is ended loses nothing before."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(line, separators=(",", ":")) + "\n")


def outcome(line: Line) -> list[float] | None:
    """Point of the curve at which the limits first held."""
    return next((p for p in line.get("curve", []) if holds(p[EFFECTIVE], _finite(p[RHAT]))), None)


def _finite(value: float | None) -> float:
    return float("inf") if value is None else value


def loaded(line: Line) -> bool:
    """Whether others worked on the machine meanwhile."""
    return bool(max(line["load"]) > line["cores"] + LOADED)


def costs(lines: list[Line], column: int) -> list[float]:
    """Gradients or seconds until the limits held, of each seed; a failure is infinite."""
    points = [outcome(line) for line in lines]
    return [float("inf") if point is None else point[column] for point in points]


def median(values: list[float]) -> float:
    """Of values that may be infinite: of an even number the upper one where one is."""
    found = statistics.median_high(values)
    return found if found == float("inf") else statistics.median(values)
