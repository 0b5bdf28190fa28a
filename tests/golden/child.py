"""Make the records of a group of runs: ``python -m tests.golden.child GROUP OUT [SEED]``.

In a process of its own, because the core, NumPy and OpenBLAS choose their kernels when they load.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import ribbit as rb
from tests.golden import play, same_draws, tuner
from tests.golden.table import GROUPS, OPTIONS, TUNED, named


def results(group: str, ranks: Any, seed: int | None) -> dict[str, Any]:
    """Return the records of a group; `seed` replaces the seed of every run."""
    if group == "options":
        return {option.name: same_draws.record_of(option) for option in OPTIONS}
    found = {}
    for run in GROUPS[group]:
        if seed is not None:
            run = dataclasses.replace(run, call={**run.call, "seed": seed})
        found[run.name] = play.result(run, **({} if ranks is None else {"group": ranks}))
    return found


def main() -> None:
    """Write the records of a group, or the inputs of the tuner."""
    group, out = sys.argv[1], Path(sys.argv[2])
    if group == "tuner":
        tuner.write(out, [named(name) for name in TUNED])
        return
    ranks = rb.distributed.from_mpi() if group == "mpi4py" else None
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else None
    found = {"key": play.key(), "runs": results(group, ranks, seed)}
    if ranks is not None:
        out = out.with_name(f"{out.name}{ranks.rank}")
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
