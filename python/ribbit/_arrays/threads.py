"""Threads of the native code, and the flag by which they are interrupted."""

from __future__ import annotations

import os

from ribbit import _core
from ribbit._arrays import checks
from ribbit._arrays.keywords import explain

__all__ = [
    "FunctionFailed",
    "InterruptFlag",
    "Interrupted",
    "num_threads",
    "set_num_threads",
    "version",
]


InterruptFlag = _core.InterruptFlag


Interrupted = _core.Interrupted


FunctionFailed = _core.FunctionFailed  # a C function of the user returned an error


def set_num_threads(n: int) -> None:
    """Set the number of threads of the native code, for the whole process.

    The default is RIBBIT_NUM_THREADS, else OMP_NUM_THREADS, else the number of cores that this
    process may use by its affinity and its control group's quota. Draws do not depend on it. On a
    loaded machine Ribbit lowers the number of threads per chain by itself.

    Parameters
    ----------
    n : int
        At least 1.

    Examples
    --------
    >>> rb.set_num_threads(2)
    """
    _core.set_num_threads(checks.integer("set_num_threads", "n", n, minimum=1, maximum=1024))


def num_threads() -> int:
    """Return how many threads the native code may use."""
    return int(_core.num_threads())


def version() -> str:
    """Return the version of the native module, which is the package's."""
    return str(_core.build_info()["version"])


def _threads_from_environment() -> None:
    text = os.environ.get("RIBBIT_NUM_THREADS", "").strip()
    if text:
        if not text.isdecimal() or not 1 <= int(text) <= 1024:
            raise ValueError(
                f"[ribbit] expected RIBBIT_NUM_THREADS as an integer from 1 to 1024, got {text!r}"
            )
        _core.set_num_threads(int(text))


_threads_from_environment()

explain(globals())
