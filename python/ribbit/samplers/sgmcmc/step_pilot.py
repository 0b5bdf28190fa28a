"""Which step size keeps the energy of all rows: short pilot runs before a run with "auto"."""

# Chains of the pilot's own, 4 or, where P < 500, more, descend by Adam from ``target.init``. Chains
# that stay behind go on from the positions of others. Then they try step sizes from large to small,
# each compared by the energy of all rows, U = minus the log density. In equilibrium the mean of U
# lies P/2 above its minimum for a Gaussian, so an excess of x P/2 means variances that are too
# large by the share x on average. The first step size whose excess is at most 2 % of P/2 is taken.
# The pilot depends on the target, the options and the seed alone, not on the chains of the run, nor
# on where they start. Shapes: C chains, P parameters, M batches.

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from ribbit import schedules
from ribbit._arrays.namespace import from_host, to_host
from ribbit._arrays.threads import Interrupted
from ribbit.density import Density, total
from ribbit.errors import NonFiniteError
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array
from ribbit.results.state import StochasticState
from ribbit.samplers.sgmcmc.rule import Rule
from ribbit.samplers.sgmcmc.stepper import Stepper

if TYPE_CHECKING:
    import numpy.typing as npt

    HostArray = npt.NDArray[np.float64]


_FEWEST_CHAINS, _MOST_CHAINS, _LOOPED_CHAINS = 4, 128, 8
_VALUES = 2_000  # parameters in all, at least: the error of a mean energy shrinks with their root
_SHARE = 0.02  # of P/2: the most energy that a step size may add
_SMALLEST = 1e-15
_LEARNING_RATE = 1e-2
_EPOCHS, _FEWEST, _MOST = 30, 500, 2_000  # of the descent; steps
_DOWN = 2.0  # nats per parameter above the lowest chain: in equilibrium it is half a nat
_PERIOD = 0.5  # energy drift: time of a trial in units of 1 / friction
_TRIAL = 4_000  # steps of it, at most, but for a whole sweep
_LONGEST = 8  # times as many if they do not decide
_LOOKS = 10  # at the energy, in the second half of a stretch


class StepPilot:
    """Finds a step size for a rule, batch size and target; called with a seed."""

    def __init__(
        self,
        function: str,
        density: Density,
        rule: Rule,
        *,
        batch_size: int | None,
        scale: Array | None = None,  # (P,): of the kinetic rule
    ) -> None:
        self.function, self.density, self.rule = function, density, rule
        self.batch_size, self.scale = batch_size, scale
        # Of each seed: step size, report. A cache: two threads at most find the same twice.
        self._found: dict[int, tuple[float, str]] = {}

    def __call__(self, seed: int, guard: InterruptGuard | None) -> tuple[float, str]:
        """Return the step size of a seed, and a line that says how it was found."""
        found = self._found.get(seed)
        if found is None:
            search = _Search(self, seed, guard)
            found = search.kinetic() if self.rule.kind == "kinetic" else search.overdamped()
            self._found[seed] = found
        return found

    def report(self, seed: int, step_size: float) -> str | None:
        """Return how the step size of a seed was found; None where it was not, by this pilot."""
        found = self._found.get(seed)
        return found[1] if found is not None and found[0] == step_size else None


