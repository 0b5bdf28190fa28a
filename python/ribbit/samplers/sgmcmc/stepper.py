"""Steps along stochastic gradients: what SGLD, SGHMC and the optimisers share."""

# Step s of chain c uses batch s mod M of epoch s div M, M = ceil(N / batch size), whose sizes
# differ by one row at most, and noise with the counter (seed, s, c): chains, threads and restarts
# change nothing. BAOAB's epochs have 2 M steps, through their batches and back.

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from ribbit import schedules
from ribbit._arrays import checks, overrides, random_numbers
from ribbit._arrays.batches import Batches
from ribbit._arrays.namespace import errstate
from ribbit._arrays.warning import warn
from ribbit.adapter import Stepwise
from ribbit.chains import Start, Thinning
from ribbit.density import Density, restart, total
from ribbit.errors import NonFiniteError
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array
from ribbit.results.draws import Draws
from ribbit.results.state import StochasticState
from ribbit.samplers.sgmcmc.python_steps import python_steps
from ribbit.samplers.sgmcmc.rule import Rule

if TYPE_CHECKING:
    import numpy.typing as npt


_AT_ONCE = 1 << 20  # steps of one call: each has a size and a factor of its noise in memory


class Pilot(Protocol):
    """Who finds a step size, a function of the seed."""

    def __call__(self, seed: int, guard: InterruptGuard | None) -> tuple[float, str]:
        """Return a step size, and a line that says how it was found."""
        ...

    def report(self, seed: int, step_size: float) -> str | None:
        """Return that line again, where this pilot has found the step size for this seed."""
        ...


# The first velocity has a layer of its own: it shares no number with the noise of a step.
_VELOCITY_LAYER = 1
_NO_TRIAL = 1_000  # steps of a warmup that is meant: shorter ones are not warned of


