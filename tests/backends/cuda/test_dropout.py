"""MC dropout on arrays of a device (made of the CPU) against the same on NumPy.

float64: differences of summation order alone, 1e-12 of the largest entry; 1e-10 after epochs of
Adam.
"""

import numpy as np
import pytest

import ribbit as rb
from ribbit._backends.cuda import forward as cuda_forward
from ribbit._backends.cuda.samples import Masked
from ribbit.errors import NonFiniteError
from tests.support.layer_problems import SILU, TANH, net

ROWS = 23
NETWORKS = {
    "dense": rb.Model(
        [rb.Dropout(0.2), rb.Dense(9), TANH, rb.Dropout(0.4), rb.Dense(6), SILU, rb.Dense(2)],
        input_shape=(3,),
    ),
    "channels": net(
        (5, 4, 2),
        rb.Conv2D(5, 2),
        TANH,
        rb.Dropout(0.4, spatial=True),
        rb.Residual([rb.Conv2D(5, 1), SILU, rb.Dropout(0.3)]),
        rb.FilterResponseNorm(),
    ),
    "sequence": net(
        (6, 3),
        rb.LSTM(5, sequence=True),
        rb.Dropout(0.3, spatial=True),
        rb.LSTM(4),
        rb.Dropout(0.5),
    ),
}
LIKELIHOODS = {
    "gaussian": rb.Gaussian(0.4),
    "learned": rb.Gaussian(),
    "categorical": rb.Categorical(),
    "poisson": rb.Poisson(),
}
MASKS = pytest.mark.parametrize("masks", ["row", "shared"])


def pair(device, name="dense", likelihood="gaussian", *, dtype="float64", rows=ROWS, **options):
    """Data on both sides, and the same posterior on NumPy and on the device."""
    rng = np.random.default_rng(3)
    model = NETWORKS[name]
    x, y = rng.normal(size=(rows, *model.input_shape)), rng.normal(size=(rows, 2))
    if likelihood == "categorical":
        y = rng.integers(0, 2, size=rows)
    if likelihood == "poisson":
        y = rng.poisson(1.0, size=y.shape)
    given = {"prior": rb.Normal(0.8), "likelihood": LIKELIHOODS[likelihood], "dtype": dtype}
    data = (x, y), (device.asarray(x), device.asarray(y))
    return data, [rb.Posterior(model, *d, **{**given, **options}) for d in data]


def start(target, chains=None):
    shape = (target.dim,) if chains is None else (chains, target.dim)
    return (0.5 * np.random.default_rng(5).normal(size=shape)).astype(target.dtype)


def fits(device, targets, **options):
    """A fit on NumPy and one on the device of the same weights, a draw of the prior."""
    theta = start(targets[0])
    made = [
        rb.MCDropout(t, batch_size=None, learning_rate=1e-300, **options).fit(
            1, seed=1, init=init, progress=False
        )
        for t, init in zip(targets, (theta, device.asarray(theta)), strict=True)
    ]
    np.testing.assert_array_equal(made[0].theta, theta)
    np.testing.assert_array_equal(made[1].theta.get(), theta)
    return made


def close(found, expected, bound=1e-12):
    assert not isinstance(found, np.ndarray)
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(found.get(), expected, rtol=0, atol=bound * scale)


@pytest.mark.parametrize("rows", [None, [3, 20, 3, 0, 7]])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_under_masks(device, name, rows):
    _, targets = pair(device, name, temperature=0.6, likelihood_temperature=1.7)
    host, on_device = (t.masked() for t in targets)
    theta = start(host, 3)
    given = device.asarray(theta)
    for seed, step in ((0, 0), (2**64 - 3, 2**40 - 1)):
        where = {"seed": seed, "step": step}
        lp, grad = on_device.masked_value_and_grad(given, rows, **where)
        expected_lp, expected = host.masked_value_and_grad(theta, rows, **where)
        close(lp, expected_lp)
        close(grad, expected)
    one = on_device.masked_value_and_grad(given[0, :], rows, **where)
    np.testing.assert_array_equal(one[1].get(), grad[0, :].get())
    assert one[0].shape == ()


