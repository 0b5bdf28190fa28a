"""Kernels in several orders of blocks and threads: what they compute must not depend on it."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from ribbit._arrays import kernel_sources
from tests.support.cuda.compiler import FIBERS, PHASES, Compiler
from tests.support.cuda.cpu_device import CpuDevice

ORDERS = [(PHASES, 1), (PHASES, 77), (PHASES, 12345)]
if "-fsanitize" not in os.environ.get("RIBBIT_KERNEL_FLAGS", ""):  # knows nothing of fibers
    ORDERS += [(FIBERS, 5), (FIBERS, 901)]


@cache
def compiler(runner: str, headers: tuple[str, ...]) -> Compiler:
    """The compiler of all tests that run their kernels in every order."""
    return Compiler(headers=headers, runner=runner)


def compile_all(names: Sequence[str], headers: tuple[str, ...] = kernel_sources.HEADERS) -> None:
    """Compile in one go what would take one library per test."""
    with ThreadPoolExecutor() as pool:  # the work is g++'s
        list(pool.map(lambda runner: compiler(runner, headers)(names), dict(ORDERS)))


def in_every_order(
    run: Callable[[CpuDevice], Sequence[np.ndarray]],
    headers: tuple[str, ...] = kernel_sources.HEADERS,
) -> Sequence[np.ndarray]:
    """Return what ``run(device)`` returns: the same bits in every order, or AssertionError."""
    first = None
    for runner, seed in ORDERS:
        device = CpuDevice(compiler(runner, headers))
        device.seed = seed
        found = run(device)
        first = first or found
        for a, b in zip(first, found, strict=True):
            np.testing.assert_array_equal(
                np.atleast_1d(a).view(np.uint8), np.atleast_1d(b).view(np.uint8)
            )
    return first
