"""python -m ribbit summary: the summary of a saved run or fit, and an exit code."""

import subprocess
import sys

import numpy as np
import pytest

import ribbit as rb
from ribbit.__main__ import main
from ribbit.results.summary import Summary
from tests.support.targets import OPTIONS, posterior

# a few epochs and draws: the table is looked at and not where they are
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Draws and a fit of the same posterior."""
    path = tmp_path_factory.mktemp("saved")
    rb.HMC(posterior(), **OPTIONS["fixed"]).sample(8, warmup=2, progress=False).save(path / "draws")
    fit = rb.DeepEnsemble(posterior(), members=2, batch_size=35).fit(2, progress=False)
    fit.save(path / "fit")
    rb.HMC(posterior(), **OPTIONS["fixed"]).sample(8, progress=False, store=path / "run")
    return path


@pytest.mark.parametrize("name", ["draws", "fit", "run"])
def test_it_prints_what_summary_says(folder, name, capsys):
    assert main(["summary", str(folder / name)]) == 0
    said = capsys.readouterr()
    assert said.out == rb.load(folder / name).summary().text + "\n"
    assert said.err == ""


def test_in_a_process_of_its_own(folder):
    command = [sys.executable, "-m", "ribbit", "summary", str(folder / "draws")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("HMC: 4 chains x 8 draws\n")


def test_what_cannot_be_read(folder, tmp_path, capsys):
    (tmp_path / "text").write_text("no draws")
    whole = (folder / "draws").read_bytes()
    (tmp_path / "half").write_bytes(whole[: len(whole) // 2])
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    for name in ("text", "half", "other.npz", "none", "."):
        assert main(["summary", str(tmp_path / name)]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("ribbit summary: ")
        assert str(tmp_path) in said.err
    with pytest.raises(SystemExit):
        main(["summary"])


@pytest.mark.parametrize(
    ("outcome", "codes"),
    [
        ("converged", [0, 0]),
        ("predictions converged, weights did not", [1, 0]),
        ("not converged", [1, 1]),
        ("too short to tell", [1, 1]),
    ],
)
def test_exit_codes_of_what_is_required(outcome, codes, folder, tmp_path, monkeypatch):
    """A control, too: without --require every outcome gives 0."""
    found = Summary("title", (), outcome, "message")
    monkeypatch.setattr(rb.Draws, "summary", lambda self: found)
    path = str(folder / "draws")
    assert main(["summary", path]) == 0
    for what, code in zip(("converged", "predictions"), codes, strict=True):
        assert main(["summary", path, "--require", what]) == code
