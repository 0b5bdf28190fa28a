"""What `.ci/run` leaves out: checks whose sources are byte by byte those that they passed on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools import checked

ROOT = Path(checked.__file__).parents[1]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a small tree with a file for each name that a check depends on."""
    for name in {name for names in checked.SOURCES.values() for name in names}:
        path = tmp_path / name
        if not (ROOT / name).is_file():
            path = path / "part" / "file.h"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("// what is here\n")
    monkeypatch.setattr(checked, "ROOT", tmp_path)
    monkeypatch.setattr(checked, "FILE", tmp_path / "checked.json")
    return tmp_path


def test_a_check_runs_until_it_is_recorded(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked.main(["kernels"]) == 1
    assert "python -m tools.checked kernels --write" in capsys.readouterr().out
    assert checked.main(["kernels", "--write"]) == 0
    assert checked.main(["kernels"]) == 0
    assert "passed on these very files" in capsys.readouterr().out
    assert checked.main(["native-avx2"]) == 1  # the other checks have no record by this


@pytest.mark.parametrize("change", ["byte", "new file", "other name", "lost file"])
def test_a_change_makes_it_run_again(tree: Path, change: str) -> None:
    checked.main(["kernels", "--write"])
    file = tree / "cpp" / "core" / "part" / "file.h"
    {
        "byte": lambda: file.write_bytes(file.read_bytes().replace(b"here", b"hers")),
        "new file": lambda: file.with_name("other.h").touch(),
        "other name": lambda: file.rename(file.with_name("fils.h")),
        "lost file": lambda: file.unlink(),
    }[change]()
    assert checked.main(["kernels"]) == 1


def test_what_python_compiled_is_no_change(tree: Path) -> None:
    checked.main(["kernels", "--write"])
    compiled = tree / "tests" / "backends" / "cuda" / "__pycache__" / "part.pyc"
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    assert checked.main(["kernels"]) == 0


def test_what_moved_away_is_missed(tree: Path) -> None:
    shutil.rmtree(tree / "cpp" / "cuda")
    with pytest.raises(FileNotFoundError, match="cpp/cuda"):
        checked.main(["kernels"])


@pytest.mark.parametrize("check", checked.SOURCES)
def test_sources_are_there(check: str) -> None:
    assert len(checked.digest(check)) == 64
