"""Collect the readings: every entry in its own process, taking turns A B A B.

A shared machine drifts by more than the differences of interest. So each round times every entry
once, next to each other, the ratio is formed within the round, and what is quoted is the median of
the rounds with their range.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import first_draw, machine
from benchmarks.harness.framework import OURS, Framework
from benchmarks.harness.workload import save

Say = Callable[[str], None]


@dataclass
class Reading:
    """One entry on one workload; `rounds` are seconds per unit, the median of each round."""

    entry: str
    workload: str
    rounds: list[float] = field(default_factory=list)
    build_seconds: float | None = None
    form: str = ""
    errors: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    failure: str = ""
    left_out: str = ""

    @property
    def median(self) -> float:
        """Seconds per unit."""
        return statistics.median(self.rounds)


@dataclass
class Comparison:
    """All entries on one workload, and the FMA peak (flop/s, one core) of each round."""

    workload: Any
    threads: int
    readings: dict[str, Reading]
    peaks: list[float] = field(default_factory=list)


class Process:
    """A worker and the pipe to it."""

    def __init__(self, framework: Framework, threads: int) -> None:
        self.name = framework.name
        self._folder = tempfile.TemporaryDirectory()
        described = json.dumps(dataclasses.asdict(framework))
        command = [sys.executable, "-m", "benchmarks.harness.worker", described, str(threads)]
        environment = os.environ | machine.thread_environment(threads) | framework.env
        self._child = subprocess.Popen(
            command,
            cwd=machine.ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._child.pid

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send one request and wait for its reply."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            print(json.dumps({"do": do, **arguments}), file=self._child.stdin, flush=True)
            line = self._child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            return {"error": f"the process of {self.name} ended with {self._child.wait()}"}
        reply: dict[str, Any] = json.loads(line)
        return reply

    def prepare(self, workload: Any) -> dict[str, Any]:
        """Hand over a workload, with its reference where it has been computed."""
        path = Path(self._folder.name) / "workload"
        save(workload, path)
        return self.ask("prepare", file=str(path))

    def close(self) -> None:
        """End the child."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        try:
            self._child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()
        self._folder.cleanup()


def compare(
    workloads: Iterable[Any],
    entries: Sequence[Framework],
    rounds: int,
    seconds: float,
    say: Say,
    most_threads: int | None = None,
    processor: bool = False,
) -> Iterator[Comparison]:
    """Measure the workloads, in order; each is yielded when its rounds are done.

    Parameters
    ----------
    workloads : iterable of Workload
        What is computed.
    entries : sequence of Framework
        Who computes it; an entry that has no such workload is left out.
    rounds : int
        Turns per workload.
    seconds : float
        Of timing per entry and round (at least one run).
    say : callable
        Told what happens, one line at a time.
    most_threads : int, optional
        For every entry; by default what the workload says, and no more than there are cores.
    processor : bool, default False
        Take processor time instead of the wall clock: on one thread the two are the same on an
        idle machine, and the first is right on a busy one.

    Yields
    ------
    Comparison
    """
    available = min(len(machine.cores()), most_threads or len(machine.cores()))
    processes: dict[tuple[str, int], Process] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for workload in workloads:
                name = workload.name
                threads = min(workload.threads, available)
                comparison = Comparison(workload, threads, {})
                say(f"{name}: reference")
                machine.limit_blas(1)
                workload.compute_expected()
                if workload.kind == "first_draw":
                    _processes(comparison, entries, rounds, Path(folder), say)
                    yield comparison
                    continue
                running = {}
                for framework in entries:
                    entry = framework.name
                    if (entry, threads) not in processes:
                        processes[entry, threads] = Process(framework, threads)
                    process = processes[entry, threads]
                    reading = _prepare(process, workload)
                    if reading is None:
                        continue
                    comparison.readings[entry] = reading
                    if reading.left_out:
                        say(f"{name}: {entry} left out: {reading.left_out}")
                        continue
                    say(f"{name}: {entry} {reading.failure or 'agrees with the reference'}")
                    if not reading.failure:
                        running[entry] = process
                for number in range(rounds):
                    say(f"{name}: round {number + 1} of {rounds}")
                    _round(comparison, running, seconds, processor)
                yield comparison
        finally:
            for process in processes.values():
                process.close()


def _prepare(process: Process, workload: Any) -> Reading | None:
    reply = process.prepare(workload)
    if "missing" in reply:
        return None
    reading = Reading(
        process.name,
        workload.name,
        failure=reply.get("error", ""),
        left_out=reply.get("left_out", ""),
    )
    if not reading.failure and not reading.left_out:
        reading.build_seconds = reply["build_and_first_call_s"]
        reading.form, reading.errors = reply["form"], reply["errors"]
        reading.versions = reply["versions"]
    return reading


def _round(
    comparison: Comparison, running: dict[str, Process], seconds: float, processor: bool
) -> None:
    """One turn for each entry; a failed one is dropped."""
    workload = comparison.workload
    for entry in list(running):
        reply = running[entry].ask("time", seconds=seconds, processor=processor)
        if "error" in reply:
            comparison.readings[entry].failure = reply["error"]
            del running[entry]
            continue
        median = statistics.median(reply["seconds"])
        comparison.readings[entry].rounds.append(median / workload.units)
    if OURS in running and workload.flops:
        comparison.peaks.append(running[OURS].ask("peak", seconds=0.1)["flops"])


def _processes(
    comparison: Comparison, entries: Sequence[Framework], rounds: int, folder: Path, say: Say
) -> None:
    """Measure first-draw: every run is a process of its own."""
    workload = comparison.workload
    spec = folder / "first_draw.npz"
    first_draw.write_spec(workload, spec)
    running = [entry for entry in entries if entry.fresh]
    rounds = min(rounds, workload.most_rounds or rounds)
    for number in range(rounds + 1):  # round 0 checks, leaves bytecode and files in memory
        say(f"{workload.name}: round {number} of {rounds}")
        for entry in list(running):
            reading = comparison.readings.setdefault(entry.name, Reading(entry.name, workload.name))
            try:
                seconds, answer = first_draw.time_process(entry, spec, comparison.threads)
                reading.errors = workload.check(answer)
            except (AssertionError, RuntimeError) as error:
                reading.failure = str(error)
                running.remove(entry)
                continue
            if number > 0:
                reading.rounds.append(seconds)
