"""Errors of the native value and gradient against the oracle, and the bounds of gate "gradient".

float64: 1e-13 against the oracle. float32: error over the sum of the norms of the per-row
gradients (and the prior's) <= 2e-6.
"""

import numpy as np

from tests.support.problems import build_native

WIDTHS = (1, 2, 3, 7, 13, 14, 16, 17, 31, 33, 50, 65, 100)
ROWS = (1, 2, 31, 32, 33, 100, 927, 5000)
CHAINS = (1, 2, 3, 5)
# of a gradient, over its summands' norms, and of a value, over its summands and their condition
BOUNDS = {np.dtype(np.float64): (1e-13, 1e-14), np.dtype(np.float32): (2e-6, 1e-7)}


def native_error(reference, theta, dtype, rows=None, **changes):
    """Largest error over the chains of value and gradient, over the size of their summands."""
    native = build_native(reference, dtype, **changes)
    reference, theta = reference.rounded(dtype), theta.astype(dtype)
    exact = theta.astype(float)
    value, gradient = native.value_and_grad(theta, rows=rows)
    assert gradient.dtype == dtype
    assert gradient.shape == theta.shape
    assert np.asarray(value).dtype == np.float64
    known_value, known_gradient = reference.value_and_grad(exact, rows)
    error = np.linalg.norm(np.atleast_2d(gradient) - known_gradient, axis=1)
    error = error / reference.gradient_scale(exact, rows)
    # A value is judged by its parts, which may cancel, and by the condition of the outputs.
    parts = np.sum(np.abs(reference.terms(exact, rows)), axis=1)
    slack = 1 + reference.gradient_scale(exact, rows) * np.linalg.norm(np.atleast_2d(exact), axis=1)
    value_error = np.abs(np.atleast_1d(value) - known_value) / (parts + slack)
    return float(np.max(error)), float(np.max(value_error))


def rounding_of_theta(reference, theta, dtype, rows=None, turns=8):
    """What half a unit in the last place of theta does to the gradient, over its scale.

    With few rows a residual may cancel: then no arithmetic in dtype can reach the bound.
    """
    reference, theta = reference.rounded(dtype), np.atleast_2d(theta.astype(dtype)).astype(float)
    gradient, scale = reference.gradient(theta, rows), reference.gradient_scale(theta, rows)
    half_unit = np.finfo(dtype).eps / 2
    largest = 0.0
    for turn in range(turns):
        signs = np.random.default_rng(turn).choice([-1.0, 1.0], size=theta.shape)
        moved = reference.gradient(theta * (1 + half_unit * signs), rows)
        largest = max(largest, np.max(np.linalg.norm(moved - gradient, axis=1) / scale))
    return largest


def check(reference, theta, dtype, rows=None):
    bound, value_bound = BOUNDS[np.dtype(dtype)]
    error, value_error = native_error(reference, theta, dtype, rows)
    assert error <= bound or error <= 4 * rounding_of_theta(reference, theta, dtype, rows)
    assert value_error <= value_bound
