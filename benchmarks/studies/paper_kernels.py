"""Compile the kernels of a record: PTX, machine code, registers, memory.

`paper_ptx` finds the number of runs of each part of a kernel. A run issues the PTX instructions of
the part, times the machine instructions per PTX instruction in the same loop. Loops of PTX and
machine code are paired by order, nesting and size. A loop without a partner, which the assembler
unrolled or made, takes the ratio of the whole kernel.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.studies import paper_integers, paper_ptx
from ribbit._arrays import kernel_sources
from tests.support.cuda import nvrtc
from tests.support.cuda.compiler import kept

__all__ = ["Kernel", "clocks_of", "disassembler", "kernels"]

OPTIONS = (*kernel_sources.OPTIONS, "--ptxas-options=-v")
ARCHITECTURE = "sm_90"
_ALONE = 2.0  # cost of a loop without a partner; a pair costs the logarithm of its ratio of sizes
# Kernels in which pairs of lanes read 16 bytes of shared memory at equal addresses. This halves the
# wavefronts (documented for compute capability 7). test_wide_products.py, test_tap_gradients.py,
# test_few_rows.py and test_trajectory.py check the pairs. In the weights of a trajectory, the last
# of an odd number of rows of tiles has no pairs, but is counted as if it had.
_PAIRED = (
    "WideProduct<",
    "TapGradient<",
    "Trajectory<",
    "ClusterTrajectory<",
    "GridTrajectory<",
    "RowGradient<",
    "FewRows",
)
_CLUSTER = 15  # a barrier of a cluster, in barriers of a block; assumed, 0.25 us
_GRID = 88  # a barrier through a counter in global memory; assumed, 1.5 us
_ARITHMETIC = ("FFMA", "FMUL", "FADD", "IMAD", "IADD3", "LOP3", "FSEL", "SHF")
_MMA = re.compile(r"\.m(\d+)n(\d+)k(\d+)\.")


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel.

    Attributes
    ----------
    name : str
    function : paper_ptx.Function
    threads, registers, shared, spilled : int
        Threads of a block, registers of a thread, shared bytes of a block known to the compiler,
        spilled bytes of a thread.
    machine : list of (first, last) or None
        Loops of the machine code, by places in `size_of`; None: it was not disassembled.
    machine_size : list of int
        Instructions outside of all loops, and inside each loop without its inner loops.
    machine_clocks : list of int
        Clocks of a scheduler for the same, see `clocks_of`.
    """

    name: str
    function: paper_ptx.Function
    threads: int
    registers: int
    shared: int
    spilled: int
    machine: list[list[int]] | None
    machine_size: list[int]
    machine_clocks: list[int]

    @cached_property
    def ratios(self) -> list[float]:
        """Machine instructions for each PTX instruction of each part."""
        return self._ratios(self.machine_size)

    @cached_property
    def clock_ratios(self) -> list[float]:
        """Clocks of issue for each PTX instruction of each part."""
        return self._ratios(self.machine_clocks)

    def _ratios(self, of_machine: list[int]) -> list[float]:
        parts = self.function.parts
        if self.machine is None:
            return [1.0] * len(parts)
        loops = self.function.loops
        owner = paper_ptx.regions(loops, len(parts))
        sizes = [0] * (len(loops) + 1)
        for part, loop in zip(parts, owner, strict=True):
            sizes[loop + 1] += len(part)
        whole = sum(of_machine) / max(1, sum(sizes))
        ratio = [whole] * len(sizes)
        ratio[0] = of_machine[0] / max(1, sizes[0])
        for ours, theirs in self._pairs(sizes):
            ratio[ours + 1] = of_machine[theirs + 1] / max(1, sizes[ours + 1])
        return [ratio[loop + 1] for loop in owner]

    @property
    def paired(self) -> bool:
        """Whether each loop of the PTX has a loop of the machine code with equal nesting."""
        if self.machine is None:
            return False
        return _nesting(self.function.loops) == _nesting([(a, b) for a, b in self.machine])

    def _pairs(self, sizes: list[int]) -> list[tuple[int, int]]:
        """Return pairs of loops of PTX and machine code, by the alignment of least cost."""
        assert self.machine is not None
        ours, theirs = _nesting(self.function.loops), _nesting([(a, b) for a, b in self.machine])
        if ours == theirs:
            return [(i, i) for i in range(len(ours))]
        costs = [[0.0] * (len(theirs) + 1) for _ in range(len(ours) + 1)]
        steps: dict[tuple[int, int], tuple[int, int]] = {}
        for i, j in itertools.product(range(len(ours), -1, -1), range(len(theirs), -1, -1)):
            ways = []
            if i < len(ours):
                ways.append((_ALONE + costs[i + 1][j], (i + 1, j)))
            if j < len(theirs):
                ways.append((_ALONE + costs[i][j + 1], (i, j + 1)))
            if i < len(ours) and j < len(theirs) and ours[i] == theirs[j]:
                size = max(1, self.machine_size[j + 1]) / max(1, sizes[i + 1])
                ways.append((abs(math.log(size)) + costs[i + 1][j + 1], (i + 1, j + 1)))
            if ways:
                costs[i][j], steps[i, j] = min(ways)
        found, at = [], (0, 0)
        while at in steps:
            to = steps[at]
            if to == (at[0] + 1, at[1] + 1):
                found.append(at)
            at = to
        return found

    def weights(self, kind: str) -> list[float]:
        """Return the cost of a run of each part: `kind` issue, clocks, fma, waves, mma, barriers.

        Instructions of a warp; clocks in which a scheduler issues them; fused multiply-adds in
        float32 among them; wavefronts of shared memory, 4 bytes of a thread each; multiply-adds on
        tensor cores; barriers.
        """
        if kind in ("issue", "clocks"):
            ratios = self.ratios if kind == "issue" else self.clock_ratios
            parts = zip(self.function.parts, ratios, strict=True)
            return [ratio * len(part) for part, ratio in parts]
        paired = self.name.startswith(_PAIRED)
        found = [
            float(sum(_of(kind, line, paired) for line in part)) for part in self.function.parts
        ]
        if kind == "barriers":  # one warp of the block waits through memory for all
            for number, part in enumerate(self.function.parts):
                waits = sum(line.op.startswith("atom.") and "acq_rel" in line.op for line in part)
                found[number] += waits * _GRID * -(-self.threads // 32)
        return found


def _of(kind: str, line: paper_integers.Instruction, paired: bool) -> int:
    head = line.parts[0]
    if kind == "barriers":
        if "cluster" in line.parts:
            return _CLUSTER if "wait" in line.parts else 0
        return int(head in ("bar", "barrier"))
    if kind == "fma":
        return int(head == "fma" and line.parts[-1] == "f32")
    if kind == "mma":
        shape = _MMA.search(line.op)
        return int(shape[1]) * int(shape[2]) * int(shape[3]) if head == "mma" and shape else 0
    if head == "ldmatrix":  # of 8 rows of 16 bytes each
        return int(line.parts[-3][1:])
    if head in ("ld", "st", "atom", "red") and "shared" in line.parts:
        waves = max(1, paper_integers.bytes_of(line) // 4)
        return waves // 2 if paired and head == "ld" and waves == 4 else waves
    return 0


def _nesting(loops: list[tuple[int, int]]) -> list[int]:
    """Return the number of other loops around each loop."""
    return [sum(a <= c and d <= b and (a, b) != (c, d) for a, b in loops) for c, d in loops]


def disassembler() -> str | None:
    """Return the path of nvdisasm, from NVIDIA's wheel or the PATH; None if not installed."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in Path(folder).glob("*/bin/nvdisasm"):
            return str(path)
    return None


def kernels(names: tuple[str, ...]) -> dict[str, Kernel]:
    """Compile kernels together; earlier results are read from a file."""
    text, tool = kernel_sources.source(), disassembler()
    options = [*OPTIONS, f"--gpu-architecture={ARCHITECTURE}"]

    def make(path: Path) -> None:
        entries = [kernel_sources.entry(name) for name in names]
        made = nvrtc.compiled(text, entries, options)
        facts: dict[str, Any] = {"log": made.log, "symbols": made.symbols, "ptx": made.ptx}
        facts["machine"] = None if tool is None else _machine(made.cubin, tool)
        path.write_text(json.dumps(facts))

    ingredients = (text, nvrtc.version(), *names, *options, str(tool is None), "3")
    facts = json.loads(kept(".json", make, *ingredients).read_text())
    functions = paper_ptx.functions(facts["ptx"])
    threads = dict(re.findall(r"\.entry (\w+)\([^)]*\)\s*\.maxntid (\d+)", facts["ptx"]))
    found = {}
    for name, symbol in zip(names, facts["symbols"], strict=True):
        machine = None if facts["machine"] is None else facts["machine"][symbol]
        found[name] = Kernel(
            name,
            functions[symbol],
            int(threads[symbol]),
            *_usage(facts["log"], symbol),
            None if machine is None else machine["loops"],
            [] if machine is None else machine["size"],
            [] if machine is None else machine["clocks"],
        )
    return found


def _usage(log: str, symbol: str) -> tuple[int, int, int]:
    """Return registers, shared bytes and spilled bytes from the log of the assembler."""
    text = re.search(rf"Compiling entry function '{symbol}'(.*?)(?=Compiling entry|\Z)", log, re.S)
    assert text is not None

    def number(pattern: str) -> int:
        match = re.search(pattern, text[1])
        return int(match[1]) if match else 0

    spilled = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
    return number(r"Used (\d+) registers"), number(r"(\d+) bytes smem"), spilled


def _machine(cubin: bytes, tool: str) -> dict[str, Any]:
    """Return loops of the machine code of every kernel, and the instructions in each loop."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "all.cubin")
        path.write_bytes(cubin)
        done = subprocess.run([tool, "-c", str(path)], capture_output=True, text=True, check=True)
    found = {}
    for part in re.split(r"^//-+ \.text\.", done.stdout, flags=re.M)[1:]:
        found[part.split(" ", 1)[0]] = _loops(part)
    return found


def _loops(text: str) -> dict[str, Any]:
    """Return loops and instructions of a kernel, without subroutines and padding."""
    labels: dict[str, int] = {}
    code: list[str] = []
    for line in text.split("\n"):
        label = re.match(r"(\.L_x_\d+|\$\w+):", line)
        if label:
            labels[label[1]] = len(code)
        made = re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line)
        if made and not made[1].startswith("NOP"):
            code.append(made[1])
    jumps = [(i, re.search(r"\((\.L_x_\d+|\$\w+)\)", op)) for i, op in enumerate(code)]
    called = [labels[to[1]] for i, to in jumps if to and "CALL" in code[i] and to[1] in labels]
    end = min([n for n in called if n > 0], default=len(code))
    loops: dict[int, int] = {}
    for place, to in jumps:
        if to and "BRA" in code[place] and place < end:
            begin = labels.get(to[1], place + 1)
            if begin < place:
                loops[begin] = max(loops.get(begin, 0), place)
    ordered = sorted(loops.items())
    owner = paper_ptx.regions(ordered, end)
    size, clocks = ([0] * (len(ordered) + 1) for _ in range(2))
    for loop, each in zip(owner, clocks_of(code[:end]), strict=True):
        size[loop + 1] += 1
        clocks[loop + 1] += each
    return {"loops": ordered, "size": size, "clocks": clocks}


def clocks_of(code: Sequence[str]) -> list[int]:
    """Return the clocks in which each instruction of a machine code is issued.

    An instruction takes one clock. Arithmetic takes one clock for each register that it reads from
    the same bank; the two banks have even and odd registers. An operand that the previous
    instruction read in the same place and marked ``.reuse`` is not read again. For products on an
    H200 this predicts an instruction in 66 % of the clocks, equal to its hardware counters.
    """
    found, kept_before = [], dict[int, str]()
    for line in code:
        head, _, rest = re.sub(r"^@!?U?P\w+ ", "", line).partition(" ")
        kept_now: dict[int, str] = {}
        read: set[str] = set()
        if head.startswith(_ARITHMETIC):
            for place, operand in enumerate(rest.split(",")[1:4]):
                register = re.search(r"\bR(\d+)(\.reuse)?", operand)
                if register is None:
                    continue
                if kept_before.get(place) != register[1]:
                    read.add(register[1])
                if register[2]:
                    kept_now[place] = register[1]
        odd = sum(int(number) % 2 for number in read)
        found.append(max(1, odd, len(read) - odd))
        kept_before = kept_now
    return found
