"""`python -m studies.izmailov`: predicates on planted numbers, a whole tiny run, a kill."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from studies.izmailov import cost, figures, page, problems, shift
from studies.izmailov.command import main
from studies.izmailov.outcomes import NO, UNKNOWN, YES, Outcome, above, every, interval, within
from studies.izmailov.record import judged, make
from studies.izmailov.sizes import PAPER, SIZES, TEST
from studies.izmailov.study import Study, Task
from tests.structure.graph import circles, imports, modules
from tests.support.paths import ROOT

pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.RibbitWarning")  # tiny runs


def test_interval_is_students():
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.303 / np.sqrt(3))  # sd 1, two degrees of freedom
    assert interval([1.0])[1] == np.inf
    with pytest.raises(ValueError, match="finite"):
        interval([1.0, np.nan])


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.5, 0.51, 0.52], YES), ([-0.5, -0.51, -0.52], NO), ([-1.0, 0.0, 1.2], UNKNOWN)],
)
def test_above(values, expected):
    assert above("x", values, 0.0).status == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.01, -0.01, 0.0], YES), ([0.9, 0.91, 0.92], NO), ([-0.9, -0.91, -0.92], NO)],
)
def test_within(values, expected):
    assert within("x", values, 0.1).status == expected
    assert within("x", [0.0, 0.3, -0.3], 0.1).status == UNKNOWN


def test_every_takes_the_worst():
    yes, no, unknown = (Outcome(status, "") for status in (YES, NO, UNKNOWN))
    assert every([yes, yes]).status == YES
    assert every([yes, unknown]).status == UNKNOWN
    assert every([unknown, no]).status == NO


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A tiny run of all figures: its folder."""
    folder = tmp_path_factory.mktemp("izmailov")
    assert main(["--size", "test", "--folder", str(folder), "--out", str(folder / "out")]) == 0
    return folder


def answers(folder: Path) -> dict:
    """What the figures say, without what depends on the clock."""
    found = {path.stem: json.loads(path.read_text()) for path in (folder / "out").glob("*.json")}
    return {n: {k: v for k, v in r.items() if k != "seconds"} for n, r in found.items()}


def test_a_whole_run_has_every_figure(whole):
    found = answers(whole)
    assert set(found) == set(figures.NAMES)
    for result in found.values():
        assert all(one["outcome"] in (YES, NO, UNKNOWN) for one in result["claims"])
        assert all(len(row) == len(result["head"]) for row in result["rows"])
    assert not list((whole / "test-small-digits" / "chains").iterdir())


def test_what_is_done_is_not_done_again(whole, monkeypatch):
    def refuse(*_):
        raise AssertionError("made again")

    before = answers(whole)
    monkeypatch.setattr("studies.izmailov.study.write_arrays", refuse)
    arguments = ["--size", "test", "--folder", str(whole), "--out", str(whole / "out")]
    assert main(arguments) == 0
    assert answers(whole) == before


def test_every_figure_draws_and_the_page_fits(whole):
    found = {
        name: json.loads((whole / "out" / f"{name}.json").read_text()) for name in answers(whole)
    }
    for name, result in found.items():
        assert figures.module(name).draw(result["numbers"]).axes
    lines = page.text(found).splitlines()
    assert [line for line in lines if len(line) > 100 and not line.startswith("|")] == []


def test_committed_results_are_those_of_the_page():
    committed = {p.stem: json.loads(p.read_text()) for p in page.RESULTS.glob("*.json")}
    assert set(committed) == set(figures.NAMES)
    ordered = {name: committed[name] for name in figures.NAMES if name in committed}
    assert page.text(ordered) == page.PAGE.read_text()
    for name, result in ordered.items():
        assert judged(figures.module(name), result["numbers"]) == result["claims"]


KILLED = ("rhat", "methods", "temperature")  # chains of both kinds, and fits


