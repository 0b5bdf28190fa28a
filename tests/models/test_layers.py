"""The native layers against the oracle: outputs, values, gradients. Bounds: ``layer_check.py``."""

import math

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.threads import num_threads
from tests.oracle.reference import LIKELIHOODS, learns_noise
from tests.support.layer_check import GRADIENT, check_gradient, check_outputs, rounded
from tests.support.layer_problems import (
    KINKED,
    RELU,
    ROWS,
    SILU,
    SMOOTH,
    TANH,
    ZOO,
    check_slopes,
    conv_models,
    mask_factors,
    net,
    problem,
)

CONVS = conv_models()
NAMED = {**SMOOTH, **KINKED}
DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])


def rows_of(name, models):
    """Another number of rows for each network."""
    return ROWS[list(models).index(name) % len(ROWS)]


@DTYPES
@pytest.mark.parametrize("name", NAMED)
def test_every_layer(name, dtype):
    made = problem(NAMED[name], num_rows=rows_of(name, NAMED), chains=2)
    check_outputs(made, dtype)
    check_gradient(made, dtype)


@DTYPES
@pytest.mark.parametrize("name", CONVS)
def test_convolutions_of_odd_sizes(name, dtype):
    made = problem(CONVS[name], num_rows=rows_of(name, CONVS))
    check_outputs(made, dtype)
    check_gradient(made, dtype)


@DTYPES
@pytest.mark.parametrize("num_rows", ROWS)
def test_odd_numbers_of_rows(num_rows, dtype):
    for name in ("two convolutions", "conv shortcut", "lstm after lstm", "cnn and lstm", "relu"):
        check_gradient(problem(NAMED[name], num_rows=num_rows, seed=1), dtype)


@DTYPES
@pytest.mark.parametrize("filters", [1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 65])
def test_odd_numbers_of_filters(filters, dtype):
    image = (4, 5, filters)
    model = net(image, rb.Conv2D(filters, 3, padding="same"), TANH, rb.Conv2D(3, 2), SILU)
    check_gradient(problem(model, num_rows=33), dtype)
    model = net((5, filters), rb.LayerNorm(), rb.LSTM(filters), outputs=1)
    check_gradient(problem(model, num_rows=5), dtype)
    model = net(image, rb.FilterResponseNorm(), rb.MaxPool2D(2), SILU, rb.AvgPool2D((1, 2)))
    check_gradient(problem(model, num_rows=5), dtype)


@DTYPES
def test_images_large_enough_for_several_tiles(dtype):
    model = net((23, 29, 3), rb.Conv2D(5, 5, padding="same"), RELU, rb.MaxPool2D(3, stride=2))
    made = problem(model, num_rows=3)
    check_outputs(made, dtype)
    check_gradient(made, dtype)


@DTYPES
@pytest.mark.parametrize(
    ("image", "layer"),
    [
        ((71, 64), rb.Conv1D(64, 5)),  # blocks of 24 float32 columns, of 12 float64 ones
        ((90, 50), rb.Conv1D(33, 4, stride=2, padding="same")),
        ((2, 60, 80), rb.Conv2D(17, (2, 3), padding="same")),
        ((61, 128), rb.Conv1D(96, 3, groups=2, dilation=4)),
    ],
)
def test_rows_of_sites_that_no_cache_holds_are_cut(image, layer, dtype):
    made = problem(net(image, layer, TANH), num_rows=3)
    check_gradient(made, dtype)


@pytest.mark.parametrize("name", [*NAMED, *CONVS])
def test_gradients_are_derivatives_of_the_value(name):
    model = {**NAMED, **CONVS}[name]
    made = problem(model, num_rows=7)
    native, theta = made.native(), made.theta
    gradient = native.value_and_grad(theta)[1]
    # a small step where a kink might lie inside a large one
    step = 1e-6 if name in KINKED else 2e-4
    check_slopes(lambda many: native.value_and_grad(many)[0], gradient, theta, step)


@DTYPES
@pytest.mark.parametrize("likelihood", range(len(LIKELIHOODS)), ids=LIKELIHOODS)
def test_every_likelihood(likelihood, dtype):
    model = net((5, 4, 2), rb.Conv2D(3, 3, padding="same"), TANH, rb.MaxPool2D(2), outputs=4)
    made = problem(
        model,
        likelihood=likelihood,
        num_rows=37,
        chains=2,
        temperature=0.8,
        likelihood_temperature=1.3,
    )
    check_gradient(made, dtype)
    assert made.native(dtype).dim == model.dim + 4 * learns_noise(likelihood)


