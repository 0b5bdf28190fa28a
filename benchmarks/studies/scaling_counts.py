"""The time of a gradient of an MLP by count: its products at the peak, then its bytes.

Weights, their gradient and the activations of a block of rows go through the core once per block.
Their speed depends on the cache that holds all of them. Products and bytes do not overlap here, so
this time is no floor. It says how the time grows. Counted for one thread, float32.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.harness.workload import gradient_flops, num_parameters

PANEL, GROUP = 32, 4  # rows of a tile; tiles that go through a layer together
VALUES = 400 << 10  # most bytes of activations and their gradients in a block, if above a group
RELU, SOFTMAX = 3.0, 20.0  # slots per unit and per output; a slot is a multiply-add
LEVELS = {"second level": 192 << 10, "last level": 6 << 20, "memory": 128 << 20}
"""Bytes of each of two arrays whose copy stays in that level."""


@dataclass(frozen=True)
class Traffic:
    """Work of one gradient: flops, bytes read and written, bytes between two uses of a weight."""

    flops: float
    bytes: float
    working_set: float


def traffic(sizes: Sequence[int], rows: int) -> Traffic:
    """Count a gradient of an MLP with these widths, inputs and outputs among them.

    The forward pass reads the weights once per group of tiles. The backward pass reads the weights
    above the first layer once per group. The gradient is read and written once per block of tiles.
    The value of a unit is written once and read twice: by the next layer and by the gradient of its
    weights. Its derivative is written and read. Its delta is written and read twice.
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
    """Return bytes/s that a copy by one thread reads and writes within each level."""
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
    """Return seconds: products at the peak, then bytes at the speed of the level that holds them.

    Parameters
    ----------
    sizes : sequence of int
        Widths of the MLP.
    rows : int
        N.
    peak : float
        Flop/s of the float32 multiply-adds of one core.
    bandwidths : dict
        Result of `copy_bandwidths`.
    caches : (float, float)
        Bytes of the second-level cache of a core and of the last-level cache.
    """
    counted = traffic(sizes, rows)
    levels = list(LEVELS)
    level = levels[sum(counted.working_set > cache for cache in caches)]
    return counted.flops / peak + counted.bytes / bandwidths[level]
