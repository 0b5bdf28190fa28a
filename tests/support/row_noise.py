"""Networks and single native steps for BBB's estimators with noise for each row."""

import numpy as np
import pytest

import ribbit as rb
from tests.support.layer_problems import KINKED, SILU, SMOOTH, TANH, net

BIG = 2**63 + 11


def one_step(density, start, estimator, *, step, batch, samples, weight, closed):
    """Gradient (2, P) by mean and rho, and the records, of one native step from (2, P)."""
    state = np.zeros((6, density.dim))
    state[:2] = start
    moved, records, failed, _ = density.advance_variational(
        state,
        seed=BIG,
        first_step=step,
        batch_size=batch or density.num_rows,
        num_samples=samples,
        estimator=estimator,
        closed=closed,
        step_size=np.array([1e-3]),
        kl_weight=np.array([weight]),
        decay=(0.9, 0.999),
        epsilon=1e-8,
    )
    assert failed == -1
    return moved[[2, 4]] / 0.1, records[:, 0]  # first moments are 0.1 times the gradient


NETWORKS = {
    "conv2d": SMOOTH["two convolutions"],
    "conv1d": SMOOTH["conv1d same"],
    "strided": SMOOTH["conv shortcut"],
    "many channels": net((2, 3, 2), rb.Conv2D(35, 1), TANH, rb.Conv2D(3, 2), SILU),
    "more than 128 channels": net((1, 2, 130), rb.Conv2D(131, 1), TANH, rb.Conv2D(2, (1, 2))),
    "average pool": SMOOTH["global average"],
    "max pool": KINKED["overlapping max pool same"],
    "frn": KINKED["pre-activation residual"],
    "frn of the input": KINKED["frn of the input"],
    "layer norm": SMOOTH["layer norm of an image"],
    "layer norm of a row": SMOOTH["layer norm of a row"],
    "group norm": SMOOTH["group norm of an image"],
    "lstm": SMOOTH["lstm after lstm"],
    "embedding": SMOOTH["embedding"],
    "embedding and lstm": KINKED["cnn and lstm"],
    "residual": SMOOTH["nested"],
    "shortcut of the input": SMOOTH["shortcut of the input"],
}
KINKS = {"max pool", "frn", "frn of the input", "embedding and lstm"}
BOTH = pytest.mark.parametrize("estimator", ["local", "flipout"])
