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
            parts = [records.played(isa, group, Path(folder)) for group in GROUPS]
        runs = {name: run for part in parts for name, run in part["runs"].items()}
        records.write(isa, {"key": parts[0]["key"], "runs": runs})
        print(f"{isa}: {len(runs)} runs")


if __name__ == "__main__":
    main()
