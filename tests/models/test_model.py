"""Layers, models and the flat vector."""

import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ribbit as rb
from ribbit.models.layers import ACTIVATIONS, COLUMNS
from tests.oracle import reference


def test_layer_table_of_an_mlp_is_that_of_the_oracle():
    for hidden in ((), (5,), (7, 3)):
        model = rb.mlp(4, hidden, 2, activation="gelu")
        table, dim = reference.mlp_table(4, hidden, 2, "gelu")
        np.testing.assert_array_equal(model.table, table)
        assert model.dim == dim
        assert (model.input_shape, model.output_shape) == ((4,), (2,))


def test_mlp_takes_an_integer_as_the_only_hidden_width():
    assert rb.mlp(4, 7, 2) == rb.mlp(4, np.int64(7), 2) == rb.mlp(4, (7,), 2)
    for hidden, text in (
        (0, "hidden >= 1"),
        (True, "hidden as an integer"),
        ((3, 0), r"hidden\[1"),
    ):
        with pytest.raises((TypeError, ValueError), match=rf"\[mlp\] expected {text}"):
            rb.mlp(4, hidden, 2)
    with pytest.raises(TypeError, match="as a list of widths or one integer, got float"):
        rb.mlp(4, 3.5, 2)


def test_docstrings_list_the_activations():
    for function in (rb.mlp, rb.Activation):
        words = set(re.findall(r"\w+", function.__doc__))
        assert words.issuperset(ACTIVATIONS)


def test_table_of_dropout_and_of_a_layer_without_bias():
    model = rb.Model(
        [rb.Dense(5, bias=False), rb.Dropout(0.25), rb.Activation("tanh"), rb.Dense(1)],
        input_shape=(3,),
    )
    expected = reference.padded(
        [
            [0, 3, 5, 0, -1, 0, 0, 0],
            [2, 5, 5, -1, -1, 0, 1, 1],
            [1, 5, 5, -1, -1, 2, 2, 2],
            [0, 5, 1, 15, 20, 0, 3, 3],
        ]
    )
    expected[1, COLUMNS.index("channels")] = 5
    np.testing.assert_array_equal(model.table, expected)
    np.testing.assert_array_equal(model.rates, [0, 0.25, 0, 0])
    assert [(p.name, p.shape, p.offset, p.fan_in, p.is_weight) for p in model.parameters] == [
        ("0.weight", (3, 5), 0, 3, True),
        ("3.weight", (5, 1), 15, 5, True),
        ("3.bias", (1,), 20, 1, False),
    ]
    assert not model.table.flags.writeable


def test_models_compare_by_layers_and_shape():
    assert rb.mlp(3, (4,), 1) == rb.mlp(3, (4,), 1)
    assert rb.mlp(3, (4,), 1) != rb.mlp(3, (4,), 1, activation="tanh")
    assert len({rb.mlp(3, (4,), 1), rb.mlp(3, (4,), 1)}) == 1


def test_description_survives_json():
    model = rb.Model(
        [rb.Dense(5, bias=False), rb.Dropout(0.25), rb.Activation("silu"), rb.Dense(1)],
        input_shape=(3,),
    )
    assert rb.Model.from_description(json.loads(json.dumps(model.describe()))) == model


@given(
    hidden=st.lists(st.integers(1, 5), max_size=3),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    lead=st.lists(st.integers(0, 3), max_size=2),
)
def test_ravel_inverts_unravel(hidden, sizes, lead):
    model = rb.mlp(sizes[0], tuple(hidden), sizes[1])
    theta = np.arange(math.prod(lead) * model.dim, dtype=np.float32).reshape(*lead, model.dim)
    views = model.unravel(theta)
    assert list(views) == [p.name for p in model.parameters]
    assert all(views[p.name].shape == (*lead, *p.shape) for p in model.parameters)
    again = model.ravel(views)
    assert again.dtype == theta.dtype
    np.testing.assert_array_equal(again, theta)


