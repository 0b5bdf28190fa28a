"""Programs that are built against an installed Ribbit: the wheel's files, or those of a prefix.

A prefix (``cmake --install``) is tested where RIBBIT_PREFIX names one; RIBBIT_PREFIX_FLAGS are
what its programs are compiled with, such as a sanitizer.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import ribbit as rb
from tests.support.paths import ROOT

HERE, PAGE = Path(__file__).parent, ROOT / "docs/guide/c_abi.md"
PREFIXES = {"wheel": Path(rb.get_include()).parent}
if "RIBBIT_PREFIX" in os.environ:
    PREFIXES["prefix"] = Path(os.environ["RIBBIT_PREFIX"])

pytestmark = pytest.mark.skipif(
    shutil.which("cmake") is None or shutil.which("cc") is None or not PAGE.is_file(),
    reason="needs CMake, a compiler and the source tree",
)


def run(*command: object, **environment: str) -> str:
    """What a program prints; it must succeed."""
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def examples(folder: Path) -> None:
    """Write the programs of the page to a folder."""
    text = PAGE.read_text(encoding="utf-8")
    for language in ("c", "cpp"):
        (code,) = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
        assert len(code.splitlines()) <= 30
        (folder / f"example.{language}").write_text(code)


@pytest.fixture(scope="module", params=PREFIXES)
def programs(request, tmp_path_factory) -> Path:
    """Folder of programs that CMake has built against an installation."""
    folder = tmp_path_factory.mktemp(request.param)
    examples(folder)
    flags = os.environ.get("RIBBIT_PREFIX_FLAGS", "") if request.param == "prefix" else ""
    run(
        "cmake",
        *("-S", HERE / "consumer", "-B", folder / "build"),
        f"-DCMAKE_PREFIX_PATH={PREFIXES[request.param]}",
        f"-DFOLDER={folder}",
        f"-DCMAKE_C_FLAGS={flags}",
        f"-DCMAKE_CXX_FLAGS={flags}",
    )
    run("cmake", "--build", folder / "build", "--parallel", "2")
    return folder / "build"


@pytest.fixture(scope="module")
def answer() -> str:
    """What Python says to the program of the page."""
    x = np.arange(40, dtype=np.float32) / np.float32(20) - np.float32(1)
    target = rb.Posterior(
        rb.mlp(1, (8,), 1, activation="tanh"),
        x[:, None],
        x * x,
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.1),
    )
    sampler = rb.HMC(target)
    p = sampler.sample(
        300, warmup=300, seed=1, chains=4, init=target.init(1, 4), progress=False
    ).predict(np.array([[0.5]], np.float32))
    return f"f(0.5) = {p.mean[0]:.3f} +- {p.epistemic_std[0]:.3f}\n"


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")  # as the page's program
def test_the_programs_of_the_page(programs, answer):
    found = {path.name: run(path) for path in programs.glob("example_*") if path.is_file()}
    assert {"example_c", "example_cpp"} <= set(found)
    assert set(found.values()) == {answer}
    if (PREFIXES["wheel"] / "lib") not in programs.parents and "prefix" in programs.parent.name:
        assert "example_static" in found


def test_the_header_for_cpp(programs):
    assert run(programs / "check_hpp") == "fine\n"


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="needs pkg-config")
@pytest.mark.parametrize("prefix", PREFIXES)
def test_pkg_config(prefix, tmp_path):
    if prefix == "prefix" and os.environ.get("RIBBIT_PREFIX_FLAGS"):
        pytest.skip("a sanitizer's library")
    examples(tmp_path)
    lib = next(PREFIXES[prefix].glob("lib*/**/pkgconfig/ribbit.pc")).parents[1]
    flags = run(
        *("pkg-config", "--cflags", "--libs", "ribbit"), PKG_CONFIG_PATH=str(lib / "pkgconfig")
    )
    program = tmp_path / "example"
    run("cc", "-std=c11", tmp_path / "example.c", "-o", program, *flags.split())
    assert run(program, LD_LIBRARY_PATH=str(lib)).startswith("f(0.5) = 0.")
    said = run("pkg-config", "--modversion", "ribbit", PKG_CONFIG_PATH=str(lib / "pkgconfig"))
    assert said.strip() == rb.__version__


def test_cmake_finds_the_package_by_its_entry_point():
    """What scikit-build-core makes of it: ribbit_ROOT is the package's folder."""
    (entry,) = [
        e for e in importlib.metadata.entry_points(group="cmake.root") if e.name == "ribbit"
    ]
    assert entry.load() is rb
    assert Path(rb.get_cmake_dir()).is_relative_to(PREFIXES["wheel"])
    assert any(
        (Path(folder) / "lib/cmake/ribbit/ribbit-config.cmake").is_file() for folder in rb.__path__
    )
