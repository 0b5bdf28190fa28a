"""Rows over the ranks of a group: who has which, and whether all state the same posterior."""

# Shapes: N rows of all ranks.

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.shards import DEFAULT_SHARDS, PANEL, row_bounds
from ribbit._arrays.threads import version
from ribbit.errors import DataError, GroupError

if TYPE_CHECKING:
    from ribbit.protocols import RowGroup

_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class Ranks:
    """What a rank knows of the rows of all."""

    group: RowGroup
    first: int  # number of this rank's first row, and N
    total: int
    weight: float  # sum of the weights of all rows
    digests: tuple[str, ...]  # of the rows of each shard, in order


def on_every_rank(function: str, group: RowGroup | None, make: Callable[[], _T]) -> _T:
    """Return ``make()``; an error of it on one rank is an error on all."""
    if group is None:
        return make()
    error: BaseException | None = None
    found: Any = None
    try:
        found = make()
    except BaseException as caught:  # the others must hear of it, whatever it is
        error = caught
    texts = group.collect(b"" if error is None else f"{type(error).__name__}: {error}".encode())
    if error is not None:
        raise error
    for rank, text in enumerate(texts):
        if text:
            raise GroupError(
                f"[{function}] expected all {group.size} ranks to accept their arguments, got an "
                f"error on rank {rank}: {text.decode(errors='replace')}"
            )
    return found  # type: ignore[no-any-return]


def handshake(
    function: str,
    group: RowGroup,
    shards: int,
    stated: dict[str, str],  # what must be the same on every rank
    rows: int,  # of this rank
    weight: float,  # sum of their weights
    # digests of the rows between the given bounds, counted from this rank's first
    digest_of: Callable[[list[int]], list[str]],
) -> Ranks:
    """Compare what the ranks state, and return who has which rows."""
    group.alike(function, {"version": version(), "number of shards": str(shards), **stated})
    if shards < group.size:
        raise GroupError(
            f"[{function}] expected at least one shard for each of {group.size} ranks, got "
            f"{shards}: set shards={group.size} or more, or take fewer ranks"
        )
    counts = [int(one) for one in group.collect(str(rows).encode())]
    total = sum(counts)
    bounds = row_bounds(total, shards, group.size)
    call = f"group.rows(N{'' if shards == DEFAULT_SHARDS else f', {shards}'})"
    for rank, count in enumerate(counts):
        if count != bounds[rank + 1] - bounds[rank]:
            same = len(set(counts)) == 1 and group.size > 1
            raise GroupError(
                f"[{function}] expected rows {bounds[rank]} to {bounds[rank + 1]} of {total} on "
                f"rank {rank} ({shards} shards of whole panels of {PANEL} rows), got {count} "
                f"rows: give rows {call}"
                + (f" of the {count}, if each of the ranks has them all" if same else "")
            )
    low = shards * group.rank // group.size
    high = shards * (group.rank + 1) // group.size
    edges = row_bounds(total, shards, shards)[low : high + 1]
    own = digest_of([edge - bounds[group.rank] for edge in edges])
    found = [json.loads(one) for one in group.collect(json.dumps([own, weight]).encode())]
    parts = [part for part, _ in found]
    if group.size > 1 and all(part == parts[0] for part in parts):
        raise GroupError(
            f"[{function}] expected each rank to give rows of its own, got the same {counts[0]} "
            f"rows from all {group.size}: give x[rows] and y[rows] with rows = {call}"
        )
    digests = tuple(one for part in parts for one in part)
    return Ranks(group, bounds[group.rank], total, sum(part for _, part in found), digests)


def check_group(function: str, group: Any) -> None:
    """Raise TypeError unless `group` is a group of ranks or None."""
    methods = (getattr(group, name, None) for name in ("meet", "collect", "rows"))
    if group is not None and not all(map(callable, methods)):
        raise TypeError(
            f"[{function}] expected group as rb.distributed.from_mpi() returns, got "
            f"{checks.summary(group)}"
        )


def check_options(
    function: str, group: RowGroup | None, standardize: Any, marginalize: str | None
) -> None:
    """Raise for what does not go with a group."""
    if group is None:
        return
    for name, got in ("standardize", standardize), ("marginalize", marginalize):
        if got is True or got == "last_layer":
            raise ValueError(
                f"[{function}] expected no {name}= with group=, got {got!r}: it needs all rows in "
                "one process"
            )


def weights_of_all(function: str, group: RowGroup, weights: Any) -> Any:
    """Return this rank's weights of rows, None where those of all ranks are 1."""
    kind = b"none" if weights is None else b"ones" if (weights == 1).all() else b"more"
    if kind == b"more" and not weights.any():
        kind = b"zeros"
    kinds = group.collect(kind)
    given = ["none" if one == b"none" else "some" for one in kinds]
    if len(set(given)) > 1:
        said = ", ".join(f"{one} (rank {rank})" for rank, one in enumerate(given))
        raise GroupError(
            f"[{function}] expected sample_weight on every rank, or on none, got {said}"
        )
    if set(kinds) == {b"zeros"}:
        raise DataError(f"[{function}] expected a sample_weight above 0, got zeros alone")
    return None if set(kinds) <= {b"none", b"ones"} else weights


def spaced(ranks: Ranks, x: Any, every: int) -> Any:
    """Return rows 0, every, .. of all ranks, from each rank's own x (n, D)."""
    own = np.ascontiguousarray(x[-ranks.first % every :: every, ...])
    parts = [np.frombuffer(one, x.dtype) for one in ranks.group.collect(own.tobytes())]
    return np.concatenate(parts).reshape(-1, *x.shape[1:])
