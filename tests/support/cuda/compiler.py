"""Kernels compiled by g++ for the CPU: each once, for all tests and all processes that run them.

The temporary directory keeps a folder for each set of sources and options. In it every kernel that
was compiled has a file that names its library. Files appear by renaming, so nobody reads half of
one, and under a lock, so nobody compiles what another process is compiling.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ribbit._arrays import kernel_sources
from tests.support.paths import CPP

# -Og: g++ takes seven tenths of the time of -O1, kernels run a fifth longer; most run for less
# time than g++ takes.
FLAGS = ["-std=c++17", "-Og", "-g1", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra"]
FLAGS += ["-Werror", "-Wno-psabi", "-Winvalid-pch", "-fPIC"]
if platform.machine() == "x86_64":  # elsewhere a fused multiply-add is there without a flag
    FLAGS += ["-march=x86-64-v3"]
PHASES = str(Path(__file__).with_name("cuda_on_cpu.h"))
FIBERS = str(Path(__file__).with_name("cuda_on_fibers.h"))
# pragmas of CUDA's; shared memory is one array per library, not one per process
FIBER_FLAGS = ["-Wno-unknown-pragmas", "-fno-gnu-unique", "-fno-strict-aliasing"]
FIBER_FLAGS += ["-Wno-maybe-uninitialized"]  # cuda_on_cpu.h fills memory with NaN, for certainty
ALL = "all.h"  # of a folder: what its libraries include
MOST = 48  # kernels of a library: processes that want the same list share its libraries out

NEWEST, UNUSED = 4, 24 * 3600  # folders that stay, and seconds after which others go


def digest(*ingredients: str) -> str:
    return hashlib.sha256("\n".join(ingredients).encode()).hexdigest()


def folder(*names: str) -> Path:
    """A folder beside the temporary files of this user, made where there is none."""
    base = Path(os.environ.get("RIBBIT_KERNEL_CACHE", Path(tempfile.gettempdir())))
    path = Path(base, f"ribbit-kernels-{os.getuid()}", *names)
    path.mkdir(parents=True, exist_ok=True)
    return path


def used(place: Path) -> Path:
    """Return a folder of one set of sources, marked as used; old ones of others are removed."""
    os.utime(place)
    ages: dict[Path, float] = {}
    for path in place.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process may remove it, too
            if path.is_dir() and len(path.name) == len(place.name):
                ages[path] = time.time() - path.stat().st_mtime
    for path in sorted(ages, key=lambda path: ages[path])[NEWEST:]:
        if ages[path] > UNUSED:
            shutil.rmtree(path, ignore_errors=True)
    return place


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock beside a file; False where another holds it and `wait` is not asked for."""
    with open(path.with_name(path.name + ".lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def written(path: Path, make: Callable[[Path], None]) -> Path:
    """Let `make` write a file, which appears when it is whole."""
    made = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.tmp")
    make(made)
    return made.replace(path)


def kept(suffix: str, make: Callable[[Path], None], *ingredients: str) -> Path:
    """Path of what ``make(path)`` wrote when it was last called for these ingredients."""
    path = folder() / (digest(*ingredients) + suffix)
    if not path.exists():
        with locked(path, wait=True):
            if not path.exists():
                written(path, make)
    return path


@cache
def version() -> str:
    done = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True)
    return done.stdout.partition("\n")[0]


class Compiler:
    """Kernels by name from shared libraries, compiled when they are first asked for.

    Parameters
    ----------
    flags : sequence of str
        More flags of g++; those in RIBBIT_KERNEL_FLAGS come on top.
    headers : sequence of str
        With the kernels: in ``cpp``, or absolute paths.
    runner : str
        The header that runs a block.
    """

    def __init__(self, flags=(), headers=kernel_sources.HEADERS, runner=PHASES):
        more = os.environ.get("RIBBIT_KERNEL_FLAGS", "").split()
        self.flags = [*FLAGS, *flags, *more, *(FIBER_FLAGS if runner == FIBERS else ())]
        self.headers = (runner, *headers)
        # kernels with a fault, or of a test's own, have a library or two
        self.keeps_headers = headers is kernel_sources.HEADERS and not flags
        self.loaded: dict[str, Any] = {}

    def __call__(self, names):
        missing = [name for name in names if name not in self.loaded]
        if missing:
            place = self._folder()
            _compile(missing, place, self._library)
            for name in missing:
                library, number = _place_of(name, place).read_text().split()
                self.loaded[name] = _entry(place / library, number)
        return {name: self.loaded[name] for name in names}

    def text(self, names):
        """C++ of a library; launch_i returns the size of its arguments, -1 after a fault."""
        lines = [f'#include "{ALL}"', "using namespace ribbit; using namespace ribbit::cuda;"]
        for i, name in enumerate(names):
            lines.append(
                f'extern "C" long long launch_{i}(const void* a, long long x, long long y, '
                f"long long z, unsigned long long seed) {{ using K = {name}; "
                "static_assert(sizeof(K) % 8 == 0); "
                "if (a == nullptr) return x == 0 ? sizeof(K) : sizeof(typename K::Shared); "
                "K k; std::memcpy(static_cast<void*>(&k), a, sizeof k); "
                "try { run_on_cpu(k, Grid{x, y, z}, seed); } catch (...) { return -1; } "
                "return sizeof(K); }"
            )
        return "\n".join(lines) + "\n"

    def _folder(self):
        # All that may be included, of the source tree: an installed package lacks what runs them.
        own = [p for what in ("core/*_hd.h", "cuda/*/*.h") for p in sorted(CPP.glob(what))]
        own += [Path(p) if p.startswith("/") else CPP / p for p in self.headers]
        texts = [path.read_text() for path in own]
        return used(folder(digest(version(), *self.headers, *self.flags, *texts)))

    def _library(self, names, path):
        self._read_headers(path.parent)
        code = path.with_suffix(".cpp")
        code.write_text(self.text(names))
        self._run("-shared", str(code), "-o", str(path))

    def _read_headers(self, place):
        """Read all headers once for the libraries of a folder, of which most have few kernels."""
        read = place / f"{ALL}.gch"
        if read.exists():
            return
        with locked(read, wait=True):
            if read.exists():
                return
            lines = "".join(f'#include "{h}"\n' for h in self.headers)
            written(place / ALL, lambda made: made.write_text(lines))
            if self.keeps_headers:
                given = "-x", "c++-header", str(place / ALL)
                written(read, lambda made: self._run(*given, "-o", str(made)))

    def _run(self, *arguments):
        command = ["g++", *self.flags, f"-I{CPP}", *arguments]
        # an interpreter under AddressSanitizer does not want its compiler there too
        quiet = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=quiet)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)


def _compile(names: Sequence[str], place: Path, library: Callable[..., None]) -> None:
    """See to it that every kernel lies in a library of the folder `place`."""
    new = [name for name in dict.fromkeys(names) if not _place_of(name, place).exists()]
    parts = [new[i : i + MOST] for i in range(0, len(new), MOST)]
    for wait in (False, True):  # what nobody compiles at present, then what others do
        for part in parts:
            path = place / (digest(*part) + ".so")
            with locked(path, wait=wait) as mine:
                if not mine or all(_place_of(name, place).exists() for name in part):
                    continue
                written(path, lambda made, part=part: library(part, made))
                for i, name in enumerate(part):
                    line = f"{path.name} {i}"
                    written(_place_of(name, place), lambda made, line=line: made.write_text(line))


def _place_of(name: str, place: Path) -> Path:
    """The file that names a kernel's library and its number there."""
    return place / (digest(name) + ".at")


def _entry(path: Path, number: str) -> Any:
    entry = getattr(ctypes.CDLL(str(path)), f"launch_{number}")
    entry.argtypes = [ctypes.c_char_p, *[ctypes.c_longlong] * 3, ctypes.c_ulonglong]
    entry.restype = ctypes.c_longlong
    return entry
