"""A run that another process writes, opened and read again and again."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np

import ribbit as rb
from tests.durability.lines import posterior
from tests.support.paths import ROOT

_WRITER = """
import sys, warnings
from tests.durability.lines import quick
from tests.durability.reads import whole_run
whole_run(int(sys.argv[2]), quick(sys.argv[1]))
"""


def whole_run(num_draws: int, store: object = None) -> np.ndarray:
    """Draws (C, D, P) of the run that is written."""
    hmc = rb.HMC(posterior(), step_size=0.02, num_leapfrog_steps=3)
    options = {"warmup": 20, "chains": 3, "seed": 1, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # short runs
        return np.asarray(hmc.sample(num_draws, store=store, **options).positions)


def read_while(folder: Path, whole: np.ndarray, reads: int, different: int) -> list[int]:
    """Open a run again and again while another process writes it; draws counted each time.

    Until there were enough reads, and enough different counts among them, or the run has ended.

    Raises
    ------
    AssertionError
        For a draw that is not one of the run's, or statistics of other draws.
    """
    num_draws = whole.shape[1]
    command = [sys.executable, "-c", _WRITER, str(folder), str(num_draws)]
    writer = subprocess.Popen(command, cwd=ROOT)
    counts: list[int] = []
    try:
        while writer.poll() is None or not counts:
            if len(counts) >= reads and len(set(counts)) >= different:
                break
            try:
                draws = rb.load(folder)
            except FileNotFoundError:
                time.sleep(0.01)
                continue
            positions = np.asarray(draws.positions)
            count = positions.shape[1]
            assert len(draws) == count == draws.stats["lp"].shape[1]
            assert np.array_equal(positions, whole[:, :count])
            counts.append(count)
        if writer.poll() is not None:
            assert writer.returncode == 0
            assert len(rb.load(folder)) == num_draws
    finally:
        writer.kill()
        writer.wait()
    return counts


def read_often(folder: Path, reads: int) -> int:
    """Read runs, one after another, `reads` times or a few more; returns how often."""
    whole, total = whole_run(20_000), 0
    while total < reads:
        counts = read_while(folder / str(total), whole, reads, 2)
        assert counts == sorted(counts)
        total += len(counts)
    return total
