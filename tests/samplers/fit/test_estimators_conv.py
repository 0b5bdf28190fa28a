"""BBB's estimators on networks of every layer: noise for each row, and what it must not change.

The oracle draws each row's weights (flipout) or each place's activations (local) from their
addresses and is differentiated by central differences along sign vectors. Signs belong to a row's
channels, the same at all places of its image; local noise is independent at each place; parameters
of layers other than dense ones and convolutions are drawn once for all rows.
"""

import math

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.threads import num_threads
from ribbit.results.fits import MeanField
from tests.oracle.op_reference import FORWARD, OPS, Row, image, image_out, part, places
from tests.oracle.reference import LIKELIHOODS, WEIGHT_NOISE, log_likelihood_terms, normal
from tests.oracle.stochastic_reference import batch_of
from tests.samplers.fit.test_estimators import (
    BIG,
    FLIPOUT,
    LOCAL,
    REPARAM,
    ROW_NOISE,
    SIGNS,
    row_normals,
    row_signs,
)
from tests.support.layer_problems import KINKED, SILU, SMOOTH, TANH, check_slopes, net, problem
from tests.support.problems import native_labels

ESTIMATORS = {"reparam": REPARAM, "local": LOCAL, "flipout": FLIPOUT}
PAIRED = ("dense", "conv")
ROWS = 37  # a full panel of 32 and a part of one


# --- the oracle ----------------------------------------------------------------------------------


def through(row, x, weights, bias):
    """Outputs (n, size) of a dense layer or a convolution; weights (1 or n, ...), one per row."""
    y = np.zeros((len(x), row.n_out))
    if OPS[row.op] == "dense":
        y += np.einsum("ni,nio->no", x, np.broadcast_to(weights, (len(x), *weights.shape[1:])))
    else:
        cells_of, out = image(row, x), image_out(row, y)
        each = np.broadcast_to(weights, (len(x), *weights.shape[1:]))
        for i, j, cells in places(row):
            for (r, s), (a, b) in cells:
                out[:, i, j] += np.einsum("nc,nck->nk", cells_of[:, a, b], each[:, r, s])
    if bias is not None:
        y.reshape(len(x), -1, bias.size)[...] += bias
    return y


def arrays(row, theta):
    """Weight, with an axis of one in front, and bias or None."""
    if OPS[row.op] == "dense":
        weight, units = part(theta, row.weight, 1, row.n_in, row.n_out), row.n_out
    else:
        size = row.kernel_height, row.kernel_width, row.channels, row.out_channels
        weight, units = part(theta, row.weight, 1, *size), row.out_channels
    return weight, part(theta, row.bias, units) if row.bias >= 0 else None


def channels(row):
    dense = OPS[row.op] == "dense"
    return (row.n_in, row.n_out) if dense else (row.channels, row.out_channels)


def noisy(row, x, rows, mean, scale, e, estimator, where):
    """Outputs (n, size) of a layer with noise for each row."""
    (m, b), (s, sb) = arrays(row, mean), arrays(row, scale)
    if estimator == LOCAL:
        variance = through(row, x**2, s**2, None if sb is None else sb**2)
        z = row_normals(rows, row.n_out, purpose=ROW_NOISE, layer=2 * row.index, **where)
        return through(row, x, m, b) + np.sqrt(variance) * z
    drawn, bias = arrays(row, mean + scale * e)  # biases: once for all rows
    if estimator == REPARAM:
        return through(row, x, drawn, bias)
    into, out = channels(row)
    inward = row_signs(rows, into, purpose=SIGNS, layer=2 * row.index, **where)
    outward = row_signs(rows, out, purpose=SIGNS, layer=2 * row.index + 1, **where)
    shape = (len(rows), *(1,) * (m.ndim - 3))
    flips = inward.reshape(*shape, into, 1) * outward.reshape(*shape, 1, out)
    return through(row, x, m + (drawn - m) * flips, bias)


def outputs(made, mean, scale, rows, estimator, **where):
    """Noisy outputs (n, K) of the rows, and the drawn parameters (P,)."""
    e = normal(mean.size, purpose=WEIGHT_NOISE, **where)
    values = [made.reference.x[rows]]
    for entries in made.model.table:
        row = Row(*map(int, entries))
        name, x = OPS[row.op], values[row.input]
        if name == "add":
            values.append(x + values[row.second])
        elif name in PAIRED:
            values.append(noisy(row, x, rows, mean, scale, e, estimator, where))
        else:
            values.append(FORWARD[name](row, mean + scale * e, x))
    return values[-1], mean + scale * e


