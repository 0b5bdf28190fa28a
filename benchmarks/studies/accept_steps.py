"""The steps of `benchmarks.accept`, in the order of what they are worth.

A step is a function of (rehearse, folder) that yields parts of its numbers; it raises where
something is wrong. Call 1 asks whether the kernels are right, call 2 how fast they are.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import machine
from benchmarks.harness.device_events import call_seconds, event_times, wait
from benchmarks.studies import accept_answers, accept_kernels, accept_toys, gpu, gpu_rows

__all__ = ["STEPS", "Skipped", "Step"]

Numbers = Iterator[dict[str, Any]]

_TESTS = {  # parts of ``pytest -m gpu``; the last takes what no other has
    "trajectories": ("trajectory", "precision", "input"),
    "steps": ("steps", "step_samplers", "step_failures"),
    "samplers": ("hmc", "nuts", "mclmc"),
    "predictions": ("predictions", "dropout"),
    "variational": ("variational", "estimators"),
}
_DEVICE = "tests/backends/cuda"
_LONG = 2.0  # seconds from which one call is enough, timed by the host's clock
_CHAINS = (1, 8, 64, 256, 1_024)


class Skipped(Exception):
    """A step that cannot run here, and why."""


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes
    ----------
    name, what : str
    call : int
    limit : float
        Seconds.
    run : callable
        rehearse, folder -> parts of its numbers.
    """

    name: str
    what: str
    call: int
    limit: float
    run: Callable[[bool, Path], Numbers]


def library(rehearse: bool) -> Any:
    """CuPy, or the arrays of the device that is made of the CPU."""
    if rehearse:
        from tests.support.cuda import cpu_device

        return cpu_device.register()
    import cupy

    return cupy


def versions(rehearse: bool, folder: Path) -> Numbers:
    """Yield what is installed, and what the device is."""
    yield gpu.versions()
    yield {"tools": {tool: shutil.which(tool) for tool in ("nvcc", "compute-sanitizer", "ncu")}}
    if rehearse:
        return
    yield {"device": gpu.device_facts()}
    from ribbit._arrays.cupy import CupyDevice, nvrtc_version

    yield {"nvrtc": nvrtc_version(), "tensor cores": CupyDevice().tensor_cores}


