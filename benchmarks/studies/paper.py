"""What the device's workloads cost by count, before any device: ``python -m benchmarks.paper``.

For each row of the GPU table: the launches of the present host code, recorded on a device that runs
nothing; the instructions, loads and stores that the compiled kernels make for their arguments; a
model of the time on an H100, an H200 and an A100; the floor. Nothing here is measured.

``--write`` renews ``docs/developer/gpu_paper.md`` and, where all rows were asked for, the budget
that a test holds, ``benchmarks/paper_budget.json``. ``--against FILE`` compares the model with what
``python -m benchmarks.accept`` measured and marks what is beyond 1.5x.
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
BEYOND = 1.5  # times the model: a finding
ROWS = gpu_rows.ROWS | gpu_rows.OTHERS
_FREE = {"H100": 70 << 30}  # bytes that the recorded device says it has

# Of the design of the second form: launches and H100 milliseconds of kernels that are not written.
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


@dataclass(frozen=True)
class Counts:
    """A row of the table and its launches, of `units` units.

    Attributes
    ----------
    row : gpu_rows.Row
    launches : list of Counted
    without_clusters : list of Counted
        The same on a device that has none; empty: as on one that has.
    """

    row: gpu_rows.Row
    launches: Sequence[Counted]
    without_clusters: Sequence[Counted] = ()

    def sum(self, what: str) -> float:
        """Of one unit: "launches", "instructions", "fma", "asked" or "memory" (bytes)."""
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
        """How many kernels are compiled for it."""
        return len({one.name for one in self.launches})

    def model(self, device: str) -> paper_model.Modelled:
        """Return the model's seconds of one unit."""
        chip, launches = paper_model.DEVICES[device], self.launches
        if not chip.clusters and self.without_clusters:
            launches = self.without_clusters
        return paper_model.model(launches, chip, self.row.units)

    def floor(self, device: str) -> float:
        """Seconds of one unit that the device cannot do without."""
        found = self.row.floor(paper_model.DEVICES[device].ceilings)
        assert found is not None
        return found


def count(row: gpu_rows.Row, *, small: bool = False) -> Counts:
    """Record one call of a row, behind another that compiles and records its graphs, and count.

    What launches clusters is recorded once more, on an A100, which has none.
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
    """Lines of the table of all rows."""
    head = "| workload | launches | reachable | kernels | instructions of warps | per multiply-add"
    head += " | bytes asked for | of memory | model H100 | reachable | H200 | A100 | bound by"
    head += " | floor H100 | H200 | A100 |"
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
    """Lines of the costliest launches of a row."""
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
        "| kernel | launches | blocks | per SM | registers | shared | spilled | instructions of a "
        "warp | clocks | multiply-adds | barriers | bytes asked for | us each | bound |",
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
    """Return a count, or a share of one where a launch does many units."""
    return f"{value:,.0f}" if value >= 1 else f"1/{1 / value:.0f}"


def quantity(value: float) -> str:
    """Three digits and a prefix."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"


def milliseconds(seconds: float) -> str:
    """Three digits of seconds, milliseconds or microseconds."""
    if seconds >= 1.0:
        return f"{seconds:.3g} s"
    return f"{1e6 * seconds:.3g} us" if seconds < 1e-4 else f"{1e3 * seconds:,.3g} ms"


