"""A posterior's native log density as a primitive of JAX."""

# XLA calls the core's handler (``cpp/cpu/density/xla_handler.h``) without Python: the program holds
# a number by which the handler finds the density. Shapes: P = dim parameters, ... any batch axes.

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ribbit._arrays import checks
from ribbit._backends import cpu
from ribbit.errors import DTypeError, ShapeError

__all__ = ["jax_log_density"]

_NAME = "jax_log_density"
_HANDLER = "ribbit_log_density"


def jax_log_density(target: Any, *, prior: bool = True) -> Callable[[Any], jax.Array]:
    """Return a target's log density as a function that JAX can compile, differentiate and batch.

    In a compiled program it is a call of the native core, without Python or copies, and the same
    evaluation gives the gradient. `jax.vmap` makes one native call for all chains, on Ribbit's
    threads.

    Parameters
    ----------
    target : Posterior
        Posterior with data in host memory. Compiled programs keep it alive.
    prior : bool, default True
        False: the tempered log likelihood alone, for a model with its own priors.

    Returns
    -------
    callable
        ``log_density(theta)``: theta (..., P) in the target's dtype -> (...) in the same dtype. For
        float64 JAX needs ``jax.config.update("jax_enable_x64", True)``. First derivatives work in
        forward and reverse mode; second ones raise TypeError.

    Raises
    ------
    TypeError, ValueError
        If `target` is not such a target. The function raises them for a wrong theta, and if a
        program for several devices is compiled.
    NotImplementedError
        If a program for anything but the CPU is compiled.

    Notes
    -----
    The log density is rounded to the target's dtype: in float32 to 7 digits. Use float64 for
    samplers that compare energies of many rows. Ctrl-C takes effect between native calls. Programs
    cannot be exported or cached on disk for another process.

    Examples
    --------
    >>> import jax, numpy as np, ribbit as rb
    >>> from ribbit.jax import jax_log_density
    >>> x = np.linspace(-1.0, 1.0, 40)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (5,), 1), x, np.sin(3 * x), prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.1)
    ... )
    >>> log_density = jax_log_density(target)
    >>> value, grad = jax.jit(jax.vmap(jax.value_and_grad(log_density)))(target.init(chains=4))
    >>> value.shape, grad.shape
    ((4,), (4, 16))
    """
    return _LogDensity(target, checks.boolean(_NAME, "prior", prior))


