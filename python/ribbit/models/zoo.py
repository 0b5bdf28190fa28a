"""Ready-made architectures."""

from __future__ import annotations

from collections.abc import Sequence

from ribbit._arrays import checks
from ribbit._arrays.keywords import explain
from ribbit._backends.codes import ACTIVATIONS
from ribbit.models.layers import (
    LSTM,
    Activation,
    Conv1D,
    Conv2D,
    Dense,
    Embedding,
    FilterResponseNorm,
    Flatten,
    GlobalAvgPool2D,
    Layer,
    MaxPool1D,
    MaxPool2D,
    Residual,
)
from ribbit.models.layers._table import MAX_SIZE
from ribbit.models.model import Model

__all__ = ["cnn_lstm", "lenet5", "mlp", "resnet20_frn"]


def mlp(
    in_features: int,
    hidden: int | Sequence[int],
    out_features: int,
    *,
    activation: str = "relu",
) -> Model:
    """Return a multilayer perceptron: dense layers with an activation between them.

    Parameters
    ----------
    in_features : int
        Width of a data row.
    hidden : int or sequence of int
        Width of the hidden layer, or widths of several; ``()`` gives a linear model.
    out_features : int
        Number of outputs K.
    activation : str, default "relu"
        identity, relu, tanh, silu, sigmoid, gelu, softplus, leaky_relu or elu, after each hidden
        layer.

    Returns
    -------
    Model
        With parameters ``"0.weight"``, ``"0.bias"``, ``"2.weight"``, ... The numbers count
        activations as layers, too.

    Raises
    ------
    TypeError, ValueError
        If a width is not a positive integer or the activation is unknown.

    Examples
    --------
    >>> rb.mlp(8, (50, 50), 1, activation="tanh").dim
    3051
    """
    width = checks.integer("mlp", "in_features", in_features, minimum=1, maximum=MAX_SIZE)
    outputs = checks.integer("mlp", "out_features", out_features, minimum=1, maximum=MAX_SIZE)
    between = _activation("mlp", activation)
    layers: list[Layer] = []
    for units in checks.widths("mlp", hidden):
        layers += [Dense(units), between]
    return Model((*layers, Dense(outputs)), input_shape=(width,))


def lenet5(
    input_shape: tuple[int, int, int] = (28, 28, 1),
    num_classes: int = 10,
    *,
    activation: str = "relu",
) -> Model:
    """Return LeNet-5 for images, in the form of Izmailov et al. (2021).

    Three times a 5x5 'same' convolution (6, 16, 120 filters), an activation and a 3x3 max pool of
    stride 2; then 84 dense units, an activation, and the outputs.

    Parameters
    ----------
    input_shape : (int, int, int), default (28, 28, 1)
        Height, width and channels, at least 15 by 15.
    num_classes : int, default 10
        Number of outputs K.
    activation : str, default "relu"
        As for `mlp`.

    Returns
    -------
    Model
        With 91,946 parameters for (28, 28, 1) and 10 classes.

    Raises
    ------
    TypeError, ValueError
        If a size is not a positive integer or too small, or the activation is unknown.

    References
    ----------
    LeCun et al. (1998), "Gradient-based learning applied to document recognition", section II.B;
    Izmailov et al. (2021), "What are Bayesian neural network posteriors really like?".

    Examples
    --------
    >>> model = rb.lenet5()
    >>> model.input_shape, model.output_shape, model.dim
    ((28, 28, 1), (10,), 91946)
    """
    outputs = checks.integer("lenet5", "num_classes", num_classes, minimum=1, maximum=MAX_SIZE)
    between = _activation("lenet5", activation)
    layers: list[Layer] = []
    for filters in (6, 16, 120):
        layers += [Conv2D(filters, 5, padding="same"), between, MaxPool2D(3, stride=2)]
    layers += [Flatten(), Dense(84), between, Dense(outputs)]
    return Model(tuple(layers), input_shape=input_shape)


