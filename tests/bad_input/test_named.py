"""Malformed arguments that once passed, or came back as an error of something further inside."""

import os

import numpy as np
import pytest

import ribbit as rb
from ribbit.schedules import Schedule
from tests.support.rubbish import DIM, MESSAGE, MODEL, ROWS, X, Y, target

TARGET = target()
HMC = rb.HMC(TARGET, step_size=0.1, num_leapfrog_steps=2)
DRAWS = HMC.sample(4, chains=2, warmup=0, progress=False)


def masked(array, where=0):
    mask = np.zeros(np.shape(array), bool)
    mask.flat[where] = True
    return np.ma.masked_array(array, mask)


@pytest.mark.parametrize("read", ["read_csv", "read_npz", "read_idx"])
@pytest.mark.parametrize("bad", ["a descriptor", True, None, b"name", 3.0, "", "a\0b"])
def test_files_are_named_by_paths(read, bad, tmp_path):
    """A number is a file descriptor to Python, which reads it and closes it."""
    options = {"target": 0} if read == "read_csv" else {}
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    value = descriptor if bad == "a descriptor" else bad
    with pytest.raises((TypeError, ValueError), match=rf"^\[{read}\] expected a path.*, got "):
        getattr(rb.datasets, read)(value, **options)
    os.close(descriptor)  # an error if somebody else has closed it


@pytest.mark.parametrize("name", [{"x": 3}, {"y": 3}, {"y": None}])
def test_arrays_are_named_by_strings(name, tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    with pytest.raises(TypeError, match=r"\[read_npz\] expected . as the name of an array, got"):
        rb.datasets.read_npz(tmp_path / "a.npz", **name)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "polynomial", "power": np.nan},
        {"kind": "polynomial", "power": np.inf},
        {"kind": "polynomial", "power": -1.0},
        {"kind": "polynomial", "power": "1"},
        {"kind": "polynomial", "power": 1.0, "offset": np.nan},
        {"kind": "polynomial", "power": 1.0, "offset": 0.0},
        {"kind": "polynomial", "power": 1.0, "offset": np.inf},
        {"kind": "cosine", "final": np.nan},
        {"kind": "cosine", "final": 2.0},
        {"kind": "cosine", "num_steps": 2.5},
        {"kind": "cosine", "num_steps": 2**63},
        {"kind": "cyclical", "num_cycles": -1},
        {"kind": "cyclical", "num_cycles": 1.5},
        {"kind": "cyclical", "exploration": np.nan},
        {"kind": "cyclical", "exploration": 1.0},
    ],
    ids=str,
)
def test_schedules_are_finite(fields):
    (name,) = [key for key in fields if key != "kind"][-1:]
    with pytest.raises((TypeError, ValueError), match=rf"^\[Schedule\] expected {name}.*, got"):
        Schedule(**fields)


@pytest.mark.parametrize("method", ["factors", "noise"])
@pytest.mark.parametrize("kind", ["constant", "polynomial", "cosine", "cyclical"])
def test_steps_of_schedules_are_counts(kind, method):
    call = getattr(Schedule(kind, exploration=0.5), method)
    for bad in (np.nan, np.inf, -1, "3", None, 1.5):
        with pytest.raises((TypeError, ValueError), match=r"expected first .*, got"):
            call(-(2**63) if bad == -1 else bad, 3)
        with pytest.raises((TypeError, ValueError), match=r"expected count .*, got"):
            call(3, bad)
    assert np.isfinite(call(2**61, 3)).all()
    assert np.isfinite(Schedule("polynomial", power=0.5, offset=5e-324).factors(0, 3)).all()


@pytest.mark.parametrize("dtype", ["S1", "U1", "c8", "c16", "M8[s]", "O", "V4"])
def test_unravel_takes_numbers(dtype):
    with pytest.raises(TypeError, match=r"^\[Model.unravel\] expected .* real numbers, got"):
        MODEL.unravel(np.zeros(DIM, dtype))
    assert MODEL.unravel(np.arange(DIM))["0.bias"].tolist() == [6, 7, 8]  # numbers of parameters


