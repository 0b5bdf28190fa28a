"""The oracle of the activations: value and derivative, float64 NumPy."""

import math

import numpy as np

ACTIVATIONS = (  # by code
    *("identity", "relu", "tanh", "silu", "sigmoid", "gelu", "softplus"),
    *("leaky_relu", "elu"),
)


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def activation(name, x):
    """Value and derivative, each of the shape of x."""
    if name == "identity":
        return x, np.ones_like(x)
    if name == "relu":
        return np.maximum(x, 0), (x > 0).astype(float)
    if name == "tanh":
        t = np.tanh(x)
        return t, 1 / np.cosh(np.minimum(np.abs(x), 350)) ** 2
    if name == "silu":
        s = sigmoid(x)
        return x * s, s + x * s * sigmoid(-x)
    if name == "sigmoid":
        return sigmoid(x), sigmoid(x) * sigmoid(-x)
    if name == "gelu":
        cdf = 0.5 * np.vectorize(math.erfc, otypes=[float])(-x / math.sqrt(2))
        return x * cdf, cdf + x * np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    if name == "softplus":
        return softplus(x), sigmoid(x)
    if name == "leaky_relu":
        slope = np.where(x > 0, 1.0, 0.01)
        return slope * x, slope
    if name == "elu":
        below = np.minimum(x, 0)
        return np.where(x > 0, x, np.expm1(below)), np.where(x > 0, 1.0, np.exp(below))
    raise ValueError(name)
