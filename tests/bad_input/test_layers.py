"""What layers, models of layers and the zoo refuse: ``[name] expected ..., got ...``."""

import pytest

import ribbit as rb
from ribbit.models.layers import from_description
from tests.support.layer_problems import BAD_ARGUMENTS, BAD_SHAPES, model


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
        (lambda: rb.lenet5(activation="swish"), "lenet5"),
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
