"""Build the site of docs/ and read what was built: ``python -m tools.site``.

Needs ``pip install --group docs`` and an installed ribbit; asks no network. Warnings are errors,
and so is a link that leads nowhere or a page that would load anything from elsewhere.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tools.site_links import faults

ROOT = Path(__file__).parents[1]


def build(out: Path, *, gallery: bool = True) -> None:
    """Run Sphinx with warnings as errors; without `gallery` no example is run."""
    options = ["-W", "--keep-going", "-n", "-q", "-b", "html"]
    if not gallery:
        options += ["-D", "plot_gallery=0"]
    command = [sys.executable, "-m", "sphinx", *options, "docs", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"MPLBACKEND": "Agg"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--no-gallery", action="store_true", help="show the examples, run none")
    parser.add_argument("--check", action="store_true", help="read what is there, build nothing")
    given = parser.parse_args()
    out = given.out.resolve()
    if not given.check:
        build(out, gallery=not given.no_gallery)
    found = faults(out)
    print("\n".join(found) or f"no broken link: {out / 'index.html'}")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
