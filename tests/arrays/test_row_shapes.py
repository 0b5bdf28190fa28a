"""Data rows of another shape: what to call is named, and the call that is named does it."""

import re

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import ShapeError

IMAGES, ROWS = (6, 4, 3), 5


def shaped(*shape):
    return np.linspace(-1.0, 1.0, int(np.prod(shape))).reshape(shape)


def model(shape):
    layers = [rb.Flatten(), rb.Dense(1)] if len(shape) > 1 else [rb.Dense(1)]
    return rb.Model(layers, input_shape=shape)


def outputs(shape, x):
    net = model(shape)
    return net.apply(np.ones(net.dim), x)


@pytest.mark.parametrize(
    ("shape", "x", "way"),
    [
        (IMAGES, shaped(ROWS, 3, 6, 4), "np.moveaxis(x, 1, -1)"),
        ((6, 4, 1), shaped(ROWS, 6, 4), "x[..., None]"),
        ((1,), shaped(ROWS), "x[..., None]"),
        (IMAGES, shaped(ROWS, 72), "x.reshape(-1, 6, 4, 3)"),
        ((72,), shaped(ROWS, *IMAGES), "x.reshape(len(x), -1)"),
        (IMAGES, shaped(*IMAGES), "x[None]"),
        ((3,), shaped(3), "x[None]"),
    ],
)
def test_the_call_that_is_named_makes_rows(shape, x, way):
    with pytest.raises(ShapeError, match=r"^\[Model.apply\] expected x of shape \(N, ") as caught:
        outputs(shape, x)
    hint = str(caught.value).rpartition(": ")[2]
    assert way in hint
    assert np.isfinite(outputs(shape, eval(way, {"x": x, "np": np}))).all()


@pytest.mark.parametrize(
    ("shape", "x"),
    [
        ((3,), shaped(ROWS, 2)),
        (IMAGES, shaped(ROWS, 6, 3)),
        ((3,), shaped(0, 3)),
        ((3,), shaped()),
        ((1,), shaped()),
    ],
)
def test_nothing_is_named_where_nothing_helps(shape, x):
    text = re.escape(f"got float64 array of shape {x.shape}") if x.ndim else r"got .*"
    with pytest.raises(ShapeError, match=text + "$"):
        outputs(shape, x)


def test_a_class_in_the_place_of_a_start():
    target = rb.Posterior(
        model((3,)), shaped(30, 3), shaped(30), prior=rb.Normal(1.0), likelihood=rb.Gaussian()
    )
    with pytest.raises(TypeError, match=r"expected init as EnsembleStart\(\.\.\.\), got the class"):
        rb.HMC(target).sample(5, init=rb.EnsembleStart)


def test_draws_in_the_place_of_a_start():
    target = rb.Posterior(
        model((3,)), shaped(30, 3), shaped(30), prior=rb.Normal(1.0), likelihood=rb.Gaussian()
    )
    # A given step: one found in five steps may warn, on one instruction set and not on another.
    hmc = rb.HMC(target, step_size=0.01, num_leapfrog_steps=3)
    draws = hmc.sample(5, warmup=0, chains=2, progress=False)
    with pytest.raises(
        TypeError, match=r"got Draws: resume=draws .* init=draws.positions\[:, -1\]"
    ):
        rb.MCLMC(target).sample(5, init=draws)
    more = hmc.sample(5, init=draws.positions[:, -1], warmup=0, progress=False)
    assert more.positions.shape == draws.positions.shape
