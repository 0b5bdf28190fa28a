"""`tools.walk`: what it counts, and that counts repeat whatever the clock says."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tools import walk

FOLDER = str(Path(__file__).parent)


def _numbers():
    yield 1
    yield 2


def _three():
    return sum([number + 1 for number in _numbers()])


def test_what_is_counted() -> None:
    """One function, and a generator that goes on twice; of other folders nothing."""
    assert walk.walked(_three, FOLDER) == {"calls": 4, "files": 1}
    assert walk.walked(_three, str(ROOT / "python")) == {"calls": 0, "files": 0}


@pytest.fixture(scope="module")
def found() -> dict:
    return walk.counted()


def test_counts_are_the_same_in_another_process(
    found: dict, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in one that ignores Ctrl-C, as a shell starts processes in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert walk.main(["--json"]) == 0
    finally:
        signal.signal(signal.SIGINT, before)
    assert json.loads(capsys.readouterr().out) == found
    for name, row in found["calls"].items():
        assert row["calls"] > row["files"] > 0
        assert any(line.startswith(name) for line in walk.table(found))


def test_the_clock_would_change_counts(found: dict) -> None:
    """The control: between two looks at the clock passes a second, and native calls end at once."""
    code = "import itertools, json; from tools import walk; seconds = itertools.count()\n"
    code += "walk._now = lambda: float(next(seconds)); walk._NO_LIMIT = 1e-6\n"
    code += "print(json.dumps(walk.count()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    calls = json.loads(done.stdout)
    for name in ("HMC.sample(100, warmup=100)", "SGLD.sample(1000)"):
        assert calls[name]["calls"] > 2 * found["calls"][name]["calls"]


def test_an_error_of_the_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk.machine, "ROOT", Path(FOLDER))
    with pytest.raises(RuntimeError, match=r"^\[walk\] the process that counts failed:\n.*tools"):
        walk.counted()
