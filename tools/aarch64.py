"""Count the instructions of the kernels for AArch64 in an emulator.

``python -m tools.aarch64 --write`` writes ``docs/developer/aarch64.md``:

- It builds the paths of `tools.hot_paths` without Python (``cpp/tests/hot_paths.cpp``) for this
  processor and, by ``cmake/aarch64-linux-gnu.cmake``, for AArch64.
- It counts the instructions of one unit of each path. ``valgrind --tool=callgrind`` counts the AVX2
  kernels, and a plugin of ``qemu-aarch64`` (``cpp/tests/count_instructions.cpp``) counts the NEON
  kernels.

The counts are exact: differences between many units and few. They repeat to the instruction if a
path draws no buffers. They say nothing about time. Debian packages:
``apt-get install g++-aarch64-linux-gnu qemu-user valgrind``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "developer" / "aarch64.md"
TRIPLE = "aarch64-linux-gnu"
TOOLS = {
    "cmake": "cmake",
    f"{TRIPLE}-g++": f"g++-{TRIPLE}",
    "qemu-aarch64": "qemu-user",
    "valgrind": "valgrind",
}


@dataclass(frozen=True)
class Line:
    """A row of the table: the description of a unit, and how many of `per` are in it."""

    what: str
    per: str
    count: int = 1


LINES = {
    "leapfrog": Line("MLP 8-50-1, SiLU, N=320", "leapfrog"),
    "dense": Line("MLP 256-256-256-10, SiLU, N=64", "leapfrog"),
    "convolution": Line("residual block, 8x8x16, N=4", "leapfrog"),
    "variational": Line("Bayes by Backprop, P=39,760, N=4", "step"),
    "weight-draws": Line("1-20-20-20-20-1, 1,000 rows", "draw"),
    "mask-draws": Line("MC dropout 100-200-200-10, 32 rows", "mask"),
    "product-f32": Line("y = x W, 48 x 48, 64 rows", "multiply-add", 48 * 48 * 64),
    "product-f64": Line("the same in double", "multiply-add", 48 * 48 * 64),
    "gradient-f32": Line("gradient of W", "multiply-add", 48 * 48 * 64),
    "gradient-f64": Line("the same in double", "multiply-add", 48 * 48 * 64),
    "normals-f32": Line("4,096 normals", "normal", 4096),
    "normals-f64": Line("the same in double", "normal", 4096),
    "silu-f32": Line("SiLU and its derivative", "number", 4096),
    "silu-f64": Line("the same in double", "number", 4096),
}

TEXT = """# AArch64

Written by `python -m tools.aarch64 --write`.

**The instructions were counted in an emulator. Ribbit has not run on an AArch64 processor, and
there are no times.**

On AArch64 the core has one instruction set, `neon`, which every such processor has.
`RIBBIT_ISA=neon` selects it; `ribbit_instruction_set`, `versions` and `doctor` report it. Vectors
have 128 bits. The formulas, and all code above the kernels, are the same as on x86-64.

## Bit-identical to x86-64

`cpp/tests/check_bits.cpp` contains checksums that every processor must reproduce.

On all instruction sets:

- random words and normals, masks and signs,
- weights drawn as mean + scale * normal,
- updates of the leapfrog,
- sums in double with a fixed shape: squares of momenta, trees of partial gradients, sums of
  isokinetic steps.

On `avx2` and `neon`:

- activations and their derivatives,
- gradients of likelihoods with respect to outputs,
- outputs of dense layers and convolutions.

These two sets have a fused multiply-add and divide exactly. A NEON tile has the same outputs as an
AVX2 tile and adds in the same order.

Sums of gradients and log likelihoods over rows are made lane by lane. Four lanes of float32 add in
another order than eight. So a draw depends on the instruction set, as it does between `avx2` and
`avx512`.

## Tiles

NEON has 32 registers, half as wide as those with AVX2. One factor of its multiply can come from a
single lane.

- A tile is 6 outputs x 4 vectors of rows: 24 sums, 4 registers of rows and 2 of weights. It needs
  32 instructions for 24 vector multiply-adds.
- Gradients of weights with the outputs in the lanes use tiles of up to 5 inputs x 4 vectors.
- Threads that wait spin with `yield`.

## Instructions

"""

NOTE = """
- `neon`: compiled by {cross}.
- `avx2`: compiled by {native}.
- Counts of `neon`: {qemu}, with a plugin that adds the length of every block that runs.
- Counts of `avx2`: {valgrind}.

The counts are exact, on one thread, compiled with -O3. Each is a difference between many units and
few. The paths run without Python, so the counts differ from those in `tools.instructions`.

The ratio is NEON / AVX2. Half the vector width alone gives 2. Ratios above 2 come from elementwise
formulas: a fused multiply-add of NEON overwrites its addend, so a polynomial first copies each
coefficient.

## Build and test

```sh
apt-get install g++-aarch64-linux-gnu qemu-user
cmake -G Ninja -S . -B build/aarch64 --toolchain cmake/aarch64-linux-gnu.cmake \\
  -DRIBBIT_PYTHON=OFF -DRIBBIT_NATIVE_TESTS=ON
cmake --build build/aarch64 && ctest --test-dir build/aarch64 -j 2
```

