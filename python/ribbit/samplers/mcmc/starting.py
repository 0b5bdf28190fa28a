"""Where chains of exact samplers start or go on: finite positions, densities and gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays.namespace import errstate, to_host
from ribbit.protocols import Array
from ribbit.results.state import State
from ribbit.samplers.run.interrupt import InterruptGuard
from ribbit.samplers.run.target import Density, total

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["evaluate_again", "evaluate_start"]


def evaluate_start(
    function: str,
    density: Density,
    position: Array,
    chains: npt.NDArray[np.uint32],
    guard: InterruptGuard | None,
) -> tuple[Array, Array, Array]:
    """Return terms (C, M), gradient (C, P) and log density (C,) at the starts (C, P).

    Raises
    ------
    ValueError
        For what is not finite; the text names the chain, and the parameter where it is known.
    """
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


def evaluate_again(
    function: str, density: Density, state: State, guard: InterruptGuard | None
) -> dict[str, Array]:
    """Return terms, grad and logdensity of a state that may come from another target.

    On the same target the same bits come out.
    """
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
