"""A network with Dropout layers, its masks from their addresses, its gradients by hand."""

import numpy as np

import ribbit as rb
from tests.oracle.reference import words

MASK, PREDICTIVE_MASK = 6, 14
RNG = np.random.default_rng(2)
ROWS = 45
X = RNG.normal(size=(ROWS, 3))
Y = np.sin(X[:, :1]) + 0.1 * RNG.normal(size=(ROWS, 1))


def model(rates=(0.3, 0.45), hidden=5, activation="tanh"):
    """Dropout on the input and on the hidden layer."""
    layers = [rb.Dense(hidden), rb.Activation(activation), rb.Dense(1)]
    if rates[1]:
        layers.insert(2, rb.Dropout(rates[1]))
    if rates[0]:
        layers.insert(0, rb.Dropout(rates[0]))
    return rb.Model(layers, input_shape=(3,))


def target(net=None, **options):
    return rb.Posterior(
        model() if net is None else net,
        X,
        Y,
        **{
            "prior": rb.Normal(0.8),
            "likelihood": rb.Gaussian(0.3),
            "dtype": np.float64,
            **options,
        },
    )


def mask(rows, units, rate, *, seed, step, sample, layer, purpose=MASK):
    """Factors (len(rows), units): element row * 4 ceil(units / 4) + unit of the mask stream."""
    blocks = -(-units // 4)
    number = (np.asarray(rows)[:, None] * blocks + np.arange(blocks)).reshape(-1)
    found = words(number, seed=seed, step=step, chain=sample, purpose=purpose, layer=layer)
    found = found.reshape(len(rows), 4 * blocks)[:, :units]
    return np.where(found >= np.round(rate * 2.0**32), 1 / (1 - rate), 0.0)


def forward(theta, x, first, second):
    """Output (n, 1) and tape of the network of `model` under masks (n, 3) and (n, hidden)."""
    hidden = (theta.size - 1) // 5
    w, b = theta[: 3 * hidden].reshape(3, hidden), theta[3 * hidden : 4 * hidden]
    v, c = theta[4 * hidden : 5 * hidden].reshape(hidden, 1), theta[-1]
    z = np.tanh((x * first) @ w + b)
    return (z * second) @ v + c, z


def gradient(theta, rows, first, second):
    """Of the log density on a batch, likelihood scaled by N/n, by hand."""
    hidden = second.shape[1]
    f, z = forward(theta, X[rows], first, second)
    delta = ROWS / len(rows) * (Y[rows] - f) / 0.3**2
    v = theta[4 * hidden : 5 * hidden]
    back = (delta * v * second) * (1 - z**2)
    parts = [
        (X[rows] * first).T @ back,
        back.sum(axis=0),
        (z * second).T @ delta,
        delta.sum(axis=0),
    ]
    return np.concatenate([p.reshape(-1) for p in parts]) - theta / 0.8**2


def masks_of(rows, *, seed, step, sample, hidden=5, purpose=MASK):
    where = {"seed": seed, "step": step, "sample": sample, "purpose": purpose}
    return mask(rows, 3, 0.3, layer=0, **where), mask(rows, hidden, 0.45, layer=3, **where)
