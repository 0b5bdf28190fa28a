"""``python -m ribbit watch FOLDER``: a run on the disk while it goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ribbit.results.draws import Draws
from ribbit.results.store.lock import writer
from ribbit.results.verdicts import divergences
from ribbit.samplers.run.progress_view import format_line, render_table

__all__ = ["snapshot", "watch"]

_RECENT = 100  # draws that acceptance and step size are means of
_JUDGED = 1 << 28  # numbers in draws: beyond, reading them again and again would disturb the run


def watch(
    path: Path,
    read: Callable[[Path], Any],
    *,
    every: float = 5.0,
    once: bool = False,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Show a run until it has ended, or nobody writes it any more.

    In a terminal with rich a table that is drawn anew, else a line each time; then the summary of
    what there is, R-hat and divergences included, and its verdict.

    Parameters
    ----------
    path : Path
        Folder of a run or of a fit.
    read : callable
        `ribbit.open_run`.
    every : float
        Seconds between two looks.
    once : bool
        Look once.
    sleep : callable
        Waits for some seconds.

    Raises
    ------
    FileNotFoundError
        Without a run in the folder.
    DataError
        For a damaged one.
    """
    display = _display()
    try:
        while True:
            alive = writer(path)
            found = read(path)
            ended = found.complete or alive is None
            display.show(found, path)
            if ended or once:
                break
            sleep(every)
    finally:
        display.close()
    if not found.complete and alive is None:
        print(f"nobody writes {path} now; the same line goes on, with store={str(path)!r}")


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


def _verdict(found: Any) -> str:
    """Return the summary of what there is, where that does not take long."""
    if isinstance(found, Draws):
        if len(found) < 4:
            return "no draws to judge yet"
        if found.positions.size > _JUDGED:
            return "python -m ribbit summary judges so many draws"
    text: str = found.summary().text
    return text


def _line(found: Any, path: Path) -> str:
    if isinstance(found, Draws):
        return format_line(snapshot(found))
    return f"{path}: {'a whole fit' if found.complete else 'a fit that goes on'}"


class _Lines:
    """A line for each look, and the summary at the end."""

    def __init__(self) -> None:
        self._last: Any = None

    def show(self, found: Any, path: Path) -> None:
        print(_line(found, path), flush=True)
        self._last = found

    def close(self) -> None:
        if self._last is not None:
            print(_verdict(self._last))


class _Table:
    """A table that is drawn anew, the summary below it."""

    def __init__(self) -> None:
        from rich.live import Live

        self._live = Live(auto_refresh=False)
        self._live.start()

    def show(self, found: Any, path: Path) -> None:
        from rich.console import Group
        from rich.text import Text

        head = (
            render_table(snapshot(found)) if isinstance(found, Draws) else Text(_line(found, path))
        )
        self._live.update(Group(head, Text(_verdict(found))), refresh=True)

    def close(self) -> None:
        self._live.stop()


def _display() -> _Lines | _Table:
    if sys.stdout is not None and sys.stdout.isatty():  # None under pythonw
        try:
            return _Table()
        except ImportError:
            pass
    return _Lines()
