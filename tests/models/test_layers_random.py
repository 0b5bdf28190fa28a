"""The native layers against the oracle on random small networks."""

import copy
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ribbit as rb
from tests.support.layer_check import check_gradient, check_outputs
from tests.support.layer_problems import problem

ACTIVATIONS = [
    *("relu", "tanh", "silu", "sigmoid", "gelu", "softplus", "identity"),
    *("leaky_relu", "elu"),
]


def windowed(size, kernel, stride, padding):
    return -(-size // stride) if padding == "same" else (size - kernel) // stride + 1


@st.composite
def windows(draw, sizes):
    """Kernel, stride and padding that fit an image or sequence, and the sizes they give."""
    padding = draw(st.sampled_from(["same", "valid"]))
    most = [5 if padding == "same" else min(5, n) for n in sizes]
    kernel = tuple(draw(st.integers(1, k)) for k in most)
    stride = tuple(draw(st.integers(1, 3)) for _ in sizes)
    found = zip(sizes, kernel, stride, strict=True)
    return kernel, stride, padding, tuple(windowed(*entry, padding) for entry in found)


@st.composite
def blocks(draw, shape, deep=True):
    """A layer for a shape, and the shape that it gives.

    A norm that leaves nothing but signs (of two channels, of one place) is not drawn: its
    derivative, the difference of equal numbers, has no right digit in float32.
    """
    names = ["activation", "dropout", "flatten"]
    if shape[-1] != 2:
        names += ["layer norm"]
    if len(shape) == 1:
        names += ["dense", "dense"]
    else:
        names += ["conv", "conv", "max", "spatial"]
        names += ["frn"] if math.prod(shape[:-1]) > 1 else []
        names += ["average", "global"] if len(shape) == 3 else ["lstm", "states"]
    if deep:
        names += ["residual"]
    name = draw(st.sampled_from(names))
    units = draw(st.integers(1, 5))
    if name == "residual":
        main, end = draw(stacks(shape, 1, deep=False))
        computes = any(not isinstance(layer, rb.Flatten) for layer in main)
        if end == shape and computes:
            return rb.Residual(main), shape
        if not computes or len(end) not in (1, 3) or len(shape) != len(end):
            return rb.Activation("tanh"), shape
        if len(end) == 1:
            return rb.Residual(main, [rb.Dense(end[0])]), end
        return rb.Residual(main, copy.deepcopy(main)), end  # parameters of their own
    if name in ("conv", "max", "average"):
        kernel, stride, padding, sizes = draw(windows(shape[:-1]))
        flat = len(shape) == 2
        kernel, stride = (kernel[0], stride[0]) if flat else (kernel, stride)
        if name == "conv":
            options = {"stride": stride, "padding": padding, "bias": draw(st.booleans())}
            return (rb.Conv1D if flat else rb.Conv2D)(units, kernel, **options), (*sizes, units)
        cls = rb.AvgPool2D if name == "average" else rb.MaxPool1D if flat else rb.MaxPool2D
        return cls(kernel, stride=stride, padding=padding), (*sizes, shape[-1])
    return {
        "activation": lambda: (rb.Activation(draw(st.sampled_from(ACTIVATIONS))), shape),
        "layer norm": lambda: (rb.LayerNorm(), shape),
        "dropout": lambda: (rb.Dropout(0.3), shape),
        "spatial": lambda: (rb.Dropout(0.3, spatial=True), shape),
        "flatten": lambda: (rb.Flatten(), (math.prod(shape),)),
        "dense": lambda: (rb.Dense(units), (units,)),
        "global": lambda: (rb.GlobalAvgPool2D(), shape[-1:]),
        "frn": lambda: (rb.FilterResponseNorm(threshold=draw(st.booleans())), shape),
        "lstm": lambda: (rb.LSTM(units), (units,)),
        "states": lambda: (rb.LSTM(units, sequence=True), (shape[0], units)),
    }[name]()


@st.composite
def stacks(draw, shape, least=0, deep=True):
    """At most four layers, and the shape that they give."""
    found = []
    for _ in range(draw(st.integers(least, 4))):
        layer, shape = draw(blocks(shape, deep))
        found.append(layer)
    return found, shape


@st.composite
def models(draw):
    rank = draw(st.sampled_from(["row", "sequence", "image", "image", "tokens"]))
    size = st.integers(1, 7)
    first = []
    if rank == "tokens":
        given = (draw(size),)
        first, shape = [rb.Embedding(draw(size), 3)], (*given, 3)
    else:
        length = {"row": 1, "sequence": 2, "image": 3}[rank]
        given = shape = tuple(draw(size) for _ in range(length))
    layers, _ = draw(stacks(shape))
    return rb.Model([*first, *layers, rb.Flatten(), rb.Dense(2)], input_shape=given)


cases = {
    "model": models(),
    "likelihood": st.sampled_from([0, 1, 3]),
    "num_rows": st.sampled_from([1, 2, 5, 31, 33]),
    "chains": st.sampled_from([None, 1, 2]),
    "seed": st.integers(0, 3),
}
quick = settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
slow = settings(quick, max_examples=2000)


def compare(made, data):
    dtype = data.draw(st.sampled_from([np.float64, np.float32]))
    num_rows = len(made.reference.x)
    rows = data.draw(st.none() | st.lists(st.integers(0, num_rows - 1), min_size=1, max_size=40))
    check_outputs(made, dtype)
    check_gradient(made, dtype, None if rows is None else np.array(rows))


@quick
@given(st.fixed_dictionaries(cases), st.data())
def test_random_networks(case, data):
    compare(problem(**case), data)


@pytest.mark.slow
@slow
@given(st.fixed_dictionaries(cases), st.data())
def test_many_random_networks(case, data):
    compare(problem(**case), data)


@quick
@given(models())
def test_shapes_are_those_of_the_windows(model):
    # control of the strategy: it makes networks of every layer, whose shapes are as said
    assert model.output_shape == (2,)
    assert model.from_description(model.describe()) == model
