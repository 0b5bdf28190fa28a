"""State dicts as NumPy arrays, which need no PyTorch; ``test_torch.py`` has the rest."""

import sys

import numpy as np
import pytest

import ribbit as rb

FUNCTION = r"^\[Model\.from_torch_state_dict\] expected "


def test_arrays_lie_as_torch_has_them(rng):
    layers = [
        rb.Conv2D(3, (2, 3)),
        rb.FilterResponseNorm(),
        rb.Dropout(0.1),
        rb.Flatten(),
        rb.Activation("relu"),
        rb.Dense(4),
        rb.Dense(2, bias=False),
    ]
    model = rb.Model(layers, input_shape=(3, 5, 2))
    theta = rng.normal(size=model.dim)
    own = model.unravel(theta)
    height, width, channels = 2, 3, 3
    first = np.empty((4, channels * height * width))
    for i, j, c in np.ndindex(height, width, channels):
        row = own["5.weight"][(i * width + j) * channels + c]
        first[:, (c * height + i) * width + j] = row
    conv = np.empty((3, 2, 2, 3))
    for o, c, i, j in np.ndindex(conv.shape):
        conv[o, c, i, j] = own["0.weight"][i, j, c, o]
    weights = {
        "conv.weight": conv,
        "conv.bias": own["0.bias"],
        "norm.gamma": own["1.gamma"].reshape(1, 3, 1, 1),
        "norm.beta": own["1.beta"],
        "norm.tau": own["1.tau"].reshape(1, 3, 1, 1),
        "fc1.weight": first,
        "fc1.bias": own["5.bias"],
        "fc2.weight": own["6.weight"].T,
    }
    np.testing.assert_array_equal(model.from_torch_state_dict(weights, dtype=np.float64), theta)
    single = model.from_torch_state_dict(weights)
    np.testing.assert_array_equal(single, theta.astype(np.float32))
    assert single.dtype == np.float32


def test_the_bias_of_an_lstm_is_the_sum_of_two(rng):
    model = rb.Model([rb.Conv1D(3, 2), rb.LSTM(2)], input_shape=(4, 5))
    shapes = [(3, 5, 2), (3,), (8, 3), (8, 2), (8,), (8,)]
    arrays = [rng.normal(size=shape) for shape in shapes]
    own = model.unravel(
        model.from_torch_state_dict(dict(zip("abcdef", arrays, strict=True)), dtype=float)
    )
    np.testing.assert_array_equal(own["0.weight"], arrays[0].transpose(2, 1, 0))
    np.testing.assert_array_equal(own["1.weight"], arrays[2].T)
    np.testing.assert_array_equal(own["1.recurrent"], arrays[3].T)
    np.testing.assert_array_equal(own["1.bias"], arrays[4] + arrays[5])


def mlp_weights(**changes):
    weights = {"0.weight": np.ones((4, 3)), "0.bias": np.ones(4), "2.weight": np.ones((2, 4))}
    weights["2.bias"] = np.ones(2)
    return {k: v for k, v in {**weights, **changes}.items() if v is not None}


@pytest.mark.parametrize(
    ("weights", "error", "text"),
    [
        ([np.ones((4, 3))], TypeError, "state_dict as a dict of strings, got list"),
        ({0: np.ones(3)}, TypeError, "state_dict as a dict"),
        (
            mlp_weights(**{"0.weight": np.ones((3, 4))}),
            ValueError,
            r"'0.weight' of shape \(4, 3\) for '0.weight' \(3, 4\), got '0.weight' of shape \(3, 4",
        ),
        (mlp_weights(**{"0.bias": None}), ValueError, r"'0.bias' of shape \(4,\) .* '2.weight'"),
        (mlp_weights(**{"2.bias": None}), ValueError, "4 arrays .* got 3: none is left for '2.bi"),
        (mlp_weights(extra=np.ones(2)), ValueError, "4 arrays .* got 5: 'extra' has no place"),
        ({}, ValueError, "4 arrays in state_dict, got 0"),
        (mlp_weights(**{"2.bias": None, "1.running_mean": np.ones(2)}), ValueError, "batch norm"),
        (mlp_weights(**{"1.num_batches_tracked": 3}), ValueError, "got '1.num_batches_tracked'"),
        (mlp_weights(**{"2.bias": np.array([1, np.nan])}), ValueError, r"'2.bias'\[1\] is nan"),
        (mlp_weights(**{"2.bias": np.array([1, 1e99])}), ValueError, r"finite float32 .*1e\+99"),
        (mlp_weights(**{"2.bias": ["a", "b"]}), TypeError, "'2.bias' as an array of real numbers"),
    ],
)
def test_refuses(weights, error, text):
    with pytest.raises(error, match=FUNCTION + ".*" + text):
        rb.mlp(3, (4,), 2).from_torch_state_dict(weights)


def test_refuses_other_dtypes():
    with pytest.raises(TypeError, match=FUNCTION + "dtype float32 or float64"):
        rb.mlp(3, (4,), 2).from_torch_state_dict(mlp_weights(), dtype=np.float16)


def test_refuses_a_sum_of_units_in_two_orders():
    # behind Flatten torch has the units as (C, H, W), behind Dense as the layer gives them
    image = (2, 2, 3)
    good = [rb.Flatten(), rb.Residual([rb.Activation("relu")]), rb.Dense(2)]
    rb.Model(good, input_shape=image).from_torch_state_dict(
        {"weight": np.ones((2, 12)), "bias": np.ones(2)}
    )
    for behind in ([rb.Dense(2)], []):
        stack = [rb.Flatten(), rb.Residual([rb.Dense(12)]), *behind]
        with pytest.raises(ValueError, match=FUNCTION + "both paths of a Residual"):
            rb.Model(stack, input_shape=image).from_torch_state_dict({})


@pytest.mark.parametrize(
    ("theta", "error"),
    [
        ([0.0] * 26, TypeError),
        (np.zeros(26, int), TypeError),
        (np.zeros(25), ValueError),
        (np.zeros((1, 26)), ValueError),
    ],
)
def test_export_refuses(theta, error):
    with pytest.raises(error, match=r"^\[Model\.to_torch_state_dict\] expected theta"):
        rb.mlp(3, (4,), 2).to_torch_state_dict(theta)


def test_export_says_that_it_needs_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"^\[Model\.to_torch_state_dict\] expected torch"):
        rb.mlp(3, (4,), 2).to_torch_state_dict(np.zeros(26))
