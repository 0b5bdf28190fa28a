"""Tests that `.ci/run` leaves out with the kernels' sources unchanged depend on nothing else."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import ribbit as rb
from tests.support.paths import ROOT
from tools import checked

TESTS = ROOT / "tests" / "backends" / "cuda"
MARK = "pytest.mark.kernels"
OURS = {"ribbit", "tests", "tools", "benchmarks"}
CORE = "ribbit._core"  # its functions are of many sources, and have no files


def of(thing: object) -> str:
    """Name of the module that a name of the package comes from."""
    return thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", "")


def named(text: str) -> Iterator[str]:
    """Modules of ours that a text imports, or takes from ``rb``."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name != "ribbit")
        elif isinstance(node, ast.ImportFrom) and node.module:
            for one in node.names:
                inner = f"{node.module}.{one.name}"
                if node.module == "ribbit":
                    yield of(getattr(rb, one.name, None) or importlib.import_module(inner))
                else:
                    yield inner if is_module(inner) else node.module
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("rb", "ribbit")
        ):
            yield of(getattr(rb, node.attr, None))


def is_module(name: str) -> bool:
    try:
        return name.partition(".")[0] in OURS and importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # what would hold it is none
        return False


def needed(text: str) -> set[str]:
    """All modules of ours that a test is made of, with what they need in turn.

    Of what is outside the record's sources no more is asked: it is a finding by itself.
    """
    found: set[str] = set()
    todo = [text]
    while todo:
        for name in named(todo.pop()):
            if name.partition(".")[0] in OURS and name not in found:
                found.add(name)
                if name != CORE and not outside({name}):
                    todo.append(path_of(name).read_text())
    return found - {CORE}


def path_of(module: str) -> Path:
    """File of a module in the checkout; the package itself may be installed elsewhere."""
    at = ROOT / ("python" if module.startswith("ribbit") else "") / module.replace(".", "/")
    package = at / "__init__.py"
    return package if package.is_file() else at.with_suffix(".py")


def outside(modules: set[str]) -> list[str]:
    """Those that are not among the sources of the check."""
    sources = {ROOT / name for name in checked.SOURCES["kernels"]}
    files = {path_of(name): name for name in modules}
    assert all(file.is_file() for file in files), sorted(map(str, files))
    return sorted(n for f, n in files.items() if not sources & {f, *f.parents})


# Posterior.prior_predictive returns one; no test of the kernels calls it.
UNUSED = {"ribbit.results.prediction"}
MARKED = sorted(path.name for path in TESTS.glob("test_*.py") if MARK in path.read_text())


def test_most_of_them_are_marked() -> None:
    assert {"test_gradients.py", "test_faults.py", "test_compile.py"} <= set(MARKED)


@pytest.mark.parametrize("name", MARKED)
def test_what_is_left_out_has_its_sources_in_the_record(name: str) -> None:
    modules = needed((TESTS / name).read_text())
    assert len(modules) > 3
    assert outside(modules - UNUSED) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import ribbit as rb\nrb.HMC(1)\n", "ribbit.kernels"),
        ("from ribbit import MCLMC\n", "ribbit.samplers.mcmc.mclmc"),
        ("from ribbit.results import state\n", "ribbit.results.state"),
        ("def f():\n    from tools.abi import main\n", "tools.abi"),
        ("from tests.gates import test_laplace\n", "tests.gates.test_laplace"),
    ],
)
def test_what_is_outside_is_found(text: str, found: str) -> None:
    assert found in outside(needed(text))
