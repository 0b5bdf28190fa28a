"""Where chains of exact samplers start or go on: finite positions, densities and gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays.namespace import errstate, to_host
from ribbit.density import Density, total
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array
from ribbit.results.state import State

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Evaluated", "evaluate_again", "evaluate_start"]


def evaluate_start(
    function: str,
    density: Density,
    position: Array,
    chains: npt.NDArray[np.uint32],
    guard: InterruptGuard | None,
) -> tuple[Array, Array, Array]:
    """Return terms (C, M), gradient (C, P) and log density (C,) at the starts (C, P)."""
    _finite(function, "position", chains, to_host(position))
    terms, grad = density.terms_and_grad(position, guard)
    with errstate(density.xp):
        logdensity = total(terms)
    values = to_host(logdensity)
    if not np.isfinite(values).all():
        bad = int(np.argmin(np.isfinite(values)))
        raise ValueError(
            f"[{function}] expected a finite log density at the initial positions, "
            f"got {values[bad]} for chain {chains[bad]}"
        )
    _finite(function, "gradient", chains, to_host(grad))
    return terms, grad, logdensity


class Evaluated:
    """The states at which a sampler knows its density: all that it made and that still exist."""

    # A state is known by its position, terms and gradient, the arrays themselves: one that was read
    # from a file, or got another position, is not. Of arrays that cannot be referred to weakly
    # those of the last state alone are kept.

    def __init__(self) -> None:
        self._known: dict[int, tuple[Callable[[], Any], ...]] = {}
        self._last: tuple[Any, ...] = ()

    def __reduce__(self) -> tuple[type[Evaluated], tuple[()]]:
        return Evaluated, ()

    def add(self, state: Any) -> None:
        """Know a state whose terms and gradient are those of the density at its position."""
        arrays, known, key = _arrays_of(state), self._known, id(state.terms)
        try:
            last = weakref.ref(arrays[0], lambda _: known.pop(key, None))
            known[key] = (last, *(weakref.ref(array) for array in arrays[1:]))
        except TypeError:
            self._last = arrays

    def __contains__(self, state: Any) -> bool:
        arrays = _arrays_of(state)
        known = self._known.get(id(state.terms))
        kept = self._last if known is None else tuple(one() for one in known)
        return bool(kept) and all(a is b for a, b in zip(arrays, kept, strict=True))


def _arrays_of(state: Any) -> tuple[Any, ...]:
    return state.terms, state.position, state.grad


def evaluate_again(
    function: str, density: Density, state: State, guard: InterruptGuard | None
) -> dict[str, Array]:
    """Return terms, grad and logdensity of a state of another sampler or file; same bits."""
    terms, grad = density.terms_and_grad(state.position, guard)
    with errstate(density.xp):
        logdensity = total(terms)
    if not np.isfinite(to_host(logdensity)).all():
        raise ValueError(
            f"[{function}] expected a finite log density at the state's positions, "
            f"got {to_host(logdensity)}"
        )
    return {"terms": terms, "grad": grad, "logdensity": logdensity}


def _finite(
    function: str, what: str, chains: npt.NDArray[np.uint32], values: npt.NDArray[Any]
) -> None:
    good = np.isfinite(values)
    if not good.all():
        chain, parameter = np.unravel_index(int(np.argmin(good)), values.shape)
        raise ValueError(
            f"[{function}] expected a finite initial {what}, got {values[chain, parameter]} for "
            f"chain {chains[chain]}, parameter {parameter}"
        )
