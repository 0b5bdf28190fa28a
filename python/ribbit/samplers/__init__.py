"""Samplers and their building blocks."""

from ribbit._arrays.keywords import explain
from ribbit.handle import RunHandle
from ribbit.kernels import HMC, NUTS
from ribbit.results.state import MicrocanonicalState, State, StochasticState
from ribbit.sample import STARTS, Sampler
from ribbit.samplers.fit.bbb import BBB
from ribbit.samplers.fit.ensemble import DeepEnsemble
from ribbit.samplers.fit.ensemble_start import EnsembleStart
from ribbit.samplers.fit.laplace import LaplaceApproximation
from ribbit.samplers.fit.mc_dropout import MCDropout
from ribbit.samplers.fit.swag import SWAG
from ribbit.samplers.mcmc.mclmc import MCLMC
from ribbit.samplers.sgmcmc.baoab import BAOAB
from ribbit.samplers.sgmcmc.sghmc import SGHMC
from ribbit.samplers.sgmcmc.sgld import SGLD
from ribbit.until import Converged

__all__ = [
    "BAOAB",
    "BBB",
    "HMC",
    "MCLMC",
    "NUTS",
    "SGHMC",
    "SGLD",
    "SWAG",
    "Converged",
    "DeepEnsemble",
    "EnsembleStart",
    "LaplaceApproximation",
    "MCDropout",
    "MicrocanonicalState",
    "RunHandle",
    "Sampler",
    "State",
    "StochasticState",
]

# Samplers run chains and know no fit; here the two meet.
STARTS["ensemble"] = EnsembleStart()

explain(globals())
