"""What is said about the curves of `benchmarks.scaling`; their measurement is not repeated here."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import machine
from benchmarks.studies import scaling, scaling_curves
from benchmarks.studies.scaling_curves import DRAWS, KINDS, Curve


def power(name: str, exponent: float, begin: int = 0) -> Curve:
    """Return a power law with something else below `begin`."""
    sizes = [2**k for k in range(8)]
    return Curve(name, sizes, [n**exponent if n >= begin else 7.0 for n in sizes], begin)


def curves(exponent: float, speed: float, bytes_per_draw: float) -> scaling.Measured:
    """Return a run as it could be found."""
    memory = [
        Curve(name, DRAWS, [1.0 + n * size * 1e-6 for n in DRAWS])
        for name, size in zip(KINDS.values(), (10_000.0, bytes_per_draw, 0.0), strict=True)
    ]
    chains = Curve("2 threads", [2**k for k in range(7)], [speed] * 7)
    threads = [Curve("chains", [1, 2], [1.0, speed])]
    line = [power("a", exponent, 4)]
    return scaling.Measured(line, line, [power("1 thread", 1.0)], chains, threads, line, memory)


def test_exponents_are_fitted_from_where_they_begin() -> None:
    assert power("all", 1.3).exponent == pytest.approx(1.3)
    assert power("part", 0.7, 8).exponent == pytest.approx(0.7)
    whole = dataclasses.replace(power("part", 0.7, 8), begin=0)
    assert abs(whole.exponent - 0.7) > 0.05


def test_what_misses_is_said(monkeypatch: Any) -> None:
    monkeypatch.setattr(machine, "cores", lambda: [0, 1])
    right = scaling.statements(curves(1.0, 1.95, 50.0))
    assert [row[-1] for row in right] == ["yes", "yes", "yes", "yes", "-", "yes", "yes"]
    assert [row[2] for row in right] == ["1.000", "1.000", "1.95x", "1.95x", "10,000", "50", "0"]
    wrong = scaling.statements(curves(1.06, 1.89, 101.0))
    assert [row[-1] for row in wrong] == ["NO", "NO", "NO", "NO", "-", "NO", "yes"]


@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_made_in_a_process(kind: str) -> None:
    command = [sys.executable, "-m", "benchmarks.studies.scaling_curves", kind, "20"]
    done = subprocess.run(command, cwd=machine.ROOT, capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert 0.0 < found["seconds"] < 60.0
    assert 0.0 <= found["megabytes"] < 100.0
    assert scaling_curves.draw(kind, 20)().shape == (1_000, 1)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    scaling.picture(curves(1.0, 1.9, 50.0), tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").read_bytes()[:4] == b"\x89PNG"
