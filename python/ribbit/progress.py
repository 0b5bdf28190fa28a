"""Progress of a run: a table in a terminal or notebook, lines in a log, a dict for a callable.

Between refreshes an update copies three short rows and reads the clock. After a refresh at least
250 times its cost passes before the next one, which keeps reporting below 0.5 % of the run time
(importing rich comes once on top). There is no thread, and no random number is drawn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from ribbit._arrays import checks
from ribbit._arrays.namespace import namespace, to_host
from ribbit._arrays.tables import html_table
from ribbit._arrays.warning import warn
from ribbit.protocols import Array

__all__ = [
    "LINE_SECONDS",
    "Progress",
    "ProgressOption",
    "Report",
    "check_progress",
    "format_line",
    "print_line",
]

ProgressOption: TypeAlias = bool | Callable[[dict[str, Any]], object] | None

LINE_SECONDS = 5.0  # between lines of a log
_INTERVAL = 0.2  # seconds between refreshes, at least
_QUIET = 1.0  # seconds before progress=None draws anything in a terminal
_COST_FACTOR = 250.0  # seconds to wait per second spent on a refresh: 0.4 % of the run
_MARKS = 8  # refreshes over which the time left is estimated
_BUFFER = 256  # steps whose statistics wait to be summed
_SUMMED = ("acceptance_rate", "diverging", "n_steps")
_MAX_ROWS = 16  # chains listed one by one


def check_progress(function: str, progress: object) -> None:
    """Raise TypeError unless `progress` is a bool, None or a function to call."""
    if isinstance(progress, type) or not (
        progress is None or isinstance(progress, bool | np.bool_) or callable(progress)
    ):
        raise TypeError(
            f"[{function}] expected progress as bool, callable or None, got "
            f"{checks.summary(progress)}"
        )


class Progress:
    """Counts steps, acceptance, divergences and gradients, and shows them as `progress` says.

    `total` and `warmup` are in steps, `thin` is steps per draw. A `fit` has members that make
    steps, instead of chains that record draws.
    """

    def __init__(
        self,
        progress: ProgressOption,
        *,
        total: int,
        chains: int,
        warmup: int = 0,
        thin: int = 1,
        title: str = "HMC",
        fit: bool = False,
    ) -> None:
        self.total, self.chains, self.warmup, self.thin = total, chains, warmup, thin
        self.title, self.fit = title, fit
        self.reason = ""  # why the run has ended, if it ends before `total`
        self.seconds_spent = 0.0  # on refreshes
        self._sink, self._done, self._shown, self._closed = _choose(progress), 0, False, False
        self._started = time.perf_counter()
        self._due = self._started + (0.0 if self._sink is None else self._sink.delay)
        self._sums = {name: np.zeros(chains) for name in _SUMMED}
        self._phase_steps = 0
        self._buffers: list[tuple[str, npt.NDArray[Any]]] = []  # (_BUFFER, C) each
        self._filled = 0  # rows of the buffers that wait to be summed
        self._last: Mapping[str, Any] = {}
        self._gradients: float | None = None
        self._marks: deque[tuple[float, int]] = deque([(0.0, 0)], maxlen=_MARKS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(silent=kind is not None)

    @property
    def wanted(self) -> bool:
        """Whether a sink takes what is reported."""
        return self._sink is not None

    def update(
        self, done: int, stats: Mapping[str, Any] | None = None, gradients: float | None = None
    ) -> None:
        """Note that `done` steps are over, warmup included; refresh when one is due.

        `stats` are (C,) of the last step, or (C, K) of all steps or of the draws among them.
        `gradients` are the evaluations of all chains so far; default: the sum of "n_steps", or one
        per step.
        """
        if self._sink is None:
            return
        steps, self._done = done - self._done, done
        self._gradients = gradients
        if stats is not None:
            if next(iter(stats.values())).ndim == 2:
                self._add_block(steps, stats)
            else:
                self._add_step(steps, stats)
            if done == self.warmup:  # sums of a phase start again
                self._fold()
                self._sums["acceptance_rate"][:] = self._sums["diverging"][:] = 0.0
                self._phase_steps = 0
        if time.perf_counter() >= self._due:
            self._refresh(self._sink)

    def _add_step(self, steps: int, stats: Mapping[str, Any]) -> None:
        """Put the statistics (C,) of a call into the buffers."""
        if not self._buffers:
            shape = _BUFFER, self.chains
            self._buffers = [(name, np.zeros(shape)) for name in _SUMMED if name in stats]
        # Copied, not kept: keeping every array of a step alive costs its reuse by NumPy.
        row, self._last = self._filled, stats
        for name, rows in self._buffers:
            rows[row] = stats[name]
            if steps != 1 and name == "n_steps":  # several in one call: each like the last
                rows[row] *= steps
        self._filled = row + 1
        if row + 1 == _BUFFER:
            self._fold()

    def _add_block(self, steps: int, stats: Mapping[str, Any]) -> None:
        """Add the statistics (C, K) of a call of `steps` steps to the sums."""
        count = next(iter(stats.values())).shape[1]
        self._last = {name: values[:, -1] for name, values in stats.items()}
        for name in _SUMMED:
            if name in stats:
                self._sums[name] += stats[name].sum(axis=1, dtype=np.float64)
        self._phase_steps += count
        if count < steps:  # the draws of a thinned run: other steps are like them
            if "n_steps" in stats:
                self._sums["n_steps"] += (steps / count - 1.0) * stats["n_steps"].sum(axis=1)
            if "divergences" in stats:
                more = stats["divergences"] - stats["diverging"]
                self._sums["diverging"] += more.sum(axis=1)

    def close(self, *, silent: bool = False) -> None:
        """Show the last state, unless `silent`, and free the terminal; once."""
        first, self._closed = not self._closed, True
        if first and self._sink and not silent and (self._shown or self._sink.shows_end):
            self._ask(self._sink.show, self.snapshot())
        if first and self._sink:
            self._ask(self._sink.end)

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the run; docs/guide/long_runs.md describes the keys."""
        self._fold()
        elapsed, done, last = time.perf_counter() - self._started, self._done, self._last
        # The rate since the oldest of the last refreshes: early warmup steps may be far slower.
        since, before = self._marks[0]
        eta = (elapsed - since) * (self.total - done) / (done - before) if done > before else None
        self._marks.append((elapsed, done))
        rate = 1.0 / elapsed if elapsed > 0 else 0.0
        gradients = self._gradients
        if gradients is None:
            sums = self._sums["n_steps"]
            gradients = float(sums.sum()) if "n_steps" in last else float(done * self.chains)
        phase = "fitting" if self.fit else "warmup" if done < self.warmup else "sampling"
        result = {"title": self.title, "phase": phase, "done": done, "total": self.total}
        result |= {"warmup": self.warmup, "chains": self.chains, "elapsed": elapsed, "eta": eta}
        result["draws"] = max(0, done - self.warmup) // self.thin
        result["gradients_per_second"] = gradients * rate
        if "acceptance_rate" in last:
            mean = self._sums["acceptance_rate"] / max(self._phase_steps, 1)
            result["acceptance_rate"] = mean.tolist()
        if "diverging" in last:
            result["diverging"] = [int(count) for count in self._sums["diverging"]]
        for name in {"step_size", "learning_rate"}.intersection(last):
            result[name] = np.asarray(last[name], dtype=np.float64).tolist()
        if self._closed and done < self.total:
            result["stopped"] = self.reason
        if "n_steps" in last:
            result["chain_gradients_per_second"] = (self._sums["n_steps"] * rate).tolist()
        return result

    def _fold(self) -> None:
        """Add the buffered steps to the sums."""
        count, self._filled = self._filled, 0
        for name, rows in self._buffers if count else ():
            self._sums[name] += rows[:count].sum(axis=0, dtype=np.float64)
        self._phase_steps += count

    def _refresh(self, sink: _Sink) -> None:
        if not self._shown:
            self._shown = True
            self._ask(sink.open)
        begin = time.perf_counter()
        if self._sink is not None:
            self._ask(sink.show, self.snapshot())
        end = time.perf_counter()
        self.seconds_spent += end - begin
        self._due = end + max(sink.interval, _COST_FACTOR * (end - begin))

    def _ask(self, do: Callable[..., object], *given: Any) -> None:
        """Let the sink do something. A display that fails is dropped; the run matters more."""
        try:
            do(*given)
        except Exception as error:  # standard error closed, a broken pipe, a full disk
            sink, self._sink = self._sink, None
            if sink is None or sink.is_users:
                raise
            with contextlib.suppress(Exception):
                sink.end()
            warn(
                "[progress] expected to show the progress, got "
                f"{type(error).__name__} ({error}): the run continues without progress"
            )


