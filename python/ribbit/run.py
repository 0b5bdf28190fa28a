"""One call of ``sample``: the only loop over draws."""

from __future__ import annotations

import dataclasses
import math
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ribbit._arrays import overrides
from ribbit._arrays.namespace import host_dtype, namespace, to_host
from ribbit._arrays.threads import Interrupted, version
from ribbit._arrays.warning import warn
from ribbit.adapter import GroupChains, LocalChains, Thinning
from ribbit.distributed.ranks import Together
from ribbit.errors import ConvergenceWarning
from ribbit.foresight import Foresight
from ribbit.interrupt import InterruptGuard, carrying, here, way_on
from ribbit.progress import Progress, ProgressOption
from ribbit.protocols import Array
from ribbit.results import archive
from ribbit.results.draws import Draws
from ribbit.results.outcome import unconverged
from ribbit.results.prediction import Prediction
from ribbit.results.running import RunningPrediction
from ribbit.results.state import AnyState, StochasticState
from ribbit.sinks import Memory, Sink
from ribbit.store import Checkpoint, Folder
from ribbit.until import ConvergenceMonitor

__all__ = ["Run"]

_BLOCK = 1 << 14  # parameters that are looked at together
_SECONDS = 0.1  # of a call of `advance`, between looks at Ctrl-C, the clock and the display


