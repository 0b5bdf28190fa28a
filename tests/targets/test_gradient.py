"""Gate "gradient": the native log density and gradient against the oracle.

The bounds are those of ``gradient_check.py``; in float64 also <= 1e-7 against central differences
of the native value.
"""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from ribbit import _core
from tests.oracle.reference import ACTIVATIONS, LIKELIHOODS, PRIORS
from tests.support.gradient_check import BOUNDS, CHAINS, ROWS, WIDTHS, check
from tests.support.problems import build_native, build_reference


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("prior", range(len(PRIORS)), ids=PRIORS)
@pytest.mark.parametrize("likelihood", range(len(LIKELIHOODS)), ids=LIKELIHOODS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_likelihood_and_prior(name, likelihood, prior, dtype):
    reference, theta = build_reference(
        num_in=3,
        hidden=(7, 5),
        num_out=2 if LIKELIHOODS[likelihood].startswith("hetero") else 3,
        activation=name,
        likelihood=likelihood,
        prior=prior,
        num_rows=37,
        chains=2,
        temperature=0.8,
        likelihood_temperature=1.3,
    )
    check(reference, theta, dtype)


def central_difference(target, theta, rows=None, h=2e-4):
    """Fourth-order differences of the native value: gradient (P,). Chains carry the stencil."""
    steps = h * np.eye(theta.size)
    stencil = np.concatenate([theta + k * steps for k in (-2, -1, 1, 2)])
    values = target.value_and_grad(stencil, rows=rows)[0].reshape(4, theta.size)
    return (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * h)


# Differences of fourth order need four derivatives beside them.
KINKED = ("relu", "leaky_relu", "elu")


@pytest.mark.parametrize("likelihood", range(len(LIKELIHOODS)), ids=LIKELIHOODS)
@pytest.mark.parametrize("name", [a for a in ACTIVATIONS if a not in KINKED])
def test_gradient_is_the_derivative_of_the_value(name, likelihood):
    for prior in (0, 2, 3, 4):
        reference, theta = build_reference(
            hidden=(4, 3), activation=name, likelihood=likelihood, prior=prior, num_rows=11
        )
        native = build_native(reference)
        gradient = native.value_and_grad(theta)[1]
        central = central_difference(native, theta)
        assert np.linalg.norm(gradient - central) <= 1e-7 * np.linalg.norm(central)


@pytest.mark.parametrize("name", KINKED)
def test_gradient_is_the_derivative_of_the_value_beside_kinks(name):
    # These and Laplace have kinks: a smaller stencil, and a start at which none lies inside it
    h = 1e-6
    reference, theta = build_reference(hidden=(4, 3), activation=name, prior=1, num_rows=11)
    assert np.min(np.abs(theta)) > 10 * h
    native = build_native(reference)
    gradient = native.value_and_grad(theta)[1]
    central = central_difference(native, theta, h=h)
    assert np.linalg.norm(gradient - central) <= 1e-7 * np.linalg.norm(central)


def test_the_check_notices_errors_of_its_size():
    # control: what the two bounds must refuse
    reference, theta = build_reference(num_rows=33, chains=2)
    scale = reference.gradient_scale(theta)
    gradient = reference.gradient(theta)
    wrong = build_reference(num_rows=33, chains=2, seed=1)[0]
    assert np.all(np.linalg.norm(wrong.gradient(theta) - gradient, axis=1) > 2e-6 * scale)
    native = build_native(reference, likelihood_temperature=1.0 + 1e-4)
    error = np.linalg.norm(native.value_and_grad(theta)[1] - gradient, axis=1)
    assert np.all(error > 2e-6 * scale)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("width", WIDTHS)
def test_odd_widths(width, dtype):
    for i, hidden in enumerate([(width,), (width, width), (3, width), (width, 2)]):
        reference, theta = build_reference(
            num_in=width if i == 1 else 5,
            hidden=hidden,
            num_out=1 + i,
            activation=ACTIVATIONS[1 + (i + width) % 6],
            num_rows=(33, 100)[i % 2],
            chains=CHAINS[i],
        )
        check(reference, theta, dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("num_rows", ROWS)
def test_odd_numbers_of_rows(num_rows, dtype):
    for width, likelihood, chains in ((17, 0, 2), (50, 3, 1), (3, 1, 5)):
        reference, theta = build_reference(
            num_in=8,
            hidden=(width,),
            num_out=3,
            activation="silu",
            likelihood=likelihood,
            num_rows=num_rows,
            chains=chains,
        )
        check(reference, theta, dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("num_in", "hidden", "num_out", "num_rows"),
    [
        (4, (), 1, 33),  # a linear model
        (1, (1,), 1, 1),
        (1, (), 1, 2),
        (784, (256, 256), 10, 40),  # wide: the weight gradient takes its other form
        (300, (1,), 1, 65),
        (1, (300,), 200, 5),
        (20, (20, 20, 20, 20), 1, 100),
    ],
)
def test_shapes(num_in, hidden, num_out, num_rows, dtype):
    for likelihood in (0, 3):
        reference, theta = build_reference(
            num_in=num_in,
            hidden=hidden,
            num_out=max(num_out, 2) if likelihood == 3 else num_out,
            activation="tanh",
            likelihood=likelihood,
            num_rows=num_rows,
            chains=2,
        )
        check(reference, theta, dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "rows",
    [
        [0],
        [199],
        [3, 3, 3, 3],
        [5, 4, 3, 2, 1, 0],
        list(range(200)),
        [*range(32), 7],
        [*range(100, 165), 0, 199, 0],
    ],
    ids=["first", "last", "repeated", "backwards", "all", "33", "68"],
)
def test_minibatches(rows, dtype):
    for likelihood in (0, 3):
        reference, theta = build_reference(
            hidden=(13,),
            num_out=3,
            likelihood=likelihood,
            num_rows=200,
            chains=3,
            temperature=0.5,
            likelihood_temperature=2.0,
        )
        check(reference, theta, dtype, np.array(rows))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_order_of_rows_does_not_matter(dtype):
    reference, theta = build_reference(hidden=(13,), num_rows=100)
    native = build_native(reference, dtype)
    theta = theta.astype(dtype)
    shuffled = np.random.default_rng(0).permutation(100)
    bound = BOUNDS[np.dtype(dtype)][0]
    scale = reference.gradient_scale(theta.astype(float))[0]
    one = native.value_and_grad(theta)[1].astype(float)
    other = native.value_and_grad(theta, rows=shuffled)[1].astype(float)
    assert np.linalg.norm(one - other) <= 2 * bound * scale


def test_untempered_terms_are_exposed():
    reference, theta = build_reference(
        likelihood=1, chains=3, temperature=0.5, likelihood_temperature=2.0
    )
    native = build_native(reference)
    likelihood = [reference.log_likelihood(t)[0] for t in theta]
    prior = [reference.log_prior(t)[0] for t in theta]
    np.testing.assert_allclose(native.log_likelihood(theta), likelihood, rtol=1e-12)
    np.testing.assert_allclose(native.log_prior(theta), prior, rtol=1e-12)
    total = (np.array(likelihood) / 2.0 + prior) / 0.5
    np.testing.assert_allclose(native.value_and_grad(theta)[0], total, rtol=1e-12)
    assert np.ndim(native.log_likelihood(theta[0])) == 0
    assert np.ndim(native.value_and_grad(theta[0])[0]) == 0


def test_extreme_preactivations_stay_finite_and_right():
    # float64 outputs up to +-1e3 in the middle: saturated units, no overflow, no NaN
    for name in ACTIVATIONS:
        reference, theta = build_reference(activation=name, hidden=(5,), num_rows=33)
        theta = theta.copy()
        theta[:10] *= 300.0
        check(reference, theta, np.float64)


def test_per_parameter_priors_and_fan_in():
    import ribbit as rb

    reference, theta = build_reference(num_in=5, hidden=(7,), num_out=2, num_rows=33)
    native = build_native(
        reference,
        prior={
            "*.bias": rb.Laplace(0.3),
            "0.weight": rb.Normal(0.9, fan_in=True),
            "*": rb.StudentT(3.0, 0.5, fan_in=True),
        },
    )
    # flat order: 0.weight (35), 0.bias (7), 2.weight (14), 2.bias (2)
    segments = np.array(
        [
            (0, 35, 0, 0.9 / np.sqrt(5), 0, 0),
            (35, 7, 1, 0.3, 0, 0),
            (42, 14, 2, 3.0, 0.5 / np.sqrt(7), 0),
            (56, 2, 1, 0.3, 0, 0),
        ]
    )
    value, gradient = native.value_and_grad(theta)
    known, known_gradient = replace(reference, prior=segments).value_and_grad(theta)
    assert value == pytest.approx(known[0], rel=1e-12)
    np.testing.assert_allclose(gradient, known_gradient[0], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("hidden", "num_out", "likelihood", "rows"),
    [
        ((50, 20), 2, 0, 927),  # shards for the threads
        ((280, 130), 1, 1, 1_003),  # one shard, spread over a team; the last layer is narrow
        ((280, 130), 4, 3, 333),
        ((200, 200), 2, 0, 40),  # fewer panels than threads
    ],
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_threads_and_company_change_no_bit(dtype, hidden, num_out, likelihood, rows):
    before = _core.num_threads()
    reference, theta = build_reference(
        num_in=8,
        hidden=hidden,
        num_out=num_out,
        activation="silu",
        likelihood=likelihood,
        num_rows=rows,
        chains=5,
    )
    native, theta = build_native(reference, dtype), theta.astype(dtype)
    gradient = native.value_and_grad(theta)[1]
    momentum = np.random.default_rng(0).normal(size=theta.shape).astype(dtype)

    def everything(chains):
        value, grad = native.value_and_grad(theta[chains])
        part = native.value_and_grad(theta[chains], rows=np.arange(0, rows - 7, 3))[1]
        alone = native.log_likelihood(theta[chains])
        count = len(theta[chains])
        end = native.leapfrog(
            theta[chains],
            momentum[chains],
            gradient[chains],
            np.full(count, 1e-3),
            np.full(count, 7),
        )
        return [value, alone, grad, part, *end]

    try:
        _core.set_num_threads(1)
        together = everything(slice(None))
        for threads in (1, 2, 4):
            _core.set_num_threads(threads)
            for chains in (slice(None), slice(0, 1), slice(2, 3), slice(1, 4)):
                for a, b in zip(everything(chains), together, strict=True):
                    assert np.array_equal(a, b[chains])
    finally:
        _core.set_num_threads(before)


@pytest.mark.parametrize("isa", _core.available_isas())
def test_every_instruction_set_meets_the_bounds(isa):
    done = subprocess.run(
        [sys.executable, "-c", EVERY_SHAPE],
        env={**os.environ, "RIBBIT_ISA": isa, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [isa]


EVERY_SHAPE = """
import numpy as np
from ribbit import _core
from tests.support.gradient_check import WIDTHS, check
from tests.support.problems import build_reference
from tests.oracle.reference import ACTIVATIONS, LIKELIHOODS
for i, width in enumerate(WIDTHS):
    reference, theta = build_reference(
        num_in=1 + i, hidden=(width, 3), activation=ACTIVATIONS[1 + i % 6],
        likelihood=i % len(LIKELIHOODS), prior=i % 5, num_rows=65 + i, chains=1 + i % 3,
    )
    check(reference, theta, np.float64)
    check(reference, theta, np.float32)
reference, theta = build_reference(num_in=300, hidden=(260,), activation="silu", num_rows=40)
check(reference, theta, np.float32)
print(_core.isa())
"""