class Report:
    """Feeds the progress display; arrays of a device are fetched a few times a second only."""

    def __init__(self, reporter: Any, *, on_host: bool) -> None:
        self.reporter, self.on_host = reporter, on_host
        self.pending: list[tuple[int, Mapping[str, Array]]] = []
        self.due = time.perf_counter() + 0.25

    def update(self, done: int, info: Mapping[str, Array]) -> None:
        """Report a call; see `Progress.update`."""
        if not self.reporter.wanted:
            return
        if self.on_host:
            self.reporter.update(done, info)
            return
        self.pending.append((done, info))
        if time.perf_counter() >= self.due:
            self.flush()

    def flush(self) -> None:
        """Hand over what is waiting."""
        pending, self.pending = self.pending, []
        if pending:
            # One copy per statistic, not one per step: every copy waits for the device.
            names = pending[0][1]
            xp = namespace(*names.values())
            rows = {k: to_host(xp.stack([info[k] for _, info in pending])) for k in names}
            for i, (done, _) in enumerate(pending):
                self.reporter.update(done, {k: v[i] for k, v in rows.items()})
        self.due = time.perf_counter() + 0.25


@dataclasses.dataclass
class _Sink:
    """Where snapshots go."""

    show: Callable[[dict[str, Any]], object]
    delay: float  # seconds before the first refresh
    interval: float  # seconds between refreshes, at least
    shows_end: bool = False  # also of a run without any refresh
    is_users: bool = False  # its errors end the run

    def open(self) -> None:
        """Begin, at the first refresh."""

    def end(self) -> None:
        """Free what `open` took."""


