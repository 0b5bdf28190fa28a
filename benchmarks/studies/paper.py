"""Count the cost of GPU workloads without a GPU: ``python -m benchmarks.paper``.

For each row of the GPU table, this finds:

- the launches of the present host code, recorded on a device that runs nothing;
- the instructions, loads and stores of the compiled kernels for these arguments;
- a model of the time on an H100, an H200 and an A100, and the floor.

Nothing is measured. ``--write`` renews ``docs/developer/gpu_paper.md``. With all rows, it also
renews the budget of a test, ``benchmarks/paper_budget.json``. ``--against FILE`` compares the model
with the times of ``python -m benchmarks.accept`` and marks ratios beyond 1.5x.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from benchmarks.harness.stopping import until_stopped
from benchmarks.studies import gpu_rows, paper_counts, paper_model
from benchmarks.studies.paper_counts import Counted
from benchmarks.studies.paper_kernels import OPTIONS, disassembler
from tests.support.cuda import nvrtc
from tests.support.cuda.recorder import recording

PAGE = machine.ROOT / "docs" / "developer" / "gpu_paper.md"
BUDGET = machine.ROOT / "benchmarks" / "paper_budget.json"
BEYOND = 1.5  # largest ratio of measured time and model without a mark
ROWS = gpu_rows.ROWS | gpu_rows.OTHERS
_FREE = {"H100": 70 << 30}  # free bytes of the recorded device

# The design of the second form: launches and H100 milliseconds of kernels that are not written.
REACHABLE: dict[str, tuple[int | None, float]] = {
    "bbb-sampling": (1, 0.71),
    "mc-forward": (160, 264.0),
    "mc-forward-3xtf32": (160, 140.0),
    "leapfrog-update": (1, 0.32),
    "hmc-1000-chains": (None, 0.34),
    "hmc-1-chain": (None, 0.0055),
    "hmc-58368-rows": (2, 0.0165),
    "resnet20": (1_625, 370.0),
    "hmc-wide": (7, 0.29),
    "sgld": (9, 0.040),
}

HOW = """
Written by `python -m benchmarks.paper --write`. **By count, not measured.** The times in these
tables come from a model. The [GPU report](gpu_report.md#measured-on-an-h200) has the measured times
of an H200.

## How it is counted

- **Launches.** A recorder takes the place of the GPU (`tests/support/cuda/recorder`). It writes
  down name, grid and arguments of each launch of the present host code, and runs nothing.
- **Runs of each loop.** NVRTC {nvrtc} compiles the kernels to PTX, with the options
  `{options}`.
  The integers of its branches and addresses are computed for a few threads of each launch. They
  give the number of runs of each loop.
- **Instructions of each loop.**
  {source}
- **A100.** It has the same counts. Only `LastLayers` has more instructions there, about twice as
  many in its loop, because sm_80 has no instruction that rounds to TF32. This makes mc-forward-tf32
  slower on an A100.
- **Bytes requested.** The loads and stores of all lanes of all warps, with or without caches.
- **Bytes of memory.** For each allocation, at most the span from the first to the last byte that a
  launch touches.
- **Clocks.** A scheduler issues the instructions of a warp in this number of clocks. An instruction
  that reads several registers of one bank takes more than one (`paper_kernels.clocks_of`).
- **Shared memory.** A read of 16 bytes takes four wavefronts, or two if pairs of lanes have equal
  addresses. `WideProduct`, `TapGradient`, `FewRowsProduct`, `Trajectory` and `RowGradient` have
  such pairs. In the last two, the last of an odd number of rows of tiles has no pairs, but is
  counted like the others.
- **Floor.** Bytes over the copy bandwidth of a GPU, or operations over the peak of its data sheet.
  For the H200, the peak is at its measured clock.

## Model

The time of a launch is the sum of three parts (`benchmarks/studies/paper_model.py`): its start, its
slowest resource, and its barriers. The resources are issue, float32 lanes, shared memory, tensor
cores, memory and L2. If all data of a workload fits into L2, memory takes no time.

| cost | time |
|---|---|
| launch as a node of a graph | 1.5 us |
| launch from Python, on the host | 5 us |
| time to fill the GPU | 0.8 us |
| barrier of a cluster | 15 barriers of a block |
| barrier between blocks through global memory | 88 barriers of a block, 1.5 us |

The efficiency of issue, the barriers, the speed of L2, and the two costs of a launch are assumed.
`GridTrajectory`, the kernel for an A100, relies on barriers through global memory. Reported times
of such a barrier on an A100 are 1 to 1.5 us.

## Columns

- **design**: launches and model time of planned kernels, from compiled and counted prototypes. This
  model leaves out register banks.
- **per multiply-add**: instructions of a lane for each float32 multiply-add of the floor.
- **launches** such as 1/20: one launch does 20 units of the workload.
- **warp instructions, clocks, multiply-adds** of one kernel: for each warp. "mma" marks
  multiply-adds on tensor cores.
- **registers, spilled bytes**: for each thread. **shared bytes, barriers**: for each block.
- **on the host**: launches from Python.
- `?`: some branches depend on numbers that were not computed. These branches were guessed.
- `*`: some loops of the PTX have no partner in the machine code. Such a loop takes the ratio of the
  whole kernel.

hmc-wide and sgld are additional rows, for the network 784-256-256-10. The kernel `Tail` is the last
dense layer with the likelihood and its gradient. `Join` adds partial sums.
"""


@dataclass(frozen=True)
class Counts:
    """A row of the table and its launches, of `units` units.

    Attributes
    ----------
    row : gpu_rows.Row
    launches : list of Counted
    without_clusters : list of Counted
        The same on a device without clusters; empty if the launches are equal.
    """

    row: gpu_rows.Row
    launches: Sequence[Counted]
    without_clusters: Sequence[Counted] = ()

    def sum(self, what: str) -> float:
        """Return "launches", "instructions", "fma", "asked" or "memory" (bytes) of one unit."""
        each = {
            "launches": lambda one: 1.0,
            "instructions": lambda one: one.instructions,
            "fma": lambda one: one.blocks * one.warps * one.fma,
            "asked": lambda one: one.read + one.written,
            "memory": lambda one: one.memory,
        }[what]
        return sum(one.times * each(one) for one in self.launches) / self.row.units

    @property
    def kernels(self) -> int:
        """Number of kernels that are compiled for it."""
        return len({one.name for one in self.launches})

    def model(self, device: str) -> paper_model.Modelled:
        """Return the model's seconds of one unit."""
        chip, launches = paper_model.DEVICES[device], self.launches
        if not chip.clusters and self.without_clusters:
            launches = self.without_clusters
        return paper_model.model(launches, chip, self.row.units)

    def floor(self, device: str) -> float:
        """Return the floor: the least seconds of one unit on this device."""
        found = self.row.floor(paper_model.DEVICES[device].ceilings)
        assert found is not None
        return found


def count(row: gpu_rows.Row, *, small: bool = False) -> Counts:
    """Record one call of a row and count; an earlier call compiles and records its graphs.

    Rows with clusters are recorded again for an A100, which has no clusters.
    """

    def launches(**device: Any) -> list[Counted]:
        with recording(_FREE["H100"], **device) as (xp, record):
            call = row.prepare(xp, small)
            call(0)
            record.launches.clear()
            call(1)
        return paper_counts.counted(record)

    found = launches()
    if not any(one.name.startswith("Cluster") for one in found):
        return Counts(row, found)
    chip = paper_model.DEVICES["A100"]
    return Counts(
        row,
        found,
        launches(clusters=False, processors=chip.multiprocessors, block_shared=chip.shared),
    )


def summary(found: Iterable[Counts]) -> list[str]:
    """Return lines of the table of all rows."""
    head = "| workload | launches | design | kernels | warp instructions | per multiply-add"
    head += " | bytes requested | bytes of memory | model H100 | design H100 | model H200"
    head += " | model A100 | bound by | floor H100 | floor H200 | floor A100 |"
    lines = [head, "|" + "---|" * 16]
    for one in found:
        launches, reach = REACHABLE.get(one.row.name, (None, None))
        each = f"{64 * one.sum('instructions') / one.row.flops:.1f}" if one.row.flops else ""
        times = [milliseconds(one.model(name).seconds) for name in paper_model.DEVICES]
        floors = [milliseconds(one.floor(device)) for device in paper_model.DEVICES]
        cells = [
            one.row.name,
            number(one.sum("launches")),
            "" if launches is None else f"{launches:,}",
            str(one.kernels),
            quantity(one.sum("instructions")),
            each if one.row.rate == "float32" else "",
            quantity(one.sum("asked")),
            quantity(one.sum("memory")),
            times[0],
            "" if reach is None else milliseconds(1e-3 * reach),
            *times[1:],
            one.model("H100").bound,
            *floors,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def details(one: Counts) -> list[str]:
    """Return lines of the costliest launches of a row."""
    lines = [f"### {one.row.name}", ""]
    for device in ("H100", *(("A100",) if one.without_clusters else ())):
        lines += _costliest(one.model(device), device, one.row.units)
    return lines


def _costliest(modelled: paper_model.Modelled, device: str, units: int) -> list[str]:
    parts = ", ".join(
        f"{name} {milliseconds(seconds)}"
        for name, seconds in sorted(modelled.parts.items(), key=lambda item: -item[1])
        if seconds > 1e-3 * modelled.device
    )
    lines = [f"{device}, by count: {parts}; on the host {milliseconds(modelled.host)}.", ""]
    lines += [
        "| kernel | launches | blocks | blocks per SM | registers | shared bytes | spilled bytes "
        "| warp instructions | clocks | multiply-adds | barriers | bytes requested | us each "
        "| bound |",
        "|" + "---|" * 14,
    ]
    for launch, seconds, bound, held in sorted(modelled.rows, key=lambda row: -row[1])[:6]:
        each = 1e6 * seconds * units / launch.times
        name = launch.name.replace(" ", "")
        cells = [
            f"`{name if len(name) <= 64 else f'{name[:36]}...{name[-25:]}'}`"
            f"{'' if launch.paired else ' *'}",
            number(launch.times / units),
            f"{launch.blocks:,}",
            str(held),
            str(launch.registers),
            f"{launch.shared:,}",
            str(launch.spilled),
            f"{launch.issue:,.0f}{'' if not launch.guesses else ' ?'}",
            f"{launch.clocks:,.0f}",
            f"{launch.fma:,.0f}" if not launch.mma else f"{launch.mma / launch.warps:,.0f} mma",
            f"{launch.barriers:,.0f}",
            quantity(launch.read + launch.written),
            f"{each:.3g}",
            bound,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def number(value: float) -> str:
    """Return a count, or a fraction if a launch does many units."""
    return f"{value:,.0f}" if value >= 1 else f"1/{1 / value:.0f}"


def quantity(value: float) -> str:
    """Return three digits and a prefix."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"


def milliseconds(seconds: float) -> str:
    """Return three digits of seconds, milliseconds or microseconds."""
    if seconds >= 1.0:
        return f"{seconds:.3g} s"
    return f"{1e6 * seconds:.3g} us" if seconds < 1e-4 else f"{1e3 * seconds:,.3g} ms"


def page(found: Sequence[Counts]) -> str:
    """Return the text of docs/developer/gpu_paper.md."""
    source = "They are counted in the machine code for sm_90, disassembled by nvdisasm."
    if disassembler() is None:
        source = "They are PTX instructions, because nvdisasm is not installed."
    options = " ".join(OPTIONS[:-1])
    lines = [
        "# GPU workloads by count",
        "",
        HOW.format(nvrtc=nvrtc.version(), options=options, source=source).strip(),
        "",
        "## By count, not measured",
        "",
        *summary(found),
        "",
        "## The costliest launches",
        "",
    ]
    for one in found:
        lines += details(one)
    return "\n".join(lines).rstrip("\n") + "\n"


def budget(found: Iterable[Counts]) -> dict[str, Any]:
    """Return the counts that a later change may not raise, by row."""
    what = ("launches", "instructions", "asked", "memory")
    rows: dict[str, dict[str, float]] = {}
    for one in found:
        rows[one.row.name] = {key: float(f"{one.sum(key):.6g}") for key in what}
        rows[one.row.name]["model_us"] = float(f"{1e6 * one.model('H100').seconds:.5g}")
        rows[one.row.name]["kernels"] = one.kernels
        rows[one.row.name]["spilled"] = max(launch.spilled for launch in one.launches)
    return {"nvrtc": nvrtc.version(), "machine code": disassembler() is not None, "rows": rows}


def over(found: Mapping[str, Any], committed: Mapping[str, Any]) -> list[str]:
    """Return rows above the budget: any launch more, counts 2 %, the time of the model 5 %.

    The time sees effects that counts do not, such as registers that allow fewer blocks. With
    another compiler, only launches and the number of kernels are compared.
    """
    more = {"instructions": 1.02, "asked": 1.02, "memory": 1.02, "model_us": 1.05, "spilled": 1.0}
    same = all(found[key] == committed[key] for key in ("nvrtc", "machine code"))
    wrong = []
    for name, row in found["rows"].items():
        for key, value in row.items():
            if not same and key in more:
                continue
            allowed = committed["rows"][name][key]
            if value > allowed * more.get(key, 1.0):
                wrong.append(f"{name}: {value:,.6g} {key}, allowed {allowed:,.6g}")
    return wrong


def against(text: str, found: Mapping[str, Counts]) -> list[str]:
    """Return lines of a table: the model next to the times of `benchmarks.accept`."""
    lines = ["| workload | device | model | measured | measured / model | |", "|" + "---|" * 6]
    for line in text.splitlines():
        step = json.loads(line)
        numbers = step.get("numbers") or {}
        if "workload" not in numbers or "seconds" not in numbers or step.get("rehearsal"):
            continue
        chip = next((d for d in paper_model.DEVICES if d in (step.get("device") or "")), None)
        one = found.get(numbers["workload"])
        if chip is None or one is None:
            lines.append(f"| {numbers['workload']} | {step.get('device')} | no model | | | |")
            continue
        model, measured = one.model(chip).seconds, numbers["seconds"]
        ratio = measured / model
        mark = "" if 1 / BEYOND <= ratio <= BEYOND else f"beyond {BEYOND}x"
        lines.append(
            f"| {one.row.name} | {chip} | {milliseconds(model)} | {milliseconds(measured)} | "
            f"{ratio:.2f} | {mark} |"
        )
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Count the requested rows and print their table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rows", nargs="+", choices=tuple(ROWS), help="some rows only")
    parser.add_argument("--small", action="store_true", help="reduced workloads, for a quick check")
    parser.add_argument(
        "--write", nargs="?", const=str(PAGE), metavar="PAGE", help="the page; with all rows the "
        "budget too",
    )  # fmt: skip
    parser.add_argument("--against", type=Path, metavar="FILE", help="lines of benchmarks.accept")
    given = parser.parse_args(arguments)
    if nvrtc.library() is None:
        print("expected NVRTC: pip install --group cuda-test", file=sys.stderr)
        return 1
    found = []
    with until_stopped() as stop:
        for name in given.rows or ROWS:
            found.append(count(ROWS[name], small=given.small))
            print(f"counted: {name}", file=sys.stderr, flush=True)
    print("By count, not measured:\n")
    print("\n".join(summary(found)))
    if given.against:
        by_name = {one.row.name: one for one in found}
        print("\nModel, by count, and measured times:\n")
        print("\n".join(against(given.against.read_text(), by_name)))
    if given.write and not stop.status:
        Path(given.write).write_text(page(found))
        if given.rows is None and not given.small and given.write == str(PAGE):
            BUDGET.write_text(json.dumps(budget(found), indent=1) + "\n")
    return stop.status
