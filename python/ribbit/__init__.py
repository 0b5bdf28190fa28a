"""Ribbit: a native sampler for Bayesian neural networks."""

import importlib
from typing import TYPE_CHECKING, Any

from ribbit import errors, protocols, random, samplers, schedules
from ribbit._arrays.threads import set_num_threads
from ribbit._backends.library import get_cmake_dir, get_include
from ribbit.io import load_draws, load_fit, open_run
from ribbit.models import layers, zoo
from ribbit.models.layers import *
from ribbit.models.model import Model
from ribbit.models.zoo import *
from ribbit.random import reparameterize
from ribbit.results.draws import Draws
from ribbit.results.fits import DropoutFit, EnsembleFit, MeanField
from ribbit.results.joining import concatenate
from ribbit.results.laplace import LaplaceFit
from ribbit.results.prediction import Prediction
from ribbit.results.state import State
from ribbit.results.store.options import Store
from ribbit.results.swag import SWAGFit
from ribbit.samplers import *
from ribbit.targets import likelihoods, priors
from ribbit.targets.callable import CallableDensity
from ribbit.targets.likelihoods import *
from ribbit.targets.posterior import Posterior
from ribbit.targets.priors import *

if TYPE_CHECKING:
    from ribbit import datasets, diagnostics, distributed, metrics, plots

__version__ = "0.1.0"

# Imported when first asked for: a program that samples needs none of them.
_LATER = ("datasets", "diagnostics", "distributed", "metrics", "plots")


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return importlib.import_module(f"ribbit.{name}")
    raise AttributeError(f"module 'ribbit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(__all__))


def show_versions() -> None:
    """Print the versions, the machine and the settings that a bug report should carry.

    Examples
    --------
    >>> rb.show_versions()
    ribbit ...
    """
    from ribbit._cli import versions  # reading package metadata is slow; few programs need it

    versions.show_versions()


# Layers, priors, likelihoods, samplers and ready-made networks are public by their rooms' lists.
__all__ = [
    "CallableDensity",
    "Draws",
    "DropoutFit",
    "EnsembleFit",
    "LaplaceFit",
    "MeanField",
    "Model",
    "Posterior",
    "Prediction",
    "SWAGFit",
    "Store",
    "__version__",
    "concatenate",
    "datasets",
    "diagnostics",
    "distributed",
    "errors",
    "get_cmake_dir",
    "get_include",
    "layers",
    "likelihoods",
    "load_draws",
    "load_fit",
    "metrics",
    "open_run",
    "plots",
    "priors",
    "protocols",
    "random",
    "reparameterize",
    "samplers",
    "schedules",
    "set_num_threads",
    "show_versions",
    "zoo",
]
__all__ += layers.__all__
__all__ += likelihoods.__all__
__all__ += priors.__all__
__all__ += samplers.__all__
__all__ += zoo.__all__
