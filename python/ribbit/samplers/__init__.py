"""Samplers and their building blocks."""

from ribbit.samplers.hmc import HMC
from ribbit.samplers.leapfrog import Trajectory, leapfrog
from ribbit.samplers.metropolis import metropolis
from ribbit.samplers.state import State

__all__ = ["HMC", "State", "Trajectory", "leapfrog", "metropolis"]
