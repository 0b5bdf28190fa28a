"""Divide a profile into parts: products, elementwise work, waiting, the rest.

The name of a kernel in the core says its part. Time above the floor has three causes: a part runs
below the peak, threads wait, or the floor does not count the work. Such work is packing, sums over
partitions, gathered rows, fresh pages and Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Patterns of names in the core; `benchmarks/test_outcomes.py` checks that each has a function.
KERNELS = {
    "products": r"multiply\w*|outer_columns|lanes_columns|lanes_threes|inner_columns|convolve\w*"
    r"|convolution_\w+|narrow_accumulate|gram_panel|add_product|block_gradient",
    "elementwise": r"activation_\w+|response_\w+|\w+_pool|\w+_pool_backward|\w*likelihood_panel"
    r"|gaussian_residuals|location_scale_panel|concrete_panel|mask_panel|mask_units|moments_panel|sign_panel"
    r"|prior_segment|kick_drift|isokinetic_\w+|fill_\w+|reparameterize|softplus_array|update_loop"
    r"|variational_update|lstm_step|lstm_layer_backward|layer_norm\w*|embedding_\w+|dropout_\w+"
    r"|add_squares|dot_weighted",
    "waiting": r"Team::meet|Team::weigh|Worker::loop",
}


@dataclass(frozen=True)
class Parts:
    """Shares of the time of all threads, with sum 1. Sleeping threads count as waiting."""

    products: float
    elementwise: float
    waiting: float
    rest: float


def parts(costs: list[tuple[str, float]], busy: float) -> Parts:
    """Add up the shares of a profile.

    Parameters
    ----------
    costs : list of (str, float)
        Symbols and their shares of the samples.
    busy : float
        Samples over the samples of threads that never sleep, 0 to 1.
    """
    found = dict.fromkeys(("products", "elementwise", "waiting", "rest"), 0.0)
    for symbol, share in costs:
        found[part_of(symbol)] += share * busy
    found["waiting"] += 1.0 - busy
    return Parts(**found)


def part_of(symbol: str) -> str:
    """Name the part that a symbol of a profile belongs to."""
    for part, names in KERNELS.items():
        if re.fullmatch(names, symbol):
            return part
    return "rest"


def missing(sources: str) -> list[str]:
    """Return patterns that match no function of these C++ sources: renamed kernels."""
    patterns = "|".join(KERNELS.values()).split("|")
    return [
        pattern
        for pattern in patterns
        if not re.search(rf"\b{pattern.split('::')[-1]}\s*\(", sources)
    ]
