"""Gradients of small networks on many rows, in two launches (``cuda/kernels/row_kernels.h``)."""

# Shapes: C chains, P parameters, N rows, R rows of a panel.

from __future__ import annotations

from typing import Any

import numpy as np

from ribbit._arrays.device import STATIC_SHARED, Device, Launch
from ribbit._backends.cuda.programs.gradient import Program
from ribbit._backends.cuda.programs.join import Source
from ribbit._backends.cuda.programs.persistent import (
    MOST_WORK,
    Network,
    network_fields,
    network_of,
    owned,
    shared_bytes,
    stays,
)
from ribbit._backends.density_table import DensityTable
from ribbit.protocols import Array

_FEW, _MANY = 128, 256  # threads of a block: four share a multiprocessor, or two
_FEW_OWNED = 16  # weights of a thread, at most, of blocks with few threads
_SHARED = 54 * 1024  # bytes that let four blocks share a multiprocessor of sm_90
_GROUPS = 528  # of rows, at most: four for each multiprocessor of an H100


class RowsProgram(Program):
    """A program that makes gradients and values of all rows by one kernel."""

    steps_together = 16  # of two launches each, from 15 us on: a replay takes the host some 5

    def __init__(
        self, device: Device, tables: DensityTable, x: Array, y: Array, *, chains: int
    ) -> None:
        network = network_of(tables.table)
        assert network is not None
        self._network = network
        super().__init__(device, tables, x, y, chains=chains, count=int(x.shape[0]))

    @staticmethod
    def takes(tables: DensityTable, x: Array, y: Array) -> bool:
        """Whether there are such kernels for a posterior, by shapes alone."""
        network, dtype = network_of(tables.table), np.dtype(str(y.dtype))
        return (
            network is not None
            and int(x.shape[0]) * network.weights > MOST_WORK
            and tables.rates is None
            and not tables.likelihood.per_output
            and np.dtype(str(x.dtype)) == dtype
            and stays(network, dtype.itemsize)
        )

    def _write(self) -> None:
        tables, itemsize, chains, dim = self._tables, self._dtype.itemsize, self._chains, self._dim
        rows, threads = tile_of(self._network, itemsize)
        panels, groups = groups_of(self._count, rows)
        self._partial_sums = self._buffer((groups, chains, dim))
        self.row_terms = self._buffer((chains, groups), np.float64)
        learned = tables.learns_noise
        self._noise = self._buffer((chains, groups), np.float64) if learned else None
        arguments = self._network.arguments(self._scalar, tables.likelihood.kind, rows)
        fields: tuple[Any, ...] = (
            *network_fields(self._network, tables, self._x, self._y),
            panels,
            self.theta,
            dim,
            self._partial_sums,
            chains * dim,
            self.row_terms,
            self._noise,
        )
        size = shared_bytes(self._network.units, rows, itemsize, threads=threads)
        launch = Launch(
            f"RowGradient<{arguments}, {threads}>",
            fields,
            (groups, 1, 1),
            shared=size if size > STATIC_SHARED else 0,
        )
        self._gradient, self._forward = [launch], [launch]
        self._write_join()

    def _sources(self) -> list[Source]:
        dim, groups = self._dim, int(self._partial_sums.shape[0])
        place, strides = self._address(self._partial_sums), (dim, self._chains * dim, groups)
        learned = int(self._tables.learns_noise)
        noise = [Source(dim - 1, 1, None, 0, 0, 1)] * learned
        return [Source(0, dim - learned, place, *strides), *noise]


def tile_of(network: Network, itemsize: int) -> tuple[int, int]:
    """Return the rows of a panel and the threads of a block."""
    units = network.units
    few = itemsize == 4 and owned(units, itemsize, _FEW) <= _FEW_OWNED
    if few and shared_bytes(units, 64, itemsize, threads=_FEW) <= _SHARED:
        return 64, _FEW
    rows = network.rows(itemsize)
    assert rows is not None
    return rows, _MANY


def groups_of(count: int, rows: int) -> tuple[int, int]:
    """Return the panels of a group of rows, and how many groups there are, by N alone."""
    panels = -(-count // rows)
    each = -(-panels // _GROUPS)
    return each, -(-panels // each)


def partial_sums(tables: DensityTable, count: int, itemsize: int) -> int:
    """Return how many numbers of partial sums a chain has."""
    network = network_of(tables.table)
    assert network is not None
    rows, _ = tile_of(network, itemsize)
    return groups_of(count, rows)[1] * tables.dim
