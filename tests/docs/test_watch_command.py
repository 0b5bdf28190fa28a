"""python -m ribbit watch: a run in a folder while it goes on, and when it does not."""

import socket
import subprocess
import sys
import time

import pytest

import ribbit as rb
from ribbit.__main__ import main
from ribbit._cli.watch import snapshot, watch
from ribbit.store import writer
from tests.support.paths import ROOT
from tests.support.targets import OPTIONS, posterior

pytestmark = [
    pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning"),
    pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning"),  # a few draws
]


def hmc():
    return rb.HMC(posterior(), **OPTIONS["fixed"])


def test_a_run_that_has_ended(tmp_path, capsys):
    draws = hmc().sample(8, warmup=2, progress=False, store=tmp_path / "run")
    assert main(["watch", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("HMC: sampling 10/10 (100 %), 4 chains, acceptance ")
    assert draws.summary().message.split()[0] in said
    assert "No process writes" not in said


def test_a_fit(tmp_path, capsys):
    rb.DeepEnsemble(posterior(), members=2, batch_size=35).fit(
        2, progress=False, store=tmp_path / "fit"
    )
    assert main(["watch", str(tmp_path / "fit"), "--once"]) == 0
    assert "a whole fit" in capsys.readouterr().out


_RUN = """
import sys, warnings
import ribbit as rb
from tests.support.targets import OPTIONS, posterior
warnings.simplefilter("ignore")
store = rb.Store(sys.argv[1], flush_seconds=0.05)
hmc = rb.HMC(posterior(), **OPTIONS["fixed"])
hmc.sample(20_000_000, warmup=2, progress=False, store=store)
"""


def test_a_run_that_goes_on_and_is_killed(tmp_path, capsys):
    folder = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", _RUN, str(folder)], cwd=ROOT)
    seen = []

    def wait(seconds):
        """Kill the run once it was seen with draws three times; the next look finds nobody."""
        seen.append(len(rb.load(folder)))
        if sum(count > 0 for count in seen) == 3:
            process.kill()
            process.wait()
        else:
            time.sleep(seconds)

    try:
        deadline = time.monotonic() + 60
        while not (folder / "state").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert writer(folder) == f"process {process.pid} on {socket.gethostname()}"
        watch(folder, rb.load, every=0.05, sleep=wait)
    finally:
        process.kill()
        process.wait()
    said = capsys.readouterr().out.splitlines()
    assert writer(folder) is None
    assert len([line for line in said if line.startswith("HMC: ")]) >= 4
    assert f"Run the same line again, with store='{folder}'." in said[-1]
    run = rb.load(folder)
    found = snapshot(run)
    assert 0 < found["draws"] < found["total"] == 20_000_002
    assert found["eta"] > 0
    assert found["gradients_per_second"] > 0
    assert found["diverging"] == run.stats["diverging"].sum(axis=1).tolist()


@pytest.mark.parametrize("command", ["watch", "summary"])
def test_a_pipe_whose_reader_has_ended(tmp_path, command):
    hmc().sample(8, warmup=2, progress=False, store=tmp_path / "run")
    process = subprocess.Popen(
        [sys.executable, "-m", "ribbit", command, str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    with process.stderr as said:
        assert said.read() == b""
    assert process.wait() == 141


def test_what_is_no_run_is_said(tmp_path, capsys):
    assert main(["watch", str(tmp_path)]) == 1
    assert "or the folder of a run, got a folder without a run" in capsys.readouterr().err
    file = tmp_path / "draws.npz"
    hmc().sample(8, warmup=2, progress=False).save(file)
    assert main(["watch", str(file)]) == 1
    said = capsys.readouterr()
    assert said.err.endswith(f"[watch] expected the folder of a run, got a file: {file}\n")
    assert said.out == ""
    for every in ("0", "nan", "inf", "1e300"):
        assert main(["watch", str(tmp_path), "--every", every]) == 1
        assert "--every > 0" in capsys.readouterr().err
