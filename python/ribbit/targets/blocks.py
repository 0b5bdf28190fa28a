"""Which parameters of a network see the same inputs: a layer's weights, then its biases."""

# A unit adds up its inputs times its weights, the bias times 1. The curvature of a log density in
# the weights of one unit is, up to a factor that belongs to the unit, the second moment of these
# inputs (Martens and Grosse 2015, "Optimizing neural networks with Kronecker-factored approximate
# curvature", ICML), and so is one matrix for all units of a layer.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ribbit.models.layers._table import Parameter

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["blocks_of"]

# Inputs of a block, biases counted: a step mixes each weight with as many others, and a chain keeps
# a matrix.
_FEWEST, _MOST = 2, 65


def blocks_of(parameters: Sequence[Parameter]) -> npt.NDArray[np.int64]:
    """Return (B, 3): first parameter, inputs and outputs of each block, ascending."""
    # No block: more than 64 inputs besides biases, filters in groups, and embeddings, whose outputs
    # do not see all that the array's axes hold.
    found: list[list[int]] = []
    layer = ""
    for parameter in parameters:
        outputs = parameter.shape[-1]
        inputs = math.prod(parameter.shape[:-1])
        own, _, what = parameter.name.rpartition(".")
        goes_on = (
            own == layer
            and what in ("recurrent", "bias")
            and found[-1][2] == outputs
            and found[-1][0] + found[-1][1] * outputs == parameter.offset
        )
        if goes_on:
            found[-1][1] += inputs
        elif parameter.is_weight and inputs == parameter.fan_in:
            found.append([parameter.offset, inputs, outputs])
            layer = own
        else:
            layer = ""
    kept = [block for block in found if _FEWEST <= block[1] <= _MOST]
    return np.array(kept, np.int64).reshape(-1, 3)
