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

__all__ = ["snapshot", "watch"]

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
        if found is not None:
            print(_outcome(found))
    if not found.complete and not alive:
        print(f"No process writes {path}. Run the same line again, with store={str(path)!r}.")


def snapshot(draws: Draws) -> dict[str, Any]:
    """Return where a run is, as its own progress would show it."""
    stats, settings, kept = draws.stats, draws.settings, len(draws)
    step = 0 if draws.state is None else draws.state.step
    warmup, thin, chains = settings["warmup"], settings["thin"], len(settings["chains"])
    total = step if draws.complete else max(step, warmup + thin * settings["num_draws"])
    seconds, names = draws.seconds or 0.0, {"acceptance_rate", "step_size", "n_steps"} & {*stats}
    found = {n: np.mean(stats[n][:, -_RECENT:], axis=1).tolist() for n in names if kept}
    if kept and "diverging" in stats:
        found["diverging"] = np.sum(divergences(stats), axis=1).tolist()
    return found | {
        "title": settings["sampler"],
        "phase": "warmup" if step < warmup else "sampling",
        "done": step,
        "total": total,
        "chains": chains,
        "draws": kept,
        "elapsed": seconds,
        "eta": seconds / step * (total - step) if step else None,
        # Of the draws alone: what warmup took is not kept by default.
        "gradients_per_second": sum(found.get("n_steps", ())) * thin * step / (seconds or np.inf),
    }


def _outcome(found: Any) -> str:
    """Return the summary of the draws so far, if that does not take long."""
    if isinstance(found, Draws) and len(found) < 4:
        return "no summary yet: fewer than 4 draws per chain"
    if isinstance(found, Draws) and found.positions.size > _LARGE:
        return "python -m ribbit summary prints the summary of so many draws"
    return str(found.summary().text)
