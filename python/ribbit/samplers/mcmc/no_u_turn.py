"""A no-U-turn transition from gradients alone: the native one's law and random numbers."""

# All chains of a batch make the same leapfrog step of the same doubling at the same time, each on
# its own side of its trajectory. A chain whose tree has ended leaves the batch. What decides lies
# on the host, vectors lie where the positions are. Shapes: C chains, A of them still growing, P
# parameters, M terms.

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit._arrays import random_numbers, transitions
from ribbit._arrays.namespace import errstate, from_host, to_host
from ribbit._arrays.threads import Interrupted
from ribbit.density import Density, total
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array, TreeDraw

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["no_u_turn"]

# Layers of the purpose "tree", as in core/no_u_turn_hd.h.
_DIRECTION, _LEAF, _DOUBLING = range(3)

HostArray: TypeAlias = "npt.NDArray[np.float64]"
Part: TypeAlias = tuple[Array, Array, Array]  # sum of momenta, first and last momentum, (A, P) each


def no_u_turn(
    density: Density,
    position: Array,
    momentum: Array,
    grad: Array,
    terms: Array,
    step_size: Array,
    *,
    inverse_mass: Array | None,
    seed: int,
    step: int,
    chains: npt.NDArray[np.uint32],
    max_tree_depth: int,
    divergence_threshold: float,
    guard: InterruptGuard | None,
) -> TreeDraw:
    """Make one transition of every chain; arguments as in `protocols.NativeTree`."""
    growth = _Growth(density, position, momentum, grad, terms, step_size, inverse_mass, guard)
    for depth in range(max_tree_depth):
        ids = chains[growth.rows]
        if ids.size == 0:
            break
        first = 2**depth - 1  # leapfrog steps before this doubling
        place = {"seed": seed, "step": step, "chains": ids, "purpose": random_numbers.TREE}
        forward = _uniform(_DIRECTION, depth + 1, place)[:, depth] < 0.5
        leaves = np.log(_uniform(_LEAF, 2 * first + 1, place)[:, first:])
        accepts = np.log(_uniform(_DOUBLING, depth + 1, place)[:, depth])
        growth.double(depth, forward, leaves, accepts, divergence_threshold)
    return growth.finish()


def _uniform(layer: int, count: int, place: dict[str, Any]) -> HostArray:
    """Elements 0 .. count - 1 (A, count) of a layer of the tree's address."""
    shape = place["chains"].shape[0], count
    found: HostArray = random_numbers.uniform(np, shape, layer=layer, **place)
    return found


