"""What the pages in docs share: durations, tables, facts, the printing and the writing."""

from __future__ import annotations

import datetime
import math
import os
import platform

from benchmarks.harness import machine

Table = tuple[str, list[str], list[list[str]]]  # title, head, rows
OVERHEAD = "Overhead in PyTorch and JAX"
"""The last section of docs/developer/benchmarks.md, of `benchmarks.embedding`."""


def duration(seconds: float) -> str:
    """Three digits and a unit; what was not measured (NaN) is "-"."""
    if math.isnan(seconds):
        return "-"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def facts(versions: dict[str, str], command: str) -> list[str]:
    """Machine, versions, date, commit, command."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return [
        f"Machine: {machine.processor()}, {len(machine.cores())} cores, {machine.vector_sets()}, "
        f"{platform.system()}, load {load:.1f} at the end",
        f"Versions: Python {platform.python_version()}, "
        + ", ".join(f"{name} {version}" for name, version in sorted(versions.items())),
        f"Date: {datetime.date.today().isoformat()}, commit {machine.commit()}",
        f"Command: `{command}`",
    ]


def print_table(table: Table) -> None:
    """With rich when it is installed, else aligned by spaces."""
    title, head, rows = table
    try:
        from rich.box import SIMPLE
        from rich.console import Console
        from rich.table import Table as RichTable
    except ImportError:
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
        print(f"\n{title}")
        for row in [head, *rows]:
            print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
        return
    drawn = RichTable(title=title, title_justify="left", box=SIMPLE, pad_edge=False)
    for column in head:
        drawn.add_column(column, no_wrap=True)
    for row in rows:
        drawn.add_row(*row)
    console = Console()
    if not console.is_terminal:  # a log has no width to fit
        console = Console(width=200)
    console.print(drawn)


def markdown(
    title: str, preamble: str, tables: list[Table], lines: list[str], *, level: int = 1
) -> str:
    """Write a page, or a section: what it is, the facts as a list, the tables."""
    marks = "#" * level
    text = [f"{marks} {title}", "", preamble.strip(), "", *(f"- {line}" for line in lines)]
    for heading, head, rows in tables:
        text += ["", f"{marks}# {heading}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        text += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(text) + "\n"


def overhead_of(page: str) -> str:
    """Return the section on overhead at the end of a page; "" where there is none."""
    begin = page.find(f"## {OVERHEAD}\n")
    return page[begin:] if begin >= 0 else ""
