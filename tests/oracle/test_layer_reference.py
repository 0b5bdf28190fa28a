"""The oracle of the layers itself: central differences, and each layer said another way."""

import math

import numpy as np
import pytest
from scipy import signal, special

import ribbit as rb
from tests.oracle.layer_reference import backward, network
from tests.support.layer_problems import (
    KINKED,
    SMOOTH,
    ZOO,
    check_slopes,
    conv_models,
    mask_factors,
    net,
    problem,
)

# steps of the differences: small ones where a kink might lie inside
MODELS = {name: (model, 2e-4) for name, model in {**SMOOTH, **conv_models()}.items()}
MODELS |= {name: (model, 1e-6) for name, model in KINKED.items()}


def alone(rng, layer, shape, num_rows=3):
    """A model of one layer, theta (P,), data (N, *shape) and the outputs of the oracle (N, K)."""
    model = rb.Model([layer, rb.Flatten()], input_shape=shape)
    theta = rng.normal(size=model.dim)
    x = rng.normal(size=(num_rows, *shape))
    return model.unravel(theta), x, network(model.table, theta, x.reshape(num_rows, -1))[0]


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_derivatives(name):
    model, h = MODELS[name]
    made = problem(model, num_rows=3)
    target, theta = made.reference, made.theta
    gradient = target.gradient(theta)[0]
    check_slopes(lambda many: np.sum(target.terms(many), axis=1), gradient, theta, h)


@pytest.mark.parametrize("name", MODELS)
def test_deltas_of_the_input_are_derivatives(name, rng):
    model, h = MODELS[name]
    made = problem(model, num_rows=2)
    if model.tokens:
        return
    x, weight = made.reference.x, rng.normal(size=(2, *model.output_shape))

    def total(many):
        return [
            np.sum(weight * network(model.table, made.theta, v.reshape(x.shape))[0]) for v in many
        ]

    values = network(model.table, made.theta, x)[1]
    delta = backward(model.table, made.theta, values, weight)[2]
    check_slopes(total, delta.reshape(-1), x.reshape(-1), h)


@pytest.mark.parametrize("name", MODELS)
def test_row_norms_are_the_norms_of_one_row_gradients(name):
    target = (made := problem(MODELS[name][0], likelihood=1, num_rows=3)).reference
    each = [np.linalg.norm(target.log_likelihood(made.theta, [n])[1]) / 3 for n in range(3)]
    assert target.log_likelihood(made.theta)[2] == pytest.approx(sum(each), rel=1e-12)


@pytest.mark.parametrize("name", [n for n in SMOOTH if "dropout" in n])
def test_gradients_under_masks_are_derivatives(name):
    made = problem(SMOOTH[name], num_rows=4)
    target, theta, rows = made.reference, made.theta, [2, 0, 2]
    factors = mask_factors(made.model, rows, seed=3, step=1)
    plain, gradient = target.gradient(theta, rows)[0], target.gradient(theta, rows, factors)[0]
    assert np.linalg.norm(gradient - plain) > 0.01 * np.linalg.norm(plain)
    check_slopes(
        lambda many: np.sum(target.terms(many, rows, factors), axis=1), gradient, theta, 2e-4
    )
    assert all(np.array_equal(f[0], f[2]) for f in factors.values())  # the same row twice


