"""Data rows of bytes: images of uint8 stay bytes and mean x / 255, to the bit; tokens are checked.

No assertion is random. The control of every comparison is the same bytes without the 255.
"""

import pickle

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.threads import num_threads

# the control is bytes without the 255: numbers up to 255
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ScaleWarning")

RNG = np.random.default_rng(5)
SHAPE, ROWS = (5, 4, 3), 75  # 60 features: less than the run of 64 that is scaled at a time
BYTES = RNG.integers(0, 256, size=(ROWS, *SHAPE), dtype=np.uint8)
BYTES[0, 0, 0], BYTES[1, 0, 0] = 0, 255
LABELS = RNG.integers(0, 3, ROWS)
NEW = RNG.integers(0, 256, size=(41, *SHAPE), dtype=np.uint8)
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])


def scaled(x, dtype):
    return x.astype(dtype) / dtype(255)


def model(shape=SHAPE, dropout=False):
    drop = [rb.Dropout(0.3, spatial=True)] if dropout else []
    return rb.Model(
        [rb.Conv2D(4, 2), rb.FilterResponseNorm(), *drop, rb.Flatten(), rb.Dense(3)],
        input_shape=shape,
    )


def posterior(x, dtype=np.float32, net=None, labels=LABELS):
    return rb.Posterior(
        model() if net is None else net, x, labels, prior=rb.Normal(0.7),
        likelihood=rb.Categorical(), dtype=dtype,
    )  # fmt: skip


def pair(dtype=np.float32, net=None):
    """Targets of bytes, of the same numbers, and of numbers without the 255."""
    return [posterior(x, dtype, net) for x in (BYTES, scaled(BYTES, dtype), BYTES.astype(dtype))]


def same(a, b):
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def values(target, theta):
    return [
        *target.value_and_grad(theta),
        *target.value_and_grad(theta, rows=[74, 3, 3, 0]),
        *target.terms_and_grad(theta),
        target.log_likelihood(theta),
        target.outputs(theta, target.x.reshape(-1, *target.model.input_shape)),
    ]


@DTYPES
def test_values_gradients_and_outputs(dtype):
    first, second, control = pair(dtype)
    theta = first.init(3, chains=2)
    assert all(map(same, values(first, theta), values(second, theta)))
    assert not any(map(same, values(first, theta), values(control, theta)))
    x = scaled(NEW, dtype)
    for t in (theta, theta[0]):
        assert same(first.model.apply(t, NEW), first.model.apply(t, x))
        assert not same(first.model.apply(t, NEW), first.model.apply(t, NEW.astype(dtype)))
    labels = LABELS[:41]
    known = second.log_likelihood(theta, x, labels)
    assert same(first.log_likelihood(theta, NEW, labels), known)


@pytest.mark.parametrize("shape", [(1, 1, 1), (8, 8, 1), (9, 7, 2), (1, 130, 1)])
@DTYPES
def test_images_of_any_size(shape, dtype):
    """Runs of 64 features: 1, 64, 126, 130; every byte."""
    x = (np.arange(33 * np.prod(shape)) * 7 % 256).astype(np.uint8).reshape(33, *shape)
    net = rb.Model([rb.Conv2D(2, 1), rb.GlobalAvgPool2D(), rb.Dense(3)], input_shape=shape)
    first, second = (posterior(a, dtype, net, LABELS[:33]) for a in (x, scaled(x, dtype)))
    theta = first.init()
    assert all(map(same, first.value_and_grad(theta), second.value_and_grad(theta)))
    assert same(net.apply(theta, x), net.apply(theta, scaled(x, dtype)))


@DTYPES
def test_bytes_stay_bytes(dtype):
    target = posterior(BYTES, dtype)
    assert target.x.dtype == np.uint8
    assert target.x.shape == (ROWS, 60)
    assert target.x.nbytes == ROWS * 60
    assert not target.x.flags.writeable
    assert posterior(scaled(BYTES, dtype), dtype).x.dtype == dtype


def test_the_bytes_are_a_copy_whatever_their_strides():
    theta = posterior(BYTES).init()
    known = posterior(BYTES).value_and_grad(theta)
    mine = BYTES.copy()
    target = posterior(mine)
    mine[...] = 7
    assert all(map(same, target.value_and_grad(theta), known))
    backwards = np.asfortranarray(BYTES[::-1])[::-1]
    assert not backwards.flags.c_contiguous
    assert all(map(same, posterior(backwards).value_and_grad(theta), known))
    frozen = BYTES.copy()
    frozen.flags.writeable = False
    assert all(map(same, posterior(frozen).value_and_grad(theta), known))