def test_many_chains_take_the_masks_of_their_numbers(device, monkeypatch):
    _, targets = pair(device)
    host, on_device = (t.masked() for t in targets)
    monkeypatch.setattr("ribbit._backends.cuda.density.MOST_CHAINS", 2)
    theta = start(host, 5)
    _, grad = on_device.masked_value_and_grad(device.asarray(theta), seed=4, step=9)
    close(grad, host.masked_value_and_grad(theta, seed=4, step=9)[1])


@pytest.mark.parametrize(
    "options",
    [{"rate": 0.3, "length_scale": 0.7, "precision": 4.0}, {"length_scale": 2.0}],
    ids=["all", "length scale"],
)
def test_rates_and_priors_that_are_given(device, options):
    _, targets = pair(device, "channels")
    host, on_device = (t.masked(**options) for t in targets)
    np.testing.assert_array_equal(host.rates, on_device.rates)
    theta = start(host)
    found = on_device.masked_value_and_grad(device.asarray(theta), seed=1, step=2)
    for a, b in zip(found, host.masked_value_and_grad(theta, seed=1, step=2), strict=True):
        close(a, b)


def test_evaluations_do_not_wait(device):
    if not hasattr(device, "waits"):
        pytest.skip("only the device made of the CPU counts")
    _, (_, on_device) = pair(device, "channels")
    target = on_device.masked()
    theta = target.init(1, chains=2)
    before = device.waits
    target.masked_value_and_grad(theta, seed=1, step=2)
    assert device.waits == before


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("batch", [None, 8])
def test_fits(device, likelihood, batch):
    """End to end, from the same start."""
    _, targets = pair(device, likelihood=likelihood)
    host, on_device = (
        rb.MCDropout(t, learning_rate=0.01, batch_size=batch).fit(4, seed=9, progress=False)
        for t in targets
    )
    assert on_device.complete
    assert on_device.settings == host.settings
    np.testing.assert_array_equal(on_device.rates, host.rates)
    np.testing.assert_allclose(on_device.theta.get(), host.theta, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["channels", "sequence"])
def test_fits_of_other_layers(device, name):
    _, targets = pair(device, name)
    options = {"learning_rate": 0.01, "batch_size": 10, "rate": 0.3, "length_scale": 0.7}
    host, on_device = (
        rb.MCDropout(t, precision=4.0, **options).fit(3, seed=2, progress=False) for t in targets
    )
    np.testing.assert_allclose(on_device.theta.get(), host.theta, rtol=0, atol=1e-10)


def test_fits_go_on_and_start_others(device):
    _, (_, target) = pair(device)
    trainer = rb.MCDropout(target, batch_size=10)
    whole = trainer.fit(4, seed=3, progress=False)
    rest = trainer.fit(3, resume=trainer.fit(1, seed=3, progress=False), progress=False)
    np.testing.assert_array_equal(rest.theta.get(), whole.theta.get())
    assert trainer.fit(1, init=whole, progress=False).theta.shape == (target.dim,)
    assert whole._starts(None, 0) is whole.theta


def test_a_fit_that_fails_says_where(device):
    _, (_, target) = pair(device)
    with pytest.raises(NonFiniteError, match="finite parameters") as caught:
        rb.MCDropout(target, learning_rate=1e308, batch_size=None).fit(3, progress=False)
    assert not caught.value.state.complete


@MASKS
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_predictions(device, likelihood, masks):
    ((x, y), (dx, dy)), targets = pair(device, likelihood=likelihood)
    host, on_device = (
        fit.predict(at, 30, seed=11, masks=masks)
        for fit, at in zip(fits(device, targets), (x, dx), strict=True)
    )
    classes = likelihood == "categorical"
    statistics = ("probs", "epistemic_std", "entropy") if classes else ("mean", "std")
    for what in statistics:
        close(getattr(on_device, what), getattr(host, what), 1e-11)
    expected = host.log_likelihood(y)
    assert on_device.log_likelihood(dy) == pytest.approx(expected, rel=1e-12)
    close(on_device.credible_quantile([0.1, 0.9]), host.credible_quantile([0.1, 0.9]))


