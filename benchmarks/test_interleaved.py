"""`benchmarks.interleaved`: its result, the order of its times, and the packages that it times.

Times are made by a clock that the test controls, with noise of fixed seeds, so that no load of the
machine can change a result: no test fails by chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ribbit
from benchmarks import interleaved

PACKAGE = Path(ribbit.__file__).resolve().parent
WORKLOAD = "BBB.fit(10)"

# Imported by Python when a process starts. A fit takes 60 ms with 2 % of noise, then sleeps.
SLEEPY = """
import random, time, ribbit

noise, now, fit = random.Random({seed}), 0.0, ribbit.BBB.fit

def sleep(seconds):
    global now
    now += seconds

def slower(*args, **kwargs):
    found = fit(*args, **kwargs)
    seconds = 0.06 * noise.lognormvariate(0.0, 0.02)
    sleep(seconds)
    sleep({share} * seconds)
    return found

ribbit.BBB.fit, time.perf_counter = slower, lambda: now
"""


@pytest.fixture
def installations(tmp_path: Path) -> Iterator[Any]:
    """Return a function that makes an installation whose fit sleeps for a share of its time."""

    def made(seed: int, share: float) -> str:
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / "ribbit").symlink_to(PACKAGE)
        (folder / "sitecustomize.py").write_text(SLEEPY.format(seed=seed, share=share))
        return str(folder)

    return made


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the printed rows."""
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith(WORKLOAD)]


def test_a_sleep_of_ten_percent_is_found(
    installations: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A is also no slower than itself, nor than an installation that sleeps."""
    a, same, sleepy = installations(1, 0.0), installations(2, 0.0), installations(3, 0.1)
    for b, other, status, result, times in (
        (a, same, 0, "no slower", 1),
        (a, sleepy, 1, "slower", 2),
        (sleepy, a, 0, "no slower", 1),
    ):
        assert interleaved.main([b, other, "--workloads", WORKLOAD]) == status
        rows = lines(capsys)
        assert len(rows) == times
        assert {row.rpartition("  ")[2] for row in rows} == {result}
    ratio = float(rows[0].split()[3])
    assert 1.0 / 1.12 < ratio < 1.0 / 1.08


def test_installed_ribbit_against_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """The real clock runs, so both answers are right on a busy machine; the table is checked."""
    folder = str(PACKAGE.parent)
    arguments = [folder, folder, "--pairs", "2", "--seconds", "0.001", "--processor"]
    names = ["Posterior(...)", WORKLOAD, "mlp BBB.fit"]
    assert interleaved.main([*arguments, "--workloads", *names]) in (0, 1)
    printed = capsys.readouterr().out
    assert all(name in printed for name in names)


def test_result() -> None:
    """The interval decides: the median alone may lie above the limit."""
    noise = np.random.default_rng(1).normal(0.0, 1.0, 31)
    noise -= np.median(noise)
    for ratio, spread, slower in (
        (1.0, 0.01, False),
        (0.9, 0.01, False),
        (1.03, 0.05, False),
        (1.03, 0.001, True),
        (float("nan"), 0.01, True),
    ):
        found = interleaved.compare([(2.0, 2.0 * ratio * np.exp(spread * x)) for x in noise])
        assert found.slower == slower
        assert found.a == 2.0
        if ratio == ratio:
            assert found.low <= found.ratio <= found.high
            assert abs(found.ratio - ratio) < 2.0 * spread


def test_the_order_alternates_and_processes_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each starts once, times A B B A, and ends; an error of one is raised and ends both."""
    told: list[str] = []

    class Child:
        def __init__(self, entry: Any, threads: int) -> None:
            self.name = entry
            told.append(f"start {entry}")

        def prepare(self, workload: Any) -> dict[str, Any]:
            return {"error": "no"} if workload.name == "broken" else {}

        def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
            told.append(self.name)
            return {"seconds": [3.0 if self.name == "B" else 2.0]}

        def close(self) -> None:
            told.append(f"end {self.name}")

    monkeypatch.setattr(interleaved, "Process", Child)
    entries: Any = ("A", "B")
    found = interleaved.measure(interleaved.SmallCall("any"), entries, 4, 1.0)
    assert " ".join(told) == "start A start B A B B A A B B A end A end B"
    assert (found.a, found.b, found.ratio, found.low) == (2.0, 3.0, 1.5, 1.5)
    told.clear()
    with pytest.raises(RuntimeError, match=r"^\[interleaved\] A failed: no$"):
        interleaved.measure(interleaved.SmallCall("broken"), entries, 4, 1.0)
    assert told == ["start A", "start B", "end A", "end B"]


def test_a_folder_without_ribbit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^\[interleaved\] B must be a folder with a built ribbit"
    ):
        interleaved.main([str(PACKAGE.parent), str(tmp_path)])
