"""Ribbit: a native sampler for Bayesian neural networks."""

from ribbit import datasets, diagnostics, errors, metrics, plots, random
from ribbit._backend import set_num_threads
from ribbit.densities import CallableDensity
from ribbit.draws import Draws
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
from ribbit.samplers import HMC, leapfrog, metropolis
from ribbit.zoo import mlp

__version__ = "0.1.0"


def show_versions() -> None:
    """Print the versions, the machine and the settings that a bug report should carry."""
    from ribbit import versions  # reading package metadata is slow; few programs need it

    versions.show_versions()


__all__ = [
    "HMC",
    "Activation",
    "Bernoulli",
    "CallableDensity",
    "Categorical",
    "Dense",
    "Draws",
    "Dropout",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Laplace",
    "Logistic",
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
    "set_num_threads",
    "show_versions",
]
