"""Writes the stub of the native module, `python -m tools.stubs`."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "python" / "ribbit"
MODULE = "_core"


def generate(module: str) -> str:
    """Return the text of the stub that pybind11-stubgen makes of a native module of ribbit."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "pybind11_stubgen", f"ribbit.{module}", "-o", folder],
            check=True,
            capture_output=True,
        )
        text = (Path(folder) / "ribbit" / f"{module}.pyi").read_text()
    # A null pointer is what the binding takes for None.
    text = text.replace("interrupt: InterruptFlag = None", "interrupt: InterruptFlag | None = None")
    for bare, full in (
        ("dict", "dict[str, typing.Any]"),
        ("list", "list[typing.Any]"),
        ("tuple", "tuple[typing.Any, ...]"),
    ):
        text = re.sub(rf"(: |-> ){bare}(?=[,:)=\s])", rf"\1{full}", text)
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", f"{module}.pyi", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    (FOLDER / f"{MODULE}.pyi").write_text(generate(MODULE))
