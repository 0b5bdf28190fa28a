"""Ribbit: a native sampler for Bayesian neural networks."""

from ribbit import diagnostics, metrics
from ribbit._core import set_num_threads
from ribbit.densities import CallableDensity
from ribbit.draws import Draws
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
from ribbit.zoo import mlp
