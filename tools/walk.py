"""Counts the Python functions of Ribbit that a public call enters, and their files.

``python -m tools.walk`` prints a table, with ``--json`` the same figures as JSON. It counts the
second of two equal calls (`benchmarks.ours.small_calls`) in one process, on one thread, without a
progress display. Some samplers decide by the clock how much they do in one native call. While
calls are counted, the clock stands still and native calls have no time limit, so counts repeat.

Functions count each time they are entered, and generators each time they go on. Comprehensions do
not count, because Python 3.12 and later make no function of them. Numbers of steps that a sampler
finds by itself depend on last bits, so the counts belong to an instruction set.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any
from unittest import mock

from benchmarks.harness import machine

ISA = "avx2"

_COMPREHENSIONS = {"<listcomp>", "<dictcomp>", "<setcomp>"}
_CLOCKS = ("monotonic", "perf_counter", "process_time", "time")
_NO_LIMIT = 1e9  # seconds


def _now() -> float:
    return 0.0


@contextlib.contextmanager
def stopped_clock() -> Iterator[None]:
    """Stop the clock of Python, and let native calls take as long as they do."""
    # The core reads the clock of the system, which Python cannot stop.
    native = mock.patch("ribbit.sample._SECONDS", _NO_LIMIT)
    with mock.patch.multiple(time, **dict.fromkeys(_CLOCKS, _now)), native:
        yield


def walked(run: Any, folder: str) -> dict[str, int]:
    """Return how many functions with code in `folder` one call enters, and in how many files."""
    calls, files = 0, set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(folder):
            if code.co_name not in _COMPREHENSIONS:
                calls += 1
            files.add(code.co_filename)

    gc.collect()
    gc.disable()  # finalizers run at any time
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        gc.enable()
    return {"calls": calls, "files": len(files)}


def count() -> dict[str, dict[str, int]]:
    """Count every call; the process is one of its own."""
    import ribbit as rb
    from benchmarks.ours.small_calls import CALLS

    folder = os.path.join(os.path.dirname(rb.__file__), "")
    rb.set_num_threads(1)
    # What a shell runs in the background ignores Ctrl-C, and Ribbit then watches no signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    found = {}
    with warnings.catch_warnings(), stopped_clock():
        warnings.simplefilter("ignore")  # the runs are short
        for name, prepare in CALLS.items():
            run = prepare()
            run()
            found[name] = walked(run, folder)
    return found


def counted() -> dict[str, Any]:
    """Count every call in a process of its own, with an instruction set that most machines have."""
    from ribbit import _core

    isa = ISA if ISA in _core.available_isas() else _core.isa()
    environment = os.environ | machine.thread_environment(1)
    environment |= {"RIBBIT_ISA": isa, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tools.walk", "--inside"],
        cwd=machine.ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"[walk] the process that counts failed:\n{done.stderr}")
    return {"isa": isa, "calls": json.loads(done.stdout)}


def table(found: dict[str, Any]) -> list[str]:
    """Return a line for every call."""
    text = [f"{'call':<30}{'functions entered':>18}{'files':>7}"]
    for name, row in found["calls"].items():
        text.append(f"{name:<30}{row['calls']:>18,}{row['files']:>7}")
    return text


def main(arguments: list[str] | None = None) -> int:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(prog="python -m tools.walk", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--inside", action="store_true", help="count in this process")
    options = parser.parse_args(arguments)
    if options.inside:
        print(json.dumps(count()))
        return 0
    found = counted()
    print(json.dumps(found, indent=1, sort_keys=True) if options.json else "\n".join(table(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
