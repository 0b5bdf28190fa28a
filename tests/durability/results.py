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
    "--kills 300 --seed 1",
    "--full 20 --seed 1",
    "--damages 100 --seed 1",
    "--reads 10000",
    "--interrupts 50 --seed 1",
)

IDENTICAL = "bit-identical to an uninterrupted run"
GATES = {  # part: (check, gate)
    "KILL": ("killed by SIGKILL at random moments, then resumed", f"all {IDENTICAL}"),
    "full disk": (
        "full disk (tmpfs, RLIMIT_FSIZE), then resumed",
        "all bit-identical, and the error names the cause",
    ),
    "damages": (
        "bit flips, zeroed pages, truncated, missing and swapped files",
        "no silent load of wrong data",
    ),
    "reads": ("read by a second process during the run", "no torn draw"),
    "interrupts": (
        "from Ctrl-C at random moments to the return of sample",
        "95 % within 100 ms; with executor= (two processes) 150 ms",
    ),
}


def keep(part: str, found: str, arguments: list[str]) -> None:
    """Record a part's figures, and write the page."""
    from tools import results as page

    kept = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    command = shlex.join(["python", "-m", "tests.durability", *arguments])
    command = command.removesuffix(" --record")
    made = page.made("durability").partition(": ")[2]
    kept[part] = {"found": found, "command": command, "made": made}
    RECORD.write_text(json.dumps(kept, indent=1) + "\n")
    page.record("durability", tables())


def tables() -> list[Table]:
    """What is kept, as one table."""
    kept = json.loads(RECORD.read_text())
    table = Table(
        "Saved and resumed runs",
        ("check", "result", "gate", "command", "run"),
        note="Each row names its command and its run.",
    )
    for part, (check, gate) in GATES.items():
        if part in kept:
            one = kept[part]
            when = ", ".join(one["made"].split(", ")[1:3])  # commit and time
            table.add(check, one["found"], gate, f"`{one['command']}`", when)
    return [table]


def results() -> list[Table]:
    """Run all parts, some minutes on two idle cores; each in a process that may fork."""
    for command in COMMANDS:
        call = [sys.executable, "-m", "tests.durability", *shlex.split(command), "--record"]
        subprocess.run(call, cwd=ROOT, check=True)
    return tables()
