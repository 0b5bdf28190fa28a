"""BBB's estimators on convolutions: the law of the noise for each row.

Moments of the outputs and expectations of the log likelihood, which signs and places share or not.
"""

import math

import numpy as np
import pytest

import ribbit as rb
from ribbit.results.fits import MeanField
from tests.oracle.op_reference import FORWARD, OPS, Row, image, image_out, places
from tests.oracle.reference import log_likelihood_terms
from tests.oracle.row_noise_reference import ESTIMATORS, arrays
from tests.support.layer_problems import TANH, problem

LIMIT = 6.5  # standard errors, of at most 1,000 checks at a time: false-fail rate 8e-8


def recorded(density, mean, scale, estimator, steps, seed):
    """Log likelihoods (steps,) under fresh noise; the approximation stays where it is."""
    bbb = rb.BBB(density, learning_rate=1e-12, estimator=estimator)
    fit = bbb.fit(steps, seed=seed, init=MeanField(mean, scale), progress=False)
    return fit.expected_log_likelihood


SINGLE = rb.Model([rb.Conv2D(2, 2, padding="same"), rb.Flatten()], input_shape=(2, 3, 2))
HELD = 2  # rows


def noisy_outputs(estimator, steps=6_000):
    """Outputs (steps, rows * places * filters) of one convolution, and their known moments.

    A Gaussian likelihood of targets far away reads one output: log p(+Y) - log p(-Y) = 2 Y f.
    """
    rng = np.random.default_rng(4)
    x = rng.normal(size=(HELD, *SINGLE.input_shape))
    mean, scale = rng.normal(size=SINGLE.dim), rng.uniform(0.2, 0.6, SINGLE.dim)
    size = SINGLE.output_shape[0]
    found = []
    for unit in range(HELD * size):
        y = np.zeros(HELD * size)
        y[unit] = 100.0
        up, down = (
            recorded(
                rb.Posterior(
                    SINGLE, x, sign * y.reshape(HELD, size), prior=rb.Normal(1.0),
                    likelihood=rb.Gaussian(1.0), dtype=np.float64,
                ),
                mean, scale, estimator, steps, seed=6,
            )
            for sign in (1, -1)
        )  # fmt: skip
        found.append((up - down) / 200.0)
    row, x = Row(*map(int, SINGLE.table[0])), x.reshape(HELD, -1)
    # (rows, outputs, P): the outputs are linear in the weights
    design = np.stack([FORWARD["conv"](row, unit, x) for unit in np.eye(SINGLE.dim)], axis=-1)
    return np.stack(found, axis=1), (design @ mean).ravel(), design, scale


def known_covariance(design, scale, estimator):
    """Of all outputs of all rows: weights shared by rows and places, by places, or by none."""
    each = design.reshape(-1, scale.size) * scale
    weights = np.arange(scale.size) < scale.size - 2
    shared = each[:, weights] @ each[:, weights].T
    biases = each[:, ~weights] @ each[:, ~weights].T
    same_row = np.kron(np.eye(HELD), np.ones((design.shape[1],) * 2))
    if estimator == "local":
        return np.diag(np.diag(shared + biases))
    return shared + biases if estimator == "reparam" else shared * same_row + biases


def moment_errors(found, mean, covariance):
    """Largest errors of means and of second moments, in standard errors."""
    centred = found - mean
    first = np.abs(centred.mean(axis=0)) / np.sqrt(np.diag(covariance) / len(found))
    products = centred[:, :, None] * centred[:, None, :]
    error = products.std(axis=0) / np.sqrt(len(found))
    return first.max(), (np.abs(products.mean(axis=0) - covariance) / error).max()


# targets that nobody looks at
@pytest.mark.filterwarnings("ignore::ribbit.errors.ScaleWarning")
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_outputs_of_a_convolution_have_their_moments(estimator):
    """Means, variances and covariances of 24 outputs. Controls: the covariances of the other two
    estimators, sds 10 % larger, means a tenth of an sd away."""
    found, mean, design, scale = noisy_outputs(estimator)
    for other in ESTIMATORS:
        errors = moment_errors(found, mean, known_covariance(design, scale, other))
        assert errors[0] < LIMIT  # all have the same means and variances
        assert (errors[1] < LIMIT) == (other == estimator), other
    covariance = known_covariance(design, scale, estimator)
    assert moment_errors(found, mean, 1.1**2 * covariance)[1] > LIMIT
    assert moment_errors(found, mean + 0.1 * np.diag(covariance) ** 0.5, covariance)[0] > LIMIT


