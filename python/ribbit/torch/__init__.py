"""PyTorch: modules as targets of Ribbit, and targets as functions of tensors.

``import ribbit.torch`` imports torch; ``import ribbit`` alone does not.
"""

from ribbit._arrays.keywords import explain
from ribbit._arrays.packages import needing

with needing("ribbit.torch", "torch"):
    from ribbit.torch.attach import attach
    from ribbit.torch.density import ModuleDensity
    from ribbit.torch.module_posterior import ModulePosterior
    from ribbit.torch.native import NativePosterior
    from ribbit.torch.operator import LogDensity, torch_log_density
    from ribbit.torch.posterior import posterior

__all__ = [
    "LogDensity",
    "ModuleDensity",
    "ModulePosterior",
    "NativePosterior",
    "attach",
    "posterior",
    "torch_log_density",
]

explain(globals())
