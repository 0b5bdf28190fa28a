"""A thread that writes beside sampling."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

__all__ = ["Writer"]


class Writer:
    """Does one job after another; the first that fails is the last.

    Attributes
    ----------
    error : OSError or other exception, or None
        What ended it.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._jobs: deque[tuple[Callable[[], None], int]] = deque()
        self._changed = threading.Condition()
        self._waiting = 0  # bytes of the jobs that are not done
        self._thread: threading.Thread | None = None
        self._ending = False

    def submit(self, job: Callable[[], None], size: int, most: int) -> None:
        """Leave a job of some bytes; waits while others hold more than `most`."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="ribbit store", daemon=True)
                self._thread.start()
            while self._jobs and self._waiting + size > most and self.error is None:
                self._changed.wait()
            self._jobs.append((job, size))
            self._waiting += size
            self._changed.notify_all()

    def close(self) -> None:
        """Wait until all is done; whether it was, `error` says."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    @property
    def busy(self) -> bool:
        """Whether a job waits or is being done."""
        return bool(self._jobs)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._ending:
                    self._changed.wait()
                if not self._jobs:
                    return
                job, size = self._jobs[0]
            if self.error is None:
                try:
                    job()
                except BaseException as error:  # told to whoever asks next
                    self.error = error
            with self._changed:
                self._jobs.popleft()
                self._waiting -= size
                self._changed.notify_all()
