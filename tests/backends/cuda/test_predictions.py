"""Predictions at inputs in device memory against those on NumPy.

float64: 1e-12 of the largest entry; float32: 2e-6, a few roundings of the values themselves.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.namespace import device_of
from ribbit._backends.cuda import forward as cuda_forward
from ribbit._backends.cuda import forward_cache
from tests.support.cuda.problems import LIKELIHOODS

BOUND = {"float64": 1e-12, "float32": 2e-6}


def problem(device, name, dtype, rng, rows=40):
    likelihood, outputs = LIKELIHOODS[name]
    model = rb.mlp(3, (9, 6), outputs, activation="tanh")
    x = rng.normal(size=(rows, 3))
    columns = likelihood._columns("test", (outputs,))
    y = rng.normal(size=(rows, columns))
    if name in ("bernoulli", "poisson"):
        y = (y > 0).astype(float)
    if name == "categorical":
        y = rng.integers(0, outputs, size=rows)
    options = {"prior": rb.Normal(0.7), "likelihood": likelihood, "dtype": dtype}
    data = (x, y), (device.asarray(x), device.asarray(y))
    return data, [rb.Posterior(model, *d, **options) for d in data]


def close(a, b, bound):
    assert not isinstance(a, np.ndarray)
    np.testing.assert_allclose(a.get(), b, rtol=0, atol=bound * max(1.0, np.abs(b).max()))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_what_draws_predict(device, monkeypatch, rng, name, dtype):
    """In one pass, and in several panels of rows and groups of samples, the same bits."""
    ((x, y), (dx, dy)), (host, on_device) = problem(device, name, dtype, rng)
    theta = (0.5 * rng.normal(size=(7, host.dim))).astype(dtype)
    given, bound = device.asarray(theta), BOUND[dtype]
    close(on_device.outputs(given, dx), host.outputs(theta, x), bound)
    close(on_device.outputs(given[0], dx), host.outputs(theta[0], x), bound)
    terms, expected = on_device.predictive(given, dx), host.predictive(theta, x)
    close(terms.values, expected.values, bound)
    if expected.noise_sd is not None:
        close(terms.noise_sd, expected.noise_sd, bound)
    density = on_device.log_likelihood(given, dx, dy)
    close(density, host.log_likelihood(theta, x, y), 10 * bound)
    positions, stacked = theta.reshape(1, 7, -1), device.reshape(given, (1, 7, host.dim))
    sums, binary = on_device.predictive_moments(stacked, dx)
    host_sums, host_binary = host.predictive_moments(positions, x)
    assert binary == host_binary
    for a, b in zip(sums, host_sums, strict=True):
        close(a, b, 20 * bound)
    monkeypatch.setattr(cuda_forward, "_MOST_SAMPLES", 3)
    monkeypatch.setattr(cuda_forward, "_PANEL_ROWS", 16)
    pieces, _ = on_device.predictive_moments(stacked, dx)
    for a, b in zip(pieces, sums, strict=True):
        np.testing.assert_array_equal(a.get(), b.get())


@pytest.mark.parametrize("name", ["learned", "categorical"])
def test_draws_predict(device, rng, name):
    """Lazily and while sampling, with quantiles and the density of y."""
    ((x, y), (dx, dy)), targets = problem(device, name, "float64", rng)
    options = {"step_size": 0.02, "num_leapfrog_steps": 4}
    host, on_device = (
        rb.HMC(t, **options).sample(8, warmup=2, chains=2, seed=1, predict_at=at)
        for t, at in zip(targets, ((x, y), (dx, dy)), strict=True)
    )
    for a, b in (
        (on_device.predict(dx), host.predict(x)),
        (on_device.prediction, host.prediction),
    ):
        for what in ("mean", "std") if name == "learned" else ("probs", "epistemic_std"):
            close(getattr(a, what), getattr(b, what), 1e-9)
    assert on_device.prediction.log_likelihood() == pytest.approx(host.prediction.log_likelihood())
    p, q = on_device.predict(dx), host.predict(x)
    assert p.log_likelihood(dy) == pytest.approx(q.log_likelihood(y))
    if name == "learned":
        close(p.credible_quantile([0.1, 0.9]), q.credible_quantile([0.1, 0.9]), 1e-9)
    else:
        close(p.entropy, q.entropy, 1e-9)
        close(p.mutual_information, q.mutual_information, 1e-9)


@pytest.mark.parametrize(
    "name", ["learned", "heteroscedastic", "heteroscedastic-floored", "bernoulli"]
)
def test_weights_that_are_drawn_when_needed(device, monkeypatch, rng, name):
    """What a Gaussian fit predicts: the numbers of its draws, in chunks or not."""
    ((x, y), (dx, dy)), targets = problem(device, name, "float64", rng)
    mean = 0.5 * rng.normal(size=targets[0].dim)
    scale = rng.uniform(0.05, 0.3, size=mean.size)
    fits = [
        rb.MeanField(asarray(mean), asarray(scale), predictive=target)
        for asarray, target in zip((np.asarray, device.asarray), targets, strict=True)
    ]
    p, q = (fit.predict(at, 20, seed=4) for fit, at in zip(fits, (x, dx), strict=True))
    statistics = ("probs", "mutual_information") if name == "bernoulli" else ("mean", "std")
    for what in statistics:
        close(getattr(q, what), getattr(p, what), 1e-11)
    assert q.log_likelihood(dy) == pytest.approx(p.log_likelihood(y), rel=1e-12)
    levels = q.credible_quantile([0.2, 0.9])
    close(levels, p.credible_quantile([0.2, 0.9]), 1e-12)
    stored = fits[1].draws(20, seed=4).predict(dx)
    np.testing.assert_array_equal(stored.credible_quantile([0.2, 0.9]).get(), levels.get())
    for what in statistics:
        np.testing.assert_array_equal(getattr(stored, what).get(), getattr(q, what).get())
    monkeypatch.setattr(cuda_forward, "_MOST_SAMPLES", 3)
    monkeypatch.setattr("ribbit.results.lazy.CHUNK", 150)
    again = fits[1].predict(dx, 20, seed=4)
    np.testing.assert_array_equal(again.credible_quantile([0.2, 0.9]).get(), levels.get())
    for what in statistics:
        np.testing.assert_array_equal(getattr(again, what).get(), getattr(q, what).get())
    with pytest.raises(TypeError, match="expected"):
        fits[1].predict(x, 5).log_likelihood(y)


@pytest.fixture
def written(device, monkeypatch):
    """How many programs of predictions were written, with nothing kept before."""
    made, own = [], forward_cache.Forward

    def counted(*arguments):
        made.append(arguments)
        return own(*arguments)

    monkeypatch.setattr(forward_cache, "Forward", counted)
    forward_cache._kept.pop(device_of(device), None)
    return made


def kept(device):
    """Programs that are kept, the last one used behind the others."""
    found = forward_cache._kept.get(device_of(device))
    return [] if found is None else list(found.programs.values())


def test_what_is_predicted_again_is_written_once(device, monkeypatch, rng, written):
    """Other weights and other numbers in the same rows; four programs are kept, small ones."""
    ((x, _), _), (host, on_device) = problem(device, "gaussian", "float32", rng)
    own, bound = device.asarray(x.astype("f")), BOUND["float32"]
    for _ in range(3):
        theta = (0.5 * rng.normal(size=(7, host.dim))).astype("f")
        close(on_device.outputs(device.asarray(theta), own), host.outputs(theta, x), bound)
    assert len(written) == 1
    x[:5] = 0.5
    own[:5] = 0.5
    close(on_device.outputs(device.asarray(theta), own), host.outputs(theta, x), bound)
    close(on_device.outputs(device.asarray(theta[:3]), own), host.outputs(theta[:3], x), bound)
    assert len(written) == 2
    others = [device.asarray(x.astype("f")) for _ in range(3)]
    for rows in (*others, own):  # the fifth of them is the first one
        close(on_device.outputs(device.asarray(theta), rows), host.outputs(theta, x), bound)
    assert len(written) == 6
    monkeypatch.setattr(cuda_forward, "_PANEL_ROWS", 16)  # as little memory would have it
    close(on_device.outputs(device.asarray(theta), own), host.outputs(theta, x), bound)
    assert len(written) == 7
    monkeypatch.setattr(forward_cache, "_MOST_BYTES", 0)
    for _ in range(2):
        on_device.outputs(device.asarray(theta[:2]), own)
    assert len(written) == 9


def test_threads_take_turns_at_a_program(device, rng, written):
    ((x, _), _), (host, on_device) = problem(device, "gaussian", "float32", rng)
    own = device.asarray(x.astype("f"))
    thetas = (0.5 * rng.normal(size=(8, 3, host.dim))).astype("f")
    on_device.outputs(device.asarray(thetas[0]), own)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda t: on_device.outputs(device.asarray(t), own).get(), thetas))
    assert len(written) == 1
    for theta, values in zip(thetas, found, strict=True):
        np.testing.assert_allclose(values, host.outputs(theta, x), rtol=0, atol=1e-5)


def test_a_program_stays_on_its_stream(device, monkeypatch, rng, written):
    """Where it was made: memory goes back to that stream, whose next launches may write to it."""
    ((x, _), _), (host, on_device) = problem(device, "gaussian", "float32", rng)
    own = device.asarray(x.astype("f"))
    theta = (0.5 * rng.normal(size=(3, host.dim))).astype("f")

    def predict(stream):
        monkeypatch.setattr(device_of(device), "stream", lambda: stream)
        close(on_device.outputs(device.asarray(theta), own), host.outputs(theta, x), 2e-6)

    for count, stream in ((1, 7), (1, 7), (2, 8), (2, 7), (2, 8)):
        predict(stream)
        assert len(written) == len(kept(device)) == count
    a, b = ({one._address(buffer) for buffer in one._keep} for one in kept(device))
    assert not a & b
    with ThreadPoolExecutor(1) as pool:  # a handle that means another stream there
        predict(2)
        pool.submit(predict, 2).result()
        pool.submit(predict, 2).result()
    assert len(written) == 4


def test_what_is_kept_takes_no_memory_from_others(device, monkeypatch, rng, written):
    """On a device with room for one program and no byte more."""
    ((x, _), _), (host, on_device) = problem(device, "gaussian", "float32", rng)
    rows = [device.asarray(x.astype("f")) for _ in range(2)]
    theta = (0.5 * rng.normal(size=(7, host.dim))).astype("f")
    given = device.asarray(theta)
    expected = on_device.outputs(given, rows[0]).get()
    (first,) = kept(device)
    each = 4 * (cuda_forward.scalars_of(first._rows) * first.rows + first.theta_stride)
    memory = 2 * first.samples * each

    def free():
        return memory - sum(one.bytes for one in kept(device))

    monkeypatch.setattr(device_of(device), "free_bytes", free)
    for turn, count in ((0, 1), (1, 2), (1, 2), (0, 3)):
        found = on_device.outputs(given, rows[turn]).get()
        np.testing.assert_array_equal(found, expected)
        assert len(written) == count
        (one,) = kept(device)
        assert (one.rows, one.samples) == (first.rows, first.samples)
    memory -= 1  # never enough: passes of fewer samples, which are not kept
    for count in (4, 5):
        found = on_device.outputs(given, rows[1]).get()
        np.testing.assert_array_equal(found, expected)
        assert (len(written), kept(device)) == (count, [])
    memory = 4
    with pytest.raises(MemoryError, match=r"expected .* GB of free device memory"):
        on_device.outputs(given, rows[1])


@pytest.mark.parametrize("where", ["sizes", "Forward", "use"])
def test_a_prediction_that_is_refused_memory_has_that_of_others(
    device, monkeypatch, rng, written, where
):
    ((x, _), _), (host, on_device) = problem(device, "gaussian", "float32", rng)
    rows = [device.asarray(x.astype("f")) for _ in range(2)]
    theta = (0.5 * rng.normal(size=(7, host.dim))).astype("f")
    given, refused = device.asarray(theta), []
    expected = on_device.outputs(given, rows[0]).get()

    def refusing(function, always):
        def call(*arguments):
            if always or kept(device):
                refused.append(arguments)
                raise MemoryError("out of memory")
            return function(*arguments)

        return call

    def without_memory(always):
        if where == "sizes":
            own = refusing(lambda: 1 << 30, always)
            monkeypatch.setattr(device_of(device), "free_bytes", own)
        elif where == "Forward":
            own = refusing(cuda_forward.Forward, always)
            monkeypatch.setattr(forward_cache, "Forward", own)
        else:
            own = refusing(cuda_forward.numbered_outputs, always)
            monkeypatch.setattr("ribbit._backends.cuda.backend.numbered_outputs", own)

    without_memory(always=False)
    np.testing.assert_array_equal(on_device.outputs(given, rows[1]).get(), expected)
    assert len(refused) == len(kept(device)) == 1
    without_memory(always=True)
    for calls in (3, 4):  # a second attempt where something was kept
        with pytest.raises(MemoryError, match="out of memory"):
            on_device.outputs(given, rows[0])
        assert (len(refused), kept(device)) == (calls, [])


def test_rows_that_are_copied_are_not_kept(device, rng, written):
    """Of another dtype or layout: no later call has that copy."""
    ((x, _), _), (host, on_device) = problem(device, "gaussian", "float32", rng)
    x = x.astype("f")
    given = device.asarray((0.5 * rng.normal(size=(3, host.dim))).astype("f"))
    expected = on_device.outputs(given, device.asarray(x)).get()
    (before,) = kept(device)
    wide = device.asarray(np.repeat(x, 2, axis=1))[:, ::2]
    for rows in (device.asarray(x.astype("d")), wide):
        np.testing.assert_array_equal(on_device.outputs(given, rows).get(), expected)
        assert kept(device) == [before]
    assert len(written) == 3


def test_memories_are_not_mixed(device, rng):
    ((x, y), (dx, _)), (host, on_device) = problem(device, "gaussian", "float64", rng)
    theta = host.init()
    given = device.asarray(theta)
    for call in (
        lambda: on_device.outputs(given, x),
        lambda: on_device.outputs(theta, dx),
        lambda: on_device.predictive(given[None, :], x),
        lambda: on_device.log_likelihood(given[None, :], dx, y),
        lambda: host.outputs(given, x),
    ):
        with pytest.raises(TypeError, match="expected"):
            call()
    with pytest.raises(ValueError, match="expected x of shape"):
        on_device.outputs(given, dx[:, :2])
