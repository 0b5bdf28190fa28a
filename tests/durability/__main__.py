"""What runs in folders survive, and what it costs: ``python -m tests.durability --kills 300``.

With ``--record`` the figures go to docs/developer/results.md.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ribbit import _core
from tests.durability import results
from tests.durability.cost import CASES, LONG, long_run, measure
from tests.durability.damages import damage_often
from tests.durability.elsewhere import go_on_elsewhere
from tests.durability.full_disk import fill_often
from tests.durability.kills import kill_often
from tests.durability.lines import LINES
from tests.durability.reads import read_often


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.durability", description=__doc__)
    add = parser.add_argument
    add("--kills", type=int, help="of all lines together")
    add("--full-disk", type=int, metavar="TIMES", help="disks that become full")
    add("--damages", type=int, help="damaged folders")
    add("--reads", type=int, help="reads of a run that goes on")
    add("--elsewhere", action="store_true", help="other threads, instruction set and release")
    add("--long", action="store_true", help="memory of long runs; 14 GB of disk")
    add("--cost", action="store_true", help="what writing costs")
    add("--of", action="append", help="one line, cost or long run; again")
    add("--seed", type=int, default=0)
    add("--record", action="store_true", help="write the figures to docs/developer/results.md")
    arguments = parser.parse_args()
    seed, known = arguments.seed, [*LINES, *CASES, *LONG]
    for one in arguments.of or []:
        if one not in known:
            parser.error(f"unknown: {one}; of {', '.join(known)}")

    def chosen(names: dict[str, object]) -> list[str]:
        return [name for name in names if not arguments.of or name in arguments.of]

    def tell(part: str, found: str, holds: bool = True) -> None:
        print(found, flush=True)
        if arguments.record:
            results.keep(part, found, holds, sys.argv[1:])

    if arguments.kills is not None:
        times = arguments.kills
        count = each_line(chosen(LINES), times, "kills", lambda *one: kill_often(*one, seed))
        tell("KILL", count)
    if arguments.full_disk is not None:
        times = arguments.full_disk
        count = each_line(chosen(LINES), times, "full disks", lambda *one: fill_often(*one, seed))
        tell("full disk", count)
    if arguments.elsewhere:
        kernels = "avx2" if _core.isa() != "avx2" else "baseline"
        for name in chosen(LINES):
            with tempfile.TemporaryDirectory() as folder:
                go_on_elsewhere(name, Path(folder), seed, kernels)
        count = f"{len(chosen(LINES))} of {len(chosen(LINES))}"
        tell("elsewhere", f"{count} went on with the same bits, and were refused on {kernels}")
    if arguments.damages is not None:
        with tempfile.TemporaryDirectory() as folder:
            found = damage_often(Path(folder), arguments.damages, seed)
        tell(
            "damages", f"0 silent loads; {found['named']} named, {found['same']} read as they were"
        )
    if arguments.reads is not None:
        with tempfile.TemporaryDirectory() as folder:
            tell("reads", f"0 torn draws in {read_often(Path(folder), arguments.reads):,} reads")
    if arguments.long:
        for name in chosen(LONG):
            with tempfile.TemporaryDirectory(dir=".") as folder:
                memory = long_run(name, Path(folder) / "run")
            tell(name, str(memory), memory.holds)
    if arguments.cost:
        for name in chosen(CASES):
            cost = measure(name)
            tell(name, str(cost), cost.holds)


def each_line(names: list[str], times: int, what: str, job: Callable[[str, Path, int], int]) -> str:
    """Do `times` of something, shared among lines, and say how many went well."""
    total = 0
    for i, name in enumerate(names):
        each = times // len(names) + (i < times % len(names))
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            total += job(name, Path(folder), each)
        print(f"{name}: {each} {what}, {time.monotonic() - begin:.1f} s", flush=True)
    return f"{total} of {times} went on with the bits of a run left alone"


if __name__ == "__main__":
    main()
