"""The table of ratios: who is a rival."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import machine
from benchmarks.harness.compare import Comparison, Reading
from benchmarks.harness.framework import OURS
from benchmarks.rivals import OURS_AVX2
from benchmarks.studies import report
from benchmarks.workloads.table import WORKLOADS


def test_avx2_stands_beside_and_is_no_rival() -> None:
    """Faster than every rival, it is not the best of them, and has a column of its own."""
    name = "hmc-small-1"
    times = {OURS: 1e-5, OURS_AVX2.name: 2e-5, "jax": 6e-5, "torch": 9e-5}
    readings = {entry: Reading(entry, name, [t, t, t]) for entry, t in times.items()}
    comparison = Comparison(WORKLOADS[name], 2, readings)
    verdict = report.judge(comparison)
    assert verdict.best is readings["jax"]
    assert verdict.ratio == pytest.approx(6.0)
    assert verdict.met
    tables = report.summary([comparison], [*times, "posteriors"], "", 3, 1.0)[0]
    assert tables[1][1:] == (["workload", *times], [[name, "10 us", "20 us", "60 us", "90 us"]])


@pytest.mark.parametrize("sets", ["AVX-512", "AVX2"])
def test_avx2_is_measured_where_it_is_not_the_same(sets: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(machine, "vector_sets", lambda: sets)
    entries = report.default_entries()
    assert entries[0] == OURS
    assert entries[1:2] == ([OURS_AVX2.name] if sets == "AVX-512" else ["numpy"])


def test_the_named_rival_has_its_ratio_and_its_form() -> None:
    """bbb-seed has a goal against eager PyTorch, whoever is the best."""
    name = "bbb-seed"
    times = {OURS: 1.0, "jax": 4.0, "torch": 10.9}
    readings = {e: Reading(e, name, [t, t], form=f"form of {e}") for e, t in times.items()}
    comparison = Comparison(WORKLOADS[name], 2, readings)
    row = report.ratio_table([comparison])[2][0]
    assert "4.00x, 10.90x torch" in row
    assert "NO" in row
    forms = [[name, entry, f"form of {entry}"] for entry in times]
    assert report.form_table([comparison])[2] == forms
    readings["torch"].rounds = [11.1, 11.1]
    assert "yes" in report.ratio_table([comparison])[2][0]
    readings["jax"].rounds = [12.0, 12.0]  # the best is the named one: once
    assert len(report.form_table([comparison])[2]) == 2


def test_page(tmp_path: Path) -> None:
    """The command itself: runs, writes its page and its readings."""
    page, readings = tmp_path / "benchmarks.md", tmp_path / "readings.json"
    arguments = ["--workloads", "hmc-small-1", "--entries", OURS, "numpy", "--quick", "--rounds"]
    arguments += ["1", "--write", str(page), "--json", str(readings)]
    assert report.main(arguments) == 0
    assert "| hmc-small-1 | leapfrog and chain | " in page.read_text()
    assert "hmc-small-1" in readings.read_text()
