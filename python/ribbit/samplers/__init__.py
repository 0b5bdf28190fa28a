"""Samplers and their building blocks."""

from ribbit.samplers.bbb import BBB
from ribbit.samplers.ensemble import DeepEnsemble
from ribbit.samplers.hmc import HMC
from ribbit.samplers.leapfrog import Trajectory, leapfrog
from ribbit.samplers.mc_dropout import MCDropout
from ribbit.samplers.metropolis import metropolis
from ribbit.samplers.sghmc import SGHMC
from ribbit.samplers.sgld import SGLD
from ribbit.samplers.state import State, StochasticState

__all__ = [
    "BBB",
    "HMC",
    "SGHMC",
    "SGLD",
    "DeepEnsemble",
    "MCDropout",
    "State",
    "StochasticState",
    "Trajectory",
    "leapfrog",
    "metropolis",
]