class Run:
    """One call of ``sample``: chains, sinks, and how far they are.

    `lock` is held while draws are put down, so that another thread sees draws, statistics and state
    together. `reserve` returns the seconds of ``max_seconds`` that the end of the run needs, such
    as a last checkpoint. `ended` is "running", then the reason of ``settings["stopped"]``.
    """

    def __init__(
        self,
        sampler: Any,
        state: AnyState,
        num_draws: int,
        thinning: Thinning,
        save_draws: bool,
        save_warmup: bool,
        running: RunningPrediction | None,
        *,
        origin: dict[str, Any] | None = None,
        found: dict[str, Any] | None = None,
        begin: float,
        watch: ConvergenceMonitor,
        store: Checkpoint | None = None,
        ranks: Together | None = None,
        remote: LocalChains | None = None,
    ) -> None:
        """Make the sinks.

        origin: how the start was found, in a call that began at `begin`. found: settings of this
        run in addition to the sampler's. store: a folder, whose earlier draws count; if another
        rank writes it, its checkpoint. ranks: on which the run is made. remote: the chains of a run
        with an executor.
        """
        self.ranks = None if ranks is None or ranks.group is None else ranks
        self.remote = remote
        self.origin, self.found, self.begin = origin, found or {}, begin
        self.watch, self.store = watch, store if isinstance(store, Folder) else None
        self.way_on = way_on(self.store) if self.store is store else "the same call resumes"
        self.lock = threading.Lock()
        self.reserve: Callable[[], float] = (
            (lambda: 0.0) if self.store is None else self.store.reserve
        )
        self.ended = "running"
        self.sampler, self.state = sampler, state
        self.num_draws, self.thinning = num_draws, thinning
        self.save_draws, self.save_warmup = save_draws, save_warmup
        self.running = running
        self.seconds: float | None = None
        # Of a thinned run, diverging transitions since the last draw.
        self._divergences: Any = getattr(state, "divergences", None)
        owed = max(0, state.warmup - state.step)
        statistics = dict(sampler._statistics)
        if thinning.period > 1 and "diverging" in statistics:
            statistics["divergences"] = "int64"  # the draws do not tell how many diverged
        dim = sampler._density.full_dim
        self.draws: Sink
        self.warmup: Sink | None = None
        self.predictions: Any = None  # a file of the predictions of each draw
        self.kept = 0 if store is None else store.num_draws
        if self.store is not None:
            self.draws, self.warmup, self.predictions = self.store.begin(
                np.empty((state.position.shape[0], 0, dim), host_dtype(state.position)),
                statistics,
                positions=save_draws,
                warmup=save_warmup and owed > 0,
                running=running,
            )
            if not self.store.begun:
                self.store.checkpoint(self._checkpoint, now=True)
        else:
            grows = watch.rule is not None
            position = state.position
            self.draws = Memory(
                position, dim, num_draws, statistics, positions=save_draws, grows=grows
            )
            if store is not None and self.kept:
                none = np.empty((position.shape[0], self.kept, 0), host_dtype(position))
                self.draws.append(none, archive.get(store.arrays, "stats"))
            if save_warmup:
                self.warmup = Memory(position, dim, owed, statistics, positions=True)
        # Draws lie at fixed step numbers, whatever the step of a resumed state is.
        self._draws_before = thinning.count(max(0, state.step - state.warmup)) - self.kept
        self.first = state.step  # of this run, whose earlier calls filled the folder
        if store is not None and store.begun:
            self.first = self._step_of(0) if self._draws_before else 0
        self.total = self._step_of(watch.expected_draws) - self.first

    def complete(
        self,
        name: str,
        guard: InterruptGuard,
        progress: ProgressOption,
        max_seconds: float | None,
    ) -> Draws:
        """Run, and pack what there is; an exception carries that too."""
        if here.handle is not None:
            here.handle._take_run(self)
        with carrying(name, "draws", self._done, self.way_on):
            if self.store is None:
                self.loop(name, guard, progress, max_seconds)
            else:
                with self.store.finishing(self._checkpoint):
                    self.loop(name, guard, progress, max_seconds)
            return self.finish(name, guard)

    def loop(
        self,
        name: str,
        guard: InterruptGuard,
        progress: ProgressOption,
        max_seconds: float | None,
    ) -> None:
        """Advance until all draws are kept, enough are, Ctrl-C, or the time is over."""
        sampler, watch, store = self.sampler, self.watch, self.store
        thinning, first, warmup = self.thinning, self.first, self.state.warmup
        reporter = Progress(
            progress,
            total=self.total,
            chains=self.state.position.shape[0],
            warmup=max(0, warmup - first),
            done=self.state.step - first,
            draws=self._draws_after,
            title=sampler._title,
        )

        def left() -> float:
            """Return the seconds until `max_seconds`, less the time of a last checkpoint."""
            if max_seconds is None:
                return math.inf
            return self.begin + max_seconds - self.reserve() - time.perf_counter()

        start = sampler, self.state, thinning
        chains = self.remote or LocalChains(*start, each=self.save_warmup)
        if self.ranks is not None:
            chains = GroupChains(*start, each=self.save_warmup, ranks=self.ranks, left=left)
        if self.running is not None:
            chains.largest = self.running.room(self.state.position.shape[0])
        foresight = Foresight(sampler._density, self._settled(), first + self.total)
        with reporter:
            # Ctrl-C may have ended the last check of the draws in the folder.
            met = watch.due(self.kept) and self._enough(guard, reporter)
            met = met or watch.met  # of a folder that is complete
            while self.kept < self.num_draws and not (guard.requested or met):
                warming, before, begun = chains.warming_up, chains.step, time.perf_counter()
                seconds = min(_SECONDS, left())
                positions, stats = chains.advance(self._room(), seconds, guard, foresight.stop)
                if not self._put(chains, positions, stats, guard, warming=warming):
                    break
                spent = time.perf_counter() - begun
                foresight.update(name, self.state, before, stats, spent)
                met = watch.due(self.kept) and self._enough(guard, reporter)
                for step, told in chains.told:
                    reporter.update(step - first, told)
                if met:
                    break
                if store is not None:
                    store.checkpoint(self._checkpoint)
                if chains.over or (self.ranks is None and left() <= 0.0):
                    self._enough(guard, reporter, last=True)
                    break
            chains.raise_deferred()
            reporter.reason = self._why(guard)
        if not guard.requested:
            try:
                watch.predict(guard)
            except (Interrupted, KeyboardInterrupt):
                if not guard.requested:
                    raise
        self.ended = self._why(guard)
        self.seconds = self._elapsed()

    def _room(self) -> int:
        """Return the draws until the next look, as many as there is memory for."""
        most = min(self.num_draws - self.kept, self.watch.room(self.kept))
        return min(most, self.draws.room())

    def _put(
        self,
        chains: LocalChains,
        positions: Array | None,
        stats: dict[str, Array],
        guard: InterruptGuard,
        *,
        warming: bool,
    ) -> bool:
        """Keep a block; False if Ctrl-C ended the predictions at its draws, which are discarded."""
        batch, drawn = None, None if warming else positions
        if drawn is not None and self.running is not None:
            xp = namespace(drawn)
            theta = xp.reshape(xp.permute_dims(drawn, (1, 0, 2)), (-1, drawn.shape[2]))
            try:
                batch = self.running.evaluate(theta, guard)
            except (Interrupted, KeyboardInterrupt):
                if not guard.requested:
                    raise
                return False
        with self.lock:
            try:
                if drawn is not None:
                    if self.running is not None and batch is not None:
                        self.running.add(batch, drawn.shape[0])
                        if self.predictions is not None:
                            self.predictions.append(to_host(batch[0].values))
                    self.draws.append(drawn, stats)
                    self.watch.append(drawn)
                    self.kept += drawn.shape[1]
                elif positions is not None and self.warmup is not None:
                    self.warmup.append(positions, stats)
                self.state, self._divergences = chains.state, chains.divergences
            except BaseException as error:
                if self.store is not None:  # its files have rows that no state may count
                    self.store.errors.append(error)
                raise
        return True

    def _elapsed(self) -> float:
        """Return the seconds of this call, and of those before that filled the same folder."""
        before = 0.0 if self.store is None else self.store.header.get("seconds", 0.0)
        return before + time.perf_counter() - self.begin

    def _checkpoint(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what a folder needs to continue the run: plain values and arrays."""
        values: dict[str, Any] = {
            "complete": self._is_complete(),
            "seconds": self._elapsed(),
            "settings": self._settings(),
            "predictive": self._described(),
            "origin": self.origin,
            "found": self.found,
        }
        arrays: dict[str, Any] = {}
        archive.put_state(arrays, values, self._state())
        values["watch"], watched = self.watch.pack()
        archive.put(arrays, "watch", watched)
        if self.running is not None and self.running.moments.count:
            values["prediction"], gathered = self.running.pack()
            archive.put(arrays, "prediction", gathered)
        return values, arrays

    def _state(self) -> AnyState:
        """Return the state of the run, with the divergences since the last draw."""
        state = self.state
        if isinstance(state, StochasticState) or state.divergences is self._divergences:
            return state
        found = None if self._divergences is None else to_host(self._divergences)
        return dataclasses.replace(state, divergences=found)

    def _is_complete(self) -> bool:
        """Whether the run is over: there is nothing that the same line would add."""
        if self.watch.due(self.kept):
            return False
        return self.kept == self.num_draws or self.ended == "converged"

    def _step_of(self, count: int) -> int:
        """Return the number of the step that gives the draw `count` of this run."""
        return self.state.warmup + self.thinning.step(self._draws_before + count)

    def _draws_after(self, done: int) -> int:
        """Return the draws of this run after so many of its steps."""
        return (
            self.thinning.count(max(0, self.first + done - self.state.warmup)) - self._draws_before
        )

    def _enough(self, guard: InterruptGuard, reporter: Any, *, last: bool = False) -> bool:
        """Whether the draws are what `until` asks for, or Ctrl-C ends the look at them."""
        watch = self.watch
        if self.kept == 0:
            return False
        try:
            watch.check(self.kept, self.draws, self._settings(), guard, self._confirmed, last=last)
        except (Interrupted, KeyboardInterrupt):
            if not guard.requested:
                raise
            return True
        reporter.total = self._step_of(watch.expected_draws) - self.first
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
        draws = self._pack()
        if interrupted:
            return draws
        text = unconverged(draws) or self._unmet(draws)
        if text is not None:
            warn(f"[{name}] {text}", ConvergenceWarning)
        return draws

    def _unmet(self, draws: Draws) -> str | None:
        """Return what a run lacks that has ended before its draws were what `until` asks for."""
        rule, last = self.watch.rule, self.watch.last_check
        if rule is None or last is None or last.met:
            return None
        start = f"until= was not met after {self.watch.checked_at} draws per chain ({self.ended})"
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
        positions, stats = self.draws.positions(self.kept), self.draws.stats(self.kept)
        warmup_positions, warmup_stats = None, None
        if self.warmup is not None:
            warmup_positions = self.warmup.positions(self.warmup.count)
            warmup_stats = self.warmup.stats(self.warmup.count)
        predictive = target if callable(getattr(target, "predictive", None)) else None
        prediction = None
        if running is not None:
            prediction = Prediction(
                running.predictive,
                running.x,
                positions=positions if self.save_draws else None,
                running=running,
                samples=None if self.predictions is None else self.predictions.array(self.kept),
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
            "thin": self.thinning.period,
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
        if watch.rule is not None and (last := watch.last_check) and watch.checked_at == self.kept:
            stopped["rhat"] = last.rhat if math.isfinite(last.rhat) else None
            stopped["ess"] = last.ess if math.isfinite(last.ess) else None
            stopped["of"] = last.of
        return {**watch.settings(), "stopped": stopped}

    def _faults(self) -> dict[str, float]:
        """Return what only the run knows to be wrong, for the table of checks."""
        found, target = {}, self.sampler._density.target
        if self.sampler._density.undefined:
            diverging = self.draws.stats(self.kept).get("diverging")
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
