"""The site builds without a warning and is complete; some minutes with the gallery."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tools.site_links import faults

pytestmark = pytest.mark.slow
USERS = ("start/", "guide/", "methods/")
ABI = ROOT / "tests" / "embedding" / "abi.txt"
# Readers search for these, and a page for users has them.
SEARCHES = (
    "uncertainty",
    "classification",
    "multiclass",
    "credible interval",
    "tutorial",
    "troubleshooting",
    "variational inference",
)


def pages_with(index: str, words: str) -> set[str]:
    """Return the pages for users that have all words in their title or text."""
    from sphinx.search.en import SearchEnglish

    found = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))
    stem = SearchEnglish({}).stem
    pages = {i for i, name in enumerate(found["docnames"]) if name.startswith(USERS)}
    for word in words.split():
        have: set[int] = set()
        for terms in (found["terms"], found["titleterms"]):
            places = terms.get(stem(word), [])
            have |= set(places) if isinstance(places, list) else {places}
        pages &= have
    return {found["docnames"][i] for i in pages}


@pytest.mark.parametrize("gallery", ["shown", "run"])  # .ci/run has the first: a minute less
def test_the_site_builds(tmp_path: Path, gallery: str) -> None:
    pytest.importorskip("sphinx_gallery", reason='needs pip install ".[docs]"')
    command = [sys.executable, "-m", "tools.site", "--out", str(tmp_path / "site")]
    command += ["--no-gallery"] if gallery == "shown" else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    site = tmp_path / "site"
    assert faults(site) == []
    index = (site / "searchindex.js").read_text()
    assert [words for words in SEARCHES if not pages_with(index, words)] == []
    assert pages_with(index, "uncertainty") >= {"guide/uncertainty"}
    assert pages_with(index, "unfindable") == set()
    bands = (site / "gallery" / "regression_bands.html").read_text()
    assert ("regression_bands_001.png" in bands) == (gallery == "run")
    shown = (site / "gallery" / "torch_resnet.html").read_text()
    assert "functional" in shown or "torch" in shown
    assert (site / "api" / "generated" / "ribbit.HMC.html").is_file()
    names = set(re.findall(r"\bribbit_\w+(?=@@)", ABI.read_text()))
    of_c = (site / "api" / "c.html").read_text()
    assert len(names) > 20
    assert [name for name in names if f'id="c.{name}"' not in of_c] == []


def test_without_doxygen_one_line_says_what_to_install(tmp_path: Path) -> None:
    pytest.importorskip("sphinx_gallery", reason='needs pip install ".[docs]"')
    command = [sys.executable, "-m", "tools.site", "--out", str(tmp_path / "site")]
    done = subprocess.run(
        command, cwd=ROOT, env={"PATH": ""}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "apt-get install doxygen" in done.stderr
    assert "Traceback" not in done.stderr
