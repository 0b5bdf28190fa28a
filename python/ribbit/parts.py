"""A state of C chains as states of fewer, and back. Shapes: C chains."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

__all__ = ["joined", "joined_statistics", "part"]

T = TypeVar("T")


def part(state: T, chains: slice) -> T:
    """Return the state of some chains, in arrays of its own that hold no others."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(state):  # type: ignore[arg-type]
        value = getattr(state, field.name)
        if dataclasses.is_dataclass(value):
            changes[field.name] = part(value, chains)
        elif isinstance(value, np.ndarray):
            own = value[chains] if _of_chains(field.name, value) else value
            changes[field.name] = own.copy()
    return dataclasses.replace(state, **changes)  # type: ignore[type-var]


def joined(states: Sequence[T]) -> T:
    """Return one state of the chains of several, which are at the same step.

    Raises
    ------
    ValueError
        Where they differ in what all chains share.
    """
    first = states[0]
    if len(states) == 1:
        return first
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(first):  # type: ignore[arg-type]
        values = [getattr(state, field.name) for state in states]
        if dataclasses.is_dataclass(values[0]):
            changes[field.name] = joined(values)
        elif _of_chains(field.name, values[0]):
            changes[field.name] = np.concatenate(values)
        elif isinstance(values[0], int) and any(value != values[0] for value in values):
            raise ValueError(f"[joined] expected states with one {field.name}, got {values}")
    return dataclasses.replace(first, **changes)  # type: ignore[type-var]


def joined_statistics(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the statistics (C,) of all chains."""
    return {name: np.concatenate([info[name] for info in infos]) for name in infos[0]}


def _of_chains(name: str, value: Any) -> bool:
    """Whether an array has a row for each chain: all but a mass (P,) that they share."""
    return isinstance(value, np.ndarray) and not (name == "inverse_mass" and value.ndim == 1)
