"""Run the statistical gates and write their figures: ``python -m tools.results [gate ...]``.

Without names all gates run, which takes about two hours on two idle cores, and docs/results.md
is written; with names only those run and their tables are printed.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
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
    "bbb": ("samplers.fit.test_bbb", False),
    "mc_dropout": ("samplers.fit.test_mc_dropout", False),
    "posteriordb": ("gates.test_posteriordb", True),
    "uci": ("gates.test_uci_hmc", True),
    "uci_fits": ("gates.test_uci_fits", True),
    "mnist": ("gates.test_mnist", True),
    "mnist_lenet": ("gates.test_mnist_lenet", True),
    "synth_reg": ("gates.test_synth_reg", True),
    "examples": ("gates.example_results", True),
}


def write(tables: list[Table]) -> None:
    """Write docs/results.md with the tables so far."""
    import ribbit as rb
    from benchmarks.harness import machine
    from ribbit import _core

    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    head = (
        "# Results of the statistical gates\n\n"
        f"Ribbit {rb.__version__}, commit {machine.commit()}, {now}, {machine.processor()}, "
        f"instruction set {_core.isa()}, {_core.num_threads()} threads. Written by:\n\n"
        "```\npython -m tools.results\n```\n\n"
    )
    path = ROOT / "docs" / "results.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(head + "\n".join(table.markdown() for table in tables))
    print(f"wrote {path.relative_to(ROOT)}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.results", description=__doc__)
    parser.add_argument("gates", nargs="*", help=f"of {', '.join(GATES)}; default: all")
    chosen = parser.parse_args().gates or list(GATES)
    if unknown := set(chosen) - set(GATES):
        parser.error(f"unknown gates: {', '.join(sorted(unknown))}")

    tables: list[Table] = []
    for name in chosen:
        module, needs_data = GATES[name]
        folder = data_folder()
        if needs_data and folder is None:
            print(f"{name}: skipped, no development data (set RIBBIT_SHARED_DATA)")
            continue
        gate = importlib.import_module(f"tests.{module}")
        found = gate.results(folder) if needs_data else gate.results()
        print("\n".join(table.markdown() for table in found), flush=True)
        tables += found
        if chosen == list(GATES):
            write(tables)  # after every gate: an interrupted run leaves what it found
    return 0 if all(table.holds for table in tables) else 1


if __name__ == "__main__":
    sys.exit(main())
