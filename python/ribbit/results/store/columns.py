"""One array of a run while it grows: draws in memory, whole stretches of them on the disk.

Shapes: C chains, L draws in a chunk.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays.namespace import to_host
from ribbit.errors import DataError
from ribbit.protocols import Array
from ribbit.results.store.chunks import checksum, read_chunk, sync_folder, write_chunk
from ribbit.results.store.layout import Layout

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Column", "decoded", "encoded", "read_rows"]


class Column:
    """Takes draws one by one; a thread beside writes what is full, or what there is.

    Attributes
    ----------
    held : dict of arrays
        Stretches (C, L, ...) that are in memory, by their number; the last one is being filled.
    digests : list of lists of int
        Checksum of the counted draws in each file, by stretch and piece.
    full : list of int
        Stretches that wait to be written.
    """

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.folder, self.layout = folder, layout
        self.held: dict[int, npt.NDArray[Any]] = {}
        self.digests: list[list[int]] = []
        self.full: list[int] = []
        self._buffer: npt.NDArray[Any] | None = None
        self._low, self._rows = 0, 0  # first draw and length of the stretch that `put` fills
        self._plain = layout.dtype == layout.stored
        self._written = (-1, 0)  # the last stretch, and its rows
        self._unflushed = False

    def put(self, index: int, values: Array) -> int:
        """Take draw `index` (C, ...); returns bytes that have become ready to be written."""
        row = index - self._low
        if not 0 <= row < self._rows:
            self._low = index - index % self.layout.length
            self._rows = self.opened(index).shape[1]
            row = index - self._low
        assert self._buffer is not None
        host = values if type(values) is np.ndarray else to_host(values)
        self._buffer[:, row] = host if self._plain else encoded(host, self.layout.stored)
        return self.closed(index) if row + 1 == self._rows else 0

    def opened(self, index: int) -> npt.NDArray[Any]:
        """Return the stretch (C, n, ...) in memory that draw `index`, the next one, belongs to."""
        chunk, row = divmod(index, self.layout.length)
        if row == 0 or self._buffer is None:
            shape = (self.layout.shape[0], self.layout.rows(chunk), *self.layout.shape[2:])
            self._buffer = self.held[chunk] = np.empty(shape, self.layout.zarr_dtype)
        return self._buffer

    def closed(self, index: int) -> int:
        """Say that draw `index` was the last one of its stretch; returns the stretch's bytes."""
        chunk = index // self.layout.length
        self.full.append(chunk)
        return self.held[chunk].nbytes

    def go_on(self, function: str, count: int, digests: npt.NDArray[np.uint32]) -> None:
        """Take up the last stretch of a run that has `count` draws; DataError for a damaged one."""
        layout = self.layout
        chunk, rows = divmod(count, layout.length)
        self.digests = digests.tolist()
        for past in range(chunk):
            for piece in range(layout.pieces):
                path = layout.path(self.folder, past, piece)
                if not path.is_file():
                    read_chunk(function, path, layout.chunk_shape, layout.zarr_dtype)
        if rows:
            shape = (layout.shape[0], layout.rows(chunk), *layout.shape[2:])
            self._buffer = self.held[chunk] = np.empty(shape, layout.zarr_dtype)
            self._buffer[:, :rows] = read_rows(
                function, self.folder, layout, chunk, rows, self.digests[chunk]
            )
            if rows == shape[1]:  # of the last draws of the run
                del self.held[chunk]

    def write_upto(self, count: int) -> None:
        """Write what is not on the disk yet of the first `count` draws, and flush the folder."""
        chunk, rows = divmod(count, self.layout.length)
        if rows and chunk in self.held and self._written != (chunk, rows):
            self.write(chunk, rows)
        if self._unflushed:
            sync_folder(self.folder / self.layout.name)
            self._unflushed = False

    def write(self, chunk: int, rows: int) -> None:
        """Write the first rows of a stretch, which the sampler does not change any more."""
        layout = self.layout
        self._written, self._unflushed = (chunk, rows), True
        buffer = self.held[chunk]
        each = layout.chunk_shape[0]
        crcs = []
        for piece in range(layout.pieces):
            own = buffer[piece * each : (piece + 1) * each, :rows]
            data = own
            if rows < layout.length:  # the file has room for all
                data = np.full(layout.chunk_shape, layout.fill, layout.zarr_dtype)
                data[:, :rows] = own
            crc = write_chunk(layout.path(self.folder, chunk, piece), data)
            crcs.append(crc if rows == layout.length else checksum(own))
        self.digests[chunk:] = [crcs]
        if rows == layout.rows(chunk):
            del self.held[chunk]


def read_rows(
    function: str, folder: Path, layout: Layout, chunk: int, rows: int, digests: list[int]
) -> npt.NDArray[Any]:
    """Return the first rows of a stretch (C, rows, ...) as they are stored.

    Raises
    ------
    DataError
        With the name of a file that is damaged, or that holds other draws than its checkpoint says.
    """
    each, result = layout.chunk_shape[0], None
    for piece in range(layout.pieces):
        path = layout.path(folder, chunk, piece)
        data = read_chunk(function, path, layout.chunk_shape, layout.zarr_dtype)[:, :rows]
        if checksum(data) != digests[piece]:
            raise DataError(
                f"[{function}] expected the draws that the checkpoint counts, got others: {path} "
                "(rb.load(..., rescue=True) gives the draws before it)"
            )
        if layout.pieces == 1:
            return data
        if result is None:
            result = np.empty((layout.shape[0], *data.shape[1:]), data.dtype)
        result[piece * each : (piece + 1) * each] = data
    assert result is not None
    return result


def encoded(values: npt.NDArray[Any], stored: str) -> npt.NDArray[Any]:
    """Round to what is stored; a bfloat16 is the upper half of a float32, ties to even."""
    if stored != "bfloat16":
        with np.errstate(over="ignore"):
            return values.astype(stored)
    with np.errstate(over="ignore"):
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    kept = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    nan = np.isnan(values)
    kept[nan] = 0x7FC0
    return kept.astype(np.uint16)


def decoded(values: npt.NDArray[Any], stored: str, dtype: str) -> npt.NDArray[Any]:
    """Return what is stored in the dtype of the draws."""
    if stored == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(dtype, copy=False)
