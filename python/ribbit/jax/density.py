"""A log density written in JAX as a target: one compiled call for all chains."""

# Shapes: C chains, P = dim parameters.

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from ribbit._arrays import checks
from ribbit._arrays.checks import FloatArray
from ribbit._arrays.positions import host_position, trajectory
from ribbit._arrays.random_numbers import normal_starts
from ribbit.errors import DTypeError, ShapeError

__all__ = ["JaxDensity", "from_jax"]

_MAX_DIM = 2**34


def from_jax(fn: Callable[[jax.Array], Any], dim: int, dtype: Any = None) -> JaxDensity:
    """Return a target from a log density written in JAX, for any gradient-based sampler.

    Parameters
    ----------
    fn : callable
        ``fn(theta)``, theta (P,), returns the log density, a scalar that JAX can differentiate. It
        is compiled with its gradient, for all chains at once.
    dim : int
        Number of parameters P, >= 1.
    dtype : {"float32", "float64"}, optional
        Dtype of positions and of theta in `fn`. Default: float64 if ``jax_enable_x64`` is set, as
        we recommend; else float32, whose log densities have 7 digits.

    Returns
    -------
    JaxDensity

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or `fn` returns anything but a scalar.

    Notes
    -----
    JAX compiles a program for each number of chains. So the last digits of draws may depend on the
    number of chains, unlike with Ribbit's own targets.

    Examples
    --------
    >>> import jax.numpy as jnp, ribbit as rb
    >>> from ribbit.jax import from_jax
    >>> target = from_jax(lambda q: -0.5 * jnp.sum(q**2), 3)
    >>> draws = rb.NUTS(target).sample(200, warmup=200, seed=1, progress=False)
    >>> draws.positions.shape
    (4, 200, 3)
    """
    return JaxDensity(fn, dim, dtype)