@MASKS
@pytest.mark.parametrize("name", NETWORKS)
def test_every_sample_takes_the_masks_of_its_number(device, name, masks):
    ((x, _), (dx, _)), targets = pair(device, name)
    a, b = (fit.draws(20, seed=7, masks=masks) for fit in fits(device, targets, rate=0.35))
    expected = a.predict(x, keep=True).samples
    close(b.predict(dx, keep=True).samples, expected)
    some = {"first": 4, "row": 6}
    found = b.predictive.outputs(b.positions[0, 4:9, :], dx[6:15, ...], **some)
    close(found, a.predictive.outputs(a.positions[0, 4:9, :], x[6:15, ...], **some))
    close(found, expected[0, 4:9, 6:15, :])


@MASKS
@pytest.mark.parametrize("name", NETWORKS)
def test_chunks_change_no_bit(device, monkeypatch, name, masks):
    ((_, _), (dx, _)), (_, target) = pair(device, name, dtype="float32")
    fit = rb.MCDropout(target, batch_size=None).fit(1, progress=False)
    draws = fit.draws(11, seed=2, masks=masks)
    whole, kept = draws.predict(dx), draws.predict(dx, keep=True)
    samples = kept.samples.get()
    mean, std = whole.mean.get(), whole.std.get()
    np.testing.assert_array_equal(kept.mean.get(), mean)
    monkeypatch.setattr(cuda_forward, "_MOST_SAMPLES", 3)
    monkeypatch.setattr(cuda_forward, "_PANEL_ROWS", 5)
    again = draws.predict(dx)
    np.testing.assert_array_equal(again.mean.get(), mean)
    np.testing.assert_array_equal(again.std.get(), std)
    monkeypatch.setattr("ribbit.results.lazy.CHUNK", 60)
    np.testing.assert_array_equal(draws.predict(dx, keep=True).samples.get(), samples)
    levels = kept.credible_quantile([0.3, 0.8]).get()
    np.testing.assert_array_equal(whole.credible_quantile([0.3, 0.8]).get(), levels)
    np.testing.assert_array_equal(
        draws.predict(dx[:7, ...], keep=True).samples.get(), samples[:, :, :7, :]
    )


def test_layers_before_the_masks_run_once(device):
    """One launch for all samples, of one image each."""
    if not hasattr(device, "waits"):
        pytest.skip("looks into grids")
    _, (_, target) = pair(device, "channels")
    samples = Masked(target.init(1), target.model.rates, 3, False, 0)
    backend = target._native._device
    forward = cuda_forward.Forward(backend, target.model.table, target.x, samples, 16)
    _, _, shared, others = forward._panels[0]
    assert len(shared) == 1
    assert shared[0].grid_of(16) == shared[0].grid_of(1)
    assert all(launch.grid_of(16) != launch.grid_of(1) for launch in others)
    assert forward.theta.shape == (1, target.dim)


def test_draws_are_saved(device, tmp_path):
    """The masks come back, on the host."""
    ((x, _), _), targets = pair(device)
    host, on_device = fits(device, targets)
    draws = on_device.draws(20, seed=3, masks="shared")
    draws.save(tmp_path / "run")
    back = rb.load(tmp_path / "run")
    expected = host.draws(20, seed=3, masks="shared").predict(x).mean
    np.testing.assert_array_equal(back.predict(x).mean, expected)


def test_memories_are_not_mixed(device):
    ((x, y), (dx, _)), targets = pair(device)
    host, on_device = fits(device, targets)
    masked = on_device.target
    for call in (
        lambda: on_device.predict(x, 5).mean,
        lambda: host.predict(dx, 5).mean,
        lambda: on_device.predict(dx, 5).log_likelihood(y),
        lambda: masked.masked_value_and_grad(host.theta, seed=0, step=0),
        lambda: host.target.masked_value_and_grad(on_device.theta, seed=0, step=0),
        lambda: rb.MCDropout(targets[1], batch_size=9).fit(1, init=host, progress=False),
        lambda: rb.MCDropout(targets[0], batch_size=9).fit(1, init=on_device, progress=False),
    ):
        with pytest.raises(TypeError, match="expected"):
            call()
    with pytest.raises(ValueError, match="expected x of shape"):
        on_device.predict(dx[:, :2], 5)