def resnet20_frn(
    num_classes: int = 10,
    *,
    input_shape: tuple[int, int, int] = (32, 32, 3),
    activation: str = "silu",
) -> Model:
    """Return ResNet-20 with filter response normalisation, for images.

    A 3x3 convolution with 16 filters, normalisation and activation; then three stages of three
    residual blocks with 16, 32 and 64 filters. The first block of stages two and three has stride
    2, with a 1x1 convolution and normalisation as shortcut. At the end the mean over the image and
    a dense layer.

    Parameters
    ----------
    num_classes : int, default 10
        Number of outputs K.
    input_shape : (int, int, int), default (32, 32, 3)
        Height, width and channels.
    activation : str, default "silu"
        As for `mlp`.

    Returns
    -------
    Model
        With 274,042 parameters for 10 classes and 3 channels.

    Raises
    ------
    TypeError, ValueError
        If a size is not a positive integer, or the activation is unknown.

    References
    ----------
    He et al. (2016), "Deep residual learning for image recognition", section 4.2; Singh and
    Krishnan (2020); Izmailov et al. (2021).

    Examples
    --------
    >>> model = rb.resnet20_frn()
    >>> model.input_shape, model.output_shape, model.dim
    ((32, 32, 3), (10,), 274042)
    """
    outputs = checks.integer(
        "resnet20_frn", "num_classes", num_classes, minimum=1, maximum=MAX_SIZE
    )
    between = _activation("resnet20_frn", activation)

    def unit(filters: int, kernel: int = 3, stride: int = 1) -> list[Layer]:
        return [Conv2D(filters, kernel, stride=stride, padding="same"), FilterResponseNorm()]

    layers: list[Layer] = [*unit(16), between]
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(3):
            stride = 2 if stage > 0 and block == 0 else 1
            main = (*unit(filters, stride=stride), between, *unit(filters))
            shortcut = tuple(unit(filters, 1, stride)) if stride == 2 else ()
            layers += [Residual(main, shortcut), between]
    layers += [GlobalAvgPool2D(), Dense(outputs)]
    return Model(tuple(layers), input_shape=input_shape)


def cnn_lstm(
    vocab_size: int = 20_000,
    length: int = 100,
    num_classes: int = 2,
    *,
    activation: str = "silu",
) -> Model:
    """Return the CNN-LSTM of Izmailov et al. (2021), for sequences of tokens.

    An embedding of 128 units, a convolution with 64 filters of length 5, an activation, a max pool
    of 4, an LSTM of 128 units, and a dense layer on its last state.

    Parameters
    ----------
    vocab_size : int, default 20000
        Number of tokens.
    length : int, default 100
        Tokens per sequence, at least 8.
    num_classes : int, default 2
        Number of outputs K.
    activation : str, default "silu"
        As for `mlp`.

    Returns
    -------
    Model
        With 2,700,098 parameters for 20,000 tokens and 2 classes.

    Raises
    ------
    TypeError, ValueError
        If a size is not a positive integer or too small, or the activation is unknown.

    References
    ----------
    Izmailov et al. (2021), "What are Bayesian neural network posteriors really like?".

    Examples
    --------
    >>> model = rb.cnn_lstm(1000, 40)
    >>> model.input_shape, model.output_shape, model.dim
    ((40,), (2,), 268098)
    """
    outputs = checks.integer("cnn_lstm", "num_classes", num_classes, minimum=1, maximum=MAX_SIZE)
    tokens = checks.integer("cnn_lstm", "length", length, minimum=8, maximum=MAX_SIZE)
    layers = (
        Embedding(vocab_size, 128),
        Conv1D(64, 5),
        _activation("cnn_lstm", activation),
        MaxPool1D(4),
        LSTM(128),
        Dense(outputs),
    )
    return Model(layers, input_shape=(tokens,))


def _activation(function: str, activation: str) -> Activation:
    """Return the layer; the error knows the argument's name."""
    return Activation(checks.choice(function, "activation", activation, ACTIVATIONS))


explain(globals())
