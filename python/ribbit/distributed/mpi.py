"""A group over MPI, by mpi4py; imported by nobody else."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from ribbit._arrays import checks
from ribbit._arrays.packages import needing
from ribbit.distributed.group import Group

PATIENCE = 30.0  # seconds after which a rank says, once, that it waits
_LOOKS = 1024  # at a request, between two looks at the clock


class _Mpi:
    """The calls of `Communicator` on a communicator of mpi4py."""

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        # A duplicate: our messages cannot meet those of the program.
        self._comm, self._byte = comm.Dup(), MPI.BYTE
        self.rank, self.size = int(comm.Get_rank()), int(comm.Get_size())
        self._told = False

    def gather(self, send: memoryview, receive: memoryview, sizes: Sequence[int]) -> None:
        """See `Communicator.gather`."""
        if len(set(sizes)) == 1:
            self._wait(self._comm.Iallgather([send, self._byte], [receive, self._byte]))
        else:
            self._wait(self._comm.Iallgatherv([send, self._byte], self._parts(receive, sizes)))

    def exchange(
        self,
        send: memoryview,
        send_sizes: Sequence[int],
        receive: memoryview,
        receive_sizes: Sequence[int],
    ) -> None:
        """See `Communicator.exchange`."""
        self._wait(
            self._comm.Ialltoallv(
                self._parts(send, send_sizes), self._parts(receive, receive_sizes)
            )
        )

    def _wait(self, request: Any) -> None:
        """Wait for a request, and leave the core to others meanwhile."""
        # MPI's own calls spin: if ranks or threads share cores, the waiting one keeps the other
        # from running.
        looks, begin = 0, 0.0
        while not request.Test():
            os.sched_yield()
            looks += 1
            if looks % _LOOKS or self._told:
                continue
            now = time.monotonic()
            begin = begin or now
            if now - begin > PATIENCE:
                self._told = True
                print(
                    f"[Group] rank {self.rank} of {self.size} has waited {PATIENCE:g} s for the "
                    "others, and keeps waiting: every rank has to make the same calls of "
                    "posteriors, runs, fits and gradients",
                    file=sys.stderr,
                    flush=True,
                )

    def _parts(self, buffer: memoryview, sizes: Sequence[int]) -> list[Any]:
        """Return a buffer of parts one behind another, as mpi4py takes it."""
        starts = [0, *itertools.accumulate(sizes)][:-1]
        return [buffer, (list(sizes), starts), self._byte]


def from_mpi(comm: Any = None) -> Group:
    """Return the group of an MPI communicator's processes.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        Default: ``MPI.COMM_WORLD``. It is duplicated.

    Returns
    -------
    Group

    Raises
    ------
    ImportError
        Without mpi4py (extra ``mpi``, which also brings an MPI).
    TypeError
        If `comm` is not an intracommunicator.

    Notes
    -----
    Start the program with ``mpiexec -n 4 python -m mpi4py script.py``: ``-m mpi4py`` ends all
    processes if one fails with an error of its own. If a process is killed, MPI ends the others.
    With ``store=`` the same call resumes the run, with any number of ranks.

    Examples
    --------
    >>> group = rb.distributed.from_mpi()  # run by: mpiexec -n 4 python -m mpi4py script.py
    >>> x = np.linspace(-1, 1, 1000)[:, None]
    >>> mine = group.rows(len(x))
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x[mine], 2 * x[mine], prior=rb.Normal(1.0),
    ...     likelihood=rb.Gaussian(0.3), group=group,
    ... )
    >>> hmc = rb.HMC(target, step_size=0.01, num_leapfrog_steps=5)
    >>> hmc.sample(10, warmup=0, progress=False).positions.shape
    (4, 10, 10)
    """
    with needing("from_mpi", "mpi4py"):
        from mpi4py import MPI
    found = MPI.COMM_WORLD if comm is None else comm
    if not isinstance(found, MPI.Intracomm):
        raise TypeError(
            f"[from_mpi] expected comm as mpi4py.MPI.Intracomm, got {checks.summary(comm)}"
        )
    return Group(_Mpi(found))
