"""Records of the runs, one file for each instruction set, and the processes that make them anew."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ribbit import _core
from tests.support.paths import ROOT

__all__ = ["BLOCKS", "FOLDER", "MPIEXEC", "SETS", "child", "differences", "made", "read"]

FOLDER = Path(__file__).with_name("records")
BLOCKS = FOLDER / "tuner.npz"  # of avx2
# avx2 is compared on every machine that has it; the other set if its key is the recorded one.
SETS = tuple(dict.fromkeys(["avx2", _core.available_isas()[-1]]))
MPIEXEC = Path(sys.executable).with_name("mpiexec")
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
PATIENCE = 300.0  # seconds
# Settings that have another name since they were recorded.
RENAMED = {
    "energy_variance": "desired_energy_var",
    "jitter": "step_size_jitter",
    "keep_draws": "save_draws",
    "randomize": "randomize_length",
    "target_acceptance": "target_accept",
}
# Values of settings, by their new names, that changed since.
NEW_VALUES = {
    "integrator": {"minimal_norm": "mclachlan"},
    "randomize_length": {"uniform": True, None: False},
}


def environment(isa: str) -> dict[str, str]:
    """Return the environment in which results depend on the instruction set, not on the processor.

    NumPy's exp and log, OpenBLAS (Laplace approximations) and torch choose kernels by processor.
    """
    dispatched = np._core._multiarray_umath.__cpu_dispatch__
    wide = [name for name in dispatched if name == "X86_V4" or name.startswith("AVX512")]
    path = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    return {
        **os.environ,
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_CBWR": "COMPATIBLE",
        "NPY_DISABLE_CPU_FEATURES": " ".join(wide),
        "OMP_NUM_THREADS": "1",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path),
        "RIBBIT_ISA": isa,
        "RIBBIT_NUM_THREADS": "1",
    }


def child(isa: str, group: str, out: Path, *more: str) -> None:
    """Have a process write what came of a group of runs."""
    line = [sys.executable, "-m", "tests.golden.child", group, str(out), *more]
    if group == "mpi4py":
        line = [str(MPIEXEC), "-n", "2", sys.executable, "-m", "mpi4py", *line[1:]]
    ended = subprocess.run(
        line,
        cwd=ROOT,
        env={**environment(isa), **OPEN_MPI},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout


def made(isa: str, group: str, folder: Path, *more: str) -> dict[str, Any]:
    """Make a group of runs in a process and return their records, with the key."""
    out = folder / f"{isa} {group}.json"
    child(isa, group, out, *more)
    if group != "mpi4py":
        return json.loads(out.read_text())
    first, other = (json.loads(out.with_name(f"{out.name}{rank}").read_text()) for rank in (0, 1))
    assert differences(first["runs"], other["runs"]) == []
    return first


def read(isa: str) -> dict[str, Any] | None:
    """Return the record of an instruction set, settings by their new names; None: there is none."""
    file = FOLDER / f"{isa}.json"
    if not file.exists():
        return None
    record = json.loads(file.read_text())
    for name, run in record["runs"].items():
        if name.startswith(("hmc ", "nuts ", "start ")):
            # It follows from the step size, and states no longer hold it. The statistic n_steps
            # is recorded too.
            run["found"].pop("num_steps")
        settings = run.get("settings", {})
        for old in RENAMED.keys() & settings:
            settings[RENAMED[old]] = settings.pop(old)
        for key in NEW_VALUES.keys() & settings:
            settings[key] = NEW_VALUES[key].get(settings[key], settings[key])
        if "warnings" in run:
            run["warnings"] = [_renamed(text) for text in run["warnings"]]
    return record


def _renamed(text: str) -> str:
    """Return a text with the new names of settings."""
    return re.sub(r"\b\w+(?==)", lambda found: RENAMED.get(found[0], found[0]), text)


def write(isa: str, record: dict[str, Any]) -> None:
    """Write the record of an instruction set, a line for each field of a run."""
    lines = [f'{{"key": {json.dumps(record["key"], sort_keys=True)}', ',"runs": {']
    for number, (name, run) in enumerate(sorted(record["runs"].items())):
        lines.append(f"{',' if number else ''}{json.dumps(name)}: {{")
        fields = sorted(run.items())
        for place, (field, value) in enumerate(fields):
            comma = "," if place else ""
            lines.append(f" {comma}{json.dumps(field)}: {json.dumps(value, sort_keys=True)}")
        lines.append("}")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{isa}.json").write_text("\n".join([*lines, "}}", ""]))


def differences(recorded: dict[str, Any], got: dict[str, Any]) -> list[str]:
    """Return a line for each field of each run of `got` that differs from the record."""
    lines = []
    for name, run in got.items():
        if name not in recorded:
            lines.append(f"{name}: not recorded")
            continue
        before = recorded[name]
        for field in sorted({*before, *run}):
            lines += _different(f"{name}: {field}", before.get(field), run.get(field))
    return lines


def _different(place: str, before: Any, now: Any) -> list[str]:
    """Return a line for each part that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            line
            for part in sorted({*before, *now})
            for line in _different(f"{place}[{part}]", before.get(part), now.get(part))
        ]
    return [] if before == now else [f"{place}: recorded {before!r}, now {now!r}"]
