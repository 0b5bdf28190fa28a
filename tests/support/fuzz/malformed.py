"""Values that are wrong for an argument of some kind, whatever else is right.

Each kind is a list of (label, value); every value must be refused with a sentence that names the
argument. Nothing here is random.
"""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

Values = list[tuple[str, Any]]


class Raising:
    """Whatever is asked of it raises."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no array")

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __float__(self) -> float:
        raise RuntimeError("no number")

    def __index__(self) -> int:
        raise RuntimeError("no integer")

    def __iter__(self) -> Any:
        raise RuntimeError("no items")


class Device:
    """Says that it lies in device memory, and lies about where."""

    __cuda_array_interface__ = ("shape", 3)


class Slotless:
    """Has what an array has by name, and nothing behind it."""

    shape = ("a", None)
    dtype = "nothing"
    ndim = -1


OBJECTS: Values = [
    ("bytes", b"3"),
    ("text", "3x"),
    ("object", object()),
    ("empty dict", {}),
    ("dict", {"a": 1}),
    ("set", {1, 2}),
    ("frozenset", frozenset()),
    ("complex", 1j),
    ("complex NaN", complex(math.nan, 1)),
    ("ellipsis", ...),
    ("not implemented", NotImplemented),
    ("module", math),
    ("exception", ValueError("mine")),
    ("raising", Raising()),
    ("device", Device()),
    ("slotless", Slotless()),
    ("date", np.datetime64("2020-01-01")),
    ("not a time", np.datetime64("NaT", "s")),
    ("NumPy text", np.str_("3")),
    ("NumPy bytes", np.bytes_(b"3")),
    ("record", np.zeros((), [("a", "f4")])[()]),
]
CALLABLES: Values = [
    ("function", len),
    ("lambda", lambda *args, **kwargs: None),
    ("class", int),
    ("NumPy class", np.float32),
]
NONE: Values = [("None", None)]
THINGS = OBJECTS + CALLABLES
ARRAYS: Values = [
    ("list", [3]),
    ("tuple", (3, 3)),
    ("empty list", []),
    ("array", np.array([3.0, 1.0])),
    ("empty array", np.zeros(0)),
    ("array of objects", np.array([None])),
    ("masked", np.ma.masked_array([3.0], [True])),
]
NOT_FINITE: Values = [("NaN", math.nan), ("inf", math.inf), ("-inf", -math.inf)]
NOT_FINITE += [("NumPy NaN", np.float64("nan")), ("half inf", np.float16("inf"))]


def integers(low: int = 1, high: int = 2**39, *, none: bool = False) -> Values:
    """Wrong for an integer in [low, high]; `none`: None is right."""
    values = THINGS + ARRAYS + NOT_FINITE + ([] if none else NONE)
    values += [("True", True), ("NumPy True", np.True_), ("half", 1.5), ("whole float", 3.0)]
    values += [("fraction", Fraction(1, 2)), ("decimal", Decimal(3)), ("text of digits", "3")]
    values += [("below", low - 1), ("far below", -(2**70)), ("longest", -(10**5000))]
    values += [("above", high + 1), ("far above", 10**400), ("NumPy above", np.uint64(2**64 - 1))]
    return values if high < 2**64 - 1 else values[:-1]


def reals(low: float = -math.inf, high: float = math.inf, *, none: bool = False) -> Values:
    """Wrong for a number in the open interval (low, high)."""
    values = THINGS + ARRAYS + NOT_FINITE + ([] if none else NONE)
    values += [("True", True), ("decimal", Decimal(1)), ("text of digits", "0.5")]
    values += [("beyond floats", 10**400), ("beyond below", -(10**400))]
    if low > -math.inf:
        values += [("end", low), ("below", low - 1), ("NumPy below", np.float32(low - 1))]
        values += [("far below", -1e300), ("integer below", int(low) - 2)]
    if high < math.inf:
        values += [("upper end", high), ("above", high + 1), ("far above", 1e300)]
    return values


def without(values: Values, *labels: str) -> Values:
    """All but some."""
    known = {label for label, _ in values}
    assert known.issuperset(labels), set(labels) - known
    return [(label, value) for label, value in values if label not in labels]


def flags(*, none: bool = False) -> Values:
    """Wrong for True or False."""
    values = THINGS + ARRAYS + NOT_FINITE + ([] if none else NONE)
    return [*values, ("one", 1), ("zero", 0), ("yes", "yes"), ("empty text", ""), ("0.0", 0.0)]


def choices(*, none: bool = False) -> Values:
    """Wrong for one of some strings."""
    values = THINGS + ARRAYS + NOT_FINITE + ([] if none else NONE)
    values += [("True", True), ("one", 1), ("empty text", ""), ("other", "nonsense")]
    return [*values, ("null", "a\0b"), ("long", "x" * 10_000), ("surrogate", "\ud800")]


def no(*kinds: str) -> Values:
    """Wrong for an object of ours; `kinds` that would be right are left out."""
    values = THINGS + ARRAYS + NOT_FINITE + NONE
    values += [("zero", 0), ("True", True), ("empty text", ""), ("number", 2.5)]
    left = {"callable": {v[0] for v in CALLABLES}, "none": {"None"}, "list": {"empty list"}}
    out: set[str] = set()
    for kind in kinds:
        out |= left.get(kind, {kind})
    return [(label, value) for label, value in values if label not in out]


def arrays(
    shape: tuple[int, ...],
    *,
    dtype: Any = np.float64,
    exact: bool = False,
    finite: bool = True,
    rows: bool = False,
    more: bool = False,
    none: bool = False,
) -> Values:
    """Wrong for an array of a shape.

    `exact`: only this dtype is right; `finite`: NaN and infinity are wrong; `rows`: any number of
    rows is right; `more`: leading axes are right; `none`: None is right.
    """
    right = np.ones(shape, dtype)
    values = OBJECTS + CALLABLES + ([] if none else NONE)
    values += [
        ("number", 0.5),
        ("empty list", []),
        ("ragged", [[1.0, 2.0], [3.0]]),
        ("list of text", ["a"] * max(1, right.size)),
        ("list of None", [None] * max(1, right.size)),
        ("deep list", [[[[[1.0]]]]]),
        ("empty", np.zeros((0,) * max(1, right.ndim))),
        ("no rows", np.zeros((0, *shape[1:]), dtype)),
        ("complex array", right.astype(complex)),
        ("text array", right.astype("U8")),
        ("bytes array", right.astype("S8")),
        ("object array", right.astype(object)),
        ("date array", np.zeros(shape, "M8[s]")),
        ("time array", np.zeros(shape, "m8[s]")),
        ("records", np.zeros(shape, [("a", "f4")])),
        ("void", np.zeros(shape, "V4")),
        ("masked array", np.ma.masked_array(right, np.ones(shape, bool))),
        ("huge broadcast", np.broadcast_to(np.ones((), dtype), (2**40, 2**10, 3))),
    ]
    if not more:
        values += [("axis more", right[None, None, None])]
    if right.ndim > 1:
        values += [("a column more", np.ones((*shape[:-1], shape[-1] + 1), dtype))]
        values += [("no columns", np.zeros((*shape[:-1], 0), dtype))]
    if not rows:
        values += [("a row more", np.ones((shape[0] + 1, *shape[1:]), dtype))]
        values += [("many rows", np.ones((7 * shape[0], *shape[1:]), dtype))]
    if finite and np.dtype(dtype).kind == "f":
        for label, value in NOT_FINITE:
            spoiled = right.copy()
            spoiled.flat[right.size - 1] = value
            values.append((f"array with {label}", spoiled))
    if exact:
        for other in ("float16", "float32", "float64", "int64", "bool", "longdouble", "uint8"):
            if np.dtype(other) != np.dtype(dtype):
                values.append((f"{other} array", right.astype(other)))
        values += [("other byte order", right.astype(right.dtype.newbyteorder()))]
        values += [("nested list", right.tolist())]
    return values


def labels(size: int, classes: int) -> Values:
    """Wrong for integer labels (size,) in [0, classes)."""
    values = without(arrays((size,), dtype=np.int64), "number")
    one = np.zeros(size)
    for label, value in [*NOT_FINITE, ("half", 0.5), ("class more", classes), ("negative", -1)]:
        spoiled = one.copy()
        spoiled[-1] = value
        values.append((f"label {label}", spoiled))
    return values


def shapes() -> Values:
    """Wrong for a shape of sizes >= 1."""
    values = OBJECTS + CALLABLES + NOT_FINITE + NONE
    values += [("negative size", (-1, 2)), ("float sizes", (2.0, 3.0)), ("text sizes", ("a",))]
    values += [("None sizes", (None,)), ("nested", ((2,), 3)), ("huge", (2**70,))]
    return [*values, ("bool sizes", (True, 2)), ("NaN sizes", (math.nan, 1))]


def dtypes() -> Values:
    """Wrong for float32 or float64."""
    values = without(OBJECTS, "empty dict")
    values += [("integers", np.int32), ("half", "float16"), ("other order", ">f8")]
    return [*values, ("None", None), ("nonsense", "nonsense"), ("function", len), ("three", 3)]


def paths() -> Values:
    """Wrong for the path of a file."""
    values = without(THINGS + ARRAYS, "text", "NumPy text") + NONE + NOT_FINITE
    values += [("descriptor", 987_654), ("zero", 0), ("True", True), ("empty text", "")]
    return [*values, ("null", "a\0b"), ("folder", "/"), ("below a file", "/dev/null/x")]
