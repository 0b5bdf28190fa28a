"""BBB's estimators on networks of every layer: noise for each row, and what it must not change.

The oracle draws each row's weights (flipout) or each place's activations (local) from their
addresses and is differentiated by central differences along sign vectors. Signs belong to a row's
channels, the same at all places of its image; local noise is independent at each place; parameters
of layers other than dense ones and convolutions are drawn once for all rows.
"""

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.threads import num_threads
from tests.oracle.reference import LIKELIHOODS
from tests.oracle.row_noise_reference import FLIPOUT, LOCAL, REPARAM, bound
from tests.oracle.stochastic_reference import batch_of
from tests.support.layer_problems import KINKED, SILU, SMOOTH, TANH, check_slopes, net, problem
from tests.support.problems import native_labels
from tests.support.row_noise import BIG, BOTH, KINKS, NETWORKS, one_step

ROWS = 37  # a full panel of 32 and a part of one
WIDE = ("many channels", "more than 128 channels")
EVERY = {**SMOOTH, **KINKED, **{name: NETWORKS[name] for name in WIDE}}
SHARP = {*KINKED, "two norms of one value", "main of one norm, dropout"}  # maxima and thresholds


def flat_step(made, start, estimator, **settings):
    """Gradient (2 P,) by means and rhos, and the records, of one native step."""
    gradient, records = one_step(made.native(), start.reshape(2, -1), estimator, **settings)
    return gradient.reshape(-1), records


def check(made, estimator, *, batch=None, samples=1, closed=True, kinked=False, swap=None):
    """Records and gradient of a native step are the oracle's; swap: another oracle's estimator."""
    rng = np.random.default_rng(1)
    start = np.concatenate([made.theta, rng.uniform(-3, -1, made.theta.size)])
    num_rows = len(made.reference.x)
    batches = 1 if batch is None else -(-num_rows // batch)
    step = 2**32 * batches + batches - 1  # beyond 32 bits, the last batch of an epoch
    rows = batch_of(step, num_rows, batch, seed=BIG, chain=0)
    settings = {"samples": samples, "weight": 0.37, "closed": closed, "step": step}
    gradient, records = flat_step(made, start, estimator, batch=batch, **settings)

    def value(state):
        return bound(made, state, rows, swap or estimator, seed=BIG, **settings)

    np.testing.assert_allclose(records, value(start)[1], rtol=1e-10)
    # log q alone has slopes of 1 / scale: a curvature that a kink's small step does not need
    h = 1e-7 if kinked else 1e-4
    check_slopes(lambda many: [value(s)[0] for s in many], gradient, start, h)


@pytest.mark.full
@BOTH
@pytest.mark.parametrize("name", EVERY)
def test_a_step_is_the_oracles(name, estimator):
    made = problem(EVERY[name], likelihood=1, num_rows=70, temperature=0.8)
    check(made, estimator, batch=33, kinked=name in SHARP)


@BOTH
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(("batch", "samples"), [(33, 2), (5, 1), (64, 1), (1, 3)])
def test_minibatches_and_samples(batch, samples, closed, estimator):
    temperatures = {"temperature": 0.8, "likelihood_temperature": 1.3}
    made = problem(NETWORKS["strided"], likelihood=1, num_rows=70, **temperatures)
    check(made, estimator, batch=batch, samples=samples, closed=closed)


@BOTH
@pytest.mark.parametrize("likelihood", range(len(LIKELIHOODS)), ids=LIKELIHOODS)
def test_every_likelihood(likelihood, estimator):
    model = net((4, 3, 2), rb.Conv2D(3, 2), TANH, outputs=4)
    check(problem(model, likelihood=likelihood, num_rows=9), estimator, batch=4)


def test_reparam_of_every_layer():
    for name in ("strided", "frn", "embedding and lstm"):
        made = problem(NETWORKS[name], likelihood=1, num_rows=ROWS)
        check(made, REPARAM, batch=20, samples=2, kinked=name in KINKS)


def test_the_checks_notice_another_noise():
    # controls: the oracle of another estimator; a gradient whose second path is 1 % too large
    made = problem(NETWORKS["conv2d"], likelihood=1, num_rows=9)
    for right, wrong in ((LOCAL, FLIPOUT), (FLIPOUT, LOCAL)):
        with pytest.raises(AssertionError):
            check(made, right, swap=wrong)
    settings = {"samples": 1, "weight": 0.37, "closed": True, "step": 3}
    start = np.concatenate([made.theta, np.full(made.theta.size, -2.0)])
    gradient, _ = flat_step(made, start, LOCAL, batch=None, **settings)
    gradient[made.theta.size : made.theta.size + 5] *= 1.01

    def values(many):
        return [bound(made, s, np.arange(9), LOCAL, seed=BIG, **settings)[0] for s in many]

    with pytest.raises(AssertionError):
        check_slopes(values, gradient, start, 1e-4)


# forty steps at a large rate: whether they are finite, not where they end
@pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")
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
