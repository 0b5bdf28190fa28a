"""How far each CPU workload is from its floor: ``python -m benchmarks.roofline [--write]``.

Counts what a workload must do (`benchmarks.studies.roofline_counts`), measures the FMA peak, the
copy bandwidth and Ribbit's time in turns, and profiles the process with ``perf`` where it is
installed. ``--write`` also writes docs/developer/roofline.md. Rivals are not needed. Ten minutes,
and up to twice that next to other work on the same cores.
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
PARTS = ["products", "at", "elementwise", "at", "waiting", "rest"]
PREAMBLE = """
Written by `python -m benchmarks.roofline --write`. The floor of a workload is the time in which
this machine could do what the workload cannot do without, and the share is the floor over Ribbit's
time. Products are the multiplies and adds of dense, convolutional and LSTM products (taps on the
padding are not counted here, as nothing has to be computed there). Elementwise work is counted by
hand in slots, one slot being a float32 multiply-add per lane at the measured peak: 20 for SiLU with
its derivative, 3 for ReLU, 28.5 for a normal, 12.5 for a random word, 4 per parameter and leapfrog;
`benchmarks/studies/roofline_counts.py` has all of them. Bytes are what has to be read and written
once per gradient or run; they set a floor only where the working set is larger than the last-level
cache. Both peaks are those of the same threads in the same run. No code reaches 100 %: products
read their operands from a cache, and loops begin and end. Shares of the profile are of the samples
of all threads; "Team::meet" is one thread waiting for the other, "the kernel" is mostly the system
handing out fresh pages.

A hand-over is the time until one thread sees what another has written, measured before every round:
some 30 ns where their cores share a cache and 160 where they do not. Where a system moves its
virtual cores, the same workload has two times: one chain of a small network is 18 or 22 us, a
step of SGLD 0.92 or 1.38 ms.

What the time is made of follows from the same profile, each kernel being of one part by its name
(`benchmarks/studies/roofline_parts.py`). "at" is the share of the peak at which the part runs: the
products' own floor over their time, and that of the elementwise work over its time (above 100 %
where a kernel does some of it inside products, or in fewer slots than were counted). Waiting has
the time of threads that sleep; the rest is what no floor counts: packing, sums over shards,
gathered rows, fresh pages, Python.

What keeps some rows under 85 %, as counted. resnet20: a panel of 32 rows has 51 MB of values, which
the way back reads again, and two threads have two panels under way, three times what the last-level
cache holds: 154 MB of lines fetched, written and read again, 10 ms of a panel's 77 at half of the
copy bandwidth, of which the products hide some. Measured by itself, a convolution of 16 channels on
32 x 32 pixels runs at 96 % of the peak on one image, in cache, and on 24 images in turn, in memory,
at 84 % where it does not ask ahead and at 94 % where it does. hmc-synthreg: 120 rows are eight
vectors of 16, the last one half empty, which is 7 % of its time; the floor counts 120. sgld: a
line of memory that one thread writes and the other has read before takes 7 to 9 ns where their
cores share a cache and 27 to 36 where they do not (512 KiB written and read in turn), and a step
has 14,700 of them for each thread, 0.67 MB of packed weights and 0.27 of values and deltas: 0.1 or
0.4 to 0.5 ms of it; reading them is no slower than one's own. reparam and normals: the mix of one
multiply-add, one integer multiply, one shift and one logic operation of AVX-512 was measured to
take 2 cycles, by which the 430 operations of 128 normals take 215, where the floor says 228 and
ribbit needs 273; a random word by itself takes 15 slots so, not 12.5. Small networks (hmc-small,
bbb-seed, mc-forward) and lenet5: 8 multiply-adds of 512 bits take 8 cycles here, with one store
among them 8.5 to 9.2, with two 10.3 to 11.3, and every value and every delta is stored once: in
cache, a layer of 8 inputs and 50 outputs runs at 82 % of the peak, and at 95 without its stores, of
20 and 20 at 93 and 98, of 50 and 50 at 96 and 99. hmc-deep-4 reaches 90 % where nobody works
beside it (5 of 5 rounds undisturbed).

