"""Small networks of every layer, as pairs: the oracle's target and the native posterior."""

import math
from dataclasses import dataclass

import numpy as np

import ribbit as rb
from tests.oracle.dropout_reference import MASK, mask
from tests.oracle.reference import Target, learns_noise
from tests.support.likelihoods import SHAPE
from tests.support.problems import NOISE, labels, native_labels, native_likelihood

ROWS = (1, 2, 31, 33, 70)
PRIOR_SD = 0.8


@dataclass(frozen=True)
class Problem:
    """A network with data, for the oracle and for the native library."""

    model: rb.Model
    reference: Target
    theta: np.ndarray  # (P,) or (C, P)

    def native(self, dtype=np.float64, **changes):
        x = self.reference.x.reshape(-1, *self.model.input_shape)
        options = {
            "prior": rb.Normal(PRIOR_SD),
            "likelihood": native_likelihood(self.reference),
            "temperature": self.reference.temperature,
            "likelihood_temperature": self.reference.likelihood_temperature,
            "dtype": dtype,
        }
        y = native_labels(self.reference)
        return rb.Posterior(self.model, x, y, **{**options, **changes})


def weights(model, rng, chains=None):
    """He-like weights, norms near 1, the rest of order 0.2: outputs of order one at any width."""
    shape = (model.dim,) if chains is None else (chains, model.dim)
    theta = 0.2 * rng.normal(size=shape)
    for p in model.parameters:
        part = theta[..., p.offset : p.offset + p.size]
        if p.is_weight:
            part *= 5 * math.sqrt(1.5 / p.fan_in)
        else:
            part += p.initial
    return theta


def inputs(model, rng, num_rows):
    shape = (num_rows, math.prod(model.input_shape))
    if model.tokens:
        return rng.integers(0, model.tokens, size=shape).astype(float)
    return rng.normal(size=shape)


def problem(model, *, likelihood=0, num_rows=5, chains=None, seed=0, **temperatures):
    """A `Problem` with random data and weights of fixed seed."""
    rng = np.random.default_rng((seed, *model.input_shape, model.dim, likelihood, num_rows))
    segments = [(0, model.dim, 0, PRIOR_SD, 0, 0)]
    theta = weights(model, rng, chains)
    noises = model.output_shape[0] if learns_noise(likelihood) else 0
    if noises:
        segments.append((model.dim, noises, 0, 1, 0, 0))
        logs = 0.2 * rng.normal(size=(*theta.shape[:-1], noises))
        theta = np.concatenate([theta, logs], axis=-1)
    reference = Target(
        table=model.table,
        prior=np.array(segments, float),
        kind=likelihood,
        x=inputs(model, rng, num_rows),
        y=labels(likelihood, rng, num_rows, model.output_shape[0]),
        scale=NOISE,
        shape=SHAPE,
        noises=max(1, noises),
        **temperatures,
    )
    return Problem(model, reference, theta)


def net(shape, *layers, outputs=2):
    """The layers, flattened, and a dense layer behind them."""
    return rb.Model([*layers, rb.Flatten(), rb.Dense(outputs)], input_shape=shape)


