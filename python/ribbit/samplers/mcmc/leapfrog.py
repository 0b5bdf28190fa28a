"""Leapfrog trajectories: a target's own, or a loop over its gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import errstate, from_host, host_dtype, is_array, namespace, to_host
from ribbit.density import Density, total
from ribbit.errors import DTypeError, ShapeError
from ribbit.protocols import Array

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["Trajectory", "leapfrog"]


class Trajectory(NamedTuple):
    """End of a leapfrog trajectory, with shapes (P,) and () if you gave one position.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> q = target.init(seed=0)
    >>> end = rb.leapfrog(target, q, np.ones_like(q), 0.01, 5)
    >>> end.position.shape, end.logdensity.dtype
    ((10,), dtype('float64'))
    """

    position: Array
    momentum: Array
    logdensity: Array
    grad: Array


def leapfrog(
    target: Any,
    position: Array,
    momentum: Array,
    step_size: float | Array,
    num_steps: int | npt.ArrayLike,
    *,
    inverse_mass_matrix: Array | None = None,
) -> Trajectory:
    """Return the ends of leapfrog trajectories of the Hamiltonian -log density + p' M^-1 p / 2.

    Uses the target's native trajectory if it has one. Reversible: negate the final momentum and run
    again. (Duane et al. 1987; Neal 2011, eq. 5.18-5.20.)

    Parameters
    ----------
    target
        A :class:`ribbit.protocols.LogDensity`.
    position, momentum : (P,) or (C, P) array
        In the target's dtype. Not changed.
    step_size : float or (C,)
        Nonzero; for all chains or for each.
    num_steps : int or (C,)
        At least 1.
    inverse_mass_matrix : (P,) or (C, P) array, optional
        Diagonal of M^-1. Default: ones.

    Returns
    -------
    Trajectory
        position, momentum, logdensity (float64) and grad at the end.

    Raises
    ------
    TypeError, ValueError
        For arguments of the wrong type, dtype or shape.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> q = target.init(seed=0)
    >>> end = rb.leapfrog(target, q, np.ones_like(q), 0.01, 5)
    >>> back = rb.leapfrog(target, end.position, -end.momentum, 0.01, 5)
    >>> bool(np.abs(back.position - q).max() < 1e-5)
    True
    """
    name = "leapfrog"
    density = Density(target, function=name)
    xp, dim = density.xp, density.dim
    single = getattr(position, "ndim", 0) == 1
    q = _positions(density, "position", position)
    p = _positions(density, "momentum", momentum)
    if p.shape != q.shape:
        raise ShapeError(f"[{name}] expected momentum {q.shape}, got {p.shape}")
    chains = q.shape[0]
    host = to_host(step_size) if is_array(step_size) else step_size
    eps = checks.numeric(name, "step_size", host).astype(np.float64)
    if eps.shape not in ((), (1,), (chains,)) or not np.all(np.isfinite(eps) & (eps != 0.0)):
        raise ValueError(
            f"[{name}] expected step_size finite and nonzero, () or ({chains},), "
            f"got {checks.summary(step_size)}"
        )
    steps = np.atleast_1d(checks.numeric(name, "num_steps", num_steps))
    if (
        steps.dtype.kind not in "iu"
        or steps.shape not in ((1,), (chains,))
        or not 1 <= int(steps.min()) <= int(steps.max()) < 2**62
    ):
        raise ValueError(
            f"[{name}] expected num_steps >= 1, () or ({chains},) integers, "
            f"got {checks.summary(num_steps)}"
        )
    mass = inverse_mass_matrix
    if mass is not None:
        if namespace(
            mass, function=name, name="inverse_mass_matrix"
        ) is not xp or mass.shape not in (
            (dim,),
            (chains, dim),
        ):
            raise ShapeError(
                f"[{name}] expected inverse_mass_matrix ({dim},) or ({chains}, {dim}) of "
                f"{xp.__name__}, got {checks.summary(mass)}"
            )
        if not xp.isdtype(mass.dtype, "real floating"):
            raise DTypeError(
                f"[{name}] expected inverse_mass_matrix as real floats, got dtype {mass.dtype}"
            )
        with errstate(xp):
            mass = xp.astype(mass, q.dtype)
    q, p, terms, grad, _ = density.leapfrog(
        q,
        p,
        None,
        from_host(xp, np.broadcast_to(eps, (chains,)).copy()),
        np.broadcast_to(steps, (chains,)).astype(np.int64),
        mass,
    )
    with errstate(xp):
        value = total(terms)
    if single:
        return Trajectory(q[0, :], p[0, :], value[0], grad[0, :])
    return Trajectory(q, p, value, grad)


def _positions(density: Density, name: str, array: Array) -> Array:
    """Copy of `array` as (C, P)."""
    function, xp = "leapfrog", density.xp
    if namespace(array, function=function, name=name) is not xp or (
        host_dtype(array) != density.dtype
    ):
        raise DTypeError(
            f"[{function}] expected {name} as {xp.__name__} array of dtype {density.dtype}, "
            f"got {checks.summary(array)}"
        )
    if not 1 <= array.ndim <= 2 or array.shape[-1] != density.dim or array.shape[0] == 0:
        raise ShapeError(
            f"[{function}] expected {name} ({density.dim},) or (C, {density.dim}), "
            f"got shape {array.shape}"
        )
    return xp.asarray(xp.reshape(array, (-1, density.dim)), copy=True)
