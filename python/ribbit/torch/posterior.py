"""`posterior`: any PyTorch module as a target, native where our layers cover it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from ribbit._arrays import checks
from ribbit.errors import ShapeError
from ribbit.targets import priors
from ribbit.targets.likelihoods import Likelihood
from ribbit.targets.posterior import Posterior
from ribbit.targets.prior_base import PriorLike
from ribbit.targets.prior_table import warn_of_hidden
from ribbit.torch.compiled import compile_module, native_prior
from ribbit.torch.data import Rows, read
from ribbit.torch.density import ModuleDensity
from ribbit.torch.evaluation import quiet
from ribbit.torch.likelihoods import of_loss
from ribbit.torch.module_posterior import ModulePosterior
from ribbit.torch.native import NativePosterior
from ribbit.torch.parameters import parameters_of
from ribbit.torch.tracing import NotCovered

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["attach", "posterior"]

Result = TypeVar("Result")
_EXAMPLE = 8  # rows that a compiled module is checked on


def posterior(
    module: torch.nn.Module,
    likelihood: Likelihood | Callable[..., Any],
    data: Any,
    *,
    prior: PriorLike,
    temperature: float = 1.0,
    likelihood_temperature: float = 1.0,
    dtype: npt.DTypeLike = np.float32,
    native: bool | None = None,
    in_memory: bool = True,
    vmap: bool = True,
    chunk_size: int = 1024,
) -> NativePosterior | ModulePosterior | ModuleDensity:
    """Make a target of a PyTorch module: its weights given data.

    A module that is made of what our layers cover becomes a :class:`ribbit.Posterior`, run by the
    native core, after its outputs on some rows were compared with the module's own. Any other runs
    in torch, by ``torch.func.functional_call`` and ``vmap`` over the chains. Both go into every
    sampler and fit (a Laplace approximation needs the native one), and both have
    ``target.trained``, the module's weights as a start, and ``target.state_dict(theta)``.

    Parameters
    ----------
    module : torch.nn.Module
        Taken as a copy in evaluation mode: batch normalisation is the affine function of its
        running statistics. Parameters with ``requires_grad=False`` stay what they are. A forward
        takes one tensor (n, ...) and gives one, (n, K) or (n,), each row of its own input alone.
    likelihood : Likelihood or callable
        Such as ``rb.Gaussian()``, or a loss of torch that is one: CrossEntropyLoss,
        BCEWithLogitsLoss, PoissonNLLLoss. Or a function (outputs (n, K) float64, y) -> (n,), minus
        the log likelihood of each row; its target does not predict.
    data : (x, y), Dataset or DataLoader
        Tensors or arrays with as many rows. Of a DataLoader the dataset, its way to collate and its
        batch size are used, as ``target.batch_size``: which rows are in a batch is decided by seed,
        chain and step. y (N,) means (N, 1).
    prior : Prior or dict of str to Prior
        One prior for all parameters, or patterns of the module's names (fnmatch), the first that
        matches wins.
    temperature, likelihood_temperature : float, default 1.0
        As of :class:`ribbit.Posterior`.
    dtype : dtype, default float32
        float32 or float64, of positions, weights and inputs.
    native : bool, optional
        None: the core where it can be. True: a TypeError that says what is not covered. False:
        torch.
    in_memory : bool, default True
        Whether a Dataset is read once, now. Otherwise rows are read whenever a batch has them; a
        Dataset whose rows are random (augmentation) then makes draws that cannot be repeated.
    vmap : bool, default True
        Whether torch computes all chains in one call. Its products then depend, in their last bits,
        on which chains run together. False: chain by chain, slower, and a chain is the same bit
        for bit whatever runs beside it; so are modules that vmap cannot follow.
    chunk_size : int, default 1024
        Rows that torch computes at once: bounds the memory.

    Returns
    -------
    NativePosterior, ModulePosterior or ModuleDensity
        ``target.native`` says which, and ``target.why`` why torch runs it. A `ModuleDensity`, of a
        loss of your own, has no predictions.

    Raises
    ------
    TypeError, ValueError
        If an argument does not fit.

    Warns
    -----
    PriorWarning
        For a pattern of `prior` behind one that matches all that it does and more.

    Examples
    --------
    >>> import torch
    >>> import ribbit.torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> x = torch.linspace(-1, 1, 20)[:, None]
    >>> target = rb.torch.posterior(net, rb.Gaussian(), (x, 2 * x), prior=rb.Normal(1.0))
    >>> draws = rb.HMC(target).sample(50, warmup=50, progress=False)
    >>> net.load_state_dict(target.state_dict(draws.positions[0, -1]))
    <All keys matched successfully>
    """
    name = "posterior"
    if not isinstance(module, torch.nn.Module):
        got = checks.summary(module)
        raise TypeError(f"[{name}] expected module as a torch.nn.Module, got {got}")
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError(
            f"[{name}] expected a module with parameters that want a gradient, got "
            f"{type(module).__name__} with none"
        )
    chosen = checks.float_dtype(name, dtype)
    prior = priors.check(name, prior)
    terms = of_loss(name, likelihood)
    temperature = checks.positive(name, "temperature", temperature)
    likelihood_temperature = checks.positive(name, "likelihood_temperature", likelihood_temperature)
    if native is not None:
        native = checks.boolean(name, "native", native)
    in_memory = checks.boolean(name, "in_memory", in_memory)
    vmap = checks.boolean(name, "vmap", vmap)
    chunk_size = checks.integer(name, "chunk_size", chunk_size, minimum=1, maximum=2**39)
    number = torch.float64 if chosen == np.float64 else torch.float32
    copied = copy.deepcopy(module).to(number).eval().requires_grad_(False)
    for mine, given in zip(copied.parameters(), module.parameters(), strict=True):
        mine.requires_grad_(given.requires_grad)
    warn_of_hidden(name, prior, parameters_of(copied))
    rows = read(name, data, number, in_memory=in_memory)
    x, y = rows.take(np.arange(min(_EXAMPLE, rows.num_rows)))
    options: dict[str, Any] = {
        "prior": prior,
        "temperature": temperature,
        "likelihood_temperature": likelihood_temperature,
        "dtype": chosen,
    }
    why = "native=False"
    if native is not False:
        try:
            return _native(copied, terms, rows, x, in_memory, options)
        except NotCovered as error:
            why = str(error)
            if native:
                raise TypeError(
                    f"[{name}] expected a module that our layers cover for native=True, got "
                    f"{type(module).__name__}: {why}"
                ) from error
    outputs = _outputs(name, copied, x)
    kind = ModulePosterior if isinstance(terms, Likelihood) else ModuleDensity
    found = kind(
        copied,
        terms,
        rows,
        outputs=outputs,
        flat=y.ndim == 1 and outputs == 1,
        vmap=checks.boolean(name, "vmap", vmap),
        chunk_size=checks.integer(name, "chunk_size", chunk_size, minimum=1),
        why=why,
        **options,
    )
    if in_memory and isinstance(terms, Likelihood):
        found._targets(name, rows.take(np.arange(rows.num_rows))[1])  # a wrong y is an error here
    return found


def _native(
    module: torch.nn.Module,
    likelihood: Any,
    rows: Rows,
    x: torch.Tensor,
    in_memory: bool,
    options: dict[str, Any],
) -> NativePosterior:
    """Return the posterior of the native core; NotCovered where there is none."""
    if not isinstance(likelihood, Likelihood):
        raise NotCovered("its loss is a function of yours")
    if not in_memory:
        raise NotCovered("its rows are not in memory")
    if next(module.parameters()).device.type != "cpu":
        raise NotCovered("it lies on a device")
    compiled = compile_module(module, x, options["dtype"])
    own = {**options, "prior": native_prior(options["prior"], compiled)}
    every, y = (part.numpy() for part in rows.take(np.arange(rows.num_rows)))
    every = np.moveaxis(every, 1, -1) if every.ndim == 4 else every
    # Scales of the data are the user's business here, as they are for a module that torch runs.
    made = Posterior(compiled.model, every, y, likelihood=likelihood, **own)
    return NativePosterior.of(made, compiled, rows.batch_size, rows.columns)


def _outputs(function: str, module: torch.nn.Module, x: torch.Tensor) -> int:
    """Return K of a module's outputs on a few rows."""
    device = next(module.parameters()).device
    with quiet(), torch.no_grad():
        out = module(x.to(device))
    if not isinstance(out, torch.Tensor) or not out.is_floating_point():
        got = checks.summary(out)
        raise TypeError(
            f"[{function}] expected a module that gives one tensor of floats, got {got}"
        )
    if out.ndim not in (1, 2) or len(out) != len(x):
        raise ShapeError(
            f"[{function}] expected outputs ({len(x)}, K) or ({len(x)},) of {len(x)} rows, "
            f"got shape {tuple(out.shape)}"
        )
    return 1 if out.ndim == 1 else int(out.shape[1])


