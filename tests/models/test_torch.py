"""Outputs and gradients against PyTorch's own layers, weights carried over by their state dicts.

Relative error of the outputs, of the log density, and of the gradient, whole and array by array:
<= 1e-5 in float32, <= 1e-11 in float64, against PyTorch in float64.
"""

from functools import partial

import numpy as np
import pytest

import ribbit as rb

torch = pytest.importorskip("torch")
F = torch.nn.functional

from tests.models import torch_networks  # noqa: E402
from tests.models.torch_networks import frn, same  # noqa: E402
from tests.support.layer_problems import TORCH_CALLS  # noqa: E402

BOUNDS = {np.float32: 1e-5, np.float64: 1e-11}
SD = 0.3  # of the prior
LOG_NORM = np.log(SD) + 0.5 * np.log(2 * np.pi)
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def channels_first(x):
    return torch.from_numpy(np.moveaxis(x, -1, 1) if x.ndim > 2 else x).double()


def start(model, dtype, rng, seed=0):
    """Weights away from where they start: no bias is 0, no scale 1."""
    theta = model.init(seed, dtype=dtype)
    return (theta + 0.1 * rng.normal(size=theta.shape)).astype(dtype)


def torch_answer(model, apply, weights, x, y):
    """Outputs, log density and flat gradient in float64; `apply(weights, x)` gives the outputs."""
    weights = {k: w.detach().double().requires_grad_() for k, w in weights.items()}
    outputs = apply(weights, channels_first(x))
    value = torch.log_softmax(outputs, 1)[torch.arange(len(y)), torch.from_numpy(y)].sum()
    # the second bias of an LSTM is none of ours
    own = {k: w for k, w in weights.items() if "bias_hh" not in k}
    for w in own.values():
        value = value - 0.5 * (w / SD).square().sum() - w.numel() * LOG_NORM
    value.backward()
    grads = {k: w.grad if k in own else torch.zeros_like(w) for k, w in weights.items()}
    flat = model.from_torch_state_dict(grads, dtype=np.float64)
    return outputs.detach().numpy(), value.item(), flat


def relative(found, known):
    return np.linalg.norm(np.asarray(found, float) - known) / np.linalg.norm(known)


def errors(model, theta, x, y, apply, weights=None):
    """Relative errors by name; `weights` instead of those that `theta` exports."""
    weights = model.to_torch_state_dict(theta) if weights is None else weights
    outputs, value, gradient = torch_answer(model, apply, weights, x, y)
    target = rb.Posterior(
        model, x, y, prior=rb.Normal(SD), likelihood=rb.Categorical(), dtype=theta.dtype
    )
    found_value, found = target.value_and_grad(theta)
    assert found.dtype == theta.dtype
    out = {
        "outputs": relative(model.apply(theta, x), outputs),
        "value": abs(found_value - value) / abs(value),
        "gradient": relative(found, gradient),
    }
    known = model.unravel(gradient)
    out.update({name: relative(part, known[name]) for name, part in model.unravel(found).items()})
    return out


def check(found, bound):
    assert not {k: float(v) for k, v in found.items() if not v <= bound}  # a NaN is one, too


# --- the zoo ------------------------------------------------------------------------------------

MODELS = {
    "lenet5": lambda: rb.lenet5((28, 28, 1)),
    "resnet20_frn": rb.resnet20_frn,
    "cnn_lstm": lambda: rb.cnn_lstm(50, 20),
}


def problem(name, num_rows, dtype, rng):
    """Model, start, rows and labels, and the PyTorch network as a function of its weights."""
    model, net = MODELS[name](), getattr(torch_networks, name)().double()
    theta, x = start(model, dtype, rng), rows_of(model, 2 * num_rows, rng)
    if dtype is np.float32:
        for parameter, view in model.unravel(theta).items():
            # Thresholds far from all values: of so many some would lie within rounding.
            if parameter.endswith("gamma"):
                view *= 0.2
            if parameter.endswith("tau"):
                view[:] = np.where(np.arange(view.size) % 4, -3, 3)
        net.load_state_dict(model.to_torch_state_dict(theta))
        x = x[torch_networks.kink_distance(net, channels_first(x)).numpy() > 1e-5]
        assert len(x) >= num_rows
    else:
        net.load_state_dict(model.to_torch_state_dict(theta))
    y = rng.integers(0, model.output_shape[0], size=num_rows)
    return model, theta, x[:num_rows], y, lambda w, x: torch.func.functional_call(net, w, x)


def rows_of(model, num_rows, rng):
    shape = (num_rows, *model.input_shape)
    if model.tokens:
        return rng.integers(0, model.tokens, size=shape)
    return rng.normal(size=shape).astype(np.float32)