class Stepper:
    """A target, a rule, a batch size and a schedule."""

    def __init__(
        self,
        function: str,
        density: Density,
        rule: Rule,
        *,
        # "auto": found by the attribute `pilot`, for every seed; a state carries it
        step_size: float | str,
        batch_size: int | None,  # None: all rows at every step
        schedule: schedules.Schedule | None,
        track_lp: bool = False,  # evaluate the log density on all rows after every call
        scale: Array | None = None,  # (P,): kinetic: of whitened positions
    ) -> None:
        self.function, self.density, self.rule, self.scale = function, density, rule, scale
        self.step_size: float | None = None
        if isinstance(step_size, str):
            checks.choice(function, "step_size", step_size, ("auto",))
        else:
            self.step_size = checks.positive(function, "step_size", step_size)
        self.pilot: Pilot | None = None
        self.schedule = schedules.check(function, schedule)
        self.track_lp = checks.boolean(function, "track_lp", track_lp)
        self.num_rows = density.num_rows
        self.batch_size = density.batch_size(batch_size)
        self._native = density.native("advance")
        if self._native is None:
            overrides.needed(function, density.target, "value_and_grad")
        if rule.prior != 1.0 and self._native is None:
            raise TypeError(
                f"[{function}] expected a target whose prior can be left out, such as Posterior, "
                f"got {checks.summary(density.target)}"
            )

    @property
    def batches(self) -> int:
        """Steps of an epoch, M."""
        return self._batches.count

    @property
    def _batches(self) -> Batches:
        return Batches(self.num_rows, self.batch_size, self.rule.kind == "kinetic")

    def thinning(self, function: str, thin: int) -> Thinning:
        """Return which steps give draws: whole cycles of a cyclical schedule, one by default."""
        schedule = self.schedule
        if schedule.kind != "cyclical":
            return Thinning(thin)
        cycle = schedule.num_steps
        steps = cycle if thin == 1 else thin
        if steps % cycle:
            raise ValueError(
                f"[{function}] expected thin as a multiple of {cycle}, the steps of a cycle, "
                f"got {thin}"
            )
        return Thinning(steps, schedule.draws_per_cycle, schedule.gap)

    def check_end(
        self, function: str, state: StochasticState, num_draws: int, thinning: Thinning
    ) -> None:
        """Raise when a cyclical schedule ends before the run, warn when a cosine has ended."""
        schedule, begin, thin = self.schedule, max(0, state.step - state.warmup), thinning.period
        end = thinning.step(thinning.count(begin) + num_draws)  # steps after warmup
        if schedule.kind == "cyclical" and end > schedule.num_cycles * schedule.num_steps:
            raise ValueError(
                f"[{function}] expected at most {schedule.num_cycles * schedule.draws_per_cycle} "
                "draws at the ends of cycles "
                f"of {schedule.num_steps} steps, got {num_draws} draws with thin={thin} after "
                f"{begin // schedule.num_steps} cycles"
            )
        last = state.warmup + end
        if schedule.kind == "cosine" and schedule.final == 0 and last > schedule.num_steps + thin:
            warn(
                f"[{function}] expected at most {schedule.num_steps} steps, where the step size "
                f"reaches 0, got {last} with warmup: the draws after that repeat",
            )

    def start(
        self,
        function: str,
        position: Array,
        seed: int,
        chains: npt.NDArray[np.uint32],
        warmup: int,
        guard: InterruptGuard | None,
    ) -> StochasticState:
        """First state at `position` (C, P); errors for a gradient that is not finite."""
        density, xp = self.density, self.density.xp
        sizes = None
        size = self.step_size
        if size is None:
            assert self.pilot is not None
            size, _ = self.pilot(seed, guard)
            sizes = np.full(chains.shape, size)
            if self.rule.kind == "kinetic" and warmup >= _NO_TRIAL and warmup * size < 1.0:
                # Per unit of time a velocity of one carries a parameter by its prior's sd.
                warn(
                    f"[{function}] expected a warmup of {math.ceil(1.0 / size):,} steps or more, "
                    f"in which steps of {size:.2g}, which step_size='auto' has found, can cross "
                    f"the prior's sd, got {warmup:,}: chains may keep near their starts. Take data "
                    "of unit scale (standardize=True), init=fit, a longer warmup, or HMC; "
                    "draws.summary(x) says whether they have converged",
                )
        _, _, logdensity = density.evaluate(function, position, chains, guard)
        first = second = None
        if self.rule.kind == "kinetic" or (self.rule.kind == "friction" and self.rule.noisy):
            # What the velocity is without gradients: standard normal, or to leading order of
            # variance eps (Chen et al. 2014, eq. 15).
            xi = random_numbers.normal(
                xp,
                position.shape,
                density.dtype,
                seed=seed,
                step=0,
                chains=chains,
                purpose=random_numbers.MOMENTUM,
                layer=_VELOCITY_LAYER,
            )
            first = xi if self.rule.kind == "kinetic" else math.sqrt(size) * xi
        elif self.rule.moments[0]:
            first = xp.zeros_like(position)
        if self.scale is not None:
            second = xp.zeros_like(position) + self.scale
        elif self.rule.moments[1]:
            second = xp.zeros_like(position)
        return StochasticState(
            position=position,
            logdensity=logdensity if self.track_lp else xp.full_like(logdensity, xp.nan),
            first_moment=first,
            second_moment=second,
            step=0,
            seed=seed,
            chains=chains,
            warmup=warmup,
            target=density.identify(guard),
            step_size=sizes,
        )

    def adopt(self, function: str, state: object) -> StochasticState:
        """Check that a state fits this target and rule."""
        if not isinstance(state, StochasticState):
            raise TypeError(f"[{function}] expected a StochasticState, got {checks.summary(state)}")
        self.density.check_state(function, state)
        wants = self.rule.moments
        has = (state.first_moment is not None, state.second_moment is not None)
        if wants != has:
            raise ValueError(
                f"[{function}] expected a state with {_moments(*wants)}, got {_moments(*has)}: "
                "it comes from a sampler of another kind"
            )
        if self.step_size is None:
            found = state.step_size
            if found is None or not (found == found[0]).all():
                raise ValueError(
                    f"[{function}] expected a state with one step size that pilot runs found, got "
                    f"{'none' if found is None else 'several'}: step_size='auto' resumes only its "
                    f"own runs. Give the number; or {restart(function)}"
                )
        elif state.step_size is not None:
            state = dataclasses.replace(state, step_size=None)  # this sampler's own
        if self.scale is not None:  # velocities are whitened: their law does not depend on it
            scale = self.density.xp.zeros_like(state.position) + self.scale
            state = dataclasses.replace(state, second_moment=scale)
        if state.target is None and self.density.fingerprint is not None:
            return dataclasses.replace(state, target=self.density.fingerprint)
        return state

    def advance(
        self, state: StochasticState, num_steps: int, guard: InterruptGuard | None
    ) -> tuple[StochasticState, dict[str, Array]]:
        """Make `num_steps` steps of all chains."""
        while num_steps > _AT_ONCE:
            state, _ = self.advance(state, _AT_ONCE, guard)
            num_steps -= _AT_ONCE
        cooled = 3 * state.warmup // 4 if self.rule.cooling != 1.0 else 0
        if state.step < cooled < state.step + num_steps:  # the friction changes on the way
            first = cooled - state.step
            middle, _ = self.advance(state, first, guard)
            return self.advance(middle, num_steps - first, guard)
        rule = self.rule
        if state.step < cooled:
            rule = dataclasses.replace(rule, friction=rule.cooling * rule.friction)
        eps, noise = self._sizes(state, num_steps)
        if self._native is not None:
            arrays, failed, largest = self._native_steps(rule, state, eps, noise, guard)
        else:
            batches = self._batches
            arrays, failed, largest = python_steps(
                self.density, rule, batches, state, eps, noise, self._previous(state), guard
            )
        if (failed >= 0).any():
            # Nothing hidden decides a step, so the steps before are simply made again.
            chain = int(np.argmin(np.where(failed >= 0, failed, num_steps)))
            good = int(failed[chain])
            if good:
                state, _ = self.advance(state, good, guard)
            one, rate = "chain", "step size"
            if self.rule.optimises:
                one = "member"
                rate = "learning rate" if self.rule.kind == "adam" else "learning rate / N"
            raise NonFiniteError(
                f"[{self.function}] expected finite parameters, got others in {one} "
                f"{state.chains[chain]} at step {state.step} with {rate} {eps[good]:.3g}, "
                f"{self.density.not_finite(state.position[chain], largest[chain], rate)} "
                "(the error's `state` is the last finite one)",
                state=state,
                step=state.step,
                step_size=float(eps[good]),
                largest_gradient=float(largest[chain]),
                chain=int(state.chains[chain]),
            )
        xp = self.density.xp
        if self.track_lp:
            terms, _ = self.density.terms_and_grad(arrays[0], guard)
            with errstate(xp):
                logdensity = total(terms)
        else:
            logdensity = xp.full_like(state.logdensity, xp.nan)
        return _moved(state, arrays, logdensity, num_steps), {
            "lp": logdensity,
            "step_size": xp.full_like(logdensity, float(eps[-1])),
        }

    @property
    def several(self) -> bool:
        """Whether there is `advance_several`."""
        keeps = getattr(self._native, "keeps_positions", False)
        return keeps and self.density.xp is np and not (self.track_lp or self.density.completes)

    def advance_several(
        self,
        state: StochasticState,
        stops: npt.NDArray[np.int64],
        kept: npt.NDArray[Any],
        guard: InterruptGuard | None,
    ) -> tuple[StochasticState, dict[str, Array]] | None:
        """Make the steps of `advance` up to the last of `stops` (K,), all after warmup."""
        # Fills kept (C, K, P) with positions there; None if a parameter is not finite any more.
        made = stops - state.step  # up to each of them
        num_steps = int(made[-1])
        eps, noise = self._sizes(state, num_steps)
        keep = (made - 1, kept)
        arrays, failed, _ = self._native_steps(self.rule, state, eps, noise, guard, keep)
        if (failed >= 0).any():
            return None
        lp = np.full(kept.shape[:2], np.nan)
        step_size = np.broadcast_to(eps[made - 1], lp.shape)
        state = _moved(state, arrays, lp[:, -1].copy(), num_steps)
        return state, {"lp": lp, "step_size": step_size}

    def _sizes(
        self, state: StochasticState, num_steps: int
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Step sizes and factors of the noise of the next steps, (num_steps,)."""
        clock = self._clock(state.step, state.warmup)
        eps = self._size(state) * self.schedule.factors(clock, num_steps)
        noise = self.schedule.noise(clock, num_steps)
        if self.rule.optimises:
            noise[:] = 0.0
        return eps, noise

    def _clock(self, step: int, warmup: int) -> int:
        """Step of the schedule; cycles are counted from the end of warmup: draws end them."""
        if self.schedule.kind != "cyclical":
            return step
        return (step - warmup) % self.schedule.num_steps

    def _size(self, state: StochasticState) -> float:
        if self.step_size is not None:
            return self.step_size
        assert state.step_size is not None
        return float(state.step_size[0])

    def _previous(self, state: StochasticState) -> float:
        """Step size of the step before; at the start, that of which the velocity was drawn."""
        if state.step == 0:
            return self._size(state)
        before = self._clock(state.step - 1, state.warmup)
        return self._size(state) * float(self.schedule.factors(before, 1)[0])

    def _native_steps(
        self,
        rule: Rule,
        state: StochasticState,
        eps: npt.NDArray[np.float64],
        noise: npt.NDArray[np.float64],
        guard: InterruptGuard | None,
        keep: tuple[npt.NDArray[np.int64], npt.NDArray[Any]] | None = None,
    ) -> tuple[Any, npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """keep: steps of the call after which positions are kept, and where (C, K, P)."""
        assert self._native is not None
        keeps = {} if keep is None else {"keep": keep[0], "kept": keep[1]}
        *arrays, failed, largest = self._native(
            state.position,
            state.first_moment,
            state.second_moment,
            seed=state.seed,
            chains=state.chains,
            first_step=state.step,
            batch_size=self.batch_size,
            step_size=eps,
            noise=noise,
            rule=rule.kind,
            prior=rule.prior,
            friction=rule.friction,
            previous_step_size=self._previous(state),
            decay=(rule.decay1, rule.decay2),
            epsilon=rule.epsilon,
            adapt_until=state.warmup,
            interrupt=None if guard is None else guard.flag,
            **keeps,
        )
        return arrays, failed, largest


def _moved(
    state: StochasticState, arrays: Any, logdensity: Array, num_steps: int
) -> StochasticState:
    position, first, second = arrays
    return dataclasses.replace(
        state,
        position=position,
        logdensity=logdensity,
        first_moment=first,
        second_moment=second,
        step=state.step + num_steps,
    )


def _moments(first: bool, second: bool) -> str:
    names = [name for name, there in (("first", first), ("second", second)) if there]
    return f"{' and '.join(names)} moments" if names else "no moments"


class Stepping(Stepwise):
    """Base class of the samplers whose steps a `Stepper` makes."""

    _statistics: ClassVar[dict[str, str]] = {"lp": "float64", "step_size": "float64"}

    _stepper: Stepper

    def _init(self, function: str, start: Start, guard: InterruptGuard | None) -> StochasticState:
        position, seed, ids, warmup, *_ = start
        if self._stepper.rule.preconditioned and warmup == 0:
            raise ValueError(
                f"[{function}] expected warmup >= 1 for preconditioner='rmsprop', which moves in "
                "warmup, got 0"
            )
        return self._stepper.start(function, position, seed, ids, warmup, guard)

    def _found(self, state: StochasticState, resume: Any) -> dict[str, Any]:
        pilot = self._stepper.pilot
        if self._stepper.step_size is not None or pilot is None or state.step_size is None:
            return {}
        before = resume.settings.get("pilot") if isinstance(resume, Draws) else None
        report = before or pilot.report(state.seed, float(state.step_size[0]))
        return {} if report is None else {"pilot": report}

    def _thinning(self, function: str, thin: int) -> Thinning:
        return self._stepper.thinning(function, thin)

    def _check_end(self, function: str, state: Any, num_draws: int, thinning: Thinning) -> None:
        self._stepper.check_end(function, state, num_draws, thinning)

    def _adopt(self, function: str, state: Any, guard: InterruptGuard | None) -> StochasticState:
        return self._stepper.adopt(function, state)

    def _advance(
        self, state: Any, num_steps: int, guard: InterruptGuard | None
    ) -> tuple[StochasticState, dict[str, Array]]:
        return self._stepper.advance(state, num_steps, guard)
