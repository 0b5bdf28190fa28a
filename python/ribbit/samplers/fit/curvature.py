"""The precision matrix of a target at a position, its factor, and Newton steps with it.

Shapes: P parameters, Q of them in the subset.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays.namespace import require_memory
from ribbit._arrays.threads import Interrupted
from ribbit.samplers.run.interrupt import InterruptGuard
from ribbit.samplers.run.target import Density

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Mode", "factor_of", "mode_near"]

_PANEL, _WIDE = 256, 1024  # columns of a step of the factorisation, and of its update
_SMALL = 1000  # parameters, up to which a Newton step costs next to nothing
_HALVINGS = 12


@dataclass(frozen=True, eq=False)
class Mode:
    """A position with what a Gaussian there needs.

    Attributes
    ----------
    theta : (P,) array
    log_density : float
    factor : (Q, Q) float64 array
        Upper triangular; factor @ factor.T is the covariance.
    prior : (Q,) float64 array
        Curvature of the prior.
    decrement : float
        Nats that a Newton step would gain, to second order.
    """

    theta: npt.NDArray[Any]
    log_density: float
    factor: npt.NDArray[np.float64]
    prior: npt.NDArray[np.float64]
    decrement: float

    @property
    def variances(self) -> npt.NDArray[np.float64]:
        """Variances of the parameters, (Q,)."""
        found: npt.NDArray[np.float64] = np.einsum("ij,ij->i", self.factor, self.factor)
        return found

    @property
    def effective(self) -> float:
        """Q - trace(covariance times curvature of the prior)."""
        return float(len(self.prior) - self.variances @ self.prior)


def mode_near(
    function: str,
    density: Density,
    subset: str,
    theta: npt.NDArray[Any],
    steps: int,
    guard: InterruptGuard,
) -> Mode:
    """Make at most `steps` damped Newton steps from theta (P,), and look at the curvature there.

    A step goes along covariance times gradient of the subset's parameters, half as far until the
    log density does not fall. The others stay.

    Raises
    ------
    Interrupted
        After Ctrl-C.
    ValueError
        For a matrix that is not finite or not positive definite.
    """
    target = density.target
    first, size = target.subset_size(function, subset)
    own = slice(first, first + size)
    value, grad = _value(density, theta, guard)
    # Where a step costs little the mode is found to rounding; else to what matters.
    digits = 1e-18 if size <= _SMALL else 1e-6
    enough = max(digits, 1e-6 if density.dtype == np.float32 else 0.0)
    for left in range(steps, -1, -1):
        prior = target.prior_curvature(theta, subset)
        precision = _precision(function, target, theta, subset, prior, guard)
        factor = factor_of(function, precision, guard)
        slope = grad[own].astype(np.float64)
        step = factor @ (factor.T @ slope)
        decrement = 0.5 * float(slope @ step)
        if not left or decrement < enough:
            break
        for halving in range(_HALVINGS):
            moved = theta.copy()
            moved[own] = theta[own] + (0.5**halving * step).astype(theta.dtype)
            found, slopes = _value(density, moved, guard)
            if found >= value:
                break
        else:
            break
        theta, value, grad = moved, found, slopes
    return Mode(theta, value, factor, prior, decrement)


def _value(
    density: Density, theta: npt.NDArray[Any], guard: InterruptGuard
) -> tuple[float, npt.NDArray[Any]]:
    """Log density, -inf where it is not finite, and gradient (P,)."""
    terms, grad = density.terms_and_grad(theta[None, :], guard)
    value = float(terms.sum())
    good = math.isfinite(value) and np.isfinite(grad).all()
    return (value if good else -math.inf), grad[0]


def _precision(
    function: str,
    target: Any,
    theta: npt.NDArray[Any],
    subset: str,
    prior: npt.NDArray[np.float64],
    guard: InterruptGuard,
) -> npt.NDArray[np.float64]:
    """Minus the Hessian (Q, Q): blocks of rows are added in their order."""
    size = len(prior)
    # the matrix, a product that is added to it, and the blocks
    what = f"the curvature of {size} parameters"
    require_memory(function, np, 3 * size * size, np.dtype(np.float64), what)
    found = np.zeros((size, size))
    found[np.diag_indices(size)] = prior
    for rows in _blocks(target.gauss_newton(theta, subset, guard.flag), guard):
        _ask(guard)
        found += rows.T @ rows
    if not np.isfinite(found).all():
        raise ValueError(
            f"[{function}] expected a finite curvature, got another: the weights or the outputs of "
            "the network are too large"
        )
    return found


def _blocks(
    blocks: Iterator[npt.NDArray[np.float64]], guard: InterruptGuard
) -> Iterator[npt.NDArray[np.float64]]:
    """Yield a target's blocks; while it makes one a signal raises in it."""
    while True:
        guard.begin_foreign()
        try:
            block = next(blocks, None)
        finally:
            guard.foreign = False
        if block is None:
            return
        yield block


def factor_of(
    function: str, precision: npt.NDArray[np.float64], guard: InterruptGuard
) -> npt.NDArray[np.float64]:
    """Return the upper triangular U with U U^T the inverse of a matrix (Q, Q), overwritten.

    U = L^-T of Cholesky's L, panel by panel, so that a large matrix can be interrupted.
    """
    a, n = precision, precision.shape[0]
    panels = [(k, min(k + _PANEL, n)) for k in range(0, n, _PANEL)]
    inverses = []
    for k, e in panels:
        _ask(guard)
        try:
            lower = np.linalg.cholesky(a[k:e, k:e])
        except np.linalg.LinAlgError as error:
            raise ValueError(
                f"[{function}] expected a positive definite curvature, got another: some direction "
                "is bent neither by the data nor by the prior (a Laplace prior bends nowhere)"
            ) from error
        inverses.append(np.tril(np.linalg.inv(lower)))
        a[e:, k:e] = a[e:, k:e] @ inverses[-1].T
        for j in range(e, n, _WIDE):
            a[j:, j : j + _WIDE] -= a[j:, k:e] @ a[j : j + _WIDE, k:e].T
    for (k, e), inverse in zip(panels, inverses, strict=True):
        _ask(guard)
        a[k:e, :k] = -(inverse @ (a[k:e, :k] @ a[:k, :k]))
        a[k:e, k:e] = inverse
        a[k:e, e:] = 0.0
    return np.ascontiguousarray(a.T)


def _ask(guard: InterruptGuard) -> None:
    if guard.requested:
        raise Interrupted
