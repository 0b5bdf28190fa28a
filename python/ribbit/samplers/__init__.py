"""Samplers and their building blocks."""

from ribbit.results.state import State, StochasticState
from ribbit.samplers.fit.bbb import BBB
from ribbit.samplers.fit.ensemble import DeepEnsemble
from ribbit.samplers.fit.mc_dropout import MCDropout
from ribbit.samplers.mcmc.hmc import HMC
from ribbit.samplers.mcmc.leapfrog import Trajectory, leapfrog
from ribbit.samplers.mcmc.metropolis import metropolis
from ribbit.samplers.mcmc.nuts import NUTS
from ribbit.samplers.run.base import Sampler
from ribbit.samplers.sgmcmc.sghmc import SGHMC
from ribbit.samplers.sgmcmc.sgld import SGLD

__all__ = [
    "BBB",
    "HMC",
    "NUTS",
    "SGHMC",
    "SGLD",
    "DeepEnsemble",
    "MCDropout",
    "Sampler",
    "State",
    "StochasticState",
    "Trajectory",
    "leapfrog",
    "metropolis",
]
