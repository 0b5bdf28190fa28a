"""Warmup of MCLMC: step by the variance of energy errors, scales, and decoherence length."""

# Every chain on its own, and by the numbers of its steps alone: warmup is divided into blocks that
# end at fixed steps, so that neither chunks nor resuming change a bit.

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit._arrays.namespace import from_host, to_host
from ribbit.density import Density
from ribbit.protocols import Array
from ribbit.results.state import (
    Adaptation,
    EnergyErrors,
    GradientSquares,
    InputProducts,
    MicrocanonicalState,
    Welford,
)
from ribbit.samplers.mcmc.input_scales import InputScales
from ribbit.samplers.mcmc.layer_scales import LayerScales

if TYPE_CHECKING:
    import numpy.typing as npt


HostArray: TypeAlias = "npt.NDArray[np.float64]"

LEAST = 100  # steps of a warmup that finds anything
STEP_LIMIT = 0.25  # lengths: of directions about equally wide draws 20 steps apart forget all

# Windows as shares of warmup. Each ends with a length from its positions, all but the last with
# scales. From positions a first one gives a rough length and the mass; gradients say more, and
# sooner: chains from an ensemble come into the narrows in the first steps. The step is adapted to
# the end, its wanted variance annealed before.
Shares: TypeAlias = tuple[tuple[float, float], ...]
OF_POSITIONS: Shares = ((0.1, 0.3), (0.5, 0.8))
_ENDS = (0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
OF_GRADIENTS: Shares = tuple(itertools.pairwise(_ENDS))
_ANNEALED = 0.7
_BLOCK = 16
_MEMORY = 50.0  # steps that the mean over steps remembers: later all since the annealing
_TRUST = 9.0  # sd of the log of an error that still counts
_WIDE = 1_250  # parameters up to which networks were measured with one variance for all
_LOST = 100.0  # wanted squares that a step that is not finite counts as: one in 100 may be


def variances_of(dim: int, last: float = 0.02) -> tuple[float, float]:
    """Return the variances (0.5, last), times (1250 / P)^2 where there are more parameters."""
    # Normals whose variances are each off by a small share b are together P b^2 / 4 nats off, and b
    # goes with the cube root of the energy variance per parameter: that asks for P^(-3/2). And
    # where few rows narrow few of many directions, these hardly count in a mean over P, but are the
    # ones whose steps are too long. With P^(-3/2) LeNet-5 on 100 digits did not come in from its
    # prior, with P^-2 it does.
    share = min(1.0, (_WIDE / dim) ** 2)
    return 0.5 * share, last * share


@functools.lru_cache(maxsize=32)
def _windows(shares: Shares, warmup: int) -> tuple[tuple[int, int], ...]:
    """Return the steps (first, last] of each window."""
    return tuple((int(a * warmup), int(b * warmup)) for a, b in shares)


def block_end(step: int, warmup: int, shares: Shares = OF_POSITIONS) -> int:
    """Return the end of the block that `step` of warmup lies in: longer and longer, then even."""
    block = max(1, min(_BLOCK, warmup // 128))
    doubled = 1 << step.bit_length()
    end = doubled if doubled <= block else step + block - step % block
    marks = itertools.chain.from_iterable(_windows(shares, warmup))
    return min(end, *(mark for mark in (*marks, warmup) if mark > step))


def spread_of(variance: Array, inverse_mass: Array | None, xp: Any) -> HostArray:
    """Return the root of the sum of variances (C, P) in whitened coordinates, (C,)."""
    if inverse_mass is not None:
        variance = variance / xp.astype(inverse_mass, xp.float64)
    found: HostArray = np.sqrt(to_host(xp.sum(variance, axis=1)))
    return found


def new_length(spread: HostArray, state: MicrocanonicalState) -> HostArray:
    """Return the new length (C,): the spread, or the old length for chains that have not moved."""
    known = np.isfinite(spread) & (spread > 0.0)
    return np.where(known, spread, state.decoherence_length)


class EnergyTuning:
    """Step size, length and mass of unadjusted MCLMC."""

    def __init__(
        self,
        density: Density,
        *,
        # of the energy error of a step, per parameter, at the beginning and at the end of warmup
        variance: tuple[float, float],
        step_size: float | None,  # None: adapted
        length: float | None,
        # what scales come from: the variances of positions, the gradients of each layer, or of its
        # inputs; None: they are fixed
        mass: str | None,
        # of steps that are found, in lengths, once these are found
        step_limit: float | None = None,
    ) -> None:
        self._density, self._variance, self._step_limit = density, variance, step_limit
        self.step_size, self.length, self.adapts_mass = step_size, length, mass is not None
        self.layers = LayerScales(density) if mass in ("layers", "inputs") else None
        self.inputs = InputScales(density) if mass == "inputs" else None
        # Where windows end; positions alone need longer ones than gradients.
        self.shares = OF_POSITIONS if self.layers is None else OF_GRADIENTS

    @property
    def adapts(self) -> bool:
        """Whether warmup finds anything."""
        return self.step_size is None or self.length is None or self.adapts_mass

    def initial_scales(self, state: MicrocanonicalState) -> tuple[float, float]:
        """Return the initial step size and length: given, or from the prior sd."""
        size, target = 1.0, self._density.target
        whitened = state.inverse_mass is not None
        sd = None if whitened else getattr(target, "prior_sd", None)
        if sd is not None:
            temperature = float(getattr(target, "temperature", 1.0))
            host = to_host(sd).astype(np.float64)
            size = math.sqrt(float(np.mean(host**2)) * temperature)
        step_size = 0.01 * size  # small, since it may double soon
        length = 0.3 * size * math.sqrt(self._density.dim)  # narrower than the prior
        return (
            step_size if self.step_size is None else self.step_size,
            length if self.length is None else self.length,
        )

    def _wanted(self, step: int, warmup: int) -> float:
        """Variance of the energy error per parameter that is wanted at a step of warmup."""
        begin, last = self._variance
        return begin + (last - begin) * min(1.0, step / (_ANNEALED * warmup))

    def adaptation(self, state: MicrocanonicalState) -> Adaptation | None:
        """Return the running sums of warmup; the sums of the state are continued."""
        if not self.adapts:
            return None
        shape, before = tuple(state.position.shape), state.adaptation
        errors = welford = gradients = products = None
        if self.step_size is None:
            errors = None if before is None else before.errors
            errors = EnergyErrors.start(shape[0]) if errors is None else errors
        # All sums of a window are of the same positions: those of other scales begin again.
        sums = None if self.inputs is not None and before and before.products is None else before
        if self.length is None or self.adapts_mass:
            welford = None if sums is None else sums.welford
            welford = Welford.start(self._density.xp, shape) if welford is None else welford
        if self.layers is not None:
            gradients = None if sums is None else sums.gradients
            gradients = self.layers.start(shape[0]) if gradients is None else gradients
            self.layers.check(gradients, shape[0])
        if self.inputs is not None:
            products = None if sums is None else sums.products
            products = self.inputs.start(shape[0]) if products is None else products
            self.inputs.check(products.positions, shape[0])
            self.inputs.check(products.gradients, shape[0])
        return Adaptation(None, welford, errors, gradients=gradients, products=products)

    def observe(self, state: MicrocanonicalState, errors: HostArray, first: int) -> Adaptation:
        """Take energy errors (C, n) of steps first, first + 1, .. of a block into account."""
        adaptation = state.adaptation
        assert adaptation is not None
        if adaptation.errors is None:
            return adaptation
        needed, weight = adaptation.errors.needed.copy(), adaptation.errors.weight.copy()
        dim = self._density.dim
        steps = range(first, first + errors.shape[1])
        wanted = np.array([dim * self._wanted(s, state.warmup) for s in steps])
        kept = [1.0 - 1.0 / max(_MEMORY, s - _ANNEALED * state.warmup) for s in steps]
        # Squares of errors beyond 1e154 are infinite; they have no weight.
        with np.errstate(over="ignore", invalid="ignore"):
            xi = np.where(np.isnan(errors), _LOST, errors**2 / wanted + 1e-8)
            weights = np.exp(-0.5 * (np.log(xi) / _TRUST) ** 2)
            # errors grow with the cube of the step, so this is a property of the target
            terms = weights * xi * wanted / state.step_size[:, None] ** 6
        terms = np.where(weights > 0.0, terms, 0.0)
        # One step after the other: the same sums however the steps are cut into calls.
        for c, rows in enumerate(zip(terms.tolist(), weights.tolist(), strict=True)):
            a, b = float(needed[c]), float(weight[c])
            for term, w, keep in zip(*rows, kept, strict=True):
                a, b = keep * a + term, keep * b + w
            needed[c], weight[c] = a, b
        return dataclasses.replace(adaptation, errors=EnergyErrors(needed, weight))

    def close(self, state: MicrocanonicalState) -> MicrocanonicalState:
        """Put what a block found to use; `state.step` is its end."""
        xp, step = self._density.xp, state.step
        adaptation = state.adaptation
        assert adaptation is not None
        changes: dict[str, Any] = {}
        errors, welford = adaptation.errors, adaptation.welford
        gradients, products = adaptation.gradients, adaptation.products
        step_size = state.step_size
        if errors is not None:
            step_size, errors = self._step_size(errors, step_size, self._wanted(step, state.warmup))
        windows = _windows(self.shares, state.warmup)
        if welford is not None and any(first < step <= last for first, last in windows):
            if self.inputs is not None and products is not None:
                products = self.inputs.update(products, welford.mean, state.position, state.grad)
            welford = welford.update(xp, state.position)
            if self.layers is not None and gradients is not None:
                gradients = self.layers.update(xp, gradients, state.grad)
            if any(step == last for _, last in windows) and welford.count > 1:
                mass = state.inverse_mass
                variance = welford.squares / (welford.count - 1.0)
                renews = self.adapts_mass and step < windows[-1][1]
                if renews:
                    mass = self.inverse_mass(welford, gradients, state)
                mixes = renews or state.mixing is not None
                if self.inputs is not None and products is not None and mixes:
                    found = self._mixed(products, to_host(variance), mass, state, renews=renews)
                    mass, changes["mixing"], length, longer = found
                else:
                    length = spread_of(variance, mass, xp)
                    longer = _longer(state.inverse_mass, mass) if renews else None
                if renews:
                    changes["inverse_mass"] = mass
                    if longer is not None and errors is not None:
                        step_size = step_size / longer
                        errors = EnergyErrors.start(len(step_size))
                if self.length is None:
                    changes["decoherence_length"] = new_length(length, state)
                welford = Welford.start(xp, state.position.shape)
                if self.layers is not None:
                    gradients = self.layers.start(len(step_size))
                if self.inputs is not None:
                    products = self.inputs.start(len(step_size))
        if errors is not None and self._step_limit is not None and step >= windows[-1][1]:
            length = changes.get("decoherence_length", state.decoherence_length)
            step_size = np.minimum(step_size, self._step_limit * length)
        last = step >= state.warmup
        changes["adaptation"] = (
            None
            if last
            else Adaptation(None, welford, errors, gradients=gradients, products=products)
        )
        return dataclasses.replace(state, step_size=step_size, **changes)

    def inverse_mass(
        self, welford: Welford, gradients: GradientSquares | None, state: MicrocanonicalState
    ) -> Array:
        """Return (C, P) of the positions or the gradients of a window; that of before for NaN."""
        xp, dtype = self._density.xp, state.position.dtype
        if self.layers is None or gradients is None:
            return xp.astype(welford.variance(), dtype)
        found = self.layers.inverse_mass(xp, welford.squares / (welford.count - 1.0), gradients)
        before = 1.0 if state.inverse_mass is None else to_host(state.inverse_mass)
        found = np.where(np.isnan(found), before, found)
        return xp.astype(from_host(xp, found), dtype)

    def _step_size(
        self, errors: EnergyErrors, step_size: HostArray, wanted: float
    ) -> tuple[HostArray, EnergyErrors]:
        """Step size of each chain by its sums, at most doubled: then the sums begin again."""
        found, needed, weight = step_size.copy(), errors.needed.copy(), errors.weight.copy()
        square = self._density.dim * wanted
        for c, eps in enumerate(step_size.tolist()):
            if needed[c] > 0.0 and weight[c] > 0.0:
                found[c] = (square * float(weight[c]) / float(needed[c])) ** (1.0 / 6.0)
                if found[c] > 2.0 * eps:  # steps so short say little of errors but rounding's
                    found[c], needed[c], weight[c] = 2.0 * eps, 0.0, 0.0
        return np.clip(found, 1e-12, 1e7), EnergyErrors(needed, weight)

    def _mixed(
        self,
        products: InputProducts,
        variance: HostArray,
        mass: Array,
        state: MicrocanonicalState,
        *,
        renews: bool,
    ) -> tuple[Array, Array | None, HostArray, HostArray | None]:
        """Return inverse mass, mixing, spread in their coordinates, and a step's growth."""
        # variance: (C, P) of a window's positions; mass: (C, P) by the arrays. If nothing is
        # renewed, the state's matrices remain.
        inputs, dtype = self.inputs, state.position.dtype
        assert inputs is not None
        chains, dim = state.position.shape
        scales = np.asarray(to_host(mass), np.float64)
        before = state.mixing
        old = inputs.identity(chains) if before is None else np.asarray(before, np.float64)
        if not renews:
            return mass, before, inputs.spread(products, variance, scales, old), None
        found = inputs.whitening(products, variance, scales)
        ones = np.ones((chains, dim))
        own = ones if state.inverse_mass is None else np.asarray(state.inverse_mass, np.float64)
        longer = inputs.growth((own, old), (found.inverse_mass, found.mixing))
        return found.inverse_mass.astype(dtype), found.mixing.astype(dtype), found.spread, longer


def _longer(before: Array | None, after: Array) -> HostArray:
    """Return by how much (C,) a step is longer in new coordinates, at most."""
    squares = to_host(after).astype(np.float64)
    if before is not None:
        squares = squares / to_host(before).astype(np.float64)
    found: HostArray = np.sqrt(squares.max(axis=1))
    return found
