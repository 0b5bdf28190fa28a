"""Shared by the gates on MNIST: the digits, the figures of a prediction, and their table."""

import numpy as np

import ribbit as rb
from tests.support.gates import Table

SIZE, BATCH = 10_000, 128
STEPS = -(-SIZE // BATCH)  # of an epoch


def digits(folder):
    """Images (N, 28, 28) of bytes and labels, for training and for tests."""
    with np.load(folder / "mnist" / "mnist_small.npz") as file:
        x, y, x_test, y_test = (file[k] for k in ("x_train", "y_train", "x_test", "y_test"))
    assert len(x) == SIZE
    return x, y.astype(int), x_test, y_test.astype(int)


def figures(folder, method):
    p, y = method(folder)
    probs = np.asarray(p.probs)
    return 1 - rb.metrics.accuracy(y, probs), rb.metrics.nll(y, probs), rb.metrics.ece(y, probs)


def table(title, methods, folder):
    found = Table(
        title,
        ("method", "error (gate)", "negative log likelihood, nats", "calibration error (ECE)"),
        note="Predictions for 2,000 test digits. The ECE has 20 bins of the largest probability.",
    )
    for name, (method, gate) in methods.items():
        error, nll, ece = figures(folder, method)
        found.add(
            name,
            f"{100 * error:.2f} % ({100 * gate:g} %)",
            f"{nll:.3f}",
            f"{ece:.3f}",
            holds=error <= gate,
        )
    return found
