"""Runs on a target whose rows lie on several ranks: what the ranks must decide together.

Every rank makes the same run, or fit. Rank 0 decides what depends on the clock, on signals or on a
disk, and tells the others before each call. Ctrl-C on any rank ends the run on all of them after
the same step.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ribbit._arrays.namespace import to_host
from ribbit._arrays.threads import Interrupted
from ribbit._arrays.warning import warnings_to
from ribbit.errors import GroupError
from ribbit.protocols import Array, RowGroup


class RankAgreement:
    """One call of ``sample`` or ``fit`` on every rank of a group, or on one process without one."""

    guard: Any = None  # the InterruptGuard of the call, once it has one

    def __init__(self, function: str, group: RowGroup | None) -> None:
        self.group, self._function = group, function
        # Whether this rank shows progress and writes folders.
        self.leads = group is None or group.rank == 0

    def refuse(self, **options: Any) -> None:
        """Raise ValueError, on every rank, for options that do not go with a group."""
        for name, given in options.items():
            if given and self.group is not None:
                raise ValueError(
                    f"[{self._function}] expected no {name.replace('_and_', '= and ')}= with a "
                    "target whose rows lie on several ranks (group=)"
                )

    def alike(self, **stated: Any) -> None:
        """Raise, on every rank, unless all were called with the same."""
        if self.group is not None:
            plain = {name.replace("_", " "): repr(value) for name, value in stated.items()}
            self.group.alike(self._function, plain)

    def stored(self, kept: Any) -> Any:
        """Return the folder of rank 0, and on other ranks what they must know of it."""
        if self.group is None:
            return kept
        said = self.group.first(None if kept is None else kept.shared())
        return said if kept is None else kept

    def agree(self, place: Callable[[], Array], count: int, over: bool) -> tuple[int, bool]:
        """Return how many steps all make and whether the time is over; Ctrl-C stops every rank.

        GroupError on every rank if the chains of two ranks are at different places.
        """
        group, guard = self.group, self.guard
        if group is None or guard is None:
            return count, over
        where = zlib.crc32(np.ascontiguousarray(to_host(place())).data.cast("B"))
        stop, said = group.agree(guard.flag.is_asked(), 2 * count + int(over), where)
        if stop:
            guard.flag.set()
        return said // 2, bool(said % 2)


@contextlib.contextmanager
def agreement(function: str, group: RowGroup | None) -> Iterator[RankAgreement]:
    """Return what a call has in common with other ranks; an error of one ends it on all."""
    found = RankAgreement(function, group)
    if group is None:
        yield found
        return
    try:
        # All ranks have the same warnings.
        with contextlib.nullcontext() if found.leads else warnings_to(lambda *_: None):
            yield found
    except GroupError:  # which all ranks have
        raise
    except BaseException as error:
        asked = found.guard is not None and found.guard.requested
        if asked and isinstance(error, KeyboardInterrupt | Interrupted):
            group.end()  # as they all do
        else:
            group.fail(error)
        raise
    group.end()
