"""Ribbit: a native sampler for Bayesian neural networks."""

import importlib
from typing import TYPE_CHECKING, Any

from ribbit import errors, random, schedules
from ribbit._backend import set_num_threads
from ribbit.densities import CallableDensity
from ribbit.draws import Draws
from ribbit.fits import DropoutFit, EnsembleFit, MeanField
from ribbit.io import load_draws
from ribbit.layers import Activation, Dense, Dropout
from ribbit.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Poisson,
)
from ribbit.model import Model
from ribbit.posterior import Posterior
from ribbit.priors import Laplace, Logistic, Normal, ScaleMixture, StudentT
from ribbit.random import reparameterize
from ribbit.samplers import (
    BBB,
    HMC,
    SGHMC,
    SGLD,
    DeepEnsemble,
    MCDropout,
    leapfrog,
    metropolis,
)
from ribbit.zoo import mlp

if TYPE_CHECKING:
    from ribbit import datasets, diagnostics, metrics, plots

__version__ = "0.1.0"

# Imported when first asked for: a program that samples needs none of them.
_LATER = ("datasets", "diagnostics", "metrics", "plots")


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return importlib.import_module(f"ribbit.{name}")
    raise AttributeError(f"module 'ribbit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


def show_versions() -> None:
    """Print the versions, the machine and the settings that a bug report should carry."""
    from ribbit import versions  # reading package metadata is slow; few programs need it

    versions.show_versions()


__all__ = [
    "BBB",
    "HMC",
    "SGHMC",
    "SGLD",
    "Activation",
    "Bernoulli",
    "CallableDensity",
    "Categorical",
    "DeepEnsemble",
    "Dense",
    "Draws",
    "Dropout",
    "DropoutFit",
    "EnsembleFit",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Laplace",
    "Logistic",
    "MCDropout",
    "MeanField",
    "Model",
    "Normal",
    "Poisson",
    "Posterior",
    "ScaleMixture",
    "StudentT",
    "__version__",
    "datasets",
    "diagnostics",
    "errors",
    "leapfrog",
    "load_draws",
    "metrics",
    "metropolis",
    "mlp",
    "plots",
    "random",
    "reparameterize",
    "schedules",
    "set_num_threads",
    "show_versions",
]
