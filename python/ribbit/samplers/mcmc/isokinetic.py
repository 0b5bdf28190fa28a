"""Microcanonical dynamics: a target's own native steps, or a loop over its gradient."""

# The formulas are those of ``core/isokinetic_hd.h``. Shapes: C chains, P parameters, n steps.

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ribbit._arrays import random_numbers
from ribbit._arrays.namespace import errstate, from_host, to_host
from ribbit._arrays.threads import Interrupted
from ribbit.density import Density, total
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array
from ribbit.samplers.mcmc.input_scales import blocks_of

if TYPE_CHECKING:
    import numpy.typing as npt


HostArray: TypeAlias = "npt.NDArray[np.float64]"

_SHORT = 0.1931833275037836
# Shares of a step: those of the kicks, and of the drifts between them.
_SCHEMES = {
    "leapfrog": ((0.5, 0.5), (1.0,)),
    "mclachlan": ((_SHORT, 1.0 - 2.0 * _SHORT, _SHORT), (0.5, 0.5)),
}
GRADIENTS = {name: len(drifts) for name, (_, drifts) in _SCHEMES.items()}
"""Gradients of a step, by integrator."""


class Path(NamedTuple):
    """Where chains are, and after steps what the steps were."""

    position: Array  # (C, P): the velocity's length does not matter
    velocity: Array
    grad: Array
    terms: Array  # (C, M) float64: of the log density at the position
    # (C,) float64: energy that the kicks gained in all; empty before the first step
    energy: HostArray = np.zeros(0)
    # (C, n) float64: energy error of each step, NaN if not finite; empty before the first step
    errors: HostArray = np.zeros(0)


class Dynamics:
    """Steps of a target, native where it has them."""

    def __init__(self, density: Density, integrator: str) -> None:
        self._density, self.integrator = density, integrator
        native = density.native("isokinetic")
        self._native = native if density.xp is np else None

    def run(
        self,
        start: Path,
        *,
        seed: int,
        chains: npt.NDArray[np.uint32],
        first_step: int,
        step_size: HostArray,
        decoherence_length: HostArray,
        num_steps: npt.NDArray[np.int64],
        inverse_mass: Array | None,
        turns: bool,
        guard: InterruptGuard | None,
        mixing: Array | None = None,
    ) -> Path:
        """Make `num_steps` (C,) steps of each chain."""
        # Noise of step i has the counter (seed, refresh, first_step + i, chain). A step that is not
        # finite is undone and turned round if `turns`; else the chain ends there.
        scale = None if inverse_mass is None else self._density.xp.sqrt(inverse_mass)
        options: dict[str, Any] = {
            "seed": seed,
            "chains": chains,
            "first_step": first_step,
            "step_size": step_size,
            "decoherence_length": decoherence_length,
            "num_steps": num_steps,
            "scale": scale,
            "turns": turns,
        }
        if mixing is not None:
            options |= {"blocks": blocks_of(self._density), "mixing": mixing}
        if self._native is not None:
            end = self._native(
                *start[:4],
                integrator=self.integrator,
                interrupt=None if guard is None else guard.flag,
                **options,
            )
            return Path(*end)
        return self._loop(start, guard=guard, **options)

    def _loop(
        self,
        start: Path,
        *,
        seed: int,
        chains: npt.NDArray[np.uint32],
        first_step: int,
        step_size: HostArray,
        decoherence_length: HostArray,
        num_steps: npt.NDArray[np.int64],
        scale: Array | None,
        turns: bool,
        guard: InterruptGuard | None,
        blocks: npt.NDArray[np.int64] | None = None,
        mixing: Array | None = None,
    ) -> Path:
        """Make the steps from gradients alone; chains leave the batch as they finish."""
        xp, dim = self._density.xp, self._density.dim
        at = [start.position, start.velocity, start.grad, start.terms]
        energy, errors = np.zeros(len(chains)), np.zeros((len(chains), int(num_steps.max())))
        levels = [
            refresh_level(e, length, dim)
            for e, length in zip(step_size.tolist(), decoherence_length.tolist(), strict=True)
        ]
        ended = np.zeros(len(chains), dtype=bool)
        for i in range(errors.shape[1]):
            if guard is not None and guard.requested:
                raise Interrupted
            rows = np.flatnonzero((num_steps > i) & ~ended)
            if rows.size == 0:
                break
            every = rows.size == len(chains)
            index = from_host(xp, rows)
            here = at if every else [xp.take(a, index, axis=0) for a in at]
            own = scale
            if scale is not None and scale.ndim == 2 and not every:
                own = xp.take(scale, index, axis=0)
            whitening = _Scaling(own, blocks, None if mixing is None else mixing[rows])
            q, u, g, terms, gained, error = self._step(here, step_size[rows], whitening, guard)
            level = [levels[row] for row in rows]
            if any(level):
                z = random_numbers.normal(
                    xp,
                    (rows.size, dim),
                    self._density.dtype,
                    seed=seed,
                    step=first_step + i,
                    chains=chains[rows],
                    purpose=random_numbers.REFRESH,
                )
                u = u + _column(xp, level, u) * z
            moved = [q, u, g, terms]
            at = moved if every else [_put(xp, a, rows, b) for a, b in zip(at, moved, strict=True)]
            energy[rows] += np.where(np.isnan(error), 0.0, gained)
            errors[rows, i] = error
            if not turns:
                ended[rows] = np.isnan(error)
        position, velocity, grad, terms = at
        return Path(position, velocity, grad, terms, energy, errors)

    def _step(
        self,
        here: list[Array],
        step_size: HostArray,
        whitening: _Scaling,
        guard: InterruptGuard | None,
    ) -> tuple[Array, Array, Array, Array, HostArray, HostArray]:
        """One step: position, velocity (unit), gradient, terms, gain and error of each chain."""
        density, xp = self._density, self._density.xp
        position, velocity, grad, terms = here
        kicks, drifts = _SCHEMES[self.integrator]
        q, u, g, new = position, velocity, grad, terms
        gained = np.zeros(len(step_size))
        lost = np.zeros(len(step_size), dtype=bool)
        with errstate(xp):
            for share, drift in zip(kicks, (*drifts, None), strict=True):
                whitened = whitening.of(g)
                along, keep, more = _kicks(xp, whitened, u, share * step_size)
                gained += more
                lost |= ~np.isfinite(more)
                u = _column(xp, along, u) * whitened + _column(xp, keep, u) * u
                if drift is None:
                    break
                q = q + _column(xp, drift * step_size, q) * whitening.of(u)
                if lost.any():  # code that is not ours never sees the NaN that would follow
                    q = _choose(xp, lost, position, q)
                new, g = density.terms_and_grad(q, guard)
            error = gained - to_host(total(new - terms))
            # Its square is what warmup and the statistics take.
            lost |= ~np.isfinite(error * error) | ~np.isfinite(_sums(xp, g, g)[0])
            if lost.any():
                _, back, _ = _kicks(xp, 0.0 * velocity, velocity, 0.0 * step_size)
                turned = -(_column(xp, back, u) * velocity)
                q, u, g, new = (
                    _choose(xp, lost, a, b)
                    for a, b in ((position, q), (turned, u), (grad, g), (terms, new))
                )
        return q, u, g, new, gained, np.where(lost, np.nan, error)


