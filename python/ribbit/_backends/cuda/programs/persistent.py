"""Whole trajectories of small networks in one launch (``trajectory_kernels.h``)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ribbit._arrays.device import MOST_ALONG_Y, STATIC_SHARED, Device, TogetherRefused, pack
from ribbit._arrays.threads import Interrupted
from ribbit._backends.codes import ACTIVATIONS, COLUMNS, OPS
from ribbit._backends.density_table import DensityTable
from ribbit.protocols import Array

_SHARED = 96 * 1024  # bytes of a block: two blocks share a multiprocessor from sm_90 on
_MOST_OWNED = 48  # floats of a thread, of momenta and of gradients, in registers
_MOST_WEIGHTS = 10_000  # from there on a gradient of one chain is enough for many blocks
# Rows times parameters from which on one block per chain is too little for a gradient.
MOST_WORK = 2_000_000
# Layers whose constants fit into a kernel's arguments, 4096 bytes before CUDA 12.1.
_MOST_LAYERS = 34
_THREADS = 256  # of a block
_SECTIONS = 16  # kSections
_BLOCKS = (_SECTIONS, 8)  # of a chain: one section of the rows each, or two
# Multiply-adds per second of a multiprocessor, half of what the paper's model says (before clusters
# half of that again), and seconds of what a leapfrog step does besides.
_RATE, _STEP = 5e10, 5e-6
_MOST_SECONDS = 0.02  # of a launch
# Seconds of a leapfrog that blocks without a cluster wait for each other: two barriers through
# global memory of 1.5 us and two trips of the sums to L2; assumed.
_MEETINGS = 4e-6
_RESERVED = 1024  # bytes that a block takes of a multiprocessor's shared memory besides its own
_DENSE, _ACTIVATION, _DROPOUT = OPS["dense"], OPS["activation"], OPS["dropout"]
_IDENTITY = ACTIVATIONS["identity"]


class Network:
    """A stack of dense layers with one activation between them."""

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
    """Return the bytes of `Shared`, of a cluster of blocks or of others with one block."""
    # rows: of a panel of one block. With 16 blocks it is half of that, also if these have no
    # cluster, which is `blocks` = 1 and half the rows.
    lanes, rows = rows, rows // 2 if blocks == _SECTIONS else rows
    strides = [4 * (-(-(u + 1) // 4) | 1) for u in units]
    weights = padded_weights(units)
    numbers = weights + rows * (sum(strides) + sum(strides[1:]))
    each = _SECTIONS // blocks if blocks > 1 else 0
    shown = each * (weights * itemsize + 2 * 8 * lanes)
    return shown + -(-(numbers * itemsize + 8 * threads + itemsize) // 16) * 16


def padded_weights(units: Sequence[int]) -> int:
    """Return `SmallNetwork::kWeights`: numbers of the weights with their pads."""
    strides = [4 * (-(-(u + 1) // 4) | 1) for u in units[1:]]
    return sum(4 * -(-(a + 1) // 4) * b for a, b in zip(units, strides, strict=False))


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
    most, half = _SECTIONS, rows // 2
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
    """Runs trajectories of a network that fits."""

    # A chain has one block, or several if these do not fill the device: a cluster, or before sm_90
    # blocks of a cooperative launch. The bits are the same.

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
        self._weights = padded_weights(network.units)
        self._work = 3 * count * network.weights  # multiply-adds of a gradient
        self._rate = _RATE if device.clusters else _RATE / 2
        # Of each form by its blocks: the kernel, its shared bytes, blocks of a multiprocessor.
        self._forms: dict[int, tuple[str, int, int]] = {}
        for blocks in (1, *_BLOCKS):
            if blocks > 1 and (sections <= blocks // 2 or (blocks > 8 and rows < 32)):
                continue
            if blocks == 1:
                name = f"Trajectory<{arguments}>"
                size = shared_bytes(network.units, rows, itemsize)
            elif device.clusters:
                name = f"ClusterTrajectory<{arguments}, {blocks}>"
                size = shared_bytes(network.units, rows, itemsize, blocks=blocks)
            elif device.cooperative and self._pays(blocks):
                name = f"GridTrajectory<{arguments}, {blocks}>"
                own = rows // 2 if blocks == _SECTIONS else rows
                size = shared_bytes(network.units, own, itemsize)
            else:
                continue
            if size > device.block_shared:
                continue
            room = device.block_shared + _RESERVED >= 2 * (size + _RESERVED)
            twice = itemsize == 4 and room and owned(network.units, itemsize) <= 16
            self._forms[blocks] = name, size, 2 if twice else 1
        self.names = tuple(name for name, _, _ in self._forms.values())
        self._refused: set[int] = set()  # blocks of forms that the device does not run
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
        shown = self._shown(chains) if blocks > 1 and not self._device.clusters else ()
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
                self._launch(blocks, some.stop - begin, (*fields, first, last), shown)
        return q, p, terms, g

    def _shown(self, chains: int) -> tuple[Array, ...]:
        """Return the members of `InGrid`: what blocks without a cluster show each other."""
        xp, lanes = self._device.xp, (chains, _SECTIONS, 2, self._lanes)
        sums = xp.empty((chains, _SECTIONS + 1, self._weights), dtype=self._dtype)
        return sums, xp.empty(lanes, dtype=xp.float64), xp.zeros((chains,), dtype=xp.uint32)

    def _launch(
        self, blocks: int, chains: int, fields: tuple[Any, ...], shown: tuple[Array, ...]
    ) -> None:
        """Launch the form with as many blocks, or the next smaller one where it is refused."""
        while True:
            blocks = next((n for n in (*_BLOCKS, 1) if n <= blocks and self._runs(n)), 1)
            name, size, _ = self._forms[blocks]
            kernel = self._device.kernels([name])[name]
            shared = size if size > STATIC_SHARED else 0
            given = (*fields, *shown) if blocks > 1 else fields
            try:
                kernel((blocks, chains, 1), pack(self._device, given), shared)
            except TogetherRefused:
                self._refused.add(blocks)
            else:
                return

    def _runs(self, blocks: int) -> bool:
        return blocks in self._forms and blocks not in self._refused

    def _blocks_for(self, chains: int) -> int:
        """Return the blocks of the form that probably ends first; all have the same bits."""
        for blocks in _BLOCKS:
            if self._runs(blocks):
                # Sixteen blocks are to have their multiprocessors to themselves.
                each = 1 if blocks == _SECTIONS else self._forms[blocks][2]
                if blocks * chains <= each * self._device.processors:
                    return blocks
        return 1

    def _pays(self, blocks: int) -> bool:
        """Whether blocks that wait for each other through global memory end before one would."""
        return self._work / self._rate * (1 - 1 / blocks) > _MEETINGS

    def _pieces(self, steps: int, chains: int, blocks: int) -> list[tuple[int, int]]:
        """Return the steps of each launch: of at most 20 ms, for Ctrl-C to be heard."""
        turns = -(-chains * blocks // max(1, self._device.processors))
        seconds = _STEP + turns * self._work / blocks / self._rate
        each = max(1, int(_MOST_SECONDS / seconds))
        return [(first, min(first + each, steps)) for first in range(0, max(steps, 1), each)]

    def value_and_grad(self, theta: Array) -> tuple[Array, Array]:
        """Return terms (C, 2) untempered and gradient (C, P), as at a trajectory's end."""
        # A step of size 0, which moves nothing.
        xp, chains = self._device.xp, theta.shape[0]
        still = xp.zeros(theta.shape, dtype=theta.dtype)
        size = xp.zeros((chains,), dtype=xp.float64)
        once = np.ones(chains, dtype=np.int64)
        _, _, terms, grad = self.leapfrog(theta, still, still, size, once, None)
        return terms, grad
