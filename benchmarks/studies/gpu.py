"""Checks and times the device's kernels and writes the evidence: ``python -m benchmarks.gpu``.

Stages, each of which can be run alone with ``--stage``: `tests` (``pytest -m gpu``), `ceilings`
(copy bandwidth and the rate of a large matrix product, measured), `rows` (the workloads of the
table, with device events, medians over rotated inputs, beside the rivals that are installed at
equal precision). What was found is printed as one table and written to
``benchmarks/evidence/gpu/<date>-<device>.json`` with the commit, a digest of the sources that
decide what the device runs, versions, tests passed and failed. Under 8 minutes on an H200.

``--rehearse`` runs the rows at small sizes on a device made of the CPU, to see that they run; it
times nothing worth writing down and writes nothing.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.util
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from benchmarks.harness.device_events import event_times
from benchmarks.studies import gpu_rows
from benchmarks.studies.gpu_digest import digest
from ribbit._cli.versions import device_status

EVIDENCE = machine.ROOT / "benchmarks" / "evidence" / "gpu"


def versions() -> dict[str, str]:
    """Versions of everything that matters here."""
    found = {"python": platform.python_version()}
    for name in ("ribbit", "cupy", "numpy", "torch", "jax"):
        try:
            found[name] = __import__(name).__version__
        except ImportError:
            continue
    return found


def no_device() -> str:
    """Return why there is no device to run on, "" when there is one."""
    problem = device_status()
    if problem:
        return problem
    try:
        import cupy
    except ImportError as error:
        return str(error)
    return "" if cupy.is_available() else "CuPy finds none"


def device_facts() -> dict[str, Any]:
    """Name, memory, driver and runtime of the current device."""
    import cupy

    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(cupy.cuda.Device().id)
    return {
        "name": properties["name"].decode(),
        "multiprocessors": properties["multiProcessorCount"],
        "memory_gb": round(properties["totalGlobalMem"] / 1e9, 1),
        "driver": runtime.driverGetVersion(),
        "runtime": runtime.runtimeGetVersion(),
    }


def run_tests() -> dict[str, Any]:
    """Run the tests that need a device; return how many passed and which did not.

    Raises
    ------
    SystemExit
        When they did not run: pytest ended otherwise than with passed or failed tests, none
        passed, or some were skipped for want of a device. No evidence is written then.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests"]
    if importlib.util.find_spec("xdist"):
        command += ["-n", str(min(12, os.cpu_count() or 1))]
    done = subprocess.run(command, cwd=machine.ROOT, capture_output=True, text=True, check=False)
    print(done.stdout[-2000:])
    print(done.stderr[-2000:], file=sys.stderr)
    counts = {
        word: int(count)
        for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)
    }
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    lost = re.findall(r"^SKIPPED .*(?:no CUDA device|could not import 'cupy').*", done.stdout, re.M)
    if done.returncode not in (0, 1) or not counts.get("passed") or lost:
        raise SystemExit(
            f"[benchmarks.gpu] expected the tests to run on a device, got exit status "
            f"{done.returncode}, {counts.get('passed', 0)} passed, {len(lost)} skipped for want of "
            "a device: nothing written"
        )
    return {"counts": counts, "failed": failed, "returncode": done.returncode}


def ceilings() -> dict[str, float]:
    """Bytes per second of a device copy (read plus written) and flop/s of large products.

    CuPy's matrix product is cuBLAS's, in float32 without TF32 unless it is asked for.
    """
    import cupy
    from cupy._core import _routines_linalg as products

    size = 1 << 28
    a, b = (cupy.ones(size, dtype=cupy.float32) for _ in range(2))
    copy = statistics.median(event_times(cupy, lambda _: cupy.copyto(b, a), 1, 20))
    found = {"copy_bytes_per_s": 8.0 * size / copy}
    for name, dtype, kind in (
        ("float32", "float32", products.COMPUTE_TYPE_DEFAULT),
        ("float64", "float64", products.COMPUTE_TYPE_DEFAULT),
        ("tf32", "float32", products.COMPUTE_TYPE_TF32),
    ):
        n = 8192
        x, y = (cupy.random.standard_normal((n, n)).astype(dtype) for _ in range(2))
        out = cupy.empty((n, n), dtype=dtype)
        products.set_compute_type(x.dtype, kind)
        multiply = functools.partial(cupy.matmul, x, y, out=out)
        times = event_times(cupy, lambda _, call=multiply: call(), 1, 10)
        products.set_compute_type(x.dtype, products.COMPUTE_TYPE_DEFAULT)
        seconds = statistics.median(times)
        found[f"matmul_{name}_flop_per_s"] = 2.0 * n**3 / seconds
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Lines of a Markdown table."""
    head = "| workload | ribbit | floor | share of it | best rival | ratio | target |"
    lines = [head, "|" + "---|" * 7]
    for row in rows:
        times = {k: v for k, v in row["rivals"].items() if isinstance(v, float)}
        best = min(times, key=lambda name: times[name]) if times else None
        ratio = "" if best is None else f"{times[best] / row['seconds']:.2f}x"
        name = "" if best is None else f"{best} {1e3 * times[best]:.3f} ms"
        floor, share = row.get("floor"), ""
        if floor is not None:
            share = f"{floor / row['seconds']:.0%}"
        lines.append(
            f"| {row['name']} | {1e3 * row['seconds']:.3f} ms | "
            f"{'' if floor is None else f'{1e3 * floor:.3f} ms'} | {share} | {name} | {ratio} | "
            f"{row['target']} |"
        )
    return "\n".join(lines)


def write(evidence: dict[str, Any]) -> Path:
    """Write what is known so far; return where."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", evidence["device"]["name"]).strip("-").lower()
    EVIDENCE.mkdir(parents=True, exist_ok=True)
    path = EVIDENCE / f"{evidence['date'][:10]}-{name}.json"
    path.write_text(json.dumps(evidence, indent=1) + "\n")
    return path


def main(arguments: list[str] | None = None) -> int:
    """Run the stages that were asked for; return 0 when every test passed."""
    summary = __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=summary)
    parser.add_argument("--stage", choices=("tests", "ceilings", "rows"), action="append")
    parser.add_argument("--rows", nargs="+", choices=tuple(gpu_rows.ROWS), help="some rows only")
    parser.add_argument("--rehearse", action="store_true", help="small, on the CPU, nothing kept")
    given = parser.parse_args(arguments)
    if given.rehearse:
        for row in gpu_rows.rehearse(given.rows):
            print(f"{row['name']}: ran")
        return 0
    problem = no_device()
    if problem:
        print(f"no CUDA device ({problem}): --rehearse runs the rows on the CPU", file=sys.stderr)
        return 1
    stages = given.stage or ["tests", "ceilings", "rows"]
    git = ["git", "-C", str(machine.ROOT)]
    commit = subprocess.run(
        [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    evidence: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "digest": digest(),
        "device": device_facts(),
        "versions": versions(),
    }
    if "tests" in stages:
        evidence["tests"] = run_tests()
    if "ceilings" in stages:
        evidence["ceilings"] = ceilings()
        print({key: f"{value:.3g}" for key, value in evidence["ceilings"].items()})
    path = write(evidence)
    if "rows" in stages:
        for rows in gpu_rows.measure(given.rows, evidence.get("ceilings", {})):
            evidence["rows"] = rows
            write(evidence)
        print(table(evidence["rows"]))
    print(f"written: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    return int(evidence.get("tests", {}).get("returncode", 0) != 0)
