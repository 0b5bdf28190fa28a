"""Transitions of MCLMC: one step without an accept step, or a trajectory with one."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from ribbit._arrays import random_numbers, transitions
from ribbit._arrays.namespace import errstate, from_host, to_host
from ribbit._arrays.warning import warn
from ribbit.density import Density, total
from ribbit.errors import ConvergenceWarning
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array
from ribbit.results.state import Adaptation, DualAveraging, MicrocanonicalState, Welford
from ribbit.samplers.mcmc.energy_tuning import (
    LEAST,
    EnergyTuning,
    block_end,
    new_length,
    spread_of,
)
from ribbit.samplers.mcmc.isokinetic import GRADIENTS, Dynamics, Path

if TYPE_CHECKING:
    import numpy.typing as npt


HostArray: TypeAlias = "npt.NDArray[np.float64]"
Info: TypeAlias = dict[str, Array]

# Layers of the refresh purpose: 0 is the noise of steps.
_START_LAYER, _SEARCH_LAYER = 1, 2
# Stream id of lengths under JITTER; HMC has 0 and 1.
_LENGTH_LAYER = 2
_SHORT_SHARE = 0.1  # of warmup, in which adjusted trajectories are short
_MOST_STEPS = 4096  # of one native call: its errors lie in memory


def fresh_velocity(
    density: Density, state: MicrocanonicalState, layer: int = _START_LAYER
) -> Array:
    """Return standard normals (C, P) for this step, whose directions are uniform."""
    return random_numbers.normal(
        density.xp,
        (state.chains.shape[0], density.dim),
        density.dtype,
        seed=state.seed,
        step=state.step,
        chains=state.chains,
        purpose=random_numbers.REFRESH,
        layer=layer,
    )


class Unadjusted:
    """A step of the dynamics is a step of the sampler; nothing is rejected."""

    statistics: ClassVar[dict[str, str]] = {
        "lp": "float64",
        "energy_error": "float64",
        "energy_variance": "float64",
        "diverging": "bool",
        "n_steps": "int64",
        "step_size": "float64",
        "decoherence_length": "float64",
    }
    chunked: ClassVar[bool] = True
    default_warmup, default_thin = 10_000, 20
    least_warmup: ClassVar[int] = LEAST

    def __init__(self, density: Density, dynamics: Dynamics, tuning: EnergyTuning) -> None:
        self._density, self._dynamics, self.tuning = density, dynamics, tuning

    def start(self, state: MicrocanonicalState, guard: InterruptGuard | None) -> dict[str, Any]:
        """Fields of a first state: step_size, decoherence_length, velocity."""
        (eps, length), count = self.tuning.initial_scales(state), state.chains.shape[0]
        return {
            "velocity": fresh_velocity(self._density, state),
            "step_size": np.full(count, eps),
            "decoherence_length": np.full(count, length),
        }

    def adaptation(self, state: MicrocanonicalState) -> Adaptation | None:
        """Return the running sums of warmup; the sums of the state are continued."""
        return self.tuning.adaptation(state)

    def advance(
        self, state: MicrocanonicalState, num_steps: int, guard: InterruptGuard | None
    ) -> tuple[MicrocanonicalState, Info]:
        """Make steps, block after block of warmup."""
        left, divergences = num_steps, 0
        while left:
            many = min(left, _MOST_STEPS)
            end = 0
            if state.step < state.warmup:
                end = block_end(state.step, state.warmup, self.tuning.shares)
                many = min(many, end - state.step)
            state, info = self._steps(state, many, guard)
            if state.step == end and state.adaptation is not None:
                state = self.tuning.close(state)
            left -= many
            divergences = info["divergences"] = divergences + info["divergences"]
        return state, info

    def _steps(
        self, state: MicrocanonicalState, many: int, guard: InterruptGuard | None
    ) -> tuple[MicrocanonicalState, Info]:
        """Make steps of one block, or after warmup."""
        xp, chains = self._density.xp, state.chains.shape[0]
        end = self._dynamics.run(
            Path(state.position, state.velocity, state.grad, state.terms),
            seed=state.seed,
            chains=state.chains,
            first_step=state.step,
            step_size=state.step_size,
            decoherence_length=state.decoherence_length,
            num_steps=np.full(chains, many),
            inverse_mass=state.inverse_mass,
            mixing=state.mixing,
            turns=True,
            guard=guard,
        )
        with errstate(xp):
            logdensity = total(end.terms)
        lost = np.isnan(end.errors[:, -1])
        squares = np.where(np.isnan(end.errors), 0.0, end.errors) ** 2
        sums, after = state.energy_squares, state.step + many - state.warmup
        variance = squares[:, -1] / self._density.dim
        if after > 0:
            # one after the other: the same sum however the steps are cut into calls
            sums = np.cumsum(np.column_stack([sums, squares]), axis=1)[:, -1]
            variance = sums / (self._density.dim * after)
        adaptation = state.adaptation
        if adaptation is not None:
            adaptation = self.tuning.observe(state, end.errors, state.step)
        info = {
            "lp": logdensity,
            "energy_error": from_host(xp, np.where(lost, np.inf, end.errors[:, -1])),
            "energy_variance": from_host(xp, variance),
            "diverging": from_host(xp, lost),
            "divergences": from_host(xp, np.isnan(end.errors).sum(axis=1)),
            "n_steps": from_host(xp, np.full(chains, GRADIENTS[self._dynamics.integrator])),
            "step_size": from_host(xp, state.step_size),
            "decoherence_length": from_host(xp, state.decoherence_length),
        }
        state = dataclasses.replace(
            state,
            position=end.position,
            velocity=end.velocity,
            grad=end.grad,
            terms=end.terms,
            logdensity=logdensity,
            step=state.step + many,
            energy_squares=sums,
            adaptation=adaptation,
        )
        return state, info


class Adjusted:
    """A trajectory of random length along a fresh direction, accepted by its energy error."""

    statistics: ClassVar[dict[str, str]] = {
        "lp": "float64",
        "acceptance_rate": "float64",
        "accepted": "bool",
        "diverging": "bool",
        "energy_error": "float64",
        "n_steps": "int64",
        "step_size": "float64",
        "trajectory_length": "float64",
        "capped": "bool",
    }
    chunked: ClassVar[bool] = False
    default_warmup, default_thin = 500, 1
    least_warmup: ClassVar[int] = 20

    def __init__(
        self,
        density: Density,
        dynamics: Dynamics,
        tuning: EnergyTuning,  # what is fixed and what is adapted; its variance is not looked at
        *,
        target_accept: float,
        max_steps: int,
        threshold: float,  # a larger energy error flags a transition as diverging
    ) -> None:
        self._density, self._dynamics, self.tuning = density, dynamics, tuning
        self._target_accept, self._max_steps = target_accept, max_steps
        self._threshold = threshold

    def start(self, state: MicrocanonicalState, guard: InterruptGuard | None) -> dict[str, Any]:
        """Fields of a first state: step_size, decoherence_length."""
        (eps, length), count = self.tuning.initial_scales(state), state.chains.shape[0]
        step_size = np.full(count, eps)
        if self.tuning.step_size is None:
            step_size = self._search(state, step_size, guard)
        return {"decoherence_length": np.full(count, length), "step_size": step_size}

    def adaptation(self, state: MicrocanonicalState) -> Adaptation | None:
        """Return the running sums of warmup; the sums of the state are continued."""
        found, before = self.tuning.adaptation(state), state.adaptation
        if found is None or self.tuning.step_size is not None:
            return found
        dual = None if before is None else before.dual
        dual = DualAveraging.start(state.step_size) if dual is None else dual
        return dataclasses.replace(found, dual=dual)

    def advance(
        self, state: MicrocanonicalState, num_steps: int, guard: InterruptGuard | None
    ) -> tuple[MicrocanonicalState, Info]:
        """Make transitions."""
        for _ in range(num_steps):
            state, info = self._transition(state, guard)
        return state, info

    def _steps_of(self, state: MicrocanonicalState) -> tuple[npt.NDArray[np.int64], Any]:
        """Return steps of each chain's next trajectory, uniform on 1 .. 2 L, and if capped."""
        u = random_numbers.uniform(
            np,
            (state.chains.shape[0], 1),
            seed=state.seed,
            step=state.step,
            chains=state.chains,
            purpose=random_numbers.JITTER,
            layer=_LENGTH_LAYER,
        )[:, 0]
        mean = np.maximum(np.ceil(state.decoherence_length / state.step_size), 1.0)
        if state.step < _SHORT_SHARE * state.warmup and state.adaptation is not None:
            mean = np.minimum(mean, 10.0)  # a step is found sooner on short ones
        steps = np.ceil(2.0 * u * mean)
        capped = steps > self._max_steps
        return np.where(capped, self._max_steps, steps).astype(np.int64), capped

    def _move(
        self,
        state: MicrocanonicalState,
        velocity: Array,
        step_size: HostArray,
        num_steps: npt.NDArray[np.int64],
        guard: InterruptGuard | None,
    ) -> tuple[Path, HostArray]:
        """Trajectories of all chains, and their energy errors (C,), infinite where not finite."""
        xp = self._density.xp
        end = self._dynamics.run(
            Path(state.position, velocity, state.grad, state.terms),
            seed=state.seed,
            chains=state.chains,
            first_step=0,
            step_size=step_size,
            decoherence_length=np.full(step_size.shape, np.inf),
            num_steps=num_steps,
            inverse_mass=state.inverse_mass,
            turns=False,
            guard=guard,
        )
        with errstate(xp):
            error = end.energy + to_host(total(state.terms - end.terms))
        lost = np.isnan(end.errors).any(axis=1) | ~np.isfinite(error)
        return end, np.where(lost, np.inf, error)

    def _transition(
        self, state: MicrocanonicalState, guard: InterruptGuard | None
    ) -> tuple[MicrocanonicalState, Info]:
        density, xp = self._density, self._density.xp
        velocity = fresh_velocity(density, state)
        num_steps, capped = self._steps_of(state)
        end, host = self._move(state, velocity, state.step_size, num_steps, guard)
        error = from_host(xp, host)
        with errstate(xp):
            accepted, rate = transitions.accept(
                xp, error, seed=state.seed, step=state.step, chains=state.chains
            )
            terms = transitions.select(xp, accepted, end.terms, state.terms)
            logdensity = total(terms)
            position = transitions.select(xp, accepted, end.position, state.position)
            grad = transitions.select(xp, accepted, end.grad, state.grad)
        info = {
            "lp": logdensity,
            "acceptance_rate": rate,
            "accepted": accepted,
            "diverging": error > self._threshold,
            "energy_error": error,
            "n_steps": from_host(xp, num_steps * GRADIENTS[self._dynamics.integrator]),
            "step_size": from_host(xp, state.step_size),
            "trajectory_length": from_host(xp, num_steps * state.step_size),
            "capped": from_host(xp, capped),
        }
        state = dataclasses.replace(
            state,
            position=position,
            grad=grad,
            terms=terms,
            logdensity=logdensity,
            step=state.step + 1,
        )
        if state.adaptation is not None:
            state = self._adapt(state, to_host(rate), guard)
        return state, info

    def _adapt(
        self, state: MicrocanonicalState, acceptance: HostArray, guard: InterruptGuard | None
    ) -> MicrocanonicalState:
        """Take a transition of warmup into account."""
        xp, step, warmup, tuning = self._density.xp, state.step, state.warmup, self.tuning
        assert state.adaptation is not None
        dual, welford = state.adaptation.dual, state.adaptation.welford
        gradients, layers = state.adaptation.gradients, tuning.layers
        changes: dict[str, Any] = {}
        if dual is not None:
            dual = dual.update(acceptance, self._target_accept)
        first, middle, end = int(0.1 * warmup), int(0.3 * warmup), int(0.6 * warmup)
        if welford is not None and first < step <= end:
            welford = welford.update(xp, state.position)
            if layers is not None and gradients is not None:
                gradients = layers.update(xp, gradients, state.grad)
            if step in (middle, end) and welford.count > 1:
                mass = state.inverse_mass
                if tuning.adapts_mass:
                    mass = tuning.inverse_mass(welford, gradients, state)
                    changes["inverse_mass"] = mass
                if tuning.length is None:
                    spread = spread_of(welford.squares / (welford.count - 1.0), mass, xp)
                    changes["decoherence_length"] = new_length(spread, state)
                welford = Welford.start(xp, state.position.shape)
                if layers is not None:
                    gradients = layers.start(len(acceptance))
                if dual is not None and tuning.adapts_mass:  # a new metric, a new step
                    moved = dataclasses.replace(state, **changes)
                    found = self._search(moved, np.full(len(acceptance), 0.01), guard)
                    dual = DualAveraging.start(found)
        last = step >= warmup
        if dual is not None:
            changes["step_size"] = dual.average() if last else dual.step_size()
        changes["adaptation"] = None if last else Adaptation(dual, welford, gradients=gradients)
        state = dataclasses.replace(state, **changes)
        if last or step == math.ceil(_SHORT_SHARE * warmup):  # from here on they are long
            self._warn_unmoving(state)
        return state

    def _warn_unmoving(self, state: MicrocanonicalState) -> None:
        """Warn of steps that move nothing in this dtype: warmup takes them for too large."""
        # Their energy errors are rounding, and grow with the length of a trajectory alone.
        xp, step = self._density.xp, state.step_size
        scale = 1.0 if state.inverse_mass is None else float(xp.max(state.inverse_mass)) ** 0.5
        least = np.finfo(self._density.dtype).eps * float(xp.max(xp.abs(state.position)))
        lost = step * scale < least
        if lost.any():
            warn(
                f"[MCLMC] expected steps that move the parameters in {self._density.dtype}, got "
                f"{step.min():.2g} for {int(lost.sum())} of {lost.size} chains: no step will be "
                "found. Take data of unit scale (standardize=True) or dtype=np.float64, in a new "
                "run",
                ConvergenceWarning,
            )

    def _search(
        self, state: MicrocanonicalState, step_size: HostArray, guard: InterruptGuard | None
    ) -> HostArray:
        """Double or halve each chain's step until one step is accepted about half the time."""
        velocity = fresh_velocity(self._density, state, _SEARCH_LAYER)
        one = np.ones(len(step_size), dtype=np.int64)
        direction: HostArray | None = None
        active = np.ones(len(step_size), dtype=bool)
        while True:
            _, error = self._move(state, velocity, step_size.copy(), one, guard)
            if direction is None:
                direction = np.where(error < math.log(2.0), 1.0, -1.0)
            active &= direction * error < direction * math.log(2.0)
            active &= (step_size > 1e-12) & (step_size < 1e7)
            if not active.any():
                return step_size
            step_size = np.where(active, step_size * 2.0**direction, step_size)
