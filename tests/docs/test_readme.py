"""The README's example runs and prints what the README shows."""

import re
import tomllib

import numpy as np
import pytest

import ribbit as rb
from tests.support import pages
from tests.support.paths import ROOT

README = ROOT / "README.md"
OVERVIEW = ROOT / "docs/guide/features.md"


@pytest.mark.skipif(not README.is_file(), reason="needs the source tree")
@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_lines_fit_the_page(page):
    lines = (README.parent / page).read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if len(line) > 100 and not line.startswith("|")]


@pytest.mark.skipif(not README.is_file(), reason="needs the source tree")
def test_extras_are_named():
    """Every extra of the package, by its name, and every one that a page installs exists."""
    extras = set(
        tomllib.loads((README.parent / "pyproject.toml").read_text())["project"][
            "optional-dependencies"
        ]
    )
    text = OVERVIEW.read_text(encoding="utf-8")
    line = re.search(
        r"^Extras: (.*?)\. ", text.replace("\n", " ").replace(" Extras", "\nExtras"), re.M
    )
    assert set(re.findall(r"`([\w-]+)`", line.group(1))) == extras
    installed = [
        text,
        README.read_text(encoding="utf-8"),
        (README.parent / "docs/guide/gpu.md").read_text(encoding="utf-8"),
    ]
    installed += [p.read_text(encoding="utf-8") for p in (README.parent / "python").rglob("*.py")]
    for names in re.findall(r"\.\[([\w,-]+)\]\"", "".join(installed)):
        assert set(names.split(",")) <= extras, names


@pytest.mark.skipif(not README.is_file(), reason="needs the source tree")
def test_the_readme_is_one_screen():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 80
    assert len(re.findall(r"^- \*\*", text, re.MULTILINE)) == 3  # figures, each with its page
    [picture] = re.findall(r"^!\[[^]]+\]\((.*?)\)", text, re.MULTILINE)
    assert (ROOT / picture).is_file()


@pytest.mark.skipif(not README.is_file(), reason="needs the source tree")
def test_figures_are_those_of_their_pages():
    """The three that say why, against the tables that commands wrote."""
    text = " ".join(README.read_text(encoding="utf-8").split())
    table = (ROOT / "docs/developer/effective.md").read_text(encoding="utf-8")
    rows = {}
    for line in table.partition("## bnn:")[2].partition("## concrete")[0].splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        rows.setdefault(cells[1] if len(cells) > 7 else "", cells)
    assert f"default settings converges in {float(rows['ribbit HMC'][7]):.2f} s" in text
    mclmc, nuts = (float(rows[name][7]) for name in ("blackjax MCLMC", "numpyro NUTS 10"))
    assert f"BlackJAX needs {mclmc:.1f} s with MCLMC, and NumPyro {nuts:.0f} s with NUTS" in text
    weights = rb.mlp(8, (50,), 1).dim  # of hmc-small-1, benchmarks/workloads/table.py
    assert f"from {weights} weights to ResNet-20" in text
    table = (ROOT / "docs/developer/benchmarks.md").read_text(encoding="utf-8")
    ratios = []
    for line in (
        table.partition("## Ribbit and the best other library")[2].partition("\n## ")[0].split("\n")
    ):
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 7 and cells[1] not in (
            "workload",
            "---",
            "reparam",
            "normals",
            "first-draw",
        ):
            ratios.append(float(cells[7].split("x")[0]))
    assert f"{min(ratios):.1f} to {max(ratios):.1f} times as fast as in the best of" in text


@pytest.mark.skipif(not README.is_file(), reason="needs the source tree")
def test_the_first_example_is_for_a_raw_table():
    """Twelve lines that scale, give intervals and an outcome; a page says what to do then."""
    text = README.read_text(encoding="utf-8")
    first = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    code = first.group(1)
    assert len([line for line in code.splitlines() if line]) <= 12
    for word in ("read_csv(", "standardize=True", ".interval(0.9)", "draws.summary("):
        assert word in code
    after = text[first.end() :]
    assert '"not converged"' in after
    assert "](docs/start/outcome.md)" in after


@pytest.mark.slow
@pytest.mark.skipif(not README.is_file(), reason="needs the source tree")
def test_example(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    example = pages.blocks(README)[0]
    names = {}
    exec(compile(example.code, "README.md", "exec"), names)
    assert names["draws"].positions.shape[:2] == (4, 500)
    y = names["y"][names["test"]]
    constant = abs(y - y.mean()).mean()  # the error of a model that learned nothing
    assert abs(names["p"].mean - y).mean() < 0.1 * constant
    # one seed and one split: 77 rows at 0.9 have an sd of 0.034
    inside = ((names["lower"] <= y) & (y <= names["upper"])).mean()
    assert 0.8 < inside < 0.99
    assert (names["upper"] - names["lower"]).mean() < 0.1 * np.ptp(y)
    printed = capsys.readouterr().out
    assert "Predictions converged, weights did not: R-hat" in printed
    if example.output is not None:
        assert pages.same_output(example.output, printed)
