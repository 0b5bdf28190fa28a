"""Trajectories and the transition of Hamiltonian Monte Carlo on arrays of any library.

Shapes: C chains, P parameters, M terms.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ribbit._arrays import random_numbers, transitions
from ribbit._arrays.namespace import errstate, from_host
from ribbit._arrays.threads import Interrupted
from ribbit.density import Density, all_finite, total
from ribbit.interrupt import InterruptGuard, foreign
from ribbit.protocols import Array
from ribbit.results.state import Welford

if TYPE_CHECKING:
    import numpy.typing as npt

# Position, gradient and terms after a transition, and its statistics by name, (C,) each.
Moved: TypeAlias = tuple[Array, Array, Array, dict[str, Array]]


class Point(NamedTuple):
    """The chains between two transitions."""

    seed: int
    chains: npt.NDArray[np.uint32]
    step: int
    position: Array  # (C, P)
    grad: Array  # (C, P)
    terms: Array  # (C, M) float64
    mass: Array | None  # inverse mass (P,) or (C, P); None: ones
    window: Welford | None  # moments of the positions in the window of the mass
    divergences: Array  # (C,) int64 since the last draw

    @property
    def counter(self) -> dict[str, Any]:
        """The counter of the random numbers of a step."""
        return {"seed": self.seed, "step": self.step, "chains": self.chains}


def momentum(density: Density, at: Point, layer: int = 0) -> Array:
    """Return momenta (C, P) from N(0, M). Draws use layer 0."""
    p = random_numbers.normal(
        density.xp,
        at.position.shape,
        density.dtype,
        **at.counter,
        purpose=random_numbers.MOMENTUM,
        layer=layer,
    )
    return p if at.mass is None else p / density.xp.sqrt(at.mass)


def hmc(density: Density, tuner: Any, at: Point, guard: InterruptGuard | None) -> Moved:
    """Make one transition of all chains: momentum, trajectory, acceptance."""
    xp, (size, steps, capped) = density.xp, tuner.plan(at.step)
    end, (before, after), error, made = trajectory(
        density, at, momentum(density, at), size, steps, guard
    )
    with errstate(xp):
        # The error is finite only if every term and every momentum is. The position and the
        # gradient need a check of their own.
        finite = xp.isfinite(error) & transitions.finite_rows(xp, *end[:2])
        error = xp.where(finite, error, xp.inf)
        accepted, rate = transitions.accept(xp, error, **at.counter)
        position, grad, terms = (
            transitions.select(xp, accepted, new, old)
            for new, old in zip(end, (at.position, at.grad, at.terms), strict=True)
        )
        lp = total(terms)
        stats = {
            "lp": lp,
            "acceptance_rate": rate,
            "accepted": accepted,
            "diverging": error > tuner.divergence_threshold,
            "energy": xp.where(accepted, after, before) - lp,
            "energy_error": error,
            "n_steps": made,
            "step_size": size,
            "capped": capped,
        }
    return position, grad, terms, stats


def trajectory(
    density: Density,
    at: Point,
    p: Array,
    step_size: npt.NDArray[np.float64],
    num_steps: npt.NDArray[np.int64],
    guard: InterruptGuard | None,
) -> tuple[list[Array], list[Array], Array, npt.NDArray[np.int64]]:
    """Return position, gradient, terms at the ends, kinetic energies, energy errors, steps."""
    xp, size = density.xp, from_host(density.xp, step_size)
    start = at.position, p, at.grad
    q, p1, terms, grad, made = leapfrog(density, *start, size, num_steps, at.mass, guard)
    with errstate(xp):
        kinetic = [transitions.kinetic_energy(xp, v, at.mass) for v in (p, p1)]
        error = (kinetic[1] - kinetic[0]) + total(at.terms - terms)
    return [q, grad, terms], kinetic, error, made


def leapfrog(
    density: Density,
    q: Array,
    p: Array,
    g: Array,
    step_size: Array,
    num_steps: npt.NDArray[np.int64],
    mass: Array | None,
    guard: InterruptGuard | None,
) -> tuple[Array, Array, Array, Array, npt.NDArray[np.int64]]:
    """Return position, momentum, terms, gradient at the ends of trajectories, and their steps."""
    if density.has_leapfrog:
        return density.leapfrog(q, p, g, step_size, num_steps, mass, guard)
    xp = density.xp
    eps = xp.astype(step_size, q.dtype)[:, None]  # (C, 1)
    if xp is np and eps.size == 1:
        eps = float(eps[0, 0])  # a number costs less than an array
    rows = np.arange(num_steps.shape[0])  # chains that have not ended
    ended: list[list[Array]] = []
    step, shortest, made = 0, int(num_steps.min()), num_steps.copy()
    with errstate(xp):
        drift, half = eps if mass is None else eps * mass, 0.5 * eps
        p = p + half * g
        q = q + drift * p
    with foreign(guard):  # once, because a gradient may be faster than this
        while True:
            if guard is not None and guard.requested:
                raise Interrupted
            step += 1
            terms, g = density.gradient(q)
            # A lost chain ends here, so that user code never sees the NaN that would follow.
            # On a GPU the check would make Python wait.
            lost = xp is np and not all_finite(terms, g)
            if step == shortest or lost:
                ends = num_steps[rows] == step
                if lost:
                    density.note_undefined(q, terms, g)
                    ends |= ~(np.isfinite(g).all(axis=1) & np.isfinite(terms).all(axis=1))
                made[rows[ends]] = step
                with errstate(xp):
                    group = [q, p + half * g, terms, g]
                if ends.all():
                    ended.append([rows, *group])
                    break
                if ends.any():
                    ended.append([rows[ends], *taken(xp, np.flatnonzero(ends), *group)])
                    stay = np.flatnonzero(~ends)
                    rows = rows[stay]
                    q, p, g, eps, half, drift = taken(xp, stay, q, p, g, eps, half, drift)
                    shortest = int(num_steps[rows].min())
            with errstate(xp):
                p = p + eps * g
                q = q + drift * p
    if len(ended) == 1:
        return (*ended[0][1:], made)
    order, *columns = zip(*ended, strict=True)
    back = np.argsort(np.concatenate(order))
    q, p, terms, g = taken(xp, back, *(xp.concat(column, axis=0) for column in columns))
    return q, p, terms, g, made


def taken(xp: ModuleType, rows: npt.NDArray[np.intp], *arrays: Array) -> list[Array]:
    """Return these rows of arrays."""
    index = from_host(xp, rows)
    return [xp.take(array, index, axis=0) for array in arrays]
