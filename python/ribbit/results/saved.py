"""Draws and fits of the plain values and arrays that a file holds.

A file whose checksums are right may still be written by others: what no run can have left there
raises ValueError or KeyError, and the reader of the file adds its name.

Shapes: C chains, D draws, P parameters, R parameters that move, M members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit.results import archive
from ribbit.results.contents import check_array, check_chains, check_statistics, whole
from ribbit.results.draws import Draws
from ribbit.results.fits import DropoutFit, EnsembleFit, MeanField
from ribbit.results.laplace import LaplaceFit
from ribbit.results.prediction import Prediction
from ribbit.results.running import RunningPrediction
from ribbit.results.swag import SWAGFit

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Fit", "draws_of", "fit_of", "flag", "module_of", "run_of"]

Arrays: TypeAlias = "dict[str, npt.NDArray[Any]]"
Fit: TypeAlias = MeanField | DropoutFit | EnsembleFit | SWAGFit | LaplaceFit


def run_of(
    header: dict[str, Any],
    arrays: Arrays,
    predictive: Any,
    draws: tuple[Any, Arrays],
    warmup: tuple[Any, Arrays] | tuple[None, None],
    samples: Any,
    *,
    entire: bool,
) -> Draws:
    """Return the draws of a run in a folder; `entire`: all that its state counts.

    draws, warmup: positions, None where none are kept, and statistics.
    """
    check_chains("state/position", arrays["state/position"][:, None, ...])
    state = archive.state_of(header, arrays, arrays["state/position"][:, None, :])
    if state is None:
        raise ValueError("no state")
    chains, dim = state.position.shape
    dim = dim if predictive is None else predictive.dim
    positions = draws[0]
    if positions is None:
        positions = np.empty((chains, 0, dim), state.position.dtype)
    return Draws(
        positions=positions,
        stats=draws[1],
        complete=flag(header["complete"]) and entire,
        state=state if entire else None,
        settings=_settings(header, chains),
        predictive=predictive,
        prediction=_prediction(header, arrays, predictive, positions, samples) if entire else None,
        warmup_positions=warmup[0],
        warmup_stats=warmup[1],
        seconds=_seconds(header["seconds"]),
        monitored=arrays.get("watch/kept") if entire else None,
    )


def _prediction(
    header: dict[str, Any],
    arrays: dict[str, Any],
    predictive: Any,
    positions: Any,
    samples: Any = None,
) -> Prediction | None:
    """Return the predictions that a run gathered, if it did."""
    if header.get("prediction") is None or predictive is None:
        return None
    found = archive.get(arrays, "prediction")
    predictive.check_inputs(found["x"])
    running = RunningPrediction.unpack(predictive, header["prediction"], found)
    kept = positions if positions.shape[1] else None
    return Prediction(predictive, running.x, positions=kept, running=running, samples=samples)


def fit_of(header: dict[str, Any], arrays: Arrays, predictive: Any) -> Fit:
    """Return the fit of a header and arrays; ValueError or KeyError for no fit's contents."""
    kind = header["fit"]
    common: dict[str, Any] = {"complete": flag(header["complete"])}
    common["settings"] = _settings(header, 1)
    if kind == "MeanField":
        names = ("mean", "scale", "elbo", "expected_log_likelihood", "kl")
        state = None
        mean = arrays["mean"]
        check_array("mean", mean, ("float32", "float64"), (None,), "finite")
        if "steps" in header:
            moments, records = arrays["state/arrays"], arrays["state/records"]
            check_array("state/arrays", moments, mean.dtype.name, (6, len(mean)), "finite")
            check_array("state/records", records, "float64", (3, None))
            step = whole("steps/step", header["steps"]["step"], below=2**40)
            seed = whole("steps/seed", header["steps"]["seed"], below=2**64)
            state = moments, step, seed, records
        for name in names[2:]:
            check_array(name, arrays[name], "float64", (None,))
        fields: dict[str, Any] = {name: arrays[name] for name in names}
        return MeanField(**fields, **common, predictive=predictive, state=state)
    theta = arrays["mean" if kind in ("SWAGFit", "LaplaceFit") else "theta"]
    check_chains("theta", np.atleast_2d(theta)[:, None, :])
    more: dict[str, Any] = {"state": None, "history": archive.get(arrays, "history")}
    if header["state"] is not None:
        members = arrays["state/position"][:, None, ...]
        check_chains("state/position", members)
        more["state"] = archive.state_of(header, arrays, members)
    for name, values in more["history"].items():
        if values.dtype.name != "float64":
            raise ValueError(f"history/{name} is {values.dtype}")
    if kind == "SWAGFit":
        collected = _collected(header["collected"], arrays)
        return SWAGFit(theta, **collected, **common, predictive=predictive, **more)
    if kind == "LaplaceFit":
        curvature = _curvature(header["curvature"], arrays)
        return LaplaceFit(theta, **curvature, **common, predictive=predictive, **more)
    if kind == "EnsembleFit":
        return EnsembleFit(theta, **common, predictive=predictive, **more)
    if kind != "DropoutFit":
        raise ValueError(f"a fit of the kind {kind!r}")
    check_array("rates", arrays["rates"], "float64", (None,), "finite")
    return DropoutFit(theta, arrays["rates"], **common, target=predictive, **more)


