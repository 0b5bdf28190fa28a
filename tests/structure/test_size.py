"""`tools.size`: which lines count as code, and that its rows add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.paths import CPP
from tools import size

PYTHON = '''"""Docstring
of two lines."""

import os  # a comment behind code

# a comment
def f():
    """One line."""
    text = """a string

# of three lines, of which one is blank"""
    "a string that is no docstring"
    return text


class A:
    """Docstring."""
'''

NATIVE = """// a comment \\
   that goes on
#include <x>
/* a comment
   of two lines */ int a = 1'000'000;  // behind code
const char* s = "// no comment";  /* one */

const char* raw = R"(
/* no comment */
)";
char quote = '"';  // "
"""


def test_code_lines_of_python() -> None:
    assert size.python_code(PYTHON) == 7
    assert size.python_code("") == 0


def test_code_lines_of_native_files() -> None:
    assert size.native_code(NATIVE) == 7


def test_lines_are_those_of_wc(tmp_path: Path) -> None:
    for name, text in {"a.py": PYTHON, "b.h": NATIVE, "c.py": ""}.items():
        (tmp_path / name).write_text(text)
    assert size.size(sorted(tmp_path.iterdir())) == {
        "files": 3,
        "lines": PYTHON.count("\n") + NATIVE.count("\n"),
        "code": 14,
    }


@pytest.mark.skipif(not CPP.is_dir(), reason="needs the source tree")
def test_rows_add_up_and_json_has_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = size.measured()
    monkeypatch.setattr(size, "measured", lambda: found)
    for total, rows in (("python", "packages"), ("cpp", "cpp")):
        for key, value in found["totals"][total].items():
            assert value == sum(row[key] for row in found[rows].values())
    for row in found["totals"].values():
        assert 0 < row["code"] < row["lines"]
    assert size.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert size.main([]) == 0
    assert f"{found['totals']['python']['lines']:,}" in capsys.readouterr().out