class _Search:
    """One call of the pilot."""

    def __init__(self, pilot: StepPilot, seed: int, guard: InterruptGuard | None) -> None:
        self._pilot, self._guard = pilot, guard
        self._function, self._density, self._rule = pilot.function, pilot.density, pilot.rule
        self._bound = _SHARE * 0.5 * self._density.dim
        self._steps = self._looks = 0  # of each chain: gradients of minibatches, of all rows
        self._clock = 1  # steps have addresses of their own: no noise serves two trials
        self._seed = seed
        wanted = math.ceil(_VALUES / self._density.dim)
        # A loop over chains in Python, a call for each batch: no more than it takes.
        looped = pilot.batch_size is not None and not hasattr(self._density.target, "advance")
        most = _LOOPED_CHAINS if looped else _MOST_CHAINS
        self._chains = min(most, max(_FEWEST_CHAINS, wanted))
        self._start = self._descend()

    def kinetic(self) -> tuple[float, str]:
        """Judge steps by how fast the total energy grows where no friction takes it away."""
        # Friction a takes away a (2 K - P), K the kinetic energy; where minibatches bring in q per
        # unit of time the balance is an excess of q / 2a in the mean kinetic and potential energy.
        # Exact dynamics keep the energy wherever they start: no equilibrium is needed.
        h, state, moved = 0.5, self._start, False
        while h > _SMALLEST:
            still = dataclasses.replace(self._rule, friction=0.0, noisy=False)
            free, full = self._stepper(still, h), self._stepper(self._rule, h)
            sweep = 2 * full.batches
            wanted = min(_TRIAL, math.ceil(_PERIOD / (self._rule.friction * h)))
            steps = sweep * max(1, round(wanted / sweep))
            begin, made = self._kinetic_energy(state, h), 0
            end: StochasticState | None = state
            while end is not None:
                end, made = self._advance(free, end, steps), made + steps
                if end is None:
                    excess = math.inf
                    break
                gain = self._kinetic_energy(end, h) - begin
                unit = made * h * 2.0 * self._rule.friction
                excess, error = (found / unit for found in _mean_and_error(gain))
                # Energies wander while they grow, and a trial of bounded steps is as short as they
                # are. If it does not tell, take more steps; smaller ones never tell.
                if not abs(excess - self._bound) <= error or made >= _LONGEST * steps:
                    break
            if excess <= self._bound:
                if moved:
                    return h, self._report(h, excess, "growth of the total energy")
                # Once more from where the dynamics bring the chains, away from the mode.
                later = self._advance(full, state, steps)
                moved = True
                if later is not None:
                    state = later
                    continue
            h /= 4.0 if excess > 64.0 * self._bound else 2.0
        raise self._nothing()

    def overdamped(self) -> tuple[float, str]:
        """Judge steps by the mean energy under a quarter of the step, between two of it."""
        # Before and after, so that a chain on its way cancels to first order. A stretch is 200
        # steps, or the time in which friction forgets a velocity 20 times; that of the quarter four
        # of them; first halves are not looked at.
        sd = getattr(self._density.target, "prior_sd", None)
        eps = 1.0 if sd is None else float(np.mean(np.minimum(to_host(sd), 1e3) ** 2.0))
        rate = self._rule.friction if self._rule.kind == "friction" else 1.0
        count = max(200, math.ceil(20.0 / rate))
        highest = self._energies(self._start.position).max() + 10.0 * self._density.dim
        state = self._start
        while eps > _SMALLEST:
            whole, quarter = (self._stepper(self._rule, e) for e in (eps, eps / 4.0))
            found, now = self._compared(whole, quarter, state, count, highest)
            if found is None:
                eps, state = eps / 4.0, self._start
                continue
            excess, error = _mean_and_error(found)
            for rounds in range(2, _LONGEST + 1):
                if not abs(excess - self._bound) <= error:
                    break
                more, now = self._compared(whole, quarter, now, count, highest)
                if more is None:
                    break
                found = found + (more - found) / rounds
                excess, error = _mean_and_error(found)
            if excess <= self._bound:
                return eps, self._report(eps, excess, "energy over that under a quarter of it")
            eps, state = eps / 2.0, now
        raise self._nothing()

    def _compared(
        self,
        whole: Stepper,
        quarter: Stepper,
        state: StochasticState,
        count: int,
        highest: float,
    ) -> tuple[HostArray | None, StochasticState]:
        """Return the excess of each chain's energy (C,), None if it runs away, and the end."""
        means = []
        for stepper, steps in ((whole, count), (quarter, 4 * count), (whole, count)):
            stretch = self._stretch(stepper, state, steps)
            if stretch is None or not stretch[1].mean() < highest:
                return None, state
            state = stretch[0]
            means.append(stretch[1])
        return 0.5 * (means[0] + means[2]) - means[1], state

    def _descend(self) -> StochasticState:
        """Start chains of the pilot's own near a mode."""
        density, name = self._density, self._function
        make = getattr(density.target, "init", None)
        if make is None:
            raise ValueError(
                f"[{name}] expected a number as step_size for a target without init(seed, chains), "
                "got 'auto': its pilot runs start there"
            )
        ids = np.arange(2**32 - self._chains, 2**32, dtype=np.uint32)
        adam = self._stepper(Rule("adam"), _LEARNING_RATE)
        steps = min(_MOST, max(_FEWEST, _EPOCHS * adam.batches))
        adam.schedule = schedules.cosine(steps)
        position = make(seed=self._seed, chains=ids.tolist())
        state = adam.start(name, position, self._seed, ids, 0, self._guard)
        state, _ = adam.advance(state, steps, self._guard)
        self._steps += steps
        position = self._lowest(state.position)
        near = self._stepper(self._rule, 1.0).start(name, position, self._seed, ids, 0, self._guard)
        if self._rule.kind == "friction":  # whose velocity has the size of a step
            still = self._density.xp.zeros_like(near.position)
            near = dataclasses.replace(near, first_moment=still)
        return near

    def _lowest(self, position: Array) -> Array:
        """Move chains that are not down yet to others: their huge gradients would judge steps."""
        energy = self._energies(position)
        order = np.arange(len(energy))
        down = order[energy <= np.nanmin(energy) + _DOWN * self._density.dim]
        places = np.where(np.isin(order, down), order, down[order % len(down)])
        xp = self._density.xp
        return xp.take(position, from_host(xp, places), axis=0)

    def _stepper(self, rule: Rule, step_size: float) -> Stepper:
        pilot = self._pilot
        return Stepper(
            self._function,
            self._density,
            rule,
            step_size=step_size,
            batch_size=pilot.batch_size,
            schedule=None,
            scale=pilot.scale if rule.kind == "kinetic" else None,
        )

    def _advance(
        self, stepper: Stepper, state: StochasticState, steps: int
    ) -> StochasticState | None:
        """Make steps at addresses of their own, from the beginning of a sweep; None: not finite."""
        sweep = 2 * stepper.batches
        self._clock = -(-self._clock // sweep) * sweep
        state = dataclasses.replace(state, step=self._clock)
        self._clock += steps
        self._steps += steps
        try:
            return stepper.advance(state, steps, self._guard)[0]
        except NonFiniteError:
            return None

    def _stretch(
        self, stepper: Stepper, state: StochasticState, steps: int
    ) -> tuple[StochasticState, HostArray] | None:
        """Return the end of a stretch and the mean energy of its second half, (C,)."""
        looks, now = [], self._advance(stepper, state, steps // 2)
        for _ in range(_LOOKS):
            if now is None:
                return None
            now = self._advance(stepper, now, steps // 2 // _LOOKS)
            if now is not None:
                looks.append(self._energies(now.position))
        return None if now is None else (now, np.mean(looks, axis=0))

    def _energies(self, position: Array) -> HostArray:
        return self._energies_and_gradients(position)[0]

    def _energies_and_gradients(self, position: Array) -> tuple[HostArray, Array]:
        if self._guard is not None and self._guard.requested:
            raise Interrupted
        self._looks += 1
        terms, grad = self._density.terms_and_grad(position, self._guard)
        return -np.asarray(to_host(total(terms)), np.float64), grad

    def _kinetic_energy(self, state: StochasticState, h: float) -> HostArray:
        """Total energy (C,); velocities lack the half of the kick that belongs to the position."""
        energy, grad = self._energies_and_gradients(state.position)
        arrays = state.first_moment, self._pilot.scale
        u, scale = (np.asarray(to_host(a), np.float64) for a in arrays)
        u = u + 0.5 * h * scale * np.asarray(to_host(grad), np.float64)
        kinetic: HostArray = 0.5 * np.sum(u * u, axis=1)
        return energy + kinetic

    def _report(self, step: float, excess: float, how: str) -> str:
        return (
            f"{step:.3g} by the {how}, {excess:.2g} of at most {self._bound:.3g} nats; "
            f"{self._chains} pilot chains, {self._steps:,} gradients of batches and "
            f"{self._looks:,} of all rows each"
        )

    def _nothing(self) -> ValueError:
        return ValueError(
            f"[{self._function}] expected a target whose energy some step size keeps, got none "
            f"down to {_SMALLEST:g}: give step_size as a number"
        )


def _mean_and_error(gain: HostArray) -> tuple[float, float]:
    """Return mean over chains and its standard error; infinity and 0 if a value is not finite."""
    if not np.isfinite(gain).all():
        return math.inf, 0.0
    return float(gain.mean()), float(gain.std(ddof=1) / math.sqrt(gain.size))
