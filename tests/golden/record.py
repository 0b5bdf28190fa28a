"""Write the records anew: ``python -m tests.golden.record``.

Needs array-api-strict, mpi4py with an MPI, and PyTorch, so that every run has a record.
"""

import tempfile
from pathlib import Path

from tests.golden import records
from tests.golden.table import GROUPS


def main() -> None:
    """Write a record for avx2 and for the widest instruction set here."""
    for isa in records.SETS:
        with tempfile.TemporaryDirectory() as folder:
            parts = [records.made(isa, group, Path(folder)) for group in (*GROUPS, "options")]
        found = {name: run for part in parts for name, run in part["runs"].items()}
        # The other options repeat a recorded run.
        stops = {"until": {"stopped": found["until"]["stopped"]}}
        runs = {run.name: found[run.name] for some in GROUPS.values() for run in some}
        records.write(isa, {"key": parts[0]["key"], "runs": runs | stops})
        print(f"{isa}: {len(runs)} runs")
    records.child("avx2", "tuner", records.BLOCKS)


if __name__ == "__main__":
    main()
