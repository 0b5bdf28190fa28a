"""Writes python/ribbit/_core.pyi from the built module: `python -m tests.stubs`."""

import subprocess
import sys
import tempfile
from pathlib import Path

STUB = Path(__file__).resolve().parents[1] / "python" / "ribbit" / "_core.pyi"


def generate() -> str:
    """Return the text of the stub that pybind11-stubgen makes of ribbit._core."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "pybind11_stubgen", "ribbit._core", "-o", folder],
            check=True,
            capture_output=True,
        )
        text = (Path(folder) / "ribbit" / "_core.pyi").read_text()
    # A null pointer is what the binding takes for None.
    text = text.replace("interrupt: InterruptFlag = None", "interrupt: InterruptFlag | None = None")
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", "_core.pyi", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    STUB.write_text(generate())
