"""States read from a file, back in the library that computes with them."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np

from ribbit._arrays.namespace import from_host
from ribbit.results.state import AnyState, State

__all__ = ["placed"]

# What lies where the target's arrays do; the rest decides control flow and stays on the host.
_ARRAYS: tuple[str, ...] = ("position", "logdensity", "grad", "terms", "velocity", "inverse_mass")
_ARRAYS += ("first_moment", "second_moment")


def placed(xp: ModuleType, state: AnyState) -> AnyState:
    """Return a state of NumPy arrays as one of the library `xp`."""
    if xp is np:
        return state
    names = (*_ARRAYS, "step_size") if isinstance(state, State) else _ARRAYS
    changes: dict[str, Any] = {}
    for name in names:
        value = getattr(state, name, None)
        if value is not None:
            changes[name] = from_host(xp, value)
    adaptation = getattr(state, "adaptation", None)
    if adaptation is not None and adaptation.welford is not None:
        old = adaptation.welford
        welford = dataclasses.replace(
            old, mean=from_host(xp, old.mean), squares=from_host(xp, old.squares)
        )
        changes["adaptation"] = dataclasses.replace(adaptation, welford=welford)
    return dataclasses.replace(state, **changes)
