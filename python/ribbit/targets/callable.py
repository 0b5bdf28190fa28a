"""Log densities that are not ours: a Python callable, or a compiled function by its address."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.keywords import explain
from ribbit._arrays.positions import host_position
from ribbit._arrays.random_numbers import normal_starts
from ribbit._backends.cpu import pointer_density
from ribbit.errors import DTypeError, ShapeError
from ribbit.targets.likelihoods import Array64

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["CallableDensity", "PointerDensity"]

_FLOAT64 = np.dtype(np.float64)
_MAX_DIM = 2**34


def _no_rows(name: str, rows: object) -> None:
    if rows is not None:
        got = checks.summary(rows)
        raise ValueError(f"[{name}] expected rows=None for a density without data rows, got {got}")


class _Foreign:
    """A density in float64 on host memory, without data, whose starts are standard normal."""

    _name: ClassVar[str]  # in errors
    dim: int
    dtype: ClassVar[np.dtype[Any]] = _FLOAT64
    array_namespace: ClassVar[ModuleType] = np
    temperature: ClassVar[float] = 1.0
    shared_prior_sd: ClassVar[float | None] = None
    dropout_layers: ClassVar[tuple[str, ...]] = ()

    def init(self, seed: checks.Seed = 0, chains: int | npt.ArrayLike | None = None) -> Array64:
        """Return standard normal starts (P,) or (chains, P), which depend on the chain ids alone.

        Raises
        ------
        TypeError, ValueError
            If an argument is out of its range.
        """
        name = f"{self._name}.init"
        out = cast("Array64", normal_starts(name, seed, chains, self.dim, _FLOAT64))
        return out[0] if chains is None else out


@dataclass(frozen=True)
class CallableDensity(_Foreign):
    """A log density given by a Python function, in float64.

    Parameters
    ----------
    fn : callable
        ``fn(theta)`` with theta (P,) float64 returns ``(lp, grad)``: the log density, a number, and
        its gradient (P,). A non-finite value is not an error: samplers reject it. theta is a copy,
        which the function may keep or change; its results are copied.
    dim : int
        Number of parameters P, >= 1.
    batched : bool, default False
        True: fn takes (C, P) and returns lp (C,) and grad (C, P).

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong. Also, on a call, if the function returns something else. An
        exception raised in the function reaches you unchanged.

    Examples
    --------
    >>> target = rb.CallableDensity(lambda q: (-0.5 * (q**2).sum(), -q), 3)
    >>> lp, grad = target.value_and_grad(np.ones(3))
    >>> float(lp), grad
    (-1.5, array([-1., -1., -1.]))
    """

    _name = "CallableDensity"
    fn: Callable[[Array64], Any]
    dim: int
    batched: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        name = self._name
        if not callable(self.fn):
            raise TypeError(f"[{name}] expected fn as a callable, got {checks.summary(self.fn)}")
        dim = checks.integer(name, "dim", self.dim, minimum=1, maximum=_MAX_DIM)
        object.__setattr__(self, "dim", dim)
        object.__setattr__(self, "batched", checks.boolean(name, "batched", self.batched))

    @staticmethod
    def from_pointer(
        address: Any, dim: int, user_data: Any = None, *, threadsafe: bool = False
    ) -> PointerDensity:
        """Return a density from a compiled function; see `PointerDensity`."""
        return PointerDensity(address, dim, user_data, threadsafe=threadsafe)

    def value_and_grad(self, theta: Array64, rows: None = None) -> tuple[Any, Array64]:
        """Return the log density, () or (C,), and its gradient, (P,) or (C, P).

        Parameters
        ----------
        theta : numpy.ndarray
            (P,) or (C, P) float64.
        rows : None
            Must be None, because a callable has no data rows.

        Raises
        ------
        TypeError, ValueError
            If `theta` does not fit, or the function returns anything but ``(lp, grad)``.
        """
        name = "CallableDensity.value_and_grad"
        _no_rows(name, rows)
        batch, single = host_position(name, "theta", theta, self.dtype, self.dim)
        # Copies keep fn from changing its caller's position.
        if self.batched:
            lp, grad = self._returned(self.fn(batch.copy()), batch.shape)
        else:
            lp, grad = np.empty(batch.shape[0]), np.empty(batch.shape)
            for chain in range(batch.shape[0]):
                value, slope = self._returned(self.fn(batch[chain].copy()), (self.dim,))
                lp[chain], grad[chain] = value, slope
        return (lp[0], grad[0]) if single else (lp, grad)

    # It checks and copies positions and results, so that samplers need not.
    value_and_grad.copies = True  # type: ignore[attr-defined]

    def _returned(self, result: Any, shape: tuple[int, ...]) -> tuple[Any, Array64]:
        name = self._name
        if not isinstance(result, tuple | list) or len(result) != 2:
            got = checks.summary(result)
            raise TypeError(f"[{name}] expected fn to return (lp, grad), got {got}")
        return _copied("lp", result[0], shape[:-1]), _copied("grad", result[1], shape)


def _copied(what: str, value: Any, shape: tuple[int, ...]) -> Any:
    """Return a copy, in float64, of numbers that a function returned."""
    if type(value) is np.ndarray and value.dtype == _FLOAT64 and value.shape == shape:
        return value.copy()
    if isinstance(value, float) and not shape:  # NumPy's float64 is one, too
        return value
    name = "CallableDensity"
    array = checks.numeric(name, f"{what} from fn", value)
    if array.dtype.kind == "b":
        raise DTypeError(f"[{name}] expected {what} from fn as numbers, got bool")
    if array.shape != shape:
        raise ShapeError(
            f"[{name}] expected {what} from fn of shape {shape}, got {checks.summary(array)}"
        )
    return np.array(array, dtype=np.float64, order="C", copy=True)


@dataclass(frozen=True, init=False, eq=False)
class PointerDensity(_Foreign):
    """A log density given by a compiled function, called without the GIL, in float64.

    The function is ``int f(size_t n, const double* x, double* grad, double* lp, void* user)``: it
    reads x (n,), writes grad (n,) and lp, and returns 0. Any other code raises ValueError.

    Parameters
    ----------
    address : int or object
        Address of the function, or a ctypes function pointer, a numba ``cfunc``, a
        ``scipy.LowLevelCallable`` or a PyCapsule; objects are kept alive. A wrong address crashes
        the process: nothing can check it.
    dim : int
        Number of parameters n, >= 1.
    user_data : int or object, optional
        Passed as ``user``: an address, a ctypes pointer, a ctypes structure or array, or a writable
        C-contiguous NumPy array; objects are kept alive. None is the capsule's own or NULL.
    threadsafe : bool, default False
        True lets several chains call the function at once.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.
    """

    _name = "PointerDensity"
    dim: int
    address: int
    user_data: int
    threadsafe: bool
    _kept: tuple[Any, ...] = field(repr=False)
    _native: Any = field(repr=False)

    def __init__(
        self, address: Any, dim: int, user_data: Any = None, *, threadsafe: bool = False
    ) -> None:
        name = "CallableDensity.from_pointer"
        size = checks.integer(name, "dim", dim, minimum=1, maximum=_MAX_DIM)
        parallel = checks.boolean(name, "threadsafe", threadsafe)
        place, context = _function_address(name, address)
        if user_data is not None and context:
            raise ValueError(
                f"[{name}] expected user_data in the callable or as an argument, got both"
            )
        user = context if user_data is None else _data_address(name, user_data)
        native = pointer_density(place, size, user, parallel)
        for key, value in {
            "dim": size,
            "address": place,
            "user_data": user,
            "threadsafe": parallel,
            "_kept": (address, user_data),
            "_native": native,
        }.items():
            object.__setattr__(self, key, value)

    def value_and_grad(self, theta: Array64, rows: None = None) -> tuple[Any, Array64]:
        """Return the log density, () or (C,), and its gradient, (P,) or (C, P).

        Raises
        ------
        TypeError, ValueError
            If `theta` is not (P,) or (C, P) float64, or `rows` is given.
        ValueError
            If the function returns a code other than 0.
        """
        name = "PointerDensity.value_and_grad"
        _no_rows(name, rows)
        batch, single = host_position(name, "theta", theta, self.dtype, self.dim)
        lp, grad = self._native.value_and_grad(batch)
        return (lp[0], grad[0]) if single else (lp, grad)

    # The method itself, so that chains of the core pass no method by that replaces or wraps it.
    value_and_grad.in_core = value_and_grad  # type: ignore[attr-defined]


def _function_address(name: str, function: Any) -> tuple[int, int]:
    """Address of a function and of the user data that its object carries (0 when none)."""
    if type(function).__name__ == "LowLevelCallable" and isinstance(function, tuple):
        # Its own indexing raises, on purpose; the first item is what SciPy itself calls.
        return _capsule(name, tuple.__getitem__(function, 0))
    if type(function).__name__ == "PyCapsule":
        return _capsule(name, function)
    if isinstance(function, numbers.Integral) and not isinstance(function, bool):
        place = int(function)
    elif type(getattr(function, "address", None)) is int:  # numba cfunc
        place = function.address
    else:
        import ctypes

        if not isinstance(function, ctypes._CFuncPtr):  # type: ignore[attr-defined]
            got = checks.summary(function)
            raise TypeError(
                f"[{name}] expected address as an integer, a ctypes function, a numba cfunc, a "
                f"scipy LowLevelCallable or a PyCapsule, got {got}"
            )
        place = ctypes.cast(function, ctypes.c_void_p).value or 0
    return _pointer(name, "address", place, null=False), 0


def _capsule(name: str, capsule: Any) -> tuple[int, int]:
    import ctypes

    if type(capsule).__name__ != "PyCapsule":
        got = checks.summary(capsule)
        raise TypeError(f"[{name}] expected a LowLevelCallable with a capsule, got {got}")
    api = ctypes.PyDLL(None)
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_GetContext.restype = ctypes.c_void_p
    api.PyCapsule_GetContext.argtypes = [ctypes.py_object]
    place = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return int(place or 0), int(api.PyCapsule_GetContext(capsule) or 0)


def _data_address(name: str, user_data: Any) -> int:
    """Address of user data given as an integer, a ctypes object or a NumPy array."""
    if isinstance(user_data, numbers.Integral) and not isinstance(user_data, bool):
        return _pointer(name, "user_data", int(user_data), null=True)
    if isinstance(user_data, np.ndarray):
        flags = user_data.flags
        if not (flags.c_contiguous and flags.aligned and flags.writeable):
            got = "another layout"
            raise ValueError(f"[{name}] expected user_data C-contiguous and writable, got {got}")
        return int(user_data.ctypes.data)
    import ctypes

    if isinstance(user_data, ctypes.c_void_p):
        return user_data.value or 0
    if isinstance(user_data, ctypes._Pointer):
        return ctypes.cast(user_data, ctypes.c_void_p).value or 0
    if isinstance(user_data, ctypes.Structure | ctypes.Array | ctypes.Union):
        return ctypes.addressof(user_data)
    got = checks.summary(user_data)
    raise TypeError(
        f"[{name}] expected user_data as an address, a ctypes pointer, structure or array, or a "
        f"NumPy array, got {got}"
    )


def _pointer(name: str, what: str, place: int, *, null: bool) -> int:
    return checks.integer(name, what, place, minimum=0 if null else 1, maximum=2**64 - 1)


explain(globals())