On AVX2 the floor is the same (118 GFLOP/s here, as a 512-bit operation takes two cycles), though
its multiply-adds of half the width need twice the loads and have half the registers, and its stores
cost next to nothing (8 multiply-adds of 256 bits take 4.3 cycles, and 4.5 with four stores). Why
normals, and reparam, which is made of them, are furthest behind: it has no exclusive or of three
and no selection by a mask, so that 32 normals are 251 operations of 256 bits, 63 cycles of its four
units, where AVX-512 needs half as many as 215, 54 cycles; 0.79 ns a normal are 93 cycles. Of the
loop's 325 instructions for 32 normals 56 store what 16 registers do not hold, or load it again, and
a core that looks ahead over 320 instructions has one such block in sight. Why hmc-small-8 is some
ten points behind: SiLU with its slope takes 102 instructions for 32 numbers, where AVX-512 has 81
of twice the width for 64, and 7.0 cycles for eight numbers, not 5.4, which is 1.7 of the 2.3 us
between the two. Exact division is not what it waits for: an estimate of 12 bits and one Newton step
take as long, and would differ between makers of processors.

Others on the same cores take from what a core looks ahead, which a loop of normals shows at once
and the peak does not: a round before or behind which that loop took over 3 % longer than it did at
best is made anew, up to twice as many as are asked for, and the calmest count ("undisturbed" says
how many of them were).

Whole public calls are timed as a user makes them, all they do around gradients included: checks,
records of every draw, convergence at the end. Steps and lengths are given by hand (defaults would
tune them, and no floor could count the gradients); every call is held to as many gradients as its
floor has. SGLD takes batches of 128 rows, a draw of MCLMC is 25 steps, predictions are of draws
around one place at new rows.
"""


def copy_bandwidth(threads: int, processor: bool = False, seconds: float = 0.3) -> float:
    """Bytes/s that `threads` threads read and write together, copying arrays of 128 MiB."""
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

    `most_threads` and `processor` are those of `benchmarks.harness.compare.compare`.
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
    """Three digits, and a prefix before whatever unit follows."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {prefix}"
    return f"{number:.3g} "


def tables(rows: list[Row], bandwidth: float, without: str) -> list[Table]:
    """Floors and shares, profiles."""
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
    head = ["workload", "per", "threads", "undisturbed", "hand-over", "products", "slots", "bytes"]
    head += ["they lie in", "floor", "set by", "ribbit", "share"]
    made_of_head = ["workload", "share", *PARTS]
    return [
        ("Floors", [*head, "on AVX2", "share"], floors),
        ("Whole public calls", ["call", *head[1:]], calls),
        ("What the time is made of", made_of_head, made_of),
        ("What the time is made of, on AVX2", made_of_head, narrow),
        ("Largest costs, of the samples of a profile", ["workload", "1", "2", "3"], costs),
    ]


def handover_cell(row: Row) -> str:
    """Median ns; a dash where there is one thread, or where two never ran at once."""
    found = statistics.median(row.handovers)
    return f"{found:.0f} ns" if row.threads > 1 and found > 0 else "-"


def part_cells(row: Row, times: Times) -> list[str]:
    """Shares of the time of the parts; of products and elementwise work also that of the peak."""
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
    """Facts of the run: the machine, peak and bandwidth."""
    peaks = [peak for row in rows for peak in row.peaks]
    lines = facts(versions, command)
    if peaks:
        lines.append(
            f"FMA peak of one core, float32: {statistics.median(peaks) / 1e9:.0f} GFLOP/s "
            f"({min(peaks) / 1e9:.0f}-{max(peaks) / 1e9:.0f})"
        )
    lines.append(
        f"Rounds beside others on the same cores: {sum(row.anew for row in rows)} made anew, "
        f"{sum(row.kept for row in rows)} kept for want of better"
    )
    lines.append(
        f"Copy bandwidth, read and written, all threads: {bandwidth / 1e9:.1f} GB/s; last-level "
        f"cache {last_level_cache() / 2**20:.0f} MiB"
    )
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Run, print, write; returns 1 when an answer was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.roofline", description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=NAMES, metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="2 short rounds, short profiles")
    parser.add_argument("--threads", type=int, help="default: those of the workload")
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