def page(found: Sequence[Counts]) -> str:
    """Return the text of docs/developer/gpu_paper.md."""
    source = "the machine code for sm_90, taken apart by nvdisasm"
    if disassembler() is None:
        source = "PTX alone (no nvdisasm here): instructions are PTX's, not the machine's"
    lines = [
        "# GPU workloads by count",
        "",
        "Written by `python -m benchmarks.paper --write`. **By count, not measured.** A time in "
        "these tables is a model's; what an H200 took is in [GPU report]"
        "(gpu_report.md#measured-on-an-h200).",
        "",
        "How it is counted. Launches: of the present host code, on a device that writes down name, "
        "grid and arguments and runs nothing (`tests/support/cuda/recorder`). Instructions: PTX of "
        f"NVRTC {nvrtc.version()} ({' '.join(OPTIONS[:-1])}); the integers that its branches and "
        "addresses depend on are run for a few threads of each launch, which says how often each "
        f"loop runs; and {source}: instructions of each loop, for the A100 too (`LastLayers` has "
        "more there, about twice as many in its loop: sm_80 has no instruction that rounds to "
        "TF32, which mc-forward-tf32 pays for on an A100). Bytes asked for: "
        "by all lanes of all warps, caches or not; of memory: no more than lies between the first "
        "and the last byte that a launch touches of an allocation. Model: "
        "`benchmarks/studies/paper_model.py`, a launch is 1.5 us as the node of a graph and 5 us "
        "of the host from Python, 0.8 us to fill, "
        "a barrier of a cluster counts as 15 of a block, one of blocks that wait for each other "
        "through global memory as 88, 1.5 us (that is what the form for an A100 rests on: people "
        "measure 1 to 1.5 us there); "
        "and the slowest of issue, float32 lanes, shared memory, tensor cores, memory and L2; its "
        "efficiency of "
        "issue, barriers, L2 and the two costs of a launch are assumed. `clocks`: in which a "
        "scheduler issues the instructions of a warp, more than one for an instruction that reads "
        "several registers of one bank (`paper_kernels.clocks_of`). Where all that a workload "
        "touches fits into L2, memory counts nothing. Reads of 16 bytes of shared memory take four "
        "wavefronts, two where pairs of lanes have equal addresses (`WideProduct`, `TapGradient`, "
        "`FewRowsProduct`; `Trajectory` and `RowGradient`, "
        "but for the last of an odd number of rows of tiles, which is counted as the others). "
        "Floor: bytes "
        "over a device's copy bandwidth or operations over the peak of the data sheet, of the H200 "
        "at the clock that was measured.",
        "",
        "`reachable`: launches, and a model without the banks of registers of kernels that were "
        "designed, whose prototypes were compiled and counted by hand. "
        "`per multiply-add`: instructions of a lane for each multiply-add that the floor counts, "
        "in float32. `?`: branches on numbers "
        "that nobody computed were guessed. `*`: not every loop of the PTX has "
        "one of the machine code; such a loop takes the ratio of the whole kernel. "
        "Beside the rows of the table: hmc-wide, sgld, of 784-256-256-10.",
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
    """Return what a later change may not raise, by row."""
    what = ("launches", "instructions", "asked", "memory")
    rows: dict[str, dict[str, float]] = {}
    for one in found:
        rows[one.row.name] = {key: float(f"{one.sum(key):.6g}") for key in what}
        rows[one.row.name]["model_us"] = float(f"{1e6 * one.model('H100').seconds:.5g}")
        rows[one.row.name]["kernels"] = one.kernels
        rows[one.row.name]["spilled"] = max(launch.spilled for launch in one.launches)
    return {"nvrtc": nvrtc.version(), "machine code": disassembler() is not None, "rows": rows}


def over(found: Mapping[str, Any], committed: Mapping[str, Any]) -> list[str]:
    """Return what is above the budget: launches at all, counts by 2 %, the model's time by 5 %.

    The time sees what counts do not, such as registers that leave room for fewer blocks. Of another
    compiler nothing but launches and the number of kernels is compared.
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
    """Lines of a table: the model beside what `benchmarks.accept` measured."""
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
    """Count the rows that were asked for and print their table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rows", nargs="+", choices=tuple(ROWS), help="some rows only")
    parser.add_argument("--small", action="store_true", help="reduced workloads, to see them run")
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
        print("\nModel, by count, beside what was measured:\n")
        print("\n".join(against(given.against.read_text(), by_name)))
    if given.write and not stop.status:
        Path(given.write).write_text(page(found))
        if given.rows is None and not given.small and given.write == str(PAGE):
            BUDGET.write_text(json.dumps(budget(found), indent=1) + "\n")
    return stop.status