class _LogDensity:
    """What :func:`jax_log_density` returns: a function that can be pickled."""

    def __init__(self, target: Any, prior: bool) -> None:
        density = self._density = _Native(target, prior)

        def value_alone(theta: jax.Array) -> Any:
            (value,) = _log_density_p.bind(theta, density=density, gradient=False)
            return value

        def with_tangent(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
            (theta,), (tangent,) = primals, tangents
            value, grad = _log_density_p.bind(theta, density=density, gradient=True)
            return value, jnp.sum(grad * tangent, axis=-1)

        self._differentiable: Any = jax.custom_jvp(value_alone)
        self._differentiable.defjvp(with_tangent)
        self.__name__ = "log_density"  # of programs

    def __call__(self, theta: Any) -> Any:
        """Return the log density (...) of theta (..., P)."""
        try:
            at = jnp.asarray(theta)
        except FloatingPointError:  # of jax_debug_nans
            raise
        except Exception as error:
            raise TypeError(
                f"[{_NAME}] expected theta as an array of {self._density.dtype}, got "
                f"{checks.summary(theta)}"
            ) from error
        self._density.check(at)
        return self._differentiable(at)

    def __repr__(self) -> str:
        prior = "" if self._density.prior else ", prior=False"
        return f"jax_log_density({self._density!r}{prior})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _LogDensity, (self._density.target, self._density.prior)

    def __deepcopy__(self, memo: Any) -> _LogDensity:
        return self  # as functions are


class _Native:
    """A target as a parameter of the primitive, equal to itself alone."""

    def __init__(self, target: Any, prior: bool) -> None:
        self.number = cpu.xla_number(_NAME, target)
        self.target, self.prior = target, prior
        self.dim, self.dtype = int(target.dim), np.dtype(target.dtype)
        _register()

    def __repr__(self) -> str:
        return f"{type(self.target).__name__}(dim={self.dim}, {self.dtype})"

    def check(self, theta: jax.Array) -> None:
        """Raise unless theta is (..., P) in the target's dtype."""
        if theta.dtype != self.dtype:
            x64 = "" if self.dtype == np.float32 else '; needs "jax_enable_x64"'
            raise DTypeError(
                f"[{_NAME}] expected theta of the target's dtype {self.dtype}{x64}, got "
                f"{theta.dtype}"
            )
        if theta.ndim == 0 or theta.shape[-1] != self.dim:
            raise ShapeError(
                f"[{_NAME}] expected theta of shape (..., {self.dim}), got {theta.shape}"
            )

    @functools.cached_property
    def compiled(self) -> dict[bool, Any]:
        """Programs for calls outside of one, by whether they want a gradient."""
        bind = functools.partial(_log_density_p.bind, density=self)
        return {g: jax.jit(functools.partial(bind, gradient=g)) for g in (False, True)}


@functools.cache
def _register() -> None:
    jax.ffi.register_ffi_target(_HANDLER, cpu.xla_handler(), platform="cpu", api_version=1)


_log_density_p = Primitive("ribbit_log_density")
_log_density_p.multiple_results = True


def _run(theta: Any, *, density: _Native, gradient: bool) -> Any:
    """Call outside of a program: by one of its own, with `jax.disable_jit` too."""
    config = jax.config
    nans, infs = config.jax_debug_nans, config.jax_debug_infs
    if not (config.jax_disable_jit or nans or infs):
        return density.compiled[gradient](theta)
    # JAX itself would look for what is not finite by calls outside of programs: without end.
    with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
        out = density.compiled[gradient](theta)
    for wrong, found in (("NaN", nans and jnp.isnan), ("infinity", infs and jnp.isinf)):
        if found and any(found(one).any() for one in out):
            raise FloatingPointError(f"[{_NAME}] expected finite results, got {wrong}")
    return out


def _shapes(theta: Any, *, density: _Native, gradient: bool) -> Any:
    value = theta.update(shape=theta.shape[:-1], weak_type=False)
    return [value, theta.update(weak_type=False)] if gradient else [value]


def _batched(thetas: Any, axes: Any, *, density: _Native, gradient: bool) -> Any:
    """All chains in one call: batch axes come first."""
    (theta,), (axis,) = thetas, axes
    out = _log_density_p.bind(jnp.moveaxis(theta, axis, 0), density=density, gradient=gradient)
    return out, [0] * len(out)


def _differentiated(primals: Any, tangents: Any, **parameters: Any) -> Any:
    raise TypeError(
        f"[{_NAME}] expected derivatives of first order, got one of second order (jax.hessian, a "
        "gradient of a gradient): the core has none"
    )


def _lowered(ctx: Any, theta: Any, *, density: _Native, gradient: bool) -> Any:
    _one_device(ctx.module_context.axis_context)
    if getattr(ctx.module_context.lowering_parameters, "for_export", False):
        raise ValueError(
            f"[{_NAME}] expected a program for this process, got one to be exported: the target is "
            "not in it"
        )
    # Compiled programs find it by a number.
    ctx.module_context.add_keepalive(density)
    call = jax.ffi.ffi_lowering(_HANDLER)
    return call(ctx, theta, density=np.int64(density.number), prior=np.int64(density.prior))


def _lowered_elsewhere(ctx: Any, *operands: Any, **parameters: Any) -> Any:
    raise NotImplementedError(
        f"[{_NAME}] expected a program for the CPU, got one for {ctx.module_context.platforms}: "
        'use jax.jit under jax.default_device(jax.devices("cpu")[0])'
    )


def _one_device(context: Any) -> None:
    """Raise for a program whose arrays are spread over devices."""
    mesh = getattr(context, "mesh", None)  # of shard_map
    count = getattr(context, "num_devices", None) if mesh is None else mesh.size
    if count != 1:
        raise ValueError(
            f"[{_NAME}] expected arrays on one device, got a program for {count}: chains share "
            "Ribbit's threads, so vmap over them in place of sharding"
        )


_log_density_p.def_impl(_run)
_log_density_p.def_abstract_eval(_shapes)
batching.primitive_batchers[_log_density_p] = _batched
ad.primitive_jvps[_log_density_p] = _differentiated
mlir.register_lowering(_log_density_p, _lowered_elsewhere)
mlir.register_lowering(_log_density_p, _lowered, platform="cpu")
