"""The page on performance shows the ratios and seconds of the records."""

import math

import pytest

from benchmarks.studies import effective_lines, performance

ROUNDS = {
    ("hmc-small-1", "ribbit"): [1.0, 2.0, 1.0],
    ("hmc-small-1", "jax"): [3.0, 8.0, 4.0],
    ("hmc-small-1", "torch"): [9.0, 9.0, 9.0],
    ("hmc-small-1", "ribbit-avx2"): [2.0, 2.0, 2.0],
    ("sgld", "ribbit"): [1.0],
    ("lenet5", "torch"): [1.0],
}
RECORD = {
    "readings": [
        {"workload": workload, "entry": entry, "rounds": rounds}
        for (workload, entry), rounds in ROUNDS.items()
    ],
    "facts": [
        "Machine: CPU, 2 cores, AVX2, Linux, load 0.1",
        "Versions: jax 1",
        "Date: 2026-01-01",
    ],
}


def test_a_ratio_is_the_median_within_rounds_to_the_best_other_library() -> None:
    (found,) = performance.ratios(RECORD)
    assert (found.workload, found.other) == ("hmc-small-1", "jax")
    assert (found.ratio, found.low, found.high) == (4.0, 3.0, 4.0)


def test_runs_on_a_busy_machine_and_failed_runs_do_not_count() -> None:
    lines = list(effective_lines.read().values())
    found = performance.converged(lines)
    assert found["ribbit HMC"][0] < found["blackjax ChEES"][0] < math.inf
    busy = [line | {"load": [9.0, 9.0]} for line in lines]
    assert performance.converged(busy) == {}


def test_the_page_shows_them(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    lines = list(effective_lines.read().values())
    text = performance.text(RECORD, lines)
    assert "| HMC, 501 weights, 1 chain | 1 s | 4 s (JAX) | **4.0** (3.0 to 4.0) |" in text
    assert "| Ribbit HMC | " in text
    performance.draw(RECORD, lines, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"ratios.png", "convergence.png"}


def test_every_workload_has_a_title() -> None:
    assert set(performance.TITLES) == set(performance.WORKLOADS)
