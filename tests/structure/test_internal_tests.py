"""The list of test files that import internals of samplers or results is complete.

``internal_tests.csv`` says of each file how often it does so, and whether it is kept, rewritten or
deleted when these internals are replaced.
"""

import ast
import csv
import re
from pathlib import Path

import pytest

import ribbit
from tests.structure.graph import RUN, modules, statements, targets_of
from tests.support.paths import ROOT

LIST = Path(__file__).with_name("internal_tests.csv")
KNOWN = set(modules(Path(ribbit.__file__).resolve().parent, "ribbit"))
INTERNAL = re.compile(rf"\bribbit\.(?:(?:samplers|results)\.|(?:{'|'.join(RUN)})\b)[\w.]*")


def import_lines(text: str) -> int:
    """Return how many statements import a module below samplers or results, or strings name one."""
    tree = ast.parse(text)
    found = 0
    for node, _ in statements(tree):
        found += any(INTERNAL.match(target) for target in targets_of(node, "tests", KNOWN))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = INTERNAL.findall(node.value) if id(node) not in docstrings else []
            found += any(_names_a_module(name) for name in named)
    return found


def _names_a_module(name: str) -> bool:
    """Return whether a dotted name is a module below samplers or results, or lies in one."""
    parts = name.split(".")
    first = 3 if parts[1] in ("samplers", "results") else 2
    return any(".".join(parts[:end]) in KNOWN for end in range(first, len(parts) + 1))


def differences(folder: Path, rows: list[dict[str, str]]) -> list[str]:
    """Return what is wrong with the list, for the test files below `folder`."""
    counts = {}
    for path in sorted((folder / "tests").rglob("*.py")):
        count = import_lines(path.read_text(encoding="utf-8"))
        if count and path.name != Path(__file__).name:
            counts[path.relative_to(folder).as_posix()] = count
    listed = {row["file"]: int(row["imports"]) for row in rows}
    wrong = [f"{name}: missing" for name in counts.keys() - listed.keys()]
    wrong += [f"{name}: stale" for name in listed.keys() - counts.keys()]
    for name in counts.keys() & listed.keys():
        if counts[name] != listed[name]:
            wrong.append(f"{name}: imports {counts[name]} times, not {listed[name]}")
    return sorted(wrong)


def read() -> list[dict[str, str]]:
    with open(LIST, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_list_is_complete_and_has_no_stale_rows() -> None:
    assert differences(ROOT, read()) == []


def test_every_row_has_a_decision_and_a_reason() -> None:
    rows = read()
    files = [row["file"] for row in rows]
    assert files == sorted(set(files))
    for row in rows:
        assert list(row) == ["file", "imports", "decision", "reason"]
        assert row["decision"] in {"keep", "rewrite", "delete"}
        assert len(row["reason"]) > 10


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("import ribbit as rb\nfrom ribbit.samplers import HMC\n", 0),
        ("from ribbit.samplers.mcmc.mclmc import MCLMC\n", 1),
        ("from ribbit.samplers.mcmc import mclmc\nimport ribbit.results.draws\n", 2),
        ("from ribbit.results import prediction\n", 1),
        ("def f():\n    from ribbit.results.no_longer_there import (\n    a, b)\n", 1),
        ("patch('ribbit.results.lazy.CHUNK', 3)\n", 1),
        ("patch('ribbit.results.no_longer_there.CHUNK', 3)\n", 0),
        ('"""ribbit.results.lazy: a docstring."""\n', 0),
    ],
)
def test_what_counts_as_an_import(text: str, count: int) -> None:
    assert import_lines(text) == count


def test_the_test_catches(tmp_path: Path) -> None:
    """The control: a missing file, a stale row, and a wrong number."""
    (tmp_path / "tests").mkdir()
    for name in "ab":
        path = tmp_path / "tests" / f"{name}.py"
        path.write_text("from ribbit.results.draws import Draws\n")
    (tmp_path / "tests" / "c.py").write_text("import ribbit\n")
    rows = [{"file": f"tests/{name}.py", "imports": "2"} for name in "bc"]
    assert differences(tmp_path, rows) == [
        "tests/a.py: missing",
        "tests/b.py: imports 1 times, not 2",
        "tests/c.py: stale",
    ]
