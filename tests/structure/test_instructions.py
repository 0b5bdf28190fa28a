"""The guard on the hot paths: what it lets pass and what not. The counting is in `.ci/run`."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any

import pytest

from ribbit import _core
from tools import instructions
from tools.hot_paths import CONTROLS, PATHS
from tools.instructions import OTHER_COMPILER, RATIO, SAME_COMPILER, failures, guard

BUDGET = json.loads(instructions.FILE.read_text())


def as_budgeted(key: str, control: float) -> dict[str, float]:
    """Return what a run finds that repeats the budget, with the control at this ratio."""
    found = {name: float(values[key]) for name, values in BUDGET["paths"].items()}
    return found | dict.fromkeys(CONTROLS, control * found["leapfrog"])


def test_every_path_has_a_budget() -> None:
    assert list(BUDGET["paths"]) == list(PATHS)
    assert len(PATHS) >= 5


def test_the_compiler_is_named_as_a_build_names_it() -> None:
    """Else no build has the compiler of the budget, and the wide limit holds everywhere."""
    for name in (BUDGET["compiler"], str(_core.build_info()["compiler"])):
        assert re.search(r"(GCC|Clang) \d+\.\d+\.\d+", name)


@pytest.mark.parametrize("name", PATHS)
def test_one_slow_path_is_enough(name: str) -> None:
    """At the limit it passes, above it fails, and no other path is named; NaN fails."""
    held = guard(BUDGET["compiler"], BUDGET, counting=True)
    assert held.limit == SAME_COMPILER
    right = as_budgeted("instructions", 1.1)
    assert failures(held, BUDGET, right) == []
    for ratio, wrong in ((1.029, 0), (1.031, 1), (float("nan"), 1)):
        found = failures(held, BUDGET, right | {name: ratio * right[name]})
        assert len(found) == wrong
        assert all(line.startswith(f"[{name}]") for line in found)


def test_a_tenth_more_is_found_out() -> None:
    """Every count against a budget of nine tenths."""
    smaller = {
        name: {key: 0.9 * value for key, value in values.items()}
        for name, values in BUDGET["paths"].items()
    }
    held = guard(BUDGET["compiler"], BUDGET, counting=True)
    found = failures(held, BUDGET | {"paths": smaller}, as_budgeted("instructions", 1.1))
    assert [line.split("]")[0][1:] for line in found] == list(PATHS)


def test_other_compiler_and_no_valgrind_are_wider() -> None:
    """And need a louder control, which has to be caught there as well."""
    for compiler, counting, limit in (("another", True, OTHER_COMPILER), ("", False, RATIO)):
        held = guard(compiler, BUDGET, counting=counting)
        assert held.limit == limit
        right = as_budgeted(held.key, 2.0)
        assert failures(held, BUDGET, right) == []
        slow = right | {"dense": 1.01 * limit * right["dense"]}
        assert len(failures(held, BUDGET, slow)) == 1
        deaf = right | {held.control: 0.99 * limit * right["leapfrog"]}
        assert failures(held, BUDGET, deaf)[0].startswith("[control]")


def test_without_valgrind_ratios_are_held(monkeypatch: Any, capsys: Any) -> None:
    """It is said; the exit status is that of the ratios."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    for factor, status in ((1.0, 0), (1.7, 1)):
        found = as_budgeted("operations", 2.0)
        found["convolution"] *= factor
        monkeypatch.setattr(instructions, "time_against_loop", lambda _, found=found: found)
        assert instructions.main([]) == status
        printed = capsys.readouterr().out
        assert "there is no valgrind" in printed
        assert ("FAILED [convolution]" in printed) == bool(status)


def test_a_path_that_does_not_run_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)^\[instructions\].*KeyError: 'nothing'"):
        instructions.time_against_loop(["nothing"])
