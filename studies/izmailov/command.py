"""Repeat the study of Izmailov et al. (2021): ``python -m studies.izmailov --size laptop``.

The runs of all figures are kept in a folder. A finished run is not repeated, and an interrupted run
resumes from Ribbit's last checkpoint. ``--write`` also writes the JSON files of the figures, their
pictures and docs/developer/izmailov.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from studies.izmailov import cost, figures, page, problems
from studies.izmailov.record import make, write_result
from studies.izmailov.sizes import SIZES
from studies.izmailov.study import Study


def parser() -> argparse.ArgumentParser:
    """Arguments of the command."""
    out = argparse.ArgumentParser(prog="python -m studies.izmailov", description=__doc__)
    out.add_argument("--size", default="laptop", help="laptop (default) or paper")
    out.add_argument("--figure", nargs="+", choices=figures.NAMES, default=list(figures.NAMES))
    out.add_argument("--network", choices=list(problems.NETWORKS))
    out.add_argument("--data", choices=list(problems.SHAPES))
    out.add_argument("--data-folder", type=Path, default=Path("data"))
    out.add_argument("--folder", type=Path, default=Path("runs/izmailov"), help="of the runs")
    out.add_argument("--cost", action="store_true", help="print the estimated time, and end")
    out.add_argument("--write", action="store_true", help="write results, pictures and the page")
    out.add_argument("--out", type=Path, help="folder of the figures' JSON files instead")
    return out


def main(arguments: list[str] | None = None) -> int:
    """Run, print, write; returns 2 when a data set is missing."""
    options = parser().parse_args(arguments)
    if options.size not in SIZES:
        parser().error(f"--size: expected laptop or paper, got {options.size}")
    if options.write and (options.size, options.network, options.data) != ("laptop", None, None):
        parser().error("--write is for the size laptop with its own network and data")
    study = Study(
        SIZES[options.size],
        options.folder,
        network=options.network,
        data=options.data,
        data_folder=options.data_folder,
    )
    print("\n".join(cost.lines(study, options.figure)), flush=True)
    if options.cost:
        return 0
    try:
        study.split(study.size.splits[0])
    except problems.MissingDataError as error:
        print(error, file=sys.stderr)
        return 2
    results = options.out or (page.RESULTS if options.write else study.root / "figures")
    for name in options.figure:
        if not figures.fits(name, study):
            print(f"{name}: left out, {study.size.data} has no images")
            continue
        result = make(study, name)
        result["machine"] = {"cores": cores(), "kind": page.kind()}
        write_result(results, name, result)
        report(result)
    if options.write:
        page.write(results)
    return 0


def cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def report(result: dict[str, Any]) -> None:
    """Print a figure's table and outcome."""
    print(f"\n{result['title']}\n{page.text_table(result['head'], result['rows'])}")
    for claim in result["claims"]:
        print(f"{claim['outcome']}: {claim['claim']}\n  {claim['because']}", flush=True)
