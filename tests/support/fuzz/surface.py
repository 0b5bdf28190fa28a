"""Random calls of every public function, class, method and operator, found by introspection.

``python -m tests.support.fuzz.surface --calls 20000`` makes them in processes of their own, and
ends with 1 if a call crashed, hung for over 10 s, or ended in an internal error: a class of
`INTERNAL`, or a text with "NoneType". The argument tables of ``malformed.py`` know what each
argument may be; here nothing is known but names, so that a new method is called without a table.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import faulthandler
import functools
import importlib
import inspect
import json
import operator
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ribbit
from tests.support.fuzz.objects import SEED, build
from tests.support.paths import ROOT

PACKAGE = Path(ribbit.__file__).resolve().parent
LIMIT = 10.0  # seconds for one call
MEMORY = 4 << 30  # bytes
INTERNAL = (
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    NameError,
    NotImplementedError,
    RecursionError,
    SystemError,
    UnboundLocalError,
    ZeroDivisionError,
)
ROOMS = ("", "datasets", "diagnostics", "distributed", "errors", "metrics", "plots", "random")
ROOMS += ("schedules", "sklearn", "torch")
# They wait by design, or belong to another library.
NOT_CALLED = {"wait", "mro", "add_note", "with_traceback", "get_metadata_routing"}
OTHERS = {"x", "y", "paths", "Module", "tensor"}
# A count in these is a long run, no fault.
LONG = {"num_draws", "draws", "warmup", "thin", "num_steps", "num_epochs", "epochs", "max_steps"}
LONG |= {"swag_epochs", "num_leapfrog_steps", "num_samples", "n_samples", "members", "restarts"}
LONG |= {"chains", "count", "max_doublings", "max_tree_depth", "patience", "finish", "every"}
LONG |= {"init_epochs", "timeout", "max_seconds", "hidden", "units", "blocks", "width"}
UNARY: dict[str, Callable[..., Any]] = {
    **{call.__name__: call for call in (repr, str, hash, len, bool, dir, vars)},
    **{call.__name__: call for call in (copy.copy, copy.deepcopy, np.asarray)},
    "iter": lambda one: [item for item, _ in zip(one, range(99), strict=False)],
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
}
BINARY: dict[str, Callable[..., Any]] = {
    "==": operator.eq,
    "<": operator.lt,
    "+": operator.add,
    "in": operator.contains,
    "[]": operator.getitem,
    "()": lambda one, other: one(other),
}


NUMBERS: dict[str, list[Any]] = {"int": [1, 2, 3], "float": [0.5, 1.0], "bool": [False, True]}


class Hang(BaseException):
    """Raised by the alarm."""


def _right(made: dict[str, Any], owner: Any) -> dict[str, list[Any]]:
    """Plausible values by the name of a parameter, so that calls come past their first check."""
    target, x, y = (made[name] for name in ("Posterior", "x", "y"))
    mine = owner if hasattr(owner, "terms_and_grad") else getattr(owner, "target", target)
    try:
        theta = np.asarray(mine.init(0, chains=2))
    except Exception:
        theta = np.asarray(target.init(0, chains=2))
    model = getattr(owner, "model", None) or getattr(owner, "_model", None)
    inputs = np.abs(np.resize(x, (12, *getattr(model, "input_shape", (2,))))) // 0.1
    posteriors = [one for one in made.values() if hasattr(one, "terms_and_grad")]
    runs = [one for name, one in made.items() if type(one).__name__ == "Draws"]
    fits = [one for name, one in made.items() if name.startswith("Fit of")]
    predictions = [one for name, one in made.items() if name.startswith("Prediction")]
    spread = np.random.default_rng(0).normal(size=(2, 30))
    labels = np.arange(12) % 3
    right: dict[str, list[Any]] = {
        "target": [*posteriors, made["CallableDensity"]],
        "draws": [*runs, 3],
        "num_draws": [0, 1, 3],
        "num_epochs": [0, 1, 2],
        "model": [made["Model"]],
        "layers": [[made["Dense"]], made["Dense"]],
        "prior": [made["Normal"], {"*": made["Normal"]}],
        "likelihood": [made["Gaussian"], made["Categorical"]],
        "x": [inputs, x, x[:3], spread],
        "y": [y, y[:3], labels],
        "data": [x, (x, y)],
        "rows": [[0, 1], np.arange(3)],
        "theta": [theta, theta[0]],
        "init": [theta, "prior", *runs, *fits],
        "state": [one for name, one in made.items() if name.startswith("State of")],
        "fit": fits,
        "p": predictions,
        "seed": [0, 1],
        "chains": [1, 2, [0, 1]],
        "warmup": [0, 3],
        "thin": [1, 2],
        "step_size": [0.01, "auto"],
        "level": [0.9],
        "q": [0.5, [0.1, 0.9], theta],
        "momentum": [np.ones_like(theta)],
        "gradient": [theta],
        "progress": [False],
        "kind": ["cosine", "constant"],
        "shape": [(2, 3)],
        "input_shape": [(2,)],
        "probs": [np.full((12, 3), 1 / 3)],
        "samples": [spread],
        "values": [spread],
        "path": made["paths"],
        "module": [made.get("Module")],
        "function": ["f"],
        "hidden": [(3,)],
        "activation": ["tanh", "relu"],
        "method": ["hmc", "ensemble", "bbb", "laplace", "swag"],
        "options": [None, {"step_size": 0.01}],
        "fn": [lambda q: (-0.5 * q @ q, -q)],
        "communicator": [made["Group"]._link],
        "random_state": [0, None],
        "estimator": ["reparam", "flipout"],
        "noise": [np.ones(2)],
        "superchains": [[0, 0], [0, 1]],
        "views": [made["Model"].unravel(np.zeros(made["Model"].dim, np.float32))],
        "description": [made["Model"].describe()],
        "npt.ArrayLike": [y, x, labels],
        "Array": [theta, y, x],
        "subset": ["all", "last_layer"],
        "arguments": [
            [c, *p] for c in ("summary", "watch", "demo") for p in ([""], ["x", "--once"])
        ],
    }
    right["arguments"] += [["summary", one] for one in made["paths"]]
    right["arguments"] += [["watch", one, "--once"] for one in made["paths"]]
    same = {"position": "theta", "positions": "theta", "init_position": "theta", "v": "momentum"}
    same |= {
        "velocity": "momentum",
        "grad": "gradient",
        "prediction": "p",
        "X": "x",
        "resume": "fit",
    }
    return right | {name: right[other] for name, other in same.items()}


def _anything(made: dict[str, Any]) -> list[Any]:
    """Values that few parameters take."""
    theta = np.asarray(made["Posterior"].init(0, chains=2))
    kinds = ("Posterior", "Draws", "Model", "Normal", "Gaussian", "HMC", "Prediction", "State")
    found = [
        *(None, -1, 0, 1, 3, 2**31, 2**63, -(2**63), 10**30, True, 1.5, -0.5, 1e-320, 1e300),
        *(np.nan, np.inf, "x", "", b"x", [], [1, 2], ["a"], (), {}, {"a": 1}, {1, 2}, object()),
        *(int, len, 1j, ..., range(3), np.float32(1.5), np.int8(-3), np.bool_(True)),
        *(slice(1, 2), [[1, 2], [3]], (i for i in range(3)), [None], {None: 1}, Path("missing")),
        *(
            theta,
            theta[0],
            theta[:, :-1],
            theta[None],
            np.array(3.0),
            np.array("a"),
            np.array(None),
        ),
        *(np.zeros((0, 0)), np.full((4, 2), np.inf), np.zeros(3, [("a", "f4")]), np.ones(7, bool)),
        *(np.zeros((1, 1, 1, 1)), np.array([None, 1]), np.array(["2020-01-01"], "M8[D]")),
        *(np.broadcast_to(0.0, (10**9, 2)), np.broadcast_to(np.float32(0), (2, 10**10))),
        *(lambda *a, **k: None, *(made[kind] for kind in kinds)),
        *(type(made[kind]) for kind in kinds),
        *(one for name, one in made.items() if name in ("tensor", "Module")),
    ]
    for frames in ("pandas", "polars"):
        with contextlib.suppress(ImportError):
            frame = importlib.import_module(frames).DataFrame
            found += [frame(made["x"]), frame({"a": [1, 2], "b": ["x", None]}), frame({})]
    return found


def _mapped(array: Any) -> Any:
    np.save("mapped.npy", array)
    return np.load("mapped.npy", mmap_mode="r")


def _spoiled(array: Any, value: float) -> Any:
    array = np.array(array, dtype=float)
    array.flat[:1] = value
    return array


def _frozen(array: Any) -> Any:
    array = np.array(array)
    array.flags.writeable = False
    return array


KINDS = (
    "f2",
    "f4",
    "f8",
    "g",
    "c16",
    "O",
    "U9",
    "S9",
    ">f4",
    ">f8",
    "i1",
    "u8",
    "?",
    ">i4",
    "m8[s]",
)
# What becomes of an array that would be right.
CHANGES: list[Callable[[Any], Any]] = [
    *(functools.partial(np.ndarray.astype, dtype=kind) for kind in ("f2", "f4", "f8", "g", "c16")),
    *(functools.partial(np.ndarray.astype, dtype=kind) for kind in ("O", "U9", "S9", ">f4", ">f8")),
    *(
        functools.partial(np.ndarray.astype, dtype=kind)
        for kind in ("i1", "u8", "?", ">i4", "m8[s]")
    ),
    *(functools.partial(_spoiled, value=v) for v in (np.nan, -np.inf, 1e300, 1e-310, -1.0)),
    *(np.asfortranarray, _frozen, _mapped, np.ma.masked_array, np.ravel, np.atleast_3d, np.squeeze),
    *(lambda a: np.ma.masked_array(a, a == a.flat[:1]), lambda a: np.matrix(a.reshape(len(a), -1))),
    *(lambda a: a[::-1], lambda a: a[:0], lambda a: a[:1], lambda a: a[..., :-1], lambda a: a.T),
    *(lambda a: a[None], lambda a: a[..., None], lambda a: a.tolist(), lambda a: tuple(a)),
    *(lambda a: np.concatenate([a, a]), lambda a: np.broadcast_to(a[:1], (10**8, *a.shape[1:]))),
    *(lambda a: iter(a), lambda a: memoryview(np.ascontiguousarray(a)), lambda a: a.dtype),
]


def surface(made: dict[str, Any]) -> list[dict[str, tuple[Any, Callable[..., Any]]]]:
    """Return public functions, methods, attributes and operators: (owner, call) by their names."""
    from ribbit.__main__ import main

    def command(arguments: Any) -> int:
        return main([*map(str, arguments)] if isinstance(arguments, list) else [str(arguments)])

    functions: dict[str, tuple[Any, Callable[..., Any]]] = {"python -m ribbit": (None, command)}
    for room in ROOMS:
        with contextlib.suppress(ImportError):
            place = importlib.import_module(f"ribbit.{room}".rstrip("."))
            for name in place.__all__:
                if callable(getattr(place, name)):
                    functions[f"{room}.{name}".lstrip(".")] = (None, getattr(place, name))
    methods, attributes, operators = {}, {}, {}
    for label, owner in made.items():
        if label in OTHERS:
            continue
        for name, call in (UNARY | BINARY).items():
            operators[f"{name} of {label}"] = (owner, functools.partial(call, owner))
        for name in sorted(object.__dir__(owner)):  # of targets, what dir leaves out too
            if name.startswith("_") or name in NOT_CALLED:
                continue
            read = functools.partial(getattr, owner, name)
            member = inspect.getattr_static(type(owner), name, None)
            if isinstance(member, property) or not callable(getattr(owner, name, None)):
                attributes[f"{label}.{name}"] = (owner, read)
            else:
                methods[f"{label}.{name}"] = (owner, read())
    return [functions, methods, attributes, operators]


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _usual(parameter: inspect.Parameter, right: dict[str, list[Any]]) -> list[Any]:
    """Return values that fit by the name of a parameter, or by what it is annotated with."""
    kind = str(parameter.annotation).partition(" | ")[0]
    named = right.get(parameter.name, [])
    if kind in NUMBERS:
        return [one for one in named if isinstance(one, int | float)] or NUMBERS[kind]
    return named or right.get(kind, [])


def _arguments(
    function: Callable[..., Any],
    rng: np.random.Generator,
    right: dict[str, list[Any]],
    anything: list[Any],
) -> tuple[list[Any], dict[str, Any]]:
    """Choose arguments: most plausible, one or two wrong, some missing, some too many."""

    def one(values: list[Any]) -> Any:
        return values[rng.integers(len(values))]

    names = _parameters(function)
    wrong = set(rng.integers(len(names), size=rng.integers(3))) if names else ()
    chosen: dict[str, Any] = {}
    for i, parameter in enumerate(names):
        needed, name = parameter.default is parameter.empty, parameter.name
        usual = _usual(parameter, right)
        if not needed and i not in wrong and (not usual or rng.random() < 0.7):
            continue
        value = one(usual or anything)
        if i in wrong:
            if needed and rng.random() < 0.1:
                continue  # missing
            if isinstance(value, np.ndarray) and 0 < value.nbytes < 1e5 and rng.random() < 0.6:
                with contextlib.suppress(Exception):
                    value = one(CHANGES)(value)
            else:
                value = one(anything)
        if name in LONG and isinstance(value, int | float) and 1000 < value < 2**62:
            value = 5
        chosen[name] = value
    if "max_seconds" in {p.name for p in names}:
        chosen.setdefault("max_seconds", 0.3)
    if "progress" in {p.name for p in names}:
        chosen.setdefault("progress", False)
    kind = rng.random()
    if kind < 0.1:
        return list(chosen.values()), {}
    if kind < 0.15:
        return [one(anything) for _ in range(rng.integers(len(names) + 2))], {}
    if kind < 0.2:
        chosen[str(one(["num_samples", "random_state", "wrong", "self"]))] = one(anything)
    return [], chosen


def _alarm(*_: Any) -> None:
    raise Hang


def worker(start: int, step: int, calls: int) -> None:
    """Make the calls start, start + step, ... and print what came of each as a line of JSON."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    faulthandler.enable()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    signal.signal(signal.SIGALRM, _alarm)
    made = build(Path.cwd())
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, held + MEMORY))
    groups = [(list(group.items()), group) for group in surface(made)]
    anything = _anything(made)
    small = [one for one in anything if getattr(one, "nbytes", 0) < 1000]
    out = sys.stdout
    for index in range(start, calls, step):
        rng = np.random.default_rng([SEED, index])
        group = groups[rng.choice(4, p=[0.35, 0.45, 0.08, 0.12])][0]
        name, (owner, function) = group[rng.integers(len(group))]
        if name.startswith("BNN") and "." in name:  # fit and set_params leave their mark
            owner = copy.deepcopy(owner)
            if not isinstance(function, functools.partial):
                function = getattr(owner, name.rsplit(".", 1)[1])
        if isinstance(function, functools.partial):  # an attribute or an operator
            binary = int(function.func in BINARY.values())
            args, named = [small[i] for i in rng.integers(len(small), size=binary)], {}
        else:
            args, named = _arguments(function, rng, _right(made, owner), anything)
        told = [*map(_short, args), *(f"{k}={_short(v)}" for k, v in named.items())]
        call = f"{name}({', '.join(told)})"
        print(json.dumps({"index": index, "call": call}), file=out, flush=True)
        faulthandler.dump_traceback_later(3 * LIMIT, exit=True)
        signal.setitimer(signal.ITIMER_REAL, LIMIT)
        try:
            verdict, said = _judged(name, function, args, named)
        except Hang:
            verdict, said = "hang", ""
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            faulthandler.cancel_dump_traceback_later()
        print(json.dumps({"verdict": verdict, "said": said}), file=out, flush=True)
        pyplot.close("all")


