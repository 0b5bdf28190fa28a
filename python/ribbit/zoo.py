"""Ready-made architectures."""

from __future__ import annotations

from collections.abc import Sequence

from ribbit import _checks
from ribbit.layers import Activation, Dense, Layer
from ribbit.model import Model

__all__ = ["mlp"]


def mlp(
    in_features: int,
    hidden: Sequence[int],
    out_features: int,
    *,
    activation: str = "relu",
) -> Model:
    """Build a multilayer perceptron: dense layers with an activation between them.

    Parameters
    ----------
    in_features : int
        Width of a data row.
    hidden : sequence of int
        Widths of the hidden layers; ``()`` gives a linear model.
    out_features : int
        Number of outputs K.
    activation : str, default "relu"
        identity, relu, tanh, silu, sigmoid, gelu or softplus, after each hidden layer.

    Returns
    -------
    Model
        With parameters ``"0.weight"``, ``"0.bias"``, ``"2.weight"``, ...: activations count too.

    Raises
    ------
    TypeError, ValueError
        If a width is not a positive integer or the activation is unknown.
    """
    if not isinstance(hidden, tuple | list):
        got = _checks.summary(hidden)
        raise TypeError(f"[mlp] expected hidden as a tuple of integers, got {got}")
    limit = 2**31 - 1
    width = _checks.integer("mlp", "in_features", in_features, minimum=1, maximum=limit)
    outputs = _checks.integer("mlp", "out_features", out_features, minimum=1, maximum=limit)
    between = Activation(activation)
    layers: list[Layer] = []
    for i, units in enumerate(hidden):
        _checks.integer("mlp", f"hidden[{i}]", units, minimum=1, maximum=limit)
        layers += [Dense(units), between]
    return Model((*layers, Dense(outputs)), input_shape=(width,))
