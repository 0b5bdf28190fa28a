"""What runs survive: ``python -m tests.durability --kills 300 --damages 100 --full 20``.

With ``--record`` the figures go to docs/developer/results.md.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.durability import results
from tests.durability.damages import damage_often
from tests.durability.full_disk import fill_often
from tests.durability.interrupts import TARGETS, interrupt_often
from tests.durability.kills import kill_often
from tests.durability.lines import LINES
from tests.durability.reads import read_often


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.durability", description=__doc__)
    add = parser.add_argument
    add("--kills", type=int, help="of all lines together")
    add("--full", type=int, metavar="TIMES", help="disks that become full")
    add("--damages", type=int, help="damaged folders")
    add("--reads", type=int, help="reads during a run")
    add("--interrupts", type=int, nargs="?", const=50, metavar="TIMES", help="of each target")
    add("--of", action="append", choices=LINES, metavar="LINE", help="one line; again")
    add("--seed", type=int, default=0)
    add("--record", action="store_true", help="write the figures to docs/developer/results.md")
    arguments = parser.parse_args()
    seed, names = arguments.seed, arguments.of or list(LINES)

    def tell(part: str, found: str) -> None:
        print(found, flush=True)
        if arguments.record:
            results.keep(part, found, sys.argv[1:])

    if arguments.kills is not None:
        job = lambda *one: kill_often(*one, seed)  # noqa: E731
        tell("KILL", each_line(names, arguments.kills, "kills", job))
    if arguments.full is not None:
        job = lambda *one: fill_often(*one, seed)  # noqa: E731
        tell("full disk", each_line(names, arguments.full, "full disks", job))
    if arguments.damages is not None:
        with tempfile.TemporaryDirectory() as folder:
            tell("damages", damage_often(Path(folder), arguments.damages, seed))
    if arguments.reads is not None:
        with tempfile.TemporaryDirectory() as folder:
            tell("reads", f"0 torn draws in {read_often(Path(folder), arguments.reads):,} reads")
    if arguments.interrupts is not None:
        tell("interrupts", each_interrupted(arguments.interrupts, seed))


def each_interrupted(times: int, seed: int) -> str:
    """Interrupt each target `times` times, with and without an executor; SystemExit if slow."""
    texts, slow = [], []
    for name in TARGETS:
        found = [interrupt_often(name, times, seed, executor=one) for one in (False, True)]
        slow += [one.line() for one in found if one.p95 > one.most]
        print("\n".join(one.line() for one in found), flush=True)
        alone, moved = (f"{1e3 * one.p95:.0f} ms" for one in found)
        texts.append(f"{name} {alone}, with executor= {moved}")
    if slow:
        raise SystemExit("too slow: " + "; ".join(slow))
    return f"95 % of {times} each within: {'; '.join(texts)}"


def each_line(names: list[str], times: int, what: str, job: Callable[[str, Path, int], int]) -> str:
    """Do `times` of something, shared among lines, and say how many went well."""
    total = 0
    for i, name in enumerate(names):
        each = times // len(names) + (i < times % len(names))
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            total += job(name, Path(folder), each)
        print(f"{name}: {each} {what}, {time.monotonic() - begin:.1f} s", flush=True)
    return f"{total} of {times} bit-identical to an uninterrupted run"


if __name__ == "__main__":
    main()
