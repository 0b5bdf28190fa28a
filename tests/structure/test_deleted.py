"""Files that are deleted for good stay deleted; ``deleted.txt`` has a path per line."""

from pathlib import Path

from tests.support.paths import ROOT

LIST = Path(__file__).with_name("deleted.txt")


def there(root: Path, paths: list[str]) -> list[str]:
    """Return the paths that exist below `root`."""
    return [path for path in paths if (root / path).exists()]


def test_no_deleted_file_is_back() -> None:
    paths = LIST.read_text(encoding="utf-8").split()
    assert paths == sorted(set(paths))
    assert there(ROOT, paths) == []


def test_the_test_catches(tmp_path: Path) -> None:
    """The control."""
    (tmp_path / "b.py").touch()
    assert there(tmp_path, ["a.py", "b.py"]) == ["b.py"]
