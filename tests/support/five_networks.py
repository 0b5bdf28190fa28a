"""The five networks on which log densities inside other frameworks are judged: no more than 200
parameters, of every kind of layer."""

import ribbit as rb
from tests.support.layer_problems import net

__all__ = ["NETWORKS"]

TANH, RELU, SILU = (rb.Activation(name) for name in ("tanh", "relu", "silu"))
NETWORKS = {
    "perceptron": rb.mlp(3, (6, 5), 1, activation="tanh"),
    "normalised": net((4,), rb.Dense(6), rb.LayerNorm(), RELU, rb.Dense(4), RELU),
    "lenet": net(
        (8, 8, 1), rb.Conv2D(2, 3), RELU, rb.MaxPool2D(2), rb.Conv2D(3, 2), RELU, rb.MaxPool2D(2)
    ),
    "residual": net(
        (5, 5, 2),
        rb.Conv2D(4, 3, padding="same"),
        rb.Residual((rb.GroupNorm(2), SILU, rb.Conv2D(4, 3, padding="same"))),
        rb.GlobalAvgPool2D(),
    ),
    "cnn-lstm": net((9,), rb.Embedding(5, 3), rb.Conv1D(4, 3), SILU, rb.MaxPool1D(2), rb.LSTM(3)),
}
