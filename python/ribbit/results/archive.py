"""Arrays and plain values in one file: written whole or not at all, read without pickle.

The file is a NumPy ``.npz`` (any name will do) whose entry "header" is JSON in UTF-8. It is written
beside its destination, flushed to the disk, then renamed over it, and the folder is flushed:
whatever happens meanwhile, the destination holds the old file or the new one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit._arrays.namespace import to_host
from ribbit.errors import DataError
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


__all__ = ["get", "opened", "put", "put_state", "state_of", "write"]

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
_Arrays: TypeAlias = "dict[str, npt.NDArray[Any]]"
_DUAL_ARRAYS = ("log_step", "log_average", "error", "centre")


def write(
    function: str, path: str | os.PathLike[str], header: Mapping[str, Any], arrays: _Arrays
) -> None:
    """Write a header of plain values and arrays of the host to `path`.

    Raises
    ------
    TypeError
        When `path` is no path.
    OSError
        When the folder is missing or cannot be written to.
    """
    destination = _path(function, path)
    if not destination.parent.is_dir():
        raise FileNotFoundError(
            f"[{function}] expected an existing folder, got {destination.parent}"
        )
    text = json.dumps({"format": _FORMAT, "version": _VERSION, **header}, default=_plain)
    _write(destination, {**arrays, "header": np.frombuffer(text.encode(), dtype=np.uint8)})


@contextlib.contextmanager
def opened(function: str, path: str | os.PathLike[str]) -> Iterator[tuple[dict[str, Any], _Arrays]]:
    """Give the header and the arrays of a file; what goes wrong with them inside is a damaged file.

    Raises
    ------
    FileNotFoundError
        When there is no such file.
    DataError
        A ValueError: the file is damaged, cut short, of another format or of a newer version.
    """
    import zipfile  # numpy too reads it on demand

    name = function
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
        yield header, arrays
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


def put_state(arrays: dict[str, npt.NDArray[Any]], header: dict[str, Any], state: AnyState) -> None:
    """Put a state in: arrays by name, counters into the header."""
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


def state_of(header: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> AnyState | None:
    """Return the state that `put_state` put in, None where there is none."""
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


def put(arrays: dict[str, npt.NDArray[Any]], group: str, values: dict[str, Any]) -> None:
    """Put arrays in under the name of a group, as NumPy arrays."""
    for name, value in values.items():
        arrays[f"{group}/{name}"] = to_host(value)


def get(arrays: dict[str, npt.NDArray[Any]], group: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a group by name."""
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