def streamed(command: list[str]) -> tuple[int, str]:
    """Run a command and print what it prints, at once; return its exit status and all of it."""
    lines = []
    with subprocess.Popen(
        command, cwd=machine.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    return process.returncode, "".join(lines)


def answer(name: str) -> Callable[[bool, Path], Numbers]:
    """One answer against the CPU and, where they were carried, bits of the stand-in."""

    def run(rehearse: bool, folder: Path) -> Numbers:
        begun = time.perf_counter()
        found = accept_answers.answers(name, library(rehearse))
        yield {"seconds with compiling": time.perf_counter() - begun}
        carried, path = None, folder / "carried.npz"
        if path.exists():
            with np.load(path) as file:
                carried = {key: file[f"{name}/{key}"] for key in found if f"{name}/{key}" in file}
        yield accept_answers.compare(name, found, carried or None)

    return run


def device_tests(part: str) -> Callable[[bool, Path], Numbers]:
    """Return a part of ``pytest -m gpu``; rehearsed, its files are looked for."""

    def run(rehearse: bool, folder: Path) -> Numbers:
        named = [f"{_DEVICE}/test_{n}.py" for names in _TESTS.values() for n in names]
        if part in _TESTS:
            what = [f"{_DEVICE}/test_{name}.py" for name in _TESTS[part]]
        else:
            what = ["tests", *(f"--ignore={path}" for path in named)]
        if rehearse:
            missing = [
                p for p in what if not p.startswith("--") and not (machine.ROOT / p).exists()
            ]
            assert not missing, f"no {missing}"
            yield {"files": len(what)}
            return
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu"]
        if importlib.util.find_spec("xdist"):
            command += ["-n", str(min(8, os.cpu_count() or 1))]
        status, output = streamed([*command, "-rfEs", *what])
        counts = {
            word: int(count)
            for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", output)
        }
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        yield {"counts": counts, "failed": failed[:40]}
        assert status == 0, f"exit status {status}, {len(failed)} failed"
        assert counts.get("passed"), "no test passed"

    return run


def sanitizer(tool: str) -> Callable[[bool, Path], Numbers]:
    """Return the answers of small networks under one tool of compute-sanitizer."""

    def run(rehearse: bool, folder: Path) -> Numbers:
        program = shutil.which("compute-sanitizer")
        if rehearse:
            yield from answer("weights")(True, folder)
            return
        if program is None:
            raise Skipped("no compute-sanitizer on the PATH")
        for name in ("weights", "small", "leapfrog"):
            command = [program, "--tool", tool, "--error-exitcode", "9", sys.executable, "-m"]
            command += ["benchmarks.studies.accept_child", f"answer-{name}", str(folder)]
            status, _ = streamed(command)
            yield {name: status}
            assert status == 0, f"{tool}: exit status {status} for {name}"

    return run


def constants(rehearse: bool, folder: Path) -> Numbers:
    """Yield what the model of `benchmarks.paper` assumes: copies, products, costs of a launch."""
    if not rehearse:
        yield gpu.ceilings()
    xp = library(rehearse)
    row, numbers = gpu_rows.ROWS["leapfrog-update"], (2 if rehearse else 2_000)
    call = row.prepare(xp, True)
    call(0)
    wait(xp)
    begun = time.perf_counter()
    for i in range(numbers):
        call(i)
    host = time.perf_counter() - begun
    wait(xp)
    yield {
        "host_seconds_of_a_launch": host / numbers,
        "seconds_of_a_launch": (time.perf_counter() - begun) / numbers,
    }
    from ribbit._arrays.namespace import device_of

    replay = device_of(xp).record(lambda: [call(i) for i in range(100)])  # type: ignore[union-attr]
    replay()
    wait(xp)
    begun = time.perf_counter()
    replay()
    wait(xp)
    yield {"seconds_of_a_node": (time.perf_counter() - begun) / 100}


def timed(xp: Any, row: gpu_rows.Row, *, small: bool, repeats: int) -> dict[str, Any]:
    """Seconds of one unit: between the device's events, and of a call alone with its wait."""
    call = row.prepare(xp, small)
    if not small:
        call(0)  # compiles
    wait(xp)
    alone = call_seconds(xp, lambda i: call(i % row.inputs), 1 if small else 5)
    times = [alone]
    if hasattr(xp, "cuda") and alone < _LONG:
        # as many as fit into two seconds, at least three
        often = max(3, min(repeats, int(2.0 / max(alone, 1e-4))))
        times = event_times(xp, call, row.inputs, often)
    return {
        "seconds": statistics.median(times) / row.units,
        "call_seconds": alone,
        "repeats": len(times),
    }


def workload(name: str) -> Callable[[bool, Path], Numbers]:
    """Return a row of the GPU table, or one beside it: its time, then that of each kernel."""

    def run(rehearse: bool, folder: Path) -> Numbers:
        row = _TIMED[name]
        yield {"target": row.target}
        xp = library(rehearse)
        found = timed(xp, row, small=rehearse, repeats=15)
        yield {"workload": name, **found}
        if not rehearse and importlib.util.find_spec("torch") is not None:
            call = row.prepare(xp, False)
            try:
                yield from accept_kernels.kernel_times(lambda: call(0), lambda: wait(xp))
            except Exception as error:  # a profiler's: the time of the row stays
                yield {"kernels": f"{type(error).__name__}: {error}"[:300]}

    return run


def chains(rehearse: bool, folder: Path) -> Numbers:
    """Trajectories of 8-50-50-1 by the number of chains."""
    for count in _CHAINS[:2] if rehearse else _CHAINS:
        row = gpu_rows.Row(str(count), "", gpu_rows.trajectories(count, 20), units=20)
        found = timed(library(rehearse), row, small=rehearse, repeats=10)
        yield {str(count): found["seconds"]}


def first_gradient(rehearse: bool, folder: Path) -> Numbers:
    """Seconds from nothing to a gradient; a second process finds what the first has compiled."""
    code = (
        "import time; t = time.perf_counter()\n"
        "from benchmarks.studies.accept_steps import library\n"
        f"xp = library({rehearse})\n"
        "from benchmarks.studies.accept_answers import answers\n"
        "answers('small', xp); print('SECONDS', time.perf_counter() - t)"
    )
    cache = tempfile.mkdtemp()
    for which in ("cold", "warm")[: 1 if rehearse else 2]:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=machine.ROOT,
            env=os.environ | {"CUPY_CACHE_DIR": cache, "XDG_CACHE_HOME": cache},
            capture_output=True,
            text=True,
            check=False,
        )
        match = re.search(r"SECONDS (\S+)", done.stdout)
        assert match, done.stderr[-1_000:]
        yield {which: float(match[1])}
    shutil.rmtree(cache, ignore_errors=True)


