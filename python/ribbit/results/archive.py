"""Arrays and plain values in one file: written whole or not at all, read without pickle.

The file is a NumPy ``.npz`` (any name will do) whose entry "header" is JSON in UTF-8.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit._arrays.namespace import to_host
from ribbit.errors import DataError
from ribbit.results.atomic_file import checked_path, write_atomically
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
        When the folder is missing or cannot be written to, or `path` is a pipe, a device or a
        socket.
    """
    text = json.dumps({"format": _FORMAT, "version": _VERSION, **header}, default=_plain)
    entries: dict[str, Any] = {**arrays, "header": np.frombuffer(text.encode(), dtype=np.uint8)}
    write_atomically(function, path, lambda file: np.savez(file, **entries))


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
    source = checked_path(name, path)
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


def _plain(value: object) -> object:
    """Values that JSON does not know."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return str(value)
