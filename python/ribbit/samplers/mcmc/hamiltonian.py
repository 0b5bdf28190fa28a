"""The common part of HMC and NUTS: starts of chains, and tuning of a state.

Shapes: C chains, P parameters, M terms.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import weakref
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ribbit._arrays import checks, random_numbers, transitions
from ribbit._arrays.namespace import errstate, from_host, to_host
from ribbit._arrays.warning import warn
from ribbit.density import Density, total
from ribbit.errors import ShapeError
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array
from ribbit.results.state import Adaptation, DualAveraging, HostArray, State, Welford
from ribbit.sample import Stepwise
from ribbit.samplers.mcmc import options as hmc_options
from ribbit.samplers.mcmc.precision_probe import warn_of_precision

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Evaluated", "Hamiltonian", "Tuning", "windows"]


class Hamiltonian(Stepwise[State]):
    """Base class of the samplers whose transitions follow Hamiltonian trajectories."""

    # A transition takes long, and each has statistics of its own.
    _chunked: ClassVar[bool] = False
    # Leapfrog steps that test the precision of gradients; None: as many as a trajectory has.
    _probe_steps: ClassVar[int | None] = None

    _tuning: Tuning

    def __init__(self, density: Density, divergence_threshold: float) -> None:
        super().__init__(density)
        self._threshold = checks.positive(
            type(self).__name__, "divergence_threshold", divergence_threshold
        )
        # Tuning arrays of the state adopted last, by identity; a cache, not state of the chains.
        self._adopted: tuple[Any, Any, Any] = (None, None, None)
        self._evaluated = Evaluated()

    @abstractmethod
    def _transition(
        self, state: State, guard: InterruptGuard | None
    ) -> tuple[State, dict[str, Array]]:
        """Make one transition of all chains."""

    def _check_warmup(self, function: str, warmup: int) -> None:
        """Raise unless `warmup` transitions can adapt what is to be adapted."""
        self._tuning.check_warmup(function, warmup)

    def _init(
        self,
        function: str,
        position: Array,
        seed: int,
        chains: npt.ArrayLike | None,
        warmup: int,
        guard: InterruptGuard | None,
    ) -> State:
        density = self._density
        q, ids = self._start_arrays(function, position, seed, chains, warmup)
        self._check_warmup(function, warmup)
        terms, grad, logdensity = density.evaluate(function, q, ids, guard)
        tuned = self._tuning.start(q, terms, grad, seed, ids, warmup, guard)
        reference = density.precision_reference
        if reference is not None:
            probed = dict(tuned)
            if self._probe_steps is not None:
                probed["num_steps"] = np.full(ids.shape, self._probe_steps, dtype=np.int64)
            warn_of_precision(
                function,
                density,
                Density(reference, function=function),
                q,
                probed,
                seed=seed,
                chains=ids,
                divergence_threshold=self._threshold,
                guard=guard,
            )
        self._adopted = tuned["num_steps"], tuned["step_size"], tuned["inverse_mass"]
        state = State(
            position=q,
            logdensity=logdensity,
            grad=grad,
            terms=terms,
            step=0,
            seed=seed,
            chains=ids,
            warmup=warmup,
            target=density.fingerprint,
            **tuned,
        )
        self._evaluated.add(state)
        return state

    def _advance(
        self, state: Any, num_steps: int, guard: InterruptGuard | None
    ) -> tuple[State, dict[str, Array]]:
        for _ in range(num_steps):
            state, info = self._transition(state, guard)
        self._evaluated.add(state)
        return state, info

    def _adopt(self, function: str, state: Any, guard: InterruptGuard | None) -> State:
        """Put this sampler's target and fixed settings into a state; what was adapted stays."""
        if not isinstance(state, State):
            raise TypeError(f"[{function}] expected a State, got {checks.summary(state)}")
        num_steps, step_size, mass = self._adopted
        if (
            state.num_steps is num_steps
            and state.step_size is step_size
            and state.inverse_mass is mass
            and state in self._evaluated
        ):
            return state  # `step` again and again: nothing has changed
        density = self._density
        density.check_state(function, state)
        changes: dict[str, Any] = {}
        if state not in self._evaluated:
            # From another sampler or a file. The same target gives the same bits.
            terms, grad, logdensity = density.evaluate(
                function, state.position, state.chains, guard, resumed=True
            )
            changes |= {"terms": terms, "grad": grad, "logdensity": logdensity}
        changes |= {"target": density.fingerprint, **self._tuning.adopt(state)}
        adopted: State = dataclasses.replace(state, **changes)
        self._evaluated.add(adopted)
        self._adopted = adopted.num_steps, adopted.step_size, adopted.inverse_mass
        return adopted


