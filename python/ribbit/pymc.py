"""PyMC: Ribbit's networks in its models, and its models with Ribbit's samplers.

PyMC 5.28 accepts no external sampler in ``pm.sample``. To sample a PyMC model with Ribbit, use
:func:`from_pymc`. ``import ribbit.pymc`` needs PyMC 5 (extra ``pymc``). Shapes: C chains, D draws,
P = dim parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.keywords import explain
from ribbit._arrays.packages import needing
from ribbit._arrays.positions import drawn_positions
from ribbit.errors import DTypeError, ShapeError
from ribbit.results.draws import Draws
from ribbit.targets.callable import CallableDensity

with needing("ribbit.pymc", "pymc"):
    import pymc
    import pytensor.tensor as pt
    from pymc.blocking import DictToArrayBijection, RaveledVars
    from pytensor.gradient import grad_not_implemented
    from pytensor.graph.basic import Apply
    from pytensor.graph.op import Op


__all__ = ["PymcDensity", "from_pymc", "pymc_log_density"]


def pymc_log_density(target: Any) -> Any:
    """Return a target's log density as an operation of PyTensor, for ``pm.Potential``.

    Parameters
    ----------
    target : Posterior
        Posterior, or any other target with ``value_and_grad`` on NumPy arrays.

    Returns
    -------
    Op
        ``log_density(theta)`` of a vector theta (P,) is a float64 scalar, differentiable once; a
        second derivative raises.

    Raises
    ------
    TypeError
        If `target` is not such a target.

    Examples
    --------
    >>> import pymc as pm
    >>> from ribbit.pymc import pymc_log_density
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> with pm.Model() as model:
    ...     w = pm.Flat("w", shape=target.dim)
    ...     network = pm.Potential("network", pymc_log_density(target)(w))
    >>> logp = model.compile_logp()({"w": np.zeros(target.dim)})
    >>> bool(abs(logp - target.value_and_grad(np.zeros(target.dim, np.float32))[0]) < 1e-3)
    True
    """
    name = "pymc_log_density"
    on_host = getattr(target, "array_namespace", np) is np
    if not callable(getattr(target, "value_and_grad", None)) or not on_host:
        got = checks.summary(target)
        raise TypeError(f"[{name}] expected target with value_and_grad on NumPy arrays, got {got}")
    return _LogDensity(target)


class _Native(Op):  # type: ignore[misc]
    """What both operations share; equal where the target is the same object."""

    __props__ = ("target",)

    def __init__(self, target: Any) -> None:
        self.target = target
        self._dtype = np.dtype(target.dtype)

    def _evaluate(self, theta: Any) -> tuple[Any, Any]:
        if theta.shape != (self.target.dim,):
            raise ShapeError(
                f"[pymc_log_density] expected theta of shape ({self.target.dim},), got "
                f"{theta.shape}"
            )
        lp, grad = self.target.value_and_grad(np.ascontiguousarray(theta[None], self._dtype))
        return np.asarray(lp[0], np.float64), np.asarray(grad[0], np.float64)


def _vector(theta: Any) -> Any:
    """Return theta as a variable of PyTensor: a vector of real numbers."""
    name = "pymc_log_density"
    try:
        found = pt.as_tensor_variable(theta)
    except Exception as error:  # NotImplementedError and others
        got = checks.summary(theta)
        raise DTypeError(
            f"[{name}] expected theta as a vector of real numbers, got {got}"
        ) from error
    if np.dtype(found.dtype).kind not in "biuf":
        raise DTypeError(
            f"[{name}] expected theta as a vector of real numbers, got one of {found.dtype}"
        )
    if found.ndim != 1:
        raise ShapeError(f"[{name}] expected theta as a vector, got {found.ndim} axes")
    return found


class _LogDensity(_Native):
    """theta (P,) -> log density ()."""

    def make_node(self, theta: Any) -> Apply[Any, Any]:
        return Apply(self, [_vector(theta)], [pt.dscalar()])

    def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
        outputs[0][0] = self._evaluate(inputs[0])[0]

    def L_op(self, inputs: Any, outputs: Any, output_grads: Any) -> list[Any]:
        return [output_grads[0] * _Gradient(self.target)(inputs[0])]


class _Gradient(_Native):
    """theta (P,) -> gradient (P,)."""

    def make_node(self, theta: Any) -> Apply[Any, Any]:
        return Apply(self, [_vector(theta)], [pt.dvector()])

    def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
        outputs[0][0] = self._evaluate(inputs[0])[1]

    def L_op(self, inputs: Any, outputs: Any, output_grads: Any) -> list[Any]:
        why = "[pymc_log_density] expected derivatives of first order, got one of second order"
        return [grad_not_implemented(self, 0, inputs[0], why)]


class PymcDensity(CallableDensity):
    """The joint density of a PyMC model; see :func:`from_pymc`.

    Examples
    --------
    >>> import pymc as pm
    >>> from ribbit.pymc import PymcDensity, from_pymc
    >>> with pm.Model() as model:
    ...     w = pm.Normal("w", 0.0, 1.0, shape=2)
    >>> isinstance(from_pymc(model), PymcDensity)
    True
    """

    def __init__(self, model: Any) -> None:
        discrete = [v.name for v in model.discrete_value_vars]
        if discrete:
            raise TypeError(
                f"[from_pymc] expected a model of continuous variables, got discrete {discrete}"
            )
        point = model.initial_point()
        both = model.logp_dlogp_function(ravel_inputs=True, initial_point=point)
        both.set_extra_values({})
        start = DictToArrayBijection.map({v.name: point[v.name] for v in both._grad_vars})
        sites = model.compile_fn(
            model.unobserved_value_vars, inputs=model.value_vars, point_fn=False
        )
        names = [v.name for v in model.unobserved_value_vars]
        super().__init__(both, start.data.size)
        for name, value in {"_info": start.point_map_info, "_sites": (names, sites)}.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"PymcDensity(dim={self.dim})"

    def samples(self, draws: Draws | np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Return the model's variables, each (C, D, ...), also on their transformed scale.

        Parameters
        ----------
        draws : Draws or array
            Draws of this target, or positions (C, D, P). ``arviz.from_dict(samples)`` takes the
            result.

        Raises
        ------
        TypeError, ValueError
            If they are not numbers, or have another number of parameters.
        """
        given = draws.positions if isinstance(draws, Draws) else draws
        positions = drawn_positions("PymcDensity.samples", given, self.dim)
        names, sites = self._sites  # type: ignore[attr-defined]
        found = []
        for flat in positions.reshape(-1, self.dim):
            point = DictToArrayBijection.rmap(RaveledVars(flat, self._info))  # type: ignore[attr-defined]
            found.append(sites(*point.values()))
        shape = positions.shape[:2]
        columns = [np.stack(values) for values in zip(*found, strict=True)]
        return {n: v.reshape(*shape, *v.shape[1:]) for n, v in zip(names, columns, strict=True)}


