"""Compare each CPU workload with its floor: ``python -m benchmarks.roofline [--write]``.

Counts the necessary work (`benchmarks.studies.roofline_counts`), measures the FMA peak, the copy
bandwidth and Ribbit's time in turns, and profiles the process if ``perf`` is installed. ``--write``
also writes docs/developer/roofline.md. Other libraries are not needed. It takes ten minutes, and up
to twenty if other processes use the same cores.
"""

from __future__ import annotations

import argparse
import functools
import math
import shlex
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import machine, profiles
from benchmarks.harness.compare import Process
from benchmarks.harness.framework import OURS
from benchmarks.harness.pages import Table, duration, facts, markdown, print_table
from benchmarks.harness.stopping import until_stopped
from benchmarks.rivals import FRAMEWORKS, OURS_AVX2
from benchmarks.studies.roofline_counts import COUNTS
from benchmarks.studies.roofline_parts import parts
from benchmarks.studies.roofline_rounds import Row, Times, last_level_cache, take_turns
from benchmarks.workloads.calls import CALLS
from benchmarks.workloads.table import WORKLOADS

DOCUMENT = machine.ROOT / "docs" / "developer" / "roofline.md"
ALL: dict[str, Any] = {
    name: workload for name, workload in (WORKLOADS | CALLS).items() if workload.kind in COUNTS
}
NAMES = list(ALL)
PARTS = ["products", "of peak", "elementwise", "of peak", "waiting", "rest"]
PREAMBLE = """
Written by `python -m benchmarks.roofline --write`.

The floor of a workload is the shortest time in which this machine can do the necessary work. The
share is the floor divided by Ribbit's time. No code reaches 100 %: products read their operands
from a cache, and loops begin and end.

## Columns

| column | meaning |
|---|---|
| undisturbed | rounds without other work on the same cores |
| core-to-core | time until one thread sees a value that another thread has written |
| products | multiplies and adds of dense, convolutional and LSTM layers, without taps on padding |
| slots | elementwise work; a slot is the time of one float32 multiply-add per lane at the peak |
| bytes | bytes that must be read and written once per gradient or run |
| data in | cache if the working set fits into the last-level cache, else memory |
| floor | arithmetic at the peak or, for data in memory, bytes at the copy bandwidth, if longer |
| bound by | the longer of these two |

Slots per element: 20 for SiLU with its derivative, 3 for ReLU, 28.5 for a normal, 12.5 for a random
word, 4 per parameter and leapfrog. `benchmarks/studies/roofline_counts.py` has the full list.

The tables of time by part divide a profile of all threads by the names of its kernels
(`benchmarks/studies/roofline_parts.py`):

- **products, elementwise**: shares of the time. "of peak" is the floor of the part divided by its
  time. It exceeds 100 % if a kernel does elementwise work inside products, or if it needs fewer
  slots than counted.
- **waiting**: threads that sleep or wait for another thread.
- **rest**: work that no floor counts: packing, sums over partitions, gathered rows, fresh memory
  pages, Python.

In the table of costs, `Team::meet` is one thread that waits for the other. "the kernel" is the
operating system, which mostly hands out fresh pages.

## Measurement

- **Peaks.** The peak of fused multiply-adds (FMA) and the copy bandwidth come from the same threads
  in the same run.
- **Core-to-core latency.** It is measured before every round: about 30 ns if the cores share a
  cache, 160 ns if not. On a system that moves its virtual cores, a workload has two times. One
  chain of a small network takes 18 or 22 us, a step of SGLD 0.92 or 1.38 ms.
- **Disturbed rounds.** Other work on the same cores shrinks the reorder window of a core. A loop of
  normals shows this at once, the FMA peak does not. The loop runs before and after each round. If
  it takes over 3 % longer than its best time, the round is repeated. The number of repeated rounds
  is at most twice the requested number. The least disturbed rounds count.
- **Public calls.** They are timed as a user makes them, with checks, records of every draw and the
  convergence report. Step sizes and lengths are set explicitly, because tuned defaults would make
  an unknown number of gradients. The benchmark checks the number of gradients of every call. SGLD
  takes batches of 128 rows. A draw of MCLMC is 25 steps. Predictions use draws around one position,
  at new rows.

## Causes of shares under 85 %

**resnet20: memory traffic.** A tile of 32 rows has 51 MB of activations, which the backward pass
reads again. Two threads work on two tiles at a time, three times the size of the last-level cache.
Each tile moves 154 MB of cache lines: fetched, written and read again. At half of the copy
bandwidth they take 10 of the tile's 77 ms; the products hide a part of this time. The table has a
convolution of 16 channels on 32 x 32 pixels, measured alone.

| images | data in | prefetch | of peak |
|---|---|---|---|
| 1 | cache | - | 96 % |
| 24 in turn | memory | no | 84 % |
| 24 in turn | memory | yes | 94 % |

**hmc-synthreg: partial vectors.** 120 rows take eight vectors of 16, and half of the last vector is
empty. This is 7 % of the time; the floor counts 120 rows.

**sgld: cache lines that move between cores.** A thread writes lines that the other thread has read
before. A line takes 7 to 9 ns if the cores share a cache, and 27 to 36 ns if not (512 KiB written
and read in turn). A step has 14,700 such lines per thread: 0.67 MB of packed weights, and 0.27 MB
of activations and their gradients. They take 0.1 ms of the step, or 0.4 to 0.5 ms. Reading a line
of the other thread is as fast as reading a line of the same thread.

**reparam, normals: mix of instructions.** One multiply-add, one integer multiply, one shift and one
logic operation of AVX-512 together take 2 cycles (measured). At this rate, the 430 operations of
128 normals take 215 cycles. The floor is 228 cycles, and Ribbit takes 273. A random word alone
takes 15 slots at this rate, not 12.5.

**Small networks (hmc-small, bbb-seed, mc-forward) and lenet5: stores.** Every activation and its
gradient are stored once. Eight multiply-adds of 512 bits take 8 cycles, with one store 8.5 to 9.2,
and with two 10.3 to 11.3. Layers in cache reach these shares of the peak:

| inputs, outputs | with stores | without stores |
|---|---|---|
| 8, 50 | 82 % | 95 % |
| 20, 20 | 93 % | 98 % |
| 50, 50 | 96 % | 99 % |

**hmc-deep-4: disturbed rounds.** It reaches 90 % in a run with 5 of 5 undisturbed rounds.

## AVX2

The floor is the same (118 GFLOP/s), because a 512-bit operation takes two cycles on this machine.
The multiply-adds of AVX2 have half the width and need twice as many loads. AVX2 has half as many
registers. Its stores cost almost nothing: eight multiply-adds of 256 bits take 4.3 cycles, and 4.5
with four stores.

**normals and reparam** have the lowest shares:

- AVX2 has no three-operand exclusive or and no selection by a mask. So 32 normals are 251
  operations of 256 bits, or 63 cycles of its four units. On AVX-512, 32 normals are half of 215
  operations, or 54 cycles. On AVX2, Ribbit takes 93 cycles (0.79 ns per normal).
- The loop has 325 instructions for 32 normals. 56 of them store or reload values, because AVX2 has
  16 registers.
- The reorder window has 320 instructions, so the core sees one block of 32 normals at a time.

**hmc-small-8** is about ten percentage points behind AVX-512:

- SiLU with its derivative takes 102 instructions for 32 numbers. AVX-512 takes 81 for 64 numbers.
- Eight numbers take 7.0 cycles, not 5.4. This is 1.7 of the 2.3 us of difference.
- Division is not the cause. An estimate of 12 bits and one Newton step take as long, and the result
  would differ between processor vendors.

## Machine and run
"""


