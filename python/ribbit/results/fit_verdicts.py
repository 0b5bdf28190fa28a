"""Whether a fit had ended: the objective over its epochs.

Shapes: E points of a history, M members.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ribbit.results.summary import Row, Summary

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["History", "check_fit", "summary_of_fit"]

Array: TypeAlias = "npt.NDArray[np.float64]"
History: TypeAlias = "dict[str, npt.NDArray[np.float64]]"

_FEWEST = 8  # points of a history that say anything
_MOVED = 0.01  # nats per row over the last fifth: predictive densities are a percent better
_NOISE = 4.0  # standard errors


class Ending(NamedTuple):
    """How the objective moved in the last fifth of a history, against the fifth before.

    Attributes
    ----------
    change : float
        In nats per row; NaN for a history that is too short.
    certain : bool
        Whether that is beyond the noise of the points and large enough to matter.
    """

    change: float
    certain: bool


def ending(values: Array, rows: int) -> Ending:
    """Compare the last fifth of (E,) values with the fifth before."""
    if len(values) < _FEWEST or not np.isfinite(values[-_FEWEST:]).all():
        return Ending(math.nan, False)
    width = max(2, len(values) // 5)
    late = values[-2 * width :]
    moved = float(late[width:].mean() - late[:width].mean())
    # sd of a point from the median of second differences, where a steady rise cancels
    bends = np.diff(values[-max(_FEWEST, 3 * width) :], n=2)
    noise = 1.4826 * float(np.median(np.abs(bends))) / math.sqrt(6.0)
    certain = abs(moved) > max(_MOVED * rows, _NOISE * noise * math.sqrt(2.0 / width))
    return Ending(moved / rows, certain)


def check_fit(
    function: str, history: Mapping[str, Array], rows: int, advice: str | None = None
) -> str | None:
    """Return what to warn of when the objective still rose at the end, else None."""
    found = ending(_objective(history), rows)
    if not (found.certain and found.change > 0.0):
        return None
    return (
        f"[{function}] expected an objective that has settled, got one that still rose by "
        f"{found.change:.2g} per row over the last fifth of the epochs: "
        f"{advice or _LONGER}"
    )


_LONGER = (
    "train longer (resume=fit goes on) and let the learning rate fall "
    "(schedule=rb.schedules.cosine(num_steps))"
)


def summary_of_fit(fit: Any, title: str) -> Summary:
    """Return the table of a fit with `history` and `settings`."""
    values, rows = _objective(fit.history), int(fit.settings.get("num_rows", 1))
    name = "ELBO" if "elbo" in fit.history else "objective"
    lines = [Row("epochs", str(fit.settings.get("num_epochs", "not known")))]
    if len(values):
        lines.append(Row(f"{name} per row", f"{values[0] / rows:.4g} -> {values[-1] / rows:.4g}"))
    found = ending(values, rows)
    calm = None if math.isnan(found.change) else not found.certain
    if calm is not None:
        wanted = f"within {_MOVED}, or noise"
        lines.append(Row("change over the last fifth", f"{found.change:+.2g}", wanted, calm))
    for option in ("learning_rate", "schedule"):
        if option in fit.settings:
            lines.append(Row(option.replace("_", " "), str(fit.settings[option])))
    if calm is None:
        text = f"Not known: the history has fewer than {_FEWEST} points."
    elif calm:
        text = f"The {name} has settled, as far as its noise shows."
    elif found.change > 0.0:
        text = f"The {name} still rose: {getattr(fit, 'advice', _LONGER)}."
    else:
        text = f"The {name} fell at the end: take a smaller learning rate, or one that falls."
    if not fit.complete:
        text += " The fit was cut short: resume=fit goes on."
    return Summary(title, tuple(lines), calm, text)


def _objective(history: Mapping[str, Array]) -> Array:
    """Return (E,): the ELBO, or the objective averaged over members."""
    values = np.asarray(history.get("elbo", history.get("objective", np.zeros(0))))
    return values.mean(axis=1) if values.ndim == 2 else values
