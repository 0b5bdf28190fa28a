"""Rounds of the roofline: measure a workload, and select the rounds that count.

Other work on the same cores shrinks the reorder window of a core. A loop of normals before and
after a round shows this; the FMA peak does not.
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

DISTURBED = 0.03  # a round is disturbed if the loop takes longer than its best time by this share
ANEW = 2  # most repeated rounds, as a multiple of the requested rounds


@dataclass
class Times:
    """Seconds per run of one process, one for each round, and its profile."""

    seconds: list[float] = field(default_factory=list)
    costs: list[tuple[str, float]] = field(default_factory=list)
    running: float = 0.0  # mean number of running threads during the profile

    @property
    def median(self) -> float:
        """Seconds per run."""
        return statistics.median(self.seconds)


@dataclass
class Row:
    """Results of one workload, with the widest vectors and, in turns, with AVX2."""

    workload: Any
    threads: int
    count: Count
    widest: Times = field(default_factory=Times)
    avx2: Times = field(default_factory=Times)  # empty if not measured
    peaks: list[float] = field(default_factory=list)
    handovers: list[float] = field(default_factory=list)  # ns
    anew: int = 0  # rounds that do not count because they were disturbed
    kept: int = 0  # disturbed rounds that count
    failure: str = ""

    def floor(self, bandwidth: float) -> tuple[float, str]:
        """Return the least seconds of a run and their bound."""
        peak = statistics.median(self.peaks) * self.threads
        return self.count.floor(peak, bandwidth, last_level_cache())


def last_level_cache() -> float:
    """Return bytes of the largest cache of core 0, or 32 MiB if the system does not say."""
    sizes = [32 << 20]
    folder = Path("/sys/devices/system/cpu/cpu0/cache")
    found = [p.read_text().strip() for p in folder.glob("index*/size")]
    sizes = [int(s[:-1]) << {"K": 10, "M": 20}[s[-1]] for s in found] or sizes
    return float(max(sizes))


@dataclass(frozen=True)
class Round:
    """Peak (flop/s), core-to-core latency (ns), and the median seconds of each process."""

    disturbed: float  # time of the `calm` loop before or after the round over its best time, - 1
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

    Disturbed rounds are repeated, at most `ANEW` times the requested number. The least disturbed
    rounds count. `calm` has the times of its loop so far.
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
