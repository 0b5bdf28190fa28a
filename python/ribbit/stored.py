"""What a run needs of its folder, over `ribbit.store`: sinks, and what a state holds.

Shapes: C chains, D draws, P parameters, K draws of a block.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ribbit._arrays.namespace import host_dtype, to_host
from ribbit.protocols import Array
from ribbit.results import archive
from ribbit.results.running import RunningPrediction
from ribbit.results.state import AnyState
from ribbit.sinks import Stored
from ribbit.store import Opened, Part, Saved, StoreWriter

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Followed", "Place", "RunStore"]


class Place(NamedTuple):
    """Where a run is: the contents of a checkpoint."""

    state: AnyState
    running: RunningPrediction | None
    seconds: float
    settings: dict[str, Any]
    watch: tuple[dict[str, Any], dict[str, Any]]
    complete: bool


@dataclass(frozen=True, eq=False)
class Followed:
    """What ranks that write no folder know of the one that rank 0 writes; see `RunStore`."""

    begun: bool
    kept: int
    state: Any
    origin: dict[str, Any] | None
    found: dict[str, Any]
    prediction: tuple[Any, Any] | None
    stats: dict[str, npt.NDArray[Any]]

    def restore(self, running: RunningPrediction | None) -> None:
        """Put back what was gathered of the draws before."""
        if running is not None and self.prediction is not None:
            running.restore(*self.prediction)


class RunStore:
    """One folder while one call of ``sample`` writes it.

    `kept` counts the draws of earlier calls, `origin` says how the start was found, and
    `found` holds settings of the run next to its sampler's.
    """

    def __init__(self, function: str, opened: Opened, request: dict[str, Any]) -> None:
        options = opened.options
        chosen = {"keep": options.keep, "dtype": options.dtype}
        self._writer = StoreWriter(function, opened, "draws", {**request, "store": chosen})
        self.folder, self.reserve = options.folder, self._writer.reserve
        self.begun, self.seconds = self._writer.begun, self._writer.seconds
        header, files = self._writer.header, self._writer.files
        self.kept = files["stats"].rows if self.begun else 0
        self.origin: dict[str, Any] | None = header.get("origin")
        self.found: dict[str, Any] = header.get("found", {})
        self._predictive: Any = None

    @property
    def state(self) -> Any:
        """Where the run goes on."""
        arrays = self._writer.arrays
        return archive.state_of(self._writer.header, arrays, arrays["state/position"][:, None, :])

    def watched(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]] | None:
        """Return what the monitor remembers of a run that goes on; None where it has not begun."""
        found = self._writer.header.get("watch")
        return (found, archive.get(self._writer.arrays, "watch")) if found else None

    def restore(self, running: RunningPrediction | None) -> None:
        """Put back what was gathered of the draws before."""
        found = self._gathered()
        if running is not None and found is not None:
            running.restore(*found)

    def _gathered(self) -> tuple[Any, Any] | None:
        found = self._writer.header.get("prediction")
        return None if found is None else (found, archive.get(self._writer.arrays, "prediction"))

    def followed(self) -> Followed:
        """Return what other ranks must know."""
        stats, state = {}, None
        if self.begun:
            state = self.state
            named = Part(self._writer.files).upto(self.kept)[1]
            stats = {name: np.array(values) for name, values in named.items()}
        return Followed(
            self.begun, self.kept, state, self.origin, self.found, self._gathered(), stats
        )

    def sinks(
        self,
        state: AnyState,
        dim: int,
        statistics: Mapping[str, str],
        *,
        positions: bool,
        warmup: bool,
        predictive: Any,
        running: RunningPrediction | None,
        place: Callable[[], Place],
    ) -> tuple[Stored, Stored | None]:
        """Return the sinks of draws and warmup, after the draws that the folder has."""
        shape, dtype = (state.position.shape[0], dim), host_dtype(state.position).name
        predictions = None
        if self._writer.options.keep == "predictions" and running is not None:
            flat = bool(getattr(running.predictive, "flat", False)) and running.shape[1:] == (1,)
            inner = running.shape[:1] if flat else running.shape
            predictions = (shape[0], *inner), running.dtype
        self._predictive = predictive
        writer = self._writer
        writer.begin(
            shape, dtype, statistics, positions=positions, warmup=warmup, predictions=predictions
        )
        empty = np.empty((shape[0], 0, dim), dtype)
        if not self.begun:
            writer.checkpoint(functools.partial(self._save, place), now=True)
        warm = None if writer.warmup is None else Stored(writer.warmup, empty)
        return Stored(writer.draws, empty), warm

    def append_predictions(self, values: Array) -> None:
        """Add the predictions (K * C, N, ...) of draws, draw after draw, if they are kept."""
        file = self._writer.predictions
        if file is not None:
            file.append(to_host(values).reshape((-1, *file.shape)))

    def predictions(self, count: int) -> Any:
        """Return the predictions of the first draws, if they are kept."""
        file = self._writer.predictions
        return None if file is None else file.array(count)

    def abandon(self, error: BaseException) -> None:
        """Write no more states: what was appended last does not belong to one."""
        self._writer.errors.append(error)

    def after_step(self, place: Callable[[], Place]) -> None:
        """Write a checkpoint during sampling when it is due; OSError as `StoreWriter` raises it."""
        self._writer.checkpoint(functools.partial(self._save, place))

    def finishing_at(self, place: Callable[[], Place]) -> AbstractContextManager[None]:
        """Write what there is when the block ends; see `StoreWriter.finishing`."""
        return self._writer.finishing(functools.partial(self._save, place))

    def _save(self, place: Callable[[], Place]) -> Saved:
        """Return what a state file holds; all that changes later is copied now."""
        here = place()
        values = {
            "complete": here.complete,
            "seconds": here.seconds,
            "settings": here.settings,
            "predictive": self._predictive,
            "origin": self.origin,
            "found": self.found,
        }
        header, arrays = dict[str, Any](), dict[str, Any]()
        archive.put_state(arrays, header, here.state)
        sections: dict[str, Callable[[], bytes]] = {}
        sections["state"] = functools.partial(archive.packed, header, arrays)
        plain, watched = here.watch
        sections["watch"] = _section("watch", plain, watched)
        if here.running is not None and here.running.moments.count:
            gathered, found = here.running.pack()
            found = {name: np.array(to_host(value)) for name, value in found.items()}
            sections["prediction"] = _section("prediction", gathered, found)
        return values, sections


def _section(name: str, plain: dict[str, Any], arrays: dict[str, Any]) -> Callable[[], bytes]:
    """Return what makes the bytes of plain values and arrays under a name."""
    named: dict[str, Any] = {}
    archive.put(named, name, arrays)
    return functools.partial(archive.packed, {name: plain}, named)
