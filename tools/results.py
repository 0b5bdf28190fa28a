"""Run the statistical gates and record their figures: ``python -m tools.results [gate ...]``.

Without names all gates run, about two hours on two idle cores; with names only those. Each gate's
tables go to benchmarks/results/gates.json as soon as they are there, with the commit and machine
that made them, and docs/developer/results.md is written from that file.
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

Each gate's tables are those of the run that stands above them. Written by:

```
python -m tools.results
```

"""


def made(name: str) -> str:
    """Return what made a gate's tables."""
    import ribbit as rb
    from benchmarks.harness import machine
    from benchmarks.studies.effective_lines import commit, load
    from ribbit import _core

    threads, busy = _core.num_threads(), load()
    other = f" Others worked on the machine (load {busy:.0f}), which seconds show."
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"`python -m tools.results {name}`: Ribbit {rb.__version__}, commit {commit()}, "
        f"{now}, {machine.processor()}, instruction set {_core.isa()}, {threads} threads."
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
    """Return a gate's tables, the line on what made them below the first title."""
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{made}\n{rest}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.results", description=__doc__)
    parser.add_argument("gates", nargs="*", help=f"of {', '.join(GATES)}; default: all")
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
