"""One name of the core for both dtypes: its arrays decide, and what fits neither is refused."""

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core
from ribbit._arrays import random_numbers

IDS = np.zeros(1, np.uint32)
GAUSSIAN = _core.codes()["LIKELIHOODS"]["Gaussian"]
OTHER = {np.float32: np.float64, np.float64: np.float32}


def table():
    """Columns and rates of a network of 3 inputs and 1 output."""
    rows = rb.Model([rb.Dense(1)], input_shape=(3,)).network
    return rows.table, np.zeros(len(rows.table))


def density(x, y):
    """The log density of a Gaussian likelihood under a normal prior of sd 1."""
    prior = np.array([[0.0, 4.0, _core.codes()["PRIORS"]["Normal"], 1.0, 0.0, 0.0]])
    return _core.LogDensity(*table(), prior, GAUSSIAN, [1.0], 0.0, x, y, 1.0, 1.0)


# The argument that decides, and a call with `a` of its dtype and `b` of what has to follow.
CALLS = {
    "LogDensity": ("y", lambda a, b: density(b((2, 3)), a((2, 1)))),
    "leapfrog": (
        "y",
        lambda a, b: density(a((2, 3)), a((2, 1))).leapfrog(
            a((1, 4)), b((1, 4)), None, np.ones(1), np.ones(1, np.int64)
        ),
    ),
    "WeightSource.stored": ("theta", lambda a, b: _core.WeightSource.stored(a((1, 1, 4)))),
    "WeightSource.drawn": ("mean", lambda a, b: _core.WeightSource.drawn(a((4,)), b((4,)), 0)),
    "WeightSource.masked": ("theta", lambda a, b: _core.WeightSource.masked(a((4,)), 0, False, 0)),
    "forward": (
        "theta",
        lambda a, b: _core.forward(
            *table(), _core.WeightSource.stored(a((1, 1, 4))), 0, 1, b((2, 3))
        ),
    ),
    "predictive_moments": (
        "theta",
        lambda a, b: _core.predictive_moments(
            *table(), _core.WeightSource.stored(a((1, 1, 4))), GAUSSIAN, [1.0], 0.0, 1, b((2, 3))
        ),
    ),
    "draw_weights": ("mean", lambda a, b: _core.draw_weights(a((4,)), b((4,)), 0, 2)),
    "reparameterize": ("mean", lambda a, b: _core.reparameterize(a((4,)), b((4,)), 2, 0)),
    "kinetic_energy": ("momentum", lambda a, b: _core.kinetic_energy(a((1, 4)), b((4,)))),
    "fill_normal": (
        "out",
        lambda a, b: _core.fill_normal(a((1, 4)), 0, 0, IDS, random_numbers.PUBLIC),
    ),
}
ALONE = {"WeightSource.stored", "WeightSource.masked", "fill_normal"}  # no second array


def of(dtype):
    """Return what makes arrays of ones of a dtype."""
    return lambda shape: np.ones(shape, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CALLS)
def test_results_have_the_dtype_of_the_arrays(name, dtype):
    result = CALLS[name][1](of(dtype), of(dtype))
    if name in ("draw_weights", "reparameterize"):
        assert result.dtype == dtype
    elif name == "forward":
        assert [array.dtype for array in result] == [dtype, dtype]
    elif name == "leapfrog":
        dtypes = [dtype, dtype, np.float64, np.float64, dtype, np.int64]
        assert [a.dtype for a in result] == dtypes


@pytest.mark.parametrize("wrong", [np.int64, np.float16, ">f4", ">f8", bool])
@pytest.mark.parametrize("name", CALLS)
def test_refuses_what_is_neither(name, wrong):
    decides, call = CALLS[name]
    kind = np.dtype(wrong)
    match = rf"^\[_core\] expected {decides} of dtype float32 or float64, got {kind} of shape "
    with pytest.raises(TypeError, match=match):
        call(of(kind), of(np.float64))
    with pytest.raises(TypeError, match=rf"^\[_core\] expected {decides} as a numpy array, got "):
        call(lambda shape: [1.0], of(np.float64))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", sorted(set(CALLS) - ALONE))
def test_refuses_a_mixture(name, dtype):
    wanted, given = np.dtype(dtype), np.dtype(OTHER[dtype])
    with pytest.raises(TypeError, match=rf"^\[_core\] expected \w+ of dtype {wanted}, got {given}"):
        CALLS[name][1](of(wanted), of(given))
