"""`posterior`: any PyTorch module as a target, native where our layers cover it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
from ribbit.torch.evaluation import called, quiet, random_error
from ribbit.torch.likelihoods import of_loss
from ribbit.torch.links import warn_of_link
from ribbit.torch.masks import dropping
from ribbit.torch.module_posterior import ModulePosterior
from ribbit.torch.native import NativePosterior
from ribbit.torch.parameters import dtype_of, parameters_of
from ribbit.torch.randomness import same, watched
from ribbit.torch.tracing import NotCovered

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["posterior"]

_EXAMPLE = 8  # rows that a compiled module is checked on


def posterior(
    module: torch.nn.Module,
    likelihood: Likelihood | Callable[..., Any],
    data: Any,
    *,
    prior: PriorLike,
    temperature: float = 1.0,
    likelihood_temperature: float = 1.0,
    dtype: npt.DTypeLike | None = None,
    native: bool | None = None,
    in_memory: bool = True,
    vmap: bool = True,
    chunk_size: int = 1024,
) -> NativePosterior | ModulePosterior | ModuleDensity:
    """Return the posterior of a PyTorch module's weights given data.

    If Ribbit's layers cover the module, it becomes a :class:`ribbit.Posterior`, run by the native
    core; its outputs on some rows are compared with the module's first. Other modules run in torch,
    by ``torch.func.functional_call`` and ``vmap`` over the chains. Both work in every sampler and
    fit, except that a Laplace approximation needs the native one. Both have ``target.trained``, the
    module's weights as a start, and ``target.state_dict(theta)``.

    Parameters
    ----------
    module : torch.nn.Module
        Copied, in evaluation mode: batch normalisation uses its running statistics. Parameters with
        ``requires_grad=False`` stay fixed. The forward takes one tensor (n, ...) and returns one,
        (n, K) or (n,); each row must depend on its own input alone, and repeated calls must agree.
        It may work in place. Samplers refuse Dropout layers in training mode; after
        ``module.eval()`` these do nothing, and `MCDropout` still uses them.
    likelihood : Likelihood or callable
        Such as ``rb.Gaussian()``, or a torch loss that is a log likelihood: CrossEntropyLoss,
        BCEWithLogitsLoss, PoissonNLLLoss. Or a function (outputs (n, K) float64, y) -> (n,) that
        returns minus the log likelihood of each row; its target does not predict.
    data : (x, y), Dataset or DataLoader
        Tensors or arrays with equally many rows; y (N,) means (N, 1). From a DataLoader, its
        dataset, its collate function and its batch size (``target.batch_size``) are used; seed,
        chain and step decide the rows of a batch. A loader whose sampler repeats or omits rows is a
        ValueError.
    prior : Prior or dict of str to Prior
        One prior for all parameters, or a dict of patterns of the module's names (fnmatch); the
        first match counts.
    temperature, likelihood_temperature : float, default 1.0
        As for :class:`ribbit.Posterior`.
    dtype : dtype, optional
        float32 or float64, of positions, weights and inputs. Default: float64 if a parameter of the
        module has it, else float32.
    native : bool, optional
        None: the native core if possible, else torch. True: the native core, or a TypeError that
        says what is not covered. False: torch.
    in_memory : bool, default True
        True: read a Dataset once, now. False: read rows for each batch; with random rows
        (augmentation) draws are then not reproducible.
    vmap : bool, default True
        True: compute all chains in one call; the last digits then depend on the set of chains.
        False: one chain at a time, slower, bit-identical for any set of chains. Modules that vmap
        does not support use False.
    chunk_size : int, default 1024
        Rows that torch computes at once, which limits the memory.

    Returns
    -------
    NativePosterior, ModulePosterior or ModuleDensity
        ``target.native`` says whether it is native, and ``target.why`` why not. A `ModuleDensity`,
        from your own loss function, has no predictions.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.

    Warns
    -----
    ModuleWarning
        If outputs look like probabilities or rates, but the likelihood takes logits or logarithms.
        For weights of several dtypes, or of 16 bits. For a Dataset with random rows, or a
        DataLoader with ``drop_last=True`` that drops some.
    PriorWarning
        If a pattern of `prior` never applies, because an earlier one matches all its parameters.

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
            f"[{name}] expected a module with parameters that require a gradient, got "
            f"{type(module).__name__} with none"
        )
    chosen = dtype_of(name, module, dtype)
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
    active = dropping(module)
    why = "native=False"
    if native is not False:
        try:
            with watched():  # tracing runs the module's code
                made = _native(copied, terms, rows, x, in_memory, active, options)
        except NotCovered as error:
            why = str(error)
        else:
            if isinstance(terms, Likelihood):
                warn_of_link(name, made, terms, x)
            return made
    outputs, writes = _outputs(name, copied, x)
    if native:
        raise TypeError(
            f"[{name}] expected a module that our layers cover for native=True, got "
            f"{type(module).__name__}: {why}"
        )
    options |= {"vmap": vmap, "chunk_size": chunk_size, "why": why, "outputs": outputs}
    options |= {"flat": y.ndim == 1 and outputs == 1, "writes": writes, "dropping": active}
    kind = ModulePosterior if isinstance(terms, Likelihood) else ModuleDensity
    found = kind(copied, terms, rows, **options)
    if in_memory and isinstance(terms, Likelihood):
        found._targets(name, rows.take(np.arange(rows.num_rows))[1])  # a wrong y is an error here
    if not _differentiates(found):
        found = kind(copied, terms, rows, **{**options, "vmap": False})
        _differentiates(found)
    if isinstance(terms, Likelihood):
        warn_of_link(name, found, terms, x)
    return found


