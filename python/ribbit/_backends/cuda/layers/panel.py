"""One panel of rows on its way through the layers: the buffers of its values and its launches."""

# Shapes: C chains, R rows of a panel, P parameters. A layer's module has ``write(panel, number,
# row)``, which appends the launches of the forward pass of table row `number` and returns a
# function that appends those of the backward pass; the functions are called in the opposite order.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ribbit._arrays.device import Launch
from ribbit._backends.precision import Passes
from ribbit.protocols import Array

Row: TypeAlias = dict[str, int]  # one row of the layer table, by the names of its columns
Backward: TypeAlias = Callable[[], None]
Arrays: TypeAlias = tuple[tuple[int, int], ...]  # offset and size of some parameters


@dataclass(frozen=True)
class Partials:
    """Partial sums of the gradient of some arrays of parameters, which lie one behind another."""

    address: int  # of (slices, C, size) numbers
    size: int  # numbers of all the arrays
    slice_stride: int  # numbers from slice to slice

    def slice(self, number: int, itemsize: int) -> int:
        """Address of a slice."""
        return self.address + number * self.slice_stride * itemsize


@dataclass(frozen=True)
class Slices:
    """How the rows that a weight's gradient is summed over are cut into partial sums."""

    # partial sums of a run of rows; of the next run's each is added to the one in its place
    count: int
    rows: int = 0  # data rows of each; 0: each panel is a run, cut as equally as can be


@dataclass
class Cell:
    """Buffers of one value (C, R, size): addresses of the first chain's first row."""

    size: int  # numbers per data row
    value: int  # address
    chain_stride: int  # numbers from chain to chain; 0: all chains share it
    # address of the derivative of the activation that made the value in the same pass
    derivative: int | None = None
    # address of the gradient of the log likelihood by the value, times `derivative` where there is
    # one; None: nobody needs it
    delta: int | None = None
    _touched: bool = field(default=False, repr=False)
    _owes: Cell | None = field(default=None, repr=False)

    def add(self) -> bool:
        """Whether a further part of delta is added to what is there; the first is written."""
        assert self._owes is None
        add, self._touched = self._touched, True
        return add

    def leave(self, part: Cell) -> bool:
        """Leave the first part of delta, another's, to who makes the second; False: not first."""
        if self._touched or self._owes is not None:
            return False
        self._owes = part
        return True

    def take(self) -> Cell | None:
        """Return the cell whose delta was left for this one's, if any, for the caller to add."""
        left, self._owes = self._owes, None
        return left

    def clear(self) -> None:
        """Begin a new panel."""
        self._touched, self._owes = False, None


@dataclass(frozen=True)
class Masks:
    """Which masks Dropout layers take."""

    # (3,) uint64: seed, step and the sample of the first chain; chain c takes those of sample + c
    where: Array
    predictive: bool = False  # they are those of predictions, not of steps
    first_row: int = 0  # number of the first data row; 0 where rows are listed
    shared: bool = False  # every row takes the mask of row 0


@dataclass(frozen=True)
class LearnedRate:
    """A rate of Dropout that is learned."""

    logit: int  # addresses of the first chain's logit and of the gradient by it
    grad: int
    # (C, slots) float64: parts of the gradient by the logit; the last one is the prior's
    sums: Array


@dataclass(frozen=True)
class Norms:
    """Filter response norms beside convolutions, each by its number and row of the table."""

    # by row of a convolution: the norm that alone reads its value
    behind: Mapping[int, tuple[int, Row]] = field(default_factory=dict)
    # by row of a convolution: the norm of whose delta it makes the last part
    before: Mapping[int, tuple[int, Row]] = field(default_factory=dict)


@dataclass
class Panel:
    """What layers write their launches with."""

    scalar: str  # "float" or "double"
    itemsize: int  # bytes of a scalar
    dim: int  # P, numbers from chain to chain of parameters and gradients
    chains: int  # C, at most
    parameters: int  # addresses of (C, P)
    grad: int
    # ``partials(arrays, slices)`` are the partial sums of a gradient, the same for every panel
    partials: Callable[[Arrays, int], Partials]
    cells: list[Cell]  # by the number of the value
    codes: list[int]  # by row: code of the activation that the row's kernel applies, 0 for none
    slices: dict[int, Slices]  # by row: which partial gradients there are
    # by row of a norm whose kernel adds another value: number of that value, row of the sum
    sums: dict[int, tuple[int, int]]
    norms: Norms  # filter response norms that a convolution may make
    # by row of a dense layer: the last one, which alone reads its value and may be made with it
    last: Mapping[int, tuple[int, Row]]
    # by row: address of what the layer keeps, numbers per data row
    states: dict[int, tuple[int, int]]
    rates: Sequence[float]  # by row: probability of being dropped, 0 where nothing is
    learned: Mapping[int, LearnedRate]  # by row
    masks: Masks | None
    passes: Passes  # how products are computed
    subset: Array | None  # numbers of the data rows
    subset_stride: int  # from chain to chain; 0: all chains share them
    # by row: address of the terms (run, arrays, channels) of the first chain's gradients, and
    # numbers per data row
    terms: dict[int, tuple[int, int]]
    terms_size: int  # numbers per data row of the terms of all rows
    rows: int  # R, of the largest panel: what buffers are made for
    run: int  # rows that are summed over before sums begin anew: a multiple of R, or R
    first: int  # the rows of this panel
    count: int
    # bytes of shared memory that a block of the device may ask for: decides tiles and no bit
    block_shared: int
    gradients: bool  # its run is one of a log density, which the data and not the memory decide
    forward: list[Launch]  # where launches go
    backward: list[Launch]
    # rows whose way forward, or back, is part of another's launch: norms of a convolution's, the
    # last layer of that before it
    made: set[int] = field(default_factory=set)
    undone: set[int] = field(default_factory=set)

    def theta(self, offset: int) -> int | None:
        """Address of a parameter of the first chain, None for an offset below zero."""
        return None if offset < 0 else self.parameters + offset * self.itemsize

    def state(self, number: int, before: int = 0) -> tuple[int, int]:
        """Address and chain stride of what a layer keeps, behind `before` numbers per data row."""
        address, size = self.states[number]
        return address + self.rows * before * self.itemsize, self.rows * size

    def row_terms(self, number: int) -> tuple[int, int]:
        """Address and chain stride of a row's terms of gradients, from the panel's first row on."""
        if number not in self.terms:  # no gradients are made
            return 0, 0
        address, size = self.terms[number]
        return address + self.first % self.run * size * self.itemsize, self.run * self.terms_size

    @property
    def adds(self) -> bool:
        """Whether sums of an earlier run are there."""
        return self.first >= self.run

    def cut(self, number: int, terms: int) -> tuple[int, int, int]:
        """Return the first partial sum that the panel has terms of, how many, terms of each."""
        slices = self.slices[number]
        if slices.rows == 0:
            return 0, slices.count, -(-terms // slices.count)
        first = self.first % self.run // slices.rows
        return first, -(-self.count // slices.rows), slices.rows * (terms // self.count)
