"""The demo of the README, short."""

import contextlib
import dataclasses
import io
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from ribbit.__main__ import main
from ribbit._cli import demo, demo_methods
from ribbit._cli.demo_methods import METHODS
from ribbit._cli.demo_methods_view import draw_methods, methods_table

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")


FIELDS = ("rmse", "log_likelihood", "coverage", "width")


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Run the short demo once: its result, what it printed, and the picture's path."""
    out = tmp_path_factory.mktemp("demo") / "bands.png"
    text = io.StringIO()
    with contextlib.redirect_stdout(text), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        result = demo.run_demo(quick=True, out=out, seed=0)
    return result, text.getvalue(), out


def is_picture(path):
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 20_000


def test_the_whole_first_demo_converges(tmp_path, capsys, monkeypatch):
    """With nothing set: an acceptance of 0.7 and 150 draws of warmup left a worst R-hat of 1.10.

    Worst ones of 1.003 to 1.007 were met, at four seeds on AVX2 and one on baseline; at most 1.01.
    """
    monkeypatch.setattr(demo, "_methods", lambda *_, **__: SimpleNamespace(results={}))
    result = demo.run_demo(quick=False, out=tmp_path / "bands.png", seed=0)
    assert result.divergences == 0
    assert result.acceptance > 0.7
    assert result.rhat_median < 1.01
    assert "not converged" not in capsys.readouterr().out


def test_quick_demo(quick):
    """The short run already beats linear regression by far, with honest intervals.

    One seed and one split: the bounds are wide (a third of the RMSE where 0.14 of it was found, 1
    nat per row where 2 were, 90 % intervals that hold 75 to 100 % of 77 rows).
    """
    result, text, out = quick
    assert result.hmc.rmse < 0.35 * result.linear.rmse
    assert result.hmc.log_likelihood > result.linear.log_likelihood + 1.0
    assert 0.75 <= result.hmc.coverage <= 1.0
    assert 0.75 <= result.linear.coverage <= 1.0
    assert result.hmc.width < 0.35 * result.linear.width
    assert 2.0 < result.linear.rmse < 4.0  # the target's own sd is 10
    assert 0.5 < result.acceptance < 0.999
    assert result.rhat_median < 1.2
    assert result.divergences == 0
    assert result.gradients_per_second > 100
    for word in ("RMSE", "log likelihood", "coverage", "R-hat", "gradients per second", "seconds"):
        assert word in text
    assert "linear regression" in text
    assert is_picture(out)


def test_methods(quick):
    """Every method learns the curve, and its 90 % intervals hold 85 to 97 % of 800 rows.

    The bounds are wide for one seed: the sd of a fraction of 800 rows at 0.9 is 0.011. A constant
    has 2.7 times the RMSE of the true mean.
    """
    result, text, out = quick
    comparison = result.methods
    assert tuple(comparison.results) == METHODS
    assert 2.5 < comparison.rmse_constant / comparison.rmse_truth < 3.0
    for name, found in comparison.results.items():
        scores = found.scores
        assert found.complete, name
        assert all(math.isfinite(getattr(scores, field)) for field in FIELDS), name
        assert scores.rmse < 1.08 * comparison.rmse_truth, name
        assert scores.rmse < 0.5 * comparison.rmse_constant, name
        assert 0.85 <= scores.coverage <= 0.97, name
        assert scores.log_likelihood > 1.2, name  # a constant with its own noise: 0.37
        assert 0 < found.seconds < 300, name
        assert f"{scores.rmse:.4f}" in text, name
        assert name in text, name
    draws = {name: np.prod(r.draws.positions.shape[:2]) for name, r in comparison.results.items()}
    assert draws == {name: 5 if name == "deep ensemble" else 200 for name in METHODS}
    assert comparison.results["HMC"].draws.stats["diverging"].sum() <= 2
    assert 0.6 < comparison.results["HMC"].draws.stats["acceptance_rate"].mean() < 0.99
    for name in ("HMC", "SGLD"):
        assert comparison.results[name].rhat[0] < 1.5, name
    assert result.methods_picture == str(out.with_name("bands-methods.png"))
    assert is_picture(out.with_name("bands-methods.png"))
    lines = [line for line in text.splitlines() if not line.startswith("picture: ")]
    assert max(len(line) for line in lines) <= 80


