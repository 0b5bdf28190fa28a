"""What the ranks of a group say to each other, whatever carries it."""

# Every step that ranks make together begins with a short message of one length from each to all:
# what is to be done, and whether a rank wants to stop or has failed. So a rank that fails between
# two steps is heard at the next one, and no rank waits for it.

from __future__ import annotations

import contextlib
import itertools
import json
import pickle
import struct
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from ribbit._arrays import checks
from ribbit._arrays.shards import DEFAULT_SHARDS, MOST_SHARDS, row_bounds
from ribbit.errors import GroupError

# Of a message: what is done, whether this rank wants to stop or has failed, a length and a number.
_HEADER = struct.Struct("<HHIqq")
_WISH, _FAILED = 1, 2
_GRADIENT, _COLLECT, _AGREE, _END = 1, 2, 3, 4
_NAMES = {_GRADIENT: "a gradient", _COLLECT: "a message", _AGREE: "a step", _END: "a run's end"}
_TEXT = 1024  # bytes of why a rank has failed


@runtime_checkable
class Communicator(Protocol):
    """Base class for the transport of bytes between ranks: MPI, or your adapter of another library.

    All ranks make the same calls in the same order, and a call returns once the rank has its data.
    Buffers are bytes, with the parts of the ranks one after another, and never overlap.

    Attributes
    ----------
    rank : int
        Number of this process, in 0 .. size - 1.
    size : int
        Number of ranks R.

    Examples
    --------
    >>> class Alone:
    ...     rank, size = 0, 1
    ...     def gather(self, send, receive, sizes):
    ...         receive[:] = send
    ...     def exchange(self, send, send_sizes, receive, receive_sizes):
    ...         receive[:] = send
    >>> isinstance(Alone(), rb.distributed.Communicator)
    True
    >>> rb.distributed.Group(Alone())
    Group(rank=0, size=1)
    """

    rank: int
    size: int

    def gather(self, send: memoryview, receive: memoryview, sizes: Sequence[int]) -> None:
        """Send data to all ranks: `send` of rank r becomes part r, with ``sizes[r]`` bytes."""
        ...

    def exchange(
        self,
        send: memoryview,
        send_sizes: Sequence[int],
        receive: memoryview,
        receive_sizes: Sequence[int],
    ) -> None:
        """Send part r of `send` to rank r, and receive part r of `receive` from it."""
        ...