def pooled(num_rows=40):
    """A convolution whose places are averaged: linear in its weights, as are all means of it."""
    model = rb.Model([rb.Conv2D(1, 2), rb.GlobalAvgPool2D()], input_shape=(4, 4, 2))
    rng = np.random.default_rng(7)
    # images with a mean: places that share weights vary together
    x = 0.8 + rng.normal(size=(num_rows, 4, 4, 2))
    y = rng.normal(size=(num_rows, 1))
    density = rb.Posterior(
        model, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.5), dtype=np.float64
    )
    patches = np.stack(
        [x[:, i : i + 2, j : j + 2].reshape(num_rows, -1) for i in range(3) for j in range(3)]
    )  # (places, rows, weights)
    return density, patches, y[:, 0]


def expected_pooled(patches, y, mean, scale, *, places_share):
    """E[log likelihood] of `pooled`."""
    m, s, b, sb = mean[:-1], scale[:-1], mean[-1], scale[-1]
    centre = patches.mean(axis=0) @ m + b
    if places_share:
        variance = patches.mean(axis=0) ** 2 @ s**2 + sb**2
    else:  # local: places are independent, their mean has a ninth of the variance
        variance = np.mean(patches**2 @ s**2 + sb**2, axis=0) / len(patches)
    squares = (y - centre) ** 2 + variance
    return np.sum(-0.5 * squares / 0.5**2 - np.log(0.5) - 0.5 * np.log(2 * np.pi))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_expected_log_likelihood_of_pooled_places(estimator):
    """Flipout's is that of shared weights, exactly as reparam's. Control: places on their own,
    which is what local noise is: it is right for every place, not for sums of them."""
    density, patches, y = pooled()
    rng = np.random.default_rng(8)
    mean, scale = 0.5 * rng.normal(size=density.dim), rng.uniform(0.1, 0.4, density.dim)
    values = recorded(density, mean, scale, estimator, 20_000, seed=9)
    error = values.std() / np.sqrt(values.size)
    share, alone = (
        abs(values.mean() - expected_pooled(patches, y, mean, scale, places_share=share)) / error
        for share in (True, False)
    )
    if estimator == "local":
        share, alone = alone, share
    assert share < LIMIT
    assert alone > LIMIT


def test_flipout_of_a_deep_network_keeps_the_expectation():
    """Against reparam, two-sample. Control: an oracle whose signs are drawn for each place."""
    model = rb.Model(
        [rb.Conv2D(3, 2), TANH, rb.Conv2D(2, 2), rb.GlobalAvgPool2D(), rb.Dense(1)],
        input_shape=(5, 5, 1),
    )
    made = problem(model, num_rows=16, seed=2)
    made.reference.x[...] = 0.5 + np.abs(made.reference.x)  # an image's places look alike
    density = made.native()
    mean, scale = made.theta, np.full(density.dim, 0.25)
    first, second = (
        recorded(density, mean, scale, name, 20_000, seed=10 + i)
        for i, name in enumerate(("reparam", "flipout"))
    )

    def apart(a, b):
        error = np.hypot(a.std() / np.sqrt(a.size), b.std() / np.sqrt(b.size))
        return abs(a.mean() - b.mean()) / error

    assert apart(first, second) < LIMIT
    rng = np.random.default_rng(11)
    wrong = np.array([signs_per_place(made, mean, scale, rng) for _ in range(1_500)])
    assert apart(first, wrong) > LIMIT


def signs_per_place(made, mean, scale, rng):
    """Log likelihood under flipout whose signs belong to places."""
    drawn = mean + scale * rng.normal(size=mean.size)
    value, n = made.reference.x, len(made.reference.x)
    for entries in made.model.table:
        row = Row(*map(int, entries))
        if OPS[row.op] != "conv":
            value = FORWARD[OPS[row.op]](row, drawn, value)
            continue
        (m, b), (w, _) = arrays(row, mean), arrays(row, drawn)
        cells_of, y = image(row, value), np.zeros((n, row.n_out))
        for i, j, cells in places(row):
            into = rng.choice([-1.0, 1.0], size=(n, row.channels))
            out = rng.choice([-1.0, 1.0], size=(n, row.out_channels))
            for (r, s), (a, c) in cells:
                x = cells_of[:, a, c]
                image_out(row, y)[:, i, j] += x @ m[0, r, s] + (x * into) @ (w - m)[0, r, s] * out
        y.reshape(n, -1, row.out_channels)[...] += b + (drawn - mean)[row.bias : row.bias + b.size]
        value = y
    y = np.asarray(made.reference.y, float)
    return math.fsum(log_likelihood_terms(0, made.reference.scale, value, y)[0])
