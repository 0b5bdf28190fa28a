"""Kills at random moments: ``python -m tests.durability --kills 300``."""

import argparse
import signal
import tempfile
import time
from pathlib import Path

from tests.durability.kills import kill_often
from tests.durability.lines import LINES


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=300, help="of all lines together")
    parser.add_argument("--of", action="append", choices=sorted(LINES), help="one line; again")
    parser.add_argument("--signal", choices=("KILL", "TERM"), default="KILL")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    names = arguments.of or list(LINES)
    how = signal.Signals[f"SIG{arguments.signal}"]
    total = 0
    for i, name in enumerate(names):
        each = arguments.kills // len(names) + (i < arguments.kills % len(names))
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            total += kill_often(name, Path(folder), each, arguments.seed, how)
        print(f"{name}: {each} kills, {time.monotonic() - begin:.1f} s", flush=True)
    print(f"{total} of {arguments.kills} went on with the bits of a run left alone")


if __name__ == "__main__":
    main()
