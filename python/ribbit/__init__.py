"""Ribbit: a native sampler for Bayesian neural networks."""

import importlib
from typing import TYPE_CHECKING, Any

from ribbit import errors, random, schedules
from ribbit._backend import set_num_threads
from ribbit.densities import CallableDensity
from ribbit.draws import Draws
from ribbit.fits import DropoutFit, EnsembleFit, MeanField
from ribbit.io import load_draws
from ribbit.layers import (
    LSTM,
    Activation,
    AvgPool2D,
    Conv1D,
    Conv2D,
    Dense,
    Dropout,
    Embedding,
    FilterResponseNorm,
    Flatten,
    GlobalAvgPool2D,
    LayerNorm,
    MaxPool1D,
    MaxPool2D,
    Residual,
)
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
from ribbit.zoo import cnn_lstm, lenet5, mlp, resnet20_frn

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
    "LSTM",
    "SGHMC",
    "SGLD",
    "Activation",
    "AvgPool2D",
    "Bernoulli",
    "CallableDensity",
    "Categorical",
    "Conv1D",
    "Conv2D",
    "DeepEnsemble",
    "Dense",
    "Draws",
    "Dropout",
    "DropoutFit",
    "Embedding",
    "EnsembleFit",
    "FilterResponseNorm",
    "Flatten",
    "Gaussian",
    "GlobalAvgPool2D",
    "HeteroscedasticGaussian",
    "Laplace",
    "LayerNorm",
    "Logistic",
    "MCDropout",
    "MaxPool1D",
    "MaxPool2D",
    "MeanField",
    "Model",
    "Normal",
    "Poisson",
    "Posterior",
    "Residual",
    "ScaleMixture",
    "StudentT",
    "__version__",
    "cnn_lstm",
    "datasets",
    "diagnostics",
    "errors",
    "leapfrog",
    "lenet5",
    "load_draws",
    "metrics",
    "metropolis",
    "mlp",
    "plots",
    "random",
    "reparameterize",
    "resnet20_frn",
    "schedules",
    "set_num_threads",
    "show_versions",
]
