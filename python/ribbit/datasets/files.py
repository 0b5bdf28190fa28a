"""Reading tables and arrays of numbers from files."""

from __future__ import annotations

import csv
import gzip
import math
import os
import re
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit._arrays import checks
from ribbit.errors import DataError, DTypeError, ShapeError

if TYPE_CHECKING:
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[np.float64]"

_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_WRITTEN = 1 << 25  # bytes that are written at a time
_MOST_AXES = 32  # more than NumPy 1 has
_LIKE_A_NUMBER = re.compile(r"[+-]?\.?\d")
_MISSING = {"", "na", "n/a", "nan", "null", "none", "?", "-"}


def read_csv(
    path: str | os.PathLike[str],
    *,
    target: str | int,
    delimiter: str = ",",
    header: bool | None = None,
) -> tuple[Array, npt.NDArray[Any]]:
    """Return inputs and targets from a table of numbers; targets may be texts.

    Parameters
    ----------
    path : path
        A text file in UTF-8. Blank lines are skipped.
    target : str or int
        Column of the targets, by name or by position (negative: from the end).
    delimiter : str
        One character.
    header : bool, optional
        Whether the first line has names. None: it does if one of its cells is not a number. If that
        cell belongs to a `target` given by position, it must be unique in its column.

    Returns
    -------
    x : (N, D) ndarray of float64
        The other columns in their order.
    y : (N,) ndarray of float64 or str
        Texts, such as class names, if a cell of the column is a text, or no cell is a number. A
        cell that begins like a number, such as 12x, counts as a mistake among numbers.

    Raises
    ------
    TypeError, ValueError
        If the file has no rows, lines of different lengths, a missing cell, a cell of x that is not
        a finite number, or no such target. The message names line and column.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> table = [[1, 2, 30], [2, 2, 50]]
    >>> np.savetxt("table.csv", table, "%g", ",", header="width,height,price", comments="")
    >>> x, y = rb.datasets.read_csv("table.csv", target="price")
    >>> x.tolist(), y.tolist()
    ([[1.0, 2.0], [2.0, 2.0]], [30.0, 50.0])

    A column of texts is y of a classifier:

    >>> table = [["1", "cat"], ["2", "dog"]]
    >>> np.savetxt("animals.csv", table, "%s", ",", header="width,kind", comments="")
    >>> x, y = rb.datasets.read_csv("animals.csv", target="kind")
    >>> y.tolist()
    ['cat', 'dog']
    """
    if isinstance(target, bool) or not isinstance(target, str | int):
        raise TypeError(
            f"[read_csv] expected target as a column name or position, got {checks.summary(target)}"
        )
    if not isinstance(delimiter, str):
        got = checks.summary(delimiter)
        raise TypeError(f"[read_csv] expected delimiter as one character, got {got}")
    if (
        len(delimiter) != 1
        or delimiter == '"'
        or not (delimiter.isprintable() or delimiter == "\t")
    ):
        raise ValueError(f"[read_csv] expected delimiter as one character, got {delimiter!r:.60}")
    if header is not None:
        header = checks.boolean("read_csv", "header", header)
    lines = _lines(checks.path("read_csv", path), delimiter)
    if not lines:
        raise DataError(f"[read_csv] expected rows of numbers, got an empty file {path}")
    first = lines[0][1]
    if header is None:
        header = any(_is_text(cell) for cell in first)
        if header and isinstance(target, int) and -len(first) <= target < len(first):
            own = target % len(first)
            others = any(_is_text(cell) for j, cell in enumerate(first) if j != own)
            header = others or first[own] not in [
                cells[own] for _, cells in lines[1:] if cells[own:]
            ]
    names = [cell.strip() for cell in first] if header else None
    if header:
        lines = lines[1:]
    if len(first) < 2:
        other = next((one for one in ";\t|" if one in first[0]), None)
        hint = "" if other is None else f" with {other!r} in it: read_csv(..., delimiter={other!r})"
        raise DataError(
            f"[read_csv] expected columns separated by {delimiter!r}, got a single one in "
            f"{path}{hint}"
        )
    column = _target_column(target, names, len(first), path)
    if not lines:
        raise DataError(f"[read_csv] expected rows of numbers, got only a header in {path}")
    targets = [cells[column].strip() for _, cells in lines if len(cells) == len(first)]
    texts = [cell for cell in targets if _is_text(cell)]
    labels = any(not _LIKE_A_NUMBER.match(cell) for cell in texts)
    labels |= bool(texts) and all(_number(cell) is None for cell in targets)
    table = np.empty((len(lines), len(first)))
    for i, (number, cells) in enumerate(lines):
        table[i] = _row(path, number, cells, names, len(first), column if labels else None)
    y = np.array(targets) if labels else np.ascontiguousarray(table[:, column])
    return np.delete(table, column, axis=1), y


