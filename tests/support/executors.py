"""Executors for tests: one without workers, and processes of which one is killed."""

import concurrent.futures
import os
import signal

__all__ = ["Here", "Mortal"]


class Here:
    """An executor without workers: its tasks are done when they are submitted.

    Parameters
    ----------
    wrap : callable
        Makes the answer of a task from the function and the task.
    """

    def __init__(self, wrap=lambda work, task: work(task)):
        self.wrap, self.tasks = wrap, []

    def submit(self, work, task):
        self.tasks.append(task)
        future = concurrent.futures.Future()
        try:
            future.set_result(self.wrap(work, task))
        except Exception as error:
            future.set_exception(error)
        return future


def killed(work, task):
    os.kill(os.getpid(), signal.SIGKILL)


class Mortal(concurrent.futures.ProcessPoolExecutor):
    """Processes of which one is killed by its second task, where `mortal` says so.

    Parameters
    ----------
    workers : int
    of_later : function of a task
        Whether that is one that follows another.
    """

    def __init__(self, workers, of_later=lambda task: task.state.step > 0):
        super().__init__(workers)
        self.mortal, self._of_later = True, of_later

    def submit(self, work, task):
        if self.mortal and self._of_later(task):
            self.mortal = False
            return super().submit(killed, work, task)
        return super().submit(work, task)
