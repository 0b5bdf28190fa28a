"""The shapes outside the table: all that were asked for, and their answers at reduced sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.compare import Comparison, Reading
from benchmarks.harness.framework import OURS
from benchmarks.harness.workload import on_threads
from benchmarks.rivals import FRAMEWORKS
from benchmarks.studies import shapes
from benchmarks.workloads.shapes import GRID, SHAPES
from benchmarks.workloads.table import WORKLOADS


def test_grid_covers_every_value() -> None:
    widths, hidden, rows, chains = map(set, zip(*GRID, strict=True))
    assert widths == {7, 33, 129, 400}
    assert hidden == {1, 2}
    assert rows == {50, 1_000, 100_000}
    assert chains == {1, 3, 16}
    assert len(SHAPES) == len(GRID) + 4


def test_names_are_unique() -> None:
    assert not SHAPES.keys() & WORKLOADS.keys()


@pytest.mark.parametrize(
    "name", ["mlp2-w7-n50-c16", "mlp2-w33-n1000-c1", "mlp1-w400-n50-c1", "strided-n50"]
)
def test_answer(name: str) -> None:
    """Ribbit's answer is the reference's; the check itself is tested with the table's shapes."""
    workload = on_threads(SHAPES[name].reduced, 1)
    prepared = FRAMEWORKS[OURS].prepare(workload)
    workload.check(prepared.answer(prepared.run()))


def test_worst_comes_first() -> None:
    names = ("mlp2-w7-n50-c1", "mlp2-w33-n1000-c1", "lenet5-n50")
    comparisons = [
        Comparison(
            SHAPES[name],
            1,
            {
                OURS: Reading(OURS, name, rounds=[1.0, 1.0]),
                "jax": Reading("jax", name, rounds=[ratio, ratio]),
            },
            peaks=[1e12, 1e12],
        )
        for name, ratio in zip(names, (3.0, 0.5, 2.0), strict=True)
    ]
    rows = shapes.table(comparisons, [OURS, "jax"])[2]
    assert [row[-3] for row in rows] == ["0.50x", "2.00x", "3.00x"]
    assert "1 slower" in shapes.verdict_lines(comparisons)[0]


def test_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command itself: runs, prints, writes its page."""
    page = tmp_path / "shapes.md"
    arguments = ["--shapes", "mlp2-w7-n50-c1", "--entries", OURS, "numpy", "--rounds", "1"]
    assert shapes.main([*arguments, "--threads", "1", "--write", str(page)]) == 0
    text = page.read_text()
    for what in ("| 8-7-7-1 | 50 | 1 |", "1 shapes, ", "1 rounds", "Threads of every entry: 1"):
        assert what in text
    assert "1 shapes, " in capsys.readouterr().out
