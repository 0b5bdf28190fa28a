"""The folder of one call of ``fit``: a checkpoint, replaced as the fit goes on."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ribbit.results.store import checkpoint
from ribbit.results.store.folder import RunFolder, failure
from ribbit.results.store.options import Store

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
        found: dict[str, Any] = self.header["run"]["loop"]
        return found


class FitStore(RunFolder):
    """One folder while one call of ``fit`` writes it.

    A checkpoint is a file of the fit. It also holds the values and arrays that the loop needs to
    continue, under names that the loop chooses.
    """

    kind = "fit"
    _last: dict[str, Any]  # what the loop left last

    @property
    def header(self) -> dict[str, Any]:
        """Of the checkpoint that was there."""
        return self._header

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Of the checkpoint that was there."""
        return self._arrays

    @property
    def loop(self) -> dict[str, Any]:
        """What the loop left in it."""
        found: dict[str, Any] = self._header["run"]["loop"]
        return found

    def followed(self) -> FollowedFit:
        """Return what other ranks must know."""
        return FollowedFit(self.begun, *((self.header, self.arrays) if self.begun else ({}, {})))

    def after_call(self, packed: Callable[[], tuple[Any, dict[str, Any]]]) -> None:
        """Leave a checkpoint to the thread when one is due; `packed`: a fit, plain values.

        Raises
        ------
        OSError
            When the one before could not be written.
        """
        if time.perf_counter() < self._due or self._writer.busy:
            return
        self._raise()
        self._writer.submit(self._job(packed), 0, 0)
        self._due = time.perf_counter() + self.options.flush_seconds

    def finishing_with(
        self, packed: Callable[[], tuple[Any, dict[str, Any]]]
    ) -> AbstractContextManager[None]:
        """Write what there is when the block ends; see :meth:`RunFolder.finishing`."""
        return self.finishing(lambda: self._job(packed))

    def put_back(self, fit: Any) -> None:
        """Replace the fit in the last checkpoint by one that has more; the loop's values stay.

        Raises
        ------
        OSError
            When it cannot be written.
        """
        header, arrays = fit._packed()
        header["run"] = self._run(0.0, loop=self._last)
        try:
            checkpoint.write(self.function, self.folder, header, arrays)
        except OSError as error:
            found = failure(self.function, self.folder, error)
            found.fit = fit  # type: ignore[attr-defined]
            raise found from error

    def _job(self, packed: Callable[[], tuple[Any, dict[str, Any]]]) -> Callable[[], None]:
        fit, loop = packed()
        self._last = loop
        header, arrays = fit._packed()
        header["run"] = self._run(0.0, loop=loop)
        return functools.partial(checkpoint.write, self.function, self.folder, header, arrays)


def fit_store(function: str, options: Store | None, request: dict[str, Any]) -> FitStore | None:
    """Return the folder of a fit, None for None; ValueError for options that are for draws."""
    if options is None:
        return None
    if options.keep != "draws" or options.dtype is not None:
        raise ValueError(
            f"[{function}] expected a store without keep= and dtype=, which are for draws, got "
            f"keep={options.keep!r}, dtype={options.dtype!r}"
        )
    return FitStore(function, options, request)
