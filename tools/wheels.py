"""Builds, repairs and checks wheels: `python -m tools.wheels [--python PYTHON ...] [--out FOLDER]`.

Needs the dependency group "wheels" and a compiler. One line per check; an interpreter that is not
there, or a check that fails, ends it. Wheels for a release are built by cibuildwheel, in images of
an old glibc (`[tool.cibuildwheel]` of pyproject.toml); the tag of one built here is what this
machine's glibc and libstdc++ allow.
"""

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_BYTES = 4_200_000  # of a wheel
MOST_SECONDS = 0.15  # of an import, more than NumPy's
# Newer ones than manylinux_2_28 has, by the prefix of the symbols' versions.
POLICY = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}


def run(*command: str | Path, **options: object) -> str:
    """What a command prints; raises with all of it where the command fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, text=True, capture_output=True, check=False, **options)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(python: str, folder: Path) -> Path:
    """A wheel of this checkout for an interpreter, which may lack pip."""
    run(*pip(python), "wheel", "-q", "--no-deps", "-w", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def pip(python: str | Path) -> list[str | Path]:
    """The pip of this interpreter, which works on another."""
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]


def repair(wheel: Path, out: Path) -> Path:
    """The wheel under the lowest tag that auditwheel finds true of it."""
    made = wheel.parent / "repaired"
    run(sys.executable, "-m", "auditwheel", "repair", "-w", made, wheel)
    (repaired,) = made.glob("*.whl")
    return Path(shutil.move(repaired, out / repaired.name))


def unpack(wheel: Path, folder: Path) -> dict[str, Path]:
    """The native parts of a wheel: the extension module and the C library."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    (core,) = folder.glob("ribbit/_core*.so")
    (library,) = folder.glob("ribbit/lib/libribbit.so.*")
    return {"_core": core, "libribbit": library}


def exported(library: Path) -> list[str]:
    """Names that a shared library shows, without those of its versions."""
    lines = run("nm", "-D", "--defined-only", library).splitlines()
    return sorted(line.split()[2] for line in lines if line.split()[1] != "A")


def newer_than_policy(library: Path) -> list[str]:
    """Symbols with versions that manylinux_2_28 does not have."""
    found = []
    for line in run("nm", "-D", "--undefined-only", library).splitlines():
        kind, _, version = line.partition("@")[2].strip("@").partition("_")
        if kind in POLICY and tuple(map(int, version.split("."))) > POLICY[kind]:
            found.append(line.split()[-1])
    return found


def without_network() -> list[str]:
    """What begins a command that shall reach no network; nothing where that is not allowed."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return []
    command = [unshare, "--net", "--map-root-user"]
    tried = subprocess.run([*command, "true"], capture_output=True, check=False)
    return command if tried.returncode == 0 else []


def clean_environment(python: str, wheel: Path, folder: Path) -> Path:
    """The interpreter of an environment that has NumPy and the wheel alone.

    NumPy comes from a folder of wheels; ribbit is installed with no index, no network where the
    machine allows that, and no program on the path: no compiler, no CMake.
    """
    house = folder / "house"
    run(*pip(python), "download", "-q", "--only-binary=:all:", "--no-deps", "-d", house, "numpy>=2")
    venv = folder / "venv"
    run(python, "-m", "venv", "--without-pip", venv)
    inside = venv / "bin" / "python"
    bare = {"PATH": str(venv / "bin"), "HOME": str(folder), "PIP_CONFIG_FILE": os.devnull}
    install = ["install", "-q", "--no-index", "--find-links", house, "--only-binary=:all:", wheel]
    run(*without_network(), *pip(inside), *install, env=bare)
    return inside


def import_seconds(python: str | Path, runs: int = 9) -> tuple[float, float, float]:
    """Processor seconds of importing NumPy, of ribbit beyond that, and of its names beyond both.

    The least of some runs: other work on the machine makes each longer.
    """
    least: dict[str, float] = {}
    both = "import numpy, ribbit"
    for _ in range(runs):
        for code in ("import numpy", both, f"{both}; ribbit.HMC, ribbit.Posterior, ribbit.mlp"):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run(python, "-I", "-c", code)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            least[code] = min(spent, least.get(code, spent))
    numpy, ours, names = least.values()
    return numpy, ours - numpy, names - ours


def check(wheel: Path, python: str) -> list[str]:
    """Lines that say what was found; raises at what must not be."""
    lines = []

    def state(good: bool, line: str) -> None:
        if not good:
            raise SystemExit(f"{wheel.name}: expected otherwise: {line}")
        lines.append(line)

    size = wheel.stat().st_size
    state(size <= MOST_BYTES, f"size: {size / 1e6:.2f} MB, at most {MOST_BYTES / 1e6}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        parts = unpack(wheel, folder / "unpacked")
        shown = exported(parts["_core"])
        state(shown == ["PyInit__core"], f"symbols of _core: {', '.join(shown)}")
        shown = exported(parts["libribbit"])
        ours = bool(shown) and all(re.fullmatch(r"ribbit_\w+(@@.*)?", name) for name in shown)
        state(ours, f"symbols of libribbit: {len(shown)}, all ribbit_*")
        newer = sorted({name for part in parts.values() for name in newer_than_policy(part)})
        versions = sorted({name.partition("@")[2].strip("@") for name in newer})
        lines.append(f"newer than manylinux_2_28: {', '.join(versions) or 'none'}")
        inside = clean_environment(python, wheel, folder)
        lines.append(
            "installed without index, compiler, " + ("network" if without_network() else "CMake")
        )
        numpy, more, names = import_seconds(inside)
        line = f"import: {more:.3f} s more than NumPy's {numpy:.3f}, at most {MOST_SECONDS}"
        state(more <= MOST_SECONDS, f"{line}; on first use of HMC and a posterior {names:.3f}")
        bare = {"PATH": str(inside.parent), "HOME": scratch}
        script = ROOT / "tools" / "twelve_lines.py"
        ran = run(inside, "-I", script, ROOT / "README.md", env=bare, cwd=scratch).splitlines()[-1]
        state("/site-packages/" in ran, f"README's first example: {ran}")
    return lines


def main() -> None:
    """Build, repair and check one wheel per interpreter."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the wheels go")
    parser.add_argument("--wheel", type=Path, help="check this one, of the first interpreter")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    wheels = []
    if arguments.wheel:
        wheels.append((arguments.wheel, arguments.python[0]))
    else:
        for python in arguments.python:
            with tempfile.TemporaryDirectory() as scratch:
                built = build(python, Path(scratch))
                wheels.append((repair(built, arguments.out), python))
    for wheel, python in wheels:
        print(wheel.name, flush=True)
        for line in check(wheel, python):
            print("  " + line)


if __name__ == "__main__":
    main()
