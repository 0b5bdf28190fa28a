"""Runs that go on on other threads, with another release, and on another instruction set."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import ribbit as rb
from tests.durability.kills import forked, loaded, saved, status_of
from tests.durability.lines import difference, quick, result
from tests.support.paths import ROOT

_OTHER = """
import sys
from tests.durability.lines import quick, result
try:
    result(sys.argv[1], quick(sys.argv[2]))
except ValueError as error:
    print(error)
"""


def go_on_elsewhere(name: str, folder: Path, seed: int, kernels: str) -> None:
    """Kill a line, refuse it with other `kernels`, and let another release end it.

    Raises
    ------
    AssertionError
        When it is not refused by name, or ends with other bits than a run left alone.
    """
    import zarr  # noqa: F401  (once, before the forks)

    out, store, rng = folder / "out.npz", folder / "run", random.Random(f"else {name} {seed}")
    begin = time.monotonic()
    assert status_of(forked(lambda: saved(out, result(name)))) == 0, name
    seconds, alone = time.monotonic() - begin, loaded(out)
    begun = forked(lambda: _released(name, store, out, "0.0.9", 1))
    while not (store / "checkpoint").exists():
        time.sleep(1e-3)
    time.sleep(rng.uniform(0.0, 0.8) * seconds)
    os.kill(begun, signal.SIGKILL)
    status_of(begun)
    told = subprocess.run(
        [sys.executable, "-c", _OTHER, name, str(store)],
        cwd=ROOT,
        env={**os.environ, "RIBBIT_ISA": kernels},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "RIBBIT_ISA=" in told, f"{name}: goes on with {kernels}: {told}"
    assert status_of(forked(lambda: _released(name, store, out, "9.9", 2))) == 0, name
    found = difference(alone, loaded(out))
    assert found == "", f"{name}: other bits with another release: {found}"


def _released(name: str, store: Path, out: Path, version: str, threads: int) -> None:
    import ribbit.samplers.run.run as run

    run.version = lambda: version
    rb.set_num_threads(threads)
    saved(out, result(name, quick(store)))
