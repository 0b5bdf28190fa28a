"""Ribbit without the GIL: `python -m tools.free_threaded PYTHON [TESTS ...]`.

PYTHON is a free-threaded interpreter, 3.13 or newer (docs/developer/platforms.md says how one was
made of its sources). Builds the wheel for it, installs that beside NumPy in an environment of its
own, asks whether an import switches the GIL on, and runs tests with PYTHON_GIL=0: first those of
eight threads at once, then TESTS, or four folders. What needs a package that has no wheel for
PYTHON is skipped. One line per step; the first that fails ends it. Needs the dependency group
"wheels" and a compiler.
"""

import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path

from tools.wheels import MOST_BYTES, ROOT, build, exported, pip, run, unpack

AT_ONCE = [
    "tests/samplers/run/test_threads_at_once.py",
    "tests/samplers/run/test_threads_of_all_kinds.py",
]
TESTS = ["tests/samplers", "tests/targets", "tests/arrays", "tests/results"]
NEEDED = ["numpy>=2", "pytest>=8", "hypothesis>=6.100"]
WELCOME = ["pytest-xdist>=3.6", "scipy>=1.12", "scikit-learn>=1.6", "matplotlib>=3.8", "rich>=13.7"]
# An extension that does not say that it needs no GIL switches it on, with a warning.
IMPORT = """
import sys
import ribbit as rb
from ribbit import _core
rb.HMC, rb.Posterior, rb.mlp
assert not sys._is_gil_enabled()
"""


def interpreter(python: str) -> str:
    """The version; ends where it has a GIL."""
    asked = "import sys, sysconfig; print(sysconfig.get_config_var('Py_GIL_DISABLED'), sys.version)"
    disabled, _, version = run(python, "-c", asked).strip().partition(" ")
    if disabled != "1":
        raise SystemExit(f"{python}: expected a free-threaded interpreter, got {version}")
    return version.partition(" (")[0]


def checked(wheel: Path, folder: Path) -> str:
    """Name, size and symbols of a wheel."""
    size, parts = wheel.stat().st_size, unpack(wheel, folder)
    if size > MOST_BYTES or exported(parts["_core"]) != ["PyInit__core"]:
        raise SystemExit(f"{wheel.name}: {size} bytes, _core shows {exported(parts['_core'])}")
    return f"{wheel.name}, {size / 1e6:.2f} MB"


def environment(python: str, wheel: Path, folder: Path) -> tuple[Path, str]:
    """The interpreter of a new environment, and words for what of `WELCOME` it lacks."""
    run(python, "-m", "venv", "--without-pip", folder)
    inside = folder / "bin" / "python"
    install = [*map(str, pip(inside)), "install", "-q", "--only-binary=:all:"]
    run(*install, *NEEDED, wheel)
    lacking = []
    for package in WELCOME:
        if subprocess.run([*install, package], capture_output=True, check=False).returncode != 0:
            lacking.append(re.split("[<>=]", package)[0])
    return inside, f"without {', '.join(lacking)}" if lacking else "with all that was asked for"


def tested(inside: Path, tests: list[str]) -> str:
    """The last line of pytest, which runs without the GIL."""
    command = [inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    free = os.environ | {"PYTHON_GIL": "0"}
    return run(*command, cwd=ROOT, env=free).strip().splitlines()[-1].strip("= ")


def main() -> None:
    """Build, install and test."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", help="a free-threaded interpreter")
    parser.add_argument("tests", nargs="*", default=TESTS, help="files and folders of tests")
    given = parser.parse_args()
    print("interpreter:", interpreter(given.python), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "wheel").mkdir()
        wheel = build(given.python, folder / "wheel")
        print("wheel:", checked(wheel, folder / "unpacked"), flush=True)
        inside, lacking = environment(given.python, wheel, folder / "venv")
        print("environment:", lacking, flush=True)
        with_gil_as_it_is = {k: v for k, v in os.environ.items() if k != "PYTHON_GIL"}
        run(inside, "-I", "-W", "error", "-c", IMPORT, env=with_gil_as_it_is)
        print("import: leaves the GIL off", flush=True)
        print("eight threads at once:", tested(inside, AT_ONCE), flush=True)
        print(f"{' '.join(given.tests)}:", tested(inside, given.tests), flush=True)


if __name__ == "__main__":
    main()
