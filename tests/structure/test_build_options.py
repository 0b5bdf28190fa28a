"""What the build makes of ``RIBBIT_CUDA``; needs CMake and the source tree."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(
    shutil.which("cmake") is None or not (ROOT / "CMakeLists.txt").is_file(),
    reason="needs CMake and the source tree",
)


def configure(folder: Path, *options: str, compiler: str = "/no/nvcc") -> tuple[int, str]:
    """Exit code and output, in one line, of a configuration; CUDACXX is `compiler`."""
    command = ["cmake", "-S", str(ROOT), "-B", str(folder), f"-DPython_EXECUTABLE={sys.executable}"]
    done = subprocess.run(
        [*command, *options],
        env={**os.environ, "CUDACXX": compiler},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("value", ["1", "TRUE", "on", "Yes"])
def test_what_insists(tmp_path, value):
    code, text = configure(tmp_path, f"-DRIBBIT_CUDA={value}")
    assert code != 0
    assert f"RIBBIT_CUDA={value}: no CUDA compiler found" in text
    code, text = configure(tmp_path, f"-DRIBBIT_CUDA={value}", "-DRIBBIT_PYTHON=OFF")
    assert code != 0
    assert "expected RIBBIT_PYTHON=ON" in text


@pytest.mark.parametrize("value", ["0", "off", "No", "FALSE"])
def test_what_leaves_it_out(tmp_path, value):
    """Nothing is looked for: AUTO, the control, warns of a CUDACXX that is none."""
    _, text = configure(tmp_path, f"-DRIBBIT_CUDA={value}")
    assert "CUDA module: OFF" in text
    assert "CUDACXX" not in text
    _, text = configure(tmp_path, "-DRIBBIT_CUDA=auto")
    assert "CUDA module: OFF" in text
    assert 'CUDACXX: expected a CUDA compiler, got "/no/nvcc"' in text


@pytest.mark.parametrize("value", ["perhaps", "", "2"])
def test_anything_else_is_an_error(tmp_path, value):
    code, text = configure(tmp_path, f"-DRIBBIT_CUDA={value}", "-DRIBBIT_PYTHON=OFF")
    assert code != 0
    assert f'RIBBIT_CUDA: expected AUTO, ON or OFF, got "{value}"' in text


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs a CUDA compiler")
def test_a_compiler_that_comes_later_is_found(tmp_path):
    assert "CUDA module: OFF" in configure(tmp_path)[1]
    assert "CUDA module: ON" in configure(tmp_path, compiler=shutil.which("nvcc"))[1]
