"""`attach` gives a module to results that were read from a file."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, TypeVar

import numpy as np

from ribbit._arrays import checks, overrides
from ribbit.results.fits import DropoutFit
from ribbit.torch.structure import difference

__all__ = ["attach"]

Result = TypeVar("Result")


def attach(result: Result, target: Any) -> Result:
    """Return draws or a fit from a file, with a module that predicts.

    Files contain no module. After ``rb.load``, results of a target that torch runs can predict only
    once `attach` has given them a module.

    Parameters
    ----------
    result : Draws, MeanField, EnsembleFit, SWAGFit, LaplaceFit or DropoutFit
    target : NativePosterior or ModulePosterior
        Target made by `posterior` from a module with the same layers, options and forward as the
        sampled one. Its weights and data do not matter.

    Raises
    ------
    TypeError, ValueError
        If the two differ in kind, number of parameters, layers and their options, outputs at fixed
        weights, or likelihood.

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
    >>> draws = rb.torch.attach(rb.load("run.npz"), target)
    >>> draws.predict(x).mean.shape
    (20, 1)
    """
    name = "attach"
    if not callable(getattr(target, "predictive", None)):
        got = checks.summary(target)
        raise TypeError(f"[{name}] expected a target with predictions, got {got}")
    masked = isinstance(result, DropoutFit)
    place = "target" if masked else "predictive"
    if not dataclasses.is_dataclass(result) or place not in {
        f.name for f in dataclasses.fields(result)
    }:
        got = checks.summary(result)
        raise TypeError(
            f"[{name}] expected result as Draws, MeanField, EnsembleFit, SWAGFit, LaplaceFit or "
            f"DropoutFit, got {got}"
        )
    found: Any = result
    arrays = (getattr(found, part, None) for part in ("positions", "mean", "theta"))
    dim = next(array.shape[-1] for array in arrays if array is not None)
    if dim != target.dim:
        raise ValueError(f"[{name}] expected a result of {target.dim} parameters, got {dim}")
    settings = found.settings
    predictive = target
    if masked or "masks" in settings:  # its masks are of layers that the target has at rest
        options = {key: settings.get(key) for key in ("rate", "length_scale", "precision")}
        predictive = target.masked(**options)
        if not masked:
            predictive = predictive.mask_predictive(
                settings["seed"], settings["masks"], np.asarray(settings["rates"])
            )
    known = getattr(found, place)
    known = getattr(known, "network_predictive", known)
    before = {"module": settings["module"]} if known is None and "module" in settings else None
    before = overrides.described(known) if before is None and known is not None else before
    now = overrides.described(getattr(predictive, "network_predictive", predictive))
    if before is not None and now is not None:
        other = difference(*(json.loads(json.dumps(one)) for one in (before, now)))
        if other:
            raise ValueError(f"[{name}] expected the target that the draws are of, got {other}")
    made: Result = dataclasses.replace(found, **{place: predictive})
    return made
