"""Build the core for the platforms of the wheels with one clang, and run the native tests.

``pip install ziglang cmake ninja``, then ``python -m tools.platforms [TARGET ...]``: zig brings
clang, libc++ and the C library of each target. Native tests run if this machine can run them, for
AArch64 by ``qemu-aarch64``; programs for macOS are compiled and linked. ``--write`` puts the rows
into the table of ``docs/developer/platforms.md``, whose other text is written directly in the page.
``--build FOLDER`` keeps the builds.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "developer" / "platforms.md"


@dataclass(frozen=True)
class Target:
    """CMake's options for a platform."""

    wheel: str  # its platform tag
    options: tuple[str, ...] = ()
    emulator: str | None = ""  # None: this machine cannot run it


# The smallest stack that musl gives a thread, unless a program asks for more.
SMALL = "-DCMAKE_EXE_LINKER_FLAGS=-Wl,-z,stack-size=131072"
ARM = ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64")
MAC = ("-DCMAKE_SYSTEM_NAME=Darwin", "-DCMAKE_SYSTEM_PROCESSOR=arm64")
TARGETS = {
    "x86_64-linux-gnu.2.28": Target("manylinux_2_28_x86_64"),
    "x86_64-linux-musl": Target("musllinux_1_2_x86_64", (SMALL,)),
    "aarch64-linux-musl": Target("musllinux_1_2_aarch64", (*ARM, SMALL), emulator="qemu-aarch64"),
    "aarch64-macos": Target("macosx_11_0_arm64", MAC, emulator=None),
}
# zig has other names for -march, and its linker for macOS accepts no list of exported symbols.
COMPILER = """#!/bin/sh
for word do
  shift
  case $word in
    -march=x86-64-v*) word=-march=x86_64_v${{word##*v}} ;;
    -march=armv8-a) word=-march=generic ;;
    -Wl,-exported_symbol,*) continue ;;
  esac
  set -- "$@" "$word"
done
exec "{zig}" c++ -target {target} -g0 "$@"
"""


def programs(name: str, folder: Path, zig: Path) -> list[str]:
    """Write the programs of a target; return CMake's options that name them."""
    texts = {"CXX_COMPILER": COMPILER.format(zig=zig, target=name)}
    texts |= {tool.upper(): f'#!/bin/sh\nexec "{zig}" {tool} "$@"\n' for tool in ("ar", "ranlib")}
    folder.mkdir(parents=True, exist_ok=True)
    for tool, text in texts.items():
        (folder / tool).write_text(text)
        (folder / tool).chmod(0o755)
    return [f"-DCMAKE_{tool}={folder / tool}" for tool in texts]


def run(*command: str) -> str:
    """Return the output of a command; exit with the output if the command fails."""
    environment = os.environ | {"CCACHE_COMPILERCHECK": "content"}  # the target is in the script
    done = subprocess.run(command, text=True, capture_output=True, check=False, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: failed\n{done.stdout[-3000:]}{done.stderr}")
    return done.stdout


def build(name: str, folder: Path, zig: Path) -> str:
    """Build a target and run its tests; return its row of the table."""
    target = TARGETS[name]
    options = [*programs(name, folder / "programs", zig), *target.options]
    options += ["-DRIBBIT_WERROR=ON", "-DRIBBIT_NATIVE_TESTS=ON", "-DRIBBIT_PYTHON=OFF"]
    options += ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] * bool(shutil.which("ccache"))
    if target.emulator:
        options.append(f"-DCMAKE_CROSSCOMPILING_EMULATOR={target.emulator}")
    run("cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(folder), *options)
    run("cmake", "--build", str(folder), "-j", str(os.cpu_count()))
    ran = "built, not run"
    if target.emulator is not None and (not target.emulator or shutil.which(target.emulator)):
        count = run("ctest", "--test-dir", str(folder), "-j", "2").count(" Passed ")
        ran = f"{count} native tests passed" + (" under qemu" if target.emulator else "")
    (size,) = {path.stat().st_size for path in folder.glob("cpp/capi/libribbit.*1*")}
    return f"| `{name}` | `{target.wheel}` | {size / 1e6:.2f} MB | {ran} |"


def main(arguments: list[str] | None = None) -> int:
    """Build the named targets, or all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--build", type=Path, help="keep the builds in this folder")
    parser.add_argument("--write", action="store_true", help="put the rows into the page")
    options = parser.parse_args(arguments)
    found = importlib.util.find_spec("ziglang")
    if found is None or found.origin is None:
        print("not built: pip install ziglang")
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.targets or TARGETS:
            folder = (options.build or Path(scratch)).resolve() / name
            row = build(name, folder, Path(found.origin).with_name("zig"))
            print(row, flush=True)
            if options.write:
                old = rf"(?m)^\| `{re.escape(name)}` \|.*$"
                PAGE.write_text(re.sub(old, row, PAGE.read_text()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