def attach(result: Result, target: Any) -> Result:
    """Return draws or a fit from a file with the module that predicts.

    Files hold no modules: what ``rb.load_draws``, ``rb.load_fit`` and ``rb.open_run`` read of a
    target that torch runs does not predict until it is given one.

    Parameters
    ----------
    result : Draws, MeanField or EnsembleFit
    target : what `posterior` returned

    Raises
    ------
    TypeError, ValueError
        If the two do not belong together by kind or by number of parameters.

    Examples
    --------
    >>> import torch
    >>> import ribbit.torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> x = torch.linspace(-1, 1, 20)[:, None]
    >>> target = rb.torch.posterior(
    ...     net, rb.Gaussian(0.1), (x, 2 * x), prior=rb.Normal(1.0), native=False
    ... )
    >>> hmc = rb.HMC(target, step_size=0.01, num_leapfrog_steps=5)
    >>> hmc.sample(10, warmup=0, progress=False).save("run.npz")
    >>> draws = rb.torch.attach(rb.load_draws("run.npz"), target)
    >>> draws.predict(x).mean.shape
    (20, 1)
    """
    name = "attach"
    if not callable(getattr(target, "predictive", None)):
        got = checks.summary(target)
        raise TypeError(f"[{name}] expected a target with predictions, got {got}")
    fields = (
        {f.name for f in dataclasses.fields(result)} if dataclasses.is_dataclass(result) else {}
    )
    if "predictive" not in fields:
        got = checks.summary(result)
        raise TypeError(
            f"[{name}] expected result as Draws, MeanField, EnsembleFit or SWAGFit, got {got}"
        )
    found: Any = result
    arrays = (getattr(found, part, None) for part in ("positions", "mean", "theta"))
    dim = next(array.shape[-1] for array in arrays if array is not None)
    if dim != target.dim:
        raise ValueError(f"[{name}] expected a result of {target.dim} parameters, got {dim}")
    made: Result = dataclasses.replace(found, predictive=target)
    return made
