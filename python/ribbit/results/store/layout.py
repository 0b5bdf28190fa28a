"""Arrays of a run as a Zarr v3 group: names, shapes, chunks, and the metadata that others read.

Shapes: C chains, D draws, P parameters.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ribbit._arrays.packages import missing
from ribbit.results.contents import whole
from ribbit.results.store.chunks import checksum

__all__ = ["Layout", "create", "prediction_layout", "record_layouts"]

_CHUNK_BYTES = 1 << 25  # of all chains: what waits in memory, twice
_FEWEST_STATISTICS = 1024  # draws in a chunk of statistics, of which each is a few bytes
_FILL = {"f": float("nan"), "b": False}
_CODES = {"bfloat16": "uint16"}  # Zarr has no name for it: the upper half of a float32


@dataclass(frozen=True)
class Layout:
    """One array of a run.

    Attributes
    ----------
    name : str
        "group/array".
    shape : tuple
        (C, D, ...): all draws of the planned run.
    dtype : str
        Of the draws in memory.
    stored : str
        Of the draws on the disk; "bfloat16" too.
    length : int
        Draws in a chunk.
    by_chain : bool
        Whether each chain has its own chunks.
    dims : tuple of str
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    stored: str
    length: int
    by_chain: bool
    dims: tuple[str, ...]

    @property
    def zarr_dtype(self) -> np.dtype[Any]:
        """What the files hold."""
        return np.dtype(_CODES.get(self.stored, self.stored))

    @property
    def fill(self) -> Any:
        """What stands where no draw is yet."""
        return _FILL.get(self.zarr_dtype.kind, 0)

    @property
    def pieces(self) -> int:
        """Files of one stretch of draws."""
        return self.shape[0] if self.by_chain else 1

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Of one file."""
        return (self.shape[0] // self.pieces, self.length, *self.shape[2:])

    def rows(self, chunk: int) -> int:
        """Draws of the planned run in a stretch."""
        return min(self.length, self.shape[1] - chunk * self.length)

    def path(self, folder: Path, chunk: int, piece: int) -> Path:
        """Return the file of a stretch of draws."""
        place = [piece, chunk, *[0] * (len(self.shape) - 2)]
        return folder / self.name / ".".join(["c", *map(str, place)])

    def describe(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return asdict(self)

    @staticmethod
    def from_description(found: Any) -> Layout:
        """Rebuild from `describe`; ValueError, KeyError or TypeError for anything else."""
        shape = tuple(whole("shape", n, below=2**62) for n in found["shape"])
        layout = Layout(**{**found, "shape": shape, "dims": tuple(found["dims"])})
        whole("length", layout.length - 1, below=2**62)
        parts = Path(layout.name).parts
        if len(parts) != 2 or ".." in parts or Path(layout.name).is_absolute() or len(shape) < 2:
            raise ValueError(f"an array {layout.name!r:.60} of shape {shape}")
        np.dtype(layout.dtype), layout.zarr_dtype
        return layout


def _chunk_length(each: int, draws: int) -> int:
    """Return draws per chunk where a draw of all chains has `each` bytes."""
    return max(1, min(draws, _CHUNK_BYTES // max(1, each)))


def record_layouts(
    prefix: str,
    shape: tuple[int, int, int] | None,
    chains: int,
    draws: int,
    dtype: str,
    stored: str,
    statistics: dict[str, str],
) -> tuple[Layout | None, dict[str, Layout]]:
    """Return the arrays of draws (C, D, P), None where no positions are kept, and statistics."""
    positions = None
    if shape is not None:
        width = 2 if stored.endswith("16") else np.dtype(stored).itemsize
        length = _chunk_length(chains * shape[2] * width, draws)
        dims = ("chain", "draw", "theta_dim")
        positions = Layout(f"{prefix}posterior/theta", shape, dtype, stored, length, True, dims)
    least = _FEWEST_STATISTICS if positions is None else max(positions.length, _FEWEST_STATISTICS)
    length = min(draws, least)
    stats = {
        name: Layout(
            f"{prefix}sample_stats/{name}",
            (chains, draws),
            kind,
            kind,
            length,
            False,
            ("chain", "draw"),
        )
        for name, kind in statistics.items()
    }
    return positions, stats


def prediction_layout(shape: tuple[int, ...], dtype: str) -> Layout:
    """Return the array of what each draw predicts, (C, D, N) or (C, D, N, K)."""
    each = int(np.prod(shape, dtype=np.int64)) // shape[1] * np.dtype(dtype).itemsize
    length = _chunk_length(each, shape[1])
    dims = ("chain", "draw", "row", "output")[: len(shape)]
    return Layout("predictions/mean", shape, dtype, dtype, length, True, dims)


def create(
    function: str, folder: Path, layouts: list[Layout], attrs: dict[str, Any]
) -> dict[str, int]:
    """Write the metadata of a group that has these arrays; chunks come later.

    Returns the checksum of each file of metadata.

    Raises
    ------
    ImportError
        Without zarr-python 3.
    """
    try:
        import zarr
        from zarr.codecs import Crc32cCodec

        if int(zarr.__version__.partition(".")[0]) < 3:
            raise ImportError(f"zarr {zarr.__version__}")
    except ImportError as error:
        raise missing(function, "zarr", error) from error
    with warnings.catch_warnings():
        # Consolidated metadata are no part of the format 3; readers that know them list nothing.
        warnings.simplefilter("ignore")
        root = zarr.open_group(str(folder), mode="a", zarr_format=3)
        root.attrs.update(attrs)
        for one in layouts:
            array = root.create_array(
                one.name,
                shape=one.shape,
                chunks=one.chunk_shape,
                dtype=one.zarr_dtype.newbyteorder("<"),
                fill_value=one.fill,
                compressors=[Crc32cCodec()],
                filters=None,
                chunk_key_encoding={"name": "default", "separator": "."},
                dimension_names=one.dims,
                overwrite=True,
            )
            if one.stored in _CODES:
                array.attrs["encoding"] = one.stored
        zarr.consolidate_metadata(root.store)
    for half in folder.rglob("zarr.*.partial"):  # of a run that was killed in here
        half.unlink()
    groups = {one.name.partition("/")[0] for one in layouts}
    names = ["", *sorted(f"{name}/" for name in groups), *(f"{one.name}/" for one in layouts)]
    found = {}
    for name in names:
        path = folder / name / "zarr.json"
        with open(path, "rb") as file:
            found[f"{name}zarr.json"] = checksum(np.frombuffer(file.read(), np.uint8))
            os.fsync(file.fileno())
    return found