def write_npy(path: str | os.PathLike[str], rows: Any) -> np.memmap[Any, Any]:
    """Write rows to a NumPy file, some at a time, and return it as a memory map.

    For compressed rows larger than memory, such as a Zarr array or an h5py data set. A sampler's
    step reads random rows, and each would otherwise decompress a chunk.

    Parameters
    ----------
    path : path
        Path of the file, ``.npy``. An existing file is replaced once all rows are written.
    rows : array
        Object with ``shape`` (N, ...), ``dtype`` (real numbers) and slices ``rows[a:b]``.

    Returns
    -------
    numpy.memmap
        ``np.load(path, mmap_mode="r")``, for the x of :class:`ribbit.Posterior`.

    Raises
    ------
    TypeError, ValueError
        If `rows` does not have rows of real numbers.
    OSError
        If the file cannot be written; it is then removed.

    Examples
    --------
    >>> import numpy as np, tempfile, ribbit as rb
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     x = rb.datasets.write_npy(f"{folder}/x.npy", np.ones((1000, 3), np.float16))
    ...     type(x).__name__, x.shape
    ('memmap', (1000, 3))
    """
    target = checks.path("write_npy", path)
    shape, dtype = getattr(rows, "shape", None), getattr(rows, "dtype", None)
    if not isinstance(shape, tuple) or not hasattr(rows, "__getitem__"):
        got = checks.summary(rows)
        raise TypeError(f"[write_npy] expected rows as an array that reads slices, got {got}")
    try:
        kind: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise DTypeError(f"[write_npy] expected rows of real numbers, got {dtype!r}") from error
    if kind.kind not in "iuf" or dtype is None:
        raise DTypeError(f"[write_npy] expected rows of real numbers, got dtype {kind}")
    if isinstance(rows, np.ndarray):
        checks.own_memory("write_npy", "rows", rows)
    if len(shape) == 0 or 0 in shape:
        raise ShapeError(f"[write_npy] expected rows (N, ...), N >= 1, got shape {shape}")
    kind = kind.newbyteorder("=")
    # Whole chunks of the source, where it has any: each is read once.
    chunk = getattr(rows, "chunks", None)
    chunk = chunk[0] if isinstance(chunk, tuple) and isinstance(chunk[0], int) else 1
    wanted = _WRITTEN * shape[0] // max(1, math.prod(shape) * kind.itemsize)
    count = max(chunk, wanted // chunk * chunk)
    part = target.with_name(target.name + ".part")
    try:
        with part.open("wb") as file:
            header = {"descr": kind.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for first in range(0, shape[0], count):
                some = np.ascontiguousarray(rows[first : first + count], kind)
                file.write(some.data.cast("B"))
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    found: np.memmap[Any, Any] = np.load(target, mmap_mode="r")
    return found


def read_npz(
    path: str | os.PathLike[str], *, x: str | None = None, y: str = "y"
) -> tuple[Array, npt.NDArray[Any]]:
    """Return inputs and targets from a NumPy archive (no pickles).

    Parameters
    ----------
    path : path
    x : str, optional
        Name of the inputs; None: "x" or "X".
    y : str
        Name of the targets.

    Returns
    -------
    x : (N, ...) ndarray of float64
    y : (N, ...) ndarray
        Integers (labels) stay integers, the rest is float64.

    Raises
    ------
    TypeError, ValueError
        If the file is not an archive, an array is absent, not real or not finite, or the rows
        differ.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> np.savez("data.npz", x=np.ones((3, 2)), y=np.arange(3))
    >>> x, y = rb.datasets.read_npz("data.npz")
    >>> x.shape, y
    ((3, 2), array([0, 1, 2]))
    """
    for value, what in ((x, "x"), (y, "y")):
        if not (isinstance(value, str) or (value is None and what == "x")):
            got = checks.summary(value)
            raise TypeError(f"[read_npz] expected {what} as the name of an array, got {got}")
    source = checks.path("read_npz", path)
    with source.open("rb") as file:  # np.load does not close a damaged archive
        try:
            archive = np.load(file, allow_pickle=False)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(f"[read_npz] expected a NumPy archive, got {path} ({error})") from error
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(f"[read_npz] expected a NumPy archive, got a single array in {path}")
        names = archive.files
        if x is None:
            x = "X" if "X" in names and "x" not in names else "x"
        for name in (x, y):
            if name not in names:
                raise DataError(f"[read_npz] expected an array {name!r}, got {sorted(names)}")
        try:
            raw_x, raw_y = archive[x], archive[y]
        except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            # An array of objects, or a damaged file.
            raise DataError(f"[read_npz] expected numbers, got {error}") from error
    inputs = as_data("read_npz", x, raw_x)
    targets = checks.numeric("read_npz", y, raw_y)
    if targets.dtype.kind == "f":
        targets = as_data("read_npz", y, targets)
    if inputs.ndim < 1 or targets.ndim < 1 or len(inputs) != len(targets):
        raise ShapeError(
            f"[read_npz] expected {x} and {y} with as many rows, got {inputs.shape} and "
            f"{targets.shape}"
        )
    return inputs, targets


def read_idx(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    """Return the array of an IDX file, the format of MNIST and similar sets.

    Parameters
    ----------
    path : path
        Path of the file, plain or compressed by gzip; the contents decide, not the name.

    Returns
    -------
    ndarray
        Shape and type are the file's (byte images: (N, H, W) uint8), in the machine's byte order.

    Raises
    ------
    ValueError
        If the file is not an IDX file, or is longer or shorter than its header says.
    OSError
        If the file cannot be read.

    References
    ----------
    LeCun, Cortes and Burges, "The MNIST database of handwritten digits", "File formats".

    Examples
    --------
    >>> head = bytes([0, 0, 8, 1, 0, 0, 0, 3])  # bytes, one axis, of size 3
    >>> with open("labels-idx1-ubyte", "wb") as file:
    ...     _ = file.write(head + bytes([7, 2, 1]))
    >>> rb.datasets.read_idx("labels-idx1-ubyte")
    array([7, 2, 1], dtype=uint8)
    """
    raw = checks.path("read_idx", path).read_bytes()
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"[read_idx] expected an IDX file, got {path} ({error})") from error
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _IDX_TYPES or raw[3] == 0:
        raise DataError(f"[read_idx] expected an IDX file, got {raw[:4]!r} first in {path}")
    dtype, axes = np.dtype(_IDX_TYPES[raw[2]]), raw[3]
    start = 4 + 4 * axes
    if axes > _MOST_AXES or len(raw) < start:
        raise DataError(f"[read_idx] expected the sizes of {axes} axes, got the end of {path}")
    shape = tuple(int.from_bytes(raw[i : i + 4], "big") for i in range(4, start, 4))
    if math.prod(max(n, 1) for n in shape) >= 2**60:
        raise DataError(f"[read_idx] expected a shape that NumPy holds, got {shape} in {path}")
    size = math.prod(shape) * dtype.itemsize
    if len(raw) - start != size:
        raise DataError(
            f"[read_idx] expected {size} bytes for shape {shape} of {dtype.name}, "
            f"got {len(raw) - start} in {path}"
        )
    return np.frombuffer(raw, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def as_data(function: str, name: str, value: npt.ArrayLike) -> Array:
    """Check for finite real numbers and copy to float64."""
    return checks.data(function, name, value, np.dtype(np.float64)).astype(np.float64, copy=False)


def _lines(path: str | os.PathLike[str], delimiter: str) -> list[tuple[int, list[str]]]:
    """Line number and cells of every line that is not blank."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            return [(reader.line_num, cells) for cells in reader if any(c.strip() for c in cells)]
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(
                f"[read_csv] expected a text table, got {error} after line {reader.line_num} "
                f"of {path}"
            ) from error


def _target_column(
    target: str | int, names: list[str] | None, width: int, path: str | os.PathLike[str]
) -> int:
    if isinstance(target, str):
        if names is None:
            raise ValueError(
                f"[read_csv] expected a target position, got {target!r} for {path}, "
                "which has no header"
            )
        if names.count(target) != 1:
            raise ValueError(
                f"[read_csv] expected target to be one of the columns {names}, got {target!r}"
            )
        return names.index(target)
    if not -width <= target < width:
        raise ValueError(f"[read_csv] expected target in {-width} ... {width - 1}, got {target!r}")
    return target % width


def _row(
    path: str | os.PathLike[str],
    number: int,
    cells: list[str],
    names: list[str] | None,
    width: int,
    labels: int | None,
) -> list[float]:
    """Return the numbers of a line, 0 for the text in the column `labels`."""
    if len(cells) != width:
        raise DataError(
            f"[read_csv] expected {width} cells in line {number} of {path}, got {len(cells)}"
        )
    values = []
    for j, cell in enumerate(cells):
        value = 0.0 if j == labels and not _is_missing(cell) else _number(cell)
        if value is None or not math.isfinite(value):
            column = repr(names[j]) if names is not None else str(j)
            got = "a missing value" if _is_missing(cell) else repr(cell.strip()[:40])
            if _is_text(cell) and not _LIKE_A_NUMBER.match(cell.strip()):
                got += ": only the target may be a text; encode other columns as numbers"
            kind = "text" if j == labels else "finite number"
            raise DataError(
                f"[read_csv] expected a {kind} in line {number}, column {column} of {path}, "
                f"got {got}"
            )
        values.append(value)
    return values


def _number(cell: str) -> float | None:
    text = cell.strip()
    if "_" in text:  # Python reads 1_000; a table does not
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _is_text(cell: str) -> bool:
    return _number(cell) is None and not _is_missing(cell)


def _is_missing(cell: str) -> bool:
    return cell.strip().lower() in _MISSING