@pytest.mark.parametrize("make", [lambda t: t, lambda t: t.T.copy().T, lambda t: t[:, ::-1]])
def test_unravel_gives_views_whatever_the_strides(make):
    model = rb.mlp(3, (4,), 2)
    theta = make(np.zeros((2, model.dim)))
    for i, view in enumerate(model.unravel(theta).values()):
        assert np.shares_memory(view, theta)
        view[...] = i
    np.testing.assert_array_equal(theta[1], [0] * 12 + [1] * 4 + [2] * 8 + [3] * 2)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda v: v.pop("0.bias"), ValueError, r"\['0.bias'\] missing"),
        (lambda v: v.update(extra=v["0.bias"]), ValueError, r"\['extra'\] unknown"),
        (lambda v: v.update({"0.bias": np.zeros(5)}), ValueError, r"'0.bias' of shape \(4\)"),
        (lambda v: v.update({"2.bias": np.zeros((3, 2))}), ValueError, "'2.bias'"),
        (lambda v: v.update({"2.bias": np.zeros(2, np.float32)}), TypeError, "'2.bias'"),
        (lambda v: v.update({"2.bias": np.zeros(2, int)}), TypeError, "'2.bias'"),
        (lambda v: v.update({"2.bias": ["a", "b"]}), TypeError, "'2.bias'"),
        (lambda v: v.update({3: np.zeros(2)}), TypeError, "dict of strings"),
    ],
)
def test_ravel_refuses(change, error, text):
    model = rb.mlp(3, (4,), 2)
    views = dict(model.unravel(np.zeros(model.dim)))
    change(views)
    with pytest.raises(error, match=text):
        model.ravel(views)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_init_is_decided_by_seed_and_chain(dtype):
    model = rb.mlp(3, (4,), 2)
    start = model.init(7, 5, dtype=dtype)
    assert start.shape == (5, model.dim)
    assert start.dtype == dtype
    np.testing.assert_array_equal(model.init(seed=7, dtype=dtype), start[0])
    np.testing.assert_array_equal(model.init(7, [3, 1], dtype=dtype), start[[3, 1]])
    assert not np.any(model.init(8, 5, dtype=dtype)[:, 0] == start[:, 0])


def test_init_is_scaled_normals_by_address():
    model = rb.mlp(3, (4,), 2)
    z = reference.normal(model.dim, seed=9, step=0, chain=2, purpose=reference.INIT)
    scale = np.repeat([np.sqrt(2 / 3), 0, np.sqrt(2 / 4), 0], [12, 4, 8, 2])
    he, small = (model.init(9, [2], scheme=s, dtype=np.float64)[0] for s in ("he", "small"))
    np.testing.assert_allclose(he, scale * z, rtol=1e-12)
    np.testing.assert_allclose(small, 0.005 * z, rtol=1e-12)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 2e-5)])
def test_apply_is_the_oracle_network(name, dtype, tolerance, rng):
    model = rb.mlp(3, (17, 5), 2, activation=name)
    theta = model.init(1, 4, dtype=dtype)
    x = rng.normal(size=(70, 3)).astype(dtype)
    out = model.apply(theta, x)
    assert out.shape == (4, 70, 2)
    assert out.dtype == dtype
    for t, f in zip(theta, out, strict=True):
        expected = reference.network(model.table, t.astype(float), x)[0]
        np.testing.assert_allclose(f, expected, atol=tolerance * np.abs(expected).max())
    np.testing.assert_array_equal(model.apply(theta[1], x), out[1])


