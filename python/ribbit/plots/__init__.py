"""Plots of predictions and chains; every function draws on one matplotlib Axes and returns it.

matplotlib is imported on the first call. Without ``ax`` a new pyplot figure is made, which a
notebook shows; with ``ax`` pyplot is not used.
"""

from ribbit._arrays.keywords import explain
from ribbit.plots.chains import energy, rhat_histogram, trace
from ribbit.plots.predictions import (
    decision_boundary,
    pit_histogram,
    regression_band,
    reliability,
)

__all__ = [
    "decision_boundary",
    "energy",
    "pit_histogram",
    "regression_band",
    "reliability",
    "rhat_histogram",
    "trace",
]

explain(globals())
