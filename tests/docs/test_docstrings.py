"""Every public name has an "Examples" section, and what stands there runs.

Examples may use ``np`` and ``rb`` as they are; all else they say themselves. They run in an empty
folder. Rooms of frameworks are tested where the framework is installed.
"""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import itertools
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.threads import num_threads
from tests.structure.graph import RUN
from tests.support.paths import ROOT
from tests.support.rooms import ROOMS

NO_EXAMPLES = {"Array"}  # a name of a type
# In a process of its own: MPI, once begun, stays.
ALONE = {"from_mpi": "mpi4py"}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

# On reduced sizes chains and fits end before they have settled.
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.RibbitWarning")


def public(room: str) -> dict[str, Any]:
    """Classes and functions that a room lists, by name."""
    module = importlib.import_module(room)
    found = {name: getattr(module, name) for name in module.__all__ if name not in NO_EXAMPLES}
    return {n: v for n, v in found.items() if inspect.isclass(v) or inspect.isfunction(v)}


def names() -> list[tuple[str, str]]:
    """Room and name of everything public, of frameworks that are there."""
    out = []
    for room, framework in ROOMS.items():
        if framework is None or importlib.util.find_spec(framework) is not None:
            out += [(room, name) for name in public(room)]
    return out


def has_examples(value: Any) -> bool:
    """Whether its own docstring, not that of a base, has the section."""
    lines = inspect.cleandoc(value.__doc__ or "").splitlines()
    return any(a == "Examples" and set(b) == {"-"} for a, b in itertools.pairwise(lines))


def test_rooms_are_all_that_users_import() -> None:
    package = Path(rb.__file__).parent
    modules = [p for p in package.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()]
    rooms = {f"ribbit.{p.stem}" for p in modules if not p.name.startswith("_")}
    # Their names are public as ribbit's own, or they are internal.
    inner = {"models", "results", "samplers", "store", "targets", *RUN}
    assert rooms - {f"ribbit.{name}" for name in inner} - {"ribbit.py"} == set(ROOMS) - {"ribbit"}


def run(room: str, name: str) -> int:
    """Run the examples of a name and of its methods; how many statements there were."""
    value = public(room)[name]
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    finder = doctest.DocTestFinder(exclude_empty=True)
    module = sys.modules[value.__module__]
    for test in finder.find(value, name, module=module, globs={"np": np, "rb": rb}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = runner.run(test, out=report.append)
        assert not result.failed, "".join(report)
    return runner.tries


@pytest.mark.full
@pytest.mark.parametrize(("room", "name"), names())
def test_every_name_has_examples_that_run(
    room: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = public(room)[name]
    assert has_examples(value), f"{room}.{name} has no section of examples"
    monkeypatch.chdir(tmp_path)
    if name in ALONE:
        pytest.importorskip(ALONE[name])
        code = f"from {__name__} import run; assert run({room!r}, {name!r}) > 0"
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        return
    before = num_threads()
    try:
        assert run(room, name) > 0
    finally:
        rb.set_num_threads(before)


def test_an_example_that_is_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong() -> None:
        """Return nothing.

        Examples
        --------
        >>> 1 + 1
        3
        """

    module = sys.modules[__name__]
    monkeypatch.setattr(module, "public", lambda room: {"wrong": wrong})
    with pytest.raises(AssertionError, match="Expected:"):
        run("ribbit", "wrong")


def test_a_docstring_without_examples_is_noticed() -> None:
    def bare() -> None:
        """Return nothing."""

    assert not has_examples(bare)
    assert has_examples(rb.HMC)
