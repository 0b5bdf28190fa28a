"""One run of each command, at its smallest: it ends well, and its page has what was measured."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.harness import machine, pages
from benchmarks.harness.compare import Comparison
from benchmarks.harness.framework import OURS
from benchmarks.harness.stopping import until_stopped
from benchmarks.studies import (
    busy,
    effective_lines,
    gpu_rows,
    scaling,
    scaling_curves,
    sklearn_defaults,
)
from benchmarks.studies.report import default_entries, less
from benchmarks.studies.scaling_curves import DRAWS, KINDS, Curve
from benchmarks.workloads.table import WORKLOADS
from ribbit._arrays.threads import num_threads, set_num_threads


def run(command: str, *arguments: str) -> int:
    """``python -m benchmarks.COMMAND ARGUMENTS``, in this process."""
    status: int = importlib.import_module(f"benchmarks.{command}").main(list(arguments))
    return status


@pytest.mark.parametrize("command", ["accept", "gpu", "paper"])
def test_a_command_runs_by_its_path(command: str) -> None:
    file = machine.ROOT / "benchmarks" / f"{command}.py"
    done = subprocess.run([sys.executable, file, "--help"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: python -m benchmarks.{command} ")


def test_report(tmp_path: Path) -> None:
    page, readings = tmp_path / "benchmarks.md", tmp_path / "readings.json"
    arguments = ["--workloads", "hmc-small-1", "--entries", OURS, "numpy", "--quick", "--rounds"]
    arguments += ["1", "--write", str(page), "--json", str(readings)]
    assert run("report", *arguments) == 0
    assert "| hmc-small-1 | leapfrog and chain | " in page.read_text()
    assert "hmc-small-1" in readings.read_text()
    section = f"## {pages.OVERHEAD}\n\nof another command\n"
    page.write_text(f"# Benchmarks\n\n{section}")
    assert run("report", *arguments) == 0
    assert page.read_text().endswith(f"|\n\n{section}")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_report_that_is_stopped_prints_its_rows(number: signal.Signals, status: int) -> None:
    command = [sys.executable, "-m", "benchmarks.report", "--quick", "--rounds", "1"]
    command += ["--workloads", "normals", "hmc-small-1", "--entries", OURS]
    with subprocess.Popen(
        command,
        cwd=machine.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell runs in the background ignores SIGINT, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stderr is not None
        assert any("hmc-small-1: reference" in line for line in process.stderr)
        process.send_signal(number)
        out, _ = process.communicate()
    assert process.returncode == status
    first = {line.split()[0] for line in out.splitlines() if line.strip()}
    assert "normals" in first
    assert "hmc-small-1" not in first  # which it had not come to


def test_what_follows_a_stop_runs_and_an_error_is_no_stop() -> None:
    rows = []
    before = signal.getsignal(signal.SIGTERM)
    with until_stopped() as stop:
        rows.append("measured")
        signal.raise_signal(signal.SIGTERM)
        rows.append("never")
    assert (rows, stop.status, signal.getsignal(signal.SIGTERM)) == (["measured"], 143, before)
    with pytest.raises(ZeroDivisionError), until_stopped() as stop:
        rows.append(str(1 // 0))
    with until_stopped() as stop:
        rows.append("again")
    assert (rows, stop.status) == (["measured", "again"], 0)


def test_quick_leaves_out_what_compiles_for_minutes_and_says_what_has_fewer_rows() -> None:
    assert "torch-compile" not in default_entries(quick=True)
    assert OURS in default_entries(quick=True)
    names = ("lenet5", "sgld", "mc-dropout", "first-draw")
    made = [Comparison(WORKLOADS[name].quick, 1, {}) for name in names]
    assert less(made) == [
        "Fewer rows: lenet5 has 512 in place of 2,048",
        "Fewer rows: mc-dropout has 1,000 in place of 10,000",
        "Fewer rounds: first-draw has 1",
    ]


def test_embedding(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    page = tmp_path / "benchmarks.md"
    page.write_text("# Benchmarks\n\nthe rest\n")
    arguments = ["--networks", "31 parameters, 10 rows", "--rounds", "1", "--write", str(page)]
    for _ in range(2):  # 1 says that a goal was missed, as it may be beside other work
        assert run("embedding", *arguments) in (0, 1)
    text = page.read_text()
    assert text.startswith(f"# Benchmarks\n\nthe rest\n\n## {pages.OVERHEAD}\n")
    assert text.count("| 31 parameters, 10 rows | ") == 13


def test_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "shapes.md"
    arguments = ["--shapes", "mlp2-w7-n50-c1", "--entries", OURS, "numpy", "--rounds", "1"]
    assert run("shapes", *arguments, "--threads", "1", "--write", str(page)) == 0
    text = page.read_text()
    for what in ("| 8-7-7-1 | 50 | 1 |", "1 shapes, ", "1 rounds", "Threads of every entry: 1"):
        assert what in text
    assert "1 shapes, " in capsys.readouterr().out


def test_roofline(tmp_path: Path) -> None:
    page = tmp_path / "roofline.md"
    names = ["normals", "mlp SGLD.sample"]
    arguments = ["--quick", "--threads", "1", "--write", str(page)]
    assert run("roofline", "--workloads", *names, *arguments) == 0
    text = page.read_text()
    assert "| ribbit | share | on AVX2 | share |" in text
    assert re.search(r"\| normals \| normal \| 1 \| [012] of 2 \| - \| 0 flop \| 28.5 \|", text)
    assert re.search(
        r"\| mlp SGLD.sample \| draw and chain \| 1 \| [012] of 2 \| - \| 243 kflop \|",
        text.split("## Whole public")[1],
    )


def test_executors(capsys: pytest.CaptureFixture[str]) -> None:
    threads = num_threads()
    try:
        assert run("executors", "--of", "small", "--times", "1") == 0
    finally:
        set_num_threads(threads)
    assert "| small | " in capsys.readouterr().out


def test_effective(tmp_path: Path) -> None:
    """Ribbit alone, stopped early: a line for each, and the page of them."""
    page = tmp_path / "effective.md"
    assert run("effective", "--quick", "--write", str(page)) == 0
    assert "| ribbit HMC | 1 of 10 | " in page.read_text()
    assert "| ribbit MCLMC | 1 of 10 | " in page.read_text()


def test_effective_goes_on_from_its_lines(tmp_path: Path) -> None:
    """What is there is not run again; its page and picture are written from the file."""
    path, page = tmp_path / "lines.jsonl", tmp_path / "effective.md"
    line = effective_lines.header("bnn-normal", "ribbit HMC", 0)
    line |= {"ended": "converged", "cpu_seconds": 1.0, "compile": 0.01, "form": "x", "versions": {}}
    line["curve"] = [[50, 1e4, 0.5, 90.0, 1.1, 0.3], [100, 2e4, 1.0, 410.0, 1.009, 0.2]]
    effective_lines.append(line, path)
    arguments = ["--problem", "bnn-normal", "--entry", "ribbit HMC", "--seeds", "0"]
    assert run("effective", *arguments, "--results", str(path), "--write", str(page)) == 0
    assert len(path.read_text().splitlines()) == 1
    assert "| ribbit HMC | 1 of 10 | 1/1 | 20,000 | 20,000 | 1x | 1 |" in page.read_text()
    if importlib.util.find_spec("matplotlib"):
        assert page.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"


def test_sklearn_defaults_goes_on_from_its_lines(tmp_path: Path) -> None:
    """Recorded runs are not run again; the outcomes come from the file."""
    pytest.importorskip("sklearn")
    path, page = tmp_path / "lines.jsonl", tmp_path / "page.md"
    study = sklearn_defaults
    for name in study.EVERY:
        for nll, entry in enumerate(
            study.CLASS_ENTRIES if name in study.CLASSES else study.ENTRIES
        ):
            line = effective_lines.header(name, entry, 0) | {"set": name, "split": 0}
            line |= {"entry": entry, "nll": float(nll), "rmse": 1.0, "coverage": 0.9}
            line |= {"seconds": 9.0, "cpu_seconds": 12.0, "converged": name != "yacht"}
            effective_lines.append(line, path)
    arguments = ["--splits", "1", "--results", str(path), "--write", str(page)]
    assert run("sklearn_defaults", *arguments) == 0
    assert "| wine | 1 | 0.000 | 1.000 | 2.000 | 1 | 0.9 | 9, 9" in page.read_text()
    assert "| converged on every split | 4 of 5 sets | >= 4 | yes |" in page.read_text()
    assert "| iris | clean | 0.000 | 1.000 | 2.000 | 12.0 | 1/1 | 12.0 | 1/1 |" in page.read_text()
    assert "noisy labels | 15 of 15 sets | >= 15 | yes |" in page.read_text()


def test_scaling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Page and picture, of curves that are not measured."""
    pytest.importorskip("matplotlib")
    line = Curve("a", [2**k for k in range(7)], [2.0**k for k in range(7)])
    memory = [Curve(name, DRAWS, [1.0 + 1e-3 * n for n in DRAWS]) for name in KINDS.values()]
    whole = scaling.Measured([line], [line], [line], line, [line], [line], memory)

    def measure(rounds: int, found: scaling.Measured) -> None:
        found.__dict__.update(whole.__dict__)

    def half(rounds: int, found: scaling.Measured) -> None:
        found.rows = whole.rows
        raise KeyboardInterrupt

    monkeypatch.setattr(scaling, "measure", half)
    assert run("scaling", "--write", str(tmp_path / "scaling.md")) == 130
    assert "exponent in N: a" in capsys.readouterr().out
    assert not (tmp_path / "scaling.md").exists()
    monkeypatch.setattr(scaling, "measure", measure)
    assert run("scaling", "--write", str(tmp_path / "scaling.md")) == 0
    assert "exponent in N: a | N >= 1 | 1.000 |" in (tmp_path / "scaling.md").read_text()
    assert (tmp_path / "scaling.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("kind", KINDS)
def test_draws_of_scaling_are_made_in_a_process(kind: str) -> None:
    command = [sys.executable, "-m", "benchmarks.studies.scaling_curves", kind, "20"]
    done = subprocess.run(command, cwd=machine.ROOT, capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert 0.0 < found["seconds"] < 60.0
    assert 0.0 <= found["megabytes"] < 100.0
    assert scaling_curves.draw(kind, 20)().shape == (1_000, 1)


@pytest.mark.parametrize("call", busy.CALLS)
def test_busy(
    call: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every call, of a few leapfrogs, beside a loop that ends with the command."""
    name = "3-5-5-1, 30 rows"
    monkeypatch.setitem(busy.PROBLEMS, name, busy.Problem((3, 5, 5, 1), 30, 20))
    arguments = ["--rounds", "1", "--networks", name, "--calls", call, "--busy", "1"]
    assert run("busy", *arguments) == 0
    assert "worst ratio" in capsys.readouterr().out


def test_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """Every row, on a device made of the CPU."""
    pytest.importorskip("pybind11")  # builds the module of the kernels
    assert run("gpu", "--rehearse") == 0
    assert capsys.readouterr().out.splitlines() == [f"{name}: ran" for name in gpu_rows.ROWS]


@pytest.fixture
def same_threads() -> Iterator[None]:
    """Put the number of threads back, which a command sets for its process."""
    threads = num_threads()
    yield
    set_num_threads(threads)


@pytest.mark.usefixtures("same_threads")
def test_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--runs", "25 weights", "--pairs", "1", "--folder", str(tmp_path)]
    assert run("stored", *arguments) in (0, 1)
    title, line = capsys.readouterr().out.splitlines()
    assert title.startswith("run ")
    assert re.fullmatch(r"25 weights +\d+\.\d+ +\d+\.\d+ +\d\.\d+ .*slower", line)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("same_threads")
def test_predict_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("predict_at", "--draws", "300", "--rounds", "3") in (0, 1)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[0] for line in lines[-2:]] == [
        "cost of predict_at",
        "cost of predict_at without draws",
    ]
    assert all(line.endswith(" us per draw") for line in lines)