@DTYPES
@pytest.mark.parametrize(
    "rows",
    [[0], [69], [3, 3, 3], [5, 4, 3, 2, 1, 0], [*range(32), 7], [*range(70), 0, 69]],
    ids=["first", "last", "repeated", "backwards", "33", "72"],
)
def test_minibatches(rows, dtype):
    for name in ("nested", "cnn and lstm"):
        made = problem(NAMED[name], num_rows=70, chains=3, temperature=0.5)
        check_gradient(made, dtype, np.array(rows))


@DTYPES
@pytest.mark.parametrize("name", [n for n in SMOOTH if "dropout" in n])
def test_masks_by_their_addresses(name, dtype):
    made = problem(SMOOTH[name], num_rows=45)
    where = {"seed": 2**40 + 7, "step": 2**33 + 3}
    masked = made.native(dtype).masked()
    for rows in (None, [44, 0, 7, 7], list(range(33))):
        factors = mask_factors(made.model, np.arange(45) if rows is None else rows, **where)
        batch = None if rows is None else np.array(rows)
        found = masked.masked_value_and_grad(made.theta.astype(dtype), batch, **where)
        check_gradient(made, dtype, batch, factors=factors, found=found)


def test_masks_of_each_chain():
    made = problem(SMOOTH["spatial dropout"], num_rows=5, chains=3)
    native = made.native()
    value, gradient = native.masked().masked_value_and_grad(made.theta, seed=4, step=9)
    for c in range(3):
        factors = mask_factors(made.model, np.arange(5), seed=4, step=9, sample=c)
        known_value, known = made.reference.value_and_grad(made.theta[c], None, factors)
        assert value[c] == pytest.approx(known_value[0], rel=1e-12)
        np.testing.assert_allclose(gradient[c], known[0], rtol=1e-10, atol=1e-10)
    assert not np.allclose(value, native.value_and_grad(made.theta)[0], rtol=1e-6)


@pytest.mark.parametrize("name", ["dropout", "spatial dropout", "dropout in a residual"])
def test_gradients_under_masks_are_derivatives(name):
    made = problem(SMOOTH[name], num_rows=7)
    masked, theta = made.native().masked(), made.theta
    gradient = masked.masked_value_and_grad(theta, seed=1, step=2)[1]

    def values(many):  # one by one: chain 0 has the masks of sample 0
        return [masked.masked_value_and_grad(t, seed=1, step=2)[0] for t in many]

    check_slopes(values, gradient, theta, 2e-4)


@DTYPES
def test_ties_of_a_max_pool(dtype):
    # two channels (1, 0) and (0, 1) weighed alike: all sums tie, their derivatives differ
    model = net((2, 3, 2), rb.Conv2D(1, 1), rb.MaxPool2D(2, stride=1), outputs=1)
    made = problem(model, num_rows=33)
    x = np.random.default_rng(3).integers(0, 2, size=(33, 6))
    made.reference.x[...] = np.stack([x, 1 - x], axis=2).reshape(33, 12)
    made.theta[:2] = 1.0
    # not by check_gradient, which forgives what half a unit in the last place breaks: ties
    target, theta = rounded(made, dtype)
    found = made.native(dtype).value_and_grad(made.theta.astype(dtype))[1]
    error = np.linalg.norm(found - target.gradient(theta)[0])
    assert error <= GRADIENT[np.dtype(dtype)] * target.gradient_scale(theta)[0]


@DTYPES
@pytest.mark.parametrize("name", ZOO)
def test_the_zoo(name, dtype):
    made = problem(ZOO[name](), likelihood=3, num_rows=3)
    check_outputs(made, dtype)
    check_gradient(made, dtype)
    check_gradient(made, dtype, np.array([2, 0]))


