"""Draws as a Zarr group, which xarray and ArviZ read.

Shapes: C chains, D draws, P parameters.
"""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path
from typing import Any

from ribbit._arrays import checks
from ribbit._arrays.namespace import host_dtype, to_host
from ribbit._arrays.packages import needing

_NAME = "Draws.to_zarr"
_BYTES = 1 << 25  # of a chunk of all chains
_DIMS = ("chain", "draw", "theta_dim")


def attributes(draws: Any) -> dict[str, Any]:
    """Return what readers are told of a run, in ArviZ's words."""
    settings = draws.settings
    return {
        "inference_library": "ribbit",
        "inference_library_version": settings.get("versions", {}).get("ribbit", "unknown"),
        "sampler": str(settings.get("sampler")),
        "seed": str(settings.get("seed")),
        "complete": int(draws.complete),
    }


def to_zarr(draws: Any, path: str | os.PathLike[str]) -> None:
    """See :meth:`ribbit.Draws.to_zarr`."""
    folder = Path(os.path.abspath(checks.path(_NAME, path)))
    with needing(_NAME, "zarr"):
        import zarr
    if folder.exists():
        raise FileExistsError(f"[{_NAME}] expected a new folder, got {folder}")
    groups = {"posterior": {"theta": draws.positions}, "sample_stats": draws.stats}
    if draws.warmup_positions is not None:
        groups["warmup_posterior"] = {"theta": draws.warmup_positions}
        groups["warmup_sample_stats"] = draws.warmup_stats or {}
    samples = getattr(draws.prediction, "_stored", None)
    if samples is not None:
        groups["predictions"] = {"mean": samples}
    with warnings.catch_warnings():
        # Consolidated metadata are no part of the format 3; readers that know them list nothing.
        warnings.simplefilter("ignore")
        root = zarr.open_group(str(folder), mode="w-", zarr_format=3)
        root.attrs.update(attributes(draws))
        for group, arrays in groups.items():
            dims = ("chain", "draw", "row", "output") if group == "predictions" else _DIMS
            for name, values in arrays.items():
                if values.shape[1]:
                    _write(root, f"{group}/{name}", values, dims[: len(values.shape)])
        zarr.consolidate_metadata(root.store)


def _write(root: Any, name: str, values: Any, dims: tuple[str, ...]) -> None:
    """Write an array (C, D, ...), some draws at a time."""
    shape, dtype = tuple(values.shape), host_dtype(values)
    each = dtype.itemsize * math.prod(shape) // shape[1]  # bytes of a draw
    length = max(1, min(shape[1], _BYTES // each))
    chunks = (shape[0], length, *shape[2:])
    array = root.create_array(name, shape=shape, chunks=chunks, dtype=dtype, dimension_names=dims)
    for low in range(0, shape[1], length):
        array[:, low : low + length] = to_host(values[:, low : low + length])
