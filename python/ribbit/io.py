"""Draws and fits read from files, with what they need to predict and to go on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit.errors import DataError
from ribbit.results import archive
from ribbit.results.draws import Draws
from ribbit.results.fits import DropoutFit, EnsembleFit, MeanField
from ribbit.results.prediction import Prediction
from ribbit.results.running import RunningPrediction
from ribbit.targets.predictive import predictive_from_description

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["load_draws", "load_fit"]


def load_draws(path: str | os.PathLike[str]) -> Draws:
    """Read draws that :meth:`ribbit.Draws.save` wrote.

    Arrays come back as NumPy arrays; ``predict`` and ``resume`` work as on the draws that were
    saved.

    Parameters
    ----------
    path

    Returns
    -------
    Draws

    Raises
    ------
    FileNotFoundError
        When there is no such file.
    DataError
        A ValueError: the file is damaged, cut short, of another format or of a newer version.
    """
    with archive.opened("load_draws", path) as (header, arrays):
        if "fit" in header:
            raise DataError(
                f"[load_draws] expected a file of draws, got a {header['fit']}: use rb.load_fit"
            )
        return _build(header, arrays)


def load_fit(path: str | os.PathLike[str]) -> MeanField | DropoutFit | EnsembleFit:
    """Read a fit that its ``save`` wrote.

    Arrays come back as NumPy arrays; ``draws``, ``predict``, ``resume`` and ``init`` work as on the
    fit that was saved.

    Parameters
    ----------
    path

    Returns
    -------
    MeanField, DropoutFit or EnsembleFit

    Raises
    ------
    FileNotFoundError
        When there is no such file.
    DataError
        A ValueError: the file is damaged, cut short, of another format or of a newer version, or
        holds draws.

    Examples
    --------
    >>> fit.save("fit.npz")  # doctest: +SKIP
    >>> p = rb.load_fit("fit.npz").predict(x_new)  # doctest: +SKIP
    """
    with archive.opened("load_fit", path) as (header, arrays):
        if "fit" not in header:
            raise DataError("[load_fit] expected a file of a fit, got draws: use rb.load_draws")
        return _build_fit(header, arrays)


def _build_fit(
    header: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]
) -> MeanField | DropoutFit | EnsembleFit:
    kind = header["fit"]
    predictive: Any = None
    if header["predictive"] is not None:
        predictive = predictive_from_description(header["predictive"])
    common: dict[str, Any] = {
        "complete": bool(header["complete"]),
        "settings": dict(header["settings"]),
    }
    if kind == "MeanField":
        names = ("mean", "scale", "elbo", "expected_log_likelihood", "kl")
        state = None
        if "steps" in header:
            steps = header["steps"]
            moments, records = arrays["state/arrays"], arrays["state/records"]
            state = moments, int(steps["step"]), int(steps["seed"]), records
        fields: dict[str, Any] = {name: arrays[name] for name in names}
        return MeanField(**fields, **common, predictive=predictive, state=state)
    more: dict[str, Any] = {
        "state": archive.state_of(header, arrays),
        "history": archive.get(arrays, "history"),
    }
    if kind == "EnsembleFit":
        return EnsembleFit(arrays["theta"], **common, predictive=predictive, **more)
    if kind != "DropoutFit":
        raise ValueError(f"a fit of the kind {kind!r}")
    return DropoutFit(arrays["theta"], arrays["rates"], **common, target=predictive, **more)


def _build(header: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Draws:
    positions = arrays["positions"]
    state = archive.state_of(header, arrays)
    if positions.ndim != 3:
        raise ValueError(f"positions {positions.shape} are not (C, D, P)")
    if repeated := int(header.get("repeated", 0)):
        chains, _, dim = positions.shape
        positions = np.broadcast_to(positions, (chains, repeated, dim))
    if state is not None and positions.shape[::2] != state.position.shape:
        raise ValueError(f"positions {positions.shape} and state {state.position.shape} differ")
    predictive: Any = None
    if header["predictive"] is not None:
        predictive = predictive_from_description(header["predictive"])
    prediction = None
    if header["prediction"] is not None and predictive is not None:
        found = archive.get(arrays, "prediction")
        running = RunningPrediction.unpack(predictive, header["prediction"], found)
        prediction = Prediction(
            predictive,
            running.x,
            positions=positions if positions.shape[1] else None,
            running=running,
        )
    warm = "warmup_positions" in arrays
    return Draws(
        positions=positions,
        stats=archive.get(arrays, "stats"),
        complete=bool(header["complete"]),
        state=state,
        settings=dict(header["settings"]),
        predictive=predictive,
        prediction=prediction,
        warmup_positions=arrays["warmup_positions"] if warm else None,
        warmup_stats=archive.get(arrays, "warmup_stats") if warm else None,
        seconds=header.get("seconds"),
    )
