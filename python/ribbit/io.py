"""Reading draws and fits from files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.keywords import explain
from ribbit._arrays.packages import need
from ribbit.errors import DataError
from ribbit.results import archive
from ribbit.results.contents import check_array, check_chains, check_statistics, whole
from ribbit.results.draws import Draws
from ribbit.results.fits import DropoutFit, EnsembleFit, MeanField
from ribbit.results.laplace import LaplaceFit
from ribbit.results.prediction import Prediction
from ribbit.results.running import RunningPrediction
from ribbit.results.store import checkpoint
from ribbit.results.store.stored import StoredArray, StoredStatistics
from ribbit.results.swag import SWAGFit
from ribbit.targets.predictive import predictive_from_description

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["load"]

_NAME = "load"
_EXPECTED = "a file of draws or of a fit, or the folder of a run"

Fit: TypeAlias = MeanField | DropoutFit | EnsembleFit | SWAGFit | LaplaceFit


def load(path: str | os.PathLike[str], *, rescue: bool = False) -> Draws | Fit:
    """Return draws or a fit from a file, or from the folder of a run.

    Files are written by :meth:`ribbit.Draws.save` and by ``save`` of a fit. Arrays are read as
    NumPy arrays. The result predicts and resumes like the one that was saved.

    Folders are written by ``sample(store=)`` and ``fit(store=)``. You can load a folder during the
    run: the result has the draws up to the last checkpoint. ``draws.positions`` and ``draws.stats``
    are read from the folder on use, and every file is compared with its checksum.

    Parameters
    ----------
    path
        Path of the file or folder.
    rescue : bool
        For a damaged folder, return the draws before the damage.

    Returns
    -------
    Draws, MeanField, DropoutFit, EnsembleFit, SWAGFit or LaplaceFit
        With ``complete=False`` if a run in a folder has not ended. Rescued draws cannot be resumed
        if some are missing.

    Raises
    ------
    FileNotFoundError
        If the path does not exist, or the folder has no run.
    DataError
        A ValueError: the file is damaged, truncated, of another format or a newer version, or has
        invalid contents. In a folder, damage to draws is found when they are read.
    MemoryError
        If the arrays of a file do not fit into free memory.
    ImportError
        If the path is a folder and zarr (extra ``store``) is missing.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> hmc = rb.HMC(target, step_size=0.05, num_leapfrog_steps=10)
    >>> draws = hmc.sample(20, warmup=0, seed=1, progress=False, store="run")
    >>> rb.load("run").predict(x).mean.shape
    (20, 1)
    >>> draws.save("draws.npz")
    >>> bool((rb.load("draws.npz").positions == draws.positions).all())
    True
    >>> rb.BBB(target).fit(20, progress=False).save("fit.npz")
    >>> rb.load("fit.npz").predict(x).mean.shape
    (20, 1)
    """
    source = checks.path(_NAME, path)
    rescue = checks.boolean(_NAME, "rescue", rescue)
    source = Path(os.path.abspath(source))
    if not source.exists():
        raise FileNotFoundError(f"[{_NAME}] expected {_EXPECTED}, got none at {source}")
    if source.is_dir() or source.name == "zarr.json":
        return _run(source, rescue)
    with archive.opened(_NAME, source, "draws or a fit") as (header, arrays):
        if "fit" in header:
            return _build_fit(header, arrays)
        if "run" in header:
            raise DataError(
                f"[{_NAME}] expected {_EXPECTED}, got the checkpoint of a run: use "
                f"rb.load({os.path.dirname(source)!r})"
            )
        return _build(header, arrays)


def _run(folder: Path, rescue: bool) -> Draws | Fit:
    """Return the draws, or the fit so far, of the run in a folder."""
    if not checkpoint.exists(folder):
        got = f"got a folder without a checkpoint: {folder}"
        if run := next(filter(checkpoint.exists, folder.parents[:3]), None):
            got = f"got a part of a run: use rb.load({str(run)!r})"
        elif folder.is_dir():
            parts = [
                one for one in folder.iterdir() if one.suffix == ".npz" or checkpoint.exists(one)
            ]
            got += f", which holds {', '.join(sorted(one.name for one in parts)[:9])}" * bool(parts)
        raise FileNotFoundError(f"[{_NAME}] expected {_EXPECTED}, {got}")
    need(_NAME, "google_crc32c", "zarr")
    for part in (checkpoint.NAME, checkpoint.PREVIOUS):
        try:
            with checkpoint.opened(_NAME, folder, part) as (header, arrays):
                if header["run"]["kind"] == "fit":
                    return _build_fit(header, arrays)
                return _build_run(folder, header, arrays, rescue)
        except DataError:
            if not rescue or part == checkpoint.PREVIOUS or not _has_previous(folder):
                raise
    raise AssertionError


def _has_previous(folder: Path) -> bool:
    return (folder / checkpoint.PREVIOUS).exists()


def _build_run(
    folder: Path, header: dict[str, Any], arrays: dict[str, npt.NDArray[Any]], rescue: bool
) -> Draws:
    """Draws of a checkpoint, on the disk; ValueError or KeyError for what no run can have left."""
    stored = checkpoint.stored_layouts(header, arrays)
    if not rescue:
        checkpoint.check_metadata(_NAME, folder, header["run"]["metadata"])
    state = checkpoint.state_of(header, arrays)
    counted = header["run"]["kept"], header["run"]["warm"]
    kept, warm = counted
    if rescue:
        kept, warm = map(min, checkpoint.valid_prefix(_NAME, folder, stored), counted)
    whole_run = (kept, warm) == counted
    found = {
        name: StoredArray(
            folder,
            layout,
            warm if name.startswith("warmup_") else kept,
            digests,
            checked=count,
        )
        for name, (layout, count, digests) in stored.items()
    }
    chains, dim = state.position.shape
    predictive = _predictive(header)
    if predictive is not None:
        dim = predictive.dim
    positions: Any = found.get("posterior/theta", np.empty((chains, 0, dim), state.position.dtype))
    prediction = None
    if whole_run:
        samples = found.get("predictions/mean")
        prediction = _prediction(header, arrays, predictive, positions, samples)
    warmup = found.get("warmup_posterior/theta")
    return Draws(
        positions=positions,
        stats=_statistics(found, "sample_stats/"),
        complete=_flag(header["complete"]) and whole_run,
        state=state if whole_run else None,
        settings=_settings(header, chains),
        predictive=predictive,
        prediction=prediction,
        warmup_positions=warmup,
        warmup_stats=None if warmup is None else _statistics(found, "warmup_sample_stats/"),
        seconds=_seconds(header.get("seconds")),
        monitored=arrays.get("watch/kept") if whole_run else None,
    )


def _prediction(
    header: dict[str, Any],
    arrays: dict[str, Any],
    predictive: Any,
    positions: Any,
    samples: Any = None,
) -> Prediction | None:
    """Return the predictions that a run gathered, if it did."""
    if header["prediction"] is None or predictive is None:
        return None
    found = archive.get(arrays, "prediction")
    predictive.check_inputs(found["x"])
    running = RunningPrediction.unpack(predictive, header["prediction"], found)
    kept = positions if positions.shape[1] else None
    return Prediction(predictive, running.x, positions=kept, running=running, samples=samples)


def _statistics(found: dict[str, StoredArray], group: str) -> Any:
    return StoredStatistics(
        {k.removeprefix(group): v for k, v in found.items() if k.startswith(group)}
    )


def _build_fit(header: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Fit:
    kind = header["fit"]
    predictive = _predictive(header)
    common: dict[str, Any] = {"complete": _flag(header["complete"])}
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


def _build(header: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Draws:
    """Draws of a header and arrays; ValueError or KeyError for what no run can have written."""
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
    predictive = _predictive(header)
    if predictive is not None and predictive.dim != positions.shape[2]:
        raise ValueError(f"positions {positions.shape} of a model of dim {predictive.dim}")
    return Draws(
        positions=positions,
        stats=stats,
        complete=_flag(header["complete"]),
        state=archive.state_of(header, arrays, _sampled(header, positions)),
        settings=_settings(header, positions.shape[0]),
        predictive=predictive,
        prediction=_prediction(header, arrays, predictive, positions),
        warmup_positions=warmup_positions,
        warmup_stats=warmup_stats,
        seconds=_seconds(header.get("seconds")),
        monitored=monitored,
    )


def _positions(header: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
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


def _collected(counts: Any, arrays: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
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


def _curvature(numbers: Any, arrays: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
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


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"complete is not true or false: {value!r:.60}")
    return value


def _predictive(header: dict[str, Any]) -> Any:
    """Return what predicts; None without it, or if it is a module, which a file does not hold."""
    described = header["predictive"]
    if described is None or _module(header):
        return None
    return predictive_from_description(described)


def _module(header: dict[str, Any]) -> dict[str, Any]:
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
    return dict(value) | _module(header)


explain(globals())
