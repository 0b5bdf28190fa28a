"""Groups of ranks without processes: threads of one."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import ribbit as rb

PATIENCE = 60.0  # seconds until a rank that waits gives up: no test may hang


class Threads:
    """A `Communicator` whose ranks are threads."""

    def __init__(self, rank: int, shared: "_Shared") -> None:
        self.rank, self.size, self._shared = rank, shared.size, shared

    def gather(self, send: memoryview, receive: memoryview, sizes: Sequence[int]) -> None:
        """See `Communicator.gather`."""
        assert send.nbytes == sizes[self.rank]
        at = 0
        for part, size in zip(self._shared.all(self.rank, bytes(send)), sizes, strict=True):
            receive[at : at + size] = part
            at += size
        assert at == receive.nbytes

    def exchange(
        self,
        send: memoryview,
        send_sizes: Sequence[int],
        receive: memoryview,
        receive_sizes: Sequence[int],
    ) -> None:
        """See `Communicator.exchange`."""
        parts, at = [], 0
        for size in send_sizes:
            parts.append(bytes(send[at : at + size]))
            at += size
        assert at == send.nbytes
        at = 0
        for other, size in zip(self._shared.all(self.rank, parts), receive_sizes, strict=True):
            receive[at : at + size] = other[self.rank]
            at += size
        assert at == receive.nbytes


class _Shared:
    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=PATIENCE)
        self.given: list[Any] = [None] * size

    def all(self, rank: int, value: Any) -> list[Any]:
        self.given[rank] = value
        self.barrier.wait()
        found = list(self.given)
        self.barrier.wait()
        return found


def on_ranks(size: int, program: Callable[[Any], Any]) -> list[Any]:
    """Run ``program(group)`` on each rank; what each returns, or the exception that ended it."""
    shared = _Shared(size)
    found: list[Any] = [None] * size

    def work(rank: int) -> None:
        try:
            found[rank] = program(rb.distributed.Group(Threads(rank, shared)))
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
        assert not thread.is_alive(), "a rank hangs"
    return found
