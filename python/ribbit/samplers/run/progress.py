"""Progress of a run: a live table in a terminal or notebook, lines in a log, a dict for a callable.

The loop that samples calls :meth:`Progress.update` after every step. That call copies three
short rows and reads the clock; everything else waits until a refresh is due. A refresh measures its
own cost and puts the next one at least 250 times that cost away, which keeps reporting under 0.5 %
of the run time whatever the terminal (importing rich comes once on top). There is no thread, and
nothing here touches the random stream.
"""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ribbit._arrays.warning import warn
from ribbit.samplers.run.progress_view import Cell, format_line, render_table

ProgressOption = bool | Callable[[dict[str, Any]], object] | None

_LOG_INTERVAL = 5.0  # seconds
_QUIET = 1.0  # seconds before progress=None draws anything in a terminal
_COST_FACTOR = 250.0  # seconds to wait per second spent on a refresh: 0.4 % of the run
_MARKS = 8  # refreshes over which the time left is estimated
_BUFFER = 256  # steps whose statistics wait to be summed
_SUMMED = ("acceptance_rate", "diverging", "n_steps")


class _Sink:
    """Where a snapshot goes."""

    interval = 0.2  # seconds between refreshes, at least
    delay = 0.0  # seconds before the first refresh

    def open(self) -> None:
        """Begin, at the first refresh."""

    def show(self, snapshot: dict[str, Any]) -> None:
        """Show a snapshot."""

    def close(self, snapshot: dict[str, Any], *, shown: bool) -> None:
        """Show the last snapshot, if any was shown, and end."""
        if shown:
            self.show(snapshot)
        self.abort()

    def abort(self) -> None:
        """End without a last word."""


