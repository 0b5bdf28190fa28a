"""Whole trajectories of small networks in one launch (``trajectory_kernels.h``)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ribbit._arrays.device import MOST_ALONG_Y, STATIC_SHARED, ClusterRefused, Device, pack
from ribbit._arrays.threads import Interrupted
from ribbit._backends.codes import ACTIVATIONS, COLUMNS, OPS
from ribbit._backends.density_table import DensityTable
from ribbit.protocols import Array

__all__ = [
    "MOST_WORK",
    "Network",
    "Persistent",
    "fits",
    "network_fields",
    "network_of",
    "owned",
    "shared_bytes",
    "stays",
]

_SHARED = 96 * 1024  # bytes of a block: two blocks share a multiprocessor from sm_90 on
_MOST_OWNED = 48  # floats of a thread, of momenta and of gradients, in registers
_MOST_WEIGHTS = 10_000  # from there on a gradient of one chain is enough for many blocks
# Rows times parameters from which on one block per chain is too little for a gradient.
MOST_WORK = 2_000_000
# Layers whose constants fit into a kernel's arguments, 4096 bytes before CUDA 12.1.
_MOST_LAYERS = 34
_THREADS = 256  # of a block
_BLOCKS = (16, 8)  # of a cluster: kSections, one section of the rows each, or two
# Multiply-adds per second of a multiprocessor, half of what the paper's model says, and seconds of
# what a leapfrog step does besides.
_RATE, _STEP = 5e10, 5e-6
_MOST_SECONDS = 0.02  # of a launch
_TWICE = 112 * 1024  # bytes of a block that let two share a multiprocessor of sm_90
_DENSE, _ACTIVATION, _DROPOUT = OPS["dense"], OPS["activation"], OPS["dropout"]
_IDENTITY = ACTIVATIONS["identity"]


class Network:
    """A stack of dense layers with one activation between them.

    Attributes
    ----------
    units : list of int
        Inputs, hidden layers, outputs.
    hidden, last : int
        Codes of the activations of hidden layers and of the outputs.
    offsets : list of (int, int)
        Of weight and bias of each layer, -1 for no bias.
    """

    def __init__(self, units: list[int], codes: list[int], offsets: list[tuple[int, int]]) -> None:
        self.units, self.offsets = units, offsets
        self.hidden, self.last = (codes[0] if len(codes) > 1 else 0), codes[-1]

    @property
    def weights(self) -> int:
        """How many there are, with a bias for each layer."""
        return sum((a + 1) * b for a, b in itertools.pairwise(self.units))

    def rows(self, itemsize: int) -> int | None:
        """Rows of a panel, the most that fit into shared memory; None: not even 16 do."""
        for rows in (64, 32, 16):
            if shared_bytes(self.units, rows, itemsize) <= _SHARED:
                return rows
        return None

    def arguments(self, scalar: str, kind: int, rows: int) -> str:
        """Template arguments of the kernels."""
        units = ", ".join(map(str, self.units))
        return f"{scalar}, {kind}, {self.hidden}, {self.last}, {rows}, UnitsOf<{units}>"


def shared_bytes(
    units: Sequence[int],
    rows: int,
    itemsize: int,
    *,
    blocks: int = 1,
    threads: int = _THREADS,
) -> int:
    """Return the bytes of `Shared`, of a cluster of blocks or of kernels with one block.

    `rows`: of a panel of one block; with 16 blocks it is half of that.
    """
    lanes, rows = rows, rows // 2 if blocks == _BLOCKS[0] else rows
    strides = [4 * (-(-(u + 1) // 4) | 1) for u in units]
    weights = sum(4 * -(-(a + 1) // 4) * b for a, b in zip(units, strides[1:], strict=False))
    numbers = weights + rows * (sum(strides) + sum(strides[1:]))
    each = _BLOCKS[0] // blocks if blocks > 1 else 0
    shown = each * (weights * itemsize + 2 * 8 * lanes)
    return shown + -(-(numbers * itemsize + 8 * threads + itemsize) // 16) * 16


def owned(units: Sequence[int], itemsize: int, threads: int = _THREADS) -> int:
    """Return `TrajectoryLayout::kOwned`: places for weights that a thread holds in registers."""

    def tiles(rows: int, columns: int) -> int:
        sizes = [(-(-(a + 1) // rows), -(-b // columns)) for a, b in itertools.pairwise(units)]
        pairs = [0 if c == 1 else r // 2 for r, c in sizes]
        each = zip(sizes, pairs, strict=True)
        return 4 * sum(p * -(-c // 2) + -(-(r - 2 * p) * c // 4) for (r, c), p in each)

    rows, columns = (4 if itemsize == 4 else 2), 4
    while rows * columns > 1 and tiles(rows, columns) < threads // 2:
        if rows == columns:
            rows //= 2
        else:
            columns //= 2
    return -(-tiles(rows, columns) // threads) * rows * columns


def network_of(table: npt.NDArray[np.int64]) -> Network | None:
    """Return the stack that a layer table describes, None when it is another network."""
    units: list[int] = []
    codes: list[int] = []
    offsets: list[tuple[int, int]] = []
    for number, numbers in enumerate(table):
        row = dict(zip(COLUMNS, map(int, numbers), strict=True))
        if row["input"] != number or row["op"] not in (_DENSE, _ACTIVATION, _DROPOUT):
            return None
        if row["op"] == _DENSE:
            units = [*(units or [row["in_size"]]), row["out_size"]]
            codes.append(_IDENTITY)
            offsets.append((row["weight"], row["bias"]))
        elif row["op"] == _ACTIVATION:
            if not codes or codes[-1] != _IDENTITY:
                return None
            codes[-1] = row["argument"]
    if not units or len(set(codes[:-1])) > 1:
        return None
    return Network(units, codes, offsets)


def stays(network: Network, itemsize: int) -> bool:
    """Whether a block has room for a network and a panel of its rows."""
    return (
        len(network.offsets) <= _MOST_LAYERS
        and owned(network.units, itemsize) * itemsize <= _MOST_OWNED * 4
        and network.weights <= _MOST_WEIGHTS
        and network.rows(itemsize) is not None
    )


def sections_of(count: int, rows: int) -> int:
    """Return into how many sections N rows are cut, by panels of one block."""
    most, half = _BLOCKS[0], rows // 2
    each = half if count <= most * half else -(-count // (most * rows)) * rows
    return -(-count // each)


def fits(network: Network, data_rows: int, itemsize: int) -> bool:
    """Whether one block per chain is the better way, by shapes alone."""
    return data_rows * network.weights <= MOST_WORK and stays(network, itemsize)


def network_fields(network: Network, tables: DensityTable, x: Array, y: Array) -> tuple[Any, ...]:
    """Return the members of `SmallNetwork`."""
    # of each array: the constants of the segment it lies in, its kind, its offset
    starts = tables.prior[:, 0]
    priors: list[Any] = []
    offsets = [offset for pair in network.offsets for offset in pair]
    for offset in [*offsets, tables.noise_at if tables.learns_noise else -1]:
        segment = int(np.searchsorted(starts, max(offset, 0), side="right")) - 1
        constants = (float(v) for v in tables.constants[segment])
        priors += [*constants, int(tables.prior[segment, 2]), offset]
    return (
        x,
        y,
        int(x.shape[0]),
        int(y.shape[1]),
        *tables.likelihood.constants,
        1.0 / (tables.likelihood_temperature * tables.temperature),
        1.0 / tables.temperature,
        *priors,
    )


class Persistent:
    """Runs trajectories of a network that fits.

    A chain has one block, or where they do not fill the device a cluster of blocks: with the same
    bits.

    Parameters
    ----------
    device : Device
    network : Network
    tables
        The log density's tables.
    x, y : (N, D) and (N, J) array
    """

    def __init__(
        self, device: Device, network: Network, tables: DensityTable, x: Array, y: Array
    ) -> None:
        self._device = device
        self._dtype = np.dtype(str(y.dtype))
        scalar = "float" if self._dtype == np.float32 else "double"
        rows = network.rows(self._dtype.itemsize)
        assert rows is not None
        arguments = network.arguments(scalar, tables.likelihood.kind, rows)
        count, itemsize = int(x.shape[0]), self._dtype.itemsize
        self._lanes, sections = rows, sections_of(count, rows)
        self._work = 3 * count * network.weights  # multiply-adds of a gradient
        # Of each form by its blocks: the kernel, its shared bytes, blocks of a multiprocessor.
        self._forms: dict[int, tuple[str, int, int]] = {}
        for blocks in (1, *_BLOCKS):
            if blocks > 1 and (sections <= blocks // 2 or (blocks > 8 and rows < 32)):
                continue
            name = f"Trajectory<{arguments}>" if blocks == 1 else ""
            name = name or f"ClusterTrajectory<{arguments}, {blocks}>"
            size = shared_bytes(network.units, rows, itemsize, blocks=blocks)
            twice = itemsize == 4 and size <= _TWICE and owned(network.units, itemsize) <= 16
            self._forms[blocks] = name, size, 2 if twice else 1
        self.names = tuple(name for name, _, _ in self._forms.values())
        self._refused: set[int] = set()  # blocks of clusters that the device does not run
        self._fields = network_fields(network, tables, x, y)

    def leapfrog(
        self,
        position: Array,
        momentum: Array,
        grad: Array,
        step_size: Array,
        num_steps: npt.NDArray[np.int64],
        inverse_mass: Array | None,
        interrupt: Any = None,
    ) -> tuple[Array, Array, Array, Array]:
        """Return position, momentum, terms (C, 2) untempered and gradient at the ends."""
        xp = self._device.xp
        chains, dim = position.shape
        q, p, g = (xp.asarray(a, copy=True) for a in (position, momentum, grad))
        terms = xp.empty((chains, 2), dtype=xp.float64)
        steps = xp.asarray(num_steps)
        mass, per_chain = inverse_mass, inverse_mass is not None and inverse_mass.ndim == 2
        blocks = self._blocks_for(chains)
        pieces = self._pieces(int(num_steps.max(initial=0)), chains, blocks)
        for begin in range(0, chains, MOST_ALONG_Y):
            some = slice(begin, min(begin + MOST_ALONG_Y, chains))
            if per_chain:
                mass = inverse_mass[some, :]  # type: ignore[index]
            fields = (
                *self._fields,
                q[some, :],
                p[some, :],
                g[some, :],
                mass,
                dim if per_chain else 0,
                step_size[some],
                steps[some],
                dim,
                terms[some, :],
            )
            for first, last in pieces:
                if interrupt is not None and interrupt.is_set():
                    raise Interrupted
                self._launch(blocks, some.stop - begin, (*fields, first, last))
        return q, p, terms, g

    def _launch(self, blocks: int, chains: int, fields: tuple[Any, ...]) -> None:
        """Launch the form with as many blocks, or the next smaller one where it is refused."""
        while True:
            blocks = next((n for n in (*_BLOCKS, 1) if n <= blocks and self._runs(n)), 1)
            name, size, _ = self._forms[blocks]
            kernel = self._device.kernels([name])[name]
            shared = size if size > STATIC_SHARED else 0
            try:
                kernel((blocks, chains, 1), pack(self._device, fields), shared)
            except ClusterRefused:
                self._refused.add(blocks)
            else:
                return

    def _runs(self, blocks: int) -> bool:
        return blocks in self._forms and blocks not in self._refused

    def _blocks_for(self, chains: int) -> int:
        """Return the blocks of the form that ends first, as far as one can know.

        They have the same bits.
        """
        for blocks in _BLOCKS:
            if self._device.clusters and self._runs(blocks):
                # A cluster of 16 is to have its multiprocessors to itself.
                each = 1 if blocks == _BLOCKS[0] else self._forms[blocks][2]
                if blocks * chains <= each * self._device.processors:
                    return blocks
        return 1

    def _pieces(self, steps: int, chains: int, blocks: int) -> list[tuple[int, int]]:
        """Return the steps of each launch: of at most 20 ms, for Ctrl-C to be heard."""
        turns = -(-chains * blocks // max(1, self._device.processors))
        seconds = _STEP + turns * self._work / blocks / _RATE
        each = max(1, int(_MOST_SECONDS / seconds))
        return [(first, min(first + each, steps)) for first in range(0, max(steps, 1), each)]

    def value_and_grad(self, theta: Array) -> tuple[Array, Array]:
        """Return terms (C, 2) untempered and gradient (C, P), with the bits of a trajectory's end.

        A step of size 0, which moves nothing.
        """
        xp, chains = self._device.xp, theta.shape[0]
        still = xp.zeros(theta.shape, dtype=theta.dtype)
        size = xp.zeros((chains,), dtype=xp.float64)
        once = np.ones(chains, dtype=np.int64)
        _, _, terms, grad = self.leapfrog(theta, still, still, size, once, None)
        return terms, grad
