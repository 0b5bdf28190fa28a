"""Draws read from files, with what they need to predict and to go on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit.results import archive
from ribbit.results.draws import Draws
from ribbit.results.prediction import Prediction
from ribbit.results.running import RunningPrediction
from ribbit.targets.predictive import predictive_from_description

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["load_draws"]


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
        return _build(header, arrays)


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
