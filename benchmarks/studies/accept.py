"""The first minutes on a device: ``python -m benchmarks.accept --call 1 --out FOLDER``, then 2.

Steps in the order of what they are worth: whether it compiles and answers as the CPU does, bits
against those of the CPU's stand-in, the tests; then constants, times of the GPU table, rivals last.
Each is a process with a limit of its own, so a step that fails or hangs takes no other with it, and
appends one line to ``FOLDER/accept.jsonl``, at once. Steps that have a line are not run again;
``--retry`` runs those that failed. A call ends by itself after `--seconds`; the next goes on.

``--carry`` writes ``FOLDER/carried.npz`` on a machine without a device: what the same kernels give
on the CPU, bit by bit. ``--rehearse`` runs each step at a small size without a device.
``python -m benchmarks.paper --against FOLDER/accept.jsonl`` sets the times beside the model.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from benchmarks.studies.accept_steps import STEPS, Skipped, Step
from benchmarks.studies.gpu_digest import digest

__all__ = ["main", "run_step"]

LINES, LOG, CARRIED = "accept.jsonl", "accept.log", "carried.npz"
_SECONDS = 560.0  # of a call
_LEAST = 5.0  # seconds left without which no step starts
_NO_END = "no end in"
_TAIL = 1_500  # characters of a failure


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines that are there; what a dying process left half is not one."""
    found = []
    for text in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            found.append(json.loads(text))
    return found


