"""One call of ``sample``: the only loop over draws."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np

from ribbit._arrays.namespace import to_host
from ribbit._arrays.threads import Interrupted, version
from ribbit.errors import ConvergenceWarning
from ribbit.protocols import Array
from ribbit.results import verdicts
from ribbit.results.draws import Draws
from ribbit.results.prediction import Prediction
from ribbit.results.running import RunningPrediction
from ribbit.results.state import AnyState
from ribbit.samplers.run.calendar import Calendar
from ribbit.samplers.run.caution import warn
from ribbit.samplers.run.foresight import Foresight
from ribbit.samplers.run.interrupt import Carrying, InterruptGuard
from ribbit.samplers.run.record import Chunk, Record, Report
from ribbit.samplers.run.target import Density

__all__ = ["ProgressOption", "Run"]

_FAR = 20.0  # prior standard deviations

ProgressOption: TypeAlias = bool | Callable[[dict[str, Any]], object] | None


class Transitions(Protocol):
    """What a run needs of a sampler."""

    _density: Density  # what is sampled

    @property
    def settings(self) -> dict[str, Any]:
        """Options as plain values."""
        ...

    @property
    def statistics(self) -> dict[str, str]:
        """Names and dtypes of what a step reports."""
        ...

    @property
    def chunked(self) -> bool:
        """Whether several steps are made in one call where no draw lies between."""
        ...

    def _advance(
        self, state: Any, num_steps: int, guard: InterruptGuard | None
    ) -> tuple[AnyState, dict[str, Array]]:
        """Make steps; a pure function of `state`."""
        ...

    def _settled(self, warmup: int) -> int | None:
        """Step of warmup from which trajectories have about the length that they will keep."""
        ...


class Run:
    """One call of ``sample``: buffers, and where they are filled to."""

    def __init__(
        self,
        sampler: Transitions,
        state: AnyState,
        num_draws: int,
        calendar: Calendar,
        keep_draws: bool,
        keep_warmup: bool,
        running: RunningPrediction | None,
        *,
        origin: dict[str, Any] | None = None,
        begin: float | None = None,
    ) -> None:
        """Make buffers; `origin`: how the start was found, by a fit that began at `begin`."""
        self.origin, self.begin = origin, begin
        self.sampler, self.state = sampler, state
        self.num_draws, self.calendar = num_draws, calendar
        self.keep_draws = keep_draws
        self.running = running
        self.kept = 0
        self.warm = 0
        self.seconds: float | None = None
        owed = max(0, state.warmup - state.step)
        statistics = sampler.statistics
        dim = sampler._density.full_dim
        self.draws = Record(state, dim, num_draws, statistics, positions=keep_draws)
        self.warmup = Record(state, dim, owed, statistics, positions=True) if keep_warmup else None
        # Draws sit at fixed step numbers, whatever the step of a resumed state is.
        past = max(0, state.step - state.warmup)
        self.total = owed + calendar.step(calendar.count(past) + num_draws) - past

    def complete(
        self,
        name: str,
        guard: InterruptGuard,
        progress: ProgressOption,
        max_seconds: float | None,
    ) -> Draws:
        """Run, and pack what there is; an exception carries that too."""
        with Carrying(name, "draws", self._done, guard):
            self.loop(name, guard, progress, max_seconds)
            guard.check_terminated()
            return self.finish(name, guard.requested)

    def loop(
        self,
        name: str,
        guard: InterruptGuard,
        progress: ProgressOption,
        max_seconds: float | None,
    ) -> None:
        """Make steps until all draws are kept, Ctrl-C, or the time is over."""
        from ribbit.samplers.run.progress import open_progress

        sampler, state, running = self.sampler, self.state, self.running
        first, warmup, calendar = state.step, state.warmup, self.calendar
        begin = time.perf_counter() if self.begin is None else self.begin
        end = None if max_seconds is None else begin + max_seconds
        reporter = open_progress(
            progress,
            total=self.total,
            chains=state.position.shape[0],
            warmup=max(0, warmup - first),
            thin=max(1, calendar.period // calendar.many),
            title=type(sampler).__name__,
        )
        report = Report(reporter, on_host=sampler._density.xp is np)
        chunk = Chunk()
        foresight = Foresight(sampler._density, self._settled(), first + self.total)
        with reporter:
            while self.kept < self.num_draws and not guard.requested:
                try:
                    state, info = sampler._advance(self.state, chunk.size(self._left()), guard)
                    after = state.step - warmup
                    keep = after > 0 and calendar.count(after) > calendar.count(after - 1)
                    batch, position = None, state.position
                    if keep or self.warmup is not None:
                        position = sampler._density.completed(state, guard)
                    if keep and running is not None:
                        batch = running.evaluate(position, guard)
                except (Interrupted, KeyboardInterrupt, SystemExit) as error:
                    ours = SystemExit if guard.terminated else KeyboardInterrupt
                    if not guard.requested or not isinstance(error, (Interrupted, ours)):
                        raise
                    break  # the step is discarded; resuming makes it again
                # No exception from here on: draw, statistics and state belong together.
                if keep:
                    if batch is not None and running is not None:
                        running.add(batch, guard)
                    self.draws.put(self.kept, position, info)
                    self.kept += 1
                elif self.warmup is not None and state.step <= warmup:
                    self.warmup.put(self.warm, position, info)
                    self.warm += 1
                chunk.made(state.step - self.state.step)
                self.state = state
                report.update(state.step - first, info)
                foresight.update(name, state, info)
                if end is not None and time.perf_counter() >= end:
                    break
            report.flush()
        self.seconds = time.perf_counter() - begin

    def _settled(self) -> int | None:
        """Return the step from which trajectories have their length, where it lies ahead."""
        settled = self.sampler._settled(self.state.warmup)
        return None if settled is None or settled < self.state.step else settled

    def _left(self) -> int:
        """Return how many steps one call may make: to the next draw or the end of warmup."""
        step, warmup = self.state.step, self.state.warmup
        if not self.sampler.chunked or (step < warmup and self.warmup is not None):
            return 1
        after = step - warmup
        return -after if after < 0 else self.calendar.after(after) - after

    def finish(self, name: str, interrupted: bool) -> Draws:
        """Pack what there is."""
        if interrupted:
            warn(
                f"[{name}] interrupted after {self.kept} of {self.num_draws} draws per chain; "
                "returning these (go on with resume=draws)",
                stacklevel=4,
            )
        state = self.state
        if self.kept == 0 and not interrupted:
            warn(
                f"[{name}] expected at least one draw within max_seconds, got none: the run ended "
                f"after {state.step} steps, {max(0, state.warmup - state.step)} of warmup to go "
                "(go on with resume=draws)",
                stacklevel=4,
            )
        draws = self._pack()
        explained = self._warn_stuck(name, draws.stats)
        explained |= self._warn_far(name)
        if not (explained or interrupted):
            noise = verdicts.log_noise_of(draws.predictive, draws.positions)
            traced = None if self.running is None else self.running.traced
            own = verdicts.parameters_of(draws.predictive, draws.positions)
            text = verdicts.check_run(name, draws.stats, noise, traced, own, draws.settings)
            if text is not None:
                warn(text, stacklevel=4, category=ConvergenceWarning)
        return draws

    def _done(self) -> tuple[Draws, str]:
        return self._pack(), f"{self.kept} of {self.num_draws} draws per chain"

    def _pack(self) -> Draws:
        sampler, state = self.sampler, self.state
        target = sampler._density.target
        positions, stats = self.draws.upto(self.kept)
        warmup_positions, warmup_stats = (
            (None, None) if self.warmup is None else self.warmup.upto(self.warm)
        )
        predictive = target if callable(getattr(target, "predictive", None)) else None
        prediction = None
        if self.running is not None:
            prediction = Prediction(
                self.running.predictive,
                self.running.x,
                positions=positions if self.keep_draws else None,
                running=self.running,
            )
        return Draws(
            positions=positions,
            stats=stats,
            complete=self.kept == self.num_draws,
            state=state,
            settings={
                "sampler": type(sampler).__name__,
                **sampler.settings,
                "num_draws": self.num_draws,
                "warmup": state.warmup,
                "thin": self.calendar.period,
                "chains": state.chains.tolist(),
                "seed": state.seed,
                **({} if self.origin is None else {"start": self.origin}),
                **_integrated(target),
                "dtype": sampler._density.dtype.name,
                **_kernels(target),
                "keep_draws": self.keep_draws,
                "versions": _versions(),
            },
            predictive=predictive,
            prediction=prediction,
            warmup_positions=warmup_positions,
            warmup_stats=warmup_stats,
            seconds=self.seconds,
        )

    def _warn_far(self, name: str) -> bool:
        """Warn of chains that are where the prior has no mass: a step size that is too large."""
        target = self.sampler._density.target
        sd = getattr(target, "prior_sd", None)
        # A normal prior has no mass out there; a heavy tail may have.
        if sd is None or not getattr(target, "normal_prior", False):
            return False
        widths = to_host(sd) * getattr(target, "temperature", 1.0) ** 0.5
        mean = to_host(getattr(target, "prior_mean", np.zeros(1)))
        size = np.abs(to_host(self.state.position) - mean) / widths
        worst = size.max(axis=1)
        far = ~(worst < _FAR)
        if far.any():
            warn(
                f"[{name}] expected chains within {_FAR:g} prior standard deviations, got "
                f"{worst[far].max():.3g} in chain "
                f"{', '.join(str(i) for i in self.state.chains[far])}: use a smaller step_size",
                stacklevel=5,
            )
        return bool(far.any())

    def _warn_stuck(self, name: str, stats: dict[str, Array]) -> bool:
        """Warn of chains of which every draw diverged: they have not moved."""
        if self.kept < 10 or "diverging" not in stats:
            return False
        stuck = to_host(stats["diverging"]).all(axis=1)
        if stuck.any():
            warn(
                f"[{name}] expected chains that move, got only diverging transitions for chain "
                f"{', '.join(str(i) for i in self.state.chains[stuck])}: use a smaller step_size, "
                "or 'auto'",
                stacklevel=5,
            )
        return bool(stuck.any())


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