def rival(name: str) -> Callable[[bool, Path], Numbers]:
    """Return PyTorch's form of a row: compiled, as a graph where that can be captured."""

    def run(rehearse: bool, folder: Path) -> Numbers:
        try:
            import torch
        except ImportError:
            raise Skipped("no torch") from None
        if rehearse:
            yield {"torch": torch.__version__}
            return
        module: Any = importlib.import_module("benchmarks.rivals.torch_gpu")
        call = module.prepare(name)
        if call is None:
            raise Skipped("no rival for this row")
        seconds = statistics.median(module.times(call, 10)) / gpu_rows.ROWS[name].units
        yield {"rival": name, "seconds": seconds}

    return run


def profile(rehearse: bool, folder: Path) -> Numbers:
    """First kernels of three rows under Nsight Compute: instructions, bytes, times."""
    program = shutil.which("ncu")
    if rehearse:
        yield from workload("hmc-58368-rows")(True, folder)
        return
    if program is None:
        raise Skipped("no ncu on the PATH")
    metrics = "smsp__inst_executed.sum,dram__bytes.sum,gpu__time_duration.sum"
    metrics += ",lts__t_bytes.sum,sm__warps_active.avg.pct_of_peak_sustained_active"
    for name in ("hmc-58368-rows", "bbb-sampling", "hmc-1-chain"):
        # ribbit's kernels alone; the card's clocks stay as they are, and the row ends there
        command = [program, "--csv", "--clock-control", "none", "--kernel-name", "regex:^run"]
        command += ["--kill", "yes", "--metrics", metrics, "--launch-count", "6", sys.executable]
        command += ["-m", "benchmarks.studies.accept_child", f"row-{name}", str(folder)]
        done = subprocess.run(
            command, cwd=machine.ROOT, capture_output=True, text=True, check=False, timeout=60
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
        yield {name: lines[:40]}
        assert lines, done.stderr[-500:]


_ANSWERS = tuple(accept_answers.ANSWERS)
_PARTS = (*_TESTS, "others")
_TIMED = gpu_rows.ROWS | {name: gpu_rows.OTHERS[name] for name in ("hmc-wide", "sgld")}
STEPS: tuple[Step, ...] = (
    Step("versions", "what is there", 1, 60, versions),
    *(
        Step(f"answer-{name}", "against the CPU, and its bits", 1, 90, answer(name))
        for name in _ANSWERS
    ),
    *(
        Step(f"toy-{name}", what, 1, 45, accept_toys.toy(name))
        for name, what in accept_toys.TOYS.items()
    ),
    *(Step(f"tests-{p}", "a part of pytest -m gpu", 1, 150, device_tests(p)) for p in _PARTS),
    *(
        Step(f"sanitizer-{tool}", "small networks under it", 1, 60, sanitizer(tool))
        for tool in ("memcheck", "racecheck", "synccheck", "initcheck")
    ),
    Step("constants", "what the model assumes", 2, 60, constants),
    *(Step(f"row-{name}", "time of a unit", 2, 150, workload(name)) for name in _TIMED),
    Step("chains", "trajectories of 1 .. 1,024 chains", 2, 60, chains),
    Step("first-gradient", "cold and warm", 2, 90, first_gradient),
    Step("profile", "kernels of three rows under ncu", 2, 90, profile),
    *(Step(f"rival-{name}", "torch, compiled and as a graph", 2, 90, rival(name))
      for name in gpu_rows.ROWS),
)  # fmt: skip
