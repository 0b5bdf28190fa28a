"""Arrays and plain values in one file: written whole or not at all, read without pickle.

The file is a NumPy ``.npz`` (any name will do) whose entry "header" is JSON in UTF-8. A file whose
checksums are right may still be edited by others. Contents that no run can have left raise
ValueError or KeyError, which `reading` makes a DataError with the name of the file.

Shapes: C chains, P parameters.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import to_host
from ribbit.errors import DataError
from ribbit.results import state as states
from ribbit.results.atomic_file import describe_kind, write_atomically

if TYPE_CHECKING:
    import numpy.typing as npt

Arrays: TypeAlias = "dict[str, npt.NDArray[Any]]"
Dtypes: TypeAlias = "str | tuple[str, ...]"
# Arrays by name: dtypes ("like": as the first array of FLOATS), axes, and what they hold. An axis
# is a digit, its length; "?", any length; or a letter, one length in all arrays.
Table: TypeAlias = "dict[str, tuple[Dtypes, str, str]]"

FLOATS = ("float32", "float64")
_FORMAT = {"format": "ribbit draws", "version": 1}
_STATES: dict[str, Any] = {
    one.__name__: one for one in (states.MicrocanonicalState, states.StochasticState)
}
_PARTS: dict[str, Any] = {
    "dual": states.DualAveraging,
    "welford": states.Welford,
    "errors": states.EnergyErrors,
    "gradients": states.GradientSquares,
    "products": states.InputProducts,
}
_TUNING: Table = {
    "state/position": (FLOATS, "CP", "finite"),
    "state/logdensity": ("float64", "C", "finite"),
    "state/grad": ("like", "CP", "finite"),
    "state/terms": ("float64", "C?", "any"),
    "state/chains": ("uint32", "C", "distinct"),
    "state/step_size": ("float64", "C", "positive"),
    "state/divergences": ("int64", "C", "not negative"),
    "state/inverse_mass": (FLOATS, "CP", "positive"),
    "state/velocity": ("like", "CP", "finite"),
    "state/mixing": ("like", "C?", "finite"),
    "state/decoherence_length": ("float64", "C", "positive"),
    "state/energy_squares": ("float64", "C", "not negative"),
    "state/first_moment": ("like", "CP", "finite"),
    "state/second_moment": ("like", "CP", "not negative"),
    "dual/log_step": ("float64", "C", "finite"),
    "dual/log_average": ("float64", "C", "finite"),
    "dual/error": ("float64", "C", "finite"),
    "dual/centre": ("float64", "C", "finite"),
    "errors/needed": ("float64", "C", "not negative"),
    "errors/weight": ("float64", "C", "not negative"),
    "gradients/sums": ("float64", "C?", "not negative"),
    "products/gradients": ("float64", "C?", "finite"),
    "products/positions": ("float64", "C?", "finite"),
    "welford/mean": ("float64", "CP", "finite"),
    "welford/squares": ("float64", "CP", "not negative"),
}
_HOLDS: dict[str, Callable[[npt.NDArray[Any]], bool]] = {
    "any": lambda array: True,
    "finite": lambda array: bool(np.isfinite(array).all()),
    "positive": lambda array: bool((np.isfinite(array) & (array > 0)).all()),
    "not negative": lambda array: bool((array >= 0).all()),
    "distinct": lambda array: np.unique(array).size == array.size,
}
# Readers of the headers of .npy entries by version.
_NPY = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def write(
    function: str, path: str | os.PathLike[str], header: Mapping[str, Any], arrays: Arrays
) -> None:
    """Write plain values and arrays of the host to `path`, as `write_atomically` does."""
    line = np.frombuffer(text({**_FORMAT, **header}).encode(), np.uint8)
    entries: dict[str, Any] = {**arrays, "header": line}
    write_atomically(function, path, lambda file: np.savez(file, **entries))


def packed(arrays: dict[str, Any]) -> bytes:
    """Return the contents of a file of arrays alone."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def text(values: Mapping[str, Any]) -> str:
    """Return plain values as one line of JSON; NumPy's numbers and arrays become JSON's."""
    return json.dumps(values, default=_plain)


