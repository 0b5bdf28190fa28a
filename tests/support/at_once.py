"""A task on several Python threads that begin together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

THREADS = 8
R = TypeVar("R")


def at_once(task: Callable[[int], R], threads: int = THREADS) -> list[R]:
    """What a task returns for 0, 1, .. on as many threads; raises the first of their exceptions."""
    barrier = threading.Barrier(threads)
    found: dict[int, R] = {}
    raised: dict[int, BaseException] = {}

    def work(i: int) -> None:
        try:
            barrier.wait(timeout=60)
            found[i] = task(i)
        except BaseException as error:
            raised[i] = error

    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for i in sorted(raised):
        raise raised[i]
    return [found[i] for i in range(threads)]