class JaxDensity:
    """A log density written in JAX; see :func:`from_jax`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from ribbit.jax import JaxDensity
    >>> target = JaxDensity(lambda q: -0.5 * jnp.sum(q**2), 3)
    >>> target.value_and_grad(np.zeros(3, target.dtype))[1].shape
    (3,)
    """

    dim: int
    dtype: np.dtype[Any]
    array_namespace: ClassVar[ModuleType] = np
    temperature: ClassVar[float] = 1.0
    shared_prior_sd: ClassVar[float | None] = None
    dropout_layers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, fn: Callable[[jax.Array], Any], dim: int, dtype: Any = None) -> None:
        name = "from_jax"
        if not callable(fn):
            raise TypeError(f"[{name}] expected fn as a callable, got {checks.summary(fn)}")
        self.dim = checks.integer(name, "dim", dim, minimum=1, maximum=_MAX_DIM)
        x64 = bool(jax.config.jax_enable_x64)
        own = np.dtype(np.float64 if x64 else np.float32)
        self.dtype = own if dtype is None else checks.float_dtype(name, dtype)
        self._check_x64(name)
        out = jax.eval_shape(fn, jax.ShapeDtypeStruct((self.dim,), self.dtype))
        if getattr(out, "shape", None) != () or not jnp.issubdtype(out.dtype, jnp.floating):
            raise ShapeError(f"[{name}] expected fn to return a float scalar, got {out}")
        self.fn = fn
        both = jax.vmap(jax.value_and_grad(fn))
        self._compiled = jax.jit(both)
        self._trajectory = jax.jit(_leapfrog(both, out.dtype))

    def _check_x64(self, name: str) -> None:
        """Raise where JAX would round float64 to float32, which it does in silence."""
        if self.dtype == np.float64 and not jax.config.jax_enable_x64:
            raise DTypeError(
                f'[{name}] expected jax.config.update("jax_enable_x64", True) for float64, got '
                "JAX without it"
            )

    def __repr__(self) -> str:
        return f"JaxDensity(dim={self.dim}, dtype={self.dtype})"

    def __getstate__(self) -> dict[str, Any]:
        return {"fn": self.fn, "dim": self.dim, "dtype": self.dtype}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def init(self, seed: checks.Seed = 0, chains: int | npt.ArrayLike | None = None) -> FloatArray:
        """Return standard normal starts (P,) or (chains, P), which depend on the chain ids alone.

        Raises
        ------
        TypeError, ValueError
            If an argument is out of its range.
        """
        out = normal_starts("JaxDensity.init", seed, chains, self.dim, self.dtype)
        return out[0] if chains is None else out

    def value_and_grad(self, theta: FloatArray, rows: None = None) -> tuple[Any, FloatArray]:
        """Return the log density, () or (C,) float64, and its gradient, (P,) or (C, P).

        Parameters
        ----------
        theta : numpy.ndarray
            (P,) or (C, P) in the target's dtype.
        rows : None
            Must be None, because there are no data rows.

        Raises
        ------
        TypeError, ValueError
            If `theta` is wrong, or `rows` is given.
        """
        name = "JaxDensity.value_and_grad"
        if rows is not None:
            got = checks.summary(rows)
            raise ValueError(
                f"[{name}] expected rows=None for a density without data rows, got {got}"
            )
        batch, single = host_position(name, "theta", theta, self.dtype, self.dim)
        self._check_x64(name)
        values, slopes = self._compiled(batch)
        lp, grad = np.asarray(values, np.float64), np.asarray(slopes)
        return (lp[0], grad[0]) if single else (lp, grad)

    def leapfrog(
        self,
        position: FloatArray,
        momentum: FloatArray,
        grad: FloatArray | None,
        step_size: npt.ArrayLike,
        num_steps: npt.ArrayLike,
        *,
        inverse_mass: FloatArray | None = None,
        interrupt: Any = None,
    ) -> tuple[FloatArray, FloatArray, npt.NDArray[np.float64], FloatArray]:
        """Run a leapfrog trajectory of every chain in one program; as `Posterior.leapfrog`.

        The returned terms (C, 1) are the log density. Ctrl-C takes effect at the end of the call.

        Raises
        ------
        TypeError, ValueError
            If shapes or dtypes do not fit, or a number of steps is below one.
        """
        del interrupt
        name = "JaxDensity.leapfrog"
        q, p, g, sizes, steps, mass = trajectory(
            np,
            name,
            position,
            momentum,
            grad,
            step_size,
            num_steps,
            inverse_mass,
            self.dtype,
            self.dim,
        )
        self._check_x64(name)
        if g is None:
            _, g = self._compiled(q)
        if mass is None:
            mass = np.ones(self.dim, self.dtype)
        q, p, lp, g = self._trajectory(
            q, p, g, sizes.astype(self.dtype), steps, np.atleast_2d(mass)
        )
        return np.asarray(q), np.asarray(p), np.asarray(lp, np.float64)[:, None], np.asarray(g)


def _leapfrog(both: Callable[[Any], tuple[Any, Any]], dtype: Any) -> Callable[..., Any]:
    """Return trajectories of (C, P): position, momentum, log density (C,) and gradient."""
    # Chains whose own number of steps is over stay where they are while others go on.

    def run(q: Any, p: Any, grad: Any, step_size: Any, num_steps: Any, mass: Any) -> Any:
        h = step_size[:, None]

        def step(i: Any, at: Any) -> Any:
            q, p, _, grad = at
            half = p + 0.5 * h * grad
            moved = q + h * mass * half
            lp, slope = both(moved)
            new = moved, half + 0.5 * h * slope, lp, slope
            on = i < num_steps
            return tuple(
                jnp.where(on if a.ndim == 1 else on[:, None], a, b)
                for a, b in zip(new, at, strict=True)
            )

        start = q, p, jnp.zeros(len(step_size), dtype), grad
        return jax.lax.fori_loop(0, jnp.max(num_steps), step, start)

    return run
