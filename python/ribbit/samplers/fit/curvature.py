"""The precision matrix of a target at a position, its factor, and Newton steps with it."""

# Shapes: P parameters, Q of them in the subset.

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays.namespace import require_memory
from ribbit._arrays.threads import Interrupted
from ribbit.density import Density
from ribbit.interrupt import InterruptGuard

if TYPE_CHECKING:
    import numpy.typing as npt


# Columns of a step of the factorisation, so few that LAPACK starts no threads for them (where much
# else runs they cost a hundred times the work), and of an update of what is left.
_PANEL, _WIDE = 64, 1024
SMALL = 1000  # parameters, up to which a Newton step costs next to nothing
# Damping: how often it is raised, by what, what it begins with, and what lets it fall.
_TRIES, _RAISED, _LEAST, _EASED = 12, 8.0, 1e-3, 4.0
_TRUSTED = 0.25  # of the gain that a parabola promises


@dataclass(frozen=True, eq=False)
class Mode:
    """A position with what a Gaussian there needs."""

    theta: npt.NDArray[Any]  # (P,)
    log_density: float
    # (Q, Q) float64: upper triangular; factor @ factor.T is the covariance
    factor: npt.NDArray[np.float64]
    prior: npt.NDArray[np.float64]  # (Q,) float64: curvature of the prior
    decrement: float  # nats that a Newton step would gain, to second order

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
    *,
    enough: float = 0.0,
) -> Mode:
    """Make at most `steps` damped Newton steps from theta (P,), and look at the curvature there."""
    # A step goes along (curvature + damping)^-1 gradient of the subset's parameters; the damping, a
    # multiple of the curvature's diagonal, is 0 as long as the log density gains what a parabola
    # says (Marquardt 1963). Steps end if a further one would gain fewer than `enough` nats, or less
    # than rounding errors.
    target = density.target
    first, size = target.subset_size(function, subset)
    own = slice(first, first + size)
    climber = _Climber(function, density, own, theta, guard)
    # Where a step costs little the mode is found to rounding; else to what matters.
    enough = max(enough, 1e-18 if size <= SMALL else 1e-6, climber.rounding**1.5)
    if density.dtype == np.float32:
        enough = max(enough, climber.rounding)
    for left in range(steps, -1, -1):
        prior = target.prior_curvature(climber.theta, subset)
        precision = _precision(function, target, climber.theta, subset, prior, guard)
        factor = factor_of(function, precision.copy(), guard)
        slope = climber.grad[own].astype(np.float64)
        decrement = 0.5 * float(np.sum((factor.T @ slope) ** 2))
        if not left or decrement < enough or not climber.climb(precision, factor):
            break
    return Mode(climber.theta, climber.value, factor, prior, decrement)


class _Climber:
    """A position that damped Newton steps move up."""

    def __init__(
        self,
        function: str,
        density: Density,
        own: slice,
        theta: npt.NDArray[Any],
        guard: InterruptGuard,
    ) -> None:
        self._function, self._density, self._own, self._guard = function, density, own, guard
        self._damping = 0.0
        self.theta = theta  # (P,)
        self.value, self.grad = _value(density, theta, guard)
        # what the log density is known to
        self.rounding = 16.0 * float(np.finfo(density.dtype).eps) * max(1.0, abs(self.value))

    def climb(self, precision: npt.NDArray[np.float64], factor: npt.NDArray[np.float64]) -> bool:
        """Make a step with a precision matrix (Q, Q) and its factor; False when none gains."""
        slope = self.grad[self._own].astype(np.float64)
        for _ in range(_TRIES):
            damped = factor
            if self._damping:
                more = precision.copy()
                more[np.diag_indices(len(slope))] *= 1.0 + self._damping
                damped = factor_of(self._function, more, self._guard)
            step = damped @ (damped.T @ slope)
            expected = float(slope @ step - 0.5 * step @ (precision @ step))
            moved = self.theta.copy()
            moved[self._own] = self.theta[self._own] + step.astype(moved.dtype)
            value, grad = _value(self._density, moved, self._guard)
            if value - self.value >= _TRUSTED * expected - self.rounding:
                self.theta, self.value, self.grad = moved, value, grad
                self._damping = self._damping / _EASED if self._damping > _LEAST else 0.0
                return True
            self._damping = max(_LEAST, _RAISED * self._damping)
        return False


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
    # the matrix, its factor, a damped one, and a product that is added
    what = f"the curvature of {size} parameters"
    require_memory(function, np, 4 * size * size, np.dtype(np.float64), what)
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
    """Return the upper triangular U with U U^T the inverse of a matrix (Q, Q), overwritten."""
    # U = L^-T of Cholesky's L, panel by panel, so that a large matrix can be interrupted.
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
                "has no curvature from the data or the prior (a Laplace prior has none)"
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
