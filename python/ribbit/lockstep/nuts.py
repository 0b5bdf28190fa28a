"""The no-U-turn transition on arrays of any library.

All chains of a batch make the same leapfrog step of the same doubling, each at its own end of its
trajectory. A chain whose tree is complete leaves the batch. Decisions are made on the host, vectors
stay with the positions. Shapes: C chains, A of them still growing, P parameters, M terms.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit._arrays import random_numbers, transitions
from ribbit._arrays.namespace import errstate, from_host, to_host
from ribbit._arrays.threads import Interrupted
from ribbit.density import Density, total
from ribbit.interrupt import InterruptGuard
from ribbit.lockstep.hmc import Moved, Point, leapfrog, momentum, taken
from ribbit.protocols import Array

if TYPE_CHECKING:
    import numpy.typing as npt

_DIRECTION, _LEAF, _DOUBLING = range(3)  # layers of the stream of trees, as in core/no_u_turn_hd.h
_SIDES, _VECTORS = ("backward", "forward"), ("q", "p", "g")
_DRAWN = "drawn_q", "drawn_g", "drawn_terms"
# Numbers of a chain whose tree is complete.
_NUMBERS = "drawn_kinetic", "drawn_error", "rates", "steps", "depth", "diverging"

HostArray: TypeAlias = "npt.NDArray[np.float64]"
Part: TypeAlias = list[Array]  # sum of momenta, first and last momentum of a subtree, (A, P) each


def nuts(density: Density, tuner: Any, at: Point, guard: InterruptGuard | None) -> Moved:
    """Make one transition of all chains: momentum, and trees that double until they turn."""
    size, depths, _ = tuner.plan(at.step)
    trees = _Trees(density, at, size, tuner.divergence_threshold, guard)
    for depth in range(int(depths[0])):
        counter = {**at.counter, "chains": at.chains[trees.rows]}
        if trees.rows.size == 0:
            break
        first = 2**depth - 1  # leapfrog steps before this doubling
        forward = _uniform(_DIRECTION, depth + 1, counter)[:, depth] < 0.5
        leaves = np.log(_uniform(_LEAF, 2 * first + 1, counter)[:, first:])
        accepts = np.log(_uniform(_DOUBLING, depth + 1, counter)[:, depth])
        trees.double(depth, forward, leaves, accepts)
    vectors, host = trees.finish()
    with errstate(density.xp):
        lp = total(vectors["drawn_terms"])
        stats = {
            "lp": lp,
            "acceptance_rate": host["rates"] / host["steps"],
            "diverging": host["diverging"],
            "energy": from_host(density.xp, host["drawn_kinetic"]) - lp,
            "energy_error": host["drawn_error"],
            "n_steps": host["steps"],
            "tree_depth": host["depth"],
            "reached_max_treedepth": host["limited"],
            "step_size": size,
        }
    return vectors["drawn_q"], vectors["drawn_g"], vectors["drawn_terms"], stats


def _uniform(layer: int, count: int, counter: dict[str, Any]) -> HostArray:
    """Return elements 0 .. count - 1 (A, count) of a layer of the trees' stream."""
    shape = counter["chains"].shape[0], count
    found: HostArray = random_numbers.uniform(
        np, shape, layer=layer, purpose=random_numbers.TREE, **counter
    )
    return found