def _choose(progress: ProgressOption) -> _Sink | None:
    """Return the sink for an option of a run, None for silence."""
    if callable(progress):
        return _Sink(progress, 0.0, _INTERVAL, shows_end=True, is_users=True)
    if progress is not None and not progress:
        return None
    delay = 0.0 if progress else _QUIET
    ipython = sys.modules.get("IPython")  # a kernel has loaded it
    if ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None:
        return _Sink(_cell(ipython.display.display), delay, 2.5 * _INTERVAL)
    try:
        terminal = sys.stderr is not None and sys.stderr.isatty()
    except Exception:  # closed, or replaced by a stream without it: writing will tell
        terminal = False
    if terminal:
        return _Terminal(print_line, delay, _INTERVAL)
    return _Sink(print_line, LINE_SECONDS, LINE_SECONDS, shows_end=bool(progress))


def print_line(snapshot: Mapping[str, Any]) -> None:
    """Print a line on standard error."""
    if sys.stderr is not None:  # None under pythonw and in some embedded interpreters
        print(format_line(snapshot), file=sys.stderr, flush=True)


class _Terminal(_Sink):
    """A table on standard error that is updated in place; plain lines without rich."""

    _live: Any = None

    def open(self) -> None:
        try:
            from rich.console import Console
            from rich.live import Live
        except ImportError:
            self.interval = LINE_SECONDS
            return

        class Screen(Console):
            def on_broken_pipe(self) -> None:
                raise  # rich would end the process

        # auto_refresh would start a thread that wakes several times a second
        self._live = Live(console=Screen(stderr=True), auto_refresh=False)
        self._live.start()
        self.show = lambda snapshot: self._live.update(render_table(snapshot), refresh=True)

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()


def _cell(display: Callable[..., Any]) -> Callable[[dict[str, Any]], None]:
    """Return what shows a snapshot in a notebook's cell, updated in place."""
    handle: Any = None

    def show(snapshot: dict[str, Any]) -> None:
        nonlocal handle
        if handle is None:
            handle = display(Cell(snapshot), display_id=True)
        else:
            handle.update(Cell(snapshot))

    return show


def format_line(snapshot: Mapping[str, Any]) -> str:
    """Return one line of plain text."""
    done, total, count = snapshot["done"], snapshot["total"], snapshot["chains"]
    percent = 100.0 * done / total if total else 100.0
    fit = snapshot["phase"] == "fitting"
    steps = f"{done}/{total}{' steps' if fit else ''} ({percent:.0f} %)"
    parts = [f"{snapshot['title']}: {_state(snapshot)} {steps}"]
    if count > 1 or not fit:
        parts.append(f"{count} {'member' if fit else 'chain'}{'' if count == 1 else 's'}")
    for key, (name, text) in _COLUMNS.items():
        if key == "diverging" and key in snapshot:
            found = sum(snapshot[key])
            parts.append(f"{found} divergence{'' if found == 1 else 's'}")
        elif key != "chain_gradients_per_second" and key in snapshot:
            low, high = text(min(snapshot[key])), text(max(snapshot[key]))
            parts.append(f"{name} {low}" if low == high else f"{name} {low}-{high}")
    return ", ".join([*parts, *_times(snapshot)])