@DTYPES
@pytest.mark.parametrize(
    ("name", "num_rows"),
    [("lenet5", 3), ("lenet5", 37), ("resnet20_frn", 3), ("cnn_lstm", 3), ("cnn_lstm", 37)],
)
def test_zoo_is_that_of_torch(name, num_rows, dtype, rng):
    check(errors(*problem(name, num_rows, dtype, rng)), BOUNDS[dtype])


def test_other_gates_are_noticed(rng):
    # control: cell and forget gate change places
    model, theta, x, y, apply = problem("cnn_lstm", 3, np.float64, rng)
    weights = model.to_torch_state_dict(theta)
    for key in [k for k in weights if k.startswith("4.")]:
        weights[key] = torch.cat([weights[key].chunk(4)[i] for i in (0, 2, 1, 3)])
    found = errors(model, theta, x, y, apply, weights)
    assert min(found["outputs"], found["gradient"]) > 1e-3


def test_another_flatten_is_noticed(rng):
    # control: the first dense layer reads its inputs as (H, W, C)
    model, theta, x, y, apply = problem("lenet5", 3, np.float64, rng)
    weights = model.to_torch_state_dict(theta)
    weights["10.weight"] = torch.from_numpy(model.unravel(theta)["10.weight"].T)
    found = errors(model, theta, x, y, apply, weights)
    assert min(found["outputs"], found["gradient"]) > 1e-3


# --- layer by layer, between a layer that shows its gradient and a dense one ----------------------


def average(x, kernel, stride):
    """Average pool of padding "same" that does not count the padding."""
    sums, cells = (F.avg_pool2d(same(a, kernel, stride), kernel, stride) for a in (x, x * 0 + 1))
    return sums / cells


def lstm(x, weights):
    net = torch.nn.LSTM(x.shape[1], 4, batch_first=True).double()
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    return torch.func.functional_call(net, dict(zip(names, weights, strict=True)), x.mT)[0]


def layer_norm(x, weights):
    return F.layer_norm(x.movedim(1, -1), x.shape[1:2], *weights).movedim(-1, 1)


def calls(rank):
    """Layers that are one call of torch.nn.functional, and what it does to x with weights p."""
    return {layer: partial(call, F) for layer, call in TORCH_CALLS[rank].items()}


IMAGES = {  # layer -> what it does to x (N, C, H, W) with its weights p
    **calls("image"),
    rb.Conv2D(4, 3, stride=2, padding="same"): lambda x, p: F.conv2d(
        same(x, (3, 3), (2, 2)), *p, stride=2
    ),
    rb.Conv2D(4, (4, 5), stride=(1, 3), padding="same", bias=False): lambda x, p: F.conv2d(
        same(x, (4, 5), (1, 3)), *p, stride=(1, 3)
    ),
    rb.MaxPool2D(3, stride=2, padding="same"): lambda x, p: F.max_pool2d(
        same(x, (3, 3), (2, 2), -torch.inf), 3, 2
    ),
    rb.AvgPool2D(3, stride=2, padding="same"): lambda x, p: average(x, (3, 3), (2, 2)),
    rb.GlobalAvgPool2D(): lambda x, p: x.mean((2, 3)),
    rb.FilterResponseNorm(): lambda x, p: frn(x, *p),
    rb.FilterResponseNorm(threshold=False): lambda x, p: frn(x, *p),
    rb.LayerNorm(): layer_norm,
    rb.Dropout(0.5): lambda x, p: x,
    rb.Residual([rb.Conv2D(3, 3, padding="same")]): lambda x, p: (
        x + F.conv2d(x, *p, padding="same")
    ),
    rb.Residual([rb.Conv2D(4, 1), rb.LayerNorm()], [rb.Conv2D(4, 1, bias=False)]): lambda x, p: (
        layer_norm(F.conv2d(x, *p[:2]), p[2:4]) + F.conv2d(x, *p[4:])
    ),
}
SEQUENCES = {  # x (N, C, T)
    **calls("sequence"),
    rb.Conv1D(4, 4, stride=3, padding="same"): lambda x, p: F.conv1d(
        same(x, (4,), (3,)), *p, stride=3
    ),
    rb.MaxPool1D(3, stride=2, padding="same"): lambda x, p: F.max_pool1d(
        same(x, (3,), (2,), -torch.inf), 3, 2
    ),
    rb.FilterResponseNorm(): lambda x, p: frn(x, *p),
    rb.LayerNorm(): layer_norm,
    rb.LSTM(4): lambda x, p: lstm(x, p)[:, -1],
    rb.LSTM(4, sequence=True): lstm,
}
TOKENS = {  # the embedded x (N, T, C)
    rb.Dropout(0.5): lambda x, p: x,
    rb.LayerNorm(): lambda x, p: F.layer_norm(x, x.shape[2:], *p),
    rb.Conv1D(4, 3): lambda x, p: F.conv1d(x.mT, *p),
    rb.LSTM(4): lambda x, p: lstm(x.mT, p)[:, -1],
}
FRONTS = {  # input shape, first layer, the same in PyTorch, layers behind it
    "image": ((6, 7, 2), rb.Conv2D(3, 1), F.conv2d, IMAGES),
    "sequence": ((11, 2), rb.Conv1D(3, 1), F.conv1d, SEQUENCES),
    "tokens": ((7,), rb.Embedding(9, 3), lambda x, w: F.embedding(x.long(), w), TOKENS),
}
CASES = [(front, layer) for front in FRONTS for layer in FRONTS[front][-1]]