def test_only_bytes_of_images_are_scaled():
    """Other integers mean what they say; so do bytes of rows, sequences and tokens."""
    theta = posterior(BYTES).init()
    known = posterior(BYTES.astype(np.float32)).value_and_grad(theta)
    for dtype in (np.int16, np.uint16, np.int64):
        assert all(map(same, posterior(BYTES.astype(dtype)).value_and_grad(theta), known))
    for net in (
        rb.Model([rb.Dense(5), rb.Activation("tanh"), rb.Dense(3)], input_shape=(60,)),
        rb.Model([rb.Dense(5), rb.LayerNorm(), rb.Dense(3)], input_shape=(60,)),
        rb.Model([rb.Conv1D(4, 2), rb.Flatten(), rb.Dense(3)], input_shape=(20, 3)),
        rb.Model([rb.Embedding(256, 2), rb.Flatten(), rb.Dense(3)], input_shape=(60,)),
    ):
        x = BYTES.reshape(ROWS, *net.input_shape)
        first, second = (posterior(a, net=net) for a in (x, x.astype(np.float32)))
        assert first.x.dtype == np.float32
        theta = first.init()
        assert all(map(same, values(first, theta), values(second, theta)))
        assert same(net.apply(theta, x), net.apply(theta, x.astype(np.float32)))
        assert not same(net.apply(theta, x), net.apply(theta, x // 255))


def fits(target):
    """Name -> Draws of every method."""
    start = {"seed": 4, "progress": False}
    sgld = rb.SGLD(target, step_size=1e-4, batch_size=20)
    found = {
        "sgld": sgld.sample(4, warmup=3, chains=2, **start),
        "sghmc": rb.SGHMC(target, step_size=1e-4, batch_size=20).sample(4, chains=1, **start),
        "hmc": rb.HMC(target, step_size=0.01, num_leapfrog_steps=3).sample(4, chains=2, **start),
        "ensemble": rb.DeepEnsemble(target, members=2, batch_size=20).fit(2, **start).draws(),
    }
    for estimator in ("reparam", "local", "flipout"):
        for batch in (None, 33):
            bbb = rb.BBB(target, batch_size=batch, estimator=estimator)
            found[f"{estimator} {batch}"] = bbb.fit(2, **start).draws(5, seed=1)
    return found


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_every_method_and_its_predictions(tmp_path):
    first, second, control = (fits(target) for target in pair())
    for name in first:
        assert same(first[name].positions, second[name].positions), name
        assert not same(first[name].positions, control[name].positions), name
        a, b = first[name].predict(NEW), second[name].predict(scaled(NEW, np.float32))
        for what in ("probs", "entropy", "epistemic_std"):
            assert same(getattr(a, what), getattr(b, what)), (name, what)
        assert same(a.credible_quantile([0.1, 0.9]), b.credible_quantile([0.1, 0.9]))
        first[name].save(tmp_path / "run")
        loaded = rb.load(tmp_path / "run")
        assert same(loaded.predict(NEW).probs, a.probs), name
        known = second[name].predict(scaled(NEW, np.float32), keep=True).samples
        assert same(loaded.predict(NEW, keep=True).samples, known), name


@pytest.mark.parametrize("masks", ["row", "shared"])
def test_dropout(tmp_path, masks):
    found = []
    for target in pair(net=model(dropout=True)):
        fit = rb.MCDropout(target, batch_size=20).fit(2, seed=4, progress=False)
        x = NEW if target.x.dtype == np.uint8 else scaled(NEW, np.float32)
        draws = fit.draws(6, seed=2, masks=masks)
        draws.save(tmp_path / "run")
        loaded = rb.load(tmp_path / "run")
        for rows in (x, x[:5]):
            assert same(loaded.predict(rows).probs, draws.predict(rows).probs)
        found.append((fit.theta, draws.predict(x).probs, draws.predict(x[:5]).probs))
    assert all(map(same, found[0], found[1]))
    assert not any(map(same, found[0], found[2]))


def test_predictions_that_run_with_the_sampler():
    first, second = (
        rb.SGLD(target, step_size=1e-4, batch_size=20).sample(
            6, warmup=3, chains=1, seed=4, predict_at=x, progress=False
        )
        for target, x in zip(pair(), (NEW, scaled(NEW, np.float32)), strict=False)
    )
    assert same(first.prediction.probs, second.prediction.probs)
    np.testing.assert_allclose(first.prediction.probs, first.predict(NEW).probs, rtol=1e-6)


def test_pickles_and_resumed_runs():
    target = posterior(BYTES)
    back = pickle.loads(pickle.dumps(target))
    assert same(back.x, target.x)
    theta = target.init()
    assert all(map(same, back.value_and_grad(theta), target.value_and_grad(theta)))
    masked = posterior(BYTES, net=model(dropout=True)).masked()
    again = pickle.loads(pickle.dumps(masked))
    theta = masked.init()
    assert all(map(same, again.value_and_grad(theta), masked.value_and_grad(theta)))
    assert len(pickle.dumps(target)) < ROWS * 60 + 4_000  # bytes there too
    sampler, other = (rb.SGLD(t, step_size=1e-4, batch_size=20) for t in (target, back))
    whole = sampler.sample(6, chains=1, warmup=0, seed=1, progress=False)
    half = sampler.sample(2, chains=1, warmup=0, seed=1, progress=False)
    assert same(other.sample(4, resume=half, progress=False).positions, whole.positions[:, 2:])


@pytest.mark.parametrize("threads", [1, 4])
def test_threads(threads):
    first, second, _ = pair()
    theta = first.init(1, chains=3)
    before = num_threads()
    try:
        rb.set_num_threads(threads)
        found = first.value_and_grad(theta), first.model.apply(theta, NEW)
    finally:
        rb.set_num_threads(before)
    assert all(map(same, found[0], second.value_and_grad(theta)))
    assert same(found[1], first.model.apply(theta, scaled(NEW, np.float32)))


@pytest.mark.parametrize("shape", [(ROWS, 60), (ROWS, 4, 5, 3), (0, *SHAPE), SHAPE])
def test_bytes_of_another_shape(shape):
    x = np.zeros(shape, np.uint8)
    with pytest.raises(ValueError, match=r"^\[Posterior\] expected x of shape \(N, 5, 4, 3\)"):
        posterior(x)
    with pytest.raises(ValueError, match=r"^\[Model.apply\] expected x of shape \(N, 5, 4, 3\)"):
        model().apply(model().init(), x)
    with pytest.raises(ValueError, match=r"^\[predict\] expected x of shape \(N, 5, 4, 3\)"):
        posterior(BYTES).check_inputs(x)


# --- tokens --------------------------------------------------------------------------------------

TOKENS = rb.Model([rb.Embedding(5, 3), rb.LSTM(2), rb.Dense(1)], input_shape=(3,))
BAD = {
    "the size of the vocabulary": (
        [0, 5, 2],
        ValueError,
        r"tokens in \[0, 5\), got .* x\[\d, 1\] is 5",
    ),
    "negative": ([0, -1, 2], ValueError, r"tokens in \[0, 5\), got .* x\[\d, 1\] is -1"),
    "no integer": ([0, 1.5, 2], ValueError, r"integer tokens in \[0, 5\)"),
    "almost an integer": ([0, 4 - 2.0**-20, 2], ValueError, r"integer tokens in \[0, 5\)"),
    "beyond int32": ([0, 2**31, 2], ValueError, r"tokens in \[0, 5\)"),
    "infinite": ([0, np.inf, 2], ValueError, r"finite .* x\[1, 1\] is inf"),
    "not a number": ([0, np.nan, 2], ValueError, r"finite .* x\[1, 1\] is nan"),
    "text": (["a", "b", "c"], TypeError, r"x as an array of real numbers"),
}


def tokens(x, dtype=np.float32):
    return rb.Posterior(
        TOKENS, x, np.zeros(len(x)), prior=rb.Normal(0.7), likelihood=rb.Gaussian(1.0), dtype=dtype
    )


@DTYPES
@pytest.mark.parametrize("name", BAD)
def test_bad_tokens(name, dtype):
    row, error, text = BAD[name]
    good = [[0, 1, 4], [4, 4, 0]]
    bad = np.array([good[0], row])
    target = tokens(good, dtype)
    theta = target.init()
    draws = rb.SGLD(target, step_size=1e-4, batch_size=None).sample(
        2, warmup=0, chains=1, progress=False
    )
    fit = rb.BBB(target).fit(1, progress=False)
    for call in (
        lambda: tokens(bad, dtype),
        lambda: TOKENS.apply(theta, bad),
        lambda: target.outputs(theta, bad),
        lambda: target.log_likelihood(theta[None], bad, [0.0, 0.0]),
        lambda: draws.predict(bad),
        lambda: fit.predict(bad),
        lambda: rb.SGLD(target, batch_size=None).sample(1, predict_at=bad, progress=False),
    ):
        with pytest.raises(error, match=rf"^\[[\w.]+\] expected .*{text}"):
            call()


def test_good_tokens_of_any_dtype():
    x = np.array([[0, 1, 4], [4, 4, 0]])
    theta = tokens(x).init()
    known = tokens(x).value_and_grad(theta)
    for dtype in (np.uint8, np.int8, np.uint64, np.float32, np.float64, ">i4"):
        assert all(map(same, tokens(x.astype(dtype)).value_and_grad(theta), known))
    assert all(map(same, tokens(x.tolist()).value_and_grad(theta), known))
    assert not same(tokens(x[:, ::-1]).value_and_grad(theta)[0], known[0])  # control