@DTYPES
@pytest.mark.parametrize("name", ["relu", "conv shortcut", "spatial dropout", "cnn and lstm"])
def test_threads_and_company_change_no_bit(name, dtype):
    made = problem(NAMED[name], likelihood=1, num_rows=200, chains=5)
    native, theta = made.native(dtype), made.theta.astype(dtype)
    x = native.x.reshape(-1, *made.model.input_shape)
    weights = np.ascontiguousarray(theta[:, : made.model.dim])

    def everything(chains):
        found = [*native.value_and_grad(theta[chains]), made.model.apply(weights[chains], x)]
        return [*found, *native.value_and_grad(theta[chains], rows=np.arange(0, 190, 7))]

    before = num_threads()
    try:
        rb.set_num_threads(1)
        together = everything(slice(None))
        for threads in (1, 2, 4):
            rb.set_num_threads(threads)
            for chains in (slice(None), slice(0, 1), slice(2, 3), slice(1, 4)):
                for a, b in zip(everything(chains), together, strict=True):
                    assert np.array_equal(a, b[chains])
    finally:
        rb.set_num_threads(before)


def test_a_row_of_the_output_does_not_depend_on_the_others():
    made = problem(NAMED["cnn and lstm"], num_rows=70)
    x = made.reference.x.reshape(-1, *made.model.input_shape)
    together = made.model.apply(made.theta, x)
    for n in (0, 31, 32, 69):
        np.testing.assert_allclose(made.model.apply(made.theta, x[n : n + 1])[0], together[n])


def test_the_checks_notice_a_shifted_tap():
    # control: one tap of the kernel read one cell to the right, in the gradient alone
    for dtype in (np.float64, np.float32):
        made = problem(SMOOTH["two convolutions"], num_rows=33)
        theta = made.theta.astype(dtype)
        value, gradient = made.reference.rounded(dtype).value_and_grad(theta.astype(float))
        right = value[0], gradient[0].astype(dtype)
        check_gradient(made, dtype, found=right)
        view = made.model.unravel(right[1])["0.weight"]  # (3, 3, C, K)
        view[1, 1] = view[1, 2]
        with pytest.raises(AssertionError):
            check_gradient(made, dtype, found=right)


def test_the_checks_notice_padding_on_the_other_side():
    # control: an even kernel, whose one cell of padding lies behind
    made = problem(net((5, 4, 2), rb.Conv2D(2, 2, padding="same")), num_rows=5)
    table = made.reference.table.copy()
    table[0, rb.layers.COLUMNS.index("pad_top")] = 1
    object.__setattr__(made.reference, "table", table)
    value, gradient = made.reference.value_and_grad(made.theta)
    made = problem(made.model, num_rows=5)
    with pytest.raises(AssertionError):
        check_gradient(made, np.float64, found=(value[0], gradient[0]))


def test_a_prior_by_fan_in_reaches_the_kernels():
    model = net((4, 3, 2), rb.Conv2D(3, 2), TANH)
    made = problem(model, num_rows=5)
    native = made.native(prior={"*.weight": rb.Normal(0.9, fan_in=True), "*": rb.Normal(0.3)})
    known = np.repeat([0.9 / math.sqrt(8), 0.3, 0.9 / math.sqrt(18), 0.3], [24, 3, 36, 2])
    np.testing.assert_allclose(native.prior_sd, known)


@pytest.mark.parametrize("place", range(4))
def test_a_pool_keeps_nan(place):
    # an overflow to infinity minus infinity in one cell of the window, whichever it is
    layers = [rb.Conv1D(2, 1), rb.Conv1D(1, 1), rb.MaxPool1D(4), rb.Flatten(), rb.Dense(1)]
    model = rb.Model(layers, input_shape=(4, 1))
    theta = np.zeros(model.dim, np.float32)
    views = model.unravel(theta)
    views["0.weight"][...] = [3e38, -3e38]
    views["1.weight"][...] = 1
    views["4.weight"][...] = 1
    x = np.zeros((1, 4, 1), np.float32)
    assert model.apply(theta, x) == 0
    x[0, place] = 10
    assert np.isnan(model.apply(theta, x)).all()


def test_a_stride_far_beyond_the_image_costs_nothing():
    model = rb.Model(
        [rb.Conv2D(2, 1), rb.Conv2D(1, 3, stride=2**31 - 1, padding="same"), rb.Flatten()],
        input_shape=(4, 3, 1),
    )
    made = problem(model, num_rows=3)
    target = made.native()
    grad = target.value_and_grad(made.theta)[1]
    expected = made.reference.gradient(made.theta)[0]
    np.testing.assert_allclose(grad, expected, atol=1e-11 * np.abs(expected).max())
