"""Posteriors with their last layer integrated out, each beside its oracle."""

import numpy as np

import ribbit as rb
from tests.oracle.last_layer_reference import Integrated

# name: what differs from a tanh network 3-5-1 with a bias and learned noise on 70 rows
CASES = {
    "plain": {},
    "several outputs": {"outputs": 3},
    "no bias": {"bias": False, "outputs": 2},
    "prior mean": {"centred": True, "outputs": 2},
    "temperatures": {"temperature": 0.3, "likelihood_temperature": 2.5, "outputs": 2},
    "known noise": {"noise": 0.4, "temperature": 0.5},
    "linear": {"hidden": (), "outputs": 2},
    "linear, cold": {"hidden": (), "temperature": 0.5, "centred": True, "bias": False},
    "deep": {"hidden": (6, 40), "rows": 130},
    "many rows": {"hidden": (20,), "rows": 530, "activation": "relu"},
    "one unit": {"hidden": (1,), "activation": "silu", "rows": 32},
}


def made(
    hidden=(5,),
    outputs=1,
    bias=True,
    rows=70,
    noise=None,
    centred=False,
    activation="tanh",
    dtype=np.float64,
    **temperatures,
):
    """A target and its oracle."""
    rng = np.random.default_rng(7)
    layers = []
    for units in hidden:
        layers += [rb.Dense(units), rb.Activation(activation)]
    model = rb.Model([*layers, rb.Dense(outputs, bias=bias)], input_shape=(3,))
    x, y = rng.normal(size=(rows, 3)), rng.normal(size=(rows, outputs))
    width = hidden[-1] if hidden else 3
    means = rng.normal(size=(width + bias, outputs)) if centred else np.zeros((width + 1, outputs))
    last = len(layers)
    prior = {f"{last}.weight": rb.Normal(0.6, mean=means[:width])}
    if bias:
        prior[f"{last}.bias"] = rb.Normal(1.3, mean=means[width])
    if hidden:
        prior["*"] = rb.Normal(0.8)
    target = rb.Posterior(
        model,
        x,
        y,
        prior=prior,
        likelihood=rb.Gaussian(per_output=False) if noise is None else rb.Gaussian(noise),
        dtype=dtype,
        marginalize="last_layer",
        **temperatures,
    )
    below = target.dim - (noise is None)
    table = [[0, below, 0, 0.8, 0, 0]] if below else []
    oracle = Integrated(
        table=model.table[:-1] if hidden else None,
        prior=np.array(table + ([[below, 1, 0, 1.0, 0, 0]] if noise is None else [])),
        x=np.asarray(x, dtype).astype(float),
        y=np.asarray(y, dtype).astype(float),
        sd=np.array([0.6] * width + [1.3] * bias),
        mean=means[: width + bias],
        bias=bias,
        scale=noise,
        **temperatures,
    )
    return target, oracle


def positions(target, chains=3):
    """Some way from the start, (chains, R)."""
    start = target.init(1, chains)
    away = np.random.default_rng(5).normal(size=start.shape)
    return (start + 0.3 * away).astype(target.dtype)
