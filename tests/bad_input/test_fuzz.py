"""26,000 malformed calls over the whole public surface, made in a process of their own.

Every call has one or two wrong arguments (``tests/support/fuzz``): nothing may crash or hang, at
least 98 % of the calls must be refused with a sentence that names the argument, and what passes is
listed here. Nothing is random but for the pairs of arguments, which have a fixed seed.
"""

import inspect
import json
import os
import queue
import subprocess
import sys
import threading
import warnings
from collections import Counter

import pytest

import ribbit as rb
from tests.support.fuzz.worker import CALLS, cases
from tests.support.paths import ROOT

TOTAL = 30_000
PATIENCE = 30.0  # seconds for one call, on a machine that does other things too
GIB = 1 << 30

# Calls with a wrong argument that pass, and why they may. Two wrong arguments of which one is not
# looked at pass as well where the other one is listed.
ACCEPTED: dict[tuple[str, str], str] = {}


def run(start, step, total=TOTAL):
    """What came of each call: its case, and a verdict; "crash" and "hang" are verdicts too."""
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


def test_a_tenth():
    found = run(3, 10)
    assert len(found) == TOTAL // 10
    check(found)


@pytest.mark.slow
def test_all():
    found = run(0, 1)
    assert len(found) == TOTAL
    check(found)
    for case in found:  # the list says no more than is true
        if case["verdict"] == "clear" and "," not in case["wrong"]:
            assert (case["call"], case["wrong"]) not in ACCEPTED, case


def test_there_are_enough_cases():
    everything = cases(TOTAL)
    assert len(everything) == TOTAL
    assert len([c for c in everything if len(c[1]) == 1]) > 15_000


@pytest.mark.parametrize("name", CALLS)
def test_right_arguments_pass(name):
    """The control: what is refused is refused for what is wrong."""
    import matplotlib

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matplotlib.use("Agg")
        CALLS[name].function(**CALLS[name].right())


# Public names that are not called here: records that samplers and fits fill, bases of classes,
# protocols, errors, and what takes no argument.
NOT_CALLED = {
    *("Draws", "DropoutFit", "EnsembleFit", "Prediction", "State", "StochasticState", "Trajectory"),
    *("MicrocanonicalState", "SWAGFit", "LaplaceFit", "BackgroundRun"),
    *("Likelihood", "Prior", "Sampler", "ScalePrior", "Scaler"),
    *("Bernoulli", "Categorical", "Poisson", "constant"),
    *("Affine", "Flatten", "GlobalAvgPool2D", "show_versions", "energy_efficiency"),
}
ROOMS = ("datasets", "diagnostics", "metrics", "plots", "schedules", "random")


def test_every_public_name_is_called():
    called = {name.split(" ")[0].split(".")[-1] for name in CALLS}
    public = {name for room in ROOMS for name in getattr(rb, room).__all__}
    public |= {name for name in rb.__all__ if not inspect.ismodule(getattr(rb, name))}
    public.discard("__version__")
    assert public - called - NOT_CALLED == set()
    assert not called & NOT_CALLED
