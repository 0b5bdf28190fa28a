"""What layers, models of layers and the zoo refuse: ``[name] expected ..., got ...``."""

import pytest

import ribbit as rb
from ribbit.models.layers import from_description


def model(*layers, shape):
    return rb.Model(layers, input_shape=shape)


BAD_ARGUMENTS = [
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
    (lambda: rb.Conv2D(2, 3, padding=1), TypeError, "Conv2D", "padding as"),
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
BAD_SHAPES = [
    (lambda: model(rb.Conv2D(2, 3), shape=(5,)), "layer 0", "an image"),
    (lambda: model(rb.Conv2D(2, 3), shape=SEQUENCE), "layer 0", "an image"),
    (lambda: model(rb.Conv2D(2, 6), shape=IMAGE), "layer 0", r"as the window .* got \(4, 5\)"),
    (lambda: model(rb.Conv1D(2, 3), shape=IMAGE), "layer 0", "a sequence"),
    (lambda: model(rb.Conv1D(2, 7), shape=SEQUENCE), "layer 0", "as the window"),
    (lambda: model(rb.MaxPool2D(2), shape=SEQUENCE), "layer 0", "an image"),
    (lambda: model(rb.AvgPool2D((5, 1)), shape=IMAGE), "layer 0", "as the window"),
    (lambda: model(rb.GlobalAvgPool2D(), shape=SEQUENCE), "layer 0", "an image"),
    (lambda: model(rb.MaxPool1D(2), shape=IMAGE), "layer 0", "a sequence"),
    (lambda: model(rb.FilterResponseNorm(), shape=(3,)), "layer 0", "an image"),
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


@pytest.mark.parametrize("bad", BAD_ARGUMENTS)
def test_bad_arguments(bad):
    make, error, name, text = bad
    with pytest.raises(error, match=rf"^\[{name}\] expected .*{text}.*, got "):
        make()


@pytest.mark.parametrize("bad", BAD_SHAPES)
def test_shapes_that_do_not_fit(bad):
    make, place, text = bad
    with pytest.raises(ValueError, match=rf"^\[Model, {place}\] expected .*{text}"):
        make()


def test_a_model_needs_a_flat_output():
    with pytest.raises(ValueError, match=r"^\[Model\] expected a flat output, got \(3, 4, 2\)"):
        model(rb.Conv2D(2, 2), shape=(4, 5, 1))


def test_tokens_are_integers_below_the_vocabulary():
    net = model(rb.Embedding(3, 2), rb.Flatten(), rb.Dense(1), shape=(2,))
    for x in ([[0, 3]], [[-1, 0]], [[0.5, 1]]):
        with pytest.raises(ValueError, match=r"^\[Model.apply\] expected integer tokens"):
            net.apply(net.init(), x)
    # of two embeddings of one input the smaller vocabulary counts
    for sizes in ((3, 5), (5, 3)):
        first, second = (rb.Embedding(n, 2) for n in sizes)
        both = model(rb.Residual([first], [second]), rb.Flatten(), rb.Dense(1), shape=(4,))
        assert both.tokens == 3


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: rb.lenet5((14, 14, 1)), "Model, layer 8"),
        (lambda: rb.lenet5((15, 15)), "Model, layer 0"),
        (lambda: rb.lenet5(num_classes=0), "lenet5"),
        (lambda: rb.lenet5(activation="swish"), "Activation"),
        (lambda: rb.resnet20_frn(0), "resnet20_frn"),
        (lambda: rb.resnet20_frn(input_shape=(8, 8)), "Model, layer 0"),
        (lambda: rb.cnn_lstm(length=7), "cnn_lstm"),
        (lambda: rb.cnn_lstm(0), "Embedding"),
        (lambda: rb.cnn_lstm(num_classes=2.0), "cnn_lstm"),
    ],
)
def test_the_zoo_refuses(make, name):
    with pytest.raises((TypeError, ValueError), match=rf"^\[{name}\] expected .*, got "):
        make()
    assert rb.lenet5((15, 15, 1)).dim > 0
    assert rb.cnn_lstm(length=8).dim > 0


@pytest.mark.parametrize(
    ("description", "error"),
    [
        ({"layer": "Conv3D"}, ValueError),
        ({"layer": "Conv2D"}, TypeError),
        ({"layer": "LSTM", "units": 3, "gates": 4}, TypeError),
        ({"layer": "Residual", "main": [{"layer": "Nothing"}]}, ValueError),
        ({"layer": "Residual", "main": []}, ValueError),
        ([], TypeError),
    ],
)
def test_bad_descriptions(description, error):
    with pytest.raises(error, match=r"^\[.+\] expected .*, got "):
        from_description(description)