def _plain(value: object) -> object:
    """Return a value that JSON does not know as one that it knows."""
    if isinstance(value, np.generic):
        return value.item()
    return value.tolist() if isinstance(value, np.ndarray) else str(value)


@contextlib.contextmanager
def reading(function: str, path: Path | str, advice: str) -> Iterator[None]:
    """Raise what goes wrong with the contents of a file as a DataError that names it."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, PermissionError, MemoryError):
        raise
    except Exception as error:  # zipfile, numpy and json raise all kinds, OSError too
        if isinstance(error, DataError) and str(error).startswith(f"[{function}]"):
            raise
        raise DataError(
            f"[{function}] {path} is damaged or foreign ({type(error).__name__}: {error}). {advice}"
        ) from error


def read(function: str, path: Path) -> tuple[dict[str, Any], Arrays]:
    """Return the plain values and arrays of a file from `write`; inside of `reading`."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait for a writer
        raise _foreign(function, path, describe_kind(found.st_mode))
    with open(path, "rb") as file:
        if file.read(4) != b"PK\x03\x04":
            raise _foreign(function, path, "another format")
        arrays = unpacked(function, file, found.st_size)
    if "header" not in arrays:
        raise _foreign(function, path, "a file without a header")
    header = json.loads(arrays.pop("header").tobytes().decode())
    if not isinstance(header, dict) or header.get("format") != _FORMAT["format"]:
        raise _foreign(function, path, "another format")
    if header.get("version") != _FORMAT["version"]:
        raise DataError(
            f"[{function}] {path} has format version {header.get('version')}, this Ribbit reads "
            f"version {_FORMAT['version']}. Load it with the Ribbit that wrote it."
        )
    return header, arrays


def _foreign(function: str, path: Path, got: str) -> DataError:
    return DataError(f"[{function}] path must be a file of draws or of a fit, got {got}: {path}")


def unpacked(function: str, file: BinaryIO, size: int) -> Arrays:
    """Return the arrays of a zip file of `size` bytes; nothing is allocated on its word alone."""
    import zipfile  # numpy too reads it on demand

    arrays: Arrays = {}
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


def put(arrays: Arrays, group: str, values: Mapping[str, Any]) -> None:
    """Put arrays in under the name of a group, as NumPy arrays."""
    for name, value in values.items():
        arrays[f"{group}/{name}"] = to_host(value)


def get(arrays: Arrays, group: str) -> Arrays:
    """Return the arrays of a group by name."""
    start = f"{group}/"
    return {k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)}


def put_state(arrays: Arrays, header: dict[str, Any], state: states.AnyState) -> None:
    """Put a state in: its bytes, or arrays by name and counters in the header."""
    if isinstance(state, states.State):
        arrays["state/bytes"] = np.frombuffer(bytes(state), np.uint8)
        header["state"] = {"kind": "State"}
        return
    counters = _put_record(arrays, "state", state)
    header["state"] = {"kind": type(state).__name__, "target": state.target, **counters}
    adaptation = getattr(state, "adaptation", None)
    if adaptation is not None:
        parts = {part: getattr(adaptation, part) for part in _PARTS}
        header["adaptation"] = {
            part: _put_record(arrays, part, sums)
            for part, sums in parts.items()
            if sums is not None
        }


def bytes_of(state: states.AnyState) -> bytes:
    """Return a state as bytes; `state_from` reads them."""
    if isinstance(state, states.State):
        return bytes(state)
    header: dict[str, Any] = {}
    arrays: Arrays = {}
    put_state(arrays, header, state)
    return packed(arrays | {"header": np.frombuffer(text(header).encode(), np.uint8)})


def state_from(data: bytes) -> states.AnyState:
    """Return the state in the bytes of `bytes_of`; ValueError if they hold none."""
    if data[:4] != b"PK\x03\x04":
        return states.State(data)
    with reading("Chains.load", "data", "Save the chains again"):
        arrays = unpacked("Chains.load", io.BytesIO(data), len(data))
        header = json.loads(arrays.pop("header").tobytes().decode())
        state = state_of(header, arrays)
    assert state is not None
    return state