class _Growth:
    """The trees of a batch."""

    def __init__(
        self,
        density: Density,
        position: Array,
        momentum: Array,
        grad: Array,
        terms: Array,
        step_size: Array,
        inverse_mass: Array | None,
        guard: InterruptGuard | None,
    ) -> None:
        self._density, self._guard = density, guard
        self._xp: ModuleType = density.xp
        count = position.shape[0]
        self.rows = np.arange(count)  # (A,) int: which chains still grow
        kinetic = to_host(transitions.kinetic_energy(self._xp, momentum, inverse_mass))
        # Of the library of the positions, and of the host; by row.
        self._far: dict[str, Array] = {
            "step_size": step_size,
            "start_terms": terms,
            "rho": self._wide(momentum),
            "drawn_q": position,
            "drawn_g": grad,
            "drawn_terms": terms,
        }
        for side in ("backward", "forward"):
            for name, value in (("q", position), ("p", momentum), ("g", grad)):
                self._far[f"{side}_{name}"] = value
        self._shared_mass = None
        if inverse_mass is not None and inverse_mass.ndim == 2:
            self._far["mass"] = inverse_mass
        else:
            self._shared_mass = inverse_mass
        self._host: dict[str, npt.NDArray[Any]] = {
            "start_kinetic": kinetic,
            "kinetic": kinetic,
            "error": np.zeros(count),
            "weight": np.zeros(count),
            "rates": np.zeros(count),
            "steps": np.zeros(count, dtype=np.int64),
            "depth": np.zeros(count, dtype=np.int64),
            "diverging": np.zeros(count, dtype=bool),
            "turned": np.zeros(count, dtype=bool),
        }
        self._parts: list[Part] = []  # waiting for their other half, the largest first
        self._ended: list[tuple[npt.NDArray[np.intp], dict[str, Array], dict[str, Any]]] = []

    def double(
        self,
        depth: int,
        forward: npt.NDArray[np.bool_],
        leaves: HostArray,
        accepts: HostArray,
        threshold: float,
    ) -> None:
        """Add as many states as the trees have; logs of uniforms (A, 2^depth) and (A,)."""
        xp, far, host = self._xp, self._far, self._host
        host["forward"], host["accepts"], host["leaves"] = forward, accepts, leaves
        host["added"] = np.full(forward.shape[0], -np.inf)
        ahead = from_host(xp, forward)[:, None]
        for name in ("q", "p", "g"):
            far[name] = xp.where(ahead, far[f"forward_{name}"], far[f"backward_{name}"])
        far["first"] = self._wide(xp.where(ahead, far["backward_p"], far["forward_p"]))
        far["last"] = self._wide(far["p"])
        far["signed"] = far["step_size"] * from_host(xp, np.where(forward, 1.0, -1.0))

        count = 2**depth
        for n in range(count):
            if self._guard is not None and self._guard.requested:
                raise Interrupted
            self._leapfrog(n, threshold)
            self._join(n)
            self._leave(host["diverging"] | host["turned"])
            if self.rows.size == 0:
                return
            far, host = self._far, self._host

        added, weight = host["added"], host["weight"]
        moves = host["accepts"] < added - weight
        self._replace("drawn", "new", moves)
        for name in ("kinetic", "error"):
            host[name] = np.where(moves, host[f"new_{name}"], host[name])
        host["weight"] = _log_add_exp(weight, added)
        host["depth"] = host["depth"] + 1

        ((rho, first, last),) = self._parts
        self._parts = []
        tree = far["rho"], far["first"], far["last"]
        host["turned"] = ~self._goes_on(tree, (rho, first, last))
        far["rho"] = far["rho"] + rho
        ahead = from_host(xp, host["forward"])[:, None]
        for name in ("q", "p", "g"):
            for side, grown in (("forward", ahead), ("backward", ~ahead)):
                far[f"{side}_{name}"] = xp.where(grown, far[name], far[f"{side}_{name}"])
        self._leave(host["turned"])

    def finish(self) -> TreeDraw:
        """Put the chains back in their order."""
        xp = self._xp
        limited = [np.zeros(rows.shape[0], dtype=bool) for rows, _, _ in self._ended]
        if self.rows.size:
            self._ended.append((self.rows, self._far, self._host))
            limited.append(np.ones(self.rows.shape[0], dtype=bool))
        order = np.argsort(np.concatenate([rows for rows, _, _ in self._ended]))

        def far(name: str) -> Array:
            joined = xp.concat([one[name] for _, one, _ in self._ended], axis=0)
            return xp.take(joined, from_host(xp, order), axis=0)

        def host(name: str) -> npt.NDArray[Any]:
            return np.concatenate([one[name] for _, _, one in self._ended])[order]

        steps = host("steps")
        return TreeDraw(
            position=far("drawn_q"),
            terms=far("drawn_terms"),
            grad=far("drawn_g"),
            kinetic=host("kinetic"),
            energy_error=host("error"),
            acceptance=host("rates") / steps,
            num_steps=steps,
            depth=host("depth"),
            diverging=host("diverging"),
            at_max_depth=np.concatenate(limited)[order],
        )

    @property
    def _mass(self) -> Array | None:
        return self._far.get("mass", self._shared_mass)

    def _wide(self, momentum: Array) -> Array:
        return self._xp.astype(momentum, self._xp.float64)

    def _leapfrog(self, n: int, threshold: float) -> None:
        """One step of every chain, the energy there, and whether that state is the proposal."""
        xp, far, host, mass = self._xp, self._far, self._host, self._mass
        one = np.ones(self.rows.shape[0], dtype=np.int64)
        q, p, terms, g, _ = self._density.leapfrog(
            far["q"], far["p"], far["g"], far["signed"], one, mass, self._guard
        )
        far |= {"q": q, "p": p, "g": g}
        with errstate(xp), np.errstate(all="ignore"):
            kinetic = to_host(transitions.kinetic_energy(xp, p, mass))
            error = kinetic - host["start_kinetic"]
            error = error + to_host(total(far["start_terms"] - terms))
            finite = np.isfinite(error) & to_host(transitions.finite_rows(xp, q, g))
        error = np.where(finite, error, np.inf)
        host["rates"] = host["rates"] + np.exp(np.minimum(-error, 0.0))
        host["steps"] = host["steps"] + 1
        host["diverging"] = error > threshold
        with np.errstate(all="ignore"):  # those that diverge leave
            host["added"] = _log_add_exp(host["added"], -error)
            chosen = host["leaves"][:, n] < -error - host["added"]
        state = {"state_q": q, "state_g": g, "state_terms": terms}
        if n == 0:
            far |= {name.replace("state", "new"): value for name, value in state.items()}
            host |= {"new_kinetic": kinetic, "new_error": error}
            return
        far |= state
        self._replace("new", "state", chosen)
        host["new_kinetic"] = np.where(chosen, kinetic, host["new_kinetic"])
        host["new_error"] = np.where(chosen, error, host["new_error"])

    def _replace(self, old: str, new: str, chosen: npt.NDArray[np.bool_]) -> None:
        xp, far = self._xp, self._far
        flags = from_host(xp, chosen)[:, None]
        for name in ("q", "g", "terms"):
            far[f"{old}_{name}"] = xp.where(flags, far[f"{new}_{name}"], far[f"{old}_{name}"])

    def _join(self, n: int) -> None:
        """Join state n with the parts that it completes, one for each trailing one of n."""
        momentum = self._wide(self._far["p"])
        part: Part = momentum, momentum, momentum
        on = np.ones(self.rows.shape[0], dtype=bool)
        while n & 1:
            waiting = self._parts.pop()
            with errstate(self._xp):
                on &= self._goes_on(waiting, part)
                part = waiting[0] + part[0], waiting[1], part[2]
            n >>= 1
        self._parts.append(part)
        self._host["turned"] = ~on

    def _goes_on(self, a: Part, b: Part) -> npt.NDArray[np.bool_]:
        """Whether two parts go on as one; see core/no_u_turn_hd.h."""
        xp, mass = self._xp, self._mass
        wide = None if mass is None else self._wide(mass)

        def product(momentum: Array, rho: Array) -> Array:
            velocity = momentum if wide is None else wide * momentum
            return xp.sum(velocity * rho, axis=-1) > 0.0

        with errstate(xp):
            rho, near, far = a[0] + b[0], a[0] + b[1], a[2] + b[0]
            on = product(a[1], rho) & product(b[2], rho)
            on &= product(a[1], near) & product(b[1], near)
            on &= product(a[2], far) & product(b[2], far)
        return to_host(on)

    def _leave(self, ended: npt.NDArray[np.bool_]) -> None:
        """Take chains out of the batch."""
        if not ended.any():
            return
        out, stay = np.flatnonzero(ended), np.flatnonzero(~ended)
        results = "drawn_q", "drawn_g", "drawn_terms"
        far = {name: self._take(self._far[name], out) for name in results}
        host = {name: value[out] for name, value in self._host.items()}
        self._ended.append((self.rows[out], far, host))
        self.rows = self.rows[stay]
        self._far = {name: self._take(value, stay) for name, value in self._far.items()}
        self._host = {name: value[stay] for name, value in self._host.items()}
        self._parts = [
            (self._take(rho, stay), self._take(first, stay), self._take(last, stay))
            for rho, first, last in self._parts
        ]

    def _take(self, array: Array, rows: npt.NDArray[np.intp]) -> Array:
        return self._xp.take(array, from_host(self._xp, rows), axis=0)


def _log_add_exp(a: HostArray, b: HostArray) -> HostArray:
    """log(exp(a) + exp(b)) as in core/no_u_turn_hd.h; b is finite, a may be -infinity."""
    high, low = np.maximum(a, b), np.minimum(a, b)
    total_: HostArray = high + np.log(1.0 + np.exp(low - high))
    return total_