def copy_bandwidth(threads: int, processor: bool = False, seconds: float = 0.3) -> float:
    """Return bytes/s that `threads` threads read and write together in copies of 128 MiB arrays."""
    clock = time.process_time if processor else time.perf_counter
    pairs = [(np.ones(1 << 25, np.float32), np.empty(1 << 25, np.float32)) for _ in range(threads)]
    for source, to in pairs:
        np.copyto(to, source)  # brings the pages in

    def copies(source: Any, to: Any, repeats: int) -> None:
        for _ in range(repeats):
            np.copyto(to, source)

    best, spent = 0.0, 0.0
    while spent < seconds:
        running = [threading.Thread(target=copies, args=(*pair, 2)) for pair in pairs]
        started = clock()
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        took = clock() - started
        spent += took
        best = max(best, threads * 2 * 2 * pairs[0][0].nbytes / took)
    return best


def measure(
    names: list[str],
    rounds: int,
    seconds: float,
    watch: float,
    say: Any,
    most_threads: int | None = None,
    processor: bool = False,
) -> Iterator[Row]:
    """Time and profile the workloads in order; `watch` seconds of profile, 0 for none.

    `most_threads` and `processor` are arguments of `benchmarks.harness.compare.compare`.
    """
    available = min(len(machine.cores()), most_threads or len(machine.cores()))
    processes: dict[tuple[str, int], Process] = {}
    calm: dict[int, list[float]] = {}  # by threads
    try:
        for name in names:
            workload = ALL[name]
            threads = min(workload.threads, available)
            row = Row(workload, threads, COUNTS[workload.kind](workload))
            turns = [(FRAMEWORKS[OURS], row.widest)]
            if machine.vector_sets() == "AVX-512" and workload.kind != "call":
                turns.append((OURS_AVX2, row.avx2))
            say(f"{name}: reference and answer")
            pairs = []
            for framework, times in turns:
                key = (framework.name, threads)
                if key not in processes:
                    processes[key] = Process(framework, threads)
                pairs.append((processes[key], times))
                error = processes[key].prepare(workload).get("error", "")
                if error and not row.failure:
                    row.failure = f"{framework.name}: {error}"
            if not row.failure:
                take_turns(
                    row, pairs, rounds, seconds, watch, say, processor, calm.setdefault(threads, [])
                )
            yield row
    finally:
        for process in processes.values():
            process.close()