def test_masks_of_channels_drop_whole_channels():
    model = SMOOTH["spatial dropout"]
    (factors,) = mask_factors(model, np.arange(40), seed=1, step=0).values()
    places = factors.reshape(40, 6, 5)  # 3 x 2 places, 5 channels
    assert np.all(places == places[:, :1])
    assert 0.25 < np.mean(places == 0) < 0.55
    assert set(np.unique(factors)) == {0.0, 1 / 0.6}


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("stride", [1, 2, (3, 1), (1, 2)])
@pytest.mark.parametrize("size", [1, 2, (3, 2), (1, 4), 5])
def test_convolution_is_that_of_scipy(size, stride, padding, rng):
    layer = rb.Conv2D(3, size, stride=stride, padding=padding)
    views, x, y = alone(rng, layer, (7, 6, 2))
    w, b = views["0.weight"], views["0.bias"]  # (kh, kw, C, K), (K,)
    steps = np.broadcast_to(stride, 2)
    if padding == "same":
        sizes = zip((7, 6), w.shape[:2], steps, strict=True)
        cells = [max((-(-n // s) - 1) * s + k - n, 0) for n, k, s in sizes]
        x = np.pad(x, [(0, 0), *((c // 2, c - c // 2) for c in cells), (0, 0)])
    for n in range(3):
        for k in range(3):
            known = sum(signal.correlate2d(x[n, :, :, c], w[:, :, c, k], "valid") for c in (0, 1))
            known = known[:: steps[0], :: steps[1]] + b[k]
            found = y[n].reshape(*known.shape, 3)[:, :, k]
            np.testing.assert_allclose(found, known, rtol=1e-12, atol=1e-12)


def test_convolution_of_a_sequence_is_a_direct_sum(rng):
    views, x, y = alone(rng, rb.Conv1D(2, 3, stride=2, padding="same"), (6, 4))
    w, b = views["0.weight"], views["0.bias"]  # (3, C, K)
    # 3 places, (3 - 1) * 2 + 3 - 6 = 1 cell of padding, behind
    x = np.pad(x, [(0, 0), (0, 1), (0, 0)])
    for t in range(3):
        known = b + sum(x[:, 2 * t + r] @ w[r] for r in range(3))
        np.testing.assert_allclose(y.reshape(3, 3, 2)[:, t], known, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize(("size", "stride"), [(2, None), (3, 2), ((2, 3), (3, 1)), ((1, 4), 2)])
def test_pools_leave_the_padding_out(size, stride, padding, rng):
    kernel = np.broadcast_to(size, 2)
    steps = kernel if stride is None else np.broadcast_to(stride, 2)
    for layer, reduce in ((rb.MaxPool2D, np.nanmax), (rb.AvgPool2D, np.nanmean)):
        pool = layer(size, stride=stride, padding=padding)
        model = net((7, 5, 2), pool)
        x = rng.normal(size=(2, 7, 5, 2))
        y = network(model.table[:1], np.zeros(model.dim), x.reshape(2, -1))[0]
        if padding == "same":
            sizes = list(zip((7, 5), kernel, steps, strict=True))
            cells = [max((-(-n // s) - 1) * s + k - n, 0) for n, k, s in sizes]
            pads = [(0, 0), *((c // 2, c - c // 2) for c in cells), (0, 0)]
            x = np.pad(x, pads, constant_values=np.nan)
        windows = np.lib.stride_tricks.sliding_window_view(x, tuple(kernel), axis=(1, 2))
        known = reduce(windows[:, :: steps[0], :: steps[1]], axis=(-2, -1))
        np.testing.assert_allclose(y, known.reshape(2, -1), rtol=1e-14)


def test_ties_of_a_max_pool_go_to_the_first_cell_row_by_row():
    model = net((2, 3, 1), rb.MaxPool2D(2, stride=1))
    x = np.array([[0.0, 3.0, 1.0, 3.0, 2.0, 3.0]])  # second and third row of each window tie
    table, theta = model.table[:1], np.zeros(model.dim)
    y, values = network(table, theta, x)
    delta = backward(table, theta, values, np.array([[1.0, 10.0]]))[2]
    np.testing.assert_array_equal(y, [[3, 3]])
    np.testing.assert_array_equal(delta, [[0, 11, 0, 0, 0, 0]])
    x = np.full((1, 6), 2.0)
    delta = backward(table, theta, network(table, theta, x)[1], np.array([[1.0, 10.0]]))[2]
    np.testing.assert_array_equal(delta, [[1, 10, 0, 0, 0, 0]])


def test_global_average_is_the_mean(rng):
    model = rb.Model([rb.GlobalAvgPool2D(), rb.Dense(1)], input_shape=(3, 5, 2))
    x = rng.normal(size=(4, 3, 5, 2))
    y = network(model.table[:1], np.zeros(model.dim), x.reshape(4, -1))[0]
    np.testing.assert_allclose(y, x.mean(axis=(1, 2)), rtol=1e-13)


@pytest.mark.parametrize("threshold", [True, False])
@pytest.mark.parametrize("shape", [(3, 4, 2), (5, 3), (1, 1, 1)])
def test_filter_response_norm_is_its_formula(shape, threshold, rng):
    views, x, y = alone(rng, rb.FilterResponseNorm(threshold=threshold), shape)
    y = y.reshape(3, -1, shape[-1])
    for n in range(3):
        for c in range(shape[-1]):
            cells = x[n, ..., c].reshape(-1)
            nu = sum(v * v for v in cells) / len(cells)
            gamma, beta = views["0.gamma"][c], views["0.beta"][c]
            for v, found in zip(cells, y[n, :, c], strict=True):
                known = gamma * v / math.sqrt(nu + 1e-6) + beta
                known = max(known, views["0.tau"][c]) if threshold else known
                assert found == pytest.approx(known, rel=1e-13)


@pytest.mark.parametrize("shape", [(4,), (5, 3), (3, 2, 4), (1,)])
def test_layer_norm_is_its_formula(shape, rng):
    views, x, y = alone(rng, rb.LayerNorm(), shape)
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    known = views["0.gamma"] * (x - mean) / np.sqrt(variance + 1e-5) + views["0.beta"]
    np.testing.assert_allclose(y, known.reshape(3, -1), rtol=1e-12, atol=1e-12)


def test_residual_is_the_sum_of_its_paths(rng):
    main, shortcut = rb.Dense(3), rb.Dense(3, bias=False)
    views, x, y = alone(rng, rb.Residual([main, rb.Activation("tanh")], [shortcut]), (2,))
    w, b, v = views["0.main.0.weight"], views["0.main.0.bias"], views["0.shortcut.0.weight"]
    np.testing.assert_allclose(y, np.tanh(x @ w + b) + x @ v, rtol=1e-13)
    views, x, y = alone(rng, rb.Residual([rb.Dense(2)]), (2,))
    np.testing.assert_allclose(y, x @ views["0.main.0.weight"] + views["0.main.0.bias"] + x)


def test_embedding_is_a_product_with_one_hot_rows(rng):
    model = rb.Model([rb.Embedding(5, 3), rb.Flatten()], input_shape=(4,))
    theta, x = rng.normal(size=model.dim), rng.integers(0, 5, size=(6, 4))
    y = network(model.table, theta, x)[0]
    known = np.eye(5)[x] @ theta.reshape(5, 3)
    np.testing.assert_array_equal(y, known.reshape(6, -1))


def test_lstm_is_its_recurrence_written_out(rng):
    units, channels, length = 2, 3, 4
    views, x, y = alone(rng, rb.LSTM(units, sequence=True), (length, channels))
    w, u, b = (views[f"0.{name}"] for name in ("weight", "recurrent", "bias"))
    for n in range(3):
        c, h = [0.0] * units, [0.0] * units
        for t in range(length):
            z = [
                sum(x[n, t, a] * w[a, k] for a in range(channels))
                + sum(h[a] * u[a, k] for a in range(units))
                + b[k]
                for k in range(4 * units)
            ]
            for k in range(units):
                i, f, g, o = (z[gate * units + k] for gate in range(4))
                c[k] = special.expit(f) * c[k] + special.expit(i) * math.tanh(g)
                h[k] = special.expit(o) * math.tanh(c[k])
            np.testing.assert_allclose(y[n].reshape(length, units)[t], h, rtol=1e-12)
    last = rb.Model([rb.LSTM(units)], input_shape=(length, channels))
    theta = np.concatenate([a.reshape(-1) for a in (w, u, b)])
    found = network(last.table, theta, x.reshape(3, -1))[0]
    np.testing.assert_array_equal(found, y[:, -units:])


@pytest.mark.parametrize("name", ZOO)
def test_gradients_of_the_zoo_are_derivatives(name):
    made = problem(ZOO[name](), likelihood=3, num_rows=2)
    target, theta = made.reference, made.theta
    # 1e5 parameters move together: a short step, and without their prior, which would round
    gradient = target.log_likelihood(theta)[1]
    check_slopes(
        lambda many: [target.log_likelihood(t)[0] for t in many], gradient, theta, 1e-8, 1e-6
    )


def test_differences_notice_a_shifted_tap():
    # control: one tap of the kernel read one cell to the right
    made = problem(SMOOTH["two convolutions"], num_rows=3)
    target, theta = made.reference, made.theta
    gradient = target.gradient(theta)[0]
    view = made.model.unravel(gradient)["0.weight"]  # (3, 3, C, K)
    view[1, 1] = view[1, 2]
    with pytest.raises(AssertionError):
        check_slopes(lambda many: np.sum(target.terms(many), axis=1), gradient, theta, 2e-4)