def _judged(name: str, function: Any, args: list[Any], named: dict[str, Any]) -> tuple[str, str]:
    """Return what came of a call: "fine", "refused", "obscure" or "internal", and its error."""
    try:
        with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
            result = function(*args, **named)
            if inspect.isgenerator(result):
                next(result, None)
            _use(result)
    except (KeyboardInterrupt, SystemExit) as error:
        return "fine" if name == "python -m ribbit" else "internal", repr(error)
    except Exception as error:
        # The library's own texts begin with a name in brackets: hasattr() must say no of what is
        # not there.
        frames = traceback.extract_tb(error.__traceback__)
        said = f"{type(error).__name__}: {str(error)[:160]} ({_place(frames[-1])})"
        ours = [frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)]
        if str(error).startswith("[") or not ours:
            return "refused", said
        if "NoneType" in str(error) or type(error) in INTERNAL:
            return "internal", said
        return "obscure", f"{said} from {_place(ours[-1])}"
    return "fine", ""


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{type(value).__name__} {value.dtype}{list(value.shape)}"
    return repr(value).split("\n")[0][:40]


def _use(result: Any) -> None:
    """Do with a result what a user does next, so that errors that were put off come too."""
    repr(result)
    kind, short = type(result).__name__, {"seed": 0, "progress": False}
    x = np.linspace(-1.0, 1.0, 24).reshape(12, 2)
    if kind == "RunHandle":
        result.stop()
    elif kind.startswith("BNN"):
        result.fit(x, (x[:, 0] > 0).astype(int)).predict(x)
    elif isinstance(result, ribbit.Sampler):
        result.sample(3, warmup=3, chains=2, max_seconds=0.3, **short)
    elif hasattr(result, "fit"):
        result.fit(1, **short)
    elif hasattr(result, "value_and_grad"):
        result.value_and_grad(result.init(0, chains=2))
    elif kind in ("Draws", "MeanField") or kind.endswith("Fit"):
        result.summary()
        result.predict(x)
    elif kind == "Prediction":
        _ = result.std, result.interval(0.9)
    elif kind in ("Model", "Schedule"):
        result.init() if kind == "Model" else result.factors(0, 3)


