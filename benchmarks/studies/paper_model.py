"""Seconds of counted launches on a device: a model, not a measurement.

A launch takes node + fill + max(issue, lanes, shared, tensor, memory, L2) + barriers.

- Issue is the time of the busiest multiprocessor: blocks x warps x max(instructions / eta, clocks)
  / (4 clock). For w resident warps per scheduler, eta = min(0.90, 0.45 + 0.15 w). Clocks include
  conflicts of register banks.
- Lanes is the time of its float32 units.
- A launch outside of a graph costs the host `launch`. The larger of host time and device time
  counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from benchmarks.studies.paper_counts import Counted

__all__ = ["DEVICES", "Chip", "Modelled", "model"]


@dataclass(frozen=True)
class Chip:
    """Constants of a device, from its data sheet if not marked as assumed.

    Attributes
    ----------
    multiprocessors : int
    clock : float
        Hz.
    copy, l2 : float
        Bytes per second of a copy in device memory (read plus written), and of L2 (assumed).
    l2_bytes, shared : int
        Bytes of L2, and of shared memory of a multiprocessor.
    lanes : int
        Float32 multiply-adds per multiprocessor and clock.
    mma : float
        TF32 multiply-adds per multiprocessor and clock by mma.sync; assumed.
    peak : float
        The same with the fastest instruction; floors use it.
    node, fill, launch : float
        Seconds of a node of a graph, of filling the device, of a launch from Python; assumed.
    block : float
        Seconds of a barrier of a block; assumed.
    clusters : bool
        Whether blocks can run as clusters.
    """

    multiprocessors: int
    clock: float
    copy: float
    l2: float
    l2_bytes: int
    shared: int
    lanes: int
    mma: float
    peak: float
    node: float = 1.5e-6
    fill: float = 0.8e-6
    launch: float = 5e-6
    block: float = 17e-9
    clusters: bool = True

    @property
    def ceilings(self) -> dict[str, float]:
        """Arguments of `gpu_rows.Row.floor`: copy bandwidth and peaks of products."""
        clocks = self.multiprocessors * self.clock
        return {
            "copy_bytes_per_s": self.copy,
            "matmul_float32_flop_per_s": 2 * self.lanes * clocks,
            "matmul_tf32_flop_per_s": 2 * self.peak * clocks,
        }


_H100 = Chip(132, 1.755e9, 3.0e12, 5.5e12, 50 << 20, 227 << 10, 128, 635.0, 1024.0)
DEVICES = {
    "H100": _H100,
    "H200": replace(_H100, clock=1.95e9, copy=4.15e12),  # measured: benchmarks/evidence/gpu
    "A100": Chip(
        108, 1.41e9, 1.35e12, 3.5e12, 40 << 20, 163 << 10, 64, 435.0, 512.0, clusters=False
    ),
}


@dataclass
class Modelled:
    """Seconds of one unit of a workload.

    Attributes
    ----------
    seconds : float
    host : float
        Seconds of launches from Python.
    parts : dict of str to float
        Seconds of the device by bound: "launches", "issue", "lanes", "shared", "tensor", "memory",
        "L2", "barriers".
    rows : list of (Counted, seconds, bound, blocks per multiprocessor)
        Seconds of all launches that count the same.
    """

    host: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    rows: list[tuple[Counted, float, str, int]] = field(default_factory=list)

    @property
    def device(self) -> float:
        """Seconds of the device."""
        return sum(self.parts.values())

    @property
    def seconds(self) -> float:
        """The larger of host and device."""
        return max(self.host, self.device)

    @property
    def bound(self) -> str:
        """The bound with the largest part of the time."""
        if self.host > self.device:
            return "launches from Python"
        return max(self.parts, key=lambda key: self.parts[key])


def resident(one: Counted, chip: Chip) -> int:
    """Return the blocks of a launch that a multiprocessor holds."""
    registers = -(-max(1, one.registers) // 8) * 8 * 32 * one.warps
    held = min(65536 // registers, chip.shared // (one.shared + 1024), 64 // one.warps, 32)
    return max(1, held)


def model(launches: Sequence[Counted], chip: Chip, units: int) -> Modelled:
    """Return the seconds of one unit, if the launches do `units` units together."""
    found = Modelled()
    cached = touched(launches) <= 0.8 * chip.l2_bytes
    for one in launches:
        seconds, bounds, held = _launch(one, chip, cached)
        times = one.times / units
        bound = max(bounds, key=lambda key: bounds[key])
        waits = (
            one.barriers
            * chip.block
            * math.ceil(math.ceil(one.blocks / chip.multiprocessors) / held)
        )
        for key, value in (
            ("launches", chip.node + chip.fill),
            (bound, bounds[bound]),
            ("barriers", waits),
        ):
            found.parts[key] = found.parts.get(key, 0.0) + times * value
        found.host += (one.times - one.replayed) / units * chip.launch
        found.rows.append((one, times * (seconds + waits), bound, held))
    return found


def touched(launches: Sequence[Counted]) -> float:
    """Return the bytes from the first to the last used byte, summed over allocations."""
    spans: dict[int, tuple[int, int]] = {}
    for one in launches:
        for place, low, high in one.extents:
            before = spans.get(place, (low, high))
            spans[place] = min(low, before[0]), max(high, before[1])
    return float(sum(high - low for low, high in spans.values()))


def _launch(one: Counted, chip: Chip, cached: bool) -> tuple[float, dict[str, float], int]:
    """Return seconds without barriers, bounds, and the blocks that a multiprocessor holds.

    cached: all data of the workload stays in L2.
    """
    held = resident(one, chip)
    busiest = math.ceil(one.blocks / chip.multiprocessors)
    active = min(held, busiest)
    eta = min(0.90, 0.45 + 0.15 * active * one.warps / 4)
    bounds = {
        "lanes": busiest * one.warps * 32 * one.fma / (chip.lanes * chip.clock),
        "issue": busiest * one.warps * max(one.issue / eta, one.clocks) / (4 * chip.clock),
        "shared": busiest * one.warps * one.waves / chip.clock,
        "tensor": busiest * one.mma / (chip.mma * chip.clock),
        "memory": 0.0 if cached else one.memory / chip.copy,
        "L2": (one.read + one.written) / chip.l2,
    }
    return chip.node + chip.fill + max(bounds.values()), bounds, held