def bound(made, state, rows, estimator, *, samples, weight, closed, seed, step):
    """What a step ascends, and its records; state: means and rhos (2 P,)."""
    target, dim = made.reference, state.size // 2
    mean, scale = state[:dim], np.logaddexp(0.0, state[dim:])
    ll = log_prior = 0.0
    for s in range(samples):
        f, theta = outputs(made, mean, scale, rows, estimator, seed=seed, step=step, chain=s)
        y = np.asarray(target.y, float)[rows]
        terms = log_likelihood_terms(target.kind, target.scale, f, y, theta[-1])[0]
        ll += math.fsum(terms) / samples
        log_prior += target.log_prior(theta)[0] / samples
    if closed:
        sd = np.repeat(target.prior[:, 3], target.prior[:, 1].astype(int))
        squares = (mean**2 + scale**2) / sd**2
        log_prior = np.sum(-0.5 * squares - np.log(sd) - 0.5 * np.log(2 * np.pi))
    log_q = -np.sum(np.log(scale)) - dim * 0.5 * np.log(2 * np.pi * np.e)
    t, tl = target.temperature, target.likelihood_temperature
    return ll / (t * tl) - weight * (log_q - log_prior / t), (ll, log_q, log_prior)


def one_step(made, start, estimator, *, batch, samples, weight, closed, step):
    """Gradient (2 P,) by means and rhos, and the records, of one native step."""
    native = made.native()
    state = np.zeros((6, native.dim))
    state[:2] = start.reshape(2, -1)
    moved, records, failed, _ = native.advance_variational(
        state,
        seed=BIG,
        first_step=step,
        batch_size=batch or len(made.reference.x),
        num_samples=samples,
        estimator=estimator,
        closed=closed,
        step_size=np.array([1e-3]),
        kl_weight=np.array([weight]),
        decay=(0.9, 0.999),
        epsilon=1e-8,
    )
    assert failed == -1
    return moved[[2, 4]].reshape(-1) / 0.1, records[:, 0]


