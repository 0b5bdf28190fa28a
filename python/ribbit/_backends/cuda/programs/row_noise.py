"""Programs of Bayes by Backprop whose layers have noise for each row."""

# Shapes: C weight samples, P parameters, N rows, R rows of a panel.

from __future__ import annotations

import dataclasses

import numpy as np

from ribbit._arrays.device import Device
from ribbit._backends.cuda.layers import row_noise
from ribbit._backends.cuda.layers.panel import Backward, Panel, Row
from ribbit._backends.cuda.layers.row_noise import LOCAL, Paths
from ribbit._backends.cuda.programs.approximation import Approximation
from ribbit._backends.cuda.programs.gradient import Program, bytes_per_chain
from ribbit._backends.cuda.programs.plan import panel_rows, rows_of, run_rows
from ribbit._backends.density_table import DensityTable
from ribbit.protocols import Array


class _PairedTable(DensityTable):
    """A density whose positions and gradients have a second half, for the second path."""

    @property
    def dim(self) -> int:
        """2 P."""
        return 2 * self.logits_at


class PairedProgram(Program):
    """The log likelihood of `chains` weight samples, with noise for each row."""

    # theta (chains, 2 P) holds the weights drawn and, of flipout, their deviations from the mean;
    # grad (chains, 2 P) the gradients by the weights of the first path, or by what is drawn for all
    # rows, and by those of the second.

    _has_tail = False

    def __init__(
        self,
        device: Device,
        tables: DensityTable,
        x: Array,
        y: Array,
        *,
        chains: int,
        count: int,
        approximation: Approximation,
        estimator: int,
        subset: Array | None = None,
        like: Program | None = None,
    ) -> None:
        self._approximation, self._estimator = approximation, estimator
        self._kept: dict[int, tuple[int, ...]] = {}  # by row of the table
        super().__init__(
            device,
            _doubled(tables),
            x,
            y,
            chains=chains,
            count=count,
            subset=subset,
            prior=0.0,
            like=like,
            scale=1.0,
        )

    def _write_layer(self, panel: Panel, number: int, row: Row) -> Backward:
        if row["op"] not in row_noise.PAIRED:
            return super()._write_layer(panel, number, row)
        given = self._approximation
        if number not in self._kept:
            dtype = self._dtype if self._estimator == LOCAL else np.uint32
            self._kept[number] = tuple(
                self._address(self._buffer((self._chains, self._panel * size), dtype))
                for size in row_noise.sizes_of(row, self._estimator)
            )
        mean, scale = self._address(given.state), self._address(given.scale)
        kept = self._kept[number]
        paths = Paths(self._estimator, given.where, mean, scale, given.dim, kept)
        return row_noise.write(panel, number, row, paths)


def bytes_per_sample(tables: DensityTable, rows: int, itemsize: int, estimator: int) -> int:
    """Return the device memory that each weight sample of a paired program needs."""
    run = min(rows, run_rows(tables.table, itemsize))
    panel = panel_rows(tables.table, run, itemsize, 0)
    kept = sum(
        sum(row_noise.sizes_of(row, estimator))
        for row in rows_of(tables.table)
        if row["op"] in row_noise.PAIRED
    )
    each = itemsize if estimator == LOCAL else 4
    return bytes_per_chain(_doubled(tables), rows, itemsize, paths=2) + kept * each * panel


def _doubled(tables: DensityTable) -> _PairedTable:
    fields = dataclasses.fields(tables)
    return _PairedTable(**{field.name: getattr(tables, field.name) for field in fields})
