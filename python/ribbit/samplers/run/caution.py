"""Warnings of a run that do not end it."""

from __future__ import annotations

import warnings

__all__ = ["warn"]


def warn(message: str, *, stacklevel: int, category: type[Warning] = RuntimeWarning) -> None:
    """Warn, `stacklevel` counted as if ``warnings.warn`` were called.

    What cannot be shown is dropped: Python's display raises where standard error is closed, and
    draws would be lost with it. A filter that turns warnings into errors is obeyed.
    """
    try:
        warnings.warn(message, category, stacklevel=stacklevel + 1)
    except Warning:
        raise
    except Exception:
        return
