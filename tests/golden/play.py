"""Make a run and record what came of it."""

from __future__ import annotations

import dataclasses
import hashlib
import platform
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import ribbit as rb
from tests.golden import targets
from tests.golden.table import Fit, Run

__all__ = ["key", "on", "plain", "result", "sampled", "sha"]

FEW = 8  # numbers that a record shows in full
# What a run finds in warmup, by the fields of states.
FOUND = (
    "step_size",
    "num_steps",
    "decoherence_length",
    "energy_squares",
    "inverse_mass",
    "mixing",
)
# Settings that say nothing of the run: versions, and what a record has elsewhere.
ELSEWHERE = ("versions", "stopped")


def key() -> dict[str, str]:
    """Return what last bits depend on: functions of Python and NumPy, AVX-512's reciprocals."""
    cpu = Path("/proc/cpuinfo")
    vendor = re.search(r"vendor_id\s*:\s*(\w+)", cpu.read_text() if cpu.exists() else "")
    return {
        "libc": " ".join(platform.libc_ver()),
        "machine": platform.machine(),
        "numpy": np.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "vendor": vendor[1] if vendor else "",
    }


def sha(array: Any) -> str:
    """Return the SHA-256 of an array's dtype, shape and numbers."""
    host = np.ascontiguousarray(array)
    head = f"{host.dtype.str}{np.shape(array)}".encode()
    return hashlib.sha256(head + host.tobytes()).hexdigest()


def numbers(array: Any) -> list[Any]:
    """Return numbers that JSON holds exactly: floats as hex."""
    flat = np.asarray(array).reshape(-1)
    return [float(v).hex() if flat.dtype.kind == "f" else v.item() for v in flat]


def shown(array: Any) -> Any:
    """Return the numbers of a small array; of a large one its SHA-256, its first and its last."""
    flat = np.asarray(array).reshape(-1)
    if flat.size <= FEW:
        return numbers(flat)
    return {"sha256": sha(array), "first": numbers(flat[:1]), "last": numbers(flat[-1:])}


def ends(draw: Any) -> list[Any]:
    """Return the numbers of a draw (1, P) or (0, P), of a long one the first and last four."""
    host = np.asarray(draw).reshape(-1)
    return numbers(host if host.size <= FEW else np.concatenate([host[:4], host[-4:]]))


def plain(value: Any) -> Any:
    """Return a setting as JSON holds it; long lists of numbers as `shown`."""
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        if len(value) > FEW and all(isinstance(one, int | float) for one in value):
            return shown(value)
        return [plain(one) for one in value]
    if isinstance(value, np.generic | np.ndarray):
        return shown(value)
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def started(given: Any, target: Any) -> Any:
    """Return ``init=`` of a call: a fit is made first."""
    if not isinstance(given, Fit):
        return given
    kernel = getattr(rb, given.kernel)
    if not given.call:  # fitted by the run itself
        return kernel(**given.options)
    return fitted(kernel(target, **given.options), given.call)


def fitted(kernel: Any, call: dict[str, Any], **more: Any) -> Any:
    """Make a fit."""
    call = {**call, **more}
    return kernel.fit(call.pop("num"), progress=False, **call)


def sampled(sampler: Any, call: dict[str, Any], **more: Any) -> rb.Draws:
    """Make a run of a sampler."""
    call = {**call, **more}
    return sampler.sample(call.pop("num"), progress=False, **call)


def made(run: Run, target: Any) -> tuple[Any, Any]:
    """Return the kernel of a run, and its draws or fit; or the error that ended it."""
    kernel = getattr(rb, run.kernel)(target, **run.options)
    call = dict(run.call)
    if "init" in call:
        call["init"] = started(call["init"], target)
    try:
        return kernel, (sampled if hasattr(kernel, "sample") else fitted)(kernel, call)
    except ValueError as error:
        return kernel, error


def on(run: Run, kernel: Any, found: Any) -> Any:
    """Return what came of going on from the end of a run."""
    if hasattr(kernel, "sample"):
        same = {name: run.call[name] for name in ("thin",) if name in run.call}
        return sampled(kernel, {**same, **run.more}, resume=found)
    return fitted(kernel, run.more, resume=found)


def arrays_of(record: Any) -> dict[str, Any]:
    """Return the arrays of a fit by the names of its fields."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if isinstance(value, dict) and field.name != "settings":
            found |= {f"{field.name}/{name}": one for name, one in value.items()}
        elif isinstance(value, np.ndarray | np.generic | float):
            found[field.name] = value
    return found


def in_state(state: Any, name: str) -> Any:
    """Return what a state has under a name, or the name and "_matrix"; None: nothing."""
    return getattr(state, name, getattr(state, f"{name}_matrix", None))


def of_draws(draws: rb.Draws) -> dict[str, Any]:
    """Return the record of draws."""
    found: dict[str, Any] = {
        "positions": sha(draws.positions),
        "stats": {name: sha(values) for name, values in draws.stats.items()},
        "first": ends(np.asarray(draws.positions)[0, :1]),
        "last": ends(np.asarray(draws.positions)[-1, -1:]),
        "found": {
            name: shown(value)
            for name in FOUND
            if (value := in_state(draws.state, name)) is not None
        },
        "stopped": plain(draws.settings.get("stopped")),
    }
    kept = [draws.stats]
    if draws.warmup_positions is not None:
        kept.append(draws.warmup_stats)
        found["warmup positions"] = sha(draws.warmup_positions)
        found["warmup stats"] = {name: sha(values) for name, values in draws.warmup_stats.items()}
    if "n_steps" in draws.stats:
        found["gradients"] = sum(int(np.asarray(stats["n_steps"]).sum()) for stats in kept)
    return found


def of_fit(fit: Any) -> dict[str, Any]:
    """Return the record of a fit."""
    draws = (fit.draws() if isinstance(fit, rb.EnsembleFit) else fit.draws(5)).positions
    return {
        "arrays": {name: shown(value) for name, value in arrays_of(fit).items()},
        "draws": sha(draws),
        "first": ends(draws[0, :1]),
        "last": ends(draws[-1, -1:]),
    }


def of_prediction(prediction: Any, y: Any) -> dict[str, Any]:
    """Return the record of predictions."""
    parts = {"log_likelihood": prediction.log_likelihood(y)}
    if prediction.kind == "classification":
        parts["probs"] = prediction.probs
    else:
        lower, upper = prediction.interval(0.9)
        parts |= {"mean": prediction.mean, "sd": prediction.std, "lower": lower, "upper": upper}
    return {name: {"sha256": sha(v), "first": numbers(v)[0]} for name, v in parts.items()}


def result(run: Run, **options: Any) -> dict[str, Any]:
    """Make a run and return its record; `options` are the target's."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel, found = made(run, targets.make(run.target, **options))
        said = sorted(f"{w.category.__name__}: {w.message}" for w in caught)
    record: dict[str, Any] = {"warnings": said}
    if isinstance(found, ValueError):
        record["error"] = f"{type(found).__name__}: {found}"
        found = getattr(found, "draws", None)
        if found is None:
            return record
    settings = {k: plain(v) for k, v in found.settings.items() if k not in ELSEWHERE}
    record |= {"settings": settings}
    record |= of_draws(found) if isinstance(found, rb.Draws) else of_fit(found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if run.predicts:
            x, y = targets.NEW[run.target.split()[0]]()
            record["predict"] = of_prediction(found.predict(x), y)
        if run.more:
            after = on(run, kernel, found)
            numbers_after = after if isinstance(after, rb.Draws) else after.draws(5)
            record["more"] = sha(numbers_after.positions)
    return record