def _differentiates(target: ModuleDensity) -> bool:
    """Tell whether torch gives a gradient on two rows; False if vmap is what it does not know."""
    theta, rows = np.repeat(target.trained[None], 2, axis=0), np.arange(min(2, target.num_rows))
    try:
        target._sums(theta, rows, gradient=True)
        target._sums(theta, rows, gradient=False)
    except ShapeError:  # a loss of the wrong shape: the first evaluation says so
        return True
    except Exception as error:  # whatever the module's own code raises
        if str(error).startswith("["):
            raise
        if target._vmap:
            return False
        raise TypeError(
            f"[posterior] expected a module that torch.func.grad supports, got "
            f"{type(target.module).__name__}: {error}"
        ) from error
    return True


def _native(
    module: torch.nn.Module,
    likelihood: Any,
    rows: Rows,
    x: torch.Tensor,
    in_memory: bool,
    active: frozenset[str],
    options: dict[str, Any],
) -> NativePosterior:
    """Return the posterior of the native core; NotCovered where there is none."""
    if not isinstance(likelihood, Likelihood):
        raise NotCovered("its loss is a function of yours")
    if not in_memory:
        raise NotCovered("its rows are not in memory")
    if next(module.parameters()).device.type != "cpu":
        raise NotCovered("it lies on a device")
    compiled = compile_module(module, x, options["dtype"], active)
    own = {**options, "prior": native_prior(options["prior"], compiled)}
    every, y = (part.numpy() for part in rows.take(np.arange(rows.num_rows)))
    every = np.moveaxis(every, 1, -1) if every.ndim == 4 else every
    # Scales of the data are the user's business here, as they are for a module that torch runs.
    made = Posterior(compiled.model, every, y, likelihood=likelihood, **own)
    return NativePosterior._of(made, compiled, rows.batch_size, rows.columns)


def _outputs(function: str, module: torch.nn.Module, x: torch.Tensor) -> tuple[int, bool]:
    """Return K of a module's outputs on a few rows, and whether it changes its own arrays."""
    device = next(module.parameters()).device
    known = {**dict(module.named_buffers()), **dict(module.named_parameters())}
    arrays = {name: array.clone() for name, array in known.items()}
    before = {name: array._version for name, array in arrays.items()}
    try:
        with quiet(), torch.no_grad(), watched(device) as drawn:
            out = called(module, arrays, x.to(device), writes=False)
            writes = any(
                array._version != before[name] or not torch.equal(array, known[name])
                for name, array in arrays.items()
            )
            again = called(module, dict(module.named_parameters()), x.to(device), writes=True)
    except Exception as error:  # whatever the module's own code raises
        raise ShapeError(
            f"[{function}] expected x as the module takes it, got {x.dtype} of shape "
            f"{tuple(x.shape)}: {error}"
        ) from error
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
    if drawn() or (not writes and not same(out, again)):
        raise random_error(function, module)
    return 1 if out.ndim == 1 else int(out.shape[1]), writes
