"""Draws in one file: written whole or not at all, read without pickle."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays.namespace import to_host
from ribbit.errors import DataError
from ribbit.results.draws import Draws
from ribbit.results.prediction import Prediction
from ribbit.results.running import RunningPrediction
from ribbit.results.state import (
    Adaptation,
    AnyState,
    DualAveraging,
    State,
    StochasticState,
    Welford,
)

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["load_draws", "save_draws"]

_FORMAT = "ribbit draws"
_VERSION = 1
# Arrays of a state by its kind; those that may be None last.
_STATES: dict[str, tuple[type[AnyState], tuple[str, ...], tuple[str, ...]]] = {
    "State": (
        State,
        (
            "position",
            "logdensity",
            "grad",
            "terms",
            "chains",
            "step_size",
            "num_steps",
            "capped",
        ),
        ("inverse_mass",),
    ),
    "StochasticState": (
        StochasticState,
        ("position", "logdensity", "chains"),
        ("first_moment", "second_moment"),
    ),
}
_DUAL_ARRAYS = ("log_step", "log_average", "error", "centre")


def save_draws(draws: Draws, path: str | os.PathLike[str]) -> None:
    """Write draws to `path`; see :meth:`ribbit.Draws.save`.

    ``draws.prediction`` goes with them.

    The file is a NumPy ``.npz`` (any name will do) whose entry "header" is JSON in UTF-8. It is
    written beside its destination, flushed to the disk, then renamed over it, and the folder is
    flushed: whatever happens meanwhile, the destination holds the old file or the new one.

    Parameters
    ----------
    draws : Draws
    path

    Raises
    ------
    TypeError
        When `path` is no path.
    OSError
        When the folder is missing or cannot be written to.
    """
    destination = _path("Draws.save", path)
    if not destination.parent.is_dir():
        raise FileNotFoundError(
            f"[Draws.save] expected an existing folder, got {destination.parent}"
        )
    positions = to_host(draws.positions)
    # Draws that differ by their number alone, as dropout masks do, share one position.
    repeated = positions.shape[1] if positions.strides[1] == 0 and positions.shape[1] > 1 else 0
    arrays: dict[str, npt.NDArray[Any]] = {"positions": positions[:, :1] if repeated else positions}
    _put(arrays, "stats", draws.stats)
    if draws.warmup_positions is not None:
        arrays["warmup_positions"] = to_host(draws.warmup_positions)
        _put(arrays, "warmup_stats", draws.warmup_stats or {})
    running = None if draws.prediction is None else draws.prediction.running
    gathered: dict[str, Any] | None = None
    if running is not None:
        gathered, found = running.pack()
        _put(arrays, "prediction", found)
    header: dict[str, Any] = {
        "format": _FORMAT,
        "version": _VERSION,
        "complete": draws.complete,
        "settings": draws.settings,
        "predictive": None if draws.predictive is None else draws.predictive.describe(),
        "prediction": gathered,
        "state": None,
        "repeated": repeated,
    }
    if draws.state is not None:
        _put_state(arrays, header, draws.state)
    text = json.dumps(header, default=_plain)
    arrays["header"] = np.frombuffer(text.encode(), dtype=np.uint8)
    _write(destination, arrays)


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
    import zipfile  # numpy too reads it on demand

    name = "load_draws"
    source = _path(name, path)
    try:
        with open(source, "rb") as file:
            start = file.read(4)
        if start != b"PK\x03\x04":  # np.load would advise to allow pickles
            raise DataError(f"[{name}] expected a file of draws, got another format: {source}")
        with open(source, "rb") as file, np.load(file, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile) or "header" not in archive.files:
                raise DataError(f"[{name}] expected a file of draws, got {source} without a header")
            header = json.loads(archive["header"].tobytes().decode())
            if not isinstance(header, dict) or header.get("format") != _FORMAT:
                raise DataError(f"[{name}] expected a file of draws, got another format: {source}")
            if header.get("version") != _VERSION:
                raise DataError(
                    f"[{name}] expected format version {_VERSION}, got {header.get('version')}: "
                    f"{source} (written by another version of Ribbit)"
                )
            arrays = {key: archive[key] for key in archive.files}
        return _build(header, arrays)
    except (DataError, FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except (
        zipfile.BadZipFile,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        EOFError,
        OSError,
        NotImplementedError,  # a damaged compression method
        RuntimeError,  # a damaged encryption flag
        SyntaxError,  # a damaged .npy header
        MemoryError,  # a damaged shape
    ) as error:
        raise DataError(
            f"[{name}] expected a whole file of draws, got a damaged or foreign one: {source} "
            f"({type(error).__name__}: {error})"
        ) from error


def _build(header: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Draws:
    positions = arrays["positions"]
    state = _state(header, arrays)
    if positions.ndim != 3:
        raise ValueError(f"positions {positions.shape} are not (C, D, P)")
    if repeated := int(header.get("repeated", 0)):
        chains, _, dim = positions.shape
        positions = np.broadcast_to(positions, (chains, repeated, dim))
    if state is not None and positions.shape[::2] != state.position.shape:
        raise ValueError(f"positions {positions.shape} and state {state.position.shape} differ")
    predictive: Any = None
    if header["predictive"] is not None:
        from ribbit.targets.posterior import predictive_from_description

        if "dropout" in header["predictive"]:
            from ribbit.targets.dropout import DropoutPredictive

            predictive = DropoutPredictive.from_description(header["predictive"])
        else:
            predictive = predictive_from_description(header["predictive"])
    prediction = None
    if header["prediction"] is not None and predictive is not None:
        found = _get(arrays, "prediction")
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
        stats=_get(arrays, "stats"),
        complete=bool(header["complete"]),
        state=state,
        settings=dict(header["settings"]),
        predictive=predictive,
        prediction=prediction,
        warmup_positions=arrays["warmup_positions"] if warm else None,
        warmup_stats=_get(arrays, "warmup_stats") if warm else None,
    )


def _put_state(
    arrays: dict[str, npt.NDArray[Any]], header: dict[str, Any], state: AnyState
) -> None:
    kind = type(state).__name__
    for name in (*_STATES[kind][1], *_STATES[kind][2]):
        value = getattr(state, name)
        if value is not None:
            arrays[f"state/{name}"] = to_host(value)
    header["state"] = {
        "kind": kind,
        "step": state.step,
        "seed": state.seed,
        "warmup": state.warmup,
    }
    adaptation = state.adaptation if isinstance(state, State) else None
    if adaptation is None:
        return
    counts: dict[str, int] = {}
    if adaptation.dual is not None:
        counts["dual"] = adaptation.dual.count
        for name in _DUAL_ARRAYS:
            arrays[f"dual/{name}"] = getattr(adaptation.dual, name)
    if adaptation.welford is not None:
        counts["welford"] = adaptation.welford.count
        arrays["welford/mean"] = to_host(adaptation.welford.mean)
        arrays["welford/squares"] = to_host(adaptation.welford.squares)
    header["adaptation"] = counts


def _state(header: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> AnyState | None:
    counters = header["state"]
    if counters is None:
        return None
    make, needed, optional = _STATES[counters.get("kind", "State")]
    fields: dict[str, Any] = {name: arrays[f"state/{name}"] for name in needed}
    fields |= {name: arrays.get(f"state/{name}") for name in optional}
    fields |= {name: int(counters[name]) for name in ("step", "seed", "warmup")}
    counts = header.get("adaptation")
    if counts is not None:
        dual = welford = None
        if "dual" in counts:
            dual = DualAveraging(
                **{n: arrays[f"dual/{n}"] for n in _DUAL_ARRAYS}, count=int(counts["dual"])
            )
        if "welford" in counts:
            welford = Welford(
                arrays["welford/mean"], arrays["welford/squares"], int(counts["welford"])
            )
        fields["adaptation"] = Adaptation(dual, welford)
    return make(**fields)


def _put(arrays: dict[str, npt.NDArray[Any]], group: str, values: dict[str, Any]) -> None:
    for name, value in values.items():
        arrays[f"{group}/{name}"] = to_host(value)


def _get(arrays: dict[str, npt.NDArray[Any]], group: str) -> dict[str, npt.NDArray[Any]]:
    start = f"{group}/"
    return {k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)}


def _path(function: str, path: object) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"[{function}] expected a path, got {type(path).__name__}")
    text = os.fspath(path)
    if isinstance(text, bytes) or not Path(text).name or "\0" in text:
        raise ValueError(f"[{function}] expected a path with a file name, got {text!r}")
    return Path(text)


def _plain(value: object) -> object:
    """Values that JSON does not know."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return str(value)


def _write(destination: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    temporary = destination.with_name(f".{destination.name}.{os.urandom(6).hex()}.tmp")
    # O_EXCL and mode 666: a name nobody else has, with the user's usual permissions.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, destination)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _flush_folder(destination.parent)


def _flush_folder(folder: Path) -> None:
    """Make the rename itself durable, where folders can be opened (not on Windows)."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