def test_apply_takes_any_real_x_and_leaves_dropout_off(rng):
    plain = rb.mlp(3, (5,), 1)
    dropped = rb.Model([*plain.layers[:2], rb.Dropout(0.9), plain.layers[2]], input_shape=(3,))
    theta = plain.init(0, dtype=np.float64)
    x = rng.integers(-3, 4, size=(6, 3))
    expected = plain.apply(theta, x.astype(float))
    for same in (x, x.tolist(), x.astype(">f4"), np.asfortranarray(x), np.repeat(x, 2, 0)[::2]):
        np.testing.assert_array_equal(plain.apply(theta, same), expected)
    np.testing.assert_array_equal(dropped.apply(theta, x), expected)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: rb.Model([], input_shape=(3,)), ValueError, "layer with parameters"),
        (lambda: rb.Model([rb.Activation("relu")], input_shape=(3,)), ValueError, "parameters"),
        (lambda: rb.Model([rb.Dense], input_shape=(3,)), TypeError, "layer 0"),
        (lambda: rb.Model(rb.Dense(3), input_shape=(3,)), TypeError, "list of layers"),
        (lambda: rb.Model([rb.Dense(3)], input_shape=3), TypeError, "input_shape"),
        (lambda: rb.Model([rb.Dense(3)], input_shape=(0,)), ValueError, r"input_shape\[0\] >= 1"),
        (lambda: rb.Model([rb.Dense(3)], input_shape=(2, 2)), ValueError, "flat input"),
        (lambda: rb.Dense(0), ValueError, "units >= 1, got int 0"),
        (lambda: rb.Dense(2.0), TypeError, "units as an integer"),
        (lambda: rb.Dense(True), TypeError, "units as an integer, got True"),
        (lambda: rb.Dense(2, bias=1), TypeError, "bias as a bool"),
        (lambda: rb.Activation("swish"), ValueError, "'silu'"),
        (lambda: rb.Dropout(1.0), ValueError, r"rate in \[0, 1\)"),
        (lambda: rb.Dropout("0.1"), TypeError, "rate as a number"),
        (lambda: rb.mlp(3, "4", 1), TypeError, "hidden as a list"),
        (lambda: rb.mlp(3, (4, 0), 1), ValueError, r"hidden\[1\]"),
        (lambda: rb.mlp(2**31 - 1, (2**31 - 1,), 1), ValueError, "at most"),
        (lambda: rb.mlp(3, (4,), 1).init(seed=-1), ValueError, "seed >= 0"),
        (lambda: rb.mlp(3, (4,), 1).init(scheme="xavier"), ValueError, "'he' or 'small'"),
        (lambda: rb.mlp(3, (4,), 1).init(chains=0), ValueError, "chains >= 1"),
        (lambda: rb.mlp(3, (4,), 1).init(dtype=int), TypeError, "float32 or float64"),
        (lambda: rb.mlp(3, (4,), 1).init(dtype=">f4"), TypeError, "float32 or float64"),
        (lambda: rb.Model.from_description({"layers": []}), ValueError, "input_shape"),
    ],
)
def test_refuses(make, error, text):
    with pytest.raises(error, match=rf"^\[.+\] expected .*{text}"):
        make()


def test_place_and_value_of_bad_data_are_named():
    model = rb.mlp(2, (), 1)
    theta, x = model.init(), np.ones((5, 2))
    x[3, 1] = np.nan
    with pytest.raises(ValueError, match=r"x\[3, 1\] is nan"):
        model.apply(theta, x)
    x[3, 1] = 1e300
    with pytest.raises(ValueError, match=r"finite float32 .* x\[3, 1\] is 1e\+300"):
        model.apply(theta, x)
    with pytest.raises(
        ValueError, match=r"input_shape \(2,\), got float64 array of shape \(5, 3\)"
    ):
        model.apply(theta, np.ones((5, 3)))


def test_a_layer_object_at_two_places_is_refused():
    # it would be two layers of their own, where PyTorch shares the weights
    dense = rb.Dense(3)
    text = r"\[Model\] expected each layer with parameters once, got one Dense object as layers "
    with pytest.raises(ValueError, match=text + "0 and 2"):
        rb.Model([dense, rb.Activation("tanh"), dense], input_shape=(3,))
    with pytest.raises(ValueError, match=text + r"0 and 1\.main\.1"):
        rb.Model([dense, rb.Residual([rb.Activation("tanh"), dense])], input_shape=(3,))
    block = rb.Residual([rb.Dense(3)])
    with pytest.raises(ValueError, match="Residual object as layers 0 and 1"):
        rb.Model([block, block], input_shape=(3,))
    # what has no parameters may stand anywhere, and equal layers are not one
    tanh = rb.Activation("tanh")
    model = rb.Model([rb.Dense(3), tanh, rb.Dense(3), tanh, rb.Dense(1)], input_shape=(3,))
    assert rb.Model(model.layers, input_shape=(3,)) == model
