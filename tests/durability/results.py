"""Figures of saved and resumed runs, for ``python -m tools.results durability``.

Each part is a command of its own, run with ``--record``. Its figures stay until the next such run.
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

IDENTICAL = "all bit-identical to an uninterrupted run"
GATES = {  # part: (place in the table, check, gate)
    "KILL": (1, "killed by SIGKILL at random moments, then resumed", IDENTICAL),
    "full disk": (
        1,
        "full disk (tmpfs, RLIMIT_FSIZE), then resumed",
        "all bit-identical, and the error names the cause",
    ),
    "damages": (
        2,
        "bit flips, truncated, missing and swapped files",
        "no silent load of wrong data",
    ),
    "reads": (4, "read by a second process during the run", "no torn draw"),
    "elsewhere": (
        5,
        "killed, then resumed with other threads by another release",
        "all bit-identical; another instruction set is refused",
    ),
}
LONG = (
    3,
    "peak less than 300 MB above the posterior's own memory; growth below 1 MB per 100,000 draws",
)
COST = (
    3,
    "draws above 1 ms: at most 5 % in all threads; "
    "shorter draws: at most 2 us in the sampling thread",
)


def keep(part: str, found: str, holds: bool, arguments: list[str]) -> None:
    """Add a part's figures to the record, and write the page."""
    from tools import results as page

    kept = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    command = shlex.join(["python", "-m", "tests.durability", *arguments])
    command = command.removesuffix(" --record")
    made = page.made("durability").partition(": ")[2]
    kept[part] = {"found": found, "holds": holds, "command": command, "made": made}
    RECORD.write_text(json.dumps(kept, indent=1) + "\n")
    page.record("durability", tables())


def tables() -> list[Table]:
    """Return the record as one table."""
    from tests.durability.cost import CASES
    from tests.durability.cost import LONG as RUNS

    kept = json.loads(RECORD.read_text())
    table = Table(
        "Saved and resumed runs",
        ("check", "result", "gate", "command", "run"),
        note="Each row names its command and its run. Costs are processor microseconds per draw of "
        "all chains. The first figure is the extra cost of a folder in all threads: the median of "
        "five rounds (least to most). In rows whose draws cost nothing, the sampler does not move.",
    )
    rows = {
        **GATES,
        **{name: (LONG[0], name, LONG[1]) for name in RUNS},
        **{name: (COST[0], name, COST[1]) for name in CASES},
    }
    for part, (_, check, gate) in sorted(rows.items(), key=lambda row: row[1][0]):
        if part in kept:
            one = kept[part]
            when = ", ".join(one["made"].split(", ")[1:3])  # commit and time
            cells = (check, one["found"], gate, f"`{one['command']}`", when)
            table.add(*cells, holds=one["holds"])
    return [table]


def results() -> list[Table]:
    """Run all parts, half an hour on two idle cores; each in a process that may fork."""
    for command in COMMANDS:
        call = [sys.executable, "-m", "tests.durability", *shlex.split(command), "--record"]
        subprocess.run(call, cwd=ROOT, check=True)
    return tables()
