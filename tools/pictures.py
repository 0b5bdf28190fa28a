"""Draw the pictures of the docs: ``python -m tools.pictures [PAGE ...]``.

Runs the code of the pages (of all pages with pictures without PAGE, such as
docs/guide/regression.md) and keeps each PNG that it saves in docs/_static/pages. Needs ``pip
install ".[examples]"``.
"""

import argparse
import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import matplotlib

from tests.support import pages
from tests.support.paths import ROOT

__all__ = ["FOLDER", "draw", "main"]

FOLDER = ROOT / "docs" / "_static" / "pages"


def draw(page: Path) -> list[str]:
    """Run a page and return the names of the pictures that it saved."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        pages.run(page)
        made = sorted(Path(folder).glob("*.png"))
        FOLDER.mkdir(exist_ok=True)
        for picture in made:
            shutil.copy(picture, FOLDER)
    return [picture.name for picture in made]


def main() -> None:
    """Draw the pictures of the pages named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.pictures", description=__doc__)
    parser.add_argument("page", nargs="*", type=Path)
    found = [path.resolve() for path in parser.parse_args().page] or [
        path for path in sorted((ROOT / "docs").glob("*/*.md")) if ".savefig(" in path.read_text()
    ]
    matplotlib.use("Agg")
    for page in found:
        print(os.path.relpath(page, ROOT), *draw(page))


if __name__ == "__main__":
    main()
