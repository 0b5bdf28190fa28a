"""BBB's estimators with noise for each row: local reparameterisation and flipout.

The oracle evaluates the noisy network row by row from the addressed noise, with a weight matrix for
each row (flipout) or a normal for each activation (local), and differentiates by central
differences in float64.
"""

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core
from ribbit.results.fits import MeanField
from tests.oracle.reference import WEIGHT_NOISE, normal
from tests.oracle.row_noise_reference import (
    FLIPOUT,
    LOCAL,
    REPARAM,
    ROW_NOISE,
    SIGNS,
    row_normals,
    row_signs,
)
from tests.oracle.stochastic_reference import batch_of
from tests.support.row_noise import BIG, one_step

ROWS = 70
RNG = np.random.default_rng(12)
X = RNG.normal(size=(ROWS, 3))
Y = RNG.normal(size=(ROWS, 2))
LABELS = RNG.integers(0, 2, ROWS)


def posterior(likelihood=None, hidden=(5, 33), activation="tanh", **options):
    likelihood = rb.Gaussian() if likelihood is None else likelihood
    return rb.Posterior(
        rb.mlp(3, hidden, 2, activation=activation),
        X,
        LABELS if isinstance(likelihood, rb.Categorical) else Y,
        prior=options.pop("prior", rb.Normal(0.7)),
        likelihood=likelihood,
        **{"dtype": np.float64, **options},
    )


# --- the oracle ----------------------------------------------------------------------------------


def layers(density, theta):
    """(W, b) of each dense layer, and the layer's number."""
    views = density.unravel(theta)
    numbers = sorted({int(k.split(".")[0]) for k in views if "." in k})
    return [(views[f"{i}.weight"], views[f"{i}.bias"], i) for i in numbers]


def outputs(density, mean, scale, rows, estimator, *, seed, step, sample, activation=np.tanh):
    """Noisy outputs (n, 2) of the rows."""
    where = {"seed": seed, "step": step, "chain": sample}
    e = normal(mean.size, purpose=WEIGHT_NOISE, **where)
    stacks = [layers(density, v) for v in (mean, scale, e)]
    h = X[rows]
    for place, ((m, b, number), (s, sb, _), (z, zb, _)) in enumerate(zip(*stacks, strict=True)):
        if place:
            h = activation(h)
        if estimator == REPARAM:
            h = h @ (m + s * z) + b + sb * zb
        elif estimator == LOCAL:
            noise = row_normals(rows, b.size, purpose=ROW_NOISE, layer=2 * number, **where)
            h = h @ m + b + np.sqrt(h**2 @ s**2 + sb**2) * noise
        else:
            inward = row_signs(rows, h.shape[1], purpose=SIGNS, layer=2 * number, **where)
            outward = row_signs(rows, b.size, purpose=SIGNS, layer=2 * number + 1, **where)
            w = m + (s * z) * inward[:, :, None] * outward[:, None, :]  # (n, in, out)
            h = np.einsum("ni,nio->no", h, w) + b + sb * zb
    theta = mean + scale * e
    return h, theta[density.dim - density.noises :], theta


def log_likelihood(density, f, rows, log_noise):
    if isinstance(density.likelihood, rb.Categorical):
        f = f - f.max(axis=1, keepdims=True)
        return (f[np.arange(len(rows)), LABELS[rows]] - np.log(np.exp(f).sum(axis=1))).sum()
    if not density.likelihood.learns_noise:
        log_noise = np.log(density.likelihood.scale)
    log_noise = np.broadcast_to(log_noise, f.shape)
    residual = (Y[rows] - f) * np.exp(-log_noise)
    return np.sum(-0.5 * residual**2 - log_noise - 0.5 * np.log(2 * np.pi))


def bound(density, state, rows, estimator, samples, weight, *, closed, seed, step, **net):
    """What a step ascends, and its records."""
    mean, scale = state[: density.dim], np.logaddexp(0.0, state[density.dim :])
    ll = log_prior = 0.0
    for s in range(samples):
        where = {"seed": seed, "step": step, "sample": s}
        f, log_noise, theta = outputs(density, mean, scale, rows, estimator, **where, **net)
        ll += log_likelihood(density, f, rows, log_noise) / samples
        log_prior += float(density.log_prior(theta)) / samples
    if closed:
        prior_sd = np.full(density.dim, 0.7)
        prior_sd[density.dim - density.noises :] = 1.0
        squares = (mean**2 + scale**2) / prior_sd**2
        log_prior = np.sum(-0.5 * squares - np.log(prior_sd) - 0.5 * np.log(2 * np.pi))
    log_q = -np.sum(np.log(scale)) - density.dim * 0.5 * np.log(2 * np.pi * np.e)
    t, tl = density.temperature, density.likelihood_temperature
    return ll / (t * tl) - weight * (log_q - log_prior / t), (ll, log_q, log_prior)


