"""What the studies say of what was measured: who is best, what misses, what is no evidence."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
from typing import Any

import numpy as np
import pytest

from benchmarks.harness import machine, profiles
from benchmarks.harness.compare import Comparison, Reading
from benchmarks.harness.framework import OURS
from benchmarks.rivals import OURS_AVX2
from benchmarks.studies import (
    digits,
    effective_lines,
    effective_page,
    ensemble_starts,
    gpu,
    gpu_digest,
    gpu_rows,
    report,
    roofline,
    roofline_parts,
    roofline_rounds,
    scaling,
    scaling_counts,
    shapes,
)
from benchmarks.studies.roofline_counts import Count
from benchmarks.studies.scaling_curves import DRAWS, KINDS, Curve
from benchmarks.workloads import effective_outcome
from benchmarks.workloads.digits import DIGITS, MissingDataError, data_folder
from benchmarks.workloads.shapes import SHAPES
from benchmarks.workloads.table import WORKLOADS

# --- report, shapes -------------------------------------------------------------------------------


def test_avx2_stands_beside_and_is_no_rival() -> None:
    """Faster than every rival, it is not the best of them, and has a column of its own."""
    name = "hmc-small-1"
    times = {OURS: 1e-5, OURS_AVX2.name: 2e-5, "jax": 6e-5, "torch": 9e-5}
    readings = {entry: Reading(entry, name, [t, t, t]) for entry, t in times.items()}
    comparison = Comparison(WORKLOADS[name], 2, readings)
    outcome = report.judge(comparison)
    assert outcome.best is readings["jax"]
    assert outcome.ratio == pytest.approx(6.0)
    assert outcome.met
    tables = report.summary([comparison], [*times, "posteriors"], "", 3, 1.0)[0]
    assert tables[1][1:] == (["workload", *times], [[name, "10 us", "20 us", "60 us", "90 us"]])


@pytest.mark.parametrize("sets", ["AVX-512", "AVX2"])
def test_avx2_is_measured_where_it_is_not_the_same(sets: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(machine, "vector_sets", lambda: sets)
    entries = report.default_entries()
    assert entries[0] == OURS
    assert entries[1:2] == ([OURS_AVX2.name] if sets == "AVX-512" else ["numpy"])


def test_the_named_rival_has_its_ratio_and_its_form() -> None:
    """bbb-seed has a goal against eager PyTorch, whoever is the best."""
    name = "bbb-seed"
    times = {OURS: 1.0, "jax": 4.0, "torch": 10.9}
    readings = {e: Reading(e, name, [t, t], form=f"form of {e}") for e, t in times.items()}
    comparison = Comparison(WORKLOADS[name], 2, readings)
    row = report.ratio_table([comparison])[2][0]
    assert "4.00x, 10.90x torch" in row
    assert "NO" in row
    forms = [[name, entry, f"form of {entry}"] for entry in times]
    assert report.form_table([comparison])[2] == forms
    readings["torch"].rounds = [11.1, 11.1]
    assert "yes" in report.ratio_table([comparison])[2][0]
    readings["jax"].rounds = [12.0, 12.0]  # the best is the named one: once
    assert len(report.form_table([comparison])[2]) == 2


def test_worst_comes_first() -> None:
    names = ("mlp2-w7-n50-c1", "mlp2-w33-n1000-c1", "lenet5-n50")
    comparisons = [
        Comparison(
            SHAPES[name],
            1,
            {
                OURS: Reading(OURS, name, rounds=[1.0, 1.0]),
                "jax": Reading("jax", name, rounds=[ratio, ratio]),
            },
            peaks=[1e12, 1e12],
        )
        for name, ratio in zip(names, (3.0, 0.5, 2.0), strict=True)
    ]
    rows = shapes.table(comparisons, [OURS, "jax"])[2]
    assert [row[-3] for row in rows] == ["0.50x", "2.00x", "3.00x"]
    assert "1 slower" in shapes.outcome_lines(comparisons)[0]


# --- digits ---------------------------------------------------------------------------------------


def test_level_that_is_not_reached_has_no_time() -> None:
    problem = DIGITS["mnist-sgld"]
    run = {"seconds": [1.0, 2.0], "errors": [0.5, problem.level], "compile": 0.0, "form": "x"}
    assert digits.learning_row(problem, "jax", [run])[3] == "3 s"
    short = run | {"errors": [0.5, 0.4]}
    row = digits.learning_row(problem, "jax", [run, short])
    assert (row[3], row[-1]) == ("-", "NOT REACHED: 40.0%")


def test_missing_data_are_said(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("RIBBIT_SHARED_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(MissingDataError, match="RIBBIT_SHARED_DATA"):
        data_folder()
    monkeypatch.setitem(DIGITS, "mnist-bbb", dataclasses.replace(DIGITS["mnist-bbb"]))
    tables, _, notes, _ = digits.measure(["mnist-bbb"], quick=True)
    assert notes == ["Left out: mnist-bbb, no development data (set RIBBIT_SHARED_DATA)"]
    assert not tables


# --- effective ------------------------------------------------------------------------------------


def line(entry: str, seed: int, cost: float | None, **more: Any) -> dict[str, Any]:
    """Return a run as it could be: an answer at `cost` gradients, or none."""
    curve = [[50, 1e3, 0.1, 80.0, 1.2, 0.5], [100, cost or 9e9, 1.0, 500.0, 1.005, 0.4]]
    made = effective_lines.header("bnn", entry, seed)
    made |= {"load": [0.5, 2.0], "cores": 2, "ended": "converged" if cost else "gradients"}
    made |= {"curve": curve if cost else curve[:1], "compile": 0.1, "cpu_seconds": 2.0}
    return made | {"means": [1.0, 2.0], "sds": [1.0, 1.0]} | more


def test_failures_count_as_infinite() -> None:
    """Six of ten: the median is one; four of ten: it is not. The worst is infinite in both."""
    for failures, median in ((6, "never"), (4, "5,000")):
        runs = [line("ribbit HMC", k, None if k < failures else 5e3) for k in range(10)]
        row = effective_page.tables(runs)[0][2][0]
        assert row[1:5] == ["10", f"{10 - failures}/10", median, "never"]


def test_seeds_load_and_code_are_said(monkeypatch: Any) -> None:
    monkeypatch.setattr(effective_lines, "code", lambda: "now")
    runs = [line("ribbit HMC", k, 5e3, code="now", load=[2.0, 2.0 + k]) for k in range(3)]
    row = effective_page.tables(runs)[0][2][0]
    assert (row[1], row[-1]) == ("3 of 10", "loaded 2/3")
    old = effective_page.tables([line("ribbit HMC", 0, 5e3, code="before")])[0][2][0]
    assert old[-1] == "earlier version 1/1"


def test_problems_without_converged_runs_are_listed() -> None:
    """Medians over the seeds of R-hat and E at the end; "none" where the median run has none."""
    none = [[50, 1e3, 0.1, 0.0, None, 0.5]]
    far = [[50, 1e3, 0.1, 20.0, 3.0, 0.5]]
    runs = [line("ribbit HMC", k, None, curve=far) for k in (0, 1)] + [line("ribbit HMC", 2, None)]
    runs.append(line("ribbit NUTS", 0, None, curve=none))
    said = effective_page.page(runs, "-")
    assert "No entry converged" in said
    assert "- bnn: ribbit HMC 3 (20), ribbit NUTS none" in said
    converged = effective_page.page([*runs, line("ribbit HMC", 1, 5e3)], "-")
    assert "No entry converged" not in converged


def test_log_likelihoods_of_classifiers_are_said() -> None:
    """Medians over the seeds of the last quantity; of other problems none."""
    digits = {"problem": "digits-lenet5", "sds": [1.0, 26.0]}
    runs = [line("ribbit HMC", k, None, means=[2.0, -150.0 - k], **digits) for k in range(3)]
    runs.append(line("ribbit NUTS", 0, None, curve=[], means=None, **digits))
    said = effective_page.likelihoods([*runs, line("ribbit HMC", 0, 5e3)])
    expected = "The log likelihood of digits-lenet5's training rows is -151 (sd 26) by ribbit HMC."
    assert " ".join(said.split()) == expected
    assert effective_page.likelihoods([line("ribbit HMC", 0, 5e3)]) == ""


def test_bias_is_held_to_others_that_are_exact() -> None:
    """A mean half an sd off shows; without enough effective samples there is no reference."""
    runs = [line("blackjax NUTS 10", k, 5e3) for k in range(10)]
    biased = [line("ribbit MCLMC", 0, 5e3, means=[1.5, 2.0])]
    groups = effective_page.by_entry(runs + biased, "bnn")
    assert effective_page.squared_bias(groups, "ribbit MCLMC") == pytest.approx(0.125)
    assert effective_page.reference(groups, "blackjax NUTS 10") is None  # nobody else is exact
    few = effective_page.by_entry(runs[:7] + biased, "bnn")
    assert effective_page.reference(few, "ribbit MCLMC") is None


def test_effective_samples_are_arviz() -> None:
    """Bulk, tail, squares and R-hat, of short, odd and antithetic chains too."""
    array_stats = pytest.importorskip("arviz_stats.base").array_stats
    rng = np.random.default_rng(0)
    axes = {"chain_axis": 0, "draw_axis": 1}
    for shape in ((8, 300, 9), (4, 101, 7), (3, 50, 5), (8, 8, 5), (5, 13, 5)):
        x = rng.standard_normal(shape)
        for t in range(1, shape[1]):
            x[:, t] += np.linspace(-0.6, 0.97, shape[2]) * x[:, t - 1]
        squares = (x - x.mean(axis=(0, 1))) ** 2
        kinds = [
            array_stats.ess(x, **axes, method="bulk"),
            array_stats.ess(x, **axes, method="tail", prob=(0.05, 0.95)),
            array_stats.ess(squares, **axes, method="mean"),
        ]
        np.testing.assert_allclose(effective_outcome.least_ess(x), np.min(kinds, axis=0), 1e-10)
        np.testing.assert_allclose(effective_outcome.rhat(x), array_stats.rhat(x, **axes), 1e-10)


def test_no_outcome_of_chains_that_disagree() -> None:
    x = np.random.default_rng(1).standard_normal((8, 400, 3))
    assert effective_outcome.holds(*effective_outcome.judge(x))
    assert not effective_outcome.holds(*effective_outcome.judge(x + np.arange(8.0)[:, None, None]))
    assert effective_outcome.judge(x * np.nan) == (0.0, float("inf"))


# --- scaling --------------------------------------------------------------------------------------


def power(name: str, exponent: float, begin: int = 0) -> Curve:
    """Return a power law with something else below `begin`."""
    sizes = [2**k for k in range(8)]
    return Curve(name, sizes, [n**exponent if n >= begin else 7.0 for n in sizes], begin)


def curves(exponent: float, speed: float, bytes_per_draw: float) -> scaling.Measured:
    """Return a run as it could be found."""
    memory = [
        Curve(name, DRAWS, [1.0 + n * size * 1e-6 for n in DRAWS])
        for name, size in zip(KINDS.values(), (10_000.0, bytes_per_draw, 0.0), strict=True)
    ]
    chains = Curve("2 threads", [2**k for k in range(7)], [speed] * 7)
    threads = [Curve("chains", [1, 2], [1.0, speed])]
    line = [power("a", exponent, 4)]
    return scaling.Measured(line, line, [power("1 thread", 1.0)], chains, threads, line, memory)


def test_exponents_are_fitted_from_where_they_begin() -> None:
    assert power("all", 1.3).exponent == pytest.approx(1.3)
    assert power("part", 0.7, 8).exponent == pytest.approx(0.7)
    whole = dataclasses.replace(power("part", 0.7, 8), begin=0)
    assert abs(whole.exponent - 0.7) > 0.05


def test_what_misses_is_said(monkeypatch: Any) -> None:
    monkeypatch.setattr(machine, "cores", lambda: [0, 1])
    right = scaling.statements(curves(1.0, 1.95, 50.0))
    assert [row[-1] for row in right] == ["yes", "yes", "yes", "yes", "-", "yes", "yes"]
    assert [row[2] for row in right] == ["1.000", "1.000", "1.95x", "1.95x", "10,000", "50", "0"]
    wrong = scaling.statements(curves(1.06, 1.89, 101.0))
    assert [row[-1] for row in wrong] == ["NO", "NO", "NO", "NO", "-", "NO", "yes"]
    # An exponent that bytes explain is said to be so; one that they do not is a miss.
    grows = power("wide", 1.1)
    grows.counted = power("by count", 1.08).values
    other = dataclasses.replace(grows, counted=power("by count", 1.02).values)
    rows = scaling.statements(scaling.Measured(parameters=[grows, other]))
    assert [row[-1] for row in rows] == ["yes, by count", "NO"]
    assert rows[0][3] == "0.95-1.05, or by count 1.080 +- 0.05"


def test_time_by_count_grows_where_the_weights_leave_a_cache() -> None:
    speeds = {"second level": 100e9, "last level": 40e9, "memory": 10e9}
    made = [
        scaling_counts.counted_seconds((64, 2**k, 10), 1024, 1e11, speeds, (2**20, 2**25))
        for k in range(9, 17)
    ]
    steps = [b / a for a, b in itertools.pairwise(made)]
    assert max(steps) == steps[5]  # 2^14 to 2^15 units: 27 to 53 MB
    assert steps[5] > 2.4
    small = scaling_counts.traffic((3, 5, 1), 128)
    # 26 weights, 20 of the first layer: a group reads 26 and 6, a block reads and writes 26.
    assert small.bytes == 4 * (26 + 6 + 2 * 26) + 4 * 128 * (5 * 8 + 4)
    assert small.flops == 2 * 128 * (2 * 15 + 3 * 5) + 2 * 128 * (3 * 5 + 20)


# --- roofline -------------------------------------------------------------------------------------


LIBRARY = "_core.cpython-311-x86_64-linux-gnu.so"
INNER = "ribbit::cpu::(anonymous namespace)"
REPORT = f"""
# Samples: 10
     6;{LIBRARY};[.] {INNER}::lanes<float, 4>;-      -
     2;{LIBRARY};[.] {INNER}::lanes<float, 8>;-      -
     1;{LIBRARY};[.] ribbit::cpu::Team::barrier;-      -
     1;[kernel.kallsyms];[k] _raw_spin_lock;-      -
