"""What a build from source says where there is no compiler for it."""

import importlib.util
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support.paths import ROOT

FOLDER = ROOT / "build_backend"
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir() or importlib.util.find_spec("scikit_build_core") is None,
    reason="needs the source tree and scikit-build-core",
)


def hook(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a hook of the backend prints, in a process of its own as a frontend would ask it."""
    arguments = "''" if name == "build_wheel" else ""
    code = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import backend; "
    code += f"print(backend.{name}({arguments}))"
    names = {"CXX", "CMAKE_ARGS"}
    inherited = {k: v for k, v in os.environ.items() if k not in names}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env={**inherited, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", ["get_requires_for_build_wheel", "build_wheel"])
def test_no_compiler_is_one_line(name: str, tmp_path: Path) -> None:
    done = hook(name, PATH=str(tmp_path))
    assert done.returncode == 1
    assert not done.stdout
    (line,) = done.stderr.splitlines()
    assert "got no 'c++': install g++ 11 or newer" in line


def test_another_compiler_is_named(tmp_path: Path) -> None:
    """It begins, but it is no GCC."""
    other = tmp_path / "other++"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    for environment in ({"CXX": f"{other} -g"}, {"CMAKE_ARGS": f"-DCMAKE_CXX_COMPILER={other}"}):
        done = hook("get_requires_for_build_editable", **environment)
        (line,) = done.stderr.splitlines()
        assert done.returncode == 1
        assert f"got '{other}', which is none that can: install" in line


def test_what_is_here_is_good() -> None:
    """And hooks that compile nothing never ask."""
    done = hook("get_requires_for_build_wheel")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[")
    assert hook("get_requires_for_build_sdist", PATH="").returncode == 0


def test_a_source_distribution_holds_what_a_build_and_its_tests_need(tmp_path: Path) -> None:
    """And nothing that a build left behind."""
    code = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import backend; "
    code += f"print(backend.build_sdist({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    (made,) = tmp_path.iterdir()
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"build_backend/backend.py", "CMakeLists.txt", "LICENSE", "PKG-INFO"}
    assert needed | {"tests/conftest.py"} <= names
    assert {name for name in names if name.startswith("cpp/cpu/isa/")}
    trash = (".so", ".o", ".a", ".pyc", ".whl", ".out")
    assert not {name for name in names if name.endswith(trash)}
    assert not {name for name in names if name.startswith(("build/", "dist/", ".ci/", ".github/"))}