def from_pymc(model: Any = None) -> PymcDensity:
    """Return a target from a PyMC model, for any gradient-based sampler of Ribbit.

    Parameters
    ----------
    model : pymc.Model, optional
        PyMC model with continuous variables; default: the model of the ``with`` block. Its
        unconstrained values are sampled; a compiled function is called for each chain.

    Returns
    -------
    PymcDensity
        ``target.samples(draws)`` gives the variables.

    Raises
    ------
    TypeError
        If it is not a model, or has discrete variables.

    Examples
    --------
    >>> import pymc as pm
    >>> from ribbit.pymc import from_pymc
    >>> with pm.Model() as model:
    ...     slope, noise = pm.Normal("slope", 0.0, 1.0), pm.HalfNormal("noise", 1.0)
    ...     y = pm.Normal("y", slope * np.arange(5.0), noise, observed=[0.1, 1.1, 1.9, 3.2, 3.9])
    >>> target = from_pymc(model)
    >>> draws = rb.NUTS(target).sample(100, warmup=100, seed=1, progress=False)
    >>> {name: value.shape for name, value in target.samples(draws).items()}
    {'slope': (4, 100), 'noise_log__': (4, 100), 'noise': (4, 100)}
    """
    if model is not None and not isinstance(model, pymc.Model):
        got = checks.summary(model)
        raise TypeError(f"[from_pymc] expected model as a pymc.Model, got {got}")
    return PymcDensity(pymc.modelcontext(model))


explain(globals())
