"""The launch that ends a gradient: partial sums, the prior's part, a leapfrog step."""

# Shapes: C chains, P parameters; ``cuda/kernels/join_kernels.h``.

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ribbit._arrays.device import THREADS, Device, Launch
from ribbit.protocols import Array

_EACH = 4 * THREADS  # parameters of a block
_MANY, _LANES = 64, 8  # partial sums from which on several threads add up those of a parameter
PriorSegment = tuple[int, int, int, tuple[float, ...]]  # offset, size, kind, constants


@dataclass(frozen=True)
class Source:
    """Where the gradient that the data give some neighbouring parameters lies, in partial sums."""

    offset: int
    size: int
    # of the first parameter's first partial sum of the first chain; None: the parameter is the
    # logarithm of the noise
    address: int | None
    chain_stride: int  # numbers from chain to chain and from one partial sum to the next
    slice_stride: int
    slices: int


@dataclass(frozen=True)
class Step:
    """A step of a trajectory: addresses of momenta, inverse masses and step sizes (C,)."""

    momentum: int
    mass: int | None
    mass_stride: int  # from chain to chain; 0: they share it
    step_size: int


@dataclass(frozen=True, eq=False)
class Join:
    """What is known of a gradient's end when its program is written."""

    device: Device
    scalar: str
    itemsize: int
    theta: Array  # (C, P)
    grad: Array
    centre: Array | None  # (P,) or None
    sources: Sequence[Source]  # of some parameters; the gradient of the others lies in `grad`
    prior: Sequence[PriorSegment]
    prior_weight: float  # of the log prior in the gradient
    # (C, slots) float64: sums of the slope by log noise, None where it is not learned, and of the
    # log likelihood
    noise: Array | None
    rows: Array
    factors: tuple[float, float]  # of these sums, in the gradient and in the value
    others: Array | None  # (C, n) float64 or None: of the log prior what other kernels make
    terms: Array  # (C, 2) float64: where values go
    _tables: list[Any] = field(default_factory=list, init=False)

    @property
    def kind(self) -> int:
        """Of all priors, -1: several."""
        kinds = {kind for _, _, kind, _ in self.prior}
        return kinds.pop() if len(kinds) == 1 else -1

    @property
    def name(self) -> str:
        """The kernel."""
        return f"Join<{self.scalar}, {self.kind}>"

    def advance_fields(self) -> tuple[Any, ...]:
        """Return the members of `Advance` that say what a gradient is made of."""
        segments, starts = self._made()[0], self._tables[4]
        slots, factor = int(self.rows.shape[1]), self.factors[0]
        return segments, starts, self.centre, self.prior_weight, self.noise, slots, factor

    def launch(self, *, gradient: bool, values: bool, step: Step | None = None) -> Launch | None:
        """Return the launch, None if nothing is left to do; a `step` needs no `values`."""
        # With a step, `grad` is not completed: positions and momenta move.
        assert not (values and step)
        segments, places, needed, count = self._made()
        blocks = count if step else needed if gradient else 0
        totals = 2 if values else 0
        if blocks + totals == 0:
            return None
        others, dim = self.others, int(self.theta.shape[1])
        fields = (
            segments,
            int(segments.shape[0]),
            places,
            totals,
            self.theta,
            self.centre,
            None if step else self.grad,
            dim,
            self.prior_weight,
            *((step.momentum, step.mass, step.mass_stride, step.step_size) if step else _STILL),
            self.noise,
            self.rows,
            int(self.rows.shape[1]),
            *self.factors,
            others,
            0 if others is None else int(others.shape[1]),
            self.terms,
        )
        return Launch(self.name, fields, (totals + blocks, 1, 1))

    def _made(self) -> tuple[Array, Array, int, int]:
        """Return segments, places, and block counts of a gradient alone and with a step."""
        # What lies in `grad` without a prior comes last.
        if not self._tables:
            rows, idle = [], []
            for source, prior in self._cut():
                offset, size, kind, constants = prior
                lies = source.address == self.device.pointer(self.grad) + offset * self.itemsize
                idle.append(lies and source.slices == 1 and (kind < 0 or not self.prior_weight))
                row = np.array(
                    [
                        offset,
                        size,
                        source.address or 0,
                        source.chain_stride,
                        source.slice_stride,
                        source.slices,
                        kind,
                        *(0 for _ in constants),
                    ],
                    np.int64,
                )
                row[7:].view(np.float64)[:] = constants
                rows.append(row)
            places = [
                (number, first)
                for wanted in (False, True)
                for number, row in enumerate(rows)
                if idle[number] == wanted
                for first in range(0, int(row[1]), THREADS // _LANES if row[5] > _MANY else _EACH)
            ]
            needed = sum(not idle[number] for number, _ in places)
            xp, dim = self.device.xp, int(self.theta.shape[1])
            ends = np.cumsum([row[1] for row in rows])
            tables = (
                xp.asarray(np.stack(rows)),
                xp.asarray(np.array(places, np.int64)),
                needed,
                len(places),
                xp.asarray(np.searchsorted(ends, np.arange(0, dim, _EACH), side="right")),
            )
            self._tables.extend(tables)
        segments, places, needed, count, _ = self._tables
        return segments, places, needed, count

    def _cut(self) -> list[tuple[Source, PriorSegment]]:
        """Return all parameters in pieces of one source and one prior each."""
        dim, itemsize = int(self.theta.shape[1]), self.itemsize
        grad = Source(0, dim, self.device.pointer(self.grad), dim, 0, 1)
        no_prior: PriorSegment = (0, dim, -1, (0.0,) * 5)
        ends = {0, dim}
        for offset, size in (
            *((s.offset, s.size) for s in self.sources),
            *(p[:2] for p in self.prior),
        ):
            ends |= {offset, offset + size}
        found, places = [], sorted(ends)
        for begin, end in itertools.pairwise(places):
            source = next((s for s in self.sources if s.offset <= begin < s.offset + s.size), grad)
            prior = next((p for p in self.prior if p[0] <= begin < p[0] + p[1]), no_prior)
            address = source.address
            if address is not None:
                address += (begin - source.offset) * itemsize
            strides = source.chain_stride, source.slice_stride, source.slices
            found.append(
                (Source(begin, end - begin, address, *strides), (begin, end - begin, *prior[2:]))
            )
        return found


_STILL = (None, None, 0, None)
