"""The demo of the README, short."""

import sys

import numpy as np
import pytest

from ribbit import demo
from ribbit.__main__ import main

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")


def test_quick_demo(tmp_path, capsys):
    """The short run already predicts like linear regression or better, with honest intervals.

    One seed and one split: the bounds are wide (RMSE within 15 %, log likelihood within 0.3, 90 %
    intervals that hold 75 to 100 % of 44 rows), and a constant prediction fails them.
    """
    out = tmp_path / "bands.png"
    result = demo.run_demo(quick=True, out=out, seed=0)
    assert result.hmc.rmse < 1.15 * result.linear.rmse
    assert result.hmc.log_likelihood > result.linear.log_likelihood - 0.3
    assert 0.75 <= result.hmc.coverage <= 1.0
    assert 0.75 <= result.linear.coverage <= 1.0
    assert result.linear.rmse < 70  # the target's own sd is 77
    assert 0.5 < result.acceptance < 0.999
    assert result.rhat_median < 1.1
    assert result.divergences == 0
    assert result.gradients_per_second > 100
    text = capsys.readouterr().out
    for word in ("RMSE", "log likelihood", "coverage", "R-hat", "gradients per second", "seconds"):
        assert word in text
    assert "linear regression" in text
    assert out.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert out.stat().st_size > 20_000


def test_linear_regression_is_the_textbook_one(rng):
    from ribbit.datasets import standardize

    x = rng.normal(size=(200, 3))
    y = 5 + x @ [1.0, 2.0, 3.0] + 0.5 * rng.normal(size=200)
    scores = demo._linear_regression(standardize(x, y), standardize(x).x, y)
    assert scores.rmse == pytest.approx(0.5, rel=0.2)
    assert scores.width == pytest.approx(2 * 1.645 * 0.5, rel=0.2)
    assert scores.log_likelihood == pytest.approx(-0.5 * np.log(2 * np.pi * np.e * 0.25), abs=0.2)


@pytest.mark.parametrize("package", ["sklearn", "matplotlib", "rich"])
def test_a_missing_package_is_named(monkeypatch, capsys, package):
    for name in [m for m in sys.modules if m.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["demo", "--quick"]) == 1
    error = capsys.readouterr().err
    assert 'pip install ".[examples]"' in error
    assert {"sklearn": "scikit-learn"}.get(package, package) in error


@pytest.mark.parametrize("out", ["no/such/folder/a.png", ".", "a.docx"])
def test_a_bad_path_is_found_before_the_work(tmp_path, monkeypatch, capsys, out):
    monkeypatch.chdir(tmp_path)

    def forbidden(*args, **kwargs):
        raise AssertionError("sampled before the path was checked")

    monkeypatch.setattr(demo, "_sample", forbidden)
    assert main(["demo", "--quick", "--out", out]) == 1
    assert "[run_demo] expected" in capsys.readouterr().err


def test_a_bad_seed_is_an_error(capsys):
    assert main(["demo", "--seed", "-1"]) == 1
    assert "expected seed" in capsys.readouterr().err
