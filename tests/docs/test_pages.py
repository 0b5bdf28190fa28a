"""The code of the pages runs without warnings and prints what the pages show."""

import pytest

import ribbit as rb
from tests.support import pages
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
ELSEWHERE = {"next"}  # test_readme.py runs it
PAGES = sorted(
    page
    for folder in ("start", "guide", "methods")
    for page in (DOCS / folder).glob("*.md")
    if page.stem not in ELSEWHERE and pages.blocks(page)
)

pytestmark = pytest.mark.skipif(not (DOCS / "conf.py").is_file(), reason="needs the source tree")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_a_page_runs_and_prints_what_it_shows(page, tmp_path, monkeypatch):
    pyplot = None
    if any("matplotlib" in block.needs for block in pages.blocks(page)):
        pytest.importorskip("matplotlib").use("Agg")
        pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    threads = rb._arrays.threads.num_threads()
    try:
        _, missing = pages.run(page)
    finally:
        rb.set_num_threads(threads)
        if pyplot is not None:
            pyplot.close("all")
    if missing:
        pytest.skip(f"the rest of the page ran; needs {', '.join(missing)}")


def write(folder, text):
    page = folder / "page.md"
    page.write_text(text)
    return page


def test_another_output_is_noticed(tmp_path):
    page = "Code.\n\n```python\nprint('R-hat', 1.004)\n```\n\n```text\nR-hat {}\n```\n"
    pages.run(write(tmp_path, page.format("1.004")))
    pages.run(write(tmp_path, page.format("1.009")))
    with pytest.raises(AssertionError, match="shows"):
        pages.run(write(tmp_path, page.format("1.504")))
    with pytest.raises(AssertionError, match="shows"):
        pages.run(write(tmp_path, page.format("1.004 or so")))


def test_a_warning_is_noticed(tmp_path):
    with pytest.raises(UserWarning):
        pages.run(write(tmp_path, "```python\nimport warnings\nwarnings.warn('no')\n```\n"))


def test_blocks_share_names_and_hidden_code_runs(tmp_path):
    page = write(tmp_path, "<!-- run\na = 1\n-->\n```python\nb = a + 1\n```\ntext\n")
    assert pages.run(page)[0]["b"] == 2


@pytest.mark.parametrize(
    ("shown", "got", "same"),
    [
        ("ESS 400", "ESS 580", True),
        ("ESS 400", "ESS 610", False),
        ("0.93", "0.95", True),
        ("0.93", "0.70", False),
        ("4 chains", "4 chains", True),
        ("4 chains", "6 chains", False),
        ("1.2e-3", "1.25e-3", True),
        ("12,000 gradients", "12,500 gradients", True),
    ],
)
def test_numbers_are_compared_with_a_tolerance(shown, got, same):
    assert pages.same_output(shown, got) is same


def test_missing_packages_are_reported(tmp_path, monkeypatch):
    page = write(tmp_path, "```python\nimport jax\n```\n```python\njax.jit\n```\n")
    find = pages.importlib.util.find_spec
    monkeypatch.setattr(
        pages.importlib.util, "find_spec", lambda name: None if name == "jax" else find(name)
    )
    assert pages.run(page)[1] == ["jax"]
    with pytest.raises(NameError):
        pages.run(write(tmp_path, "```python\njax.jit\n```\n"))


def test_a_block_says_what_it_imports(tmp_path):
    page = write(tmp_path, "```python\nimport torch\nrb.jax.x\n```\n")
    assert pages.blocks(page)[0].needs == ["jax", "torch"]
