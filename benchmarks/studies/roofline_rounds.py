"""Rounds of the roofline: what is measured of a workload, and which of its rounds count.

Others on the same cores take from what a core looks ahead. A loop of normals shows it before and
behind a round, the peak of multiply-adds does not.
"""

from __future__ import annotations

import functools
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import profiles
from benchmarks.harness.compare import Process
from benchmarks.studies.roofline_counts import Count

DISTURBED = 0.03  # that much longer than at best, the loop is beside others
ANEW = 2  # so many times as many rounds as are asked for are made anew, at most


@dataclass
class Times:
    """Of one process: seconds per run, one a round, and its profile."""

    seconds: list[float] = field(default_factory=list)
    costs: list[tuple[str, float]] = field(default_factory=list)
    running: float = 0.0  # threads, on average, while the profile was taken

    @property
    def median(self) -> float:
        """Seconds per run."""
        return statistics.median(self.seconds)


@dataclass
class Row:
    """What was found of one workload, by the widest vectors and, in turns with them, by AVX2."""

    workload: Any
    threads: int
    count: Count
    widest: Times = field(default_factory=Times)
    avx2: Times = field(default_factory=Times)  # empty where it was not measured
    peaks: list[float] = field(default_factory=list)
    handovers: list[float] = field(default_factory=list)  # ns
    anew: int = 0  # rounds that do not count, as others worked on the same cores
    kept: int = 0  # of those that count, how many were disturbed, too
    failure: str = ""

    def floor(self, bandwidth: float) -> tuple[float, str]:
        """Least seconds of a run and what sets them."""
        peak = statistics.median(self.peaks) * self.threads
        return self.count.floor(peak, bandwidth, last_level_cache())


def last_level_cache() -> float:
    """Bytes of the largest cache of core 0, or 32 MiB where the system does not say."""
    sizes = [32 << 20]
    folder = Path("/sys/devices/system/cpu/cpu0/cache")
    found = [p.read_text().strip() for p in folder.glob("index*/size")]
    sizes = [int(s[:-1]) << {"K": 10, "M": 20}[s[-1]] for s in found] or sizes
    return float(max(sizes))


@dataclass(frozen=True)
class Round:
    """A peak (flop/s), a hand-over (ns), and the median seconds of each process."""

    disturbed: float  # how much longer than at best the loop of `calm` took, before or behind
    peak: float
    handover: float
    seconds: list[float]


def _round(pairs: list[tuple[Process, Times]], calm: list[float], **how: Any) -> Round:
    first = pairs[0][0]

    def look() -> float:
        calm.append(first.ask("calm")["seconds"])
        return calm[-1]

    before = look()
    found = first.ask("peak", seconds=0.1)
    timed = [process.ask("time", **how)["seconds"] for process, _ in pairs]
    slowest = max(before, look())
    return Round(
        slowest / min(calm) - 1.0,
        found["flops"],
        found["handover"],
        [statistics.median(seconds) for seconds in timed],
    )


def take_turns(
    row: Row,
    pairs: list[tuple[Process, Times]],
    rounds: int,
    seconds: float,
    watch: float,
    say: Any,
    processor: bool,
    calm: list[float],
) -> None:
    """Fill `row`: rounds of peak and times, then a profile of each process.

    A round is made anew, up to `ANEW` times as many, where others worked on the same cores; what
    counts are the least disturbed ones. `calm`: what its loop has taken so far.
    """
    made: list[Round] = []
    while len(made) < (1 + ANEW) * rounds:
        quiet = sum(one.disturbed <= DISTURBED for one in made)
        if quiet >= rounds:
            break
        say(f"{row.workload.name}: round {len(made) + 1}, {quiet} of {rounds} undisturbed")
        made.append(_round(pairs, calm, seconds=seconds, processor=processor))
    best = sorted(made, key=lambda one: one.disturbed)[:rounds]
    row.anew = len(made) - len(best)
    row.kept = sum(one.disturbed > DISTURBED for one in best)
    row.peaks = [one.peak for one in best]
    row.handovers = [one.handover for one in best]
    for i, (_, times) in enumerate(pairs):
        times.seconds = [one.seconds[i] for one in best]
    for process, times in pairs if watch else []:
        busy = functools.partial(process.ask, "time", seconds=0.2)
        times.costs, times.running = profiles.profile(process.pid, watch, busy)
