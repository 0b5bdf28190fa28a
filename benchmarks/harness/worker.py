"""The child process of the report: one entry, asked over a pipe to prepare and to time.

``python -m benchmarks.harness.worker FRAMEWORK THREADS``, FRAMEWORK in JSON, confines itself to
THREADS cores before the framework is imported, then answers one JSON line per JSON line: {"do":
"prepare", "file"} (a workload as `benchmarks.harness.workload.save` writes it), {"do": "time",
"seconds"}, {"do": "peak", "seconds"}, {"do": "calm"}. It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from benchmarks.harness.framework import Framework, Prepared


class Worker:
    """State of the process: its framework and what is prepared."""

    def __init__(self, framework: Framework, threads: int) -> None:
        self.framework = framework
        self.threads = threads
        self.prepared: Prepared | None = None

    def prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Build a workload and hold its first answer against the reference."""
        from benchmarks.harness.workload import load, on_threads  # with NumPy, on the chosen cores

        self.prepared = None  # one at a time: large ones need the memory
        workload = on_threads(load(Path(request["file"])), self.threads)
        module = self.framework.load()
        if workload.kind not in module.PREPARE:
            return {"missing": True}
        left_out = self.framework.obstacle()
        if left_out:
            return {"left_out": left_out}
        started = time.perf_counter()
        prepared = self.framework.prepare(workload)
        first = prepared.run()
        seconds = time.perf_counter() - started - prepared.tuning_seconds
        errors = workload.check(prepared.answer(first))
        self.prepared = prepared
        return {
            "build_and_first_call_s": seconds,
            "errors": errors,
            "form": prepared.form,
            "versions": module.versions(),
        }

    def time(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run for about the given time, after one run that brings the caches back.

        By the wall clock, or with "processor" by the processor time of the whole process. A first
        run of a second or more is counted: caches are nothing to it.
        """
        clock = time.process_time if request.get("processor") else time.perf_counter
        if self.prepared is None:
            raise RuntimeError("[worker] expected a workload to be prepared, got none")
        run = self.prepared.run
        started = clock()
        run()
        first = clock() - started
        seconds: list[float] = [first] if first >= 1.0 else []
        while sum(seconds) < request["seconds"]:
            started = clock()
            run()
            seconds.append(clock() - started)
        return {"seconds": seconds}

    def peak(self, request: dict[str, Any]) -> dict[str, Any]:
        """Flop/s of float32 multiply-adds of a core, ns of a hand-over (Ribbit's process only)."""
        ours = self.framework.load()
        return {"flops": ours.fma_peak(request["seconds"]), "handover": ours.handover()}

    def calm(self, request: dict[str, Any]) -> dict[str, Any]:
        """Seconds of a loop that neighbours on the same cores disturb (Ribbit's process only)."""
        return {"seconds": self.framework.load().calm()}


def main(framework: str, threads: int) -> None:
    """Answer requests until the input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a framework prints must not get between the replies
    machine.pin(machine.pick(machine.cores(), threads))
    worker = Worker(Framework(**json.loads(framework)), threads)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = getattr(worker, request["do"])(request)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
