"""Optional packages that are missing: the error says how to install them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

# What pip installs for a package: a line of an extra of pyproject.toml. Messages name no extra of
# Ribbit, which is on no index.
_CUDA = '"cupy-cuda{0}x>=14.2,<16" "cuda-toolkit[cudart,nvrtc]=={0}.*"'
_REQUIREMENTS = {
    "arviz_base": '"arviz-base>=0.8"',
    "cupy": f"{_CUDA.format(13)} or pip install {_CUDA.format(12)}",
    "jax": '"jax>=0.5.0"',
    "matplotlib": '"matplotlib>=3.8"',
    "mpi4py": '"mpi4py>=4" mpich',
    "numpyro": '"numpyro>=0.18"',
    "pymc": '"pymc>=5.21,<6"',
    "sklearn": '"scikit-learn>=1.6"',
    "torch": '"torch>=2.5"',
    "zarr": '"zarr>=3.0.8,<4"',
}


def advice(package: str) -> str:
    """Return the command that installs a package."""
    return f"pip install {_REQUIREMENTS[package]}"


def missing(function: str, package: str, error: ImportError | None = None) -> ModuleNotFoundError:
    """Return the error for a package that is not installed, or whose import raised `error`."""
    absent = isinstance(error, ModuleNotFoundError) and sys.modules.get(package) is None
    return ModuleNotFoundError(
        f"[{function}] expected {package}, got {'none' if error is None or absent else error}: "
        f"{advice(package)}",
        name=package,
    )


@contextlib.contextmanager
def needing(function: str, package: str) -> Iterator[None]:
    """Raise an error with the command that installs `package` if the block cannot import it."""
    try:
        yield
    except ImportError as error:
        if (error.name or package).partition(".")[0] != package:
            raise
        raise missing(function, package, error) from error
