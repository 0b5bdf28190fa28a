"""cuBLASLt made of the CPU (``cublaslt_on_cpu.cpp``) for the device that is made of it."""

import ctypes
import importlib.util
import subprocess
from functools import cache
from pathlib import Path

from ribbit._arrays.cublaslt import CublasLt
from tests.support.cuda.compiler import kept, version
from tests.support.cuda.cpu_device import NAMESPACE

SOURCE = Path(__file__).with_name("cublaslt_on_cpu.cpp")
FLAGS = ["-std=c++20", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-fPIC"]
BITS, MOST = 10, 1 << 30  # of TF32 behind the leading one; batches


def compiled(path, *flags):
    """Compile the library to a file."""
    command = ["g++", *FLAGS, *flags, str(SOURCE), "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)


@cache
def path():
    """Where the library lies; compiled when it is first asked for."""
    made = kept(".so", lambda to: compiled(to, "-shared"), version(), SOURCE.read_text(), *FLAGS)
    return str(made)


def stand_in():
    """The library with nothing known of any product yet."""
    return CublasLt(path(), NAMESPACE)


def behave(bits=BITS, cuts=False, swallows=False, most=MOST, create=0, heuristic=0, check=0):
    """Set how it behaves: as the library's documentation says, or not.

    bits: kept of a factor; cuts: not rounded; swallows: ReLU makes 0 of NaN; most: batches;
    create, heuristic, check: statuses of functions that fail.
    """
    ctypes.CDLL(path()).stand_in(
        bits, int(cuts), int(swallows), most, *map(int, (create, heuristic, check))
    )


def headers():
    """Folders with cublasLt.h and with the headers of the CUDA runtime, None where one is not."""
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(folder) for folder in (spec.submodule_search_locations if spec else ())]
    places = [*(path for wheel in wheels for path in wheel.glob("*/include"))]
    places.append(Path("/usr/local/cuda/include"))
    found = [
        next((place for place in places if (place / name).exists()), None)
        for name in ("cublasLt.h", "driver_types.h")
    ]
    return None if None in found else found


def alive():
    """Descriptors that nobody has destroyed."""
    counted = ctypes.CDLL(path()).stand_in_alive
    counted.restype = ctypes.c_longlong
    return counted()
