"""What the C library promises stays: symbols, prototypes, constants, layouts of structs."""

import re
import shutil
import subprocess

import pytest

from tests.support.paths import CPP
from tools import abi

pytestmark = pytest.mark.skipif(
    shutil.which("nm") is None or shutil.which("cc") is None or not abi.FILE.is_file(),
    reason="needs binutils, a compiler and the source tree",
)


@pytest.fixture(scope="module")
def built() -> str:
    """What is built."""
    return abi.dump()


def changes(promised: str, built: str) -> list[str]:
    """Lines that were taken away, then those that came."""
    before, after = promised.splitlines(), built.splitlines()
    gone = [f"- {line}" for line in before if line not in after]
    return gone + [f"+ {line}" for line in after if line not in before]


def test_nothing_changes_without_a_version(built):
    found = changes(abi.FILE.read_text(encoding="utf-8"), built)
    assert not found, (
        "the C interface changed: what is taken away breaks programs; what is added goes into a "
        "new version of cpp/capi/symbols.map, then run: python -m tools.abi"
    )


def test_every_symbol_is_ours_and_has_a_version(built):
    """And every function of the header is there, and nothing else."""
    names = abi.symbols(abi.LIBRARY)
    assert all(re.fullmatch(r"ribbit_\w+@@RIBBIT_\d+\.\d+", name) for name in names)
    declared = re.findall(r"\b(ribbit_\w+)\(", abi.HEADER.read_text().replace("..._", ""))
    functions = {name for name in declared if f" {name}(" in built or f"*{name}(" in built}
    assert functions == {name.partition("@")[0] for name in names}


def test_the_library_needs_no_python():
    command = ["nm", "-D", "--undefined-only", str(abi.LIBRARY)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not re.search(r" _?Py", done.stdout)
    command = ["readelf", "-d", str(abi.LIBRARY)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "libpython" not in done.stdout
    assert "[libribbit.so.1]" in done.stdout


def test_a_change_is_noticed(tmp_path, built):
    """The control: a member in the middle, another type, a number, a symbol without a version."""
    text = abi.HEADER.read_text(encoding="utf-8")
    for old, new in {
        "  int64_t gradients;": "  int64_t gradients, more;",
        "int ribbit_abi_version(void);": "int64_t ribbit_abi_version(void);",
        "  RIBBIT_POISSON = 5,": "  RIBBIT_POISSON = 6,",
        "  int32_t save_warmup;": "  int64_t save_warmup;",
    }.items():
        assert old in text
        header = tmp_path / "ribbit.h"
        header.write_text(text.replace(old, new))
        assert changes(built, abi.dump(header)), old
    assert changes(built, built.replace("ribbit_sgld@@RIBBIT_1.0", "ribbit_sgld"))
    assert changes(built, built) == []


@pytest.mark.skipif(not CPP.is_dir(), reason="needs the source tree")
def test_the_header_is_c11_and_cpp17(tmp_path):
    include = f"-I{CPP / 'include'}"
    for language, standard, header in (("c", "c11", "h"), ("c++", "c++17", "hpp")):
        source = tmp_path / f"only.{header}.{'c' if language == 'c' else 'cc'}"
        source.write_text(f"#include <ribbit/ribbit.{header}>\n")
        command = ["cc", f"-std={standard}", "-pedantic", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([*command, "-fsyntax-only", include, str(source)], check=True)