def draws_of(header: dict[str, Any], arrays: Arrays, predictive: Any) -> Draws:
    """Return the draws of a header and arrays; ValueError or KeyError for no run's contents."""
    positions = _positions(header, arrays)
    stats = archive.get(arrays, "stats")
    check_statistics("stats", stats, positions)
    warmup_positions, warmup_stats = arrays.get("warmup_positions"), None
    if warmup_positions is not None:
        chains, _, dim = positions.shape
        shape = (chains, None, dim)
        name = positions.dtype.name
        check_array("warmup_positions", warmup_positions, name, shape, "finite")
        warmup_stats = archive.get(arrays, "warmup_stats")
        check_statistics("warmup_stats", warmup_stats, warmup_positions)
    if (monitored := arrays.get("monitored")) is not None:
        check_array("monitored", monitored, "float64", (positions.shape[0], None, None))
    if predictive is not None and predictive.dim != positions.shape[2]:
        raise ValueError(f"positions {positions.shape} of a model of dim {predictive.dim}")
    return Draws(
        positions=positions,
        stats=stats,
        complete=flag(header["complete"]),
        state=archive.state_of(header, arrays, _sampled(header, positions)),
        settings=_settings(header, positions.shape[0]),
        predictive=predictive,
        prediction=_prediction(header, arrays, predictive, positions),
        warmup_positions=warmup_positions,
        warmup_stats=warmup_stats,
        seconds=_seconds(header.get("seconds")),
        monitored=monitored,
    )


def _positions(header: dict[str, Any], arrays: Arrays) -> npt.NDArray[Any]:
    """Positions (C, D, P); draws that differ by their number alone share one."""
    positions = arrays["positions"]
    check_chains("positions", positions)
    repeated = whole("repeated", header.get("repeated", 0), below=2**32)
    if not repeated:
        return positions
    chains, kept, dim = positions.shape
    if kept != 1:
        raise ValueError(f"positions {positions.shape} repeated {repeated} times")
    return np.broadcast_to(positions, (chains, repeated, dim))


def _sampled(header: dict[str, Any], positions: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Positions (C, D, R) of the size of a state's: without what was integrated out."""
    described = header["predictive"]
    part = 0 if described is None else described.get("integrated", 0)
    part = whole("integrated", part, below=positions.shape[2])
    return positions[:, :, : positions.shape[2] - part]


def _collected(counts: Any, arrays: Arrays) -> dict[str, Any]:
    """Return what a SWAGFit has beside its mean (M, P): moments and deviations that fit it."""
    mean, squares, deviations = (arrays[name] for name in ("mean", "squares", "deviations"))
    check_array("mean", mean, "float64", (None, None), "finite")
    check_array("squares", squares, "float64", mean.shape, "not negative")
    count = whole("collected/count", counts["count"], below=2**40)
    members, dim = mean.shape
    check_array("deviations", deviations, ("float32", "float64"), (members, None, dim), "finite")
    rank = deviations.shape[1]
    if rank > count or min(count, 2) > rank:
        raise ValueError(f"{rank} deviations of {count} iterates")
    position = arrays.get("state/position")
    if position is not None:
        check_array("state/position", position, deviations.dtype.name, mean.shape)
    first = counts["first_step"]
    if count or first is not None:
        whole("collected/first_step", first, below=2**63)
    return {"squares": squares, "deviations": deviations, "count": count, "first_step": first}


def _curvature(numbers: Any, arrays: Arrays) -> dict[str, Any]:
    """Return what a LaplaceFit has beside its mean (P,): a factor and numbers that fit it."""
    mean, factor = arrays["mean"], arrays["factor"]
    check_array("mean", mean, ("float32", "float64"), (None,), "finite")
    size = factor.shape[0] if factor.ndim else 0
    check_array("factor", factor, "float64", (size, size), "finite")
    if np.tril(factor, -1).any() or not (np.diagonal(factor) > 0).all():
        raise ValueError("factor is not upper triangular with a positive diagonal")
    first = whole("curvature/first", numbers["first"], below=2**63)
    if first + size > len(mean):
        raise ValueError(f"a factor of {size} from parameter {first} of {len(mean)} on")
    found: dict[str, Any] = {"factor": factor, "first": first}
    for name in ("log_density", "newton_decrement", "effective_parameters"):
        value = numbers[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"curvature/{name} is no number: {value!r:.60}")
        found[name] = float(value)
    found["tuning"] = archive.get(arrays, "tuning")
    for name, values in found["tuning"].items():
        check_array(f"tuning/{name}", values, "float64", (None,), "finite")
    return found


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < 1e15:
        raise ValueError(f"seconds are not a number >= 0: {value!r:.60}")
    return float(value)


def flag(value: object) -> bool:
    """Return whether a run is complete, as a file says it."""
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
