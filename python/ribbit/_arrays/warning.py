"""The function that issues every warning of the library, at the user's line."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from types import FrameType

from ribbit.errors import RibbitWarning

_OURS = "ribbit"
# These packages call the library for the user, as the standard library does.
_BETWEEN = {"dask", "distributed", "imblearn", "jax", "joblib", "mpi4py", "numpy", "numpyro"}
_BETWEEN |= {"pandas", "pymc", "sklearn", "torch", *sys.stdlib_module_names}

_here = threading.local()


@contextlib.contextmanager
def warnings_to(take: Callable[[str, type[RibbitWarning]], None]) -> Iterator[None]:
    """Give this thread's warnings to `take` in the block, and show none but those it issues."""
    before = getattr(_here, "take", None)

    def given(message: str, category: type[RibbitWarning]) -> None:
        _here.take = before
        try:
            take(message, category)
        finally:
            _here.take = given

    _here.take = given
    try:
        yield
    finally:
        _here.take = before


def warn(message: str, category: type[RibbitWarning] = RibbitWarning) -> None:
    """Warn at the line of the user's program that called the library."""
    # A warning that cannot be shown is dropped: if standard error is closed Python raises, and
    # draws would be lost. A filter that turns warnings into errors is obeyed.
    take = getattr(_here, "take", None)
    if take is not None:
        take(message, category)
        return
    frame = _caller()
    names = frame.f_globals
    try:
        warnings.warn_explicit(
            message,
            category,
            frame.f_code.co_filename,
            frame.f_lineno,
            names.get("__name__", "<string>"),
            names.setdefault("__warningregistry__", {}),
        )
    except Warning:
        raise
    except Exception:
        return


def _caller() -> FrameType:
    """Return the user's innermost frame; in a thread without one, the frame that called us."""
    frame: FrameType | None = sys._getframe(1)
    found = frame
    while frame is not None:
        package = _package(frame)
        if package == _OURS:
            found = frame.f_back or frame
        elif package not in _BETWEEN:
            return frame
        frame = frame.f_back
    assert found is not None
    return found


def _package(frame: FrameType) -> str:
    """Return the package of a frame's module, also under ``python -m package``."""
    name = str(frame.f_globals.get("__name__", ""))
    if name == "__main__":
        name = frame.f_globals.get("__package__") or name
    return name.partition(".")[0]