class Group:
    """Processes that share the rows of a posterior.

    Made by :func:`ribbit.distributed.from_mpi`, or from a :class:`Communicator`. The calls of
    several groups, or of several threads on one, must come in the same order on every rank.

    Parameters
    ----------
    communicator : Communicator

    Attributes
    ----------
    rank, size : int
        Number of this process, and number of processes.
    bytes_sent : int
        Bytes of gradients, log likelihoods and minibatch rows that this rank has sent so far.
    gradients : int
        Number of evaluations with an exchange.

    Raises
    ------
    TypeError
        If `communicator` is not a Communicator.

    Examples
    --------
    >>> class Alone:
    ...     rank, size = 0, 1
    ...     def gather(self, send, receive, sizes):
    ...         receive[:] = send
    ...     def exchange(self, send, send_sizes, receive, receive_sizes):
    ...         receive[:] = send
    >>> group = rb.distributed.Group(Alone())
    >>> group.rows(1000)
    slice(0, 1000, None)
    """

    def __init__(self, communicator: Communicator) -> None:
        if not isinstance(communicator, Communicator):
            raise TypeError(
                "[Group] expected a communicator with rank, size, gather and exchange, got "
                f"{checks.summary(communicator)}"
            )
        self._link = communicator
        self.rank = checks.integer("Group", "rank", communicator.rank, minimum=0)
        self.size = checks.integer("Group", "size", communicator.size, minimum=self.rank + 1)
        self.bytes_sent = self.gradients = 0
        self._lost = False  # the communicator itself has failed

    def __repr__(self) -> str:
        return f"Group(rank={self.rank}, size={self.size})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("[Group] expected to stay in its process, got pickled")

    def rows(self, count: int, shards: int = DEFAULT_SHARDS) -> slice:
        """Return the slice of `count` rows that belongs to this rank.

        Parameters
        ----------
        count : int
            Rows of all ranks, N.
        shards : int, default 16
            As the posterior's ``shards``.

        Returns
        -------
        slice

        Raises
        ------
        TypeError, ValueError
            If a rank would have no rows.
        """
        count = checks.integer("Group.rows", "count", count, minimum=1, maximum=2**39)
        shards = checks.integer("Group.rows", "shards", shards, minimum=1, maximum=MOST_SHARDS)
        bounds = row_bounds(count, shards, self.size)
        if shards < self.size or any(a == b for a, b in itertools.pairwise(bounds)):
            raise ValueError(
                f"[Group.rows] expected a shard and 32 rows for each of {self.size} ranks, got "
                f"{shards} shards and {count} rows: take fewer ranks"
            )
        return slice(bounds[self.rank], bounds[self.rank + 1])

    # What follows is for posteriors and samplers: all ranks call it together.

    def meet(self, wish: bool, place: int) -> bool:
        """Begin a gradient; return whether all ranks stop, because one asked for it.

        Raises
        ------
        GroupError
            On every rank, unless all have the same `place`, a digest of positions or rows.
        """
        self.gradients += 1
        stop, said = self._begin(_GRADIENT, wish=wish, length=_number("meet", place))
        _check_places("positions, or rows,", said)
        return stop

    def swap(
        self,
        send: memoryview,
        send_sizes: Sequence[int],
        receive: memoryview,
        receive_sizes: Sequence[int],
    ) -> None:
        """Exchange parts of a gradient; after `meet`."""
        self._check_sizes("swap", send_sizes)
        self._check_sizes("swap", receive_sizes)
        self.bytes_sent += sum(send_sizes)
        self._carry(self._link.exchange, send, send_sizes, receive, receive_sizes)

    def gather(self, send: memoryview, receive: memoryview, sizes: Sequence[int]) -> None:
        """Send data of known sizes to all ranks, such as parts of a gradient."""
        self._check_sizes("gather", sizes)
        self.bytes_sent += sizes[self.rank] * (self.size - 1)
        self._carry(self._link.gather, send, receive, sizes)

    def collect(self, data: bytes) -> list[bytes]:
        """Return the data of each rank."""
        if not isinstance(data, bytes):
            got = checks.summary(data)
            raise TypeError(f"[Group.collect] data must be bytes, got {got}")
        lengths = [length for length, _ in self._begin(_COLLECT, length=len(data))[1]]
        receive = bytearray(sum(lengths))
        self._carry(self._link.gather, memoryview(data), memoryview(receive), lengths)
        found, at = [], 0
        for length in lengths:
            found.append(bytes(receive[at : at + length]))
            at += length
        return found

    def first(self, value: Any = None) -> Any:
        """Return the value of rank 0, sent by pickle."""
        data = b""
        if self.rank == 0:
            try:
                data = pickle.dumps(value)
            except Exception as error:
                got = checks.summary(value)
                raise TypeError(f"[Group.first] value must pickle, got {got}: {error}") from error
        return pickle.loads(self.collect(data)[0])

    def alike(self, function: str, stated: dict[str, str]) -> None:
        """Raise on every rank unless all state the same.

        Raises
        ------
        GroupError
            Names the first difference.
        """
        checks.mapping("Group.alike", "stated", stated)
        for key, value in stated.items():
            if not isinstance(value, str):
                got = checks.summary(value)
                raise TypeError(f"[Group.alike] stated[{key!r}] must be a string, got {got}")
        found = [json.loads(one) for one in self.collect(json.dumps(stated).encode())]
        for key in stated:
            values = [one.get(key) for one in found]
            if len(set(values)) > 1:
                said = ", ".join(f"{value} (rank {rank})" for rank, value in enumerate(values))
                raise GroupError(f"[{function}] expected the same {key} on every rank, got {said}")

    def agree(self, wish: bool, number: int, place: int) -> tuple[bool, int]:
        """Return whether a rank asks to stop, and the number of rank 0.

        Raises
        ------
        GroupError
            On every rank, unless all have the same `place`, a digest of the chains' positions.
        """
        stop, said = self._begin(
            _AGREE, wish=wish, length=_number("agree", place), number=_number("agree", number)
        )
        _check_places("chains", said)
        return stop, said[0][1]

    def end(self) -> None:
        """End a run on every rank."""
        self._begin(_END)

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks that this rank leaves with an error that they may not have."""
        if self._lost:
            return
        with contextlib.suppress(GroupError):
            self._begin(_END, failed=f"{type(error).__name__}: {error}")

    def _begin(
        self,
        what: int,
        *,
        wish: bool = False,
        length: int = 0,
        number: int = 0,
        failed: str | None = None,
    ) -> tuple[bool, list[tuple[int, int]]]:
        """Tell all ranks what is done; whether one wants to stop, and each one's numbers."""
        flags = (_WISH if wish else 0) | (_FAILED if failed is not None else 0)
        found = self._short(_HEADER.pack(what, flags, 0, length, number))
        heads = [_HEADER.unpack(one) for one in found]
        if any(head[1] & _FAILED for head in heads):
            text = "" if failed is None else failed
            texts = self._short(text.encode()[:_TEXT].ljust(_TEXT, b"\0"))
            rank = next(r for r, head in enumerate(heads) if head[1] & _FAILED)
            said = texts[rank].rstrip(b"\0").decode(errors="replace")
            raise GroupError(
                f"[Group] expected all {self.size} ranks to continue, got an error on rank {rank}: "
                f"{said}"
            )
        done = [head[0] for head in heads]
        if len(set(done)) > 1:
            said = ", ".join(f"{_NAMES[one]} (rank {r})" for r, one in enumerate(done))
            raise GroupError(f"[Group] expected the same calls on every rank, got {said}")
        return any(head[1] & _WISH for head in heads), [(head[3], head[4]) for head in heads]

    def _short(self, data: bytes) -> list[bytes]:
        """Return what each rank gives, all of one length."""
        receive = bytearray(len(data) * self.size)
        sizes = [len(data)] * self.size
        self._carry(self._link.gather, memoryview(data), memoryview(receive), sizes)
        return [bytes(receive[i : i + len(data)]) for i in range(0, len(receive), len(data))]

    def _check_sizes(self, method: str, sizes: Any) -> None:
        """Raise unless sizes are numbers of bytes, one for each rank."""
        if not isinstance(sizes, list | tuple) or len(sizes) != self.size:
            raise TypeError(
                f"[Group.{method}] sizes must be a list of {self.size} numbers of bytes, got "
                f"{checks.summary(sizes)}"
            )
        for one in sizes:
            checks.integer(f"Group.{method}", "sizes", one, minimum=0)

    def _carry(self, call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except BaseException:
            self._lost = True
            raise


def _number(method: str, value: Any) -> int:
    return checks.integer(f"Group.{method}", "number", value, minimum=-(2**63), maximum=2**63 - 1)


def _check_places(what: str, said: Sequence[tuple[int, int]]) -> None:
    """Raise GroupError unless the first numbers of all ranks, digests of `what`, are the same."""
    places = [place for place, _ in said]
    if len(set(places)) > 1:
        raise GroupError(
            f"[Group] expected {what} at the same place on every rank, got digests "
            f"{', '.join(f'{one:08x}' for one in places)}: was the start the same?"
        )