"""


def test_profile_is_read() -> None:
    costs, samples = profiles.shares(REPORT)
    assert samples == 10
    assert costs == [
        ("lanes", pytest.approx(0.8)),
        ("Team::barrier", pytest.approx(0.1)),
        ("the kernel", pytest.approx(0.1)),
    ]


class _Child:
    """A process whose loop takes the times given, and whose work takes ten times as long."""

    def __init__(self, calm: list[float]) -> None:
        self.calm, self.last = calm, 0.0

    def ask(self, what: str, **how: float) -> dict[str, Any]:
        if what == "calm":
            self.last = self.calm.pop(0)
            return {"seconds": self.last}
        return {"flops": 1e10, "handover": 30.0, "seconds": [10.0 * self.last]}


@pytest.mark.parametrize(
    ("calm", "seconds", "anew", "kept"),
    [
        ([1.0, 1.01, 1.1, 1.0, 1.02, 1.0], [10.0, 10.2], 1, 0),  # the second round does not count
        ([1.0, 1.01, 1.0, 1.1, 1.0, 1.2, *[1.3, 1.3] * 3], [10.0, 10.0], 4, 1),  # nor better ones
    ],
)
def test_rounds_beside_others_are_made_anew(
    calm: list[float], seconds: list[float], anew: int, kept: int
) -> None:
    row = roofline_rounds.Row(WORKLOADS["sgld"], 2, Count(flops=4e9, slots=5e8))
    pairs: Any = [(_Child(calm), row.widest)]
    roofline_rounds.take_turns(row, pairs, 2, 0.1, 0.0, lambda _: None, False, [])
    assert (row.widest.seconds, row.anew, row.kept) == (seconds, anew, kept)
    assert not calm


def test_parts_of_a_time() -> None:
    costs = [("multiply", 0.5), ("activation_loop", 0.2), ("Team::meet", 0.2), ("libpython3", 0.1)]
    found = roofline_parts.parts(costs, 0.5)
    assert found == roofline_parts.Parts(0.25, 0.1, pytest.approx(0.6), 0.05)
    row = roofline_rounds.Row(WORKLOADS["sgld"], 2, Count(flops=4e9, slots=5e8), peaks=[1e10])
    times = roofline_rounds.Times([1.0], costs, running=1.0)
    # 4e9 flops are 0.2 s of two threads at 1e10, in a quarter of 1 s; 5e8 slots 0.05 s in a tenth.
    assert roofline.part_cells(row, times) == ["25%", "80%", "10%", "50%", "60%", "5%"]


def test_kernels_of_the_parts_are_in_the_core() -> None:
    folder = machine.ROOT / "cpp" / "cpu"
    files = [path for path in folder.rglob("*") if path.suffix in (".h", ".cpp")]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in files)
    assert roofline_parts.missing(sources) == []
    renamed = sources.replace("outer_columns", "columns")
    assert roofline_parts.missing(renamed) == ["outer_columns"]


# --- gpu ------------------------------------------------------------------------------------------


def test_floors():
    ceilings = {"copy_bytes_per_s": 4e12, "matmul_float32_flop_per_s": 5e13}
    update = gpu_rows.ROWS["leapfrog-update"].floor(ceilings)
    assert update == pytest.approx(20 * 100 * 478_410 / 4e12)
    assert gpu_rows.ROWS["resnet20"].floor({}) is None
    tf32 = ceilings | {"matmul_tf32_flop_per_s": 3e14}
    forward = [gpu_rows.ROWS[f"mc-forward{kind}"].floor(tf32) for kind in ("", "-3xtf32", "-tf32")]
    assert forward[0] == pytest.approx(2e7 * (784 * 400 + 400 * 400 + 400 * 10) / 5e13)
    assert forward[1] == pytest.approx(3 * forward[2])
    assert forward[2] == pytest.approx(forward[0] / 6)


def test_table():
    row = {"name": "x", "seconds": 2e-3, "floor": 1e-3, "target": "fast", "rivals": {}}
    failed = row | {"rivals": {"jax": "RuntimeError: no device"}}
    both = row | {"rivals": {"jax": 9e-3, "torch": 8e-3}}
    lines = gpu.table([row, failed, both]).splitlines()
    assert "50%" in lines[2]
    assert lines[3] == lines[2]
    assert "| torch 8.000 ms | 4.00x |" in lines[4]


@pytest.mark.parametrize(
    ("code", "out"),
    [
        (3, "INTERNALERROR> crash"),
        (1, ""),  # pytest is not installed
        (5, "no tests ran"),
        (0, "12 skipped, 900 deselected in 3 s"),
        (0, "SKIPPED [3] tests/conftest.py:50: no CUDA device\n9 passed, 3 skipped in 3 s"),
        (0, "SKIPPED [3] tests/conftest.py:48: could not import 'cupy': x\n9 passed, 3 skipped"),
        (2, "9 passed in 3 s\n!!! KeyboardInterrupt !!!"),
    ],
)
def test_tests_that_did_not_run_are_no_evidence(monkeypatch, capsys, code, out):
    done = subprocess.CompletedProcess([], code, out, "what went wrong")
    monkeypatch.setattr(gpu.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(SystemExit, match="expected the tests to run on a device, got exit status"):
        gpu.run_tests()
    assert "what went wrong" in capsys.readouterr().err


def test_tests_that_ran(monkeypatch):
    """The control: passed, and passed or failed, are evidence."""
    out = "FAILED tests/test_a.py::test_b - x\nSKIPPED [1] tests/a.py:1: slow\n1 failed, 9 passed"
    done = subprocess.CompletedProcess([], 1, out, "")
    monkeypatch.setattr(gpu.subprocess, "run", lambda *_, **__: done)
    found = gpu.run_tests()
    assert found["failed"] == ["tests/test_a.py::test_b"]
    assert found["counts"] == {"failed": 1, "passed": 9}
    assert found["returncode"] == 1


def test_without_a_device(monkeypatch, capsys):
    """One line, and nothing is run."""
    monkeypatch.setattr(gpu, "device_status", lambda: "cudaErrorNoDevice")
    assert gpu.main([]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "no CUDA device (cudaErrorNoDevice): --rehearse runs the rows on the CPU\n"
    )


def test_evidence_is_of_these_sources(tmp_path, monkeypatch):
    """Whatever is committed is told as verified or as changed since; numbers need a file."""
    assert all(any(gpu_digest.ROOT.glob(pattern)) for pattern in gpu_digest.SOURCES)
    lines = gpu_digest.outcomes()
    assert all("verified at" in line or "changed since" in line for line in lines) or lines == [
        "no device has run these sources yet"
    ]
    folder = tmp_path / "benchmarks" / "evidence" / "gpu"
    folder.mkdir(parents=True)
    facts = {"device": {"name": "A"}, "date": "2026-01-01", "commit": "0123456789abc"}
    monkeypatch.setattr(gpu_digest, "ROOT", tmp_path)
    (tmp_path / "cpp" / "cuda" / "kernels").mkdir(parents=True)
    source = tmp_path / "cpp" / "cuda" / "kernels" / "a.h"
    source.write_text("1")
    (folder / "a.json").write_text(json.dumps(facts | {"digest": gpu_digest.digest()}))
    assert gpu_digest.outcomes() == ["A, 2026-01-01: verified at 0123456789"]
    source.write_text("2")
    assert gpu_digest.outcomes() == ["A, 2026-01-01: changed since 0123456789"]


# --- ensemble starts ------------------------------------------------------------------------------


def starts_lines(
    nlls: dict[str, dict[int, list[float]]],
) -> dict[ensemble_starts.Key, effective_lines.Line]:
    """Lines of wine by the NLLs of each part, split and seed."""
    return {
        ("wine", split, part, seed): {
            "starts": 1.0,
            "everything": 2.0,
            "nll": nll,
            "seed": seed,
            "seconds": 3.0,
            "load": [0.0, 0.0],
            "cores": 2,
            "gradients": ensemble_starts.CHAINS * ensemble_starts.STEPS,
            "far below": "",
        }
        for part, splits in nlls.items()
        for split, found in splits.items()
        for seed, nll in enumerate(found)
    }


def test_ensemble_starts_tells_the_error_over_seeds() -> None:
    """By hand: differences 0.1, 0.3 and 0.0, 0.2, 0.4; variances 0.02 and 0.04, pooled 0.1 / 3."""
    lines = starts_lines(
        {
            "mclmc": {0: [0.6, 0.7], 1: [0.8, 1.0, 1.2]},
            "hmc": {0: [0.5, 0.4, 0.1], 1: [0.8, 0.8, 0.8]},
        }
    )
    (row,) = ensemble_starts.means(lines)[2]
    error = (0.1 / 3 * (1 / 2 + 1 / 3) / 4) ** 0.5  # the third seed of the first split has no pair
    assert row[-4] == f"+0.200 +- {error:.3f} (2 splits, seeds: 2-3)"
    assert (row[1], row[4]) == ("2 splits, seeds: 2-3", "0.825")


def test_ensemble_starts_compares_a_seed_with_itself() -> None:
    """One seed says nothing of the spread; what the other part lacks does not count."""
    mclmc = {0: [0.6, 0.7], 1: [0.8, 1.0]}
    lines = starts_lines({"mclmc": mclmc, "hmc": {0: [0.5]}, "hmc-default": {1: [0.4]}})
    (row,) = ensemble_starts.means(lines)[2]
    assert row[-4:] == ["+0.100 (1 split, seeds: 1)", "+0.400 (1 split, seeds: 1)", "-", "-"]
    mixed = starts_lines({"mclmc": mclmc, "hmc": {0: [0.5]}, "mclmc-layers": {0: [0.3]}})
    (row,) = ensemble_starts.means(mixed)[2]
    assert row[-2:] == ["-0.300 (1 split, seeds: 1)", "-0.200 (1 split, seeds: 1)"]
    assert ensemble_starts.means(starts_lines({"mclmc": {0: [0.6]}}))[2][0][-4:] == 4 * ["-"]


def test_ensemble_starts_shows_floors_in_a_table_of_their_own() -> None:
    """By hand; splits that one part alone has are shown, and no difference is made of them."""
    lines = starts_lines({"floor": {0: [0.1, 0.3], 2: [0.5]}, "floor-layers": {0: [0.4, 0.4]}})
    lines |= starts_lines({"small-floor-layers": {1: [0.7]}})
    row, small = ensemble_starts.floors(lines)[2]
    assert row[:5] == ["wine", "0.05", "0, 2", "0.200, 0.500", "0.400, nan"]
    assert row[5].startswith("-0.200 +- 0.100 (1 split")
    assert small == ["wine", "0.01", "1", "nan", "0.700", "-"]
    assert ensemble_starts.table(lines)[2] == []
    assert ensemble_starts.floors(starts_lines({"mclmc": {0: [0.6]}}))[2] == []


def test_ensemble_starts_shows_every_line() -> None:
    """A seed that one part alone has is in the table, since it is in the means."""
    lines = starts_lines({"mclmc": {0: [0.6]}, "mclmc-layers": {0: [0.3]}, "hmc": {0: [0.5, 0.4]}})
    _, head, rows = ensemble_starts.table(lines)
    assert [row[:3] for row in rows] == [["wine", "0", "0"], ["wine", "0", "1"]]
    assert rows[0][9:11] == ["0.300", "3.0"]
    assert rows[1][3:12] == [*8 * ["-"], "0.400"]
    assert {len(row) for row in rows} == {len(head)}