CONCRETE = {
    "two": NETWORKS["dense"],
    "first": rb.Model([rb.Dropout(0.2), rb.Dense(5), TANH, rb.Dense(2)], input_shape=(3,)),
    "in a row": rb.Model(
        [rb.Dense(7), SILU, rb.Dropout(0.1), rb.Dense(33), rb.Dropout(0.3), rb.Dense(2)],
        input_shape=(3,),
    ),
}


@pytest.mark.parametrize("rows", [None, [3, 20, 3, 0, 7]])
@pytest.mark.parametrize("name", CONCRETE)
@pytest.mark.parametrize("options", [{}, {"length_scale": 0.7}], ids=["prior", "length scale"])
def test_gradients_of_learned_rates(device, monkeypatch, name, rows, options):
    monkeypatch.setitem(NETWORKS, name, CONCRETE[name])
    tempered = {"temperature": 0.6, "likelihood_temperature": 1.7}
    for likelihood in ("gaussian", "learned"):
        _, targets = pair(device, name, likelihood, **tempered)
        host, on_device = (t.masked(rate="concrete", **options) for t in targets)
        theta = start(host, 3)
        where = {"seed": 2**64 - 3, "step": 2**40 - 1}
        found = on_device.masked_value_and_grad(device.asarray(theta), rows, **where)
        for a, b in zip(found, host.masked_value_and_grad(theta, rows, **where), strict=True):
            close(a, b)


def test_learned_rates_of_panels(device, monkeypatch):
    """Several panels, the last one short, add up to one pass."""
    _, targets = pair(device, rows=900)
    host, on_device = (t.masked(rate="concrete") for t in targets)
    monkeypatch.setattr("ribbit._backends.cuda.programs.gradient.run_rows", lambda *_: 400)
    theta = start(host, 2)
    found = on_device.masked_value_and_grad(device.asarray(theta), seed=1, step=2)
    for a, b in zip(found, host.masked_value_and_grad(theta, seed=1, step=2), strict=True):
        close(a, b)


@pytest.mark.parametrize("likelihood", ["learned", "categorical"])
def test_fits_of_learned_rates(device, likelihood):
    ((x, _), (dx, _)), targets = pair(device, likelihood=likelihood)
    trainers = [
        rb.MCDropout(t, rate="concrete", learning_rate=0.02, batch_size=8, length_scale=0.5)
        for t in targets
    ]
    host, on_device = (t.fit(5, seed=3, progress=False) for t in trainers)
    assert not np.allclose(host.rates, targets[0].masked().rates, atol=1e-3)
    np.testing.assert_allclose(on_device.rates, host.rates, rtol=0, atol=1e-10)
    np.testing.assert_allclose(on_device.theta.get(), host.theta, rtol=0, atol=1e-10)
    a, b = host.predict(x, 20, seed=4), on_device.predict(dx, 20, seed=4)
    what = "probs" if likelihood == "categorical" else "mean"
    close(getattr(b, what), getattr(a, what), 1e-9)
    parts = trainers[1].fit(2, seed=3, progress=False)
    rest = trainers[1].fit(3, resume=parts, progress=False)
    np.testing.assert_array_equal(rest.theta.get(), on_device.theta.get())
    again = trainers[1].fit(1, init=on_device, progress=False)
    assert again.theta.shape == on_device.theta.shape
    with pytest.raises(ValueError, match="expected init"):
        trainers[1].fit(1, init=on_device.theta[:5], progress=False)
    with pytest.raises(TypeError, match="expected init"):
        trainers[1].fit(1, init=host, progress=False)
