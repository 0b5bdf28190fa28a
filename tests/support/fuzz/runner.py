"""Runs malformed calls in a process of their own, and judges what came of them."""

import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter

from tests.support.paths import ROOT

TOTAL = 36_000
PATIENCE = 30.0  # seconds for one call, on a machine that does other things too
GIB = 1 << 30

# Calls with a wrong argument that pass, and why they may. Two wrong arguments of which one is not
# looked at pass as well where the other one is listed.
ACCEPTED: dict[tuple[str, str], str] = {}
# Pairs of wrong arguments that are right together: as many rows of one as of the other.
TOGETHER = {("standardize", "x=a row more, y=a row more")}


def run(start, step, total=TOTAL, face=None):
    """What came of each call: its case, and a verdict; "crash" and "hang" are verdicts too.

    Calls of the public surface, or those of a face.
    """
    found = []
    environment = {**os.environ, "RIBBIT_FREE_MEMORY": str(GIB), "OMP_NUM_THREADS": "1"}
    environment |= {"MPLBACKEND": "Agg", "RIBBIT_NUM_THREADS": "1"}
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    while start < total:
        command = [
            sys.executable,
            "-m",
            "tests.support.fuzz.worker",
            *map(str, (start, step, total)),
            *([face] if face else []),
        ]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, env=environment, text=True, cwd=ROOT
        )
        lines: queue.Queue = queue.Queue()
        reader = threading.Thread(target=_read, args=(child.stdout, lines), daemon=True)
        reader.start()
        case, ended = None, "crash"
        while True:
            try:
                line = lines.get(timeout=PATIENCE)
            except queue.Empty:
                ended = "hang"
                child.kill()
                break
            if line is None:
                break
            said = json.loads(line)
            if "index" in said:
                case = said
            else:
                found.append({**case, **said})
                case = None
        child.wait()
        reader.join()
        child.stdout.close()
        if case is None:
            assert child.returncode == 0, f"the worker ended with {child.returncode}"
            break
        found.append({**case, "verdict": ended, "said": f"exit status {child.returncode}"})
        start = case["index"] + step
    return found


def _read(stream, lines):
    for line in stream:
        lines.put(line)
    lines.put(None)


def listed(case):
    """Whether a case that passed may."""
    if (case["call"], case["wrong"]) in TOGETHER:
        return True
    wrong = case["wrong"].split(", ")
    return any((case["call"], one) in ACCEPTED for one in wrong)


def check(found):
    """Raise with examples unless the calls were answered as they should."""
    counts = Counter(case["verdict"] for case in found)
    worst = [c for c in found if c["verdict"] in ("crash", "hang")]
    assert not worst, worst[:5]
    unlisted = [c for c in found if c["verdict"] == "accepted" and not listed(c)]
    assert not unlisted, unlisted[:20]
    assert counts["accepted"] <= 0.002 * len(found), counts
    obscure = [c for c in found if c["verdict"] == "obscure"]
    assert counts["clear"] >= 0.98 * len(found), (counts, obscure[:20])
