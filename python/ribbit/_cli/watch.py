"""``python -m ribbit watch FOLDER``: a run on the disk while it goes on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from ribbit.progress import format_line
from ribbit.results.draws import Draws
from ribbit.results.outcome import divergences
from ribbit.store import writer

_RECENT = 100  # draws that acceptance and step size are means of
_LARGE = 1 << 28  # numbers in draws: reading more would disturb a run that goes on


def watch(
    path: Path, read: Any, *, every: float = 5.0, once: bool = False, sleep: Any = time.sleep
) -> None:
    """Print a line every so many seconds until a run has ended, then its summary.

    `read` is `ribbit.load`. Raises FileNotFoundError without a run, DataError for a damaged one.
    """
    found: Any = None
    try:
        while True:
            alive = writer(path) is not None
            found = read(path)
            fit = f"{path}: {'a whole fit' if found.complete else 'a fit that runs'}"
            print(format_line(snapshot(found)) if isinstance(found, Draws) else fit, flush=True)
            if found.complete or once or not alive:
                break
            sleep(every)
    finally:
        if isinstance(found, Draws) and len(found) < 4:
            print("no summary yet: fewer than 4 draws per chain")
        elif isinstance(found, Draws) and found.positions.size > _LARGE:
            print("python -m ribbit summary prints the summary of so many draws")
        elif found is not None:
            print(found.summary().text)
    if not found.complete and not alive:
        print(f"No process writes {path}. Run the same line again, with store={str(path)!r}.")


def snapshot(draws: Draws) -> dict[str, Any]:
    """Return where a run is, as its own progress would show it."""
    stats, settings, seconds = draws.stats, draws.settings, draws.seconds or 0.0
    step = 0 if draws.state is None else draws.state.step
    total = max(step, settings["warmup"] + settings["thin"] * settings["num_draws"])
    found = {"title": settings["sampler"], "chains": len(settings["chains"]), "draws": len(draws)}
    found |= {"phase": "warmup" if step < settings["warmup"] else "sampling", "done": step}
    found |= {"total": step if draws.complete else total, "elapsed": seconds}
    found["eta"] = seconds / step * (found["total"] - step) if step else None
    for name in {"acceptance_rate", "step_size", "n_steps"} & stats.keys() if len(draws) else ():
        found[name] = np.mean(stats[name][:, -_RECENT:], axis=1).tolist()
    if len(draws) and "diverging" in stats:
        found["diverging"] = np.sum(divergences(stats), axis=1).tolist()
    # Of the draws alone: what warmup took is not kept by default.
    each = sum(found.get("n_steps", ())) * settings["thin"]
    return found | {"gradients_per_second": each * step / seconds if seconds else 0.0}
