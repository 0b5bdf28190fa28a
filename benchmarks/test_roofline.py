"""Counts of the roofline by hand, the reading of a profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness import profiles
from benchmarks.studies import roofline
from benchmarks.studies.roofline_counts import (
    COUNTS,
    GAUSSIAN,
    LEAPFROG,
    RELU,
    SILU,
    Count,
    Elements,
)
from benchmarks.workloads import networks
from benchmarks.workloads.table import WORKLOADS


def test_leapfrog_by_hand() -> None:
    w = WORKLOADS["hmc-small-1"]
    count = COUNTS["leapfrog"](w)
    assert count.flops == 201 * 2 * 927 * (3 * 450 - 400)
    assert count.slots == 201 * (927 * (50 * SILU + GAUSSIAN) + 501 * LEAPFROG)


def test_only_taps_that_meet_a_cell_count() -> None:
    """5 x 5 taps on 28 cells: 28 * 5 - 2 * (2 + 1) meet a cell along an axis; ReLU once each."""

    def one(net, x):  # type: ignore[no-untyped-def]
        return net.flatten(net.relu(net.conv(x, 6, (5, 5))))

    counted = Elements(one, (28, 28, 1))
    assert counted.macs == [6 * 134**2]
    assert networks.Layout(one, (28, 28, 1)).macs == [6 * 140**2]
    assert counted.slots > RELU * 28 * 28 * 6


def test_floor_is_the_larger_part() -> None:
    count = Count(flops=100.0, slots=50.0, bytes=30.0, working_set=20.0)
    assert count.floor(peak=10.0, bandwidth=1.0, cache=10.0) == (30.0, "memory")
    assert count.floor(peak=10.0, bandwidth=1.0, cache=40.0) == (20.0, "arithmetic")


LIBRARY = "_core.cpython-311-x86_64-linux-gnu.so"
INNER = "ribbit::cpu::(anonymous namespace)"
REPORT = f"""
# Samples: 10
     6;{LIBRARY};[.] {INNER}::lanes<float, 4>;-      -
     2;{LIBRARY};[.] {INNER}::lanes<float, 8>;-      -
     1;{LIBRARY};[.] ribbit::cpu::Team::barrier;-      -
     1;[kernel.kallsyms];[k] _raw_spin_lock;-      -
"""


def test_profile_is_read() -> None:
    assert profiles.shares(REPORT) == [
        ("lanes", pytest.approx(0.8)),
        ("Team::barrier", pytest.approx(0.1)),
        ("the kernel", pytest.approx(0.1)),
    ]


def test_page(tmp_path: Path) -> None:
    """The command itself: runs and writes its page."""
    page = tmp_path / "roofline.md"
    arguments = ["--workloads", "normals", "--quick", "--threads", "1", "--write", str(page)]
    assert roofline.main(arguments) == 0
    text = page.read_text()
    assert "| normals | normal | 1 | 0 flop | 28.5 |" in text