def _place(frame: traceback.FrameSummary) -> str:
    return f"{Path(frame.filename).name}:{frame.lineno}"


def run(calls: int, start: int = 0, step: int = 1) -> Iterator[dict[str, Any]]:
    """Yield what came of each call; after a crash the next worker goes on."""
    environment = {**os.environ, "RIBBIT_FREE_MEMORY": str(1 << 30), "RIBBIT_NUM_THREADS": "1"}
    environment |= {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    while start < calls:
        command = [sys.executable, "-m", "tests.support.fuzz.surface", "--worker"]
        command += map(str, (start, step, calls))
        with tempfile.TemporaryDirectory() as folder:
            child = subprocess.Popen(
                command, stdout=subprocess.PIPE, env=environment, text=True, cwd=folder
            )
            assert child.stdout is not None
            case: dict[str, Any] | None = None
            for line in child.stdout:
                said = json.loads(line)
                if "index" in said:
                    case = said
                else:
                    assert case is not None
                    yield {**case, **said}
                    start, case = case["index"] + step, None
            child.wait()
        if case is None:
            assert child.returncode == 0, f"the worker ended with {child.returncode}"
            return
        yield {**case, "verdict": "crash", "said": f"exit status {child.returncode}"}
        start = case["index"] + step


def main() -> int:
    """Make the calls and print those that went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--obscure", action="store_true", help="and unclear errors")
    parser.add_argument("--worker", nargs=3, type=int, metavar="N", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(*given.worker)
        return 0
    counts = dict.fromkeys(("fine", "refused", "obscure", "internal", "hang", "crash"), 0)
    for case in run(given.calls, given.start):
        counts[case["verdict"]] += 1
        if case["verdict"] in list(counts)[2 if given.obscure else 3 :]:
            print(
                f"{case['index']} {case['verdict']}: {case['call']}\n    {case['said']}", flush=True
            )
    print(counts)
    return int(counts["internal"] + counts["hang"] + counts["crash"] > 0)


if __name__ == "__main__":
    sys.exit(main())