class Evaluated:
    """The states at which a sampler knows its density: all that it made and that still exist.

    A state is known by its position, terms and gradient, the arrays themselves: a state from a
    file, or with another position, is not. If arrays have no weak
    references, only the last ones count.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Callable[[], Any], ...]] = {}
        self._last: tuple[Any, ...] = ()

    def __reduce__(self) -> tuple[type[Evaluated], tuple[()]]:
        return Evaluated, ()

    def add(self, state: Any) -> None:
        """Know a state that has the terms and gradient of the density at its position."""
        known, key = self._known, id(state.terms)
        try:
            known[key] = (
                weakref.ref(state.terms, lambda _: known.pop(key, None)),
                weakref.ref(state.position),
                weakref.ref(state.grad),
            )
        except TypeError:
            self._last = state.terms, state.position, state.grad

    def __contains__(self, state: Any) -> bool:
        arrays, known = (state.terms, state.position, state.grad), self._known.get(id(state.terms))
        kept = self._last if known is None else tuple(one() for one in known)
        return bool(kept) and all(a is b for a, b in zip(arrays, kept, strict=True))


# Stream id of lengths under JITTER. Random step sizes have 0, so the two share no number.
_LENGTH_LAYER = 1
# "auto": a trajectory has at most _SHORT leapfrog steps on average until a share of warmup is left.
# In a warmup of fewer than _FEW transitions, _LEFT_OF_FEW are left instead: its average of steps
# still remembers the first ones, which full trajectories have to correct.
_SHORT, _LEFT_SHARE, _FEW, _LEFT_OF_FEW = 20, 0.1, 500, 100
# Leapfrog steps of a trajectory at most. If the sampler finds step and length, it makes on average
# as many as NUTS's deepest tree has: on 6-50-1 and 277 rows, whose steps are 2e-4,
# trajectories of a whole prior sd, 3,900 leapfrogs, have as many effective draws per gradient.
_MOST, _MEAN_BY_DEFAULT = 100_000, 1024


class Tuning:
    """Checked options, and the fields of a :class:`State` that follow from them."""

    def __init__(
        self,
        density: Density,
        *,
        step_size: float | Array | str,
        trajectory_length: float | None,
        num_leapfrog_steps: int | None,
        randomize_length: bool,
        inverse_mass_matrix: Array | str | None,
        target_accept: float,
        max_num_leapfrog_steps: int | None,
        function: str = "HMC",
    ) -> None:
        self._density = density
        self._function = function
        self.target_accept = checks.fraction(function, "target_accept", target_accept)
        # () or (C,) float64; None: "auto"
        self.step_size = hmc_options.step_size(step_size, function)
        nothing_given = (
            self.step_size is None and trajectory_length is None and num_leapfrog_steps is None
        )
        self._caps_default = max_num_leapfrog_steps is None and nothing_given
        if max_num_leapfrog_steps is None:
            max_num_leapfrog_steps = 2 * _MEAN_BY_DEFAULT if nothing_given else _MOST
        self.max_steps = checks.integer(
            "HMC", "max_num_leapfrog_steps", max_num_leapfrog_steps, minimum=1, maximum=2**62
        )
        self._most_on_average = _MEAN_BY_DEFAULT if self._caps_default else self.max_steps
        # whether the leapfrog steps of a transition vary around L
        self.randomize_length = checks.boolean("HMC", "randomize_length", randomize_length)
        self.adapts_mass = isinstance(inverse_mass_matrix, str) and inverse_mass_matrix == "adapt"
        # (P,) or None: the fixed one; None for the identity and for "adapt"
        self.inverse_mass = hmc_options.inverse_mass(density, inverse_mass_matrix, function)
        self.length, self.num_steps = hmc_options.trajectory(
            density,
            trajectory_length,
            num_leapfrog_steps,
            maximum=self.max_steps,
            whitened=inverse_mass_matrix is not None,
        )
        if self.step_size is not None:
            smallest = np.asarray(self.step_size).astype(density.dtype).min()
            if not smallest > 0:
                raise ValueError(
                    f"[{function}] expected step_size > 0 in {density.dtype}, "
                    f"got {self.step_size.min()}"
                )
            self._warn_capped(*self._steps_for(np.atleast_1d(self.step_size)))

    def steps_of(self, state: State) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Leapfrog steps of each chain's next trajectory, and whether they were capped."""
        num_steps, capped = state.num_steps, state.capped
        if self.step_size is None and _short(state.step, state.warmup):
            # The step comes first: a step that is still too small must not cost long trajectories.
            num_steps, capped = np.minimum(num_steps, _SHORT), capped & (num_steps <= _SHORT)
        if not self.randomize_length:
            return num_steps, capped
        u = random_numbers.uniform(
            np,
            (state.chains.shape[0], 1),
            seed=state.seed,
            step=state.step,
            chains=state.chains,
            purpose=random_numbers.JITTER,
            layer=_LENGTH_LAYER,
        )
        steps = np.ceil(2.0 * u[:, 0] * num_steps)
        capped = capped | (steps > self.max_steps)
        return np.minimum(steps, self.max_steps).astype(np.int64), capped

    def settled(self, warmup: int) -> int | None:
        """Step from which trajectories have their full length, by a step size that is found."""
        # At half of a short warmup at the soonest. None: the steps of a trajectory are given.
        if self.step_size is not None or self.length is None or warmup < 2:
            return None
        return max(int(np.ceil(warmup - _left(warmup))), warmup // 2)

    @property
    def adapts(self) -> bool:
        """Whether warmup tunes anything."""
        return self.step_size is None or self.adapts_mass

    def check_warmup(self, function: str, warmup: int) -> None:
        """Raise unless `warmup` transitions can adapt what is to be adapted."""
        least = 20 if self.adapts_mass else 1 if self.adapts else 0
        if warmup < least:
            what = "inverse_mass_matrix='adapt'" if self.adapts_mass else "step_size='auto'"
            raise ValueError(
                f"[{function}] expected warmup >= {least} for {what}, got {warmup}: give warmup=, "
                f"or numbers instead of {what} in {self._function}(...)"
            )

    def start(
        self,
        position: Array,
        terms: Array,
        grad: Array,
        seed: int,
        chains: npt.NDArray[np.uint32],
        warmup: int,
        guard: InterruptGuard | None,
    ) -> dict[str, Any]:
        """Fields of a first state: those of :meth:`adapt`."""
        if self.step_size is not None:
            step_size = self._broadcast(self.step_size, position.shape[0])
        else:
            step_size = self._search(
                position, terms, grad, self.inverse_mass, seed, 0, chains, guard
            )
        adaptation = None
        if warmup and self.adapts:
            adaptation = Adaptation(
                DualAveraging.start(step_size) if self.step_size is None else None,
                Welford.start(self._density.xp, position.shape) if self.adapts_mass else None,
            )
        return {
            **self._fields_of(step_size),
            "inverse_mass": self.inverse_mass,
            "adaptation": adaptation,
        }

    def adapt(
        self,
        state: State,
        acceptance: Array,
        guard: InterruptGuard | None,
        *,
        settles: bool = True,
    ) -> State:
        """Adapt after a transition of warmup; the only place that waits for a device."""
        # settles: whether `steps_of` chose the trajectories, which are brief at first.
        xp, done = self._density.xp, state.step
        assert state.adaptation is not None
        dual, welford = state.adaptation.dual, state.adaptation.welford
        mass = state.inverse_mass
        if dual is not None:
            full = settles and not _short(done - 1, state.warmup)
            dual = dual.update(to_host(acceptance), self.target_accept, settled=full)
        if welford is not None:
            first, ends = windows(state.warmup)
            if first < done <= max(ends, default=0):
                welford = welford.update(xp, state.position)
            if done in ends:
                mass = xp.astype(welford.variance(), state.position.dtype)
                welford = Welford.start(xp, state.position.shape)
                if dual is not None:  # a new metric needs a new step size
                    dual = DualAveraging.start(
                        self._search(
                            state.position,
                            state.terms,
                            state.grad,
                            mass,
                            state.seed,
                            done,
                            state.chains,
                            guard,
                        )
                    )
        last = done >= state.warmup
        changes: dict[str, Any] = {
            "inverse_mass": mass,
            "adaptation": None if last else Adaptation(dual, welford),
        }
        if dual is not None:
            step_size = dual.average() if last else dual.step_size()
            changes |= self._fields_of(step_size, last=last)
        return dataclasses.replace(state, **changes)

    def rule(self, warmup: int) -> dict[str, Any]:
        """Return what `steps_of` and `adapt` do, for the core's `hamiltonian_run`."""
        # For fixed masses and lengths.
        brief = self.step_size is None
        return {
            "randomize_length": self.randomize_length,
            "most": self.max_steps,
            "brief": _SHORT,
            "brief_until": max(0, math.ceil(warmup - _left(warmup))) if brief else 0,
            "target": self.target_accept,
            "length": self.length or 0.0,
            "most_on_average": self._most_on_average,
        }

    def adapted(
        self, dual: DualAveraging | None, step_size: npt.NDArray[np.float64], *, last: bool
    ) -> dict[str, Any]:
        """Return the fields of a state after transitions of warmup that the core has adapted."""
        adaptation = None if last else Adaptation(dual, None)
        return {"adaptation": adaptation, **self._fields_of(step_size, last=last)}

    def adopt(self, state: State) -> dict[str, Any]:
        """Fields that put these options into a state; what was adapted stays."""
        changes: dict[str, Any] = {}
        if not self.adapts_mass and state.inverse_mass is not self.inverse_mass:
            changes["inverse_mass"] = self.inverse_mass
        step_size = to_host(state.step_size)
        if self.step_size is not None:
            step_size = self._broadcast(self.step_size, state.position.shape[0])
            changes["step_size"] = from_host(self._density.xp, step_size)
        if state.step < state.warmup:
            changes["adaptation"] = self._adaptation(state, step_size)
        changes["num_steps"], changes["capped"] = self._steps_for(step_size)
        return changes

    def _adaptation(self, state: State, step_size: npt.NDArray[np.float64]) -> Adaptation | None:
        """Return what is left to adapt: these options with the state's running sums."""
        if not self.adapts:
            return None
        dual, welford = (
            (None, None)
            if state.adaptation is None
            else (state.adaptation.dual, state.adaptation.welford)
        )
        if self.step_size is not None:
            dual = None
        elif dual is None:
            dual = DualAveraging.start(step_size)
        if not self.adapts_mass:
            welford = None
        elif welford is None:
            welford = Welford.start(self._density.xp, state.position.shape)
        return Adaptation(dual, welford)

    def _search(
        self,
        position: Array,
        terms: Array,
        grad: Array,
        mass: Array | None,
        seed: int,
        step: int,
        chains: npt.NDArray[np.uint32],
        guard: InterruptGuard | None,
    ) -> npt.NDArray[np.float64]:
        start = 0.01 * (1.0 if self.length is None else min(1.0, self.length))
        return reasonable_step_size(
            self._density,
            position,
            terms,
            grad,
            mass,
            start=start,
            seed=seed,
            step=step,
            chains=chains,
            guard=guard,
        )

    def _fields_of(
        self, step_size: npt.NDArray[np.float64], *, last: bool = False
    ) -> dict[str, Any]:
        """Return the fields of a state that follow from its step sizes; `last`: of warmup."""
        num_steps, capped = self._steps_for(step_size)
        if last:
            self._warn_capped(num_steps, capped)
        step_sizes = from_host(self._density.xp, step_size)
        return {"step_size": step_sizes, "num_steps": num_steps, "capped": capped}

    def _steps_for(
        self, step_size: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return L per chain and whether it was capped."""
        if self.length is None:
            assert self.num_steps is not None
            steps = np.full(step_size.shape, float(self.num_steps))
        else:
            # A quotient that only rounding has lifted over an integer is that integer.
            steps = np.maximum(np.ceil(self.length / step_size * (1.0 - 1e-14)), 1.0)
        most = self._most_on_average
        capped = steps > most
        return np.where(capped, most, steps).astype(np.int64), capped

    def _warn_capped(self, num_steps: npt.NDArray[np.int64], capped: npt.NDArray[np.bool_]) -> None:
        if self.randomize_length:  # the longest have twice as many
            capped = capped | (2.0 * num_steps > self.max_steps)
        if capped.any() and self._caps_default:
            warn(
                f"[HMC] expected steps with which the default length takes at most "
                f"{_MEAN_BY_DEFAULT} leapfrogs on average, got {int(capped.sum())} of "
                f"{capped.size} smaller: "
                "those trajectories are shorter. The density is narrow in some directions: "
                "inverse_mass_matrix='adapt' or rb.MCLMC may take it further; "
                "max_num_leapfrog_steps=100_000 asks for the whole length",
            )
        elif capped.any():
            warn(
                f"[HMC] expected at most {self.max_steps} leapfrog steps per trajectory "
                f"(max_num_leapfrog_steps), got more for {int(capped.sum())} of {capped.size} step "
                "sizes: those trajectories are shorter than asked for",
            )

    def _broadcast(
        self, step_size: npt.NDArray[np.float64], chains: int
    ) -> npt.NDArray[np.float64]:
        if step_size.shape not in ((), (chains,)):
            raise ShapeError(
                f"[{self._function}] expected step_size as a number or ({chains},) for {chains} "
                f"chains, got {step_size.shape}"
            )
        return np.broadcast_to(step_size, (chains,)).copy()


def _short(step: int, warmup: int) -> bool:
    """Return whether trajectories are still kept short: the step size comes first."""
    return warmup - step > _left(warmup)


def _left(warmup: int) -> float:
    """Return the transitions of warmup whose trajectories have their full length."""
    return _LEFT_OF_FEW if warmup < _FEW else _LEFT_SHARE * warmup


# The momentum of the search has a layer of its own: it shares no number with a draw.
_SEARCH_LAYER = 1


@functools.lru_cache(maxsize=32)
def windows(warmup: int) -> tuple[int, frozenset[int]]:
    """Return the first transition of the mass adaptation, and the transitions that end its windows.

    Stan's schedule: a fast start of 75, slow windows of 25, 50, 100, ... and a fast end of 50; a
    short warmup scales the three to 15, 75 and 10 %. Under 20 transitions there are no windows.
    Unlike Stan's, no window is shorter than the first: from 151 to 174 transitions one takes all.
    """
    if warmup < 20:
        return warmup, frozenset()
    start, base, end = 75, 25, 50
    if start + base + end > warmup:
        start, end = int(0.15 * warmup), int(0.1 * warmup)
        base = warmup - start - end
    last = warmup - end
    if last < start + 2 * base:  # no room for a second window of some length: one takes all
        return start, frozenset({last})
    close, size = start + base, base
    ends = [close]
    while close != last:
        size *= 2
        close += size
        # A window too short to be followed by one of twice its size reaches to the end.
        if close != last and close + 2 * size > last:
            close = last
        ends.append(close)
    return start, frozenset(ends)


def reasonable_step_size(
    density: Density,
    position: Array,
    terms: Array,
    grad: Array,
    inverse_mass: Array | None,
    *,
    start: float,
    seed: int,
    step: int,
    chains: npt.NDArray[np.uint32],
    guard: InterruptGuard | None,
) -> HostArray:
    """Return step sizes (C,) of which one is accepted half the time (the paper's algorithm 4).

    `start` is tried first; a small one keeps foreign code away from wild positions.
    """
    xp, count = density.xp, chains.shape[0]
    p0 = random_numbers.normal(
        xp,
        (count, density.dim),
        density.dtype,
        seed=seed,
        step=step,
        chains=chains,
        purpose=random_numbers.MOMENTUM,
        layer=_SEARCH_LAYER,
    )
    if inverse_mass is not None:
        p0 = p0 / xp.sqrt(inverse_mass)
    kinetic0 = transitions.kinetic_energy(xp, p0, inverse_mass)
    one = np.ones(count, dtype=np.int64)
    eps = np.full(count, start)
    direction: HostArray | None = None
    active = np.ones(count, dtype=bool)
    while True:
        _, p, new_terms, _, _ = density.leapfrog(
            position, p0, grad, from_host(xp, eps.copy()), one, inverse_mass, guard
        )
        with errstate(xp):
            kinetic = transitions.kinetic_energy(xp, p, inverse_mass)
            drop = -to_host((kinetic - kinetic0) + total(terms - new_terms))
        drop = np.where(np.isfinite(drop), drop, -np.inf)  # log acceptance ratio
        if direction is None:
            direction = np.where(drop > math.log(0.5), 1.0, -1.0)
        active &= direction * drop > -direction * math.log(2.0)
        active &= (eps > 1e-12) & (eps < 1e7)
        if not active.any():
            return eps
        eps = np.where(active, eps * 2.0**direction, eps)