def amount(number: float) -> str:
    """Return three digits and the prefix of the unit that follows."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {prefix}"
    return f"{number:.3g} "


def tables(rows: list[Row], bandwidth: float, without: str) -> list[Table]:
    """Return the tables of floors, shares and profiles."""
    floors, calls, costs, made_of, narrow = [], [], [], [], []
    for row in rows:
        name, units = row.workload.name, row.workload.units
        whole_call = row.workload.kind == "call"
        listed = calls if whole_call else floors
        if row.failure:
            listed.append([name, *["-"] * (11 if whole_call else 13), f"FAILED {row.failure}"])
            continue
        floor, by = row.floor(bandwidth)
        cells = [
            name,
            row.workload.unit,
            str(row.threads),
            f"{len(row.peaks) - row.kept} of {len(row.peaks)}",
            handover_cell(row),
            amount(row.count.flops / units) + "flop",
            amount(row.count.slots / units).strip(),
            amount(row.count.bytes / units) + "B",
            "memory" if row.count.working_set > last_level_cache() else "cache",
            duration(floor / units),
            by,
        ]
        for times in [row.widest] if whole_call else [row.widest, row.avx2]:
            known = bool(times.seconds)
            cells.append(duration(times.median / units) if known else "-")
            cells.append(f"{floor / times.median:.0%}" if known else "-")
        listed.append(cells)
        top = [f"{symbol} {share:.0%}" for symbol, share in row.widest.costs[:3]]
        costs.append([name, *(top or [without, "", ""])])
        for times, parted in ((row.widest, made_of), (row.avx2, narrow)):
            if times.costs:
                parted.append([name, f"{floor / times.median:.0%}", *part_cells(row, times)])
    head = ["workload", "per", "threads", "undisturbed", "core-to-core", "products", "slots"]
    head += ["bytes", "data in", "floor", "bound by", "ribbit", "share"]
    made_of_head = ["workload", "share", *PARTS]
    return [
        ("Floors", [*head, "on AVX2", "share"], floors),
        ("Whole public calls", ["call", *head[1:]], calls),
        ("Time by part", made_of_head, made_of),
        ("Time by part, on AVX2", made_of_head, narrow),
        ("Largest costs, in shares of the profile", ["workload", "1", "2", "3"], costs),
    ]


def handover_cell(row: Row) -> str:
    """Return median ns; a dash for one thread, or if two threads never ran at the same time."""
    found = statistics.median(row.handovers)
    return f"{found:.0f} ns" if row.threads > 1 and found > 0 else "-"


def part_cells(row: Row, times: Times) -> list[str]:
    """Return shares of the time by part; for products and elementwise work also of the peak."""
    found = parts(times.costs, min(1.0, times.running / row.threads))
    peak = statistics.median(row.peaks) * row.threads
    cells = []
    for share, flops in (
        (found.products, row.count.flops),
        (found.elementwise, 2 * row.count.slots),
    ):
        at = flops / peak / (share * times.median) if share >= 0.02 and flops else float("nan")
        cells += [f"{share:.0%}", "-" if math.isnan(at) else f"{at:.0%}"]
    return [*cells, f"{found.waiting:.0%}", f"{found.rest:.0%}"]


def lines_of(rows: list[Row], bandwidth: float, versions: dict[str, str], command: str) -> Any:
    """Return facts of the run: machine, peak and bandwidth."""
    peaks = [peak for row in rows for peak in row.peaks]
    lines = facts(versions, command)
    if peaks:
        lines.append(
            f"FMA peak of one core, float32: {statistics.median(peaks) / 1e9:.0f} GFLOP/s "
            f"({min(peaks) / 1e9:.0f}-{max(peaks) / 1e9:.0f})"
        )
    lines.append(
        f"Disturbed rounds: {sum(row.anew for row in rows)} repeated, "
        f"{sum(row.kept for row in rows)} kept because no calmer round was found"
    )
    lines.append(
        f"Copy bandwidth, read and written, all threads: {bandwidth / 1e9:.1f} GB/s; last-level "
        f"cache {last_level_cache() / 2**20:.0f} MiB"
    )
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Run, print, write; return 1 if an answer was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.roofline", description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=NAMES, metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="2 short rounds, short profiles")
    parser.add_argument("--threads", type=int, help="default: the threads of the workload")
    parser.add_argument(
        "--processor-time", action="store_true", help="on a busy machine, with --threads 1"
    )
    parser.add_argument("--write", nargs="?", type=Path, const=DOCUMENT, metavar="PATH")
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "benchmarks.roofline", *given])
    without = profiles.available()
    watch = 0.0 if without else 0.5 if options.quick else 2.0
    threads = options.threads or min(2, len(machine.cores()))
    bandwidth = copy_bandwidth(threads, options.processor_time)
    ours = FRAMEWORKS[OURS].load().versions()
    rows: list[Row] = []
    rounds, seconds = (2, 0.1) if options.quick else (5, 0.3)
    say = functools.partial(print, file=sys.stderr)
    names, processor = options.workloads or NAMES, options.processor_time
    with until_stopped() as stop:
        for row in measure(names, rounds, seconds, watch, say, options.threads, processor):
            rows.append(row)
    found, lines = tables(rows, bandwidth, without), lines_of(rows, bandwidth, ours, command)
    if options.write and not stop.status:
        options.write.write_text(markdown("Roofline", PREAMBLE, found, lines))
    for table in found:
        print_table(table)
    print("\n".join(lines))
    return stop.status or (1 if any(row.failure for row in rows) else 0)
