"""The walk over the layer table: buffers of all values, and the launches of every layer."""

# Shapes: C chains (or weight samples), P parameters, N rows, R rows of a panel.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ribbit._arrays.device import Device, Launch
from ribbit._backends.codes import COLUMNS
from ribbit._backends.cuda.layers import op_table
from ribbit._backends.cuda.layers.panel import (
    Arrays,
    Backward,
    Cell,
    LearnedRate,
    Masks,
    Panel,
    Partials,
    Row,
    Slices,
)
from ribbit._backends.precision import Passes
from ribbit.protocols import Array

# Of one chain's activations. Rows that fit the first are one panel. Of larger networks a run has
# `_RUN` rows and a panel as many groups of them as memory has room for, at least one; where the
# second does not hold a group a run is what it holds.
_PANEL_BYTES, _GROUP_BYTES = 1 << 27, 5 << 29
GROUP = 256  # rows; of a residual network a launch with fewer does not fill a device
_RUN = 4096
_LENT = -1  # address of a delta that is that of a later value
_MOST_ROWS = (1 << 16) - 1  # of a panel: what the second axis of a grid takes
_MOST_NUMBERS = (1 << 31) - 1  # of a value of one chain's panel: kernels count in 32 bits


class Walk:
    """Memory and launches of a network's layers on panels of rows."""

    theta: Array
    grad: Array
    theta_stride: int  # numbers from chain to chain of theta; 0: they share it
    _gradient_terms: Array  # terms of gradients that data rows have, where there are any
    _learned: Mapping[int, LearnedRate] = MappingProxyType({})
    _dropping: Masks | None = None
    _gradients = False  # of a log density
    _last: Mapping[int, tuple[int, Row]] = MappingProxyType({})  # of `op_table.last_layers`
    _stepping = -1  # a row whose reader knows slopes by the values

    def __init__(
        self,
        device: Device,
        layers: npt.NDArray[np.int64],  # (rows, columns) int64: the layer table
        x: Array,  # (N, D): in `dtype`, or bytes of images
        dtype: np.dtype[Any],  # float32 or float64
        *,
        dim: int,  # P
        chains: int,  # the most chains it can run
        panel: int,  # rows of a panel
        # rows that are summed over before sums begin anew; default those of a panel
        run: int | None = None,
        rates: Sequence[float],  # by row of the table: probability with which masks drop a unit
        # (count,) or (chains, >= count) int64: rows of x, for all chains or for each. None: all of
        # x in order.
        subset: Array | None = None,
        fixed: frozenset[int] = frozenset(),  # rows of the table whose values all chains share
        passes: Passes,  # how products are computed
    ) -> None:
        self._device, self._x, self._dtype, self._dim = device, x, dtype, dim
        self._chains, self._panel, self._subset = chains, panel, subset
        self._run = panel if run is None else run
        self._product_passes = passes
        # From chain to chain; 0: all chains share their rows.
        self._rows_stride = 0 if subset is None or subset.ndim == 1 else int(subset.shape[1])
        self._scalar = "float" if dtype == np.float32 else "double"
        self._rows = rows_of(layers)
        self._rates, self._fixed = [float(rate) for rate in rates], fixed
        self._codes = op_table.activation_codes(self._rows)
        self._skipped = op_table.skipped_rows(self._rows, self._rates)
        self._sums_of_norms = op_table.joined_sums(self._rows, self._skipped, self._fixed)
        self._norms = op_table.norms_of(self._rows, self._skipped, self._fixed)
        self._states: dict[int, tuple[int, int]] = {}
        self._terms: dict[int, tuple[int, int]] = {}
        self._terms_size = sum(op_table.row_terms(row) for row in self._rows)
        self._sums: dict[Arrays, tuple[int, Partials]] = {}
        self._gathers = subset is not None or np.dtype(str(x.dtype)) != dtype
        self._keep: list[Array] = []  # memory that launches point to

    def _buffer(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        xp = self._device.xp
        array = xp.empty(shape, dtype=getattr(xp, np.dtype(dtype or self._dtype).name))
        self._keep.append(array)
        return array

    def _address(self, array: Array, elements: int = 0) -> int:
        return self._device.pointer(array) + elements * np.dtype(str(array.dtype)).itemsize

    def _cells(self, *, gradients: bool) -> list[Cell]:
        """Buffers of all values; those of layers that change nothing are those of their input."""
        panel = self._panel
        lent = op_table.lent_deltas(self._rows, self._skipped) if gradients else {}
        if gradients and self._terms_size:
            self._place_terms()
        features = int(self._x.shape[1])
        if not self._gathers:
            first = Cell(features, self._device.pointer(self._x), 0)
        elif self._rows_stride:
            stride = panel * features
            first = Cell(features, self._address(self._buffer((self._chains, stride))), stride)
        else:
            first = Cell(features, self._address(self._buffer((panel, features))), 0)
        cells = [first]
        for number, row in enumerate(self._rows):
            source = cells[row["input"]]
            if number in self._skipped:
                cells.append(source)
                continue
            size = row["out_size"]
            fixed = number in self._fixed
            stride = 0 if fixed else panel * size
            shape = (1 if fixed else self._chains, panel * size)
            joins = number in self._sums_of_norms  # then it is a part of the sum's value alone
            cell = Cell(size, 0 if joins else self._address(self._buffer(shape)), stride)
            below = [source] if row["second"] < 0 else [source, cells[row["second"]]]
            last = number + 1 == len(self._rows)  # the likelihood gives its delta
            if number in lent:
                cell.delta = _LENT
            elif gradients and (
                last
                or number in self._learned
                or op_table.arrays_of(row)
                or any(c.delta is not None for c in below)
            ):
                cell.delta = self._address(self._buffer(shape))
                if self._codes[number] != 0 and number != self._stepping:
                    cell.derivative = self._address(self._buffer(shape))
                for lender, sum_row in lent.items():
                    if sum_row == number:
                        cells[lender + 1].delta = cell.delta
            kept = op_table.state_size(row)
            if kept > 0:
                state = self._buffer((self._chains, panel * kept))
                self._states[number] = (self._address(state), kept)
            cells.append(cell)
        return cells

    def _place_terms(self) -> None:
        """Make memory for terms of gradients that data rows have, of one run, row by row."""
        terms, before = self._buffer((self._chains, self._run * self._terms_size)), 0
        self._gradient_terms = terms
        for number, row in enumerate(self._rows):
            size = op_table.row_terms(row)
            if size:
                self._terms[number] = self._address(terms, self._run * before), size
                before += size

    def _panel_at(
        self,
        cells: list[Cell],
        slices: dict[int, Slices],
        first: int,
        count: int,
        passes: Passes | None = None,
    ) -> Panel:
        """Return a panel of rows, with the launch that fetches them where one is needed."""
        scalar = self._scalar
        for cell in cells:
            cell.clear()
        if not self._gathers:
            source = cells[0]
            moved = replace(source, value=self._address(self._x, first * source.size))
            cells = [moved if cell is source else cell for cell in cells]  # and values like it
        panel = Panel(
            scalar=scalar,
            itemsize=self._dtype.itemsize,
            dim=self.theta_stride,
            chains=self._chains,
            parameters=self._address(self.theta),
            grad=self._address(self.grad),
            partials=self._partials,
            cells=cells,
            codes=self._codes,
            slices=slices,
            sums=self._sums_of_norms,
            norms=self._norms,
            last=self._last,
            states=self._states,
            rates=self._rates,
            learned=self._learned,
            masks=self._dropping,
            passes=self._product_passes if passes is None else passes,
            subset=self._subset,
            subset_stride=self._rows_stride,
            terms=self._terms,
            terms_size=self._terms_size,
            rows=self._panel,
            run=self._run,
            first=first,
            count=count,
            block_shared=self._device.block_shared,
            gradients=self._gradients,
            forward=[],
            backward=[],
        )
        if self._gathers:
            kind = "unsigned char" if str(self._x.dtype) == "uint8" else scalar
            cell, stride = cells[0], self._rows_stride
            panel.forward.append(
                Launch(
                    f"GatherRows<{kind}, {scalar}>",
                    (
                        self._x,
                        self._subset,
                        stride,
                        first,
                        cell.size,
                        cell.value,
                        cell.chain_stride,
                    ),
                    (count, 1, 1),
                    chains_along=2 if stride else -1,
                )
            )
        return panel

    def _partials(self, arrays: Arrays, slices: int) -> Partials:
        """Return memory for partial sums of a gradient, made when it is first asked for."""
        if arrays not in self._sums:
            size = sum(size for _, size in arrays)
            made = self._address(self._buffer((slices, self._chains, size)))
            self._sums[arrays] = slices, Partials(made, size, self._chains * size)
        return self._sums[arrays][1]

    def _write_forward(self, panel: Panel, rows: int | None = None) -> list[tuple[int, Backward]]:
        """Append the launches of the first `rows` layers; return what appends the backward pass."""
        undo = []
        for number, row in enumerate(self._rows[:rows]):
            if number in self._skipped:
                continue
            before = len(panel.forward)
            undo.append((number, self._write_layer(panel, number, row)))
            if number in self._fixed:
                once = [replace(launch, chains_along=-1) for launch in panel.forward[before:]]
                panel.forward[before:] = once
        return undo

    def _write_layer(self, panel: Panel, number: int, row: Row) -> Backward:
        return op_table.TABLE[row["op"]].write(panel, number, row)


def rows_of(layers: npt.NDArray[np.int64]) -> list[Row]:
    """Return the rows of a layer table by the names of their columns."""
    return [dict(zip(COLUMNS, map(int, row), strict=True)) for row in layers]


def scalars_of(rows: Sequence[Row]) -> int:
    """Numbers per data row of all values, their deltas and derivatives, and what layers keep."""
    skipped = op_table.skipped_rows(rows, [1.0] * len(rows))
    lent, joined = op_table.lent_deltas(rows, skipped), op_table.joined_sums(rows, skipped)
    codes = op_table.activation_codes(rows)
    return sum(
        (0 if i in joined else 1 if i in lent else 3 if codes[i] != 0 else 2)
        * (row["out_size"] if i not in skipped else 0)
        + op_table.state_size(row)
        + op_table.row_terms(row)
        for i, row in enumerate(rows)
    )


def run_rows(layers: npt.NDArray[np.int64], itemsize: int) -> int:
    """Rows of a run, over which sums are made whatever the device: of a panel at most."""
    rows = rows_of(layers)
    row = scalars_of(rows) * itemsize
    large = _RUN if GROUP * row <= _GROUP_BYTES else _GROUP_BYTES // row
    largest = max(max(r["in_size"], r["out_size"], op_table.state_size(r)) for r in rows)
    most = min(max(_PANEL_BYTES // row, large), _MOST_ROWS, _MOST_NUMBERS // largest)
    return max(1, most if most <= GROUP or most * row <= _PANEL_BYTES else most // GROUP * GROUP)


def is_cut(layers: npt.NDArray[np.int64], run: int, itemsize: int) -> bool:
    """Whether panels may be smaller than a run: groups of its rows."""
    row = scalars_of(rows_of(layers)) * itemsize
    return run > GROUP and run * row > _PANEL_BYTES and GROUP * row <= _GROUP_BYTES


def panel_rows(layers: npt.NDArray[np.int64], run: int, itemsize: int, room: int) -> int:
    """Rows of a panel: whole groups of a run that need up to `room` bytes; it changes no bit."""
    if not is_cut(layers, run, itemsize):
        return run
    fitting = room // (scalars_of(rows_of(layers)) * itemsize * GROUP)
    panels = -(-run // (max(1, fitting) * GROUP))  # of about equal size
    return min(run, -(-run // (panels * GROUP)) * GROUP)