class _Scaling(NamedTuple):
    """Scales (P,) or (C, P) and matrices (C, M) of blocks (B, 3) of a batch of chains."""

    scale: Array | None
    blocks: npt.NDArray[np.int64] | None
    mixing: Array | None

    def of(self, values: Array) -> Array:
        """Multiply gradients or directions (C, P); matrices are symmetric, of NumPy arrays."""
        if self.mixing is not None and self.blocks is not None:
            values, at = values.copy(), 0
            for first, a, b in self.blocks.tolist():
                matrix = self.mixing[:, at : at + a * a].reshape(-1, a, a)
                own = values[:, first : first + a * b].reshape(-1, a, b)
                values[:, first : first + a * b] = np.einsum("cij,cjk->cik", matrix, own).reshape(
                    -1, a * b
                )
                at += a * a
        return values if self.scale is None else self.scale * values


def refresh_level(step_size: float, length: float, dim: int) -> float:
    """Sd of the noise by which a unit direction forgets itself over `length`; infinity: 0."""
    return math.sqrt(math.expm1(2.0 * min(step_size / length, 20.0)) / dim)


def kick(gg: float, gu: float, uu: float, step: float, dim: int) -> tuple[float, float, float]:
    """Return shares of gradient and old direction in the new one, and what the kick gained."""
    # gg, gu, uu: |g|^2, g.u and |u|^2; the direction that comes out has unit length.
    if not math.isfinite(gg) or not math.isfinite(gu):
        return math.nan, math.nan, math.nan
    size, norm = math.sqrt(uu), math.sqrt(gg)
    if norm == 0.0:
        return 0.0, 1.0 / size, 0.0
    cosine = min(max(gu / (norm * size), -1.0), 1.0)
    delta = step * norm / (dim - 1)
    bent = min(delta, 300.0)
    z, fallen = math.exp(-bent), -math.expm1(-bent)
    below = 1.0 + cosine + (1.0 - cosine) * z * z
    if bent < 1.0:
        growth = math.log1p(fallen * (fallen + cosine * (1.0 + z)) / (2.0 * z))
    else:
        growth = delta + math.log(0.5 * below)
    along = fallen * (1.0 + z + cosine * fallen) / (below * norm)
    return along, 2.0 * z / (below * size), (dim - 1) * growth


def _sums(xp: Any, a: Array, b: Array) -> HostArray:
    """|a|^2, a.b and |b|^2 of rows (C, P), summed in float64: (3, C) on the host."""
    a, b = xp.astype(a, xp.float64), xp.astype(b, xp.float64)
    return to_host(xp.stack([xp.sum(c, axis=1) for c in (a * a, a * b, b * b)]))


def _kicks(
    xp: Any, grad: Array, velocity: Array, step: HostArray
) -> tuple[list[float], list[float], HostArray]:
    """Kick each chain: its numbers on the host, where they round alike for any number of chains."""
    sums = _sums(xp, grad, velocity)
    found = [
        kick(gg, gu, uu, e, grad.shape[1])
        for (gg, gu, uu), e in zip(sums.T.tolist(), step.tolist(), strict=True)
    ]
    along, keep, gained = zip(*found, strict=True)
    return list(along), list(keep), np.array(gained)


def _column(xp: Any, values: Any, like: Array) -> Array:
    """Numbers (C,) of the host as a column (C, 1) in the dtype of an array."""
    return xp.astype(from_host(xp, np.asarray(values, dtype=np.float64)), like.dtype)[:, None]


def _choose(xp: Any, where: npt.NDArray[np.bool_], a: Array, b: Array) -> Array:
    """Rows of a where (C,), else of b."""
    return xp.where(from_host(xp, where)[:, None], a, b)


def _put(xp: Any, array: Array, rows: npt.NDArray[np.intp], values: Array) -> Array:
    """Return a copy of `array` (C, m) with other rows; the array API has no assignment by index."""
    order = np.arange(array.shape[0])
    order[rows] = array.shape[0] + np.arange(rows.size)
    return xp.take(xp.concat([array, values], axis=0), from_host(xp, order), axis=0)
