"""The demo of the README."""

import contextlib
import io
import sys

import numpy as np
import pytest

from ribbit.__main__ import main
from ribbit._cli import demo

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Run the short demo once: its result and what it printed."""
    out = tmp_path_factory.mktemp("demo") / "bands.png"
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        result = demo.run_demo(quick=True, out=out, seed=0)
    return result, text.getvalue()


@pytest.mark.full
def test_the_demo_shows_converged_chains(tmp_path, capsys):
    """R-hat of 1.004 to 1.012 was found with three seeds and two instruction sets."""
    result = demo.run_demo(out=tmp_path / "bands.png", seed=0)
    for job in (result.curve, result.buildings):
        assert job.summary.converged is True
        assert job.draws.stats["diverging"].sum() == 0
    assert "ot converged" not in capsys.readouterr().out


def test_the_quick_demo_shows_converged_chains(quick):
    result, text = quick
    assert result.curve.summary.converged is True
    assert result.buildings.summary.converged is True
    for job in (result.curve, result.buildings):
        assert f"{job.summary.outcome.capitalize()}: " in text
    for word in ("RMSE", "log density", "intervals", "linear regression", "picture: "):
        assert word in text


def test_the_network_beats_linear_regression(quick):
    """The bounds are wide for one seed: 0.13 of the RMSE and 2 nats per row were found."""
    scores = quick[0].scores
    ours, linear = scores["RMSE (kWh/m²)"]
    assert ours < 0.35 * linear
    assert 2.0 < linear < 4.0  # the sd of the heating load is 10
    ours, linear = scores["log density per row"]
    assert ours > linear + 1.0
    assert all(0.75 <= covered <= 1.0 for covered in scores["rows in 90 % intervals"])
    ours, linear = scores["width of these intervals"]
    assert ours < 0.35 * linear


def test_the_bands_widen_where_there_are_no_data(quick):
    """In the gap and outside the data the sd of the function is over twice that at the data."""
    curve = quick[0].curve
    x, std = curve.x[:, 0], np.asarray(curve.prediction.epistemic_std)
    data = (np.abs(x + 1.3) < 0.5) | (np.abs(x - 1.4) < 0.4)
    at_data = std[data].mean()
    assert std[np.abs(x - 0.1) < 0.3].mean() > 2 * at_data
    assert std[np.abs(x) > 2.8].mean() > 2 * at_data


def test_the_picture_is_written(quick):
    with open(quick[0].picture, "rb") as file:
        picture = file.read()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(picture) > 20_000


@pytest.mark.full
def test_the_demo_is_reproducible_and_the_seed_counts(quick, tmp_path):
    again = demo.run_demo(quick=True, out=tmp_path / "a.png", seed=0)
    other = demo.run_demo(quick=True, out=tmp_path / "b.png", seed=1)
    assert again.scores == quick[0].scores
    assert other.scores != quick[0].scores


def test_linear_regression_is_the_textbook_one(rng):
    x = rng.normal(size=(200, 3))
    y = 5 + x @ [1.0, 2.0, 3.0] + 0.5 * rng.normal(size=200)
    mean, std = demo._linear(x, y, x)
    assert np.sqrt(np.mean((mean - y) ** 2)) == pytest.approx(0.5, rel=0.2)
    assert std == pytest.approx(0.5, rel=0.2)


def test_ctrl_c_ends_the_demo_cleanly(monkeypatch, tmp_path, capsys):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "_sample", interrupted)
    assert main(["demo", "--quick", "--out", str(tmp_path / "a.png")]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_missing_package_is_named(monkeypatch, capsys):
    for name in [m for m in sys.modules if m.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["demo", "--quick"]) == 1
    error = capsys.readouterr().err
    assert 'pip install "matplotlib>=3.8"' in error
    assert "matplotlib" in error


@pytest.mark.parametrize("out", ["no/such/folder/a.png", ".", "a.docx"])
def test_a_bad_path_is_found_before_the_sampling(tmp_path, monkeypatch, capsys, out):
    monkeypatch.chdir(tmp_path)

    def forbidden(*args, **kwargs):
        raise AssertionError("sampled before the path was checked")

    monkeypatch.setattr(demo, "_sample", forbidden)
    assert main(["demo", "--quick", "--out", out]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_a_bad_seed_is_an_error(capsys):
    assert main(["demo", "--seed", "-1"]) == 1
    assert "expected seed" in capsys.readouterr().err
