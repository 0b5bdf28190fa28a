"""Convolutional, residual and recurrent networks that samplers step on, with and without masks."""

import numpy as np
import pytest

import ribbit as rb
from tests.support.layer_problems import SILU, TANH, net, problem

SEED = 2**63 + 11
ROWS = 70
FRN = rb.FilterResponseNorm  # each of its own


def unit(*layers):
    return [rb.Conv2D(3, 3, padding="same"), FRN(), *layers]


NETWORKS = {
    "conv": net((6, 5, 2), rb.Conv2D(3, 3, padding="same"), TANH, rb.MaxPool2D(2), rb.Conv2D(2, 2)),
    "residual": rb.Model(
        [*unit(SILU), rb.Residual([*unit(SILU), *unit()]), SILU, rb.GlobalAvgPool2D(), rb.Dense(2)],
        input_shape=(4, 4, 2),
    ),
    "lstm": net((6,), rb.Embedding(5, 3), rb.LSTM(3, sequence=True), rb.LSTM(2)),
    "group norm": net((4, 4, 2), rb.Conv2D(4, 3, padding="same"), rb.GroupNorm(2), SILU),
}
NAMES = pytest.mark.parametrize("name", NETWORKS)
DROPPING = {
    "plain": net((5, 4, 2), rb.Dropout(0.2), rb.Conv2D(3, 2), TANH, rb.Dropout(0.4)),
    "spatial": net(
        (5, 4, 2), rb.Conv2D(5, 2), SILU, rb.Dropout(0.4, spatial=True), rb.Conv2D(2, 2), TANH
    ),
    "before the last layer": net((5, 4, 2), rb.Conv2D(3, 2), FRN(), SILU, rb.Dropout(0.3)),
    "in a residual": net(
        (4, 4, 2),
        rb.Conv2D(3, 2),
        rb.Residual([TANH, rb.Dropout(0.3, spatial=True), rb.Conv2D(3, 3, padding="same")]),
        rb.Residual([rb.Conv2D(3, 1), rb.Dropout(0.2)], [SILU]),
    ),
    "in a residual of the input": net(
        (4, 3, 2), rb.Residual([rb.Conv2D(2, 3, padding="same"), TANH, rb.Dropout(0.4)])
    ),
    "one mask beside the identity": net((4, 3, 2), rb.Conv2D(3, 2), rb.Residual([rb.Dropout(0.3)])),
    "of the outputs": rb.Model(
        [rb.Conv2D(3, 2), rb.Flatten(), rb.Dense(9), rb.Dropout(0.3)], input_shape=(4, 3, 2)
    ),
    "of a row": rb.Model(
        [rb.Dense(5), rb.LayerNorm(), TANH, rb.Dropout(0.3), rb.Dense(2)], input_shape=(3,)
    ),
    "masked lstm": net(
        (6,), rb.Embedding(5, 3), rb.Dropout(0.3, spatial=True), rb.LSTM(4), rb.Dropout(0.4)
    ),
}


def made_of(name, likelihood=0):
    """A problem whose weights are small enough to step on."""
    found = problem({**DROPPING, **NETWORKS}[name], likelihood=likelihood, num_rows=ROWS)
    found.theta[...] *= 0.7
    return found


def inputs(made, num_rows):
    """Rows for the native library and for the oracle."""
    x = np.resize(made.reference.x, (num_rows, made.reference.x.shape[1]))
    return x.reshape(-1, *made.model.input_shape), x


# --- predictions under masks ---------------------------------------------------------------------


def fitted(made, dtype=np.float64):
    """A fit whose weights stay where they start."""
    mcd = rb.MCDropout(made.native(dtype), batch_size=None, learning_rate=1e-12)
    return mcd.fit(1, seed=1, init=made.theta, progress=False)