class Progress:
    """Counts steps, acceptance, divergences and gradients, and hands snapshots to a sink.

    Made by :func:`open_progress`, which documents the arguments; use it as a context manager.
    `sink` receives the snapshots; None reports nothing.
    """

    def __init__(
        self,
        sink: _Sink | None,
        *,
        total: int,
        chains: int,
        warmup: int,
        thin: int,
        title: str,
        fit: bool = False,
    ) -> None:
        self.total, self.chains, self.warmup, self.thin = total, chains, warmup, thin
        self.title, self.fit = title, fit
        self.reason = ""  # why the run has ended, for one that ends before `total`
        self._sink = sink
        self._done = 0
        self._started = time.perf_counter()
        self._due = self._started + sink.delay if sink is not None else float("inf")
        self._shown = False
        self._closed = False
        self._spent = 0.0  # seconds spent on reporting, refreshes only
        self._accept_sum = np.zeros(chains)
        self._diverging = np.zeros(chains)
        self._phase_steps = 0
        self._gradients = np.zeros(chains)
        self._buffers: list[tuple[str, npt.NDArray[Any]]] = []  # (_BUFFER, C) each
        self._filled = 0  # rows of the buffers that wait to be summed
        self._last: Mapping[str, Any] = {}
        self._given_gradients: float | None = None
        self._marks: deque[tuple[float, int]] = deque([(0.0, 0)], maxlen=_MARKS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or self._closed or self._sink is None:
            self.close()
        else:  # an error is on its way: free the terminal, say nothing over it
            self._closed = True
            self._ask(self._sink.abort)

    @property
    def seconds_spent(self) -> float:
        """Seconds spent on refreshes so far."""
        return self._spent

    @property
    def wanted(self) -> bool:
        """Whether anybody looks at what is reported."""
        return self._sink is not None

    def update(
        self, done: int, stats: Mapping[str, Any] | None = None, gradients: float | None = None
    ) -> None:
        """Note that `done` steps are over; refresh when one is due.

        Parameters
        ----------
        done : int
            Steps done since the run began, warmup included.
        stats : mapping of str to (C,) array, optional
            Statistics of the last step under ArviZ's names. "acceptance_rate", "diverging",
            "step_size", "learning_rate" and "n_steps" are shown; the rest is ignored.
        gradients : float, optional
            Gradient evaluations of all chains since the run began. Without it they are the sum of
            "n_steps", or one for each step.
        """
        if self._sink is None:
            return
        steps, self._done = done - self._done, done
        self._given_gradients = gradients
        if stats is not None:
            if not self._last:
                self._buffers = [
                    (name, np.zeros((_BUFFER, self.chains))) for name in _SUMMED if name in stats
                ]
            # copied, not kept: keeping every array of a step alive costs its reuse by NumPy
            row = self._filled
            for name, rows in self._buffers:
                rows[row] = stats[name]
                if steps != 1 and name == "n_steps":  # several in one call: each like the last
                    rows[row] *= steps
            self._filled = row + 1
            self._last = stats
            if done == self.warmup or row + 1 == _BUFFER:
                self._fold(end_of_warmup=done == self.warmup)
        if time.perf_counter() >= self._due:
            self._refresh(self._sink)

    def close(self) -> None:
        """Show the last state and release the terminal. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._sink is not None:
            self._ask(self._sink.close, self.snapshot(), shown=self._shown)

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the run as a small dict.

        Returns
        -------
        dict
            title, phase ("warmup", "sampling" or "fitting"), done, total, warmup, chains, draws
            (recorded per chain), elapsed and eta (seconds; eta is None before the first step),
            gradients_per_second (all chains), and a list with one entry per chain for each of
            acceptance_rate (mean over the phase), diverging (count in the phase), step_size (of a
            fit learning_rate) and chain_gradients_per_second, as far as the run reports them. The
            last one of a run that ended before `total` has the reason as "stopped".
        """
        self._fold(end_of_warmup=False)
        elapsed = time.perf_counter() - self._started
        done = self._done
        # the rate since the oldest of the last refreshes: early warmup steps may be far slower
        since, before = self._marks[0]
        eta = (elapsed - since) * (self.total - done) / (done - before) if done > before else None
        self._marks.append((elapsed, done))
        rate = 1.0 / elapsed if elapsed > 0 else 0.0
        if self._given_gradients is not None:
            total_gradients = self._given_gradients
        elif "n_steps" in self._last:
            total_gradients = float(self._gradients.sum())
        else:
            total_gradients = float(done * self.chains)
        result: dict[str, Any] = {
            "title": self.title,
            "phase": "fitting" if self.fit else "warmup" if done < self.warmup else "sampling",
            "done": done,
            "total": self.total,
            "warmup": self.warmup,
            "chains": self.chains,
            "draws": max(0, done - self.warmup) // self.thin,
            "elapsed": elapsed,
            "eta": eta,
            "gradients_per_second": total_gradients * rate,
        }
        if "acceptance_rate" in self._last:
            result["acceptance_rate"] = (self._accept_sum / max(self._phase_steps, 1)).tolist()
        if "diverging" in self._last:
            result["diverging"] = [int(count) for count in self._diverging]
        for name in {"step_size", "learning_rate"}.intersection(self._last):
            result[name] = np.asarray(self._last[name], dtype=np.float64).tolist()
        if self._closed and done < self.total:
            result["stopped"] = self.reason
        if "n_steps" in self._last:
            result["chain_gradients_per_second"] = (self._gradients * rate).tolist()
        return result

    def _fold(self, *, end_of_warmup: bool) -> None:
        """Add the buffered steps to the sums; sums of a phase start again after warmup."""
        count, self._filled = self._filled, 0
        if count:
            sums = {
                name: rows[:count].sum(axis=0, dtype=np.float64) for name, rows in self._buffers
            }
            self._accept_sum += sums.get("acceptance_rate", 0.0)
            self._diverging += sums.get("diverging", 0.0)
            self._gradients += sums.get("n_steps", 0.0)
            self._phase_steps += count
        if end_of_warmup:
            self._accept_sum[:] = 0.0
            self._diverging[:] = 0.0
            self._phase_steps = 0

    def _refresh(self, sink: _Sink) -> None:
        if not self._shown:
            self._shown = True
            self._ask(sink.open)
        begin = time.perf_counter()
        if self._sink is not None:
            self._ask(sink.show, self.snapshot())
        end = time.perf_counter()
        self._spent += end - begin
        self._due = end + max(sink.interval, _COST_FACTOR * (end - begin))

    def _ask(self, do: Callable[..., None], *given: Any, **named: Any) -> None:
        """Let the sink do something. One of ours that fails is dropped: a run is worth more."""
        if isinstance(self._sink, _CallbackSink):
            do(*given, **named)
            return
        try:
            do(*given, **named)
        except Exception as error:  # standard error closed, a broken pipe, a full disk
            sink, self._sink = self._sink, None
            if isinstance(sink, _TerminalSink):
                with contextlib.suppress(Exception):
                    sink.abort()
            warn(
                "[progress] expected to show the progress, got "
                f"{type(error).__name__} ({error}): the run continues without progress",
            )


def open_progress(
    progress: ProgressOption,
    *,
    total: int,
    chains: int,
    warmup: int = 0,
    thin: int = 1,
    title: str = "HMC",
    fit: bool = False,
) -> Progress:
    """Choose how a run reports itself.

    Parameters
    ----------
    progress : bool, callable or None
        False: silent. True: a table that is updated in place in a notebook, or by rich in a
        terminal (plain lines without rich), else a plain line every few seconds. None: the same,
        but nothing of a run that takes under a second, or under five in a log. A callable gets the
        dict of :meth:`Progress.snapshot` at most five times a second and once at the end; what it
        raises ends the run. A display of ours that fails warns once and falls silent.
    total : int
        Steps of the run, warmup included.
    chains : int
    warmup : int
        Leading steps that are warmup. Acceptance and divergences start again after them.
    thin : int
        Steps per recorded draw.
    title : str
        Name of what runs, such as "HMC".
    fit : bool
        A fit, of members that make steps, instead of chains that record draws.

    Returns
    -------
    Progress
        A context manager with ``update(done, stats, gradients)`` and ``close()``.
    """
    sink: _Sink | None
    if progress is False:
        sink = None
    elif callable(progress):
        sink = _CallbackSink(progress)
    else:
        sink = _choose_sink(eager=progress is True)
    return Progress(
        sink, total=total, chains=chains, warmup=warmup, thin=thin, title=title, fit=fit
    )


def _choose_sink(*, eager: bool) -> _Sink:
    ipython = sys.modules.get("IPython")  # a kernel has loaded it
    if ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None:
        return _NotebookSink(ipython.display.display, eager=eager)
    try:
        terminal = sys.stderr is not None and sys.stderr.isatty()
    except Exception:  # closed, or what somebody put in its place: writing will tell
        terminal = False
    return _TerminalSink(eager=eager) if terminal else _LogSink(eager=eager)


def _write(snapshot: dict[str, Any]) -> None:
    if sys.stderr is not None:  # None under pythonw and in some embedded interpreters
        print(format_line(snapshot), file=sys.stderr, flush=True)


class _CallbackSink(_Sink):
    def __init__(self, call: Callable[[dict[str, Any]], object]) -> None:
        self._call = call

    def show(self, snapshot: dict[str, Any]) -> None:
        self._call(snapshot)

    def close(self, snapshot: dict[str, Any], *, shown: bool) -> None:
        self._call(snapshot)


class _LogSink(_Sink):
    """One plain line per refresh on standard error."""

    interval = delay = _LOG_INTERVAL

    def __init__(self, *, eager: bool) -> None:
        self._eager = eager

    def show(self, snapshot: dict[str, Any]) -> None:
        _write(snapshot)

    def close(self, snapshot: dict[str, Any], *, shown: bool) -> None:
        super().close(snapshot, shown=shown or self._eager)


class _TerminalSink(_Sink):
    """A live table on standard error; plain lines when rich is not installed."""

    def __init__(self, *, eager: bool) -> None:
        self.delay = 0.0 if eager else _QUIET
        self._live: Any = None

    def open(self) -> None:
        try:
            from rich.console import Console
            from rich.live import Live
        except ImportError:
            self.interval = _LOG_INTERVAL
            return

        class Screen(Console):
            def on_broken_pipe(self) -> None:
                raise  # rich would end the process

        # auto_refresh would start a thread that wakes several times a second
        self._live = Live(console=Screen(stderr=True), auto_refresh=False)
        self._live.start()

    def show(self, snapshot: dict[str, Any]) -> None:
        if self._live is None:
            _write(snapshot)
        else:
            self._live.update(render_table(snapshot), refresh=True)

    def abort(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


class _NotebookSink(_Sink):
    """A table in the output of a notebook's cell, in place."""

    interval = 0.5

    def __init__(self, display: Callable[..., Any], *, eager: bool) -> None:
        self.delay = 0.0 if eager else _QUIET
        self._display, self._handle = display, None

    def show(self, snapshot: dict[str, Any]) -> None:
        if self._handle is None:
            self._handle = self._display(Cell(snapshot), display_id=True)
        else:
            self._handle.update(Cell(snapshot))