def _put_record(arrays: Arrays, group: str, record: Any) -> dict[str, int]:
    """Put the arrays of a state, or of a part of its adaptation, in; return its counters."""
    counters = {}
    for field in dataclasses.fields(record):
        name, value = f"{group}/{field.name}", getattr(record, field.name)
        if field.type == "int":
            counters[field.name] = value
        elif name in _TUNING and value is not None:
            arrays[name] = to_host(value)
    return counters


def state_of(header: dict[str, Any], arrays: Arrays) -> states.AnyState | None:
    """Return the state that `put_state` put in, None if there is none."""
    counters = header["state"]
    if counters is None:
        return None
    if counters["kind"] == "State":
        data = arrays["state/bytes"]
        check_array("state/bytes", data, "uint8", (None,))
        chains = states.State(data.tobytes())
        _ = chains.fields  # damaged bytes raise ValueError here
        return chains
    make = _STATES[counters["kind"]]
    table = dict(_TUNING)
    if make is states.StochasticState:  # NaN unless it is tracked
        table["state/logdensity"] = ("float64", "C", "any")
    if "state/inverse_mass" in arrays and arrays["state/inverse_mass"].ndim == 1:
        table["state/inverse_mass"] = (FLOATS, "P", "positive")
    check_arrays(arrays, table)
    fields, target = _record(arrays, "state", make, counters), counters.get("target")
    if target is not None and not all(isinstance(value, str) for value in target.values()):
        raise ValueError("state/target is not texts by name")
    if "adaptation" in header:
        parts: dict[str, Any] = dict.fromkeys(_PARTS)
        for part, counts in header["adaptation"].items():
            parts[part] = _PARTS[part](**_record(arrays, part, _PARTS[part], counts))
        fields["adaptation"] = states.Adaptation(**parts)
    state: states.AnyState = make(**fields, target=target)
    return state


def _record(arrays: Arrays, group: str, make: Any, counters: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays and counters that `_put_record` has put in."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(make):
        name = f"{group}/{field.name}"
        if field.type == "int":
            below = 2**64 if field.name == "seed" else 2**63
            found[field.name] = whole(name, counters[field.name], below=below)
        elif name in _TUNING:  # a field that may be None says so in its type
            found[field.name] = arrays.get(name) if "None" in str(field.type) else arrays[name]
    return found


def check_arrays(arrays: Arrays, table: Table) -> None:
    """Raise unless arrays are as a table says."""
    lengths: dict[str, int] = {}
    like: Dtypes = FLOATS
    for name, (dtypes, axes, holds) in table.items():
        if name not in arrays:
            continue
        array = arrays[name]
        if array.ndim == len(axes):
            for axis, length in zip(axes, array.shape, strict=True):
                lengths.setdefault(axis, length)
                if axis in "CMP" and length == 0:
                    raise ValueError(f"{name} has shape {array.shape}: no chain or no parameter")
        shape = tuple(int(a) if a.isdigit() else lengths[a] if a.isalpha() else None for a in axes)
        check_array(name, array, like if dtypes == "like" else dtypes, shape, holds)
        if dtypes is FLOATS and like is FLOATS:
            like = array.dtype.name


def check_array(
    name: str,
    array: npt.NDArray[Any],
    dtypes: Dtypes,
    shape: tuple[int | None, ...],
    holds: str = "any",
) -> None:
    """Raise for another dtype, shape (None: any length) or content."""
    allowed = (dtypes,) if isinstance(dtypes, str) else dtypes
    if array.dtype.name not in allowed:
        raise ValueError(f"{name} is {array.dtype}, not {' or '.join(allowed)}")
    if array.ndim != len(shape) or any(
        want not in (None, got) for want, got in zip(shape, array.shape, strict=True)
    ):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} has shape {array.shape}, not ({wanted})")
    if not _HOLDS[holds](array):
        raise ValueError(f"{name} is not {holds} everywhere")


def whole(name: str, value: object, *, below: int) -> int:
    """Return a number of a header: a whole one in [0, below)."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < below:
        raise ValueError(f"{name} is not a whole number in [0, {below:g}): {value!r:.60}")
    return value