MASKED = {
    "Posterior x": lambda: target_of(masked(X), Y),
    "Posterior y": lambda: target_of(X, masked(Y)),
    "Posterior rows": lambda: target_of([masked(row) for row in X], Y),
    "value_and_grad": lambda: TARGET.value_and_grad(masked(np.zeros(DIM))),
    "rows": lambda: TARGET.value_and_grad(np.zeros(DIM), rows=masked(np.arange(3))),
    "log_prior": lambda: TARGET.log_prior(masked(np.zeros(DIM))),
    "init": lambda: HMC.sample(1, init=masked(np.zeros(DIM))),
    "Chains": lambda: rb.Chains(HMC, masked(np.zeros(DIM))),
    "predict_at": lambda: HMC.sample(1, predict_at=masked(X)),
    "predict_at y": lambda: HMC.sample(1, predict_at=(X, masked(Y))),
    "predict": lambda: DRAWS.predict(masked(X)),
    "log_likelihood": lambda: DRAWS.predict(X).log_likelihood(masked(Y)),
    "unravel": lambda: MODEL.unravel(masked(np.zeros(DIM))),
    "apply": lambda: MODEL.apply(masked(np.zeros(DIM)), X),
    "apply to": lambda: MODEL.apply(np.zeros(DIM), masked(X)),
    "ravel": lambda: MODEL.ravel({k: masked(v) for k, v in MODEL.unravel(np.zeros(DIM)).items()}),
    "fit": lambda: rb.BBB(TARGET).fit(1, init=masked(np.zeros(DIM))),
    "MeanField": lambda: rb.MeanField(masked(np.zeros(3)), np.ones(3)),
    "rhat": lambda: rb.diagnostics.rhat(masked(np.zeros((2, 8)))),
    "predictive_rhat": lambda: rb.diagnostics.predictive_rhat(DRAWS, masked(X)),
    "rmse": lambda: rb.metrics.rmse(masked(Y), Y),
    "standardize": lambda: rb.datasets.standardize(masked(X)),
    "leapfrog": lambda: TARGET.leapfrog(
        masked(np.zeros((2, DIM))), np.zeros((2, DIM)), None, 0.1, 1
    ),
    "reparameterize": lambda: rb.reparameterize(masked(np.zeros(3)), np.ones(3), 2, 0),
    "mass": lambda: rb.HMC(TARGET, num_leapfrog_steps=1, inverse_mass_matrix=masked(np.ones(DIM))),
    "step sizes": lambda: rb.HMC(TARGET, num_leapfrog_steps=1, step_size=masked(np.ones(2))),
    "quantile": lambda: DRAWS.predict(X).quantile(masked([0.1, 0.9])),
}


def target_of(x, y):
    return rb.Posterior(MODEL, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.5))


@pytest.mark.parametrize("name", MASKED)
def test_masked_values_are_refused(name):
    with pytest.raises(ValueError, match=r"^\[.*\] expected .* without masked values, got some"):
        MASKED[name]()


def test_nothing_masked_is_an_array():
    plain, empty = target_of(X, Y), target_of(np.ma.masked_array(X), np.ma.masked_array(Y))
    theta = np.full(DIM, 0.1, np.float32)
    assert plain.value_and_grad(theta)[0] == empty.value_and_grad(np.ma.masked_array(theta))[0]


NO_DRAWS = [b"3", 3, None, "draws", X, {"positions": X}, [DRAWS]]


@pytest.mark.parametrize("bad", NO_DRAWS, ids=lambda v: type(v).__name__)
def test_diagnostics_of_what_is_no_draws(bad):
    for call in (rb.diagnostics.predictive_rhat, rb.diagnostics.predictive_ess):
        with pytest.raises(TypeError, match=r"^\[predictive_\w+\] expected draws as Draws, got"):
            call(bad, X)


@pytest.mark.parametrize("bad", [b"3", "x", None, {}, [[1, 2], [3]], X + 1j, object(), 1.0])
def test_diagnostics_at_what_is_no_input(bad):
    with pytest.raises((TypeError, ValueError)) as caught:
        rb.diagnostics.predictive_rhat(DRAWS, bad)
    assert MESSAGE.match(str(caught.value))
    with pytest.raises((TypeError, ValueError)) as caught:
        rb.diagnostics.ess(np.zeros((2, ROWS)), method="tail", tail_probability="3")
    assert MESSAGE.match(str(caught.value))


def with_nan(array):
    array = np.array(array, dtype=np.float64)
    array[2] = np.nan
    return array


def rows(x=X, y=Y):
    return rb.Posterior(MODEL, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.5))


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: rows(y=["a", "b"] * (ROWS // 2)), "np.unique(y, return_inverse=True)"),
        (
            lambda: rows(y=np.array(["a", "b"] * (ROWS // 2), object)),
            "np.unique(y, return_inverse=True)",
        ),
        (lambda: rows(x=[["a"] * X.shape[1]] * ROWS), "leave such columns out"),
        (lambda: rows(x=with_nan(X)), "leave such rows out"),
        (lambda: rows(y=with_nan(Y)), "leave such rows out"),
        (lambda: rb.HMC(lambda theta: -theta @ theta), "rb.CallableDensity(fn, dim)"),
        (lambda: rb.HMC(MODEL), "rb.Posterior(model, x, y"),
    ],
)
def test_a_newcomer_is_told_what_to_do(call, advice):
    with pytest.raises((TypeError, ValueError), match=MESSAGE) as caught:
        call()
    assert advice in str(caught.value)
