"""One call of ``sample``: the only loop over draws."""

from __future__ import annotations

import dataclasses
import math
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ribbit._arrays import overrides
from ribbit._arrays.namespace import from_host, namespace, to_host
from ribbit._arrays.threads import Interrupted, version
from ribbit._arrays.warning import warn
from ribbit.errors import ConvergenceWarning
from ribbit.protocols import Array
from ribbit.results.draws import Draws
from ribbit.results.outcome import unconverged
from ribbit.results.prediction import Prediction
from ribbit.results.running import RunningPrediction
from ribbit.results.state import AnyState, StochasticState
from ribbit.results.store.run_store import Followed, Place, RunStore, StoredRecord
from ribbit.samplers.run.calendar import Calendar
from ribbit.samplers.run.elsewhere import Elsewhere
from ribbit.samplers.run.foresight import Foresight
from ribbit.samplers.run.growing import GrowingRecord
from ribbit.samplers.run.interrupt import InterruptGuard, carrying, here, way_on
from ribbit.samplers.run.progress import Progress, ProgressOption
from ribbit.samplers.run.ranks import Together
from ribbit.samplers.run.record import Chunk, Record, Report
from ribbit.samplers.run.several import Several
from ribbit.samplers.run.target import Density
from ribbit.samplers.run.until import Watch

__all__ = ["Run"]

_BLOCK = 1 << 14  # parameters that are looked at together


class Transitions(Protocol):
    """What a run needs of a sampler."""

    _density: Density  # what is sampled
    _ahead: bool  # whether steps are made before they are asked for: then take all up to a stop

    @property
    def _title(self) -> str:
        """Name of the sampler."""
        ...

    @property
    def settings(self) -> dict[str, Any]:
        """Options as plain values."""
        ...

    @property
    def _statistics(self) -> dict[str, str]:
        """Names and dtypes of what a step reports."""
        ...

    @property
    def _chunked(self) -> bool:
        """Whether several steps are made in one call where no draw lies between."""
        ...

    def _advance(
        self, state: Any, num_steps: int, guard: InterruptGuard | None
    ) -> tuple[AnyState, dict[str, Array]]:
        """Make steps; a pure function of `state`."""
        ...

    @property
    def _several(self) -> bool:
        """Whether `_advance_several` makes several draws in one call."""
        ...

    @property
    def _several_in_warmup(self) -> bool:
        """Whether it makes steps of warmup too."""
        ...

    @property
    def _call_seconds(self) -> float:
        """How long a call of several steps takes, about."""
        ...

    def _advance_several(
        self, state: Any, stops: Any, kept: Any, guard: InterruptGuard | None
    ) -> tuple[AnyState, dict[str, Array]] | None:
        """Fill kept (C, K, P), unless None, with the draws at `stops` (K,); None: a step fails."""
        ...

    def _settled(self, warmup: int) -> int | None:
        """Step of warmup from which trajectories have about the length that they will keep."""
        ...


class _Made(NamedTuple):
    """What a call of the sampler gives: at most one draw, or several.

    position (C, P) and info (C,) of one step, or (C, K, P) and (C, K) of K: `columns`. batch: what
    the draw predicts.
    """

    state: AnyState
    position: Array
    info: dict[str, Array]
    draws: int
    batch: Any = None
    columns: int = 0

    @property
    def last(self) -> dict[str, Array]:
        """Statistics (C,) of the last step."""
        if self.columns == 0:
            return self.info
        return {name: values[:, -1] for name, values in self.info.items()}


