"""NumPyro: its models with Ribbit's samplers, and Ribbit's samplers in its ``MCMC``.

To put a Ribbit network inside a model, use ``numpyro.factor("network", log_density(weights))`` with
`log_density` from :func:`ribbit.jax.jax_log_density`. ``import ribbit.numpyro`` needs NumPyro
(extra ``numpyro``). Shapes: C chains, D draws, P = dim parameters.
"""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.keywords import explain
from ribbit._arrays.packages import needing
from ribbit._arrays.positions import drawn_positions
from ribbit.chains import Chains
from ribbit.errors import ShapeError
from ribbit.jax.density import JaxDensity
from ribbit.results.draws import Draws
from ribbit.sample import Sampler

with needing("ribbit.numpyro", "numpyro"):
    import jax
    import jax.numpy as jnp
    from jax.experimental import io_callback
    from jax.flatten_util import ravel_pytree
    from numpyro.infer.mcmc import MCMCKernel
    from numpyro.infer.util import initialize_model


__all__ = ["NumpyroDensity", "RibbitKernel", "build_kernel", "from_numpyro"]


class NumpyroDensity(JaxDensity):
    """The joint density of a NumPyro model; see :func:`from_numpyro`.

    Examples
    --------
    >>> import numpyro, numpyro.distributions as dist
    >>> from ribbit.numpyro import NumpyroDensity, from_numpyro
    >>> def model():
    ...     numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    >>> target = from_numpyro(model)
    >>> isinstance(target, NumpyroDensity), target.dim
    (True, 2)
    """

    def __init__(
        self, model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if not callable(model):
            got = checks.summary(model)
            raise TypeError(f"[from_numpyro] expected model as a function, got {got}")
        found = initialize_model(jax.random.key(0), model, model_args=args, model_kwargs=kwargs)
        flat, self._unravel = ravel_pytree(found.param_info.z)
        self._postprocess = found.postprocess_fn
        self._arguments = model, args, kwargs
        potential, unravel = found.potential_fn, self._unravel
        super().__init__(lambda q: -potential(unravel(q)), flat.size, flat.dtype)

    def __repr__(self) -> str:
        return f"NumpyroDensity(dim={self.dim}, dtype={self.dtype})"

    def __reduce__(self) -> tuple[Any, ...]:
        return NumpyroDensity, self._arguments

    def samples(self, draws: Draws | np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Return the model's sites, each (C, D, ...), in its own units, with deterministic ones.

        Parameters
        ----------
        draws : Draws or array
            Draws of this target, or positions (C, D, P).

        Raises
        ------
        TypeError, ValueError
            If they are not numbers, or have another number of parameters.
        """
        given = draws.positions if isinstance(draws, Draws) else draws
        positions = drawn_positions("NumpyroDensity.samples", given, self.dim)
        sites = jax.vmap(jax.vmap(lambda q: self._postprocess(self._unravel(q))))(positions)
        return {name: np.asarray(value) for name, value in sites.items()}


def from_numpyro(model: Callable[..., Any], *args: Any, **kwargs: Any) -> NumpyroDensity:
    """Return a target from a NumPyro model, for any gradient-based sampler of Ribbit.

    Parameters
    ----------
    model : callable
        NumPyro model with continuous latent sites; their unconstrained values are sampled.
    *args, **kwargs
        Arguments of the model.

    Returns
    -------
    NumpyroDensity
        ``target.samples(draws)`` gives the sites.

    Raises
    ------
    TypeError, ValueError
        If `model` is not a function. Errors of the model reach you unchanged.

    Examples
    --------
    >>> import numpyro, numpyro.distributions as dist, ribbit as rb
    >>> from ribbit.numpyro import from_numpyro
    >>> def model():
    ...     sd = numpyro.sample("sd", dist.HalfNormal(1.0))
    ...     numpyro.sample("w", dist.Normal(0.0, 1.0 + sd).expand([2]).to_event(1))
    >>> target = from_numpyro(model)
    >>> draws = rb.NUTS(target).sample(100, warmup=200, seed=1, progress=False)
    >>> {name: value.shape for name, value in target.samples(draws).items()}
    {'sd': (4, 100), 'w': (4, 100, 2)}
    """
    return NumpyroDensity(model, args, kwargs)


def build_kernel(sampler: Sampler) -> RibbitKernel:
    """Return a kernel for NumPyro's ``MCMC`` from a sampler of Ribbit.

    Parameters
    ----------
    sampler : Sampler
        Such as ``rb.HMC(target)`` or ``rb.NUTS(target)``, with a target that is not computed by
        JAX, because a compiled program that waits for Python must not need JAX there. For NumPyro
        models use :func:`from_numpyro` and the sampler's own ``sample``.

    Returns
    -------
    RibbitKernel
        ``MCMC(kernel, num_warmup=..., num_samples=..., chain_method="vectorized")``: one native
        call for all chains. "sequential" works, too; "parallel" on several devices is refused.

    Raises
    ------
    TypeError
        If `sampler` is not a sampler, or its target is computed by JAX.

    Examples
    --------
    >>> import jax
    >>> from numpyro.infer import MCMC
    >>> from ribbit.numpyro import build_kernel
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> kernel = build_kernel(rb.NUTS(target))
    >>> options = {"num_chains": 2, "chain_method": "vectorized", "progress_bar": False}
    >>> mcmc = MCMC(kernel, num_warmup=50, num_samples=50, **options)
    >>> mcmc.run(jax.random.key(0))
    >>> mcmc.get_samples(group_by_chain=True).shape
    (2, 50, 10)
    """
    name = "build_kernel"
    if not isinstance(sampler, Sampler):
        raise TypeError(f"[{name}] expected a sampler of Ribbit, got {checks.summary(sampler)}")
    if isinstance(sampler._density.target, JaxDensity):
        raise TypeError(
            f"[{name}] expected a target that JAX does not compute, got "
            f"{sampler._density.target!r}: call sampler.sample(...) instead"
        )
    return RibbitKernel(sampler)


class RibbitKernel(MCMCKernel):  # type: ignore[misc]
    """Kernel of NumPyro's ``MCMC`` that runs a sampler of Ribbit; see :func:`build_kernel`.

    A state has the fields `position`, (P,) or (C, P), the sampler's statistics (`lp`,
    `acceptance_rate` and so on, for ``extra_fields=``), `step`, `slot` and `rng_key`. Adapted
    values stay in the kernel, under `slot`: you can continue from the last state, but not from
    earlier ones. The random numbers are Ribbit's, with a seed made from NumPyro's key.

    Examples
    --------
    >>> from ribbit.numpyro import RibbitKernel, build_kernel
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> isinstance(build_kernel(rb.HMC(target)), RibbitKernel)
    True
    """

    sample_field = "position"

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._statistics = sampler._statistics_of(thinned=False)
        fields = "position", *self._statistics, "step", "slot", "rng_key"
        self._state: Any = namedtuple("RibbitState", fields)  # type: ignore[misc]
        self._chains: list[Chains] = []  # by slot

    @property
    def default_fields(self) -> tuple[str, ...]:
        """Fields that ``MCMC`` collects by default."""
        return tuple(n for n in ("position", "diverging") if n in self._state._fields)

    def init(
        self,
        rng_key: Any,
        num_warmup: int,
        init_params: Any,
        model_args: Any = (),
        model_kwargs: Any = None,
    ) -> Any:
        """Return a state at `init_params` (P,) or (C, P), or at the target's starts.

        Raises
        ------
        TypeError, ValueError
            If `init_params` has the wrong type or shape.
        """
        del model_args, model_kwargs
        if isinstance(rng_key, jax.core.Tracer):
            raise ValueError(
                "[RibbitKernel.init] expected chain_method='vectorized' or 'sequential', got a "
                "transformed call: the sampler is no program of JAX"
            )
        keys = rng_key
        if jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
            keys = jax.random.key_data(keys)
        keys = np.asarray(keys, np.uint32)
        single = keys.ndim == 1
        first = keys.reshape(-1, keys.shape[-1])[0]
        seed = int(first[-2]) << 32 | int(first[-1])
        count, start = 1 if single else keys.shape[0], init_params
        if start is not None:
            start = checks.numeric("RibbitKernel.init", "init_params", start)
            dim = self._sampler._density.full_dim
            if start.shape not in ((dim,), (count, dim)):
                raise ShapeError(
                    f"[RibbitKernel.init] init_params must have shape ({dim},) or "
                    f"({count}, {dim}), got {start.shape}"
                )
        chains = Chains(self._sampler, start, chains=count, seed=seed, warmup=num_warmup)
        shape = () if single else (count,)
        statistics = {n: jnp.zeros(shape, np.dtype(d)) for n, d in self._real().items()}
        position = jnp.asarray(chains.position[0] if single else chains.position)
        if position.dtype != chains.position.dtype:
            raise TypeError(
                '[RibbitKernel.init] expected jax.config.update("jax_enable_x64", True) for a '
                f"target of {chains.position.dtype}, got JAX without it"
            )
        self._chains.append(chains)
        return self._state(
            position=position,
            **statistics,
            step=jnp.int32(0),
            slot=jnp.int32(len(self._chains) - 1),
            rng_key=rng_key,
        )

    def sample(self, state: Any, model_args: Any = (), model_kwargs: Any = None) -> Any:
        """Return the state after one transition of every chain."""
        del model_args, model_kwargs
        shape = state.position.shape[:-1]
        out = {"position": jax.ShapeDtypeStruct(state.position.shape, state.position.dtype)}
        for name, dtype in self._real().items():
            out[name] = jax.ShapeDtypeStruct(shape, dtype)
        step = functools.partial(self._step, single=shape == ())
        made = io_callback(step, out, state.slot, state.step)
        return state._replace(**made, step=state.step + 1)

    def get_diagnostics_str(self, state: Any) -> str:
        """Return the text for the progress bar."""
        rate = getattr(state, "acceptance_rate", None)
        return "" if rate is None else f"acc. prob={float(np.mean(rate)):.2f}"

    def _real(self) -> dict[str, Any]:
        """Dtypes of statistics as JAX has them."""
        return {n: jax.dtypes.canonicalize_dtype(d) for n, d in self._statistics.items()}

    def _step(self, slot: Any, step: Any, single: bool) -> dict[str, Any]:
        chains = self._chains[int(slot)]
        if int(step) != chains.step:
            raise ValueError(
                f"[RibbitKernel.sample] expected the latest state, of step {chains.step}, got one "
                f"of step {int(step)}"
            )
        positions, stats = chains.advance(1)
        with np.errstate(over="ignore"):  # energies of a diverging step in float32
            values = {n: np.asarray(stats[n][:, 0], d) for n, d in self._real().items()}
        out = {"position": np.asarray(positions[:, 0]), **values}
        # A chain of its own has no axis of chains in NumPyro.
        return {n: v[0] for n, v in out.items()} if single else out


explain(globals())
