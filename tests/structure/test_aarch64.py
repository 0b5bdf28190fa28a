"""Counts on AArch64: the same paths as elsewhere, each with a row of the page; tools that lack."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import CPP
from tools import aarch64
from tools.hot_paths import PATHS


def test_the_paths_are_those_that_are_guarded() -> None:
    for name, path in PATHS.items():
        line = aarch64.LINES[name]
        assert (line.what, line.per, line.count) == (path.what, path.unit, 1)
    source = (CPP / "tests" / "hot_paths.cpp").read_text()
    program = re.findall(r'^\s+\{"([a-z0-9-]+)", (\d+), (\d+),', source, re.MULTILINE)
    assert [name for name, _, _ in program] == list(aarch64.LINES)
    assert {name: (int(few), int(many)) for name, few, many in program[: len(PATHS)]} == {
        name: (path.few, path.many) for name, path in PATHS.items()
    }


def test_the_page_has_a_row_for_each() -> None:
    page = aarch64.PAGE.read_text()
    rows = re.findall(r"^\| (\S+) \| .* \| ([\d.,]+) \| ([\d.,]+) \| ([\d.]+) \|$", page, re.M)
    assert [row[0] for row in rows] == list(aarch64.LINES)
    for _, avx2, neon, ratio in rows:
        found = float(neon.replace(",", "")) / float(avx2.replace(",", ""))
        assert found == pytest.approx(float(ratio), rel=0.03)
        assert 0.9 < found < 4.0  # vectors are half as wide, and multiplies take a lane


def test_the_table_divides_by_what_is_in_a_unit() -> None:
    counts = dict.fromkeys(aarch64.LINES, (1e6, 3e6)) | {"normals-f32": (40960.0, 81920.0)}
    text = aarch64.table(counts)
    assert (
        "| leapfrog | MLP 8-50-1, SiLU, N=320 | leapfrog | 1,000,000 | 3,000,000 | 3.00 |" in text
    )
    assert "| normal | 10.00 | 20.00 | 2.00 |" in text


def test_what_is_missing_is_named_and_fails(monkeypatch, capsys) -> None:
    monkeypatch.setattr(aarch64.shutil, "which", lambda name: None if "g++" in name else name)
    assert aarch64.main([]) == 1
    assert capsys.readouterr().out == "not counted: apt-get install g++-aarch64-linux-gnu\n"
