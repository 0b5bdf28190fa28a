"""Optional packages that are missing: the error says which extra brings them."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator

__all__ = ["advice", "missing", "need", "needing"]

# The extra, or the extras to choose from, that brings a package.
_EXTRAS = {
    "arviz_base": ("arviz",),
    "cupy": ("cuda13", "cuda12"),
    "google_crc32c": ("store",),
    "jax": ("jax",),
    "matplotlib": ("plot",),
    "mpi4py": ("mpi",),
    "numpyro": ("numpyro",),
    "pymc": ("pymc",),
    "sklearn": ("sklearn",),
    "torch": ("torch",),
    "zarr": ("store",),
}


def advice(package: str, extra: str | None = None) -> str:
    """Return the command that installs a package."""
    extras = _EXTRAS[package] if extra is None else (extra,)
    return "pip install " + " or ".join(f'"ribbit[{one}]"' for one in extras)


def missing(
    function: str, package: str, error: ImportError | None = None, extra: str | None = None
) -> ModuleNotFoundError:
    """Return the error for a package that is not installed, or whose import raised `error`."""
    absent = isinstance(error, ModuleNotFoundError) and sys.modules.get(package) is None
    return ModuleNotFoundError(
        f"[{function}] expected {package}, got {'none' if error is None or absent else error}: "
        f"{advice(package, extra)}",
        name=package,
    )


def need(function: str, *packages: str) -> None:
    """Raise for the first of `packages` that is not installed, without importing any."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            raise missing(function, name)


@contextlib.contextmanager
def needing(function: str, package: str, extra: str | None = None) -> Iterator[None]:
    """Raise an error with the command that installs `package` if the block cannot import it."""
    try:
        yield
    except ImportError as error:
        if (error.name or package).partition(".")[0] != package:
            raise
        raise missing(function, package, error, extra) from error
