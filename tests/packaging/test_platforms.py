"""Builds for the platforms of the wheels: the page's rows, what is missing, one built whole."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tools import platforms


def test_the_page_has_a_row_for_each() -> None:
    rows = re.findall(
        r"^\| `(\S+)` \| `(\S+)` \| [\d.]+ MB \| .+ \|$", platforms.PAGE.read_text(), re.M
    )
    assert rows == [(name, target.wheel) for name, target in platforms.TARGETS.items()]


def test_what_is_missing_is_named_and_fails(monkeypatch, capsys) -> None:
    monkeypatch.setattr(platforms.importlib.util, "find_spec", lambda name: None)
    assert platforms.main([]) == 1
    assert capsys.readouterr().out == "not built: pip install ziglang\n"


def test_the_compiler_is_told_names_of_processors_that_it_knows(tmp_path: Path) -> None:
    """The script hands on all other words as they are, spaces within included."""
    shown = tmp_path / "zig"
    shown.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    shown.chmod(0o755)
    platforms.programs("a-b-c", tmp_path / "programs", shown)
    words = ["-march=x86-64-v3", "-march=armv8-a", "-Wl,-exported_symbol,_a", "-DA=b c"]
    command = [str(tmp_path / "programs" / "CXX_COMPILER"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = ["c++", "-target", "a-b-c", "-g0"]
    expected += ["-march=x86_64_v3", "-march=generic", "-DA=b c"]
    assert done.stdout.splitlines() == expected


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None or shutil.which("ninja") is None,
    reason="needs ziglang, cmake, ninja",
)
# Without AArch64's musl, on which the page says what check_math's reference lacks.
@pytest.mark.parametrize("name", [n for n in platforms.TARGETS if n != "aarch64-linux-musl"])
def test_a_target_builds_and_its_tests_pass(name: str, capsys) -> None:
    """The first build of a target compiles its C library, too: minutes on two cores."""
    assert platforms.main([name]) == 0
    emulator = platforms.TARGETS[name].emulator
    ran = "built, not run" if emulator is None else "native tests passed"
    assert ran in capsys.readouterr().out
