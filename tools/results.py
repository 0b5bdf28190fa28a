"""Run the statistical gates and record their figures: ``python -m tools.results [gate ...]``.

Without names all gates run, about two hours on two idle cores. With names, only these gates run.
After each gate the command writes its tables to benchmarks/results/gates.json, with the commit and
the machine, and then writes docs/developer/results.md from that file.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import sys
from typing import TYPE_CHECKING

from tests.support.paths import ROOT, data_folder

if TYPE_CHECKING:
    from tests.support.gates import Table

GATES = {  # name: (module, whether it needs the development data)
    "integrator": ("gates.test_integrator", False),
    "conjugate": ("gates.test_conjugate", False),
    "invariance": ("gates.test_invariance", False),
    "nuts": ("gates.test_no_u_turn", False),
    "stationary": ("gates.test_stationary_laws", False),
    "kinetic": ("gates.test_kinetic_laws", False),
    "mclmc": ("gates.test_mclmc", False),
    "mclmc_functions": ("gates.test_mclmc_functions", False),
    "bbb": ("samplers.fit.test_bbb", False),
    "mc_dropout": ("samplers.fit.test_mc_dropout", False),
    "posteriordb": ("gates.test_posteriordb", True),
    "uci": ("gates.test_uci_hmc", True),
    "uci_fits": ("gates.test_uci_fits", True),
    "mnist": ("gates.test_mnist", True),
    "mnist_lenet": ("gates.test_mnist_lenet", True),
    "synth_reg": ("gates.test_synth_reg", True),
    "examples": ("gates.example_results", True),
    "durability": ("durability.results", False),
}


RECORD = ROOT / "benchmarks" / "results" / "gates.json"
PAGE = ROOT / "docs" / "developer" / "results.md"
HEAD = """# Results of the statistical gates

A gate is a statistical test with a fixed bound. Most gates also run faulty code and must detect
each fault. The line below a heading names the run that made the tables; a section without such a
line belongs to the run above it.

| term | meaning |
|---|---|
| right | the code as it is; other entries in a column "code" are planted faults |
| p | p-value, multiplied by the number of tests |
| MCSE | Monte Carlo standard error |
| sd | standard deviation |
| ECE | expected calibration error |
| Gate: holds | all figures of the table are within their bounds |

Written by `python -m tools.results`, which needs the fault build.

"""


def made(name: str) -> str:
    """Return the line that names the command, the commit and the machine of a gate's run."""
    import ribbit as rb
    from benchmarks.harness import machine
    from benchmarks.studies.effective_lines import commit, load
    from ribbit import _core

    threads, busy = _core.num_threads(), load()
    other = f" Other programs used the machine (load {busy:.0f}), so any times are too long."
    count = "1 thread" if threads == 1 else f"{threads} threads"
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"`python -m tools.results {name}`: Ribbit {rb.__version__}, commit {commit()}, "
        f"{now}, {machine.processor()}, instruction set {_core.isa()}, {count}."
        + (other if busy > threads + 0.5 else "")
    )


def record(name: str, tables: list[Table]) -> None:
    """Put a gate's tables into the file, and write the page from it."""
    kept = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    kept[name] = {"made": made(name), "text": "\n".join(table.markdown() for table in tables)}
    kept = {gate: kept[gate] for gate in GATES if gate in kept}
    RECORD.write_text(json.dumps(kept, indent=1) + "\n")
    PAGE.write_text(HEAD + "\n".join(section(**one) for one in kept.values()))
    print(f"wrote {PAGE.relative_to(ROOT)}", flush=True)


def section(made: str, text: str) -> str:
    """Return a gate's tables, with the line about their run below the first title."""
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{made}\n{rest}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.results", description=__doc__)
    parser.add_argument("gates", nargs="*", help=f"some of {', '.join(GATES)}; default: all")
    chosen = parser.parse_args().gates or list(GATES)
    if unknown := set(chosen) - set(GATES):
        parser.error(f"unknown gates: {', '.join(sorted(unknown))}")

    holds = True
    for name in chosen:
        module, needs_data = GATES[name]
        folder = data_folder()
        if needs_data and folder is None:
            print(f"{name}: skipped, no development data (set RIBBIT_SHARED_DATA)")
            continue
        gate = importlib.import_module(f"tests.{module}")
        found = gate.results(folder) if needs_data else gate.results()
        print("\n".join(table.markdown() for table in found), flush=True)
        record(name, found)
        holds = holds and all(table.holds for table in found)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