def check(made, estimator, *, batch=None, samples=1, closed=True, kinked=False, swap=None):
    """Records and gradient of a native step are the oracle's; swap: another oracle's estimator."""
    rng = np.random.default_rng(1)
    start = np.concatenate([made.theta, rng.uniform(-3, -1, made.theta.size)])
    num_rows = len(made.reference.x)
    batches = 1 if batch is None else -(-num_rows // batch)
    step = 2**32 * batches + batches - 1  # beyond 32 bits, the last batch of an epoch
    rows = batch_of(step, num_rows, batch, seed=BIG, chain=0)
    settings = {"samples": samples, "weight": 0.37, "closed": closed, "step": step}
    gradient, records = one_step(made, start, estimator, batch=batch, **settings)

    def value(state):
        return bound(made, state, rows, swap or estimator, seed=BIG, **settings)

    np.testing.assert_allclose(records, value(start)[1], rtol=1e-10)
    # log q alone has slopes of 1 / scale: a curvature that a kink's small step does not need
    h = 1e-6 if kinked else 1e-4
    check_slopes(lambda many: [value(s)[0] for s in many], gradient, start, h)


NETWORKS = {
    "conv2d": SMOOTH["two convolutions"],
    "conv1d": SMOOTH["conv1d same"],
    "strided": SMOOTH["conv shortcut"],
    "many channels": net((2, 3, 2), rb.Conv2D(35, 1), TANH, rb.Conv2D(3, 2), SILU),
    "more than 128 channels": net((1, 2, 130), rb.Conv2D(131, 1), TANH, rb.Conv2D(2, (1, 2))),
    "average pool": SMOOTH["global average"],
    "max pool": KINKED["overlapping max pool same"],
    "frn": KINKED["pre-activation residual"],
    "frn of the input": KINKED["frn of the input"],
    "layer norm": SMOOTH["layer norm of an image"],
    "layer norm of a row": SMOOTH["layer norm of a row"],
    "lstm": SMOOTH["lstm after lstm"],
    "embedding": SMOOTH["embedding"],
    "embedding and lstm": KINKED["cnn and lstm"],
    "residual": SMOOTH["nested"],
    "shortcut of the input": SMOOTH["shortcut of the input"],
}
KINKS = {"max pool", "frn", "frn of the input", "embedding and lstm"}
BOTH = pytest.mark.parametrize("estimator", ["local", "flipout"])


@BOTH
@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_is_the_oracles(name, estimator):
    made = problem(NETWORKS[name], likelihood=1, num_rows=ROWS, temperature=0.8)
    check(made, ESTIMATORS[estimator], kinked=name in KINKS)


@BOTH
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(("batch", "samples"), [(33, 2), (5, 1), (64, 1), (1, 3)])
def test_minibatches_and_samples(batch, samples, closed, estimator):
    temperatures = {"temperature": 0.8, "likelihood_temperature": 1.3}
    made = problem(NETWORKS["strided"], likelihood=1, num_rows=70, **temperatures)
    check(made, ESTIMATORS[estimator], batch=batch, samples=samples, closed=closed)


@BOTH
@pytest.mark.parametrize("likelihood", range(len(LIKELIHOODS)), ids=LIKELIHOODS)
def test_every_likelihood(likelihood, estimator):
    model = net((4, 3, 2), rb.Conv2D(3, 2), TANH, outputs=4)
    check(problem(model, likelihood=likelihood, num_rows=9), ESTIMATORS[estimator], batch=4)


def test_reparam_of_every_layer():
    for name in ("strided", "frn", "embedding and lstm"):
        made = problem(NETWORKS[name], likelihood=1, num_rows=ROWS)
        check(made, REPARAM, batch=20, samples=2, kinked=name in KINKS)


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("name", [n for n in {**SMOOTH, **KINKED} if "dropout" not in n])
def test_a_step_of_every_network(name, estimator):
    made = problem({**SMOOTH, **KINKED}[name], likelihood=1, num_rows=70)
    check(made, ESTIMATORS[estimator], batch=33, kinked=name in KINKED)


def test_the_checks_notice_another_noise():
    # controls: the oracle of another estimator; a gradient whose second path is 1 % too large
    made = problem(NETWORKS["conv2d"], likelihood=1, num_rows=9)
    for right, wrong in ((LOCAL, FLIPOUT), (FLIPOUT, LOCAL)):
        with pytest.raises(AssertionError):
            check(made, right, swap=wrong)
    settings = {"samples": 1, "weight": 0.37, "closed": True, "step": 3}
    start = np.concatenate([made.theta, np.full(made.theta.size, -2.0)])
    gradient, _ = one_step(made, start, LOCAL, batch=None, **settings)
    gradient[made.theta.size : made.theta.size + 5] *= 1.01

    def values(many):
        return [bound(made, s, np.arange(9), LOCAL, seed=BIG, **settings)[0] for s in many]

    with pytest.raises(AssertionError):
        check_slopes(values, gradient, start, 1e-4)


@BOTH
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("bias", [True, False])
def test_black_images_have_no_noise_to_differentiate(bias, dtype, estimator):
    """Variances of zero, or that underflow, have a derivative of zero, not NaN."""
    layers = [rb.Conv2D(3, 3, padding="same", bias=bias), TANH, rb.Conv2D(2, 3, bias=bias), SILU]
    model = rb.Model(
        [*layers, rb.FilterResponseNorm(), rb.Flatten(), rb.Dense(1, bias=bias)],
        input_shape=(5, 5, 1),
    )
    point = np.zeros((9, 5, 5, 1), np.uint8)
    point[:, 2, 2] = 255
    for x in (np.zeros((9, 5, 5, 1), np.uint8), point, np.full((9, 5, 5, 1), 1e-25)):
        density = rb.Posterior(
            model, x, np.ones(9), prior=rb.Normal(1.0), likelihood=rb.Gaussian(1.0), dtype=dtype
        )
        bbb = rb.BBB(density, estimator=estimator, learning_rate=0.05, init_scale=1e-3)
        fit = bbb.fit(40, progress=False)
        assert np.isfinite(fit.mean).all()
        assert np.isfinite(fit.elbo).all()
        assert np.isfinite(fit.scale).all()


# --- laws ----------------------------------------------------------------------------------------

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


# --- bits ----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("batch", [48, None])
@pytest.mark.parametrize("name", ["strided", "frn", "embedding and lstm"])
def test_bits_do_not_depend_on_threads_or_restarts(name, batch, estimator):
    made = problem(NETWORKS[name], likelihood=1, num_rows=300)
    bbb = rb.BBB(made.native(np.float32), batch_size=batch, estimator=estimator, num_samples=2)
    before = num_threads()
    try:
        rb.set_num_threads(1)
        whole = bbb.fit(3, seed=3, progress=False)
        assert len(set(whole.elbo)) == 3
        for threads in (2, 4):
            rb.set_num_threads(threads)
            again = bbb.fit(3, seed=3, progress=False)
            assert again.mean.tobytes() == whole.mean.tobytes()
            assert again.scale.tobytes() == whole.scale.tobytes()
    finally:
        rb.set_num_threads(before)
    rest = bbb.fit(2, resume=bbb.fit(1, seed=3, progress=False), progress=False)
    assert rest.mean.tobytes() == whole.mean.tobytes()
    np.testing.assert_array_equal(rest.elbo, whole.elbo)


@BOTH
def test_float32_follows_float64(estimator):
    made = problem(NETWORKS["strided"], likelihood=3, num_rows=ROWS)
    assert native_labels(made.reference).ndim == 1
    pair = [
        rb.BBB(made.native(dtype), batch_size=20, estimator=estimator).fit(
            3, seed=3, init=made.theta, progress=False
        )
        for dtype in (np.float32, np.float64)
    ]
    np.testing.assert_allclose(pair[0].elbo, pair[1].elbo, rtol=1e-5)
