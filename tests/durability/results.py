"""Figures of runs in folders, for ``python -m tools.results durability``.

Each part is a command of its own, run with ``--record``; its figures stay until it is run again.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

from tests.support.gates import Table
from tests.support.paths import ROOT

RECORD = ROOT / "benchmarks" / "results" / "durability.json"

COMMANDS = (
    "--kills 300 --seed 41",
    "--full-disk 50 --seed 47",
    "--damages 2000 --seed 1000",
    "--long",
    "--cost",
    "--reads 10000",
    "--elsewhere",
)

GATES = {  # part: (number in "done when", what, gate)
    "KILL": ("1", "kill -9 at random moments, resumed", "all, with the bits of a run left alone"),
    "full disk": ("1", "full disk (tmpfs, RLIMIT_FSIZE), resumed", "all, and the error names it"),
    "damages": ("2", "bit flips, truncation, missing and swapped files", "no silent load"),
    "reads": ("4", "read by a second process while it runs", "no torn draw"),
    "elsewhere": ("5", "killed, resumed on other threads by another release", "all; else refused"),
}
LONG = ("3", "peak below 300 MB over the posterior's own, below 1 MB per 100,000 draws")
COST = ("3", "at most 5 % of all threads above 1 ms, at most 2 us of the sampling thread below")


def keep(part: str, found: str, holds: bool, arguments: list[str]) -> None:
    """Put a part's figures beside the others, and write the page."""
    from tools import results as page

    kept = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    command = shlex.join(["python", "-m", "tests.durability", *arguments])
    command = command.removesuffix(" --record")
    made = page.made("durability").partition(": ")[2]
    kept[part] = {"found": found, "holds": holds, "command": command, "made": made}
    RECORD.write_text(json.dumps(kept, indent=1) + "\n")
    page.record("durability", tables())


def tables() -> list[Table]:
    """What is kept, as one table."""
    from tests.durability.cost import CASES
    from tests.durability.cost import LONG as RUNS

    kept = json.loads(RECORD.read_text())
    table = Table(
        "Runs in folders",
        ("done when", "what", "found", "gate", "command", "made"),
        note="Each line stands with the command and the commit that made it. Costs are processor "
        "microseconds of a draw of all chains, median of five rounds (least to most), beside those "
        "of the same run without a folder.",
    )
    rows = {
        **GATES,
        **{name: (LONG[0], name, LONG[1]) for name in RUNS},
        **{name: (COST[0], name, COST[1]) for name in CASES},
    }
    for part, (number, what, gate) in sorted(rows.items(), key=lambda row: row[1][0]):
        if part in kept:
            one = kept[part]
            when = ", ".join(one["made"].split(", ")[1:3])  # commit and time
            cells = (number, what, one["found"], gate, f"`{one['command']}`", when)
            table.add(*cells, holds=one["holds"])
    return [table]


def results() -> list[Table]:
    """Run all parts, half an hour on two idle cores; each in a process that may fork."""
    for command in COMMANDS:
        call = [sys.executable, "-m", "tests.durability", *shlex.split(command), "--record"]
        subprocess.run(call, cwd=ROOT, check=True)
    return tables()
