"""What runs on a device, without one: the rows of the GPU table, and what evidence says of them."""

import json
import subprocess
import sys

import pytest

from benchmarks.studies import gpu, gpu_digest, gpu_rows


def test_the_rows_run():
    pytest.importorskip("pybind11")  # builds the module of the kernels
    found = gpu_rows.rehearse(None)
    assert [row["name"] for row in found] == list(gpu_rows.ROWS)


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
    row = {"name": "x", "seconds": 2e-3, "floor": 1e-3, "target": "fast"}
    rival = row | {"rival": {"name": "torch", "seconds": 8e-3}}
    lines = gpu.table([row, rival]).splitlines()
    assert "50%" in lines[2]
    assert "4.00x" in lines[3]


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
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert gpu.main() == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "no CUDA device (cudaErrorNoDevice): --rehearse runs the rows on the CPU\n"
    )


def test_evidence_is_of_these_sources(tmp_path, monkeypatch):
    """Whatever is committed is told as verified or as changed since; numbers need a file."""
    assert all(any(gpu_digest.ROOT.glob(pattern)) for pattern in gpu_digest.SOURCES)
    lines = gpu_digest.verdicts()
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
    assert gpu_digest.verdicts() == ["A, 2026-01-01: verified at 0123456789"]
    source.write_text("2")
    assert gpu_digest.verdicts() == ["A, 2026-01-01: changed since 0123456789"]
