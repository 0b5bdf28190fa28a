"""Checks of the fields of results, which are frozen dataclasses that anyone may build."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any

from ribbit._arrays.checks import summary
from ribbit.errors import DTypeError, ShapeError

_KINDS: dict[str, tuple[type, str]] = {
    "bool": (bool, "a bool"),
    "int": (numbers.Integral, "an integer"),
    "float": (numbers.Real, "a number"),
    "str": (str, "a string"),
    "dict": (Mapping, "a dict"),
    "History": (Mapping, "a dict"),
}


def check(record: Any, **axes: str) -> None:
    """Raise unless the fields of a dataclass are of their kinds, and arrays have their `axes`."""
    # "M P" is an array of two axes; the same letter is the same length in all of them.
    name, lengths = type(record).__name__, dict[str, int]()
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        kind, _, empty = str(field.type).partition(" | ")
        if value is None and empty:
            continue
        if field.name in axes:
            check_axes(name, field.name, value, axes[field.name], lengths)
            continue
        if field.name == "predictive":
            check_predictive(name, value)
            continue
        known = _KINDS.get(kind.partition("[")[0])
        if known is not None and not isinstance(value, known[0]):
            raise TypeError(f"[{name}] {field.name} must be {known[1]}, got {summary(value)}")


def check_axes(name: str, field: str, value: Any, axes: str, lengths: dict[str, int]) -> None:
    """Raise unless `value` is an array of real numbers with `axes`; new `lengths` are noted."""
    shape, letters = getattr(value, "shape", None), axes.split()
    if not isinstance(shape, tuple) or not hasattr(value, "dtype"):
        raise TypeError(f"[{name}] {field} must be an array, got {summary(value)}")
    alike = len(shape) == len(letters) and all(
        lengths.setdefault(letter, n) == n for letter, n in zip(letters, shape, strict=True)
    )
    if not alike:
        expected = ", ".join(f"{a}={lengths[a]}" if a in lengths else a for a in letters)
        raise ShapeError(f"[{name}] {field} must have shape ({expected}), got {summary(value)}")
    if getattr(value.dtype, "kind", "f") not in "biuf":
        raise DTypeError(f"[{name}] {field} must be real numbers, got {summary(value)}")


def check_predictive(name: str, value: Any) -> None:
    """Raise unless `value` predicts, see :class:`ribbit.protocols.Predictive`."""
    if isinstance(value, type) or not hasattr(value, "predictive"):
        raise TypeError(
            f"[{name}] predictive must predict, as a Posterior does, got {summary(value)}"
        )
