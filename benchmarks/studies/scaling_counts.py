"""The time of a gradient of an MLP by count: its products at the peak, then its bytes.

Weights, their gradient and the values of a block of rows go through the cores once per block; how
fast depends on the cache that holds all of them. Nothing overlaps here, so it is no floor; what it
is for is how the time grows. Counted for one thread, float32.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.harness.workload import gradient_flops, num_parameters

PANEL, GROUP = 32, 4  # rows of a panel; panels that go through a layer together
VALUES = 400 << 10  # bytes of values and deltas that a block of panels may have, at least a group
RELU, SOFTMAX = 3.0, 20.0  # slots per unit and per output; a slot is a multiply-add
LEVELS = {"second level": 192 << 10, "last level": 6 << 20, "memory": 128 << 20}
"""Bytes of each of two arrays whose copy lies in that level."""


@dataclass(frozen=True)
class Traffic:
    """Of one gradient: flops, bytes read and written, bytes between two touches of a weight."""

    flops: float
    bytes: float
    working_set: float


def traffic(sizes: Sequence[int], rows: int) -> Traffic:
    """Count a gradient of an MLP with these widths, inputs and outputs among them.

    Per group of panels the weights are read on the way forward, and those above the first layer
    on the way back; per block of panels the gradient is read and written. A unit's value is written
    and read by the next layer and by its weights' gradient, its slope written and read, its delta
    written and read twice.
    """
    sizes = tuple(sizes)
    dim, first = num_parameters(sizes), (sizes[0] + 1) * sizes[1]
    units, outputs = sum(sizes[1:-1]), sizes[-1]
    panels = -(-rows // PANEL)
    block = max(GROUP, min(32, VALUES // ((2 * units + 2 * outputs) * PANEL * 4)))
    groups, blocks = -(-panels // GROUP), -(-panels // block)
    weights = 4.0 * groups * (2 * dim - first)
    gradient = 4.0 * blocks * 2 * dim
    values = 4.0 * rows * (units * (3 + 2 + 3) + outputs * 4)
    slots = rows * (RELU * units + SOFTMAX * outputs)
    held = 4.0 * (2 * dim + (2 * units + 2 * outputs) * min(panels, block) * PANEL)
    return Traffic(gradient_flops(sizes, rows) + 2.0 * slots, weights + gradient + values, held)


def copy_bandwidths(least: float = 0.05) -> dict[str, float]:
    """Bytes/s read and written by one thread's copy within each level."""
    found = {}
    for level, size in LEVELS.items():
        source, to = np.ones(size // 4, np.float32), np.empty(size // 4, np.float32)
        np.copyto(to, source)
        best = 0.0
        for _ in range(3):
            begin, count = time.perf_counter(), 0
            while (spent := time.perf_counter() - begin) < least or count == 0:
                np.copyto(to, source)
                count += 1
            best = max(best, 2.0 * size * count / spent)
        found[level] = best
    return found


def counted_seconds(
    sizes: Sequence[int],
    rows: int,
    peak: float,
    bandwidths: dict[str, float],
    caches: tuple[float, float],
) -> float:
    """Products at the peak, then the bytes at the speed of the level that holds what is touched.

    Parameters
    ----------
    sizes : sequence of int
        Widths of the MLP.
    rows : int
        N.
    peak : float
        Flop/s of one core's float32 multiply-adds.
    bandwidths : dict
        Of `copy_bandwidths`.
    caches : (float, float)
        Bytes of a core's second-level cache and of the last-level one.
    """
    counted = traffic(sizes, rows)
    levels = list(LEVELS)
    level = levels[sum(counted.working_set > cache for cache in caches)]
    return counted.flops / peak + counted.bytes / bandwidths[level]
