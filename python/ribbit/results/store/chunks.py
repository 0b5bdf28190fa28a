"""Chunk files of Zarr arrays, as the codecs "bytes" (little endian) and "crc32c" write them.

zarr-python writes the same bytes but does not flush them to the disk; a chunk that a checkpoint
counts has to be there after a power cut. So chunks are written here: beside their place, flushed,
renamed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit.errors import DataError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["checksum", "read_chunk", "sync_folder", "write_chunk"]

_TRAILER = 4  # bytes of a CRC-32C


def checksum(array: npt.NDArray[Any]) -> int:
    """CRC-32C of the bytes of an array in C order."""
    import google_crc32c

    return int(google_crc32c.value(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))


def write_chunk(path: Path, data: npt.NDArray[Any]) -> int:
    """Write a chunk, flushed to the disk; returns its checksum.

    `path` holds the old chunk or the new one, whatever happens. The folder is not flushed.
    """
    data = np.ascontiguousarray(data, data.dtype.newbyteorder("<"))
    crc = checksum(data)
    temporary = path.with_name(f".{path.name}.tmp")  # one run writes a folder: a fixed name will do
    with open(temporary, "wb", buffering=0) as file:
        _write_all(file.fileno(), data.reshape(-1).view(np.uint8).data)
        _write_all(file.fileno(), memoryview(crc.to_bytes(_TRAILER, "little")))
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return crc


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:  # a full disk takes a part first
        data = data[os.write(descriptor, data) :]


def read_chunk(
    function: str, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Return the array in a chunk file.

    Raises
    ------
    DataError
        With the file's name: it is missing, cut short, too long, or its bytes are not those of its
        checksum.
    """
    small = dtype.newbyteorder("<")
    size = int(np.prod(shape, dtype=np.int64)) * small.itemsize
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno()).st_size
            if found != size + _TRAILER:
                raise _damaged(
                    function, path, f"{found} bytes where {size + _TRAILER} were written"
                )
            raw = np.fromfile(file, np.uint8)
    except FileNotFoundError as error:
        raise _damaged(function, path, "no such file") from error
    data = raw[:size]
    if checksum(data) != int.from_bytes(raw[size:].tobytes(), "little"):
        raise _damaged(function, path, "bytes that do not match its checksum")
    return data.view(small).reshape(shape).astype(dtype, copy=False)


def _damaged(function: str, path: Path, what: str) -> DataError:
    return DataError(
        f"[{function}] expected a whole chunk, got {what}: {path} "
        "(rb.load(..., rescue=True) gives the draws before it)"
    )


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
