"""Warnings of a run that do not end it."""

from __future__ import annotations

import warnings

from ribbit.samplers.run.holder import holder

__all__ = ["warn"]


def warn(message: str, *, stacklevel: int, category: type[Warning] = RuntimeWarning) -> None:
    """Warn, `stacklevel` counted as if ``warnings.warn`` were called.

    Of a background run it is for who waits for the run. What cannot be shown is dropped: Python's
    display raises where standard error is closed, and draws would be lost with it. A filter that
    turns warnings into errors is obeyed.
    """
    holding = holder()
    if holding is not None:
        holding.warned(message, category)
        return
    try:
        warnings.warn(message, category, stacklevel=stacklevel + 1)
    except Warning:
        raise
    except Exception:
        return