def test_a_killed_run_goes_on_to_the_same_bits(whole, tmp_path):
    command = [sys.executable, "-m", "studies.izmailov", "--size", "test", "--folder"]
    command += [str(tmp_path), "--out", str(tmp_path / "out"), "--figure", *KILLED]
    run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    chains = tmp_path / "test-small-digits" / "chains"
    kept = tmp_path / "test-small-digits" / "kept"
    while not (len(list(kept.glob("*.npz"))) >= 3 and list(chains.glob("*/state"))):
        assert run.poll() is None, "it ended before it was killed"
        time.sleep(0.001)
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    done = {path: path.stat().st_mtime_ns for path in kept.glob("*.npz")}
    assert len(done) < 20
    assert not (tmp_path / "out" / f"{KILLED[-1]}.json").exists()
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True, env=os.environ)
    assert {path: path.stat().st_mtime_ns for path in done} == done  # nothing was made again
    assert answers(tmp_path) == {name: answers(whole)[name] for name in KILLED}


def test_a_task_that_fails_keeps_nothing(tmp_path):
    study = Study(TEST, tmp_path, log=lambda _: None)

    def fail(_):
        raise RuntimeError("no")

    task = Task("a", {"x": 1}, 1.0, fail)
    with pytest.raises(RuntimeError, match="no"):
        study.found(task)
    assert not study.done(task)
    assert Task("a", {"x": 2}, 1.0, fail).key != task.key


def test_the_size_paper_constructs_and_says_what_is_missing(tmp_path, capsys):
    arguments = ["--size", "paper", "--folder", str(tmp_path), "--figure", "rhat"]
    assert main([*arguments, "--data-folder", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert "This needs a GPU or a cluster" in out
    assert err.count("\n") == 1
    assert "cifar10.npz" in err
    study = Study(PAPER, tmp_path)
    assert study.model().output_shape == (10,)
    assert PAPER.quarter_turn / PAPER.hmc["step_size"] == pytest.approx(70_248, abs=1)
    texts = Study(PAPER, tmp_path, data="imdb")
    assert texts.model().input_shape == (100,)
    assert not texts.images


@pytest.mark.parametrize("kind", list(shift.CORRUPTIONS))
def test_corruptions_grow_and_repeat(kind):
    x = problems.digits()[0][:200]
    away = [np.abs(shift.corrupt(x, kind, s) - x).mean() for s in (1, 2, 3, 4, 5)]
    assert away == sorted(away)
    assert away[0] > 0
    once, again = shift.corrupt(x, kind, 3), shift.corrupt(x, kind, 3)
    np.testing.assert_array_equal(once, again)
    assert once.min() >= 0
    assert once.max() <= 1


def test_splits_share_no_row():
    split = problems.load("digits", 500, 1297, 0, Path())
    rows = {row.tobytes() for row in split.x}
    assert len(split.x) + len(split.x_test) == 1797
    assert sum(row.tobytes() in rows for row in split.x_test) < 5  # equal images, not equal rows


def test_costs_count_what_is_missing(whole, tmp_path):
    fresh = cost.lines(Study(TEST, tmp_path), ["rhat"])
    assert re.search(r"rhat: 2 runs, [1-9]", "\n".join(fresh))
    assert "rhat: 0 runs" in "\n".join(cost.lines(Study(TEST, whole), ["rhat"]))


def test_numbers_do_not_depend_on_the_folder(whole, tmp_path):
    again = make(Study(TEST, tmp_path, log=lambda _: None), "rhat")
    assert again["numbers"] == answers(whole)["rhat"]["numbers"]


def test_no_file_imports_in_a_circle():
    names = set(modules(ROOT / "studies", "studies"))
    edges = {name: set() for name in names}
    for one in imports(ROOT / "studies", "studies"):
        assert one.target.partition(".")[0] not in ("tests", "benchmarks", "tools")
        if one.target in names and one.target != one.source:
            edges[one.source].add(one.target)
    assert circles(edges) == []


def test_sizes_are_whole():
    for size in SIZES.values():
        assert size.counts[-1] == size.draws
        assert 1.0 in size.lengths
        assert 1.0 in size.temperatures
        assert 1.0 in size.scales
