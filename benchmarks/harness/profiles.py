"""Where the time of a running process goes, by symbol: ``perf record`` on its process id."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

PERIOD = 997  # samples per second


def available() -> str:
    """Why there is no profile on this machine; "" where ``perf`` works."""
    if shutil.which("perf") is None:
        return "perf is not installed"
    with tempfile.TemporaryDirectory() as folder:
        command = ["perf", "record", "-q", "-o", f"{folder}/data", "true"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    return f"perf: {(done.stderr.strip() or 'it failed').splitlines()[0]}"


def profile(
    pid: int, seconds: float, work: Callable[[], object]
) -> tuple[list[tuple[str, float]], float]:
    """Shares of the samples by symbol, largest first, and how many threads ran on average.

    Parameters
    ----------
    pid : int
        The process that is watched.
    seconds : float
        For how long.
    work : callable
        Keeps the process busy for a moment; called until the watch has ended.

    Returns
    -------
    costs : list of (str, float)
        Short name, share of the process's samples.
    running : float
        Samples over those of one thread that never sleeps.
    """
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "data")
        record = ["perf", "record", "-q", "-F", str(PERIOD), "-p", str(pid), "-o", data]
        watch = subprocess.Popen(
            [*record, "sleep", str(seconds)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while watch.poll() is None:
            work()
        report = ["perf", "report", "-i", data, "--stdio", "--no-children", "-t", ";"]
        report += ["--sort", "dso,symbol", "-F", "sample,dso,symbol"]
        done = subprocess.run(report, capture_output=True, text=True, check=True)
    costs, samples = shares(done.stdout)
    return costs, samples / (PERIOD * seconds)


def shares(report: str) -> tuple[list[tuple[str, float]], int]:
    """Read ``perf report -F sample,dso,symbol -t ;``: equal names are summed; and all samples."""
    found: dict[str, int] = {}
    for line in report.splitlines():
        cells = [cell.strip() for cell in line.split(";")]
        if len(cells) >= 3 and cells[0].isdigit():
            name = short(cells[1], cells[2])
            found[name] = found.get(name, 0) + int(cells[0])
    total = sum(found.values())
    ordered = sorted(found.items(), key=lambda pair: -pair[1])
    return [(name, count / total) for name, count in ordered], total


def short(library: str, symbol: str) -> str:
    """Name a symbol as one would say it: no namespaces, types or arguments.

    What is not Ribbit's goes by its library.
    """
    if "_core" not in library:
        return "the kernel" if symbol.startswith("[k]") else library.split(".")[0]
    if "pybind11" in symbol:
        return "arguments from Python"
    name = re.sub(r"^\[.\]\s*", "", symbol).replace("(anonymous namespace)::", "")
    name = re.sub(r"^.*?\bribbit::cpu::", "", name)
    name = re.sub(r"\.(constprop|isra|part|cold|_omp_fn)(\.\d+)*", "", name)
    while "<" in name:  # templates, innermost first
        name, changed = re.subn(r"<[^<>]*>", "", name)
        if not changed:
            break
    return name.split("(")[0].strip() or symbol
