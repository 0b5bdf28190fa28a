"""Chains whose data rows are spread over several processes: `Posterior(..., group=...)`.

Every process ("rank") runs the same program on its own rows. The draws are bit-identical on every
rank and for any number of ranks.
"""

from __future__ import annotations

from ribbit._arrays.keywords import explain
from ribbit.distributed.group import Communicator, Group
from ribbit.distributed.mpi import from_mpi

__all__ = ["Communicator", "Group", "from_mpi"]

explain(globals())
