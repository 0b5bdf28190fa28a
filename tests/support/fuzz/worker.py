"""Malformed calls in a process of its own: says which comes next, and what came of each.

``python -m tests.support.fuzz.worker START STEP TOTAL`` makes the calls START, START + STEP, ...
below TOTAL; every line on standard output is JSON. A fourth argument names a face, whose calls are
made instead (``tests/support/fuzz/faces.py``); "core" is the native module.
"""

import contextlib
import faulthandler
import json
import re
import sys
import warnings
from typing import Any

import numpy as np

from tests.support.fuzz.faces import FACES
from tests.support.fuzz.models import LAYERS, MODELS, TARGETS
from tests.support.fuzz.native import CORE, NATIVE
from tests.support.fuzz.problem import Call
from tests.support.fuzz.runs import DATASETS, FITTING, PLOTS, RESULTS, SAMPLERS, SCORES, TOOLS

CALLS: dict[str, Call] = {
    **LAYERS,
    **MODELS,
    **TARGETS,
    **NATIVE,
    **SAMPLERS,
    **FITTING,
    **RESULTS,
    **TOOLS,
    **DATASETS,
    **SCORES,
    **PLOTS,
}
MESSAGE = re.compile(r"^\[[^\]]+\] (expected|.+ must|\w+ and \w+ exclude) .+, got .+", re.DOTALL)
# What the operating system says of a path is clear enough.
SYSTEM = re.compile(r"^\[Errno \d+\] .+: ")
SEED = 20_261_122

# (call, {argument: (label, value)})
Case = tuple[str, dict[str, tuple[str, Any]]]


def cases(total: int, calls: dict[str, Call] = CALLS) -> list[Case]:
    """Every wrong value of every argument, then pairs of wrong arguments, `total` in all."""
    found: list[Case] = [
        (name, {argument: wrong})
        for name, call in calls.items()
        for argument, (_, values, *_) in call.arguments.items()
        for wrong in values
    ]
    rng = np.random.default_rng(SEED)
    several = [name for name, call in calls.items() if len(call.arguments) > 1]
    while len(found) < total:
        name = several[rng.integers(len(several))]
        arguments = calls[name].arguments
        chosen = rng.choice(list(arguments), size=2, replace=False)
        wrong = {str(a): arguments[a][1][rng.integers(len(arguments[a][1]))] for a in chosen}
        found.append((name, wrong))
    return found


def judge(call: Call, wrong: dict[str, tuple[str, Any]]) -> tuple[str, str]:
    """ "clear", "obscure" or "accepted", and what was said."""
    arguments = call.right() | {argument: value for argument, (_, value) in wrong.items()}
    try:
        result = call.function(**arguments)
        del result
    except (TypeError, ValueError, OSError, MemoryError) as error:
        text = str(error)
        path = isinstance(error, OSError) and SYSTEM.match(text)
        clear = path or (MESSAGE.match(text) and any(_names(text, call, a) for a in wrong))
        return ("clear" if clear else "obscure"), f"{type(error).__name__}: {text[:300]}"
    except Exception as error:
        return "obscure", f"{type(error).__name__}: {str(error)[:300]}"
    return "accepted", ""


def _names(text: str, call: Call, argument: str) -> bool:
    """Whether an error names the argument, or what it is called further inside, as a word."""
    known = [argument, *(name for also in call.arguments[argument][2:] for name in also)]
    if argument == "a":  # not the article
        known = ["a as", "a of shape", "a without"]
    return any(re.search(rf"(?<!\w){re.escape(name.strip())}", text) for name in known)


def main(start: int, step: int, total: int, face: str | None = None) -> None:
    """Make the calls, of a face all that it has below `total`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    faulthandler.enable()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    out = sys.stdout
    calls = CALLS if face is None else CORE if face == "core" else FACES[face][1]()
    everything = cases(total if face is None else 0, calls)
    for index in range(start, min(total, len(everything)), step):
        name, wrong = everything[index]
        label = ", ".join(f"{argument}={label}" for argument, (label, _) in wrong.items())
        print(json.dumps({"index": index, "call": name, "wrong": label}), file=out, flush=True)
        with contextlib.redirect_stdout(None):
            verdict, said = judge(calls[name], wrong)
        print(json.dumps({"verdict": verdict, "said": said}), file=out, flush=True)
        if pyplot.get_fignums():
            pyplot.close("all")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:5])
