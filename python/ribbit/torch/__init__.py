"""Ribbit and PyTorch: modules as targets, and targets inside torch.

``import ribbit.torch`` asks for it; ``import ribbit`` alone never imports torch.
"""

from ribbit.torch.compiled import NativePosterior
from ribbit.torch.density import ModuleDensity
from ribbit.torch.operator import LogDensity, torch_log_density
from ribbit.torch.posterior import attach, posterior
from ribbit.torch.predictive import ModulePosterior

__all__ = [
    "LogDensity",
    "ModuleDensity",
    "ModulePosterior",
    "NativePosterior",
    "attach",
    "posterior",
    "torch_log_density",
]
