"""Time to convergence: ``python -m benchmarks.effective --problem P --entry E --seeds 0-9``.

Measures gradients and seconds from a cold start to convergence in function space, for Ribbit's
samplers and other libraries with default settings. On problems whose chains stay in their modes it
records the test NLL against both. Each run has its own process. Runs that are already in
benchmarks/results/effective.jsonl are skipped, unless ``--again`` is given: ``--again loaded``
repeats only runs during which other processes used the machine, ``--again old`` only runs of
earlier sources of Ribbit. ``--write`` makes docs/developer/effective.md and its picture from the
file. ``--quick`` is a short check that leaves no files.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import machine
from benchmarks.harness.stopping import until_stopped
from benchmarks.studies import effective_lines as results
from benchmarks.studies import effective_page
from benchmarks.studies.effective_child import THREADS
from benchmarks.studies.effective_lines import Line
from benchmarks.workloads.digits import MissingDataError
from benchmarks.workloads.effective_entries import ENTRIES, Entry
from benchmarks.workloads.effective_problems import PROBLEMS, Problem

GRACE = 180.0  # seconds of compilation and judging beyond a run's budget, per budget at least


def run(entry: Entry, problem: Problem, seed: int, gradients: float, seconds: float) -> Line:
    """Run one child; a failure is a line too."""
    line = results.header(problem.name, entry.name, seed)
    line["budget"] = {"gradients": gradients, "seconds": seconds}
    threads = min(THREADS, len(machine.cores()))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, "-m", "benchmarks.studies.effective_child", entry.name]
        command += [problem.name, str(seed), repr(gradients), repr(seconds), str(out)]
        begun, message = time.perf_counter(), ""
        try:
            done = subprocess.run(
                command,
                cwd=machine.ROOT,
                env=os.environ | machine.thread_environment(threads),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                timeout=GRACE + 3.0 * seconds,
            )
            if done.returncode != 0:
                message = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
        except subprocess.TimeoutExpired:
            message = f"no end after {time.perf_counter() - begun:.0f} s"
        line |= json.loads(out.read_text()) if out.is_file() else {"curve": []}
    if message:
        line |= {"ended": "failed", "message": message[:300]}
    line["load"] = [line["load"][0], results.load()]
    return line


def say(line: Line) -> str:
    """One line for the log."""
    found = results.outcome(line)
    last = (line["curve"] or [[0, 0, 0, 0, None, None]])[-1]
    text = f"{line['problem']}, {line['entry']}, seed {line['seed']}: {line['ended']}"
    if line.get("message"):
        return f"{text}: {line['message']}"
    where = f"E {last[3]:.0f}, R-hat {last[4]}, NLL {last[5]}, load {line['load'][1]}"
    if found:
        return f"{text} at {found[1]:,.0f} gradients, {found[2]:.2f} s ({where})"
    return f"{text} after {last[1]:,.0f} gradients, {last[2]:.2f} s ({where})"


def seeds(text: str) -> list[int]:
    """Read "0-9" or "3"."""
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def wanted(line: Line | None, again: str | None) -> bool:
    """Whether a run is to be made, given the line that is there."""
    if line is None or again == "all":
        return True
    if again == "loaded":
        return results.loaded(line)
    return again == "old" and line["entry"].startswith("ribbit") and line["code"] != results.code()


def measure(options: argparse.Namespace, notes: list[str]) -> None:
    """Run what is wanted, appending line after line, and to `notes` what was left out."""
    there = results.read(options.results)
    for name in options.problem:
        problem = PROBLEMS[name]
        try:
            _ = problem.data
        except MissingDataError as error:
            notes.append(f"Left out: {name}, {error}")
            continue
        for seed in options.seeds:
            for entry in (ENTRIES[e] for e in options.entry):
                if not entry.installed():
                    notes.append(f"Left out: {entry.name}, not installed")
                    continue
                if not entry.on(problem):
                    continue
                if not wanted(there.get((name, entry.name, seed)), options.again):
                    continue
                line = run(
                    entry,
                    problem,
                    seed,
                    options.budget_gradients or problem.gradients,
                    options.budget_seconds or problem.seconds,
                )
                if line["ended"] == "failed" and "NotStatedError" in line["message"]:
                    notes.append(f"Left out: {name}, {line['message']}")
                    continue
                results.append(line, options.results)
                print(say(line), file=sys.stderr, flush=True)


def quick(options: argparse.Namespace) -> int:
    """Two short runs of Ribbit on the example, and their page; 1 when one of them failed."""
    with tempfile.TemporaryDirectory() as folder:
        options.results = Path(folder) / "effective.jsonl"
        options.problem, options.seeds, options.again = ["bnn-normal"], [0], None
        options.entry = [name for name in ("ribbit HMC", "ribbit MCLMC") if name in ENTRIES]
        options.budget_gradients, options.budget_seconds = 1e5, 30.0
        notes: list[str] = []
        measure(options, notes)
        lines = results.read(options.results)
        page = effective_page.page(list(lines.values()), "--quick")
        failed = [line for line in lines.values() if line["ended"] == "failed"]
        if options.write:
            options.write.write_text(page)
        print(page)
        return 1 if failed or len(lines) < len(options.entry) else 0


def main(arguments: list[str] | None = None) -> int:
    """Run, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.effective", description=__doc__)
    parser.add_argument("--problem", nargs="+", choices=list(PROBLEMS), metavar="P", default=[])
    parser.add_argument(
        "--entry", nargs="+", choices=list(ENTRIES), metavar="E", default=list(ENTRIES)
    )
    parser.add_argument("--seeds", type=seeds, default=seeds("0-9"), help="0-9, or 3")
    parser.add_argument("--budget-seconds", type=float, metavar="S", help="of a run")
    parser.add_argument("--budget-gradients", type=float, metavar="G", help="of a run")
    parser.add_argument("--again", nargs="?", choices=["all", "loaded", "old"], const="all")
    parser.add_argument("--results", type=Path, default=results.RESULTS, metavar="PATH")
    parser.add_argument("--write", nargs="?", type=Path, const=effective_page.DOCUMENT)
    parser.add_argument("--list", action="store_true", help="name problems and entries")
    parser.add_argument("--quick", action="store_true", help="a check that leaves nothing behind")
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    if options.list:
        print("\n".join([*PROBLEMS, "", *ENTRIES]))
        return 0
    if options.quick:
        return quick(options)
    notes: list[str] = []
    with until_stopped() as stop:
        measure(options, notes)
    if options.write:
        lines = list(results.read(options.results).values())
        command = shlex.join(["python", "-m", "benchmarks.effective", *given])
        effective_page.write(options.write, lines, command)
    print("\n".join(dict.fromkeys(notes)))
    return stop.status