@pytest.mark.parametrize("estimator", [REPARAM, LOCAL, FLIPOUT])
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(("batch", "samples"), [(None, 1), (33, 2)])
def test_gradients_are_the_oracles(estimator, closed, batch, samples):
    density = posterior(temperature=0.8, likelihood_temperature=1.3, hidden=(5, 4))
    check(density, estimator, closed, batch, samples)


@pytest.mark.parametrize("estimator", [LOCAL, FLIPOUT])
def test_gradients_of_other_networks(estimator):
    check(posterior(rb.Categorical(), hidden=(6,)), estimator, True, None, 1)
    check(posterior(rb.Gaussian(0.4), hidden=()), estimator, True, 20, 1)
    check(posterior(rb.Gaussian(0.4), prior=rb.Laplace(0.5)), estimator, False, 64, 1)


def check(density, estimator, closed, batch, samples):
    rng = np.random.default_rng(1)
    start = np.stack([0.5 * rng.normal(size=density.dim), rng.uniform(-3, -1, density.dim)])
    batches = 1 if batch is None else -(-ROWS // batch)
    step, weight = 2**32 * batches + batches - 1, 0.37  # a step beyond 32 bits, the last batch
    rows = batch_of(step, ROWS, batch, seed=BIG, chain=0)
    arguments = (rows, estimator, samples, weight)
    where = {"closed": closed, "seed": BIG, "step": step}
    grad, records = one_step(
        density, start, estimator, step=step, batch=batch, samples=samples, weight=weight,
        closed=closed,
    )  # fmt: skip
    _, expected = bound(density, start.reshape(-1), *arguments, **where)
    np.testing.assert_allclose(records, expected, rtol=1e-10)
    flat = start.reshape(-1)
    some = rng.choice(flat.size, size=min(flat.size, 60), replace=False)
    behind = np.arange(density.dim - density.noises, density.dim)
    some = np.r_[some, behind, density.dim + behind]
    for i in some:
        h = np.zeros_like(flat)
        h[i] = 1e-5
        up, down = (bound(density, flat + sign * h, *arguments, **where)[0] for sign in (1, -1))
        numeric = (up - down) / 2e-5
        assert abs(grad.reshape(-1)[i] - numeric) < 1e-6 * max(1.0, np.abs(grad).max()), i


def test_rows_of_zeros_have_no_noise_to_differentiate():
    """Without a bias a zero row has variance zero: its derivative is taken as zero, not NaN."""
    model = rb.Model(
        [rb.Dense(4, bias=False), rb.Activation("tanh"), rb.Dense(1)], input_shape=(3,)
    )
    x = np.zeros((8, 3))
    density = rb.Posterior(
        model, x, np.ones(8), prior=rb.Normal(1.0), likelihood=rb.Gaussian(1.0), dtype=np.float64
    )
    fit = rb.BBB(density, estimator="local", learning_rate=0.1).fit(200, progress=False)
    assert np.isfinite(fit.mean).all()
    assert np.isfinite(fit.elbo).all()


# --- expectations --------------------------------------------------------------------------------

NAMES = ("reparam", "local", "flipout")


def linear(noise=0.4):
    return rb.Posterior(
        rb.mlp(3, (), 1), X, Y[:, :1], prior=rb.Normal(0.7), likelihood=rb.Gaussian(noise),
        dtype=np.float64,
    )  # fmt: skip


def expected(mean, scale, noise=0.4):
    """E_q[log likelihood] of the linear model."""
    design = np.c_[X, np.ones(ROWS)]
    squares = (Y[:, 0] - design @ mean) ** 2 + design**2 @ scale**2
    return np.sum(-0.5 * squares / noise**2 - np.log(noise) - 0.5 * np.log(2 * np.pi))


@pytest.mark.parametrize("estimator", NAMES)
def test_the_expected_log_likelihood(estimator):
    """20,000 draws, 5.5 standard errors: false-fail rate 4e-8 each. The control, sds 2 % larger,
    must fail."""
    start = MeanField(np.array([0.2, -0.5, 0.9, 0.1]), np.array([0.3, 0.4, 0.6, 0.2]))
    bbb = rb.BBB(linear(), learning_rate=1e-12, estimator=estimator)
    values = bbb.fit(20_000, seed=8, init=start, progress=False).expected_log_likelihood
    error = values.std() / np.sqrt(values.size)
    assert abs(values.mean() - expected(start.mean, start.scale)) < 5.5 * error
    if estimator == "local":  # the others' errors are too large to see it
        assert abs(values.mean() - expected(start.mean, 1.02 * start.scale)) > 5.5 * error
    else:
        assert abs(values.mean() - expected(start.mean, 1.2 * start.scale)) > 5.5 * error


def test_noise_for_each_row_lowers_the_variance():
    """Of the likelihood's gradient by the means, at least ten times on 70 rows.

    The steps have fixed addresses: a run repeats to the bit.
    """
    density = linear()
    rng = np.random.default_rng(5)
    start = np.stack([rng.normal(size=density.dim), np.full(density.dim, -1.0)])

    def variance(estimator):
        grads = [
            one_step(
                density, start, estimator, step=s, batch=None, samples=1, weight=0.0, closed=True
            )[0][0]
            for s in range(200)
        ]
        return np.var(grads, axis=0)

    plain = variance(REPARAM)
    assert (variance(LOCAL) < plain / 10).all()
    assert (variance(FLIPOUT)[:-1] < plain[:-1] / 2).all()  # biases share their noise


@pytest.mark.parametrize("estimator", NAMES[1:])
def test_the_exact_optimum_is_reached(estimator):
    """A fixed seed repeats the run to the bit: it fails always or never."""
    density = linear()
    epochs = 10_000
    fit = rb.BBB(
        density,
        estimator=estimator,
        learning_rate=0.003,
        num_samples=32,
        schedule=rb.schedules.cosine(epochs),
    ).fit(epochs, seed=1, progress=False)
    design = np.c_[X, np.ones(ROWS)]
    precision = design.T @ design / 0.4**2 + np.eye(4) / 0.7**2
    mean = np.linalg.solve(precision, design.T @ Y[:, 0] / 0.4**2)
    scale = np.diag(precision) ** -0.5
    assert np.max(np.abs(fit.mean - mean) / scale) < 0.01
    assert np.max(np.abs(fit.scale / scale - 1)) < 0.01
    wrong = (np.diag(precision) + 0.05 / 0.7**2 * np.diag(precision)) ** -0.5
    assert np.max(np.abs(fit.scale / wrong - 1)) > 0.01


@pytest.mark.parametrize("estimator", NAMES[1:])
@pytest.mark.parametrize(
    ("batch", "hidden"),
    [(48, (40, 30)), (300, (40, 30)), (None, (40, 30)), (150, (210, 170)), (None, (210, 170))],
)
def test_bits_do_not_depend_on_threads_or_restarts(estimator, batch, hidden):
    x = np.random.default_rng(0).normal(size=(700, 6))
    density = rb.Posterior(
        rb.mlp(6, hidden, 1),
        x,
        np.sin(x[:, 0]),
        prior=rb.Normal(0.7),
        likelihood=rb.Gaussian(),
    )
    bbb = rb.BBB(density, batch_size=batch, estimator=estimator, num_samples=2)
    before = _core.num_threads()
    try:
        rb.set_num_threads(2)
        whole = bbb.fit(5, seed=3, progress=False)
        for threads in (1, 3):
            rb.set_num_threads(threads)
            again = bbb.fit(5, seed=3, progress=False)
            assert again.mean.tobytes() == whole.mean.tobytes()
            assert again.scale.tobytes() == whole.scale.tobytes()
            np.testing.assert_array_equal(again.elbo, whole.elbo)
    finally:
        rb.set_num_threads(before)
    rest = bbb.fit(3, resume=bbb.fit(2, seed=3, progress=False), progress=False)
    assert rest.mean.tobytes() == whole.mean.tobytes()
    np.testing.assert_array_equal(rest.elbo, whole.elbo)
