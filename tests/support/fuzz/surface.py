"""Random calls of every public function, class and method, found by introspection.

``python -m tests.support.fuzz.surface --calls 20000`` makes them in processes of their own, and
ends with 1 if a call crashed, hung for over 10 s, or ended in an internal error: a class of
`INTERNAL`, or a text with "NoneType". The argument tables of ``malformed.py`` know what each
argument may be; here nothing is known but names, so that a new method is called without a table.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import functools
import inspect
import json
import os
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

from tests.support.paths import ROOT

SEED = 20_261_128
LIMIT = 10.0  # seconds for one call
INTERNAL = (
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    NameError,  # and UnboundLocalError
    NotImplementedError,
    RecursionError,
    SystemError,
    ZeroDivisionError,
)
# Methods that wait by design, or that belong to a base class of another library.
NOT_CALLED = {"show_versions", "wait", "mro", "set_params", "add_note", "with_traceback"}
ROOMS = ("datasets", "diagnostics", "errors", "metrics", "plots", "schedules", "random")


class Hang(BaseException):
    """Raised by the alarm."""


def _right(function_rng: np.random.Generator, made: dict[str, Any]) -> dict[str, list[Any]]:
    """Plausible values by the name of a parameter, so that calls come past their first check."""
    target, draws = made["Posterior"], made["Draws"]
    theta = np.asarray(target.init(0, chains=2))
    x, y = made["x"], made["y"]
    spread = function_rng.normal(size=(2, 30))
    return {
        "target": [target, made["CallableDensity"], made["Posterior of classes"]],
        "draws": [draws, 3],
        "num_draws": [0, 1, 3],
        "num_epochs": [0, 1, 2],
        "model": [made["Model"]],
        "layers": [[made["Dense"]], made["Dense"]],
        "prior": [made["Normal"], {"*": made["Normal"]}],
        "likelihood": [made["Gaussian"], made["Categorical"]],
        "x": [x, x[:3], spread],
        "y": [y, y[:3], (y > 0).astype(int)],
        "data": [x],
        "theta": [theta, theta[0]],
        "positions": [theta, theta[:, None]],
        "init": [theta, "prior", draws],
        "init_position": [theta],
        "state": [made["State"]],
        "fit": [made["EnsembleFit"]],
        "p": [made["Prediction"]],
        "seed": [0, 1],
        "chains": [1, 2],
        "warmup": [0, 3],
        "thin": [1, 2],
        "step_size": [0.01, "auto"],
        "level": [0.9],
        "q": [0.5, [0.1, 0.9], theta],
        "momentum": [np.ones_like(theta)],
        "v": [np.zeros_like(theta)],
        "gradient": [theta],
        "progress": [False],
        "rule": ["langevin", "friction", "kinetic", "adam"],
        "shape": [(2, 3)],
        "input_shape": [(2,)],
        "probs": [np.full((4, 2), 0.5)],
        "samples": [spread],
        "values": [spread],
    }


def _anything(made: dict[str, Any]) -> list[Any]:
    """Values that few parameters take."""
    theta = np.asarray(made["Posterior"].init(0, chains=2))
    x = made["x"]
    hole = x.copy()
    hole[1, 0] = np.nan
    return [
        *(None, -1, 0, 1, 3, 2**31, 2**63, -(2**63), 10**30, True, 1.5, -0.5, 1e-320, 1e300),
        *(np.nan, np.inf, "x", "", b"x", [], [1, 2], ["a"], (), {}, {"a": 1}, {1, 2}, object()),
        *(int, len, 1j, ..., range(3), np.float32(1.5), np.int8(-3), np.bool_(True)),
        *(theta, theta[0], theta[:, :-1], theta[None], theta.astype(complex), theta.astype(int)),
        *(np.asfortranarray(theta), theta[::-1], theta.astype(">f8"), theta.astype(np.float16)),
        *(x, hole, x.astype(object), x.astype(str), x[:0], np.zeros((0, 0)), np.array(3.0)),
        *(np.array("a"), np.full((4, 2), np.inf), np.zeros(3, [("a", "f4")]), np.ones(7, bool)),
        *(np.zeros((1, 1, 1, 1)), np.array([None, 1]), np.array(["2020-01-01"], "M8[D]")),
        *(made["Posterior"], made["Draws"], made["Model"], made["Normal"], made["Gaussian"]),
        *(made["HMC"], made["Prediction"], type(made["Posterior"]), lambda *a, **k: None),
    ]


def build() -> dict[str, Any]:
    """One object of every public class that is built from data, small enough for milliseconds."""
    import ribbit as rb

    rng = np.random.default_rng(SEED)
    x = rng.normal(size=(12, 2))
    y = x[:, 0] + 0.1 * rng.normal(size=12)
    made: dict[str, Any] = {"x": x, "y": y}
    made["Model"] = rb.mlp(2, (3,), 1)
    made["Dense"] = rb.Dense(1)
    made["Normal"], made["Gaussian"], made["Categorical"] = (
        rb.Normal(1.0),
        rb.Gaussian(0.3),
        rb.Categorical(),
    )
    made["Learned scale"] = rb.Normal(rb.HalfNormal(1.0), per="layer")
    target = rb.Posterior(made["Model"], x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian())
    made["Posterior"] = target
    made["Posterior of classes"] = rb.Posterior(
        rb.mlp(2, (3,), 3), x, np.arange(12) % 3, prior=rb.Normal(1.0), likelihood=rb.Categorical()
    )
    made["Posterior of counts"] = rb.Posterior(
        rb.mlp(2, (3,), 1), x, np.arange(12) % 5, prior=rb.Normal(1.0), likelihood=rb.Poisson()
    )
    dropout = rb.Model(
        [rb.Dense(3), rb.Activation("tanh"), rb.Dropout(0.1), rb.Dense(1)], input_shape=(2,)
    )
    made["Posterior with dropout"] = rb.Posterior(
        dropout, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    )
    made["CallableDensity"] = rb.CallableDensity(lambda q: (-0.5 * q @ q, -q), 3)
    short = {"warmup": 2, "chains": 2, "progress": False}
    made["HMC"] = rb.HMC(target, step_size=0.01, num_leapfrog_steps=2)
    made["NUTS"] = rb.NUTS(target, step_size=0.01)
    made["MCLMC"] = rb.MCLMC(target, step_size=0.01, decoherence_length=0.1)
    made["SGLD"] = rb.SGLD(target, step_size=1e-6, batch_size=4)
    made["SGHMC"] = rb.SGHMC(target, step_size=1e-6, batch_size=4)
    made["BAOAB"] = rb.BAOAB(target, step_size=1e-6, batch_size=4)
    made["State"] = made["HMC"].init(target.init(0, chains=2), seed=0)
    made["Draws"] = made["HMC"].sample(8, **short)
    made["Draws of NUTS"] = made["NUTS"].sample(4, **short)
    made["Draws of SGLD"] = made["SGLD"].sample(4, thin=1, **short)
    made["Draws of a callable"] = rb.HMC(
        made["CallableDensity"], step_size=0.1, num_leapfrog_steps=2
    ).sample(4, **short)
    made["Draws of classes"] = rb.HMC(
        made["Posterior of classes"], step_size=0.01, num_leapfrog_steps=2
    ).sample(4, **short)
    made["Prediction"] = made["Draws"].predict(x)
    made["Prediction of classes"] = made["Draws of classes"].predict(x)
    made["Summary"] = made["Draws"].summary(x)
    for name, fitter in (
        ("BBB", rb.BBB(target)),
        ("DeepEnsemble", rb.DeepEnsemble(target, members=2)),
        ("SWAG", rb.SWAG(target)),
        ("LaplaceApproximation", rb.LaplaceApproximation(target)),
        ("MCDropout", rb.MCDropout(made["Posterior with dropout"])),
    ):
        made[name] = fitter
        made[f"Fit of {name}"] = fitter.fit(2, seed=0, progress=False)
    made["EnsembleFit"] = made["Fit of DeepEnsemble"]
    made["EnsembleStart"] = rb.EnsembleStart()
    made["Converged"] = rb.Converged()
    made["Scaler"] = rb.datasets.standardize(x, y)
    with contextlib.suppress(ImportError):
        from ribbit.sklearn import BNNClassifier, BNNRegressor

        quick = {"method": "ensemble", "epochs": 1, "chains": 2, "hidden": (3,), "draws": 4}
        made["BNNRegressor"] = BNNRegressor(**quick).fit(x, y)
        made["BNNClassifier"] = BNNClassifier(**quick).fit(x, (y > 0).astype(int))
    return made


def surface(made: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """Every public callable by name: functions, classes, methods and properties of `made`."""
    import ribbit as rb

    found: dict[str, Callable[..., Any]] = {}
    places = [("", rb), *((f"{room}.", getattr(rb, room)) for room in ROOMS)]
    for prefix, place in places:
        for name in place.__all__:
            value = getattr(place, name)
            if callable(value) and name not in NOT_CALLED:
                found[prefix + name] = value
    for label, value in made.items():
        if isinstance(value, np.ndarray):
            continue
        for name in dir(type(value)):
            if name.startswith("_") or name in NOT_CALLED:
                continue
            member = inspect.getattr_static(type(value), name)
            if isinstance(member, property) or not callable(getattr(type(value), name)):
                found[f"{label}.{name}"] = functools.partial(getattr, value, name)
            else:
                found[f"{label}.{name}"] = getattr(value, name)
    return found


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def _arguments(
    function: Callable[..., Any],
    rng: np.random.Generator,
    right: dict[str, list[Any]],
    anything: list[Any],
) -> dict[str, Any]:
    """Choose arguments: most plausible, one or two wrong, some missing."""
    names = [
        p for p in _parameters(function) if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    wrong = set(rng.choice(len(names), size=min(len(names), 1 + rng.integers(2)))) if names else ()
    chosen: dict[str, Any] = {}
    for i, parameter in enumerate(names):
        needed = parameter.default is parameter.empty
        name = parameter.name
        if i in wrong:
            if rng.random() < 0.1 and needed:
                continue  # missing
            value = anything[rng.integers(len(anything))]
        elif needed or rng.random() < 0.3:
            plausible = right.get(name, anything)
            value = plausible[rng.integers(len(plausible))]
        else:
            continue
        if isinstance(value, int) and abs(value) > 2**31 and not needed and name != "seed":
            value = 2**31  # a run of 2**63 draws is no hang of a check
        chosen[name] = value
    if "progress" in {p.name for p in names}:
        chosen.setdefault("progress", False)
    return chosen


def _alarm(*_: Any) -> None:
    raise Hang


def worker(start: int, step: int, calls: int) -> None:
    """Make the calls start, start + step, ... and print what came of each as a line of JSON."""
    import matplotlib

    matplotlib.use("Agg")
    faulthandler.enable()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    signal.signal(signal.SIGALRM, _alarm)
    made = build()
    functions = surface(made)
    names = list(functions)
    right = _right(np.random.default_rng(0), made)
    anything = _anything(made)
    out = sys.stdout
    for index in range(start, calls, step):
        rng = np.random.default_rng([SEED, index])
        name = names[index % len(names)]
        arguments = _arguments(functions[name], rng, right, anything)
        told = ", ".join(f"{k}={_short(v)}" for k, v in arguments.items())
        print(json.dumps({"index": index, "call": f"{name}({told})"}), file=out, flush=True)
        verdict, said = "fine", ""
        faulthandler.dump_traceback_later(3 * LIMIT, exit=True)
        signal.setitimer(signal.ITIMER_REAL, LIMIT)
        try:
            with contextlib.redirect_stdout(None):
                result = functions[name](**arguments)
                if inspect.isgenerator(result):
                    next(result, None)
        except Hang:
            verdict = "hang"
        except (KeyboardInterrupt, SystemExit) as error:
            verdict, said = "internal", repr(error)
        except INTERNAL as error:
            if not _by_design(error):
                verdict, said = "internal", _last(error)
        except Exception as error:
            if "NoneType" in str(error):
                verdict, said = "internal", _last(error)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            faulthandler.cancel_dump_traceback_later()
        print(json.dumps({"verdict": verdict, "said": said}), file=out, flush=True)
        if index % 97 == 0:
            from matplotlib import pyplot

            pyplot.close("all")


def _by_design(error: BaseException) -> bool:
    """Whether the error has the library's own text: hasattr() must say no of what is not there."""
    return isinstance(error, AttributeError) and str(error).startswith("[")


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return repr(value).split("\n")[0][:40]


def _last(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{type(error).__name__}: {str(error)[:160]} ({Path(frame.filename).name}:{frame.lineno})"
    )


def run(calls: int, start: int = 0, step: int = 1) -> Iterator[dict[str, Any]]:
    """Yield what came of each call; after a crash the next worker goes on."""
    environment = {**os.environ, "RIBBIT_FREE_MEMORY": str(1 << 30), "RIBBIT_NUM_THREADS": "1"}
    environment |= {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    while start < calls:
        command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, "--worker"]
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
    parser.add_argument("--worker", nargs=3, type=int, metavar="N", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(*given.worker)
        return 0
    wrong = 0
    made = 0
    for case in run(given.calls, given.start):
        made += 1
        if case["verdict"] != "fine":
            wrong += 1
            print(f"{case['index']} {case['verdict']}: {case['call']}\n    {case['said']}")
    print(f"{made} calls, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
