"""Progress of a run: a table in a terminal or notebook, lines in a log, a dict for a callable."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import namespace, to_host
from ribbit._arrays.tables import html_table
from ribbit._arrays.warning import warn
from ribbit.protocols import Array

ProgressOption: TypeAlias = bool | Callable[[dict[str, Any]], object] | None

LINE_SECONDS = 5.0  # between lines of a log
_INTERVAL = 0.2  # seconds between refreshes, at least
_QUIET = 1.0  # seconds before progress=None draws anything in a terminal
_COST_FACTOR = 250.0  # seconds to wait per second spent on a refresh: 0.4 % of the run
_MARKS = 8  # refreshes over which the time left is estimated
_UNREAD = 256  # steps whose statistics stay in device memory at most
_SUMMED = ("acceptance_rate", "diverging", "divergences", "n_steps")
_MAX_ROWS = 16  # chains listed one by one


def check_progress(function: str, progress: object) -> None:
    """Raise TypeError unless `progress` is a bool, None or a function to call."""
    if isinstance(progress, type) or not (
        progress is None or isinstance(progress, bool | np.bool_) or callable(progress)
    ):
        got = checks.summary(progress)
        raise TypeError(f"[{function}] expected progress as bool, callable or None, got {got}")


class Progress:
    """Counts steps, acceptance, divergences and gradients, and shows them as `progress` says."""

    def __init__(
        self,
        progress: ProgressOption,
        *,
        total: int,
        chains: int,
        warmup: int = 0,
        done: int = 0,  # steps of earlier calls
        draws: Callable[[int], int] | None = None,  # returns the draws of a number of steps
        title: str = "HMC",
        fit: bool = False,  # members make steps instead of chains
    ) -> None:
        self.total, self.chains, self.warmup = total, chains, warmup
        self.title, self.fit = title, fit
        self.reason = ""  # why the run has ended, if it ends before `total`
        self.seconds_spent = 0.0  # on refreshes
        self._draws = draws or (lambda step: max(0, step - warmup))
        self._first = self._done = done
        self._skipped = 0  # steps without statistics, which the next statistics stand for
        self._display, self._shown, self._closed = _choose(progress), False, False
        self._started = time.perf_counter()
        self._due = self._started + (0.0 if self._display is None else self._display.delay)
        self._sums: dict[str, Any] = {}  # (C,) each, of steps or of this phase
        self._last: Mapping[str, Any] = {}  # statistics of the last call
        self._names: list[str] = []  # of those that are summed
        self._phase_steps = 0
        self._unread: list[tuple[int, list[Array]]] = []  # steps, (C,) each, before they are added
        self._gradients: float | None = None
        self._marks: deque[tuple[float, int]] = deque([(0.0, done)], maxlen=_MARKS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Show the last state, unless after an error, and free the terminal."""
        self._closed = True
        if (display := self._display) is None:
            return
        if kind is None and (self._shown or display.shows_end):
            self._ask(lambda: display.show(self.snapshot()))
        if self._display is not None:
            self._ask(display.end)

    @property
    def wanted(self) -> bool:
        """Whether a display takes what is reported."""
        return self._display is not None

    def update(
        self, done: int, stats: Mapping[str, Array] | None = None, gradients: float | None = None
    ) -> None:
        """Note that `done` steps are over, warmup included; refresh when one is due."""
        # stats: (C,) of the last step, or (C, K) of steps or draws; gradients: of all chains.
        if self._display is None:
            return
        self._gradients = gradients
        if not stats:  # of a slow thinned run a call may end before its first draw
            self._read()
            self._skipped += done - self._done
            self._done = done
        else:
            self._last = stats
            names = [name for name in _SUMMED if name in stats]
            first = next(iter(stats.values()))
            if first.ndim == 2 or names != self._names:
                self._read()
            self._names = names
            if first.ndim == 2:
                self._add(done, {name: to_host(stats[name]) for name in names})
            else:
                # Copied: keeping every array of a step alive costs its reuse by NumPy.
                rows = [stats[name] for name in names]
                host = isinstance(first, np.ndarray)
                self._unread.append((done, [row.copy() for row in rows] if host else rows))
                if len(self._unread) == _UNREAD or done == self.warmup:
                    self._read()
        if time.perf_counter() >= self._due:
            self._refresh(self._display)

    def _read(self) -> None:
        """Add the steps that wait: one copy per statistic, because each copy from a GPU waits."""
        unread, self._unread = self._unread, []
        if unread:
            steps = np.diff([self._done, *(done for done, _ in unread)])
            rows = {}
            for name, *own in zip(self._names, *(rows for _, rows in unread), strict=True):
                rows[name] = to_host(namespace(own[0]).stack(own, axis=1))
            if "n_steps" in rows:  # several steps in one call: each like the last
                rows["n_steps"] = rows["n_steps"] * (steps * (len(steps) / steps.sum()))
            self._add(unread[-1][0], rows)

    def _add(self, done: int, stats: Mapping[str, Any]) -> None:
        """Add the statistics (C, K) of some steps to the sums; those left out are like them."""
        steps, self._done = done - self._done + self._skipped, done
        self._skipped = 0
        sums = {name: rows.sum(axis=1, dtype=np.float64) for name, rows in stats.items()}
        count = next(iter(stats.values())).shape[1] if stats else steps
        if "n_steps" in sums:
            sums["n_steps"] *= steps / count
        if "divergences" in sums:  # of a thinned run, also those between the draws
            sums["diverging"] = sums.pop("divergences")
        for name, more in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + more
        self._phase_steps += count
        if done == self.warmup:  # sums of a phase start again
            for name in {"acceptance_rate", "diverging"} & self._sums.keys():
                self._sums[name] = np.zeros(self.chains)
            self._phase_steps = 0

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the run; docs/guide/long_runs.md describes the keys."""
        self._read()
        elapsed, done, sums = time.perf_counter() - self._started, self._done, self._sums
        # The rate since the oldest of the last refreshes: early warmup steps may be far slower.
        since, before = self._marks[0]
        eta = (elapsed - since) * (self.total - done) / (done - before) if done > before else None
        self._marks.append((elapsed, done))
        rate = 1.0 / elapsed if elapsed > 0 else 0.0
        gradients = self._gradients
        if gradients is None:
            steps = float((done - self._first) * self.chains)
            gradients = float(sums["n_steps"].sum()) if "n_steps" in sums else steps
        phase = "fitting" if self.fit else "warmup" if done < self.warmup else "sampling"
        result = {"title": self.title, "phase": phase, "done": done, "total": self.total}
        result |= {"warmup": self.warmup, "chains": self.chains, "elapsed": elapsed, "eta": eta}
        result |= {"draws": self._draws(done), "gradients_per_second": gradients * rate}
        if "acceptance_rate" in sums:
            mean = sums["acceptance_rate"] / max(self._phase_steps, 1)
            result["acceptance_rate"] = mean.tolist()
        if "diverging" in sums:
            result["diverging"] = [int(count) for count in sums["diverging"]]
        for name in {"step_size", "learning_rate"} & self._last.keys():
            rows = to_host(self._last[name])
            result[name] = (rows if rows.ndim == 1 else rows[:, -1]).astype(np.float64).tolist()
        if self._closed and done < self.total:
            result["stopped"] = self.reason
        if "n_steps" in sums:
            result["chain_gradients_per_second"] = (sums["n_steps"] * rate).tolist()
        return result

    def _refresh(self, display: _Display) -> None:
        begin, self._shown = time.perf_counter(), True
        self._ask(lambda: display.show(self.snapshot()))
        end = time.perf_counter()
        self.seconds_spent += end - begin
        self._due = end + max(display.interval, _COST_FACTOR * (end - begin))

    def _ask(self, do: Callable[[], object]) -> None:
        """Let the display do something. If it fails it is dropped; the run matters more."""
        try:
            do()
        except Exception as error:  # standard error closed, a broken pipe, a full disk
            display, self._display = self._display, None
            if display is None or display.is_users:
                raise
            with contextlib.suppress(Exception):
                display.end()
            got = f"{type(error).__name__} ({error}): the run continues without progress"
            warn(f"[progress] expected to show the progress, got {got}")


@dataclass
class _Display:
    """Where snapshots go."""

    show: Callable[[dict[str, Any]], object]
    delay: float  # seconds before the first refresh
    interval: float  # seconds between refreshes, at least
    shows_end: bool = False  # also of a run without any refresh
    is_users: bool = False  # its errors end the run
    end: Callable[[], object] = lambda: None


def _choose(progress: ProgressOption) -> _Display | None:
    """Return the display for an option of a run, None for silence."""
    if callable(progress):
        return _Display(progress, 0.0, _INTERVAL, shows_end=True, is_users=True)
    if progress is not None and not progress:
        return None
    delay = 0.0 if progress else _QUIET
    ipython = sys.modules.get("IPython")  # a kernel has loaded it
    if ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None:
        return _Display(_Cell(ipython.display.display).show, delay, 2.5 * _INTERVAL)
    try:
        in_terminal = sys.stderr is not None and sys.stderr.isatty()
    except Exception:  # closed, or replaced by a stream without it: writing will tell
        in_terminal = False
    if not in_terminal:
        return _Display(print_line, LINE_SECONDS, LINE_SECONDS, shows_end=bool(progress))
    if importlib.util.find_spec("rich") is None:
        return _Display(print_line, delay, LINE_SECONDS)
    table = _Table()
    return _Display(table.show, delay, _INTERVAL, end=table.end)


def print_line(snapshot: Mapping[str, Any]) -> None:
    """Print a line on standard error."""
    if sys.stderr is not None:  # None under pythonw and in some embedded interpreters
        print(format_line(snapshot), file=sys.stderr, flush=True)


class _Table:
    """A table of rich on standard error that is updated in place."""

    _live: Any = None

    def show(self, snapshot: Mapping[str, Any]) -> None:
        """Show a snapshot; the first one takes the terminal."""
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            class Screen(Console):
                def on_broken_pipe(self) -> None:
                    raise  # rich would end the process

            # auto_refresh would start a thread that wakes several times a second
            self._live = Live(console=Screen(stderr=True), auto_refresh=False)
            self._live.start()
        self._live.update(render_table(snapshot), refresh=True)

    def end(self) -> None:
        """Free the terminal."""
        if self._live is not None:
            self._live.stop()


class _Cell:
    """An output of a notebook that is updated in place."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display, self._handle, self._snapshot = display, None, dict[str, Any]()

    def show(self, snapshot: dict[str, Any]) -> None:
        """Show a snapshot."""
        self._snapshot = snapshot
        if self._handle is None:
            self._handle = self._display(self, display_id=True)
        else:
            self._handle.update(self)

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