@pytest.mark.parametrize(
    ("rhat", "words"), [(1.0104, "converged"), (1.011, "not converged"), (1.3, "not converged")]
)
def test_the_tables_say_which_chains_have_not_converged(quick, rhat, words):
    """In the row of the chains, where R-hat of the worst prediction is above 1.01."""
    result = quick[0]
    chains = demo._table(dataclasses.replace(result, rhat_worst=rhat))
    cells = [list(column.cells) for column in chains.columns]
    assert cells[1][cells[0].index("chains")] == words
    found = {
        name: dataclasses.replace(r, rhat=None if r.rhat is None else (1.0, rhat))
        for name, r in result.methods.results.items()
    }
    table = methods_table(dataclasses.replace(result.methods, results=found))
    last = list(table.columns[-1].cells)
    assert last[:2] == [f"{rhat:.3f} {words}"] * 2  # HMC and SGLD
    assert last[2:] == [""] * 3


def test_methods_are_reproducible_and_the_seed_counts(quick):
    sizes = dataclasses.replace(
        demo_methods._QUICK, draws=40, bbb_steps=600, adam_steps=300, sgld_warmup=100, sgld_thin=5
    )

    def figures(seed):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(demo_methods, "_QUICK", sizes)
            found = demo_methods.compare_methods(quick=True, seed=seed, progress=False)
        return {name: (r.scores, r.rhat) for name, r in found.results.items()}

    first, again, other = figures(3), figures(3), figures(4)
    assert first == again
    assert all(first[name] != other[name] for name in METHODS)


def test_the_true_mean_is_the_mean():
    """Within 6 standard errors at every x, and a curve without the smoothing factor is not."""
    from ribbit.datasets import toy_regression

    x, y = toy_regression(200_000, seed=5)
    residual = y - demo_methods._true_mean(x[:, 0])
    plain = x[:, 0] + 0.3 * (np.sin(2 * np.pi * x[:, 0]) + np.sin(4 * np.pi * x[:, 0]))
    place = (x[:, 0] * 40).astype(int)

    def worst(values):
        bins = [values[place == i] for i in range(20)]
        return max(abs(b.mean()) / (b.std() / math.sqrt(len(b))) for b in bins)

    assert worst(residual) < 6
    assert worst(y - plain) > 20


@pytest.mark.parametrize("after", [1, 3])
def test_an_interrupted_comparison_shows_what_there_is(monkeypatch, tmp_path, quick, after):
    """Ctrl-C in the fit number `after` (from 0), and Ctrl-C between fits: no method follows it."""
    comparison = quick[0].methods
    order = ("Bayes by Backprop", "MC dropout", "deep ensemble", "SGLD", "HMC")

    def runs(*args):
        for number, name in enumerate(order):
            assert number <= after
            yield name, comparison.results[name].draws, number < after, 1.0

    def broken(*args):
        yield order[0], comparison.results[order[0]].draws, True, 1.0
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_methods, "_runs", runs)
    found = demo_methods.compare_methods(quick=True, seed=0, progress=False)
    assert set(found.results) == set(order[: after + 1])
    assert [r.complete for r in found.results.values()].count(False) == 1
    table = methods_table(found)
    assert any("(stopped)" in str(cell) for cell in table.columns[0].cells)
    draw_methods(str(tmp_path / "a.png"), found)
    assert is_picture(tmp_path / "a.png")
    monkeypatch.setattr(demo_methods, "_runs", broken)
    assert set(demo_methods.compare_methods(quick=True, seed=0).results) == {order[0]}


def test_ctrl_c_outside_a_fit_ends_cleanly(monkeypatch, tmp_path, capsys):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "_sample", interrupted)
    assert main(["demo", "--quick", "--out", str(tmp_path / "a.png")]) == 130
    assert "interrupted" in capsys.readouterr().err


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
