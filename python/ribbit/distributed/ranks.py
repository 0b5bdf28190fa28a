"""Runs on a target whose rows lie on several ranks: what must not be decided by one of them alone.

Every rank makes the same run, or fit. What depends on the clock, on signals or on a disk is decided
by rank 0 and told the others before each call; Ctrl-C on any rank ends the run on all of them after
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

__all__ = ["Together", "together"]


class Together:
    """One call of ``sample`` or ``fit`` on every rank of a group; alone, where there is none.

    Attributes
    ----------
    group : RowGroup or None
    guard : InterruptGuard or None
        Of the call, once it has one.
    """

    def __init__(self, function: str, group: RowGroup | None) -> None:
        self.group, self.guard = group, None
        self._function = function

    group: RowGroup | None
    guard: Any

    @property
    def leads(self) -> bool:
        """Whether this rank shows progress and writes folders."""
        return self.group is None or self.group.rank == 0

    def refuse(self, **options: Any) -> None:
        """Raise for options that do not go with a group.

        Raises
        ------
        ValueError
            On every rank.
        """
        if self.group is None:
            return
        for name, given in options.items():
            if given:
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
        """Return how many steps all make, and whether the time is over; Ctrl-C becomes everybody's.

        Raises
        ------
        GroupError
            On every rank, where their chains are not at the same place.
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
def together(function: str, group: RowGroup | None) -> Iterator[Together]:
    """Return what a call has in common with other ranks; an error of one ends it on all."""
    found = Together(function, group)
    if group is None:
        yield found
        return
    try:
        # All ranks have the same warnings.
        quiet = contextlib.nullcontext() if found.leads else warnings_to(lambda *_: None)
        with quiet:
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
