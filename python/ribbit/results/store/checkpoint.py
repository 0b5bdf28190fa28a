"""What counts of a run: its state, counters and checksums, in one file that is replaced whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit.errors import DataError
from ribbit.results import archive
from ribbit.results.contents import check_array, check_chains, whole
from ribbit.results.state import AnyState
from ribbit.results.store.chunks import checksum
from ribbit.results.store.columns import read_rows
from ribbit.results.store.layout import Layout

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "NAME",
    "PREVIOUS",
    "VERSION",
    "check_metadata",
    "exists",
    "opened",
    "state_of",
    "stored_layouts",
    "valid_prefix",
    "write",
]

NAME, PREVIOUS = "checkpoint", "checkpoint.previous"
VERSION = 1  # of the folder's layout


def exists(folder: Path) -> bool:
    """Whether a run has begun here."""
    return (folder / NAME).exists()


def write(
    function: str, folder: Path, header: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]
) -> None:
    """Replace the checkpoint; the one before stays beside it."""
    path, previous = folder / NAME, folder / PREVIOUS
    if path.exists():
        with contextlib.suppress(OSError):  # a file system without links does without
            beside = folder / f".{PREVIOUS}.tmp"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
            os.link(path, beside)
            os.replace(beside, previous)
    archive.write(function, path, header, arrays)


@contextlib.contextmanager
def opened(
    function: str, folder: Path, name: str = NAME
) -> Iterator[tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]]:
    """Give the header and the arrays; DataError for a damaged file or a later version."""
    with archive.opened(function, folder / name, "a run's checkpoint") as (header, arrays):
        run = header.get("run")
        if not isinstance(run, dict):
            raise DataError(
                f"[{function}] expected a run's checkpoint, got another file: {folder / name}"
            )
        if run["version"] != VERSION:
            raise DataError(
                f"[{function}] expected a run of version {VERSION}, got {run['version']}: {folder} "
                "(written by another version of Ribbit)"
            )
        yield header, arrays


def state_of(header: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> AnyState:
    """Return the state of all chains; ValueError or KeyError for what no run can have left."""
    check_chains("state/position", arrays["state/position"][:, None, ...])
    state = archive.state_of(header, arrays, arrays["state/position"][:, None, :])
    if state is None:
        raise ValueError("no state")
    return state


def check_metadata(function: str, folder: Path, metadata: dict[str, int]) -> None:
    """Raise DataError for metadata of the Zarr group that are not those the run began with."""
    for name, crc in metadata.items():
        try:
            found = checksum(np.frombuffer((folder / name).read_bytes(), np.uint8))
        except FileNotFoundError as error:
            raise DataError(
                f"[{function}] expected a whole run, got no file {folder / name}"
            ) from error
        if found != crc:
            raise DataError(
                f"[{function}] expected a whole run, got other metadata than it began with: "
                f"{folder / name}"
            )


def valid_prefix(
    function: str, folder: Path, stored: dict[str, tuple[Layout, int, npt.NDArray[np.uint32]]]
) -> tuple[int, int]:
    """Return how many draws and warmup draws can be read, of every array of the run."""
    counts = {True: 2**62, False: 2**62}
    for layout, count, digests in stored.values():
        good = count
        for chunk in range(len(digests)):
            low = chunk * layout.length
            rows = min(layout.length, count - low)
            try:
                read_rows(function, folder, layout, chunk, rows, digests[chunk].tolist())
            except (DataError, OSError):
                good = low
                break
        warm = layout.name.startswith("warmup_")
        counts[warm] = min(counts[warm], good)
    return counts[False], counts[True]


def stored_layouts(
    header: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]
) -> dict[str, tuple[Layout, int, npt.NDArray[np.uint32]]]:
    """Return layout, counted draws and checksums (stretches, pieces) of each array of a run."""
    run, found = header["run"], {}
    counts = {"kept": whole("kept", run["kept"], below=2**40)}
    counts["warm"] = whole("warm", run["warm"], below=2**40)
    for description in run["layouts"]:
        layout = Layout.from_description(description)
        count = counts["warm" if layout.name.startswith("warmup_") else "kept"]
        if count > layout.shape[1]:
            raise ValueError(f"{count} draws of {layout.shape[1]}")
        stretches = -(-count // layout.length)
        digests = arrays[f"digests/{layout.name}"]
        check_array(layout.name, digests, "uint32", (stretches, layout.pieces))
        found[layout.name] = layout, count, digests
    return found
