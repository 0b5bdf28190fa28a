"""A fit of MC dropout that training does not move: what it predicts is known."""

import numpy as np

import ribbit as rb
from tests.oracle.dropout_reference import target


def fitted(net=None, **options):
    """A fit whose weights are a draw of the prior: what it predicts does not depend on training."""
    density = target(net, **options)
    mcd = rb.MCDropout(density, batch_size=None, learning_rate=1e-12)
    return mcd.fit(1, seed=1, init=0.5 * np.random.default_rng(6).normal(size=density.dim))
