"""Build the site of docs/ and read what was built: ``python -m tools.site``.

Needs ``pip install ".[docs]"``, the program doxygen (for `docs/_ext/headers.py`), and an
installed ribbit; asks no network. Warnings are errors, and so is a link that leads nowhere or a
page that would load anything from elsewhere.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.site_links import faults

ROOT = Path(__file__).parents[1]
NO_DOXYGEN = (
    "expected doxygen, which reads the C and C++ headers for the site, and found none: "
    "apt-get install doxygen (Debian), dnf install doxygen (Fedora), brew install doxygen (macOS)"
)


def build(out: Path, *, gallery: bool = True) -> None:
    """Run Sphinx with warnings as errors; without `gallery` no example is run."""
    if shutil.which("doxygen") is None:
        sys.exit(NO_DOXYGEN)
    options = ["-W", "--keep-going", "-n", "-q", "-b", "html"]
    if not gallery:
        options += ["-D", "plot_gallery=0"]
    command = [sys.executable, "-m", "sphinx", *options, "docs", str(out)]
    environment = os.environ | {"MPLBACKEND": "Agg"}
    done = subprocess.run(command, cwd=ROOT, check=False, env=environment)
    if done.returncode != 0:
        sys.exit(f"the site was not built: sphinx ended with {done.returncode}, see above")


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
