"""Arrays and plain values in one file: written whole or not at all, read without pickle.

The file is a NumPy ``.npz`` (any name will do) whose entry "header" is JSON in UTF-8.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import to_host
from ribbit.errors import DataError
from ribbit.results.atomic_file import describe_kind, write_atomically
from ribbit.results.contents import check_tuning, whole
from ribbit.results.state import (
    Adaptation,
    AnyState,
    DualAveraging,
    EnergyErrors,
    GradientSquares,
    InputProducts,
    MicrocanonicalState,
    State,
    StochasticState,
    Welford,
)

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["get", "opened", "packed", "put", "put_state", "state_of", "text", "unpacked", "write"]

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
        ("inverse_mass", "divergences"),
    ),
    "MicrocanonicalState": (
        MicrocanonicalState,
        (
            "position",
            "logdensity",
            "grad",
            "terms",
            "chains",
            "step_size",
            "decoherence_length",
            "energy_squares",
        ),
        ("velocity", "inverse_mass", "mixing", "divergences"),
    ),
    "StochasticState": (
        StochasticState,
        ("position", "logdensity", "chains"),
        ("first_moment", "second_moment", "step_size"),
    ),
}
# Readers of the headers of .npy entries by version.
_NPY = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_Arrays: TypeAlias = "dict[str, npt.NDArray[Any]]"
_STEPS = 2**63
_COUNTERS = {"step": _STEPS, "seed": 2**64, "warmup": _STEPS}
_DUAL_ARRAYS = ("log_step", "log_average", "error", "centre", "log_settled")


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
    write_atomically(function, path, lambda file: _save(file, header, arrays))


def packed(header: Mapping[str, Any], arrays: _Arrays) -> bytes:
    """Return the contents of a file of a header of plain values and arrays of the host."""
    file = io.BytesIO()
    _save(file, header, arrays)
    return file.getvalue()


def _save(file: BinaryIO, header: Mapping[str, Any], arrays: _Arrays) -> None:
    line = text({"format": _FORMAT, "version": _VERSION, **header})
    entries: dict[str, Any] = {**arrays, "header": np.frombuffer(line.encode(), dtype=np.uint8)}
    np.savez(file, **entries)


def text(values: Mapping[str, Any]) -> str:
    """Return plain values as one line of JSON; NumPy's numbers and arrays become JSON's."""
    return json.dumps(values, default=_plain)


def unpacked(function: str, data: bytes) -> tuple[dict[str, Any], _Arrays]:
    """Return the header and the arrays of bytes from `packed`.

    Raises
    ------
    Exception
        When they are damaged, of many types.
    """
    arrays = _read(function, io.BytesIO(data), len(data))
    header: dict[str, Any] = json.loads(arrays.pop("header").tobytes().decode())
    if (header.pop("format"), header.pop("version")) != (_FORMAT, _VERSION):
        raise ValueError("another format or version")
    return header, arrays


@contextlib.contextmanager
def opened(
    function: str, path: str | os.PathLike[str], what: str
) -> Iterator[tuple[dict[str, Any], _Arrays]]:
    """Give the header and the arrays of a file; what goes wrong with them inside is a damaged file.

    `what` the file should hold ("draws", "a fit") is named by the errors.

    Raises
    ------
    FileNotFoundError
        When there is no such file.
    DataError
        A ValueError: the file is damaged, cut short, of another format or of a newer version.
    MemoryError
        When the arrays do not fit into the memory that is free.
    """
    source = checks.path(function, path)
    try:
        found = os.stat(source)
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            # Opening a pipe would wait for somebody who writes.
            got = describe_kind(found.st_mode)
            raise DataError(f"[{function}] expected a file of {what}, got {got}: {source}")
        with open(source, "rb") as file:
            start = file.read(4)
            if start != b"PK\x03\x04":
                raise DataError(
                    f"[{function}] expected a file of {what}, got another format: {source}"
                )
            arrays = _read(function, file, found.st_size)
        if "header" not in arrays:
            raise DataError(
                f"[{function}] expected a file of {what}, got {source} without a header"
            )
        header = json.loads(arrays["header"].tobytes().decode())
        if not isinstance(header, dict) or header.get("format") != _FORMAT:
            raise DataError(f"[{function}] expected a file of {what}, got another format: {source}")
        if header.get("version") != _VERSION:
            raise DataError(
                f"[{function}] expected format version {_VERSION}, got {header.get('version')}: "
                f"{source} (written by another version of Ribbit)"
            )
        yield header, arrays
    except (
        FileNotFoundError,
        IsADirectoryError,
        NotADirectoryError,
        PermissionError,
        MemoryError,
    ):
        raise
    except Exception as error:  # a damaged file makes zipfile, numpy and json raise all kinds
        if isinstance(error, DataError) and str(error).startswith(f"[{function}]"):
            raise
        raise DataError(
            f"[{function}] expected a whole file of {what}, got a damaged or foreign one: {source} "
            f"({type(error).__name__}: {error})"
        ) from error


def _read(function: str, file: BinaryIO, size: int) -> _Arrays:
    """Return the arrays of a zip file of `size` bytes; nothing is allocated on its word alone."""
    import zipfile  # numpy too reads it on demand

    arrays: _Arrays = {}
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        # Draws are stored as they are: entries that hold more than the file would grow in memory.
        held = sum(entry.file_size for entry in entries)
        if held > size:
            raise ValueError(f"{held} bytes of arrays in a file of {size}")
        checks.memory(function, held, np.uint8, f"the arrays of {getattr(file, 'name', 'a run')}")
        for entry in entries:
            with archive.open(entry) as member:
                name = entry.filename.removesuffix(".npy")
                arrays[name] = _array(name, member, entry.file_size)
    return arrays


def _array(name: str, member: IO[bytes], size: int) -> npt.NDArray[Any]:
    """Return the array in an entry of `size` bytes, in the byte order of this machine."""
    version = np.lib.format.read_magic(member)
    if version not in _NPY:
        raise ValueError(f"{name} is an array of format {version}")
    shape, _, dtype = _NPY[version](member)
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None:
        raise ValueError(f"{name} is {dtype}, not numbers")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or member.tell() + count * dtype.itemsize != size:
        raise ValueError(f"{name} has {size} bytes, which is not {dtype} {shape}")
    member.seek(0)
    array: npt.NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
    return array.astype(dtype.newbyteorder("="), copy=False)


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
        "target": state.target,
    }
    adaptation = None if isinstance(state, StochasticState) else state.adaptation
    if adaptation is None:
        return
    counts: dict[str, int] = {}
    if adaptation.dual is not None:
        counts["dual"] = adaptation.dual.count
        counts["dual_settled"] = adaptation.dual.settled
        for name in _DUAL_ARRAYS:
            arrays[f"dual/{name}"] = getattr(adaptation.dual, name)
    if adaptation.welford is not None:
        counts["welford"] = adaptation.welford.count
        arrays["welford/mean"] = to_host(adaptation.welford.mean)
        arrays["welford/squares"] = to_host(adaptation.welford.squares)
    if adaptation.errors is not None:
        arrays["errors/needed"] = adaptation.errors.needed
        arrays["errors/weight"] = adaptation.errors.weight
    if adaptation.gradients is not None:
        counts["gradients"] = adaptation.gradients.count
        arrays["gradients/sums"] = adaptation.gradients.sums
    if adaptation.products is not None:
        counts["products"] = adaptation.products.count
        arrays["products/positions"] = adaptation.products.positions
        arrays["products/gradients"] = adaptation.products.gradients
    header["adaptation"] = counts


def state_of(
    header: dict[str, Any], arrays: dict[str, npt.NDArray[Any]], positions: npt.NDArray[Any]
) -> AnyState | None:
    """Return the state that `put_state` put in beside positions (C, D, P), None where none is.

    Raises
    ------
    ValueError, KeyError
        When no run can have left such a state.
    """
    counters = header["state"]
    if counters is None:
        return None
    kind = counters.get("kind", "State")
    make, needed, optional = _STATES[kind]
    check_tuning(arrays, positions, kind)
    fields: dict[str, Any] = {name: arrays[f"state/{name}"] for name in needed}
    fields |= {name: arrays.get(f"state/{name}") for name in optional}
    for name, below in _COUNTERS.items():
        fields[name] = whole(f"state/{name}", counters[name], below=below)
    fields["target"] = _fingerprint(counters.get("target"))
    counts = header.get("adaptation")
    if counts is not None:
        dual = welford = errors = gradients = products = None
        if "dual" in counts:
            count = whole("dual/count", counts["dual"], below=_STEPS)
            # A file of an earlier build has none that are settled.
            settled = whole("dual/settled", counts.get("dual_settled", 0), below=count + 1)
            if not settled:
                arrays.setdefault("dual/log_settled", np.zeros_like(arrays["dual/log_step"]))
            sums = {n: arrays[f"dual/{n}"] for n in _DUAL_ARRAYS}
            dual = DualAveraging(**sums, count=count, settled=settled)
        if "welford" in counts:
            count = whole("welford/count", counts["welford"], below=_STEPS)
            welford = Welford(arrays["welford/mean"], arrays["welford/squares"], count)
        if "errors/needed" in arrays:
            errors = EnergyErrors(arrays["errors/needed"], arrays["errors/weight"])
        if "gradients" in counts:
            count = whole("gradients/count", counts["gradients"], below=_STEPS)
            gradients = GradientSquares(arrays["gradients/sums"], count)
        if "products" in counts:
            count = whole("products/count", counts["products"], below=_STEPS)
            sums = {n: arrays[f"products/{n}"] for n in ("positions", "gradients")}
            products = InputProducts(**sums, count=count)
        fields["adaptation"] = Adaptation(dual, welford, errors, gradients, products)
    return make(**fields)


def _fingerprint(value: Any) -> dict[str, str] | None:
    """Return the fingerprint of a state's target; files of earlier builds have none."""
    if value is not None and not (
        isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
    ):
        raise ValueError(f"the state's target is {type(value).__name__}, not texts by name")
    return value


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
