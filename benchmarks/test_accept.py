"""`benchmarks.accept`, rehearsed: every step, what fails, what hangs, what goes on."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.studies import accept, accept_answers, accept_steps, gpu, gpu_rows
from benchmarks.studies.accept_steps import STEPS, Step


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return accept.read_lines(folder / accept.LINES)


def test_rehearsal(tmp_path: Path) -> None:
    """Every step at a small size: a line each, none failed; a second run finds nothing to do."""
    pytest.importorskip("pybind11")
    names = ("small", "weights", "leapfrog")
    assert accept_answers.carry(tmp_path / accept.CARRIED, names) == 5
    arguments = ["--rehearse", "--inside", "--out", str(tmp_path), "--seconds", "500"]
    assert accept.main(arguments) == 0
    lines = lines_of(tmp_path)
    assert [line["step"] for line in lines] == [step.name for step in STEPS]
    assert [line["step"] for line in lines if line["ok"] is False] == []
    by_name = {line["step"]: line for line in lines}
    for name in names:
        assert by_name[f"answer-{name}"]["numbers"]["bytes that differ"] == 0
    assert all(line["rehearsal"] and line["device"].startswith("none") for line in lines)
    assert accept.main(arguments) == 0
    assert len(lines_of(tmp_path)) == len(lines)


def test_order() -> None:
    """Right before fast, rivals last, and every row of the table is timed."""
    names = [step.name for step in STEPS]
    assert len(set(names)) == len(names)
    assert [step.call for step in STEPS] == sorted(step.call for step in STEPS)
    assert names[0] == "versions"
    assert names[-len(gpu_rows.ROWS) :] == [f"rival-{name}" for name in gpu_rows.ROWS]
    assert {f"row-{name}" for name in gpu_rows.ROWS} <= set(names)


def test_every_part_of_the_tests_is_there() -> None:
    """Files of the parts exist, and one part takes what no other has."""
    for part in accept_steps._PARTS:
        assert next(accept_steps.device_tests(part)(True, Path()))["files"] > 0
    assert accept_steps._PARTS[-1] not in accept_steps._TESTS


def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let steps run a program of the test in the place of their own."""
    path = tmp_path / "child.py"
    path.write_text("import json, os, sys, time\nname = sys.argv[3]\n" + code)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {path} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(accept.sys, "executable", str(python))


def nothing(rehearse: bool, folder: Path) -> Iterator[dict[str, Any]]:
    yield {}


def test_a_step_that_hangs_or_dies_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Limits, exit codes and signals; numbers printed before the end are kept; --retry."""
    child(
        tmp_path,
        monkeypatch,
        "print(json.dumps({'numbers': {'early': 1}}), flush=True)\n"
        "if name == 'hangs':\n"
        "    if os.fork() == 0: time.sleep(100)\n"
        "    time.sleep(100)\n"
        "if name == 'raises': raise ValueError('as planned')\n"
        "if name == 'dies': os.abort()\n"
        "if name == 'leaves':\n"
        "    print(json.dumps({'skipped': 'no tool'})); sys.exit(0)\n"
        "if name == 'heals' and not os.path.exists(sys.argv[4] + '/healed'):\n"
        "    open(sys.argv[4] + '/healed', 'w'); sys.exit(3)\n",
    )
    names = ("hangs", "raises", "dies", "leaves", "heals", "runs")
    steps = tuple(
        Step(name, "planted", 1, 1.0 if name == "hangs" else 20.0, nothing) for name in names
    )
    monkeypatch.setattr(accept, "STEPS", steps)
    arguments = ["--rehearse", "--out", str(tmp_path)]
    begun = time.monotonic()
    assert accept.main(arguments) == 1
    assert time.monotonic() - begun < 30.0
    lines = {line["step"]: line for line in lines_of(tmp_path)}
    assert [lines[name]["ok"] for name in names] == [False, False, False, None, False, True]
    assert all(line["numbers"] == {"early": 1} for line in lines.values())
    assert "no end in 1 s" in lines["hangs"]["error"]
    assert "as planned" in lines["raises"]["error"]
    assert lines["leaves"]["skipped"] == "no tool"
    assert accept.main([*arguments, "--steps", "heals"]) == 1  # it has a line
    assert accept.main([*arguments, "--steps", "heals", "--retry"]) == 0
    assert len(lines_of(tmp_path)) == len(names) + 1
    # what the end of a call cut short is no failure: it has no line, and the next call begins it
    monkeypatch.setattr(accept, "STEPS", (Step("hangs", "planted", 1, 60.0, nothing),))
    late = ["--rehearse", "--out", str(tmp_path / "late")]
    assert accept.main([*late, "--seconds", "6"]) == 1
    assert lines_of(tmp_path / "late") == []
    assert "begins hangs again" in capsys.readouterr().out


def test_a_call_ends_and_the_next_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the seconds of a call no step starts; half a line of one that was killed is none."""
    steps = tuple(Step(name, "planted", 1, 9.0, nothing) for name in "abc")
    monkeypatch.setattr(accept, "STEPS", steps)
    arguments = ["--rehearse", "--inside", "--out", str(tmp_path)]
    assert accept.main([*arguments, "--seconds", "1"]) == 1
    assert lines_of(tmp_path) == []
    assert accept.main([*arguments, "--steps", "a"]) == 0
    with (tmp_path / accept.LINES).open("a") as file:
        file.write('{"step": "b", "ok": tr')
    assert accept.main(arguments) == 0
    assert [line["step"] for line in lines_of(tmp_path)] == ["a", "b", "c"]
    for line in (tmp_path / accept.LINES).read_text().splitlines():
        assert line == '{"step": "b", "ok": tr' or json.loads(line)


def test_wrong_answers_are_found() -> None:
    """Of every tolerance, an error just beyond it; and a single bit."""
    found = accept_answers.answers("small", np)
    assert accept_answers.compare("small", found, found)["bytes that differ"] == 0
    wrong = {key: array.copy() for key, array in found.items()}
    top = np.abs(wrong["grad"]).max()
    wrong["grad"][0, 0] += 3e-5 * top
    with pytest.raises(AssertionError, match="an error of"):
        accept_answers.compare("small", wrong, None)
    wrong["grad"][0, 0] = np.nan
    with pytest.raises(AssertionError, match="not finite"):
        accept_answers.compare("small", wrong, None)
    flipped = {key: array.copy() for key, array in found.items()}
    flipped["grad"].view(np.uint8)[0, 0] ^= 1
    assert accept_answers.compare("small", flipped, found)["bytes that differ"] == 1


def test_no_device(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if gpu.no_device() == "":
        pytest.skip("a device is there")
    assert accept.main(["--call", "1", "--out", str(tmp_path)]) == 1
    assert "no CUDA device" in capsys.readouterr().err
    assert lines_of(tmp_path) == []
