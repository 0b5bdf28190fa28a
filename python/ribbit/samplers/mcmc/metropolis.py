"""The accept step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ribbit._arrays import checks, transitions
from ribbit._arrays.namespace import errstate, namespace
from ribbit.errors import DTypeError, ShapeError
from ribbit.protocols import Array

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["metropolis"]


def metropolis(
    energy_error: Array,
    *,
    seed: checks.Seed = 0,
    step: int = 0,
    chains: int | npt.ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Accept or reject proposals, with the uniforms that :class:`ribbit.HMC` would use.

    A proposal is accepted if ``log(u) < -energy_error`` (Metropolis et al. 1953). A NaN or infinite
    energy error is rejected.

    Parameters
    ----------
    energy_error : (C,) float64 array
        Energy of the proposal minus energy of the old state. The energy is the kinetic energy minus
        the log density.
    seed : int, Generator, SeedSequence or None
        64-bit key.
    step : int
        Number of the transition. Each (seed, step, chain) has one uniform.
    chains : int or (C,) ids, optional
        Ids of the chains. Default 0..C-1.

    Returns
    -------
    accepted : (C,) bool array
    acceptance_rate : (C,) float64 array
        min(1, exp(-energy_error)); 0 if the energy error is not finite.

    Raises
    ------
    TypeError, ValueError
        For arguments of the wrong type or shape.

    Examples
    --------
    >>> accepted, rate = rb.metropolis(np.array([-1.0, 0.5, np.nan]), seed=0)
    >>> rate.round(3)
    array([1.   , 0.607, 0.   ])
    """
    name = "metropolis"
    xp = namespace(energy_error, function=name, name="energy_error")
    if not xp.isdtype(energy_error.dtype, ("real floating", "integral")):
        raise DTypeError(
            f"[{name}] expected energy_error as real numbers, got dtype {energy_error.dtype}"
        )
    if energy_error.ndim != 1 or energy_error.shape[0] == 0:
        raise ShapeError(f"[{name}] expected energy_error (C,), got shape {energy_error.shape}")
    ids = checks.chain_ids(name, energy_error.shape[0] if chains is None else chains)
    if ids.shape != energy_error.shape:
        raise ShapeError(
            f"[{name}] expected {energy_error.shape[0]} chains, got {ids.shape[0]} chain ids"
        )
    with errstate(xp):
        return transitions.accept(
            xp,
            xp.astype(energy_error, xp.float64),
            seed=checks.seed(name, seed),
            step=checks.integer(name, "step", step, minimum=0, maximum=2**40 - 1),
            chains=ids,
        )
