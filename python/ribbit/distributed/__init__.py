"""One chain, its rows over many machines: `Posterior(..., group=...)`.

Every process ("rank") runs the same program on the rows that are its own; the draws are the same
bits on every rank and for every number of ranks.
"""

from __future__ import annotations

from ribbit._arrays.keywords import explain
from ribbit.distributed.group import Communicator, Group
from ribbit.distributed.mpi import from_mpi

__all__ = ["Communicator", "Group", "from_mpi"]

explain(globals())
