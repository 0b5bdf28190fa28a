"""Who imports whom in benchmarks/: every import, lazy and typing ones too."""

import pytest

from tests.structure.graph import Import, circles, imports, modules
from tests.support.paths import ROOT

FOLDER = ROOT / "benchmarks"
# What a room may import beside itself and what is no room; Ribbit is measured, so few may know it.
RULES = {
    "harness": set(),
    "workloads": {"harness"},
    "rivals": {"harness", "workloads"},
    "ours": {"harness", "workloads", "ribbit"},
    "studies": {"harness", "workloads", "rivals", "ours", "ribbit"},
}


@pytest.fixture(scope="module")
def found() -> list[Import]:
    return imports(FOLDER, "benchmarks")


def room(module: str) -> str:
    """Room of a module of benchmarks, or the package that is imported from outside."""
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] if package == "benchmarks" else package


def wrong(found: list[Import]) -> list[str]:
    """What breaks the rule: another room, or a Ribbit that should not be known."""
    judged = {*RULES, "ribbit"}
    out = []
    for one in found:
        source, target = room(one.source), room(one.target)
        allowed = {*RULES.get(source, judged), source}
        if target in judged and target not in allowed:
            out.append(str(one))
    return out


def test_rooms_import_what_they_may(found):
    assert {room(one.source) for one in found} >= set(RULES)
    assert wrong(found) == []


def test_no_file_imports_in_a_circle(found):
    names = set(modules(FOLDER, "benchmarks"))
    edges = {name: set() for name in names}
    for one in found:
        if one.target in names and one.target != one.source:
            edges[one.source].add(one.target)
    assert circles(edges) == []


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("harness.compare", "benchmarks.workloads.table"),
        ("harness.worker", "benchmarks.rivals"),
        ("rivals.numpy_", "ribbit.random"),
        ("workloads.table", "benchmarks.studies.report"),
    ],
)
def test_the_rule_catches(source, target):
    """The control."""
    assert wrong([Import(f"benchmarks.{source}", target, 1, True)])
