"""The build backend: scikit-build-core's, behind a look for a compiler.

Without one CMake ends in a page of its own words; here it is a line that says what to install.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from typing import Any

from scikit_build_core import build as _build

# What the sources need: GCC's or clang's names of the instructions of x86-64, C++20 and its
# library. Apple counts clang's versions otherwise, and has no x86-64 here.
_PROBE = """
#if defined(__clang__)
#if !defined(__APPLE__) && __clang_major__ < 19
#error "older than clang 19"
#endif
#elif __GNUC__ < 11
#error "older than GCC 11"
#endif
#include <concepts>
int main() { return 0; }
"""
_INSTALL = (
    "install g++ 11 or newer (Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; "
    "conda: conda install -c conda-forge gxx; macOS: xcode-select --install) or name one in CXX; "
    "a wheel needs no compiler"
)


def _compiler() -> list[str]:
    """Return the command that CMake would compile with."""
    named = re.search(r"-DCMAKE_CXX_COMPILER(?::\w+)?=(\S+)", os.environ.get("CMAKE_ARGS", ""))
    if named is not None:
        return [named.group(1).strip("\"'")]
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    return [next((name for name in ("c++", "g++") if shutil.which(name)), "c++")]


def _missing() -> str | None:
    """Return what a build would lack, or None."""
    command = _compiler()
    try:
        done = subprocess.run(
            [*command, "-std=c++20", "-E", "-x", "c++", "-"],
            input=_PROBE,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return f"no {command[0]!r}"
    return None if done.returncode == 0 else f"{command[0]!r}, which is none that can"


def _check() -> None:
    """End the build with one line where there is no compiler."""
    # Of another system's compiler CMake's toolchain file knows more.
    if "CMAKE_TOOLCHAIN_FILE" in os.environ.get("CMAKE_ARGS", ""):
        return
    missing = _missing()
    if missing is not None:
        # No traceback: the last line is what there is to read.
        print(f"[ribbit] expected a compiler for C++20, got {missing}: {_INSTALL}", file=sys.stderr)
        raise SystemExit(1)


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Return what a build needs; the first thing that a frontend asks."""
    _check()
    return _build.get_requires_for_build_wheel(config_settings)


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """Return what an editable build needs."""
    _check()
    return _build.get_requires_for_build_editable(config_settings)


def build_wheel(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel; without isolation this is the first step that needs a compiler."""
    _check()
    return _build.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """Build an editable wheel."""
    _check()
    return _build.build_editable(wheel_directory, config_settings, metadata_directory)


def __getattr__(name: str) -> Any:
    """Return the other hooks, which compile nothing."""
    return getattr(_build, name)
