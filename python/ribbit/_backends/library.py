"""Where the C library, its headers and its CMake package lie."""

# They are installed beside the native module, in the layout of a prefix:
# ``include/ribbit/ribbit.h``, ``lib/libribbit.so.1``, ``lib/cmake/ribbit``,
# ``lib/pkgconfig/ribbit.pc``.

from __future__ import annotations

from pathlib import Path

from ribbit import _core
from ribbit._arrays.keywords import explain

__all__ = ["get_cmake_dir", "get_include"]


def get_include() -> str:
    """Return the folder of ``ribbit/ribbit.h`` and ``ribbit/ribbit.hpp``, for ``-I``.

    Returns
    -------
    str

    Raises
    ------
    FileNotFoundError
        If this installation has no headers.

    Examples
    --------
    >>> import os, ribbit as rb
    >>> os.path.isfile(os.path.join(rb.get_include(), "ribbit", "ribbit.h"))
    True
    """
    return _folder("get_include", "include", "ribbit/ribbit.h")


def get_cmake_dir() -> str:
    """Return the folder of CMake's package, for ``cmake -Dribbit_DIR=...``.

    ``find_package(ribbit)`` then gives the target ``ribbit::ribbit``. scikit-build-core finds it by
    itself. ``pkgconfig/ribbit.pc`` is two folders above.

    Returns
    -------
    str

    Raises
    ------
    FileNotFoundError
        If this installation has no such package.

    Examples
    --------
    >>> import os, ribbit as rb
    >>> os.path.isfile(os.path.join(rb.get_cmake_dir(), "ribbit-config.cmake"))
    True
    """
    return _folder("get_cmake_dir", "lib/cmake/ribbit", "ribbit-config.cmake")


def _folder(function: str, below: str, file: str) -> str:
    folder = Path(_core.__file__).resolve().parent / below
    if not (folder / file).is_file():
        raise FileNotFoundError(
            f"[{function}] expected {file} in {folder}: is this an installation of the wheel?"
        )
    return str(folder)


explain(globals())
