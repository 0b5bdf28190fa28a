"""``python -m ribbit watch FOLDER``: a run on the disk while it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ribbit.results.draws import Draws
from ribbit.results.outcome import divergences
from ribbit.results.store.folder import writer
from ribbit.samplers.run.progress_view import format_line

__all__ = ["snapshot", "watch"]

_RECENT = 100  # draws that acceptance and step size are means of
_LARGE = 1 << 28  # numbers in draws: beyond, reading them again and again would disturb the run


def watch(
    path: Path,
    read: Callable[[Path], Any],
    *,
    every: float = 5.0,
    once: bool = False,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Print a line every so many seconds until a run has ended, then its summary.

    read: `ribbit.load`. Raises FileNotFoundError without a run, DataError for a damaged one.
    """
    found = None
    try:
        while True:
            alive = writer(path)
            found = read(path)
            print(_line(found, path), flush=True)
            if found.complete or alive is None or once:
                break
            sleep(every)
    finally:
        if found is not None:
            print(_outcome(found))
    if not found.complete and alive is None:
        print(f"No process writes {path}. Run the same line again, with store={str(path)!r}.")


def snapshot(draws: Draws) -> dict[str, Any]:
    """Return where a run is, as its own progress would show it."""
    settings, state = draws.settings, draws.state
    kept, step = len(draws), 0 if state is None else state.step
    warmup, planned = settings["warmup"], settings["num_draws"]
    thin = settings["thin"]
    if draws.complete:
        total, done = step, step
    else:
        total = max(step, warmup + thin * planned)
        done = step
    elapsed = draws.seconds or 0.0
    chains = len(settings["chains"])
    recent = slice(max(0, kept - _RECENT), kept)
    found: dict[str, Any] = {
        "title": settings["sampler"],
        "phase": "warmup" if step < warmup else "sampling",
        "done": done,
        "total": total,
        "chains": chains,
        "draws": kept,
        "elapsed": elapsed,
        "eta": elapsed / done * (total - done) if done else None,
        "gradients_per_second": 0.0,
    }
    if kept:
        for name in ("acceptance_rate", "step_size"):
            if name in draws.stats:
                found[name] = np.mean(draws.stats[name][:, recent], axis=1).tolist()
        if "diverging" in draws.stats:
            found["diverging"] = np.sum(divergences(draws.stats)[:, :kept], axis=1).tolist()
    if "n_steps" in draws.stats and kept and elapsed:
        # Of the draws alone: what warmup took is not kept by default.
        mean = float(np.mean(draws.stats["n_steps"][:, recent]))
        found["gradients_per_second"] = mean * chains * thin / (elapsed / done)
    return found


def _outcome(found: Any) -> str:
    """Return the summary of the draws so far, if that does not take long."""
    if isinstance(found, Draws):
        if len(found) < 4:
            return "no summary yet: fewer than 4 draws per chain"
        if found.positions.size > _LARGE:
            return "python -m ribbit summary prints the summary of so many draws"
    text: str = found.summary().text
    return text


def _line(found: Any, path: Path) -> str:
    if isinstance(found, Draws):
        return format_line(snapshot(found))
    return f"{path}: {'a whole fit' if found.complete else 'a fit that runs'}"
