"""The log density of a PyTorch module on data, by torch's gradients, as samplers want it."""

# Shapes: C chains, P parameters, N rows, n rows of a batch, K outputs.

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch

from ribbit._arrays import checks, overrides
from ribbit._arrays.checks import FloatArray
from ribbit._arrays.positions import host_position, one_position
from ribbit._arrays.random_numbers import normal_starts
from ribbit.errors import DTypeError, ShapeError
from ribbit.targets import prior_table
from ribbit.targets.likelihoods import Array64, Likelihood
from ribbit.targets.members import public
from ribbit.targets.predictive import log_noise_view
from ribbit.targets.prior_base import LOG_NOISE, PriorLike
from ribbit.targets.priors import Normal
from ribbit.targets.spec import digest, log_noise_prior
from ribbit.torch.data import Rows
from ribbit.torch.likelihoods import RowTerms, row_terms
from ribbit.torch.parameters import NativePrior, parameters_of
from ribbit.torch.steps import TorchSteps

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["ModuleDensity"]


class ModuleDensity(TorchSteps):
    """The posterior of any ``nn.Module``, run by ``functional_call`` and ``vmap`` over chains.

    `posterior` returns it if Ribbit's layers do not cover a module. It has the
    members of `ribbit.protocols.LogDensity`, `terms_and_grad`, `advance` and `advance_variational`.
    Positions are NumPy arrays; the module runs on the device of its parameters. ``num_rows`` is the
    number of data rows.

    Attributes
    ----------
    module : torch.nn.Module
        A copy in evaluation mode and in the target's dtype.
    dim : int
        Number P of parameters with ``requires_grad``, and one more for a learned noise.
    parameters : tuple of ModuleParameter
        Name, shape and offset of each array.
    trained : numpy.ndarray
        The module's own weights (P,), for ``sample(init=target.trained)``.
    dtype : numpy dtype
    batch_size : int or None
        Batch size of the DataLoader, for ``SGLD(target, batch_size=target.batch_size)``.
    native : bool
        False: torch computes.
    why : str
        The reason why it is not native.

    Examples
    --------
    >>> import torch
    >>> import ribbit.torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    >>> x = torch.linspace(-1, 1, 20)[:, None]
    >>> target = rb.torch.posterior(
    ...     net, rb.Gaussian(0.1), (x, 2 * x), prior=rb.Normal(1.0), native=False
    ... )
    >>> isinstance(target, rb.torch.ModuleDensity), target.dim
    (True, 10)
    """

    native: ClassVar[bool] = False
    interruptible: ClassVar[bool] = False
    term_names: ClassVar[tuple[str, ...]] = ("log likelihood", "log prior")
    # A minibatch per chain in one call: value_and_grad takes rows (C, n) too.
    rows_per_chain: ClassVar[bool] = True
    array_namespace: ClassVar[ModuleType] = np

    def __init__(
        self,
        module: torch.nn.Module,
        likelihood: Likelihood | Callable[..., Any],
        rows: Rows,
        *,
        prior: PriorLike,
        temperature: float,
        likelihood_temperature: float,
        dtype: np.dtype[Any],
        outputs: int,
        flat: bool,
        vmap: bool,
        chunk_size: int,
        why: str,
        writes: bool,
        dropping: frozenset[str],
    ) -> None:
        name = "posterior"
        if not isinstance(module, torch.nn.Module) or not isinstance(rows, Rows):
            got = f"{checks.summary(module)} and {checks.summary(rows)}"
            kind = type(self).__name__
            raise TypeError(f"[{kind}] rb.torch.posterior(...) makes such targets, got {got}")
        dtype = checks.float_dtype(type(self).__name__, dtype)
        self._options: dict[str, Any] = {
            "prior": prior,
            "temperature": temperature,
            "likelihood_temperature": likelihood_temperature,
            "dtype": dtype,
            "outputs": outputs,
            "flat": flat,
            "vmap": vmap,
            "chunk_size": chunk_size,
            "why": why,
            "writes": writes,
            "dropping": dropping,
        }
        self.module, self.likelihood, self.rows = module, likelihood, rows
        self.prior, self.dtype, self.flat, self.why = prior, dtype, flat, why
        self.temperature = temperature
        self.likelihood_temperature = likelihood_temperature
        self.parameters = parameters_of(module)
        self.num_outputs = outputs
        self._vmap, self._chunk, self._writes = vmap, chunk_size, writes
        known = likelihood if isinstance(likelihood, Likelihood) else None
        self._terms: RowTerms = (
            row_terms(known, outputs)
            if known is not None
            else _of_function(cast("Any", likelihood))
        )
        noises = 0 if known is None else known.noises((outputs,))
        log_noise = None if known is None else log_noise_prior(name, known)
        table = prior_table.resolve(
            name, prior, self.parameters, log_noise=log_noise, noises=noises, dtype=self.dtype
        )
        if table.scales is not None:
            raise ValueError(
                f"[{name}] expected priors of known scales for a module that torch runs, got "
                f"{prior!r}: learned scales of weights need a module of our layers ({why})"
            )
        self.noises = noises
        self.noise_at = sum(p.size for p in self.parameters)
        self.dim = table.dim
        self.prior_mean, self.prior_sd = table.mean, table.spread
        self.shared_prior_sd = table.shared
        starts = [p.offset for p in self.parameters] + [self.noise_at] * bool(noises)
        self.parameter_groups = np.array(starts, np.int64)
        self.normal_prior = bool((table.rows[:, 2] == Normal.kind).all())
        self._table = table
        self._log_prior = NativePrior(table, dtype, temperature)
        self._torch_dtype = torch.float64 if dtype == np.float64 else torch.float32
        self._prepare()
        self.dropout_layers = tuple(
            f"{where or 'module'}: {part}"
            for where, part in module.named_modules()
            if where in dropping
        )

    def __reduce__(self) -> tuple[Any, ...]:
        made = type(self), self.module, self.likelihood, self.rows, self._options
        return _rebuild, made, overrides.hidden(self)

    def __dir__(self) -> list[str]:
        return public(super().__dir__())

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({type(self.module).__name__}, {self.dim} parameters, "
            f"{self.num_rows} rows, prior={self.prior!r}, likelihood={self.likelihood!r}, "
            f"temperature={self.temperature:g}, dtype={self.dtype})"
        )

    @property
    def columns(self) -> tuple[str | int, ...] | None:
        """Column names of x if it was a frame; inputs of predictions are matched by them."""
        return self.rows.columns

    # --- what samplers ask ------------------------------------------------------------------------

    @property
    def batch_size(self) -> int | None:
        """Batch size of the DataLoader; None without one."""
        return self.rows.batch_size

    def value_and_grad(
        self, theta: FloatArray, rows: npt.ArrayLike | None = None
    ) -> tuple[Any, FloatArray]:
        """Return the tempered log density and its gradient.

        Parameters
        ----------
        theta : numpy.ndarray
            (P,) or (C, P) in the target's dtype.
        rows : array of int, optional
            Minibatch (n,), or (C, n), one for each chain; the likelihood is scaled by N / n.

        Returns
        -------
        lp : numpy.float64 or numpy.ndarray
            () or (C,) float64.
        grad : numpy.ndarray
            (P,) or (C, P).

        Raises
        ------
        TypeError, ValueError
            If `theta` or `rows` is wrong.
        """
        terms, grad, single = self._evaluate("value_and_grad", theta, rows)
        lp = terms[:, 0] + terms[:, 1]
        return (lp[0], grad[0]) if single else (lp, grad)

    def terms_and_grad(self, theta: FloatArray) -> tuple[Array64, FloatArray]:
        """Return tempered likelihood and prior, (2,) or (C, 2) float64, and the gradient."""
        terms, grad, single = self._evaluate("terms_and_grad", theta, None)
        return (terms[0], grad[0]) if single else (terms, grad)

    def log_likelihood(self, theta: FloatArray, x: Any = None, y: Any = None) -> Any:
        """Return the untempered log likelihood of all rows, () or (C,) float64."""
        if x is not None or y is not None:
            raise TypeError("[log_likelihood] expected no x and y for a loss, got one of them")
        theta, single = host_position("log_likelihood", "theta", theta, self.dtype, self.dim)
        value = self._sums(theta, None, gradient=False)[0]
        return value[0] if single else value

    def log_prior(self, theta: FloatArray) -> Any:
        """Return the untempered log prior, () or (C,) float64."""
        theta, single = host_position("log_prior", "theta", theta, self.dtype, self.dim)
        value, _ = self._log_prior.value_and_grad(theta)
        return value[0] if single else value

    def init(self, seed: checks.Seed = 0, chains: int | npt.ArrayLike | None = None) -> FloatArray:
        """Return random starts (P,) or (chains, P), which depend on the chain ids alone.

        Arrays of two axes or more are N(0, 2 / fan_in) (He et al. 2015), biases 0, scales of norms
        1, "log_noise" 0, and other vectors as in the module. For the module's own weights use
        `trained`.
        """
        out = normal_starts("init", seed, chains, self.dim, self.dtype)
        own = self.trained
        for p in self.parameters:
            part = slice(p.offset, p.offset + p.size)
            if p.is_weight:
                out[:, part] *= (2.0 / p.fan_in) ** 0.5
            else:
                out[:, part] = own[part] if p.initial is None else p.initial
        out[:, self.noise_at :] = 0.0
        return out[0] if chains is None else out

    def subset(self, rows: npt.ArrayLike) -> Any:
        """Return the posterior of some of the rows alone."""
        chosen = checks.integer_array("subset", "rows", rows, below=self.num_rows)
        options = self._options
        return type(self)(self.module, self.likelihood, self.rows.subset(chosen), **options)

    @functools.cached_property
    def fingerprint(self) -> dict[str, str]:
        """Checksums of module, prior, likelihood, temperatures, data and dtype."""
        sampled = {p.name for p in self.parameters}
        fixed = {
            name: value.detach().cpu().double().numpy()
            for name, value in self.module.state_dict().items()
            if name not in sampled and isinstance(value, torch.Tensor)
        }
        shapes = [(p.name, p.shape) for p in self.parameters]
        likelihood = self.likelihood
        said: Any = getattr(likelihood, "__qualname__", repr(likelihood))
        if isinstance(likelihood, Likelihood):
            said = likelihood.describe()
        return {
            "model": digest(
                type(self.module).__qualname__,
                repr(self.module),
                shapes,
                *(part for pair in fixed.items() for part in pair),
            ),
            "prior": digest(self._table.rows, self._table.centre),
            "likelihood": digest(said),
            "temperature": repr(self.temperature),
            "likelihood temperature": repr(self.likelihood_temperature),
            "data": self.rows.fingerprint,
            "dtype": self.dtype.name,
        }

    # --- back to torch ----------------------------------------------------------------------------

    @property
    def trained(self) -> FloatArray:
        """The module's own weights (P,), with "log_noise" at 0."""
        arrays = dict(self.module.named_parameters())
        out = np.zeros(self.dim, self.dtype)
        for p in self.parameters:
            out[p.offset : p.offset + p.size] = arrays[p.name].detach().cpu().reshape(-1).numpy()
        return out

    def unravel(self, theta: FloatArray) -> dict[str, FloatArray]:
        """Return named views of a position (..., P), with the module's names and shapes."""
        shape = getattr(theta, "shape", None)
        if not isinstance(shape, tuple) or not hasattr(theta, "reshape"):
            got = checks.summary(theta)
            raise DTypeError(f"[unravel] expected theta as an array, got {got}")
        if isinstance(theta, np.ndarray):
            checks.numeric("unravel", "theta", theta)
        if not shape or shape[-1] != self.dim:
            raise ShapeError(f"[unravel] expected theta of shape (..., {self.dim}), got {shape}")
        views = {
            p.name: theta[..., p.offset : p.offset + p.size].reshape(shape[:-1] + p.shape)
            for p in self.parameters
        }
        if self.noises:
            views[LOG_NOISE] = log_noise_view(theta, self.noise_at, self.noises)
        return views

    def state_dict(self, theta: FloatArray) -> dict[str, torch.Tensor]:
        """Return a position (P,) as a state dict for ``module.load_state_dict``.

        Raises
        ------
        TypeError, ValueError
            If `theta` is not an array (P,).
        """
        views = self.unravel(one_position("state_dict", theta, self.dim))
        state = {name: value.detach().clone() for name, value in self.module.state_dict().items()}
        places: dict[int, list[str]] = {}
        for name, value in self.module.named_parameters(remove_duplicate=False):
            places.setdefault(id(value), []).append(name)
        for names in places.values():
            for known in set(names) & set(views):
                own = np.array(views[known], views[known].dtype.newbyteorder("="), order="C")
                array = torch.from_numpy(own)
                for name in names:
                    state[name] = array.to(state[name])
        return state


def _of_function(loss: Callable[..., Any]) -> RowTerms:
    """Return log likelihoods of a user's losses (n,), a negative log likelihood each."""

    def terms(f: torch.Tensor, y: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        del noise
        losses = loss(f, y.clone())  # it may work in place
        if not isinstance(losses, torch.Tensor) or losses.shape != f.shape[:1]:
            raise ShapeError(
                f"[posterior] expected a loss for each row, shape ({f.shape[0]},), got "
                f"{checks.summary(losses)}: a mean or sum over a batch cannot be scaled to all "
                "rows (reduction='none')"
            )
        return -losses.double()

    return terms


def _rebuild(kind: Any, module: Any, likelihood: Any, rows: Any, options: Any) -> Any:
    return kind(module, likelihood, rows, **options)
