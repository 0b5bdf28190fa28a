"""A guard against regressions that no load of the machine disturbs.

``python -m tools.instructions`` counts the instructions of one unit of every hot path
(`tools.hot_paths`) with ``valgrind --tool=callgrind``, on one thread and the AVX2 kernels,
which valgrind can run, and holds them against ``tools/instruction_budget.json``; it fails when
one is above its limit, and when a control, a leapfrog that does a tenth more, is not found out. The
counts are differences between many units and few, so that what happens once is not in them.

Counts belong to a compiler. Where Ribbit was built with the compiler of the budget the limit is 3 %
above it: the same build repeats to 0.4 %. With any other, of which none has been measured, it is
50 %. Where there is no valgrind (or with ``--ratios``) nothing is counted; instead the time of a
unit is held against that of a loop of multiply-adds, on the same instruction set in the same
process, taking turns: a ratio to within 60 %, since processors differ in more than their FMA peak.
Those two find a path that lost its vectors, not one that lost a tenth.

``--write`` measures both and writes the budget anew.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from ribbit import _core
from tools.hot_paths import CONTROLS, PATHS

FILE = machine.ROOT / "tools" / "instruction_budget.json"
ISA = "avx2"
SAME_COMPILER, OTHER_COMPILER, RATIO = 1.03, 1.5, 1.6

Measured = dict[str, float]  # per unit, by the name of a path


@dataclass(frozen=True)
class Guard:
    """One way to measure: its key in the budget, the limit above it, the control it must catch."""

    key: str
    limit: float
    control: str


def guard(compiler: str, budget: Mapping[str, Any], *, counting: bool) -> Guard:
    """Choose what is held on this machine, for a Ribbit built with `compiler`."""
    if not counting:
        return Guard("operations", RATIO, "twice as much")
    same = compiler == budget["compiler"]
    control = "a tenth more" if same else "twice as much"
    return Guard("instructions", SAME_COMPILER if same else OTHER_COMPILER, control)


def run_paths(do: str, names: list[str], before: list[str]) -> str:
    """Run `tools.hot_paths` in a process of its own; return what it prints."""
    command = [*before, sys.executable, "-m", "tools.hot_paths", do, *names]
    environment = os.environ | machine.thread_environment(1)
    environment |= {"RIBBIT_ISA": ISA, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        command, cwd=machine.ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"[instructions] {' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def count(names: list[str]) -> Measured:
    """Instructions of one unit, by callgrind; a dump at every mark."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "counts")
        options = ["--tool=callgrind", "--dump-before=getppid", f"--callgrind-out-file={out}"]
        run_paths("count", names, ["valgrind", *options])
        found = {}
        for i, name in enumerate(names):
            # dump 3 i + 1 ends with the preparations; then the few, then the many
            few, many = (total(Path(f"{out}.{3 * i + k}")) for k in (2, 3))
            path = (PATHS | CONTROLS)[name]
            found[name] = (many - few) / (path.many - path.few)
        return found


def total(dump: Path) -> int:
    """Return the instructions of a dump of callgrind."""
    match = re.search(r"^totals: (\d+)", dump.read_text(), re.MULTILINE)
    if match is None:
        raise RuntimeError(f"[instructions] expected totals in {dump.name}, got none")
    return int(match[1])


def time_against_loop(names: list[str]) -> Measured:
    """Operations of the FMA loop in the time of one unit."""
    found: Measured = json.loads(run_paths("time", names, []))
    return found


def table(held: Guard, budget: Mapping[str, Any], found: Mapping[str, float]) -> list[str]:
    """Write a line for every path, and for the control."""
    text = [f"{'path':<14}{held.key + ' per':>18} {'unit':<10}{'budget':>14}{'ratio':>8}  of"]
    for name, path in PATHS.items():
        wanted = budget["paths"][name][held.key]
        ratio = found[name] / wanted
        mark = "  fewer: the budget can be lowered" if ratio < 1 / held.limit else ""
        text.append(
            f"{name:<14}{found[name]:>18,.0f} {path.unit:<10}{wanted:>14,.0f}{ratio:>8.3f}"
            f"  {path.what}{mark}"
        )
    ratio = found[held.control] / budget["paths"]["leapfrog"][held.key]
    text.append(f"control, a leapfrog with {held.control}: {ratio:.3f}")
    return text


def failures(held: Guard, budget: Mapping[str, Any], found: Mapping[str, float]) -> list[str]:
    """Paths above their limit; and the control, when it is not above it."""
    text = []
    for name in PATHS:
        ratio = found[name] / budget["paths"][name][held.key]
        if not ratio <= held.limit:
            text.append(
                f"[{name}] expected {held.key} within {held.limit:g} of the budget, got {ratio:.3f}"
            )
    ratio = found[held.control] / budget["paths"]["leapfrog"][held.key]
    if not ratio > held.limit:
        text.append(
            f"[control] expected a leapfrog with {held.control} above {held.limit:g}, "
            f"got {ratio:.3f}"
        )
    return text


def write(compiler: str) -> None:
    """Measure, and write the budget."""
    counts, operations = count(list(PATHS)), time_against_loop(list(PATHS))
    paths = {
        name: {"instructions": round(counts[name]), "operations": round(operations[name])}
        for name in PATHS
    }
    rows = [f'  "{name}": {json.dumps(values)}' for name, values in paths.items()]
    text = f'{{\n "compiler": "{compiler}",\n "isa": "{ISA}",\n "processor": '
    text += f'"{machine.processor()}",\n "paths": {{\n' + ",\n".join(rows) + "\n }\n}\n"
    FILE.write_text(text)


def main(arguments: list[str] | None = None) -> int:
    """Hold every path to the budget; returns 1 when one is above its limit."""
    parser = argparse.ArgumentParser(prog="python -m tools.instructions", description=__doc__)
    parser.add_argument("--ratios", action="store_true", help="time against the FMA loop")
    parser.add_argument("--write", action="store_true", help="write the budget anew")
    options = parser.parse_args(arguments)
    if ISA not in _core.available_isas():
        print(f"not run: this processor has no {ISA}")
        return 0
    compiler = str(_core.build_info()["compiler"])
    if options.write:
        write(compiler)
    budget = json.loads(FILE.read_text())
    counting = shutil.which("valgrind") is not None and not options.ratios
    if not counting and not options.ratios:
        print("instructions are not counted: there is no valgrind; ratios to an FMA loop instead")
    held = guard(compiler, budget, counting=counting)
    if held.limit == OTHER_COMPILER:
        print(f"the budget is that of compiler {budget['compiler']}, this is {compiler}")
    names = [*PATHS, held.control]
    found = count(names) if counting else time_against_loop(names)
    wrong = failures(held, budget, found)
    print("\n".join([*table(held, budget, found), *(f"FAILED {line}" for line in wrong)]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
