"""One step of `benchmarks.accept` in a process of its own: prints its numbers as they come."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.studies.accept_steps import STEPS, Skipped


def main(name: str, out: str, *options: str) -> int:
    """Run the step; 0 when it did not raise."""
    step = next(step for step in STEPS if step.name == name)
    try:
        for numbers in step.run("--rehearse" in options, Path(out)):
            print(json.dumps({"numbers": numbers}), flush=True)
    except Skipped as reason:
        print(json.dumps({"skipped": str(reason)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
