"""Draws and fits of the plain values and arrays that a file or a folder holds.

What no run can have left there raises ValueError or KeyError; `archive.reading` adds the file.

Shapes: C chains, D draws, P parameters, M members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ribbit.results import archive
from ribbit.results.archive import FLOATS, Arrays, Table, check_array, check_arrays, whole
from ribbit.results.draws import Draws
from ribbit.results.fits import DropoutFit, EnsembleFit, MeanField
from ribbit.results.laplace import LaplaceFit
from ribbit.results.prediction import Prediction
from ribbit.results.running import RunningPrediction
from ribbit.results.state import AnyState
from ribbit.results.swag import SWAGFit

if TYPE_CHECKING:
    import numpy.typing as npt

Fit: TypeAlias = MeanField | DropoutFit | EnsembleFit | SWAGFit | LaplaceFit

_DRAWS: Table = {
    "positions": (FLOATS, "CDP", "finite"),
    "warmup_positions": ("like", "CWP", "finite"),
    "monitored": ("float64", "C??", "any"),
}
_FITS: dict[str, Table] = {
    "MeanField": {
        "mean": (FLOATS, "P", "finite"),
        "elbo": ("float64", "?", "any"),
        "expected_log_likelihood": ("float64", "?", "any"),
        "kl": ("float64", "?", "any"),
        "state/arrays": ("like", "6P", "finite"),
        "state/records": ("float64", "3?", "any"),
    },
    "EnsembleFit": {"theta": (FLOATS, "MP", "finite")},
    "DropoutFit": {"theta": (FLOATS, "P", "finite"), "rates": ("float64", "?", "finite")},
    "SWAGFit": {
        "mean": ("float64", "MP", "finite"),
        "squares": ("float64", "MP", "not negative"),
        "deviations": (FLOATS, "MKP", "finite"),
        "state/position": ("like", "MP", "finite"),
    },
    "LaplaceFit": {"mean": (FLOATS, "P", "finite"), "factor": ("float64", "QQ", "finite")},
}


class Rows(NamedTuple):
    """Draws that lie in files of their own."""

    draws: tuple[Any, Arrays]  # positions and statistics
    warmup: tuple[Any, Arrays] | tuple[None, None]
    predictions: Any  # kept in place of positions
    entire: bool  # whether no draw is missing


def draws_of(
    header: dict[str, Any], arrays: Arrays, predictive: Any, rows: Rows | None = None
) -> Draws:
    """Return the draws of a header and arrays; `rows`: of a folder, if it is one."""
    state = archive.state_of(header, arrays)
    if rows is None:
        rows = _rows_of(header, arrays, predictive, state)
    positions, stats = rows.draws
    seconds = header.get("seconds")
    if seconds is not None and not 0.0 <= _number("seconds", seconds) < 1e15:
        raise ValueError(f"seconds are not a number >= 0: {seconds!r:.60}")
    return Draws(
        positions=positions,
        stats=stats,
        complete=_complete(header) and rows.entire,
        state=state if rows.entire else None,
        settings=_settings(header, positions.shape[0]),
        predictive=predictive,
        prediction=_prediction(header, arrays, predictive, rows) if rows.entire else None,
        warmup_positions=rows.warmup[0],
        warmup_stats=rows.warmup[1],
        seconds=seconds,
        monitored=arrays.get("monitored") if rows.entire else None,
    )


def _rows_of(
    header: dict[str, Any], arrays: Arrays, predictive: Any, state: AnyState | None
) -> Rows:
    """Return the draws of a file, which has them among its arrays."""
    positions = arrays["positions"]
    check_arrays(arrays, _DRAWS)
    chains, draws, dim = positions.shape
    if predictive is not None and predictive.dim != dim:
        raise ValueError(f"positions {positions.shape} of a model of dim {predictive.dim}")
    if state is not None:  # without the parameters that were integrated out
        part = whole("integrated", (header["predictive"] or {}).get("integrated", 0), below=dim)
        shape = (chains, dim - part)
        check_array("state/position", state.position, positions.dtype.name, shape)
    # Draws that differ by their number alone share one position.
    repeated = whole("repeated", header.get("repeated", 0), below=2**32)
    if repeated and draws != 1:
        raise ValueError(f"positions {positions.shape} repeated {repeated} times")
    if repeated:
        positions = np.broadcast_to(positions, (chains, repeated, dim))
    stats, warm = _statistics(arrays, "stats", positions), arrays.get("warmup_positions")
    warmup = (None, None) if warm is None else (warm, _statistics(arrays, "warmup_stats", warm))
    return Rows((positions, stats), warmup, None, entire=True)


def _statistics(arrays: Arrays, group: str, positions: npt.NDArray[Any]) -> Arrays:
    """Return statistics: numbers (C, D), as many as the positions (C, D, P) where these exist."""
    found, (chains, draws, _) = archive.get(arrays, group), positions.shape
    for name, values in found.items():
        number = values.dtype.name if values.dtype.kind in "biuf" else "a number"
        check_array(f"{group}/{name}", values, number, (chains, draws or None))
        draws = values.shape[1]
    return found


def _prediction(
    header: dict[str, Any], arrays: Arrays, predictive: Any, rows: Rows
) -> Prediction | None:
    """Return the predictions that a run gathered, if it did."""
    if header.get("prediction") is None or predictive is None:
        return None
    found = archive.get(arrays, "prediction")
    predictive.check_inputs(found["x"])
    running = RunningPrediction(predictive, found["x"], None, dim=1, keep=True, function="load")
    running.restore(header["prediction"], found)
    kept = rows.draws[0] if rows.draws[0].shape[1] else None
    return Prediction(
        predictive, running.x, positions=kept, running=running, samples=rows.predictions
    )


def fit_of(header: dict[str, Any], arrays: Arrays, predictive: Any) -> Fit:
    """Return the fit of a header and arrays."""
    kind = header["fit"]
    if kind not in _FITS:
        raise ValueError(f"a fit of the kind {kind!r}")
    check_arrays(arrays, _FITS[kind])
    common: dict[str, Any] = {"complete": _complete(header), "settings": _settings(header, 1)}
    if kind == "MeanField":
        names = ("mean", "scale", "elbo", "expected_log_likelihood", "kl")
        fields: dict[str, Any] = {name: arrays[name] for name in names}
        if "steps" in header:
            step = whole("steps/step", header["steps"]["step"], below=2**40)
            seed = whole("steps/seed", header["steps"]["seed"], below=2**64)
            fields["state"] = arrays["state/arrays"], step, seed, arrays["state/records"]
        return MeanField(**fields, **common, predictive=predictive)
    common |= {"state": archive.state_of(header, arrays), "history": archive.get(arrays, "history")}
    for name, values in common["history"].items():
        if values.dtype.name != "float64":
            raise ValueError(f"history/{name} is {values.dtype}")
    if kind == "DropoutFit":
        return DropoutFit(arrays["theta"], arrays["rates"], **common, target=predictive)
    common["predictive"] = predictive
    if kind == "SWAGFit":
        return SWAGFit(**_collected(header["collected"], arrays), **common)
    if kind == "LaplaceFit":
        return LaplaceFit(**_curvature(header["curvature"], arrays), **common)
    return EnsembleFit(arrays["theta"], **common)


def _collected(counts: Any, arrays: Arrays) -> dict[str, Any]:
    """Return moments and deviations of a SWAGFit, which fit each other."""
    found: dict[str, Any] = {name: arrays[name] for name in ("mean", "squares", "deviations")}
    count = whole("collected/count", counts["count"], below=2**40)
    rank = found["deviations"].shape[1]
    if rank > count or min(count, 2) > rank:
        raise ValueError(f"{rank} deviations of {count} iterates")
    first = counts["first_step"]
    if count or first is not None:
        whole("collected/first_step", first, below=2**63)
    return {**found, "count": count, "first_step": first}


def _curvature(numbers: Any, arrays: Arrays) -> dict[str, Any]:
    """Return mode, factor and numbers of a LaplaceFit, which fit each other."""
    mean, factor = arrays["mean"], arrays["factor"]
    if np.tril(factor, -1).any() or not (np.diagonal(factor) > 0).all():
        raise ValueError("factor is not upper triangular with a positive diagonal")
    first, size = whole("curvature/first", numbers["first"], below=2**63), len(factor)
    if first + size > len(mean):
        raise ValueError(f"a factor of {size} from parameter {first} of {len(mean)} on")
    tuning = archive.get(arrays, "tuning")
    for name, values in tuning.items():
        check_array(f"tuning/{name}", values, "float64", (None,), "finite")
    names = ("log_density", "newton_decrement", "effective_parameters")
    found = {name: _number(f"curvature/{name}", numbers[name]) for name in names}
    return {"mean": mean, "factor": factor, "first": first, "tuning": tuning, **found}


def _number(name: str, value: Any) -> float:
    """Return a number of a header."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is no number: {value!r:.60}")
    return float(value)


def _complete(header: dict[str, Any]) -> bool:
    """Return whether a run or fit is complete."""
    value = header["complete"]
    if not isinstance(value, bool):
        raise ValueError(f"complete is not true or false: {value!r:.60}")
    return value


def module_of(header: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a module in a file, as an entry of the settings, or {}."""
    described = header["predictive"]
    known = isinstance(described, dict) and isinstance(described.get("module"), dict)
    return {"module": described["module"]} if known else {}


def _settings(header: dict[str, Any], chains: int) -> dict[str, Any]:
    """Return the settings, with the description of a module in the file."""
    value = header["settings"]
    if not isinstance(value, dict):
        raise ValueError("settings are no dict")
    if "seed" in value:
        whole("settings/seed", value["seed"], below=2**64)
    ids = value.get("chains")
    if ids is not None and not (isinstance(ids, list) and len(ids) == chains):
        raise ValueError(f"settings/chains are not {chains} ids")
    for number in ids or []:
        whole("settings/chains", number, below=2**32)
    return dict(value) | module_of(header)