@DTYPES
@pytest.mark.parametrize("num_rows", [3, 37])
@pytest.mark.parametrize(("front", "layer"), CASES, ids=lambda value: str(value))
def test_layer_is_that_of_torch(front, layer, num_rows, dtype, rng):
    shape, first, torch_first, behind = FRONTS[front]
    model = rb.Model([first, layer, rb.Flatten(), rb.Dense(3)], input_shape=shape)

    def apply(weights, x):
        begin, middle, end = (
            [w for k, w in weights.items() if k.partition(".")[0] == i] for i in "013"
        )
        h = behind[layer](torch_first(x, *begin), middle)
        return F.linear(h.flatten(1), *end)

    theta, x = start(model, dtype, rng), rows_of(model, num_rows, rng)
    y = rng.integers(0, 3, size=num_rows)
    check(errors(model, theta, x, y, apply), BOUNDS[dtype])


@DTYPES
def test_norm_of_a_flattened_image_is_that_of_torch(dtype, rng):
    layers = [rb.Conv2D(3, 2), rb.Flatten(), rb.LayerNorm(), rb.Dropout(0.5), rb.Dense(4)]
    model = rb.Model(layers, input_shape=(3, 4, 2))

    def apply(weights, x):
        p = list(weights.values())
        return F.linear(F.layer_norm(F.conv2d(x, *p[:2]).flatten(1), (18,), *p[2:4]), *p[4:])

    theta, x, y = start(model, dtype, rng), rows_of(model, 5, rng), rng.integers(0, 4, size=5)
    check(errors(model, theta, x, y, apply), BOUNDS[dtype])


# --- the state dict -----------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize(("front", "layer"), CASES, ids=lambda value: str(value))
def test_round_trip_of_a_layer_is_exact(front, layer, dtype, rng):
    shape, first, _, _ = FRONTS[front]
    model = rb.Model([first, layer, rb.Flatten(), rb.Dense(3)], input_shape=shape)
    round_trip(model, dtype, rng)


@DTYPES
@pytest.mark.parametrize("name", MODELS)
def test_round_trip_of_the_zoo_is_exact(name, dtype, rng):
    round_trip(MODELS[name](), dtype, rng)


def round_trip(model, dtype, rng):
    theta = rng.normal(size=model.dim).astype(dtype)
    weights = model.to_torch_state_dict(theta)
    assert {w.dtype for w in weights.values()} == {torch.from_numpy(theta).dtype}
    again = model.from_torch_state_dict(weights, dtype=dtype)
    assert again.dtype == dtype
    np.testing.assert_array_equal(again, theta)
    for w in weights.values():  # copies: theta keeps its values
        w.zero_()
    np.testing.assert_array_equal(again, theta)


def test_names_are_those_of_a_sequential():
    model = rb.Model(
        [rb.Embedding(5, 2), rb.Residual([rb.LSTM(2, sequence=True)]), rb.LayerNorm(), rb.LSTM(3)],
        input_shape=(4,),
    )
    weights = model.to_torch_state_dict(model.init())
    lstm = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    assert list(weights) == [
        "0.weight",
        *(f"1.main.0.{name}" for name in lstm),
        *("2.weight", "2.bias"),
        *(f"3.{name}" for name in lstm),
    ]
    assert not weights["3.bias_hh_l0"].any()


def test_takes_modules_of_any_float_dtype():
    model, net = (
        rb.mlp(3, (4,), 2),
        torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)),
    )
    whole = model.from_torch_state_dict(net.state_dict())
    np.testing.assert_array_equal(model.from_torch_state_dict(dict(net.named_parameters())), whole)
    half = net.bfloat16().state_dict()
    exact = model.from_torch_state_dict({k: v.float() for k, v in half.items()})
    np.testing.assert_array_equal(model.from_torch_state_dict(half), exact)