class Run:
    """One call of ``sample``: buffers, and where they are filled to.

    `lock` is held while a draw is put down, so that another thread sees draw, statistics and state
    together. `reserve` returns the seconds of ``max_seconds`` that the end of the run needs, such
    as a last flush to a disk. `ended` is "running", then the reason of ``settings["stopped"]``.
    """

    def __init__(
        self,
        sampler: Transitions,
        state: AnyState,
        num_draws: int,
        calendar: Calendar,
        save_draws: bool,
        save_warmup: bool,
        running: RunningPrediction | None,
        *,
        origin: dict[str, Any] | None = None,
        found: dict[str, Any] | None = None,
        begin: float,
        watch: Watch,
        store: RunStore | Followed | None = None,
        ranks: Together | None = None,
    ) -> None:
        """Make buffers.

        `origin`: how the start was found, in a call that began at `begin`; `found`: settings of
        this run beside the sampler's. With a `store` buffers are on the disk, and what was kept
        there before counts; with one that another rank writes, statistics are in memory. `ranks`:
        on which it is made.
        """
        followed, store = (store, None) if isinstance(store, Followed) else (None, store)
        self.ranks = ranks
        self.origin, self.found, self.begin = origin, found or {}, begin
        self.watch, self.store = watch, store
        self.way_on = way_on(store) if followed is None else "the same call resumes"
        self.lock = threading.Lock()
        self.reserve: Callable[[], float] = (lambda: 0.0) if store is None else store.reserve
        self.ended = "running"
        self.sampler, self.state = sampler, state
        self.num_draws, self.calendar = num_draws, calendar
        self.save_draws = save_draws
        self.running = running
        self.first, self.kept, self.warm = state.step, 0, 0
        self.seconds: float | None = None
        owed = max(0, state.warmup - state.step)
        statistics = dict(sampler._statistics)
        # The draws of a thinned run do not tell how many transitions diverged.
        self._counts = calendar.period > 1 and "diverging" in statistics
        if self._counts:
            statistics["divergences"] = "int64"
        self._divergences: Any = getattr(state, "divergences", None)  # since the last draw
        dim = sampler._density.full_dim
        # Draws sit at fixed step numbers, whatever the step of a resumed state is.
        past = max(0, state.step - state.warmup)
        self._past, self._owed = past, owed
        self.draws: Record | GrowingRecord | StoredRecord
        self.warmup: Record | StoredRecord | None = None
        if store is not None:
            self.kept, self.warm, store.origin = store.kept, store.warm, origin
            store.found = self.found
            self.draws, self.warmup = store.records(
                state,
                dim,
                (num_draws, owed),
                statistics,
                positions=save_draws,
                warmup=save_warmup,
                settings=self._settings(),
                predictive=self._described(),
                running=running,
            )
        else:
            record = Record if watch.rule is None else GrowingRecord
            self.draws = record(state, dim, num_draws, statistics, positions=save_draws)
            if followed is not None and followed.kept and isinstance(self.draws, Record):
                self.kept = followed.kept
                self.draws.restore(followed.kept, followed.stats)
            if save_warmup:
                self.warmup = Record(state, dim, owed, statistics, positions=True)
        self._before = self.kept
        self.total = self._steps_to(watch.expected)
        if isinstance(sampler, Elsewhere):
            sampler.end = state.step + self._steps_to(num_draws)

    def complete(
        self,
        name: str,
        guard: InterruptGuard,
        progress: ProgressOption,
        max_seconds: float | None,
    ) -> Draws:
        """Run, and pack what there is; an exception carries that too."""
        if here.handle is not None:
            here.handle.begun(self)
        with carrying(name, "draws", self._done):
            if self.store is None:
                self.loop(name, guard, progress, max_seconds)
            else:
                with self.store.finishing_at(self._place):
                    self.loop(name, guard, progress, max_seconds)
            return self.finish(name, guard)

    def loop(
        self,
        name: str,
        guard: InterruptGuard,
        progress: ProgressOption,
        max_seconds: float | None,
    ) -> None:
        """Make steps until all draws are kept, enough are, Ctrl-C, or the time is over.

        Phases of a call: what may be discarded, what belongs together, what may end the run.
        """
        sampler, state, watch = self.sampler, self.state, self.watch
        first, warmup, calendar = state.step, state.warmup, self.calendar
        store, met = self.store, watch.met  # of a folder that is complete
        end = None if max_seconds is None else self.begin + max_seconds
        ranks = None if self.ranks is None or self.ranks.group is None else self.ranks
        reporter = Progress(
            progress,
            total=self.total,
            chains=state.position.shape[0],
            warmup=max(0, warmup - first),
            thin=max(1, calendar.period // calendar.many),
            title=sampler._title,
        )
        report = Report(reporter, on_host=sampler._density.xp is np)
        chunk = Chunk(sampler._call_seconds)
        dim = sampler._density.full_dim
        thinned = calendar.period > calendar.many
        several = None
        if self._in_one_call():
            # A display is told of every transition; of draws further apart a call tells of these.
            shown = reporter.wanted and thinned and sampler._several_in_warmup
            several = Several(state, calendar, dim, draws=not shown)
        foresight = Foresight(sampler._density, self._settled(), first + self.total)
        with reporter:
            # A look that Ctrl-C ended, and the draws of which are in the folder.
            if watch.owes(self.kept):
                met = self._enough(guard, reporter) or met
            while self.kept < self.num_draws and not (guard.requested or met):
                try:
                    made = None
                    if several is not None:
                        made = self._several(several, chunk, foresight, guard)
                    if made is None:
                        left = self._left()
                        count = left if sampler._ahead else chunk.size(left)
                        if ranks is not None:
                            late = end is not None and time.perf_counter() >= end - self.reserve()
                            over = late and self.state.step > first
                            count, over = ranks.agree(lambda: self.state.position, count, over)
                            if guard.requested or over:
                                self._enough(guard, reporter, last=True)
                                break
                        made = self._single(count, guard)
                except (Interrupted, KeyboardInterrupt):
                    if not guard.requested:
                        raise
                    break  # the steps are discarded; resuming makes them again
                # No exception from here on: draw, statistics and state belong together.
                state = made.state
                count = state.step - self.state.step
                chunk.made(count)
                self._put(made)
                if made.columns == count and sampler._several_in_warmup:
                    report.update_each(state.step - first, made.info, count)
                else:
                    report.update(state.step - first, made.last)
                foresight.update(name, state, made.last)
                if watch.due(self.kept) and self._enough(guard, reporter):
                    break
                if store is not None:
                    store.after_step(self._place)
                if (
                    ranks is None
                    and end is not None
                    and time.perf_counter() >= end - self.reserve()
                ):
                    self._enough(guard, reporter, last=True)
                    break
            report.flush()
            reporter.reason = self._why(guard)
        if not guard.requested:
            try:
                watch.predict(guard)
            except (Interrupted, KeyboardInterrupt):
                if not guard.requested:
                    raise
        self.ended = self._why(guard)
        self.seconds = self._elapsed()

    def _in_one_call(self) -> bool:
        """Whether a call may make several draws: where nothing else is to be done at each."""
        sampler = self.sampler
        alone = self.ranks is None or self.ranks.group is None
        return sampler._several and alone and self.running is None

    def _several(
        self, several: Several, chunk: Chunk, foresight: Foresight, guard: InterruptGuard
    ) -> _Made | None:
        """Make draws in one call, up to the next look at them; None: one call makes no more."""
        sampler, state = self.sampler, self.state
        warms, free = state.step < state.warmup, foresight.free(state.step)
        if warms and sampler._several_in_warmup:
            stops = several.warmup_stops(state, min(state.warmup - state.step, free), chunk)
        elif warms or free < sys.maxsize:
            return None
        else:
            most = min(self.num_draws - self.kept, self.draws.room(self.kept))
            most = min(most, self.watch.next - self.kept)
            stops = several.stops(state, most, chunk)
        if stops is None:
            return None
        keeps = not warms or self.warmup is not None
        kept = several.space(state, len(stops)) if keeps else None
        found = sampler._advance_several(state, stops, kept, guard)
        if found is None:  # a call for one draw will fail too, after the draws before it
            several.ended = True
            return None
        after, info = found
        position = after.position if kept is None else kept
        # A call may have ended at an earlier one of these steps.
        count = int(np.searchsorted(stops, after.step, side="right"))
        if kept is not None and count < len(stops):
            position = np.ascontiguousarray(kept[:, :count])
        return _Made(after, position, info, 0 if warms else count, columns=count)

    def _single(self, count: int, guard: InterruptGuard) -> _Made:
        """Make `count` steps, which lead to no more than one draw."""
        density, calendar = self.sampler._density, self.calendar
        state, info = self.sampler._advance(self.state, count, guard)
        after = state.step - state.warmup
        keep = after > 0 and calendar.count(after) > calendar.count(after - 1)
        batch, position = None, state.position
        if keep or self.warmup is not None:
            position = density.completed(state, guard)
        if keep:
            if self.running is not None:
                batch = self.running.evaluate(position, guard)
            self.draws.room(self.kept)
        return _Made(state, position, info, int(keep), batch)

    def _counted(self, made: _Made) -> dict[str, Array]:
        """Return the statistics to keep, with all divergences since the draw before."""
        info = dict(made.info)
        found = info.pop("divergences", info.get("diverging"))
        if not self._counts:
            return info
        xp = namespace(found)
        info["divergences"] = found = xp.astype(found, xp.int64, copy=True)
        if made.state.step <= made.state.warmup:
            return info
        if self._divergences is not None:
            first = found[:, 0] if made.columns else found
            first += from_host(xp, self._divergences)
        self._divergences = None if made.draws else found
        return info

    def _put(self, made: _Made) -> None:
        """Keep what was made, and where the run is then."""
        state, position, _, draws, batch, _ = made
        info = self._counted(made)
        with self.lock:
            if draws > 0 and made.columns > 0:
                self.draws.put_several(self.kept, position, info)
                self.watch.take(position)
            elif draws == 1:
                if batch is not None and self.running is not None:
                    self.running.add(batch)
                self.draws.put(self.kept, position, info)
                if self.store is not None and batch is not None:
                    self.store.put_predictions(self.kept, batch[0].values)
                self.watch.take(position[:, None, :])
            elif self.warmup is not None and state.step <= state.warmup:
                if made.columns:
                    self.warmup.put_several(self.warm, position, info)
                else:
                    self.warmup.put(self.warm, position, info)
                self.warm += max(1, made.columns)
            self.kept += draws
            self.state = state

    def _elapsed(self) -> float:
        """Return the seconds of this call, and of those before that filled the same folder."""
        before = 0.0 if self.store is None else self.store.seconds
        return before + time.perf_counter() - self.begin

    def _place(self) -> Place:
        """Return what a checkpoint says."""
        return Place(
            self.kept,
            self.warm,
            self._state(),
            self.running,
            self._elapsed(),
            self._settings(),
            self.watch.pack(),
            self._is_complete(),
        )

    def _state(self) -> AnyState:
        """Return the state of the run, with the divergences since the last draw."""
        state = self.state
        if isinstance(state, StochasticState) or state.divergences is self._divergences:
            return state
        found = None if self._divergences is None else to_host(self._divergences)
        return dataclasses.replace(state, divergences=found)

    def _is_complete(self) -> bool:
        """Whether the run is over: there is nothing that the same line would add."""
        if self.watch.owes(self.kept):
            return False
        return self.kept == self.num_draws or self.ended == "converged"

    def _steps_to(self, count: int) -> int:
        """Return the steps of this run up to its draw `count`."""
        calendar, past = self.calendar, self._past
        return self._owed + calendar.step(calendar.count(past) + count - self._before) - past

    def _enough(self, guard: InterruptGuard, reporter: Any, *, last: bool = False) -> bool:
        """Whether the draws are what `until` asks for, or Ctrl-C ends the look at them."""
        watch = self.watch
        if self.kept == 0:
            return False
        try:
            watch.look(self.kept, self.draws, self._settings(), guard, self._confirmed, last=last)
        except (Interrupted, KeyboardInterrupt):
            if not guard.requested:
                raise
            return True
        reporter.total = max(reporter.total, self._steps_to(watch.expected))
        if watch.met:
            reporter.total = self._steps_to(self.kept)
        return watch.met

    def _confirmed(self) -> bool:
        """Whether the summary says so, of the very inputs of the rule."""
        draws, rule = self._pack(), self.watch.rule
        assert rule is not None
        draws.settings["faults"] = self._faults()
        return draws.summary(rule.at if draws.positions.shape[1] else None).converged is True

    def _why(self, guard: InterruptGuard) -> str:
        if self.watch.met:
            return "converged"
        if self.kept == self.num_draws:
            return "num_draws" if self.watch.rule is None else "max_draws"
        return "interrupted" if guard.requested else "max_seconds"

    def _settled(self) -> int | None:
        """Return the step from which trajectories have their length, where it lies ahead."""
        settled = self.sampler._settled(self.state.warmup)
        return None if settled is None or settled < self.state.step else settled

    def _left(self) -> int:
        """Return how many steps one call may make: to the next draw or the end of warmup."""
        if not self.sampler._chunked:
            return 1
        step = self.state.step
        each = self.warmup is not None
        return self.calendar.stop(step, self.state.warmup, each=each) - step

    def finish(self, name: str, guard: InterruptGuard) -> Draws:
        """Pack what there is."""
        interrupted = self.ended == "interrupted"
        if interrupted and not guard.asked:
            warn(
                f"[{name}] interrupted after {self.kept} of {self.num_draws} draws per chain; "
                f"returning these ({self.way_on or 'continue with resume=draws'})",
            )
        state = self.state
        if self.kept == 0 < self.num_draws and not interrupted:
            warn(
                f"[{name}] expected at least one draw within max_seconds, got none: the run ended "
                f"after {state.step} steps, {max(0, state.warmup - state.step)} of warmup to go "
                f"({self.way_on or 'continue with resume=draws'})",
            )
        if interrupted:
            return self._pack()
        draws = self._pack()
        text = unconverged(draws) or self._unmet(draws)
        if text is not None:
            warn(f"[{name}] {text}", ConvergenceWarning)
        return draws

    def _unmet(self, draws: Draws) -> str | None:
        """Return what a run lacks that has ended before its draws were what `until` asks for."""
        rule, last = self.watch.rule, self.watch.last
        if rule is None or last is None or last.met:
            return None
        start = f"until= was not met after {self.watch.at} draws per chain ({self.ended})"
        if last.rhat <= rule.rhat and last.ess >= rule.ess:
            return f"{start}. {draws.summary().message}"
        return (
            f"{start}: R-hat is {last.rhat:.3f} (wanted {rule.rhat:g}) for the "
            f"{last.of or 'draws'}, with {last.ess:.0f} effective draws (wanted {rule.ess:g}). "
            "resume=draws continues."
        )

    def snapshot(self) -> Draws:
        """Return the draws so far, from another thread while the run goes on."""
        with self.lock:
            running = None if self.running is None else self.running.copy()
            return self._pack(running, self._elapsed())

    def _done(self) -> tuple[Draws, str]:
        if self.ended == "running":
            self.ended = "an exception"
        return self._pack(), f"{self.kept} of {self.num_draws} draws per chain"

    def _pack(
        self, running: RunningPrediction | None = None, seconds: float | None = None
    ) -> Draws:
        sampler, state = self.sampler, self._state()
        running = self.running if running is None else running
        seconds = self.seconds if seconds is None else seconds
        target = sampler._density.target
        positions, stats = self.draws.upto(self.kept)
        warmup_positions, warmup_stats = (
            (None, None) if self.warmup is None else self.warmup.upto(self.warm)
        )
        predictive = target if callable(getattr(target, "predictive", None)) else None
        prediction = None
        if running is not None:
            prediction = Prediction(
                running.predictive,
                running.x,
                positions=positions if self.save_draws else None,
                running=running,
                samples=None if self.store is None else self.store.predictions(self.kept),
            )
        return Draws(
            positions=positions,
            stats=stats,
            complete=self._is_complete(),
            state=state,
            settings=self._settings(),
            predictive=predictive,
            prediction=prediction,
            warmup_positions=warmup_positions,
            warmup_stats=warmup_stats,
            seconds=seconds,
            monitored=self.watch.monitored,
        )

    def _settings(self) -> dict[str, Any]:
        """Return how the draws were made, as plain values."""
        sampler, state = self.sampler, self.state
        target = sampler._density.target
        return {
            "sampler": sampler._title,
            **sampler.settings,
            **self.found,
            "num_draws": self.num_draws,
            "warmup": state.warmup,
            "thin": self.calendar.period,
            "chains": state.chains.tolist(),
            "seed": state.seed,
            **({} if self.origin is None else {"start": self.origin}),
            **_integrated(target),
            "dtype": sampler._density.dtype.name,
            **_kernels(target),
            "save_draws": self.save_draws,
            **self._rule(),
            **({} if self.ended == "running" else {"faults": self._faults()}),
            "versions": _versions(),
        }

    def _described(self) -> dict[str, Any] | None:
        """Return what predicts, as a file describes it."""
        target = self.sampler._density.target
        if not callable(getattr(target, "predictive", None)):
            return None
        return overrides.described(target)

    def _rule(self) -> dict[str, Any]:
        """Return until= and why the run has ended, as plain values."""
        stopped: dict[str, Any] = {"reason": self.ended, "draws": self.kept}
        watch = self.watch
        if watch.rule is not None and (last := watch.last) and watch.at == self.kept:
            stopped["rhat"] = last.rhat if math.isfinite(last.rhat) else None
            stopped["ess"] = last.ess if math.isfinite(last.ess) else None
            stopped["of"] = last.of
        return {**watch.settings(), "stopped": stopped}

    def _faults(self) -> dict[str, float]:
        """Return what only the run knows to be wrong, for the table of checks."""
        found, target = {}, self.sampler._density.target
        if self.sampler._density.undefined:
            diverging = self.draws.upto(self.kept)[1].get("diverging")
            if diverging is not None and to_host(diverging).any():
                found["undefined"] = 1.0
        sd = getattr(target, "prior_sd", None)
        # A normal prior has no mass out there; a heavy tail may have.
        if sd is not None and getattr(target, "normal_prior", False):
            widths = to_host(sd) * getattr(target, "temperature", 1.0) ** 0.5
            mean = to_host(getattr(target, "prior_mean", np.zeros(1)))
            found["far"] = float(_largest(to_host(self.state.position), mean, widths).max())
        return found


def _largest(
    position: npt.NDArray[Any], mean: npt.NDArray[Any], widths: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """Return max |position - mean| / widths of each chain (C,), in parts that stay in the cache."""
    shape = position.shape[1:]
    mean, widths = np.broadcast_to(mean, shape), np.broadcast_to(widths, shape)
    worst = np.zeros(position.shape[0])
    for low in range(0, position.shape[1], _BLOCK):
        part = slice(low, low + _BLOCK)
        for chain, row in enumerate(position):
            size = np.abs(row[part] - mean[part]) / widths[part]
            worst[chain] = np.maximum(worst[chain], size.max())
    return worst


def _integrated(target: Any) -> dict[str, str]:
    """Return what a target completes but does not move: states and "lp" are those of the rest."""
    part = getattr(target, "integrated", None)
    return {} if part is None else {"integrated": part}


def _kernels(target: Any) -> dict[str, str]:
    """How the target computes products and with which instructions, where it says so."""
    name = getattr(target, "precision", None)
    found = {"precision": name} if isinstance(name, str) else {}
    kernels = getattr(target, "instruction_set", None)
    return found | ({"instruction_set": kernels} if isinstance(kernels, str) else {})


def _versions() -> dict[str, str]:
    return {
        "ribbit": version(),
        "numpy": np.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
    }
