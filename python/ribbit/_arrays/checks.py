"""Checks of arguments; every error reads ``[function] expected ..., got ...``."""

from __future__ import annotations

import math
import numbers
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

from ribbit import _core
from ribbit._arrays.keywords import VALUES
from ribbit.errors import DataError, DTypeError, ShapeError

if TYPE_CHECKING:
    import numpy.typing as npt

FloatArray: TypeAlias = "npt.NDArray[np.floating[Any]]"
Seed: TypeAlias = "int | np.random.Generator | np.random.SeedSequence | None"


_MAX_STEPS = 2**62
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))

# Arguments that go to the core unchecked, by kind: see `blame`.
_ARRAYS = {"position", "momentum", "grad", "terms", "step_size", "num_steps", "inverse_mass"}
_WHOLE = dict.fromkeys(("step", "first_step", "batch_size", "num_samples"), 2**63 - 1)
_WHOLE |= {"max_tree_depth": 2**63 - 1, "seed": 2**64 - 1, "adapt_until": 2**64 - 1}
_REALS = {"prior", "friction", "previous_step_size", "epsilon", "divergence_threshold"}


def summary(value: object) -> str:
    """Name a value in an error message: kind first, contents only when they are short."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of shape {value.shape}"
    if value is None or isinstance(value, bool):
        return repr(value)
    text = ""
    if isinstance(value, str | bytes | float | complex | np.generic):
        text = repr(value)
    elif isinstance(value, int):
        # repr of a very long int is refused by Python (int_max_str_digits).
        text = repr(value) if value.bit_length() < 128 else f"of {value.bit_length()} bits"
    elif isinstance(value, list | tuple):
        text = f"of length {len(value)}"
    elif isinstance(value, type):
        text = value.__name__
    kind = type(value).__name__
    if type(value).__module__.partition(".")[0] not in ("builtins", "numpy", "__main__"):
        kind = f"{type(value).__module__.partition('.')[0]}.{kind}"
    return f"{kind} {text}".strip() if len(text) <= 60 else kind


def known_class(
    function: str, name: str, expected: str, value: Any, base: type, known: Mapping[str, type]
) -> Any:
    """Return `value`, or raise TypeError unless its class is one that the core knows."""
    if type(value) in known.values():
        return value
    advice = (
        f": use one of rb.{', rb.'.join(known)}. Classes of your own have no native code "
        "(rb.CallableDensity takes any log density)"
    )
    raise TypeError(
        f"[{function}] expected {name} as {expected}, got {summary(value)}"
        f"{advice if isinstance(value, base) else ''}"
    )


def foreign(value: Any) -> str:
    """Return advice for a network, or a function, of another library in place of one of ours."""
    packages = {part.__module__.partition(".")[0] for part in type(value).__mro__}
    if "torch" in packages:
        return ": rb.torch.posterior(module, likelihood, (x, y), prior=...) takes PyTorch modules"
    if callable(value) and not isinstance(value, type):
        return (
            ": rb.CallableDensity(fn, dim) makes a target of a log density, rb.jax.from_jax(fn, "
            "dim) of one in JAX, rb.torch.posterior of a PyTorch module"
        )
    return ""


def real(function: str, name: str, value: object) -> float:
    """Return `value` as a finite float; bool, strings and arrays are a TypeError."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"[{function}] expected {name} as a number, got {summary(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"[{function}] expected {name} finite, got {summary(value)}")
    return number


def positive(function: str, name: str, value: object) -> float:
    """Return `value` as a finite float above zero."""
    number = real(function, name, value)
    if not number > 0.0:
        raise ValueError(f"[{function}] expected {name} > 0, got {summary(value)}")
    return number


def fraction(
    function: str, name: str, value: object, *, zero: bool = False, one: bool = False
) -> float:
    """Return `value` as a float between 0 and 1; `zero` and `one` let the ends in."""
    number = real(function, name, value)
    if not (0.0 < number < 1.0 or (zero and number == 0.0) or (one and number == 1.0)):
        interval = f"{'[' if zero else '('}0, 1{']' if one else ')'}"
        raise ValueError(f"[{function}] expected {name} in {interval}, got {summary(value)}")
    return number


def integer(
    function: str,
    name: str,
    value: object,
    *,
    minimum: int | None = None,
    maximum: int | None = None,
) -> int:
    """Return `value` as an int in [minimum, maximum]; bool and floats are a TypeError."""
    # Most are plain ints, and asking an abstract class takes ten times as long.
    if type(value) is not int and (
        isinstance(value, bool) or not isinstance(value, numbers.Integral)
    ):
        raise TypeError(f"[{function}] expected {name} as an integer, got {summary(value)}")
    number = int(value)
    if minimum is not None and number < minimum:
        raise ValueError(f"[{function}] expected {name} >= {minimum}, got {summary(value)}")
    if maximum is not None and number > maximum:
        raise ValueError(f"[{function}] expected {name} <= {maximum}, got {summary(value)}")
    return number


def blame(function: str, error: Exception, given: Mapping[str, object]) -> None:
    """Raise an error of the core as one of `function`, if an argument of `given` caused it."""
    # Called after the core has refused: before each call these checks would cost more than a step.
    text = str(error)
    if text.startswith("[_core] "):
        raise type(error)(f"[{function}] {text.removeprefix('[_core] ')}") from None
    if text.startswith("["):  # the code for a GPU has named the argument
        return
    for name, value in given.items():
        if name in _ARRAYS and value is not None and not isinstance(value, np.ndarray):
            numeric(function, name, value)
        elif name in _WHOLE:
            integer(function, name, value, minimum=0, maximum=_WHOLE[name])
        elif name in _REALS and (isinstance(value, bool) or not isinstance(value, numbers.Real)):
            raise TypeError(f"[{function}] expected {name} as a number, got {summary(value)}")
        elif name == "interrupt":
            interrupt_flag(function, value)


def interrupt_flag(function: str, value: object) -> None:
    """Raise TypeError unless `value` is None or an InterruptFlag."""
    if not isinstance(value, _core.InterruptFlag | None):
        got = summary(value)
        raise TypeError(f"[{function}] expected interrupt as an InterruptFlag or None, got {got}")


def seed(function: str, value: Seed) -> int:
    """Return a seed in [0, 2**64); a Generator is advanced, and None takes fresh entropy."""
    if isinstance(value, numbers.Integral):
        return integer(function, "seed", value, minimum=0, maximum=2**64 - 1)
    if value is None:
        value = np.random.SeedSequence()
    if isinstance(value, np.random.SeedSequence):
        return int(value.generate_state(1, np.uint64)[0] >> 1)
    if isinstance(value, np.random.Generator):
        return int(value.integers(2**63))
    raise TypeError(
        f"[{function}] expected seed as an integer, a NumPy Generator, a SeedSequence or None, got "
        f"{summary(value)}"
    )


def boolean(function: str, name: str, value: object) -> bool:
    """Return `value` as a bool; only True and False (also NumPy's) are let in."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"[{function}] expected {name} as a bool, got {summary(value)}")
    return bool(value)


def choice(function: str, name: str, value: object, options: Iterable[str]) -> str:
    """Return `value`, one of the strings in `options`."""
    names = tuple(options)
    if isinstance(value, str) and value in names:
        return value
    expected, got = " or ".join(map(repr, names)), summary(value)
    if not isinstance(value, str):
        raise TypeError(f"[{function}] expected {name} as {expected}, got {got}")
    advice = f": use {VALUES[value]!r}" if VALUES.get(value) in names else ""
    raise ValueError(f"[{function}] expected {name} as {expected}, got {got}{advice}")


def float_dtype(function: str, value: object) -> np.dtype[Any]:
    """Return `value` as the dtype float32 or float64 in native byte order."""
    try:
        chosen: np.dtype[Any] = np.dtype(value)  # type: ignore[call-overload]
    except Exception as error:
        got = summary(value)
        raise DTypeError(f"[{function}] expected dtype float32 or float64, got {got}") from error
    # np.dtype(None) is float64, which nobody means.
    if value is None or chosen not in _FLOATS:
        got = "None" if value is None else str(chosen)
        raise DTypeError(f"[{function}] expected dtype float32 or float64, got {got}")
    return chosen


def memory(function: str, count: int, dtype: Any, what: str) -> None:
    """Raise MemoryError when `count` numbers of a dtype are more than the host has free."""
    # Less than 64 MiB is not worth the question, which reads files of the system.
    size = count * np.dtype(dtype).itemsize
    if size >= 1 << 26:
        _core.require_memory(min(size, 2**63 - 1), f"{what} ({function})")


def chain_ids(function: str, chains: object, *, each: int = 0) -> npt.NDArray[np.uint32]:
    """Return ids (C,) of `chains`; raise MemoryError for more chains of `each` bytes than fit."""
    if (
        type(chains) is np.ndarray
        and chains.dtype == np.uint32
        and chains.ndim == 1
        and chains.size
    ):
        return chains.copy()  # what samplers pass, at every draw
    if isinstance(chains, np.ndarray | list | tuple):
        ids = integer_array(function, "chains", chains, below=2**32)
        return ids.astype(np.uint32)
    count = integer(function, "chains", chains, minimum=1, maximum=2**31)
    memory(function, count * (4 + each), np.uint8, f"{count} chains of {each} bytes")
    return np.arange(count, dtype=np.uint32)


def items(function: str, name: str, value: object, what: str) -> tuple[Any, ...]:
    """Return the items of a list, a tuple or another iterable that keeps an order."""
    expected = f"[{function}] expected {name} as a list of {what}, got {summary(value)}"
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping | Set):
        raise TypeError(expected)
    try:
        return tuple(value)
    except Exception as error:
        raise TypeError(f"{expected} ({reason(error)})") from error


def widths(function: str, hidden: object) -> tuple[int, ...]:
    """Return the widths of hidden layers; an integer is the width of a single one."""
    if isinstance(hidden, numbers.Integral):
        return (integer(function, "hidden", hidden, minimum=1, maximum=2**31 - 1),)
    given = items(function, "hidden", hidden, "widths or one integer")
    return tuple(
        integer(function, f"hidden[{i}]", width, minimum=1, maximum=2**31 - 1)
        for i, width in enumerate(given)
    )


def mapping(function: str, name: str, value: object) -> Mapping[str, Any]:
    """Return `value` as a mapping whose keys are strings."""
    if not isinstance(value, Mapping) or {*map(type, value)} - {str}:
        raise TypeError(f"[{function}] expected {name} as a dict of strings, got {summary(value)}")
    return value


def path(function: str, value: object, expected: str = "a path") -> Path:
    """Return `value` as a Path with a file name; numbers, which Python would open, are refused."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"[{function}] expected {expected}, got {summary(value)}")
    text = os.fspath(value)
    if isinstance(text, bytes) or not Path(text).name or "\0" in text:
        raise ValueError(f"[{function}] expected {expected} with a file name, got {text!r:.60}")
    return Path(os.path.expanduser(text))


def unmasked(function: str, name: str, value: object) -> None:
    """Raise a DataError for a masked array with masked values, or a list of such."""
    # By name, because importing numpy.ma costs every program a few milliseconds.
    for one in (value, *(value if isinstance(value, list | tuple) else ())):
        kind = type(one).__name__
        if kind in ("MaskedArray", "MaskedConstant") and np.any(getattr(one, "mask", False)):
            raise DataError(f"[{function}] expected {name} without masked values, got some masked")


_SMALL = 1 << 16  # numbers of an array that needs no check by blocks


def numeric(function: str, name: str, value: object) -> npt.NDArray[Any]:
    """Return an array-like of bools, integers or real floats as a NumPy array, uncopied."""
    if type(value) is np.ndarray and value.dtype.kind in "biuf" and value.size <= _SMALL:
        return value
    expected = f"{name} as an array of real numbers"
    if has_cuda_interface(value):
        # Never a silent copy between devices.
        raise DTypeError(f"[{function}] expected {expected} in host memory, got {summary(value)}")
    unmasked(function, name, value)
    if _is_frame(value) and not hasattr(value, "iloc"):
        return _columns(function, expected, value)  # polars makes numbers of times in silence
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        got = f"{summary(value)} ({reason(error)})"
        raise DTypeError(f"[{function}] expected {expected}, got {got}") from error
    if array.dtype.kind not in "biuf":
        if _is_frame(value):
            return _columns(function, expected, value)
        got = summary(array)
        if array.dtype == object:
            got = f"{summary(value)}{_objects(name, array)}"
        elif array.dtype.kind in "UST":
            got += f": {_of_words(name)}"
        raise DTypeError(f"[{function}] expected {expected}, got {got}")
    own_memory(function, name, array)
    return array


def own_memory(function: str, name: str, array: npt.NDArray[Any]) -> None:
    """Raise a DataError for a view of over 256 MiB that repeats its memory: computing copies it."""
    if array.nbytes > 1 << 28:
        low, high = np.lib.array_utils.byte_bounds(array)
        if high - low < array.nbytes:
            raise DataError(
                f"[{function}] {name} must lie in memory, got {summary(array)} that repeats "
                f"{high - low} bytes, as np.broadcast_to makes it"
            )


def _is_frame(value: Any) -> bool:
    """Return whether a value is a table with named columns, for example a pandas frame."""
    return hasattr(value, "columns") and len(getattr(value, "shape", ())) == 2


def _columns(function: str, expected: str, frame: Any) -> npt.NDArray[Any]:
    """Return the columns of a frame as one array; errors name a column that holds no numbers."""
    found = []
    for j, title in enumerate(frame.columns):
        column = np.asarray(frame.iloc[:, j] if hasattr(frame, "iloc") else frame[:, j])
        advice, where = _of_words(""), f"column {title!r}"
        if column.dtype.kind in "mM":
            advice = "make numbers of it, such as days since a date, or leave it out"
            where = f"{where} of times"
        elif column.dtype.kind not in "biuf":
            for row, item in enumerate(column.tolist()):
                if not isinstance(item, numbers.Real):
                    where = f"{where} with {summary(item)} in row {row}"
                    break
            else:
                column = column.astype(np.float64)
        if column.dtype.kind not in "biuf":
            got = f"{summary(frame)} that holds {where}"
            raise DTypeError(f"[{function}] expected {expected}, got {got}: {advice}")
        found.append(column)
    return np.stack(found, axis=1) if found else np.empty(frame.shape)


def column_names(function: str, name: str, value: Any) -> tuple[str | int, ...] | None:
    """Return the names of the columns of a frame, each once; None for any other value."""
    if not _is_frame(value):
        return None
    names = tuple(int(n) if isinstance(n, numbers.Integral) else str(n) for n in value.columns)
    twice = [n for n, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(
            f"[{function}] expected each column of {name} once, got {_listed(twice)} several times"
        )
    return names


def matched(function: str, x: Any, known: tuple[str | int, ...] | None) -> Any:
    """Return inputs; a frame becomes an array with the columns `known` in that order."""
    # A frame with names 0, 1, ... counts as one without names if the known names are texts.
    names = column_names(function, "x", x)
    if names is None:
        return x
    array = numeric(function, "x", x)
    if known is None or names == known:
        return array
    if names == tuple(range(len(names))) and any(isinstance(n, str) for n in known):
        return array
    places = {n: i for i, n in enumerate(names)}
    missing = [n for n in known if n not in places]
    more = sorted(places.keys() - set(known), key=places.__getitem__)
    if missing or more:
        parts = [f"{what} {_listed(n)}" for what, n in (("without", missing), ("with", more)) if n]
        raise ShapeError(
            f"[{function}] expected x with the columns of the data, {_listed(known)}, got a frame "
            f"{' and '.join(parts)}"
        )
    return array[:, [places[n] for n in known]]


def _listed(names: Iterable[Any]) -> str:
    """Return names for an error, the first ten."""
    all_of_them = list(names)
    more = f" and {len(all_of_them) - 10} more" if len(all_of_them) > 10 else ""
    return ", ".join(map(repr, all_of_them[:10])) + more


def _objects(name: str, array: npt.NDArray[Any]) -> str:
    """Say what stands in an array of objects, such as a table with a column of text."""
    if array.size == 0 or array.ndim == 0:
        return ""
    numbers_only = (numbers.Real, np.bool_)
    for item in array.flat:
        if not isinstance(item, numbers_only):
            words = isinstance(item, str)
            return f" that holds {summary(item)}: {_of_words(name if words else '')}"
    return f" of mixed kinds of numbers: np.asarray({name}, dtype=float) makes one of them"


def _of_words(name: str) -> str:
    """Say what to do about text: among targets it is labels, elsewhere columns."""
    if name == "y":
        return "names, y = np.unique(y, return_inverse=True) makes labels of words"
    return "leave such columns out, or make numbers of them"


def finite(function: str, name: str, array: npt.NDArray[Any]) -> None:
    """Raise a DataError that names the first place where `array` is NaN or infinite."""
    good = np.isfinite(array)
    if not good.all():
        where = np.unravel_index(int(np.argmin(good)), array.shape)
        raise _place(function, f"finite values in {name}", name, where, array[where])


def _place(
    function: str, expected: str, name: str, where: tuple[Any, ...], value: object
) -> DataError:
    place = f"{name}[{', '.join(str(int(i)) for i in where)}]" if where else name
    missing = name in ("x", "y") and bool(value != value)  # NaN alone is not itself
    advice = ": leave such rows out, or fill them in" if where and missing else ""
    return DataError(
        f"[{function}] expected {expected}, got an array where {place} is {value}{advice}"
    )


def all_true(
    function: str,
    expected: str,
    name: str,
    array: npt.NDArray[Any],
    good: npt.NDArray[np.bool_],
    first: int = 0,
) -> None:
    """Raise a DataError with the first bad place and value of rows, numbered from `first` on."""
    if not good.all():
        where = np.unravel_index(int(np.argmin(good)), array.shape)
        place = (first + where[0], *where[1:]) if where else where
        raise _place(function, expected, name, place, array[where])


def data(
    function: str,
    name: str,
    value: object,
    dtype: np.dtype[Any],
    moved: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None = None,
) -> FloatArray:
    """Return a finite C-contiguous copy in `dtype`; `moved` maps blocks of rows before rounding."""
    raw = numeric(function, name, value)
    small = raw.dtype == dtype and 0 < raw.size <= _SMALL and moved is None
    if small and np.isfinite(raw).all():
        return np.array(raw, order="C")
    memory(function, raw.size, dtype, f"{name} of shape {raw.shape}")
    array = np.empty(raw.shape, dtype)
    expected, count = f"finite {dtype} values in {name}", len(raw) if raw.ndim else 1
    # In blocks, so that the copy is all that takes memory.
    for part in row_blocks(count, raw.size // max(1, count)):
        rows, made = (raw[part], array[part]) if raw.ndim else (raw, array)
        with np.errstate(over="ignore", invalid="ignore"):
            made[...] = rows if moved is None else moved(rows)
        # Names the value that came, so that 1e300 is not reported as an infinity.
        all_true(function, expected, name, rows, np.isfinite(made), part.start)
    return array


def row_weights(function: str, value: Any, *, some: bool = False) -> npt.NDArray[np.float64] | None:
    """Return weights (N,) in float64, None if not given; `some`: they are of some of the rows."""
    if value is None:
        return None
    array = np.asarray(data(function, "sample_weight", value, np.dtype(np.float64)), np.float64)
    if array.ndim != 1:
        raise ShapeError(f"[{function}] expected sample_weight of shape (N,), got {summary(array)}")
    all_true(function, "sample_weight >= 0", "sample_weight", array, array >= 0)
    if not some and array.size and not array.any():
        raise DataError(f"[{function}] expected a sample_weight above 0, got zeros alone")
    return array


def counts_once(weights: npt.NDArray[np.float64] | None) -> TypeGuard[npt.NDArray[np.float64]]:
    """Whether weights are there and all 1, which is as if there were none."""
    return weights is not None and bool((weights == 1.0).all())


def integer_array(function: str, name: str, value: object, *, below: int) -> npt.NDArray[np.int64]:
    """Return a non-empty 1-D array of integers in [0, below) as contiguous int64."""
    array = numeric(function, name, value)
    # An empty list is a float array to NumPy; say that it is empty rather than float.
    if array.ndim != 1 or array.size == 0:
        raise ShapeError(
            f"[{function}] expected {name} as a non-empty 1-D integer array, got {summary(array)}"
        )
    if array.dtype.kind not in "iu":
        raise DTypeError(f"[{function}] expected {name} as integers, got {summary(array)}")
    # Compared before the cast: a large uint64 would wrap.
    if int(array.min()) < 0 or int(array.max()) >= below:
        good = (array >= 0) & (array < below)
        all_true(function, f"{name} in [0, {below})", name, array, good)
    return np.ascontiguousarray(array, dtype=np.int64)


def rebuild(
    function: str, key: str, description: Mapping[str, Any], classes: Mapping[str, type[Any]]
) -> Any:
    """Return the dataclass named by ``description[key]`` built from the other entries."""
    name = description.get(key)
    if not isinstance(name, str) or name not in classes:
        known = " or ".join(sorted(classes))
        raise ValueError(f"[{function}] expected {key!r} as {known}, got {summary(name)}")
    fields = {k: v for k, v in description.items() if k != key}
    try:
        return classes[name](**fields)
    except TypeError as error:
        raise TypeError(
            f"[{function}] expected the fields of {name}, got {sorted(fields)}"
        ) from error


def has_cuda_interface(value: object) -> bool:
    """Whether `value` has the CUDA array interface, also one that raises when it is read."""
    try:
        return hasattr(value, "__cuda_array_interface__")
    except Exception:  # PyTorch's property raises RuntimeError for a tensor that requires grad
        return True


def malformed(value: object) -> str:
    """Return what is wrong with the CUDA array interface of `value`, "" when nothing is."""
    # Checked before an array library reads it, which may do so without looking.
    try:
        given: Any = value.__cuda_array_interface__  # type: ignore[attr-defined]
    except Exception as error:
        return reason(error)
    if not isinstance(given, dict):
        return f"its __cuda_array_interface__ is {type(given).__name__}, not dict"
    missing = [repr(key) for key in ("shape", "typestr", "data", "version") if key not in given]
    if missing:
        return f"its __cuda_array_interface__ lacks {', '.join(missing)}"
    shape, data = given["shape"], given["data"]
    if not isinstance(shape, tuple) or not all(
        isinstance(n, Integral) and int(n) >= 0 for n in shape
    ):
        return f"its shape is {shape!r}"
    try:
        native = np.dtype(given["typestr"]).isnative
    except (TypeError, ValueError):
        native = False
    if not native:
        return f"its typestr is {given['typestr']!r}"
    if not (isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], Integral)):
        return f"its data is {data!r}"
    if data[0] == 0 and all(shape):
        return "its pointer is null"
    strides = given.get("strides")
    if strides is not None and (
        not isinstance(strides, tuple)
        or len(strides) != len(shape)
        or not all(isinstance(n, Integral) for n in strides)
    ):
        return f"its strides are {strides!r}"
    return ""


def reason(error: BaseException) -> str:
    """Return the first line of what a library said."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


BLOCK = 1 << 17  # numbers that temporary arrays of some rows hold: 1 MiB in float64


def check_rows(function: str, shape: tuple[int, ...], wanted: tuple[int, ...], got: str) -> None:
    """Raise ShapeError unless `shape` is (N, *wanted) with rows; `got` describes the array."""
    if len(shape) == len(wanted) + 1 and shape[1:] == wanted and shape[0] > 0:
        return
    expected = ", ".join(["N", *map(str, wanted)])
    way = _way(shape, wanted)
    raise ShapeError(
        f"[{function}] expected x of shape ({expected}) with N >= 1 for a model with "
        f"input_shape {wanted}, got {got}{f': {way}' if way else ''}"
    )


def _way(shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """Return the call that makes rows of an array of this shape, or an empty string."""
    if math.prod(shape) == 0:
        return ""
    if shape == wanted:
        return "a single row is x[None]"
    if len(wanted) == 3 and shape[1:] == (wanted[2], *wanted[:2]):
        return "channels stand last, np.moveaxis(x, 1, -1)"
    if wanted[-1] == 1 and len(shape) == len(wanted) and shape[1:] == wanted[:-1]:
        return f"give x[..., None], of one {'channel' if len(wanted) > 1 else 'column'}"
    if len(wanted) > 1 and shape[1:] == (math.prod(wanted),):
        return f"give x.reshape{(-1, *wanted)}, if its rows are in that order"
    if len(wanted) == 1 and len(shape) > 2 and math.prod(shape[1:]) == wanted[0]:
        return "give x.reshape(len(x), -1)"
    return ""


def row_blocks(rows: int, numbers: int, most: int = BLOCK) -> Iterator[slice]:
    """Yield slices of all rows, each of `most` numbers or fewer if a row has `numbers`."""
    size = max(1, most // max(1, numbers))
    return (slice(low, min(low + size, rows)) for low in range(0, rows, size))
