"""Statistics of many quantities, or of predictions at many rows, a block at a time on the host.

Shapes: C chains, D draws, P parameters, N rows, K outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit._arrays import checks, interfaces
from ribbit._arrays.namespace import from_device, is_array, to_host
from ribbit.errors import DTypeError, ShapeError
from ribbit.results.lazy import Numbers, forget, is_lazy
from ribbit.results.running import by_chain, of_draws

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["as_host", "by_block", "by_row", "positions_of"]

Array: TypeAlias = "npt.NDArray[np.float64]"

_BLOCK_ELEMENTS = 1 << 16  # draws in one block of quantities: 512 KiB, scratch stays in cache
_STORED_ELEMENTS = 1 << 22  # of draws on the disk, all of which each block reads
_ROW_ELEMENTS = 1 << 21  # predictions held at once, draws x rows: 16 MiB


def by_block(
    name: str,
    a: npt.ArrayLike,
    function: Callable[[Array], Array],
    *,
    min_chains: int,
    min_draws: int = 4,
) -> Array:
    """Apply `function` to blocks (M, C, D) of the quantities in a (C, D, ...).

    Of fewer chains or draws the answer is NaN.
    """
    if hasattr(a, "positions"):
        raise DTypeError(
            f"[{name}] expected an array (C, D, ...), got {type(a).__name__}: give its positions, "
            "or ask for predictive_rhat(draws, x) or predictive_ess(draws, x)"
        )
    # What is on the disk stays there but for a block of its quantities.
    given: Any = a
    draws: Any = a if is_lazy(a) and given.ndim == 3 else as_host(a, name)
    if draws.ndim < 2:
        raise ShapeError(f"[{name}] expected a of shape (chains, draws, ...), got {draws.shape}")
    chains, length, *rest = draws.shape
    flat: Any = draws
    if not is_lazy(draws):
        if not draws.flags.c_contiguous:  # it is copied
            checks.memory(name, draws.size, draws.dtype, f"a of shape {draws.shape}")
        flat = draws.reshape(chains, length, -1) if draws.size else draws.reshape(chains, length, 0)
    count = int(np.prod(rest, dtype=np.int64))
    result = np.full(count, np.nan)
    if chains < min_chains or length < min_draws:
        return result.reshape(rest)
    most = _BLOCK_ELEMENTS if flat is not a else _STORED_ELEMENTS
    block = max(1, most // (chains * length))
    for begin in range(0, count, block):
        part = np.ascontiguousarray(flat[:, :, begin : begin + block].transpose(2, 0, 1))
        values = part.astype(np.float64, copy=False)
        good = np.isfinite(values).all(axis=(1, 2))
        if good.any():
            # constant or infinite draws make 0 / 0 and inf - inf: the answer is NaN, not a warning
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                target = result[begin : begin + len(part)]
                target[good] = function(values if good.all() else values[good])
        if flat is a:
            forget(a)
    return result.reshape(rest)


def positions_of(name: str, draws: Any) -> Any:
    """Positions (C, D, P) of Draws, or the array itself."""
    positions = getattr(draws, "positions", draws)
    if positions is not draws and positions.shape[1] == 0:
        raise ValueError(f"[{name}] expected draws with positions, got none (save_draws=False?)")
    return positions


def by_row(name: str, draws: Any, x: Any, function: Callable[[npt.ArrayLike], Array]) -> Array:
    """Apply `function` to the predictions (C, D, n, K) of one block of rows after another."""
    if not hasattr(draws, "positions"):
        raise TypeError(f"[{name}] expected draws as Draws, got {checks.summary(draws)}")
    positions = positions_of(name, draws)
    predictive = getattr(draws, "predictive", None)
    if predictive is None:
        raise TypeError(
            f"[{name}] expected draws of a target with predictions, such as Posterior, got one "
            "without"
        )
    checks.unmasked(name, "x", x)
    x = checks.matched(name, x, getattr(predictive, "columns", None))
    if interfaces.in_device_memory(x):
        x = from_device(name, "x", x)
    elif not is_array(x) or isinstance(x, np.ndarray):
        x = checks.numeric(name, "x", x)
    if len(x.shape) == 0 or x.shape[0] == 0:
        raise ShapeError(f"[{name}] expected x of shape (N, ...) with rows, got {x.shape}")
    block = max(1, _ROW_ELEMENTS // max(1, positions.shape[0] * positions.shape[1]))
    parts = []
    for begin in range(0, x.shape[0], block):
        rows = x[begin : begin + block]

        def values(numbers: Numbers, theta: Any, rows: Any = rows, row: int = begin) -> Any:
            """Return what draws predict at some rows, (S, n, K)."""
            terms = of_draws(predictive, "predictive", numbers, theta, rows, row=row)
            return np.concatenate([as_host(_values(one), name) for one in terms])

        parts.append(function(by_chain(positions, len(rows), values)))
    found = np.concatenate(parts)
    return found[:, 0] if getattr(predictive, "flat", False) and found.shape[1] == 1 else found


def _values(terms: Any) -> Any:
    """Return probabilities, or means if there are none, (S, n, K)."""
    return terms.mean if terms.probs is None else terms.probs


def as_host(a: Any, function: str = "ribbit") -> npt.NDArray[Any]:
    """Return a NumPy array; one on a device, of whatever library, is copied here."""
    if interfaces.in_device_memory(a):
        a = to_host(a if hasattr(a, "get") else from_device(function, "a", a))
    return checks.numeric(function, "a", a)