def render_table(snapshot: Mapping[str, Any]) -> Any:
    """Return a table of rich: a header with a bar, then a row per chain."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    done, total = snapshot["done"], max(snapshot["total"], 1)
    state = "done" if done >= total else _state(snapshot)
    color = {"done": "green", "sampling": "cyan", "fitting": "cyan"}.get(state, "yellow")
    head = Table.grid(padding=(0, 1))
    head.add_row(
        Text(str(snapshot["title"]), style="bold"),
        Text(state, style=color),
        ProgressBar(total=total, completed=done, width=28),
        Text(f"{done}/{snapshot['total']}"),
        *(Text(part, style="dim") for part in _times(snapshot)),
    )
    names, rows = _rows(snapshot)
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        cells = [
            Text(cell, style="bold red" if name == "divergences" and cell != "0" else "")
            for name, cell in zip(names, row, strict=True)
        ]
        table.add_row(*cells, style="dim" if row[0].startswith("+") else "")
    return Group(head, table) if len(names) > 2 else head


class Cell:
    """A snapshot in the output of a notebook."""

    def __init__(self, snapshot: Mapping[str, Any]) -> None:
        self._snapshot = snapshot

    def __repr__(self) -> str:
        return format_line(self._snapshot)

    def _repr_html_(self) -> str:
        snapshot = self._snapshot
        done, total = snapshot["done"], max(snapshot["total"], 1)
        bar = f'<progress value="{done}" max="{total}" style="width: 20em"></progress>'
        title = f"{snapshot['title']}: {'done' if done >= total else _state(snapshot)}"
        facts = ", ".join([f"{done}/{snapshot['total']}", *_times(snapshot)])
        names, rows = _rows(snapshot)
        return bar + html_table(title, [names, *rows] if len(names) > 2 else [], facts)


def _state(snapshot: Mapping[str, Any]) -> str:
    """Return the phase, or why a run has stopped early."""
    reason = snapshot.get("stopped")
    if reason is None:
        return str(snapshot["phase"])
    return f"stopped early ({reason})" if reason else "stopped early"


def _times(snapshot: Mapping[str, Any]) -> list[str]:
    """Return speed and times, as texts."""
    found = [f"{_clock(snapshot['elapsed'])} elapsed"]
    if snapshot["gradients_per_second"]:
        found.insert(0, f"{_count(snapshot['gradients_per_second'])} gradients/s")
    unfinished = snapshot["done"] < snapshot["total"] and "stopped" not in snapshot
    if unfinished and snapshot["eta"] is not None:
        found.append(f"{_clock(snapshot['eta'])} left")
    return found


def _count(value: float) -> str:
    """Return '12', '1.2k', '3.45M' or '6G'."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.0f}"


# Columns of a table, by the key of the snapshot.
_COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "acceptance_rate": ("acceptance", "{:.2f}".format),
    "diverging": ("divergences", "{:.0f}".format),
    "step_size": ("step size", "{:.3g}".format),
    "learning_rate": ("learning rate", "{:.3g}".format),
    "chain_gradients_per_second": ("gradients/s", _count),
}


def _rows(snapshot: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns and a row of texts per chain, the last ones as one."""
    phase, chains = snapshot["phase"], snapshot["chains"]
    counted = {"warmup": "warmup", "fitting": "steps"}.get(phase, "draws")
    names = ["member" if phase == "fitting" else "chain", counted]
    steps = str(snapshot["draws" if phase == "sampling" else "done"])
    rows = [[str(chain), steps] for chain in range(min(chains, _MAX_ROWS))]
    if chains > _MAX_ROWS:
        rows.append([f"+{chains - _MAX_ROWS}", steps])
    for key, (name, text) in _COLUMNS.items():
        if key in snapshot:
            names.append(name)
            values, rest = snapshot[key][:_MAX_ROWS], snapshot[key][_MAX_ROWS:]
            if rest:
                values = [*values, sum(rest) if key == "diverging" else float(np.mean(rest))]
            for row, value in zip(rows, values, strict=True):
                row.append(text(value))
    return names, rows


def _clock(seconds: float) -> str:
    """Return '12 s', '3:07' or '2:03:07'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
