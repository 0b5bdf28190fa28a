"""Count the launches of a record and the work that each of them asks of a device.

A few threads of a launch are run:

- Warps: the first lane of the first, the second and the last warp. The second warp represents the
  warps between. If every warp has a part of its own, all warps are run.
- Blocks: the first and the last block along each axis. The first block represents all but the
  last. If neighbours differ in turn, the first few blocks represent them.

Launches of a kernel with equal grid and equal decisive arguments count the same. All lanes load and
store like the first.
"""

from __future__ import annotations

import bisect
import ctypes
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.studies.paper_kernels import Kernel, kernels
from tests.support.cuda.recorder import Record

__all__ = ["Counted", "counted"]

_LANES = 32
# Neighbouring blocks that differ: a window with strides of two meets their cells by other taps.
_DIFFER = {"OrderedDeltaPatches<": 4}
# Kernels in which warps have tiles of different layers, or only some copy the last columns.
_WARPS_DIFFER = ("RowGradient<", "Trajectory<", "ClusterTrajectory<", "GridTrajectory<")
_WARPS_DIFFER += ("LastLayers<",)


@dataclass(frozen=True)
class Counted:
    """Launches that count the same.

    Attributes
    ----------
    name : str
        C++ type of the kernel.
    times, replayed : int
        Launches, and the launches among them that belong to a graph.
    blocks, threads, registers, shared, spilled : int
        Blocks of the grid, threads of a block, registers of a thread, shared bytes of a block,
        spilled bytes of a thread.
    issue, clocks : float
        Instructions of an average warp, and clocks in which they are issued.
    fma : float
        Fused multiply-adds in float32 among them, by the PTX.
    waves : float
        Wavefronts of shared memory of an average warp, 4 bytes of a thread each.
    mma : float
        Multiply-adds on tensor cores of an average block.
    barriers : float
        Barriers of a block.
    read, written : float
        Bytes that threads request, if all lanes work.
    memory : float
        Bytes that must come from or go to device memory, if caches keep everything within a launch
        and nothing between launches. For each allocation, at most the span from the first to the
        last byte.
    guesses : int
        Branches of these threads that depend on numbers that were not computed.
    paired : bool
        Whether loops of PTX and machine code were paired.
    extents : tuple of (int, int, int)
        Allocation, first and last byte touched.
    """

    name: str
    times: int
    replayed: int
    blocks: int
    threads: int
    registers: int
    shared: int
    spilled: int
    issue: float
    clocks: float
    fma: float
    waves: float
    mma: float
    barriers: float
    read: float
    written: float
    memory: float
    guesses: int
    paired: bool
    extents: tuple[tuple[int, int, int], ...]

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return -(-self.threads // 32)

    @property
    def instructions(self) -> float:
        """Instructions of all warps of one launch."""
        return self.blocks * self.warps * self.issue


class _Memory:
    """The allocations of a record, by address."""

    def __init__(self, record: Record) -> None:
        self.starts = sorted(record.memory)
        self.ends = [start + record.memory[start].nbytes for start in self.starts]

    def place(self, address: int) -> int | None:
        """Return the number of the allocation that an address lies in."""
        at = bisect.bisect_right(self.starts, address) - 1
        return at if at >= 0 and address < self.ends[at] else None

    def read(self, address: int, size: int) -> int | None:
        """Return the integer at an address, None outside all allocations."""
        if self.place(address) is None or self.place(address + size - 1) is None:
            return None
        return int.from_bytes(ctypes.string_at(address, size), "little")


def counted(record: Record) -> list[Counted]:
    """Return the counts of the launches of a record, most instructions first."""
    memory, made = _Memory(record), kernels(record.names)
    groups: dict[Any, list[Any]] = {}
    for (name, grid, arguments, shared, replayed), times in record.launches.items():
        decisive = made[name].function.decisive
        words = [int.from_bytes(arguments[at : at + 8], "little") for at in decisive]
        places = [memory.place(word) for word in words]
        path = tuple(
            word if place is None else -1 - place for word, place in zip(words, places, strict=True)
        )
        group = groups.setdefault((name, grid, shared, path), [arguments, 0, 0])
        group[1] += times
        group[2] += times if replayed else 0
    found = []
    for (name, grid, shared, _), (arguments, times, replayed) in groups.items():
        one = _count(made[name], grid, arguments, shared, memory)
        found.append(replace(one, times=times, replayed=replayed))
    return sorted(found, key=lambda one: -one.times * one.instructions)


def _ends(warps: int, differ: bool) -> list[tuple[int, int]]:
    """Return (warp, number that it represents): the first, the second and the last warp.

    differ: every warp does other work; then all.
    """
    few = [(0, 1), (1, warps - 2), (warps - 1, 1)]
    return few if warps > 3 and not differ else [(warp, 1) for warp in range(warps)]


def _blocks(grid: tuple[int, int, int], differ: int) -> Iterable[tuple[tuple[int, ...], float]]:
    """Yield the first and last block along each axis, and the number that each represents.

    differ: number of neighbours along the first axis that differ, in turn.
    """
    axes = [[(0, n - 1.0), (n - 1, 1.0)] if n > 1 else [(0, 1.0)] for n in grid]
    if differ < grid[0]:
        each = (grid[0] - 1) / differ
        axes[0] = [*((place, each) for place in range(differ)), (grid[0] - 1, 1.0)]
    for corner in itertools.product(*axes):
        share = 1.0
        for _, many in corner:
            share *= many
        yield tuple(place for place, _ in corner), share


def _count(
    kernel: Kernel, grid: tuple[int, int, int], arguments: bytes, shared: int, memory: _Memory
) -> Counted:
    function, warps = kernel.function, -(-kernel.threads // 32)
    blocks = grid[0] * grid[1] * grid[2]
    parts = [0.0] * len(function.parts)  # runs by all warps
    asked: list[float] = []  # by all threads
    extents: dict[tuple[int, bool], list[int]] = {}
    wanted: dict[tuple[int, bool], float] = {}
    guesses = 0
    differ = next((n for part, n in _DIFFER.items() if part in kernel.name), 1)
    for place, share in _blocks(grid, differ):
        for warp, those in _ends(warps, kernel.name.startswith(_WARPS_DIFFER)):
            at = (warp * 32, 0, 0, *place, kernel.threads, 1, 1, *grid)
            thread = function.run(arguments, at, memory.read)
            guesses += thread.guesses
            asked = asked or [0.0] * len(function.accesses)
            alike = share * those
            for number, runs in enumerate(thread.parts):
                parts[number] += alike * runs
            for number, (runs, low, high) in enumerate(thread.accesses):
                if not runs:
                    continue
                access = function.accesses[number]
                where = memory.place(low) if access.known else None
                if access.copy and access.known and where is None:
                    continue  # zeros, because the address is outside of an array
                asked[number] += alike * runs * _LANES * access.width
                key = (-1 if where is None else where, access.store)
                wanted[key] = wanted.get(key, 0.0) + alike * runs * _LANES * access.width
                if where is not None:
                    end = min(high + _LANES * access.width, memory.ends[where])
                    span = extents.setdefault(key, [low, end])
                    span[0], span[1] = min(span[0], low), max(span[1], end)
    total = blocks * warps

    def average(kind: str) -> float:
        return sum(a * b for a, b in zip(parts, kernel.weights(kind), strict=True)) / total

    both = list(zip(asked, function.accesses, strict=False))
    return Counted(
        name=kernel.name,
        times=0,
        replayed=0,
        blocks=blocks,
        threads=kernel.threads,
        registers=kernel.registers,
        shared=kernel.shared + shared,
        spilled=kernel.spilled,
        issue=average("issue"),
        clocks=average("clocks"),
        fma=average("fma"),
        waves=average("waves"),
        mma=average("mma") * warps,
        barriers=average("barriers"),
        read=sum(bytes_ for bytes_, access in both if not access.store),
        written=sum(bytes_ for bytes_, access in both if access.store),
        memory=sum(
            min(bytes_, extents[key][1] - extents[key][0]) if key in extents else bytes_
            for key, bytes_ in wanted.items()
        ),
        guesses=guesses,
        paired=kernel.paired,
        extents=tuple((place, low, high) for (place, _), (low, high) in extents.items()),
    )
