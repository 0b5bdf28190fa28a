"""The folder of one call of ``fit``: a state file, replaced as the fit goes on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ribbit.results import archive
from ribbit.store import Opened, Saved, StateWriter

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["FitStore", "FollowedFit", "fit_store"]


@dataclass(frozen=True)
class FollowedFit:
    """What ranks that write no folder know of the one that rank 0 writes; as `FitStore` has it."""

    begun: bool
    header: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]

    @property
    def loop(self) -> dict[str, Any]:
        """What the loop left in it."""
        found: dict[str, Any] = self.header["loop"]
        return found


class FitStore:
    """One folder while one call of ``fit`` writes it.

    A state file has the fit, and the values and arrays that the loop needs to continue, under names
    that the loop chooses.
    """

    def __init__(self, function: str, opened: Opened, request: dict[str, Any]) -> None:
        self._writer = StateWriter(function, opened, "fit", request)
        self.folder, self.begun = self._writer.folder, self._writer.begun
        self.header, self.arrays = self._writer.header, self._writer.arrays
        self._last: dict[str, Any] = self.header.get("loop", {})

    @property
    def loop(self) -> dict[str, Any]:
        """What the loop left in it."""
        found: dict[str, Any] = self.header["loop"]
        return found

    def followed(self) -> FollowedFit:
        """Return what other ranks must know."""
        return FollowedFit(self.begun, self.header, self.arrays)

    def after_call(self, packed: Callable[[], tuple[Any, dict[str, Any]]]) -> None:
        """Write a checkpoint during the fit when it is due; `packed`: a fit, plain values.

        Raises
        ------
        OSError
            When the one before could not be written.
        """
        self._writer.checkpoint(lambda: self._save(*packed()))

    def finishing_with(
        self, packed: Callable[[], tuple[Any, dict[str, Any]]]
    ) -> AbstractContextManager[None]:
        """Write what there is when the block ends; see `StateWriter.finishing`."""
        return self._writer.finishing(lambda: self._save(*packed()))

    def put_back(self, fit: Any) -> None:
        """Replace the fit in the folder by one that has more; the loop's values stay.

        Raises
        ------
        OSError
            When it cannot be written.
        """
        self._writer.complete = False
        try:
            self._writer.checkpoint(lambda: self._save(fit, self._last), now=True)
        except OSError as error:
            error.fit = fit  # type: ignore[attr-defined]
            raise

    def _save(self, fit: Any, loop: dict[str, Any]) -> Saved:
        self._last = loop
        header, arrays = fit._packed()
        values = {"complete": header["complete"], "seconds": 0.0, "loop": loop}
        return values, {"fit": functools.partial(archive.packed, header, arrays)}


def fit_store(function: str, opened: Opened | None, request: dict[str, Any]) -> FitStore | None:
    """Return the folder of a fit, None for None; ValueError for options that are for draws."""
    if opened is None:
        return None
    options = opened.options
    if options.keep != "draws" or options.dtype is not None:
        raise ValueError(
            f"[{function}] expected a store without keep= and dtype=, which are for draws, got "
            f"keep={options.keep!r}, dtype={options.dtype!r}"
        )
    return FitStore(function, opened, request)