def append(path: Path, line: dict[str, Any]) -> None:
    """Append one line, on the disk when this returns."""
    broken = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    with open(path, "a") as file:
        file.write(("\n" if broken else "") + json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def run_step(step: Step, out: Path, limit: float, *, rehearse: bool) -> dict[str, Any]:
    """Run a step in a process of its own, and end it and its children at the limit.

    Returns
    -------
    dict
        ok (None: skipped), seconds, numbers (of the lines printed so far), error.
    """
    command = [sys.executable, "-m", "benchmarks.studies.accept_child", step.name, str(out)]
    command += ["--rehearse"] if rehearse else []
    begun, numbers, error, ok = time.perf_counter(), {}, "", False
    with open(out / LOG, "a+") as log:
        log.write(f"== {step.name}\n")
        log.flush()
        start = log.tell()
        # a session of its own: what it starts is ended with it
        child = subprocess.Popen(
            command, cwd=machine.ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = child.wait(limit)
            ok = status == 0
            error = "" if ok else f"exit status {status}"
        except subprocess.TimeoutExpired:
            error = f"{_NO_END} {limit:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold a dead one
                child.wait(10.0)
        log.seek(start)
        text = log.read()
    skipped = None
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            if line.startswith('{"numbers"'):
                numbers |= json.loads(line)["numbers"]
            if line.startswith('{"skipped"'):
                skipped = json.loads(line)["skipped"]
    found: dict[str, Any] = {
        "ok": ok if skipped is None else None,
        "seconds": round(time.perf_counter() - begun, 2),
        "numbers": numbers,
    }
    if error:
        found["error"] = f"{error}: {text[-_TAIL:]}"
    if skipped:
        found["skipped"] = skipped
    return found


def run_inside(step: Step, out: Path) -> dict[str, Any]:
    """Rehearse a step in this process, without a limit."""
    begun, numbers = time.perf_counter(), {}
    found: dict[str, Any] = {"ok": True}
    try:
        for some in step.run(True, out):
            numbers |= some
    except Skipped as reason:
        found |= {"ok": None, "skipped": str(reason)}
    except Exception as error:
        found |= {"ok": False, "error": f"{type(error).__name__}: {error}"[:_TAIL]}
    return found | {"seconds": round(time.perf_counter() - begun, 2), "numbers": numbers}


def facts(rehearse: bool) -> dict[str, Any]:
    """Return commit, digest of the device's sources, the device's name, or a problem."""
    git = ["git", "-C", str(machine.ROOT), "rev-parse", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    found = {"commit": commit, "digest": digest(), "device": "none: rehearsal"}
    found["rehearsal"] = rehearse
    return found if rehearse else found | _device()


def _device() -> dict[str, Any]:
    """Ask for the device in a process of its own: one that holds a device can be hung by it."""
    code = (
        "import json\nfrom benchmarks.studies import gpu\nproblem = gpu.no_device()\n"
        "name = '' if problem else gpu.device_facts()['name']\n"
        "print(json.dumps({'device': name, 'problem': problem}))"
    )
    try:
        asked = subprocess.run(
            [sys.executable, "-c", code],
            cwd=machine.ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        found: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        found = {"device": "", "problem": f"{type(error).__name__}: {error}"}
    return found


def chosen(call: int | None, names: Sequence[str] | None) -> list[Step]:
    """Return the steps of a call, or those named, in their order."""
    return [
        step
        for step in STEPS
        if (names is None or step.name in names) and (call is None or step.call == call)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run the steps of a call that have no line yet; return 0 when every one of them has an ok."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accept", description=(__doc__ or "").splitlines()[0]
    )
    default = os.environ.get("OUT")
    parser.add_argument("--call", type=int, choices=(1, 2), help="which half; default: both")
    parser.add_argument("--out", type=Path, default=default, help="folder; default: $OUT")
    parser.add_argument("--steps", nargs="+", choices=[step.name for step in STEPS])
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="of this call")
    parser.add_argument("--retry", action="store_true", help="run again what failed")
    parser.add_argument("--rehearse", action="store_true", help="small, without a device")
    parser.add_argument("--inside", action="store_true", help="rehearse in one process")
    parser.add_argument("--carry", action="store_true", help="write what a device must reproduce")
    parser.add_argument("--list", action="store_true", help="print the steps")
    given = parser.parse_args(arguments)
    steps = chosen(given.call, given.steps)
    if given.list:
        for step in steps:
            print(f"{step.call} {step.name}: {step.what} (limit {step.limit:.0f} s)")
        return 0
    if given.out is None:
        parser.error("--out FOLDER or $OUT is needed")
    given.out.mkdir(parents=True, exist_ok=True)
    if given.carry:
        from benchmarks.studies.accept_answers import carry

        print(f"{carry(given.out / CARRIED)} arrays in {given.out / CARRIED}")
        return 0
    known = facts(given.rehearse)
    problem = known.pop("problem", "")
    if problem:
        print(f"no CUDA device ({problem}): --rehearse runs the steps without", file=sys.stderr)
        return 1
    return _run(given, steps, known)


def _run(given: argparse.Namespace, steps: Sequence[Step], known: dict[str, Any]) -> int:
    end = time.monotonic() + given.seconds
    path = given.out / LINES
    # lines of other sources or of a rehearsal say nothing about these
    about = ("digest", "rehearsal")
    lines = [n for n in read_lines(path) if all(n.get(key) == known[key] for key in about)]
    done = {line["step"]: line["ok"] for line in lines}
    for step in steps:
        if step.name in done and not (given.retry and done[step.name] is False):
            continue
        left = end - time.monotonic()
        if left < _LEAST:
            print(f"{given.seconds:.0f} s are over: the next call goes on with {step.name}")
            return 1
        limit = min(step.limit, left)
        if given.rehearse and given.inside:
            found = run_inside(step, given.out)
        else:
            found = run_step(step, given.out, limit, rehearse=given.rehearse)
        if limit < step.limit and found.get("error", "").startswith(_NO_END):
            print(f"{given.seconds:.0f} s are over: the next call begins {step.name} again")
            return 1
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        head = {"step": step.name, "call": step.call, "what": step.what, "date": date}
        append(path, head | found | known)
        done[step.name] = found["ok"]
        word = {True: "ok", False: "FAILED", None: "skipped"}[found["ok"]]
        print(f"{step.name}: {word}, {found['seconds']} s", flush=True)
    return int(any(done.get(step.name) is False for step in steps))
