"""A handful of each; ``python -m tests.durability --kills 300`` and the like make them all."""

import subprocess
import sys

import pytest

from tests.durability.lines import LINES
from tests.support.paths import ROOT

pytest.importorskip("zarr")


def _kills(*arguments: str) -> str:
    # In a process of its own: only one without threads may fork.
    done = subprocess.run(
        [sys.executable, "-m", "tests.durability", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_line_goes_on_after_a_kill() -> None:
    """With the bits of a run left alone, on one thread or two."""
    kills = len(LINES)
    assert f"{kills} of {kills} went on" in _kills("--kills", str(kills))


def test_a_full_disk_at_random_bytes() -> None:
    of = ["--of", "hmc", "--of", "sgld", "--of", "bbb", "--of", "laplace"]
    assert "4 of 4 went on" in _kills("--full-disk", "4", *of)


def test_going_on_elsewhere() -> None:
    """On other threads by another release; another instruction set is refused."""
    assert "2 of 2 went on" in _kills("--elsewhere", "--of", "hmc", "--of", "swag")


@pytest.mark.slow
def test_all_full_disks() -> None:
    assert "50 of 50 went on" in _kills("--full-disk", "50")


@pytest.mark.slow
def test_all_kills() -> None:
    assert "300 of 300 went on" in _kills("--kills", "300")