def mask_factors(model, rows, *, seed, step, sample=0, purpose=MASK):
    """Factors of each Dropout row of the table for these rows of the data, by their addresses."""
    found = {}
    for r, entries in enumerate(model.table):
        row = dict(zip(rb.layers.COLUMNS, map(int, entries), strict=True))
        if row["op"] != 2:
            continue
        units = row["channels"] if row["argument"] else row["out_size"]
        where = {"seed": seed, "step": step, "sample": sample, "layer": row["index"]}
        drawn = mask(rows, units, model.rates[r], purpose=purpose, **where)  # (n, units)
        found[r] = np.tile(drawn, (1, row["out_size"] // units))  # channels run fastest
    return found


# --- networks by name ----------------------------------------------------------------------------

TANH, SILU, RELU = (rb.Activation(name) for name in ("tanh", "silu", "relu"))


def conv_models():
    """Kernels 1 to 5, strides 1 to 3, both paddings, on images of odd sizes; by name."""
    kernels = [1, 2, 3, (1, 4), (5, 2), (3, 5), 4, 5]
    strides = [1, 2, (2, 1), 3, (1, 3)]
    shapes = [(5, 7, 1), (6, 5, 3), (7, 5, 2), (5, 8, 17)]
    found = {}
    for k, size in enumerate(kernels):
        for s, stride in enumerate(strides):
            for padding in ("same", "valid"):
                layer = rb.Conv2D(
                    (1, 3, 2, 9)[(k + s) % 4],
                    size,
                    stride=stride,
                    padding=padding,
                    bias=(k + s) % 3 > 0,
                )
                shape = shapes[(k + 2 * s + (padding == "same")) % 4]
                name = f"{size}/{stride}/{padding} on {shape}".replace(" ", "")
                found[name] = net(shape, layer, TANH)
    return found


SMOOTH = {  # networks without kinks
    "one cell": net((1, 1, 1), rb.Conv2D(1, 1), TANH),
    "row of pixels": net((1, 9, 2), rb.Conv2D(3, (1, 3), padding="same"), TANH),
    "column of pixels": net((9, 1, 1), rb.Conv2D(3, 3, stride=2, padding="same"), TANH),
    "kernel larger than the image": net((2, 3, 2), rb.Conv2D(3, 5, padding="same"), SILU),
    "two convolutions": net(
        (6, 5, 2), rb.Conv2D(4, 3, padding="same"), TANH, rb.Conv2D(3, 2, stride=2), SILU
    ),
    "convolution alone": rb.Model([rb.Conv2D(2, 3), rb.Flatten()], input_shape=(4, 3, 2)),
    "conv1d": net((9, 3), rb.Conv1D(5, 4, stride=2), TANH),
    "conv1d same": net((7, 1), rb.Conv1D(2, 3, stride=3, padding="same", bias=False), TANH),
    "padding of cells": net(
        (6, 5, 2), rb.Conv2D(3, 3, stride=2, padding=1), TANH, rb.Conv2D(2, (2, 3), padding=(0, 2))
    ),
    "conv1d of padding cells": net((7, 3), rb.Conv1D(2, 4, stride=2, padding=3), TANH),
    "dilation": net((7, 6, 2), rb.Conv2D(3, 2), TANH, rb.Conv2D(4, 3, dilation=2), SILU),
    "dilation and strides": net(
        (9, 8, 2),
        rb.Conv2D(3, 1),
        rb.Conv2D(5, (3, 2), stride=(2, 3), dilation=(3, 2), padding="same"),
        TANH,
        rb.Conv2D(2, 2, stride=2, dilation=(2, 1), padding=1),
    ),
    "dilation equal to the stride": net(
        (8, 7, 2), rb.Conv2D(2, 1), rb.Conv2D(3, 3, stride=2, dilation=2, padding=2), TANH
    ),
    "dilation past the image": net(
        (3, 2, 2), rb.Conv2D(2, 1), rb.Conv2D(3, 3, dilation=4, padding=4), TANH
    ),
    "dilation and norms": net(
        (7, 6, 3),
        rb.Conv2D(4, 1),
        rb.FilterResponseNorm(threshold=False),
        rb.Conv2D(5, 3, dilation=2, padding="same"),
        rb.FilterResponseNorm(threshold=False, eps=0.2),
        SILU,
    ),
    "conv1d of dilation": net((11, 3), rb.Conv1D(4, 1), rb.Conv1D(5, 3, dilation=3), TANH),
    "groups": net((6, 5, 4), rb.Conv2D(6, 1), TANH, rb.Conv2D(9, 3, groups=3, padding=1), SILU),
    "groups and dilation": net(
        (6, 7, 4),
        rb.Conv2D(4, 1),
        rb.Conv2D(6, (2, 3), groups=2, dilation=2, stride=2, padding=1, bias=False),
        TANH,
    ),
    "groups with norms": net(
        (5, 4, 6),
        rb.Conv2D(6, 1),
        rb.FilterResponseNorm(threshold=False),
        rb.Conv2D(8, 3, groups=2, padding="same"),
        rb.FilterResponseNorm(threshold=False),
        TANH,
    ),
    "wide groups": net((3, 3, 34), rb.Conv2D(34, 1), rb.Conv2D(38, 2, groups=2), TANH),
    "depthwise": net(
        (5, 6, 7), rb.Conv2D(7, 3, groups=7, padding=1), SILU, rb.Conv2D(3, 1), rb.Dropout(0.2)
    ),
    "few filters of a large image": net(
        (11, 12, 3), rb.Conv2D(5, (3, 4), padding="same"), TANH, rb.Conv2D(2, 3, stride=2), SILU
    ),
    "filters past the vectors": net(
        (9, 10, 2), rb.Conv2D(21, 2, padding=1), TANH, rb.Conv2D(19, 3, dilation=2, padding=2)
    ),
    "groups of a large image": net(
        (12, 9, 4),
        rb.Conv2D(6, 3, groups=2, padding=1, bias=False),
        TANH,
        rb.Conv2D(12, 2, groups=6, stride=(1, 2), dilation=(2, 1)),
    ),
    "depthwise on a large image": net(
        (10, 11, 3), rb.Conv2D(3, 4, groups=3, padding=2), rb.Conv2D(3, 3, groups=3, dilation=3)
    ),
    "conv1d of groups": net((7, 4), rb.Conv1D(4, 1), rb.Conv1D(6, 3, groups=2), TANH),
    "affine": net((4, 3, 3), rb.Conv2D(5, 2), TANH, rb.Affine(), SILU),
    "affine of a row": rb.Model([rb.Dense(5), rb.Affine(), TANH, rb.Dense(2)], input_shape=(3,)),
    "affine of a sequence": net((6, 3), rb.Affine(), rb.Conv1D(2, 2), rb.Affine()),
    "average pool": net((7, 5, 2), rb.Conv2D(3, 2), rb.AvgPool2D(2), TANH),
    "average pool same": net(
        (7, 6, 3), TANH, rb.Conv2D(2, 1), rb.AvgPool2D((3, 2), stride=(2, 1), padding="same")
    ),
    "average pool of the input": net((5, 4, 2), rb.AvgPool2D(3, stride=1, padding="same")),
    "global average": rb.Model(
        [rb.Conv2D(4, 3, padding="same"), SILU, rb.GlobalAvgPool2D(), rb.Dense(3)],
        input_shape=(5, 3, 2),
    ),
    "frn without threshold": net(
        (4, 5, 3), rb.Conv2D(2, 3), rb.FilterResponseNorm(threshold=False), TANH
    ),
    "frn of a sequence": net(
        (7, 2), rb.Conv1D(3, 3, padding="same"), rb.FilterResponseNorm(threshold=False)
    ),
    "layer norm of a row": rb.Model(
        [rb.Dense(7), rb.LayerNorm(), TANH, rb.Dense(2)], input_shape=(3,)
    ),
    "layer norm of a sequence": net((5, 4), rb.LayerNorm(), rb.Conv1D(3, 2), rb.LayerNorm()),
    "layer norm of an image": net((4, 3, 5), rb.Conv2D(4, 2), rb.LayerNorm(), SILU),
    "layer norm of another epsilon": net((4, 3, 5), rb.Conv2D(4, 2), rb.LayerNorm(eps=0.2), SILU),
    "layer norm of one channel": net((4, 3, 2), rb.Conv2D(1, 2), rb.LayerNorm()),
    "group norm of a row": rb.Model(
        [rb.Dense(6), rb.GroupNorm(2), TANH, rb.Dense(2)], input_shape=(3,)
    ),
    "group norm of a sequence": net((5, 4), rb.GroupNorm(2, eps=0.3), rb.Conv1D(3, 2), TANH),
    "group norm of an image": net((4, 3, 5), rb.Conv2D(6, 2), rb.GroupNorm(3, 1e-3), SILU),
    "group norm of one group": net((7, 6, 2), rb.Conv2D(35, 1), rb.GroupNorm(1), TANH),
    "instance norm": net((4, 3, 2), rb.Conv2D(5, 2), rb.GroupNorm(5, eps=0.1), rb.GroupNorm(5)),
    "group norm in a residual": net(
        (4, 3, 2),
        rb.Dropout(0.3),
        rb.Residual([rb.GroupNorm(2), TANH, rb.Conv2D(2, 3, padding="same"), rb.GroupNorm(1)]),
    ),
    "identity shortcut": net(
        (5, 4, 2), rb.Conv2D(3, 1), TANH, rb.Residual([rb.Conv2D(3, 3, padding="same"), TANH]), SILU
    ),
    "conv shortcut": net(
        (5, 4, 2),
        TANH,
        rb.Residual(
            [rb.Conv2D(4, 3, stride=2, padding="same"), SILU, rb.Conv2D(4, 2, padding="same")],
            [rb.Conv2D(4, 1, stride=2, bias=False)],
        ),
        TANH,
    ),
    "shortcut of the input": net((4, 4, 2), rb.Residual([rb.Conv2D(2, 3, padding="same"), TANH])),
    "main of one norm": net(
        (4, 3, 2), rb.Conv2D(3, 2), rb.Residual([rb.FilterResponseNorm(threshold=False)]), TANH
    ),
    "main of one norm, dropout": net(
        (4, 3, 2), rb.Conv2D(3, 2), rb.Residual([rb.Dropout(0.5), rb.FilterResponseNorm()])
    ),
    "two norms of one value": net(
        (4, 3, 2),
        rb.Conv2D(3, 2),
        rb.Residual([rb.FilterResponseNorm(threshold=False)], [rb.FilterResponseNorm()]),
        SILU,
    ),
    "main of one activation": net((4, 3, 2), rb.Conv2D(2, 2), rb.Residual([TANH]), SILU),
    "nested": net(
        (4, 4, 2),
        rb.Residual(
            [
                rb.Conv2D(2, 3, padding="same"),
                rb.Residual([TANH, rb.Conv2D(2, 2, padding="same")], [rb.Conv2D(2, 1)]),
                rb.Residual([SILU]),
            ]
        ),
        TANH,
    ),
    "residual of dense layers": rb.Model(
        [rb.Dense(5), rb.Residual([TANH, rb.Dense(5)]), rb.Residual([SILU]), rb.Dense(2)],
        input_shape=(3,),
    ),
    "two activations": net((4, 3, 2), rb.Conv2D(3, 2), TANH, SILU, rb.Activation("gelu")),
    "activation of the input": net((4, 3, 2), SILU, TANH, rb.Conv2D(3, 2)),
    "dense after flatten": net((3, 4, 2), rb.Flatten(), rb.Dense(6), TANH),
    "embedding": net((6,), rb.Embedding(5, 3), TANH),
    "embedding of one token": net((1,), rb.Embedding(1, 2), TANH),
    "embedding and conv1d": net((9,), rb.Embedding(7, 4), rb.Conv1D(3, 3), SILU),
    "lstm": rb.Model([rb.LSTM(4), rb.Dense(2)], input_shape=(6, 3)),
    "lstm of one step": rb.Model([rb.LSTM(3), rb.Dense(2)], input_shape=(1, 2)),
    "lstm of one unit": rb.Model([rb.LSTM(1)], input_shape=(5, 1)),
    "lstm states": net((5, 2), rb.LSTM(3, sequence=True), TANH),
    "lstm after lstm": net((5, 2), rb.LSTM(3, sequence=True), rb.LSTM(4)),
    "embedding and lstm": net((7,), rb.Embedding(6, 3), rb.LSTM(5), outputs=3),
    "wide lstm": rb.Model([rb.LSTM(17), rb.Dense(2)], input_shape=(4, 9)),
    "dropout": net((4, 3, 2), rb.Dropout(0.3), rb.Conv2D(3, 2), rb.Dropout(0.4), TANH),
    "spatial dropout": net(
        (4, 3, 3), rb.Conv2D(5, 2), TANH, rb.Dropout(0.4, spatial=True), rb.Conv2D(2, 2), SILU
    ),
    "dropout of sequences": net(
        (6, 3), rb.Dropout(0.3, spatial=True), rb.LSTM(5, sequence=True), rb.Dropout(0.2)
    ),
    "dropout in a residual": net(
        (4, 3, 2),
        rb.Residual([rb.Conv2D(2, 3, padding="same"), TANH, rb.Dropout(0.5, spatial=True)]),
        rb.Dropout(0.25),
    ),
}
KINKED = {  # max pools, thresholds and relu
    "max pool": net((7, 5, 2), rb.Conv2D(3, 2), TANH, rb.MaxPool2D(2)),
    "sigmoid and max pool": net(
        (9, 8, 2), rb.Conv2D(3, 2), rb.Activation("sigmoid"), rb.MaxPool2D(3, stride=2)
    ),
    "elu and overlapping max pool": net(
        (7, 6, 1), rb.Conv2D(4, 2), rb.Activation("elu"), rb.MaxPool2D(3, stride=1, padding="same")
    ),
    "softplus of the input and max pool": net(
        (7, 6, 2), rb.Activation("softplus"), rb.MaxPool2D(2, stride=3), rb.Conv2D(2, 1)
    ),
    "silu and max pool": net((7, 6, 2), rb.Conv2D(3, 2), SILU, rb.MaxPool2D(2)),
    "an activation read by two": net(
        (6, 6, 2),
        rb.Conv2D(3, 1),
        TANH,
        rb.Residual([rb.MaxPool2D(3, stride=1, padding="same")], [rb.Conv2D(3, 1)]),
    ),
    "max pool of padding cells": net((7, 6, 2), rb.MaxPool2D(3, stride=2, padding=1)),
    "leaky relu": net((5, 4, 2), rb.Conv2D(3, 2), rb.Activation("leaky_relu"), rb.Conv2D(2, 2)),
    "elu": net((5, 4, 2), rb.Conv2D(3, 2), rb.Activation("elu"), rb.Conv2D(2, 2)),
    "max pool same": net((7, 6, 2), rb.Conv2D(3, 2), rb.MaxPool2D((2, 3), padding="same")),
    "overlapping max pool": net((7, 6, 2), rb.Conv2D(3, 2), TANH, rb.MaxPool2D(3, stride=(1, 2))),
    "overlapping max pool same": net(
        (6, 5, 1), rb.Conv2D(3, 2), rb.MaxPool2D(3, stride=2, padding="same"), SILU, rb.Conv2D(2, 2)
    ),
    "max pool of the input": net((5, 6, 2), rb.MaxPool2D(2, stride=1)),
    "max pool larger than its stride": net(
        (9, 8, 2), rb.Conv2D(2, 1), rb.MaxPool2D(2, stride=3), TANH
    ),
    "max pool 1d": net((11, 2), rb.Conv1D(3, 2), rb.MaxPool1D(3, stride=2), TANH),
    "max pool 1d same": net((7, 3), rb.Conv1D(2, 3), rb.MaxPool1D(2, padding="same")),
    "relu": net((5, 5, 2), rb.Conv2D(4, 3), RELU, rb.MaxPool2D(2), rb.Flatten(), rb.Dense(5), RELU),
    "pre-activation residual": net(
        (4, 4, 2),
        rb.Conv2D(3, 3, padding="same"),
        rb.Residual([rb.FilterResponseNorm(), RELU, rb.Conv2D(3, 3, padding="same")]),
        rb.FilterResponseNorm(),
        RELU,
    ),
    **{
        f"frn and {name}": net(
            (4, 5, 3), rb.Conv2D(3, 2), rb.FilterResponseNorm(), rb.Activation(name)
        )
        for name in rb.layers.ACTIVATIONS
    },
    "frn of one cell": net((1, 1, 3), rb.FilterResponseNorm(), rb.Conv2D(2, 1)),
    "frn of the input": net((3, 4, 2), rb.FilterResponseNorm(), TANH),
    "cnn and lstm": net(
        (11,), rb.Embedding(6, 4), rb.Conv1D(3, 3), RELU, rb.MaxPool1D(2), rb.LSTM(4)
    ),
}
ZOO = {
    "lenet5": lambda: rb.lenet5((15, 15, 1), 3),
    "resnet20_frn": lambda: rb.resnet20_frn(3, input_shape=(8, 8, 3)),
    "cnn_lstm": lambda: rb.cnn_lstm(30, 12, 2),
}

COMPILED = {  # together they reach every kernel of layers
    "images": net(
        (6, 5, 2),
        rb.Conv2D(5, 3, padding="same"),
        rb.FilterResponseNorm(),
        SILU,
        rb.MaxPool2D(2),
        rb.Residual([rb.Conv2D(5, 2, padding="same"), TANH, rb.Dropout(0.4, spatial=True)]),
        rb.AvgPool2D(2, stride=1),
        rb.LayerNorm(),
        rb.GroupNorm(5),
    ),
    "groups": net(
        (5, 4, 4),
        rb.Dropout(0.3),
        rb.Conv2D(4, 1),
        rb.Conv2D(6, 3, groups=2, dilation=2, padding=2),
        TANH,
    ),
    "sequences": net(
        (6,),
        rb.Embedding(70, 35),
        rb.GroupNorm(1),
        rb.LSTM(17, sequence=True),
        rb.Dropout(0.3),
        rb.LSTM(5),
    ),
}
EXAMPLES = [  # each layer, and again where another field gives it another form
    rb.Dense(3, bias=False),
    rb.Activation("gelu"),
    rb.Dropout(0.2, spatial=True),
    rb.Flatten(),
    rb.Conv2D(4, 3, stride=2, padding="same", bias=False),
    rb.Conv2D(4, (3, 1), stride=(1, 2)),
    rb.Conv2D(4, 3, padding=(1, 0), dilation=2, groups=2),
    rb.Conv1D(4, 3, stride=2, padding="same", bias=False),
    rb.Conv1D(4, 3, padding=1, dilation=2, groups=2),
    rb.Affine(),
    rb.MaxPool2D(2),
    rb.MaxPool2D((2, 3), stride=(1, 2), padding="same"),
    rb.MaxPool1D(2, stride=1, padding="same"),
    rb.AvgPool2D(3, stride=2),
    rb.GlobalAvgPool2D(),
    rb.FilterResponseNorm(threshold=False),
    rb.FilterResponseNorm(eps=0.1),
    rb.LayerNorm(),
    rb.LayerNorm(eps=0.1),
    rb.GroupNorm(2, eps=0.1),
    rb.Residual([rb.Conv2D(2, (3, 2), padding="same"), rb.Residual([rb.LayerNorm()])]),
    rb.Residual([rb.Conv2D(2, 3)], [rb.Conv2D(2, (3, 3)), rb.Dropout(0.1)]),
    rb.Embedding(7, 3),
    rb.LSTM(4, sequence=True),
]
TORCH_CALLS = {  # layers that are one call of F, torch.nn.functional, on x (N, C, ...)
    "image": {
        rb.Conv2D(4, 3): lambda F, x, p: F.conv2d(x, *p),
        rb.Conv2D(4, (3, 2), stride=(2, 1)): lambda F, x, p: F.conv2d(x, *p, stride=(2, 1)),
        rb.Conv2D(4, 3, stride=2, padding=1): lambda F, x, p: F.conv2d(x, *p, stride=2, padding=1),
        rb.Conv2D(4, (2, 3), dilation=(3, 2), padding=(1, 2)): lambda F, x, p: F.conv2d(
            x, *p, dilation=(3, 2), padding=(1, 2)
        ),
        rb.Conv2D(6, 3, groups=3, padding=1): lambda F, x, p: F.conv2d(x, *p, groups=3, padding=1),
        rb.Affine(): lambda F, x, p: x * p[0].view(-1, 1, 1) + p[1].view(-1, 1, 1),
        rb.Activation("leaky_relu"): lambda F, x, p: F.leaky_relu(x),
        rb.Activation("elu"): lambda F, x, p: F.elu(x),
        rb.MaxPool2D(3, stride=2, padding=1): lambda F, x, p: F.max_pool2d(x, 3, 2, 1),
        rb.MaxPool2D(2): lambda F, x, p: F.max_pool2d(x, 2),
        rb.MaxPool2D((3, 2), stride=(2, 1)): lambda F, x, p: F.max_pool2d(x, (3, 2), (2, 1)),
        rb.AvgPool2D((2, 3)): lambda F, x, p: F.avg_pool2d(x, (2, 3)),
        rb.AvgPool2D(3, stride=2): lambda F, x, p: F.avg_pool2d(x, 3, 2),
        rb.GroupNorm(1): lambda F, x, p: F.group_norm(x, 1, *p),
        rb.GroupNorm(3, eps=0.2): lambda F, x, p: F.group_norm(x, 3, *p, eps=0.2),
    },
    "sequence": {
        rb.Conv1D(4, 3): lambda F, x, p: F.conv1d(x, *p),
        rb.Conv1D(6, 3, groups=3, dilation=2, padding=1): lambda F, x, p: F.conv1d(
            x, *p, groups=3, dilation=2, padding=1
        ),
        rb.MaxPool1D(3): lambda F, x, p: F.max_pool1d(x, 3),
        rb.GroupNorm(3): lambda F, x, p: F.group_norm(x, 3, *p),
    },
}


def model(*layers, shape):
    """A model of nothing else."""
    return rb.Model(layers, input_shape=shape)


BAD_ARGUMENTS = [  # what is refused, the error, who says so, what it expects
    (lambda: rb.Conv2D(0, 3), ValueError, "Conv2D", "filters >= 1"),
    (lambda: rb.Conv2D(2.0, 3), TypeError, "Conv2D", "filters as an integer"),
    (lambda: rb.Conv2D(2, 0), ValueError, "Conv2D", "kernel_size >= 1"),
    (lambda: rb.Conv2D(2, (3, 0)), ValueError, "Conv2D", r"kernel_size\[1\] >= 1"),
    (lambda: rb.Conv2D(2, (3, True)), TypeError, "Conv2D", r"kernel_size\[1\] as an integer"),
    (lambda: rb.Conv2D(2, (3, 3, 3)), ValueError, "Conv2D", "an integer or two"),
    (lambda: rb.Conv2D(2, "3"), TypeError, "Conv2D", "kernel_size as an integer"),
    (lambda: rb.Conv2D(2, 3, stride=0), ValueError, "Conv2D", "stride >= 1"),
    (lambda: rb.Conv2D(2, 3, stride=None), TypeError, "Conv2D", "stride as an integer"),
    (lambda: rb.Conv2D(2, 3, padding="full"), ValueError, "Conv2D", "'valid' or 'same'"),
    (lambda: rb.Conv2D(2, 3, padding=-1), ValueError, "Conv2D", "padding >= 0"),
    (lambda: rb.Conv2D(2, 3, padding=1.0), TypeError, "Conv2D", "padding as"),
    (lambda: rb.Conv2D(2, 3, padding=True), TypeError, "Conv2D", "padding as"),
    (lambda: rb.Conv2D(2, 3, padding=(1, 2, 3)), ValueError, "Conv2D", "an integer or two"),
    (lambda: rb.Conv2D(2, 3, padding=(1, "same")), TypeError, "Conv2D", "padding as"),
    (lambda: rb.Conv2D(2, 3, dilation=0), ValueError, "Conv2D", "dilation >= 1"),
    (lambda: rb.Conv2D(2, 3, dilation=(1, 2.0)), TypeError, "Conv2D", r"dilation\[1\] as an"),
    (lambda: rb.Conv2D(2, 3, groups=0), ValueError, "Conv2D", "groups >= 1"),
    (lambda: rb.Conv2D(3, 3, groups=2), ValueError, "Conv2D", "filters that divide into 2 groups"),
    (lambda: rb.Conv1D(2, 3, padding=(1, 1)), TypeError, "Conv1D", "padding as"),
    (lambda: rb.MaxPool1D(2, padding=(0, 1)), TypeError, "MaxPool1D", "padding as"),
    (lambda: rb.LayerNorm(0), ValueError, "LayerNorm", "eps > 0"),
    (lambda: rb.LayerNorm("1"), TypeError, "LayerNorm", "eps"),
    (lambda: rb.FilterResponseNorm(eps=-1.0), ValueError, "FilterResponseNorm", "eps > 0"),
    (lambda: rb.Conv2D(2, 3, bias=1), TypeError, "Conv2D", "bias as a bool"),
    (lambda: rb.Conv1D(-1, 3), ValueError, "Conv1D", "filters >= 1"),
    (lambda: rb.Conv1D(2, (3, 3)), TypeError, "Conv1D", "kernel_size as an integer"),
    (lambda: rb.Conv1D(2, 3, stride=1.5), TypeError, "Conv1D", "stride as an integer"),
    (lambda: rb.Conv1D(2, 3, padding="SAME"), ValueError, "Conv1D", "padding as"),
    (lambda: rb.Conv1D(2, 3, bias=None), TypeError, "Conv1D", "bias as a bool"),
    (lambda: rb.MaxPool2D(0), ValueError, "MaxPool2D", "pool_size >= 1"),
    (lambda: rb.MaxPool2D(None), TypeError, "MaxPool2D", "pool_size as an integer"),
    (lambda: rb.MaxPool2D(2, stride=(0, 1)), ValueError, "MaxPool2D", r"stride\[0\] >= 1"),
    (lambda: rb.MaxPool2D(2, padding=None), TypeError, "MaxPool2D", "padding as"),
    (lambda: rb.AvgPool2D((2,)), ValueError, "AvgPool2D", "an integer or two"),
    (lambda: rb.AvgPool2D(2, stride="2"), TypeError, "AvgPool2D", "stride as an integer"),
    (lambda: rb.AvgPool2D(2, padding="all"), ValueError, "AvgPool2D", "padding as"),
    (lambda: rb.MaxPool1D(None), TypeError, "MaxPool1D", "pool_size as an integer"),
    (lambda: rb.MaxPool1D(0), ValueError, "MaxPool1D", "pool_size >= 1"),
    (lambda: rb.MaxPool1D(2, stride=0), ValueError, "MaxPool1D", "stride >= 1"),
    (lambda: rb.MaxPool1D(2, padding="x"), ValueError, "MaxPool1D", "padding as"),
    (lambda: rb.FilterResponseNorm(threshold=1), TypeError, "FilterResponseNorm", "as a bool"),
    (lambda: rb.GroupNorm(0), ValueError, "GroupNorm", "groups >= 1"),
    (lambda: rb.GroupNorm(2.0), TypeError, "GroupNorm", "groups as an integer"),
    (lambda: rb.GroupNorm(2, eps=0), ValueError, "GroupNorm", "eps"),
    (lambda: rb.GroupNorm(2, eps=math.inf), ValueError, "GroupNorm", "eps"),
    (lambda: rb.GroupNorm(2, eps="1"), TypeError, "GroupNorm", "eps"),
    (lambda: rb.Dropout(0.1, spatial=None), TypeError, "Dropout", "spatial as a bool"),
    (lambda: rb.Embedding(0, 3), ValueError, "Embedding", "vocab_size >= 1"),
    (lambda: rb.Embedding(2**24 + 1, 3), ValueError, "Embedding", "vocab_size <= "),
    (lambda: rb.Embedding(3, 0), ValueError, "Embedding", "units >= 1"),
    (lambda: rb.Embedding("3", 3), TypeError, "Embedding", "vocab_size as an integer"),
    (lambda: rb.LSTM(0), ValueError, "LSTM", "units >= 1"),
    (lambda: rb.LSTM(2**29 + 1), ValueError, "LSTM", "units <= "),
    (lambda: rb.LSTM(3, sequence="yes"), TypeError, "LSTM", "sequence as a bool"),
    (lambda: rb.Residual([]), ValueError, "Residual", "at least one layer"),
    (lambda: rb.Residual(rb.Dense(3)), TypeError, "Residual", "main as a list"),
    (lambda: rb.Residual("abc"), TypeError, "Residual", "main as a list"),
    (lambda: rb.Residual([rb.Dense]), TypeError, "Residual", r"main\[0\] as a layer"),
    (lambda: rb.Residual([rb.Dense(3)], None), TypeError, "Residual", "shortcut as a list"),
    (lambda: rb.Residual([rb.Dense(3)], [3]), TypeError, "Residual", r"shortcut\[0\]"),
]
IMAGE, SEQUENCE = (4, 5, 2), (6, 3)
BAD_SHAPES = [  # what is refused, where, what is expected
    (lambda: model(rb.Conv2D(2, 3), shape=(5,)), "layer 0", "an image"),
    (lambda: model(rb.Conv2D(2, 3), shape=SEQUENCE), "layer 0", "an image"),
    (lambda: model(rb.Conv2D(2, 6), shape=IMAGE), "layer 0", r"as the window .* got \(4, 5\)"),
    (lambda: model(rb.Conv2D(2, 3, dilation=2), shape=IMAGE), "layer 0", "as the window"),
    (lambda: model(rb.Conv2D(2, 2, padding=2), shape=IMAGE), "layer 0", "padding smaller than"),
    (lambda: model(rb.Conv2D(3, 1, groups=3), shape=IMAGE), "layer 0", "into 3 groups, got 2"),
    (lambda: model(rb.Conv1D(2, 3), shape=IMAGE), "layer 0", "a sequence"),
    (lambda: model(rb.Conv1D(2, 7), shape=SEQUENCE), "layer 0", "as the window"),
    (lambda: model(rb.MaxPool2D(2), shape=SEQUENCE), "layer 0", "an image"),
    (lambda: model(rb.AvgPool2D((5, 1)), shape=IMAGE), "layer 0", "as the window"),
    (lambda: model(rb.GlobalAvgPool2D(), shape=SEQUENCE), "layer 0", "an image"),
    (lambda: model(rb.MaxPool1D(2), shape=IMAGE), "layer 0", "a sequence"),
    (lambda: model(rb.FilterResponseNorm(), shape=(3,)), "layer 0", "an image"),
    (lambda: model(rb.GroupNorm(4), shape=(5, 6)), "layer 0", "into 4 groups, got 6 channels"),
    (lambda: model(rb.Dropout(0.1, spatial=True), shape=(3,)), "layer 0", "an image"),
    (lambda: model(rb.LSTM(2), shape=(3,)), "layer 0", "a sequence"),
    (lambda: model(rb.LSTM(2), rb.LSTM(2), shape=SEQUENCE), "layer 1", "a sequence"),
    (lambda: model(rb.Dense(2), shape=IMAGE), "layer 0", r"flat input .* rb.Flatten\(\)"),
    (lambda: model(rb.Embedding(3, 2), shape=SEQUENCE), "layer 0", "first layer"),
    (lambda: model(rb.Dense(3), rb.Embedding(3, 2), shape=(4,)), "layer 1", "first layer"),
    (
        lambda: model(rb.Residual([rb.Conv2D(3, 1)]), shape=IMAGE),
        "layer 0",
        r"the same shape, got \(4, 5, 3\) and \(4, 5, 2\)",
    ),
    (
        lambda: model(rb.Dense(3), rb.Residual([rb.Residual([rb.Dense(4)])]), shape=(2,)),
        "layer 1.main.0",
        "the same shape",
    ),
    (lambda: model(rb.Residual([rb.Flatten()]), shape=(3,)), "layer 0", "to compute something"),
    (lambda: model(rb.GlobalAvgPool2D(), shape=(2**31 - 1,) * 3), "layer 0", "2..34 scalars"),
]


def directions(dim, count=6, seed=0):
    """Signs (count, P): a wrong entry of a gradient shows along every one."""
    return np.random.default_rng((seed, dim)).choice([-1.0, 1.0], size=(count, dim))


def check_slopes(function, gradient, theta, h, bound=1e-7):
    """The gradient (P,) is the derivative of a function of (n, P), over the gradient's norm.

    Fourth-order central differences along `directions`, which round with the values.
    """
    along = directions(theta.size)
    stencil = np.concatenate([theta + k * h * along for k in (-2, -1, 1, 2)])
    values = np.reshape(function(stencil), (4, len(along)))
    found = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * h)
    rounding = 8 * np.finfo(float).eps * np.max(np.abs(values)) / h
    error = np.max(np.abs(found - along @ gradient))
    assert error <= bound * np.linalg.norm(gradient) + rounding
