"""Errors of the native layers against the oracle, and their bounds.

float64: outputs and gradient within 1e-11 of the oracle, as norms. float32: error of the gradient
over the sum of the norms of the per-row gradients (and the prior's) <= 2e-6, outputs within 2e-5 of
the largest. Where half a unit in the last place of every parameter and of every value does more
than that (a norm of nearly equal cells, a sum that cancels): 4 times what it does.
"""

import numpy as np

from tests.oracle.layer_reference import network

GRADIENT = {np.dtype(np.float64): 1e-11, np.dtype(np.float32): 2e-6}
OUTPUTS = {np.dtype(np.float64): 1e-11, np.dtype(np.float32): 2e-5}
VALUE = {np.dtype(np.float64): 1e-12, np.dtype(np.float32): 1e-6}


def rounded(made, dtype):
    """Oracle with data, and theta (C, P), as the native code stores them."""
    theta = np.atleast_2d(made.theta.astype(dtype)).astype(float)
    return made.reference.rounded(dtype), theta


def disturbed(made, theta, dtype, num_rows, factors=None, turns=8):
    """Thetas and factors that round every parameter and value by half a unit up or down."""
    half_unit = np.finfo(dtype).eps / 2
    for turn in range(turns):
        rng = np.random.default_rng(turn)
        moved = theta * (1 + half_unit * rng.choice([-1.0, 1.0], size=theta.shape))
        each = {
            r: 1 + half_unit * rng.choice([-1.0, 1.0], size=(num_rows, row[2]))
            for r, row in enumerate(made.model.table)
        }
        for r, masks in (factors or {}).items():
            each[r] = each[r] * masks
        yield moved, each


def outputs(made, theta, x, factors=None):
    """Outputs (C, N, K) of the oracle."""
    theta = theta[:, : made.model.dim]
    return np.stack([network(made.reference.table, t, x, factors)[0] for t in theta])


def check_outputs(made, dtype):
    """Raise where ``Model.apply`` is not the oracle's network."""
    target, theta = rounded(made, dtype)
    x = target.x.reshape(-1, *made.model.input_shape).astype(dtype)
    found = made.model.apply(theta[:, : made.model.dim].astype(dtype), x)
    assert found.dtype == dtype
    known = outputs(made, theta, target.x)
    assert found.shape == known.shape
    error = np.max(np.abs(found - known))
    if not error <= OUTPUTS[np.dtype(dtype)] * np.max(np.abs(known)):
        others = (
            outputs(made, moved, target.x, factors)
            for moved, factors in disturbed(made, theta, dtype, len(x))
        )
        assert error <= 4 * max(np.max(np.abs(other - known)) for other in others)


def check_gradient(made, dtype, rows=None, *, factors=None, found=None):
    """Raise where value or gradient is not the oracle's.

    `found` holds them where another function than ``value_and_grad`` gave them; factors: of
    dropout, per table row.
    """
    target, theta = rounded(made, dtype)
    if found is None:
        found = made.native(dtype).value_and_grad(made.theta.astype(dtype), rows=rows)
    value, gradient = np.atleast_1d(found[0]), np.atleast_2d(found[1])
    assert (value.dtype, gradient.dtype) == (np.dtype(float), dtype)
    known_value, known = target.value_and_grad(theta, rows, factors)
    scale = target.gradient_scale(theta, rows, factors)
    parts = np.sum(np.abs(target.terms(theta, rows, factors)), axis=1)
    slack = 1 + scale * np.linalg.norm(theta, axis=1)  # the condition of the outputs
    assert np.max(np.abs(value - known_value) / (parts + slack)) <= VALUE[np.dtype(dtype)]
    against = np.linalg.norm(known, axis=1) if dtype == np.float64 else scale

    def error_of(other):
        return np.max(np.linalg.norm(other - known, axis=1) / against)

    error = error_of(gradient)
    if not error <= GRADIENT[np.dtype(dtype)]:
        num_rows = len(target.x) if rows is None else len(rows)
        others = disturbed(made, theta, dtype, num_rows, factors)
        assert error <= 4 * max(error_of(target.gradient(t, rows, f)) for t, f in others)