class _Trees:
    """The trees of a batch of chains."""

    def __init__(
        self,
        density: Density,
        at: Point,
        step_size: HostArray,
        threshold: float,
        guard: InterruptGuard | None,
    ) -> None:
        self._density, self._threshold, self._guard = density, threshold, guard
        self._xp: ModuleType = density.xp
        p, count = momentum(density, at), at.position.shape[0]
        self.rows = np.arange(count)  # (A,) chains that still grow
        kinetic = to_host(transitions.kinetic_energy(self._xp, p, at.mass))
        # A row for each chain, in the library of the positions and on the host.
        self._vectors: dict[str, Array] = {
            "step_size": from_host(self._xp, step_size),
            "start_terms": at.terms,
            "rho": self._wide(p),
        }
        for name, value in (("q", at.position), ("p", p), ("g", at.grad), ("terms", at.terms)):
            self._vectors |= {f"{which}_{name}": value for which in (*_SIDES, "drawn", "new")}
        if at.mass is not None:
            self._vectors["mass"] = at.mass + self._xp.zeros_like(at.position)
        self._host: dict[str, npt.NDArray[Any]] = {
            **dict.fromkeys(("start_kinetic", "drawn_kinetic", "new_kinetic"), kinetic),
            **dict.fromkeys(("drawn_error", "new_error", "weight", "rates"), np.zeros(count)),
            **dict.fromkeys(("steps", "depth"), np.zeros(count, dtype=np.int64)),
            **dict.fromkeys(("diverging", "turned"), np.zeros(count, dtype=bool)),
        }
        self._parts: list[Part] = []  # subtrees that wait for their other half, the largest first
        self._ended: list[tuple[Any, dict[str, Array], dict[str, Any]]] = []

    def double(
        self,
        depth: int,
        forward: npt.NDArray[np.bool_],
        leaves: HostArray,
        accepts: HostArray,
    ) -> None:
        """Add as many states as the trees have. leaves, accepts: logs of uniforms."""
        xp, vectors, host = self._xp, self._vectors, self._host
        host |= {"forward": forward, "accepts": accepts, "leaves": leaves}
        host["added"] = np.full(forward.shape[0], -np.inf)
        ahead = from_host(xp, forward)[:, None]
        for name in _VECTORS:
            back, front = (vectors[f"{side}_{name}"] for side in _SIDES)
            vectors[name] = xp.where(ahead, front, back)
        vectors["first"] = self._wide(xp.where(ahead, vectors["backward_p"], vectors["forward_p"]))
        vectors["last"] = self._wide(vectors["p"])
        vectors["signed"] = vectors["step_size"] * from_host(xp, np.where(forward, 1.0, -1.0))
        for n in range(2**depth):
            if self._guard is not None and self._guard.requested:
                raise Interrupted
            self._leapfrog(n)
            self._join(n)
            self._leave(self._host["diverging"] | self._host["turned"])
            if self.rows.size == 0:
                return
        vectors, host = self._vectors, self._host
        added, weight = host["added"], host["weight"]
        moves = host["accepts"] < added - weight
        self._replace("drawn", "new", moves)
        host["weight"] = _log_add_exp(weight, added)
        host["depth"] = host["depth"] + 1
        part = self._parts.pop()
        host["turned"] = ~self._goes_on([vectors[n] for n in ("rho", "first", "last")], part)
        vectors["rho"] = vectors["rho"] + part[0]
        ahead = from_host(xp, host["forward"])[:, None]
        for side, grown in zip(_SIDES, (~ahead, ahead), strict=True):
            for name in _VECTORS:
                end = f"{side}_{name}"
                vectors[end] = xp.where(grown, vectors[name], vectors[end])
        self._leave(host["turned"])

    def finish(self) -> tuple[dict[str, Array], dict[str, npt.NDArray[Any]]]:
        """Return drawn states and numbers of all chains, in their order."""
        self._leave(np.ones(self.rows.shape[0], dtype=bool), limited=True)
        rows, vectors, host = zip(*self._ended, strict=True)
        order, xp = np.argsort(np.concatenate(rows)), self._xp
        return (
            {
                name: taken(xp, order, xp.concat([one[name] for one in vectors], axis=0))[0]
                for name in vectors[0]
            },
            {name: np.concatenate([one[name] for one in host])[order] for name in host[0]},
        )

    def _wide(self, array: Array) -> Array:
        return self._xp.astype(array, self._xp.float64)

    def _leapfrog(self, n: int) -> None:
        """Make one step of every chain, weigh its state, and choose whether it is the proposal."""
        xp, vectors, host = self._xp, self._vectors, self._host
        one = np.ones(self.rows.shape[0], dtype=np.int64)
        q, p, g, mass = (vectors.get(name) for name in (*_VECTORS, "mass"))
        q, p, terms, g, _ = leapfrog(
            self._density, q, p, g, vectors["signed"], one, mass, self._guard
        )
        vectors |= {"q": q, "p": p, "g": g}
        with errstate(xp), np.errstate(all="ignore"):
            kinetic = to_host(transitions.kinetic_energy(xp, p, mass))
            error = kinetic - host["start_kinetic"]
            error = error + to_host(total(vectors["start_terms"] - terms))
            finite = np.isfinite(error) & to_host(transitions.finite_rows(xp, q, g))
            error = np.where(finite, error, np.inf)
            host["rates"] = host["rates"] + np.exp(np.minimum(-error, 0.0))
            host["steps"] = host["steps"] + 1
            host["diverging"] = error > self._threshold
            host["added"] = _log_add_exp(host["added"], -error)
            chosen = host["leaves"][:, n] < -error - host["added"]
        vectors |= {"state_q": q, "state_g": g, "state_terms": terms}
        host |= {"state_kinetic": kinetic, "state_error": error}
        self._replace("new", "state", chosen | (n == 0))

    def _replace(self, old: str, new: str, chosen: npt.NDArray[np.bool_]) -> None:
        """Replace the states `old` of some chains by `new`."""
        flags = from_host(self._xp, chosen)[:, None]
        for name in ("q", "g", "terms"):
            values = (self._vectors[f"{which}_{name}"] for which in (new, old))
            self._vectors[f"{old}_{name}"] = self._xp.where(flags, *values)
        for name in ("kinetic", "error"):
            values = (self._host[f"{which}_{name}"] for which in (new, old))
            self._host[f"{old}_{name}"] = np.where(chosen, *values)

    def _join(self, n: int) -> None:
        """Join state n with the subtrees that it completes, one for each trailing 1 bit of n."""
        part = [self._wide(self._vectors["p"])] * 3
        on = np.ones(self.rows.shape[0], dtype=bool)
        while n & 1:
            waiting = self._parts.pop()
            with errstate(self._xp):
                on &= self._goes_on(waiting, part)
                part = [waiting[0] + part[0], waiting[1], part[2]]
            n >>= 1
        self._parts.append(part)
        self._host["turned"] = ~on

    def _goes_on(self, a: Part, b: Part) -> npt.NDArray[np.bool_]:
        """Return whether two subtrees make no U-turn together; see core/no_u_turn_hd.h."""
        xp, mass = self._xp, self._vectors.get("mass")
        wide = None if mass is None else self._wide(mass)

        def product(p: Array, rho: Array) -> Array:
            return xp.sum((p if wide is None else wide * p) * rho, axis=-1) > 0.0

        with errstate(xp):
            rho, near, far = a[0] + b[0], a[0] + b[1], a[2] + b[0]
            on = product(a[1], rho) & product(b[2], rho)
            on &= product(a[1], near) & product(b[1], near)
            on &= product(a[2], far) & product(b[2], far)
        return to_host(on)

    def _leave(self, ended: npt.NDArray[np.bool_], *, limited: bool = False) -> None:
        """Take chains out of the batch. limited: the depth limit ended their trees."""
        if not ended.any():
            return
        xp, out, stay = self._xp, np.flatnonzero(ended), np.flatnonzero(~ended)
        drawn = {name: taken(xp, out, self._vectors[name])[0] for name in _DRAWN}
        host = {name: self._host[name][out] for name in _NUMBERS}
        host["limited"] = np.full(out.shape, limited)
        self._ended.append((self.rows[out], drawn, host))
        self.rows = self.rows[stay]
        kept = taken(xp, stay, *self._vectors.values())
        self._vectors = dict(zip(self._vectors, kept, strict=True))
        self._host = {name: value[stay] for name, value in self._host.items()}
        self._parts = [taken(xp, stay, *part) for part in self._parts]


def _log_add_exp(a: HostArray, b: HostArray) -> HostArray:
    """Return log(exp(a) + exp(b)) as in core/no_u_turn_hd.h; b is finite, a may be -infinity."""
    high, low = np.maximum(a, b), np.minimum(a, b)
    found: HostArray = high + np.log(1.0 + np.exp(low - high))
    return found