`.ci/run` runs these commands if the core has changed since they last passed (`tools/checked.py`).
All native tests run. In the emulator `RIBBIT_TEST_REDUCTION` is 10, which makes grids, trials and
numbers of rows smaller. One check is left out: qemu-user 7, like the thread sanitizer, cannot
follow the fork of a process with threads.

On an AArch64 processor, `pip install .` builds the same parts as on x86-64. Builds by clang for
musl and macOS: [platforms of the wheels](platforms.md).
"""


def missing() -> list[str]:
    """Debian packages of the missing tools."""
    return sorted({package for name, package in TOOLS.items() if shutil.which(name) is None})


def build(folder: Path, options: list[str]) -> Path:
    """Build the paths in a folder; return the program."""
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), *options]
    configure += ["-DRIBBIT_PYTHON=OFF", "-DRIBBIT_NATIVE_TESTS=ON", "-DCMAKE_BUILD_TYPE=Release"]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    make = ["cmake", "--build", str(folder), "--target", "hot_paths", "-j", str(os.cpu_count())]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    return folder / "cpp" / "tests" / "hot_paths"


def plugin(folder: Path) -> Path:
    """Build the plugin that counts instructions in qemu."""
    library = folder / "count_instructions.so"
    source = ROOT / "cpp" / "tests" / "count_instructions.cpp"
    compiler = [os.environ.get("CXX", "g++"), "-std=c++20", "-O2", "-shared", "-fPIC"]
    subprocess.run([*compiler, "-o", str(library), str(source)], check=True)
    return library


def units(program: list[str]) -> dict[str, tuple[int, int]]:
    """Few and many units of every path."""
    text = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    rows = (line.split() for line in text.splitlines())
    return {name: (int(few), int(many)) for name, few, many in rows}


def count_neon(program: Path, library: Path, name: str) -> list[int]:
    """Instructions of few and of many units."""
    command = ["qemu-aarch64", "-L", f"/usr/{TRIPLE}", "-plugin", str(library), str(program), name]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    marks = [int(found) for found in re.findall(r"^executed (\d+)$", done.stderr, re.MULTILINE)]
    first, second, third = marks
    return [second - first, third - second]


def count_avx2(program: Path, folder: Path, name: str) -> list[int]:
    """Instructions of few and of many units, by callgrind; a dump at every mark."""
    out = folder / f"counts-{name}"
    options = ["--tool=callgrind", "--dump-before=getppid", f"--callgrind-out-file={out}"]
    subprocess.run(
        ["valgrind", "-q", *options, str(program), name],
        check=True,
        capture_output=True,
        env=os.environ | {"RIBBIT_ISA": "avx2"},
    )
    totals = []
    for dump in (2, 3):
        found = re.search(r"^totals: (\d+)", Path(f"{out}.{dump}").read_text(), re.MULTILINE)
        if found is None:
            raise RuntimeError(f"[aarch64] expected totals of {name}, got none")
        totals.append(int(found[1]))
    return totals


def number(value: float) -> str:
    """Three digits at least."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def table(counts: dict[str, tuple[float, float]]) -> str:
    """Write rows of the instructions of a unit: AVX2, NEON."""
    rows = ["| path | | instructions per | AVX2 | NEON | ratio |", "|---|---|---|---|---|---|"]
    for name, line in LINES.items():
        avx2, neon = (value / line.count for value in counts[name])
        rows.append(
            f"| {name} | {line.what} | {line.per} | {number(avx2)} | {number(neon)} "
            f"| {neon / avx2:.2f} |"
        )
    return "\n".join(rows) + "\n"


def version(command: list[str]) -> str:
    """First line of a tool's --version."""
    text = subprocess.run([*command, "--version"], check=True, capture_output=True, text=True)
    return text.stdout.splitlines()[0]


def measure(folder: Path) -> str:
    """Build and count; return the page."""
    (folder / "native").mkdir(exist_ok=True)
    (folder / "aarch64").mkdir(exist_ok=True)
    native = build(folder / "native", [])
    toolchain = ROOT / "cmake" / f"{TRIPLE}.cmake"
    emulated = build(folder / "aarch64", ["--toolchain", str(toolchain)])
    library = plugin(folder)
    counts = {}
    for name, (few, many) in units([str(native)]).items():
        avx2, neon = count_avx2(native, folder, name), count_neon(emulated, library, name)
        counts[name] = tuple((total[1] - total[0]) / (many - few) for total in (avx2, neon))
        print(name, *(number(value / LINES[name].count) for value in counts[name]), flush=True)
    note = NOTE.format(
        qemu=version(["qemu-aarch64"]),
        valgrind=version(["valgrind"]),
        cross=version([f"{TRIPLE}-g++"]),
        native=version([os.environ.get("CXX", "g++")]),
    )
    return TEXT + table(counts) + note


def main(arguments: list[str] | None = None) -> int:
    """Print the counts; with ``--write`` write the page."""
    parser = argparse.ArgumentParser(prog="python -m tools.aarch64", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/developer/aarch64.md")
    parser.add_argument("--folder", type=Path, help="build in this folder, and keep it")
    options = parser.parse_args(arguments)
    if packages := missing():
        print(f"not counted: apt-get install {' '.join(packages)}")
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        page = measure(options.folder or Path(scratch))
    if options.write:
        PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
