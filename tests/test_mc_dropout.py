"""MC dropout and deep ensembles: masks by address, the law of all masks, training, bits."""

import itertools

import numpy as np
import pytest

import ribbit as rb
from gates import Table
from reference import words
from ribbit.errors import NonFiniteError
from ribbit.fits import DropoutFit, EnsembleFit
from stochastic_reference import batch_of

MASK, PREDICTIVE_MASK = 6, 14
RNG = np.random.default_rng(2)
ROWS = 45
X = RNG.normal(size=(ROWS, 3))
Y = np.sin(X[:, :1]) + 0.1 * RNG.normal(size=(ROWS, 1))


def model(rates=(0.3, 0.45), hidden=5, activation="tanh"):
    """Dropout on the input and on the hidden layer."""
    layers = [rb.Dense(hidden), rb.Activation(activation), rb.Dense(1)]
    if rates[1]:
        layers.insert(2, rb.Dropout(rates[1]))
    if rates[0]:
        layers.insert(0, rb.Dropout(rates[0]))
    return rb.Model(layers, input_shape=(3,))


def target(net=None, **options):
    return rb.Posterior(
        model() if net is None else net,
        X,
        Y,
        **{
            "prior": rb.Normal(0.8),
            "likelihood": rb.Gaussian(0.3),
            "dtype": np.float64,
            **options,
        },
    )


def mask(rows, units, rate, *, seed, step, sample, layer, purpose=MASK):
    """Factors (len(rows), units): element row * 4 ceil(units / 4) + unit of the mask stream."""
    blocks = -(-units // 4)
    number = (np.asarray(rows)[:, None] * blocks + np.arange(blocks)).reshape(-1)
    found = words(number, seed=seed, step=step, chain=sample, purpose=purpose, layer=layer)
    found = found.reshape(len(rows), 4 * blocks)[:, :units]
    return np.where(found >= np.round(rate * 2.0**32), 1 / (1 - rate), 0.0)


def forward(theta, x, first, second):
    """Output (n, 1) and tape of the network of `model` under masks (n, 3) and (n, hidden)."""
    hidden = (theta.size - 1) // 5
    w, b = theta[: 3 * hidden].reshape(3, hidden), theta[3 * hidden : 4 * hidden]
    v, c = theta[4 * hidden : 5 * hidden].reshape(hidden, 1), theta[-1]
    z = np.tanh((x * first) @ w + b)
    return (z * second) @ v + c, z


def gradient(theta, rows, first, second):
    """Of the log density on a batch, likelihood scaled by N/n, by hand."""
    hidden = second.shape[1]
    f, z = forward(theta, X[rows], first, second)
    delta = ROWS / len(rows) * (Y[rows] - f) / 0.3**2
    v = theta[4 * hidden : 5 * hidden]
    back = (delta * v * second) * (1 - z**2)
    parts = [
        (X[rows] * first).T @ back,
        back.sum(axis=0),
        (z * second).T @ delta,
        delta.sum(axis=0),
    ]
    return np.concatenate([p.reshape(-1) for p in parts]) - theta / 0.8**2


def masks_of(rows, *, seed, step, sample, hidden=5, purpose=MASK):
    where = {"seed": seed, "step": step, "sample": sample, "purpose": purpose}
    return mask(rows, 3, 0.3, layer=0, **where), mask(rows, hidden, 0.45, layer=3, **where)


# --- masks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [1, 4, 5, 18, 40])
def test_gradients_under_masks_are_the_oracles(hidden):
    density = target(model(hidden=hidden)).masked()
    theta = 0.5 * np.random.default_rng(1).normal(size=(2, density.dim))
    for rows in (np.arange(ROWS), np.array([7]), np.array([44, 3, 3, 20] * 11)):
        for seed, step in ((0, 0), (2**64 - 1, 2**40 - 1), (5, 77)):
            _, grad = density.masked_value_and_grad(theta, rows, seed=seed, step=step)
            for chain in range(2):
                first, second = masks_of(rows, seed=seed, step=step, sample=chain, hidden=hidden)
                expected = gradient(theta[chain], rows, first, second)
                np.testing.assert_allclose(grad[chain], expected, rtol=1e-9, atol=1e-9)
    everything = density.masked_value_and_grad(theta, seed=5, step=77)[1]
    same = density.masked_value_and_grad(theta, np.arange(ROWS), seed=5, step=77)[1]
    np.testing.assert_allclose(everything, same, rtol=1e-9)


@pytest.mark.parametrize(
    "layers",
    [
        [rb.Dropout(0.4), rb.Dense(1)],
        [rb.Dense(6), rb.Dropout(0.4), rb.Dense(1)],
        [rb.Dense(6), rb.Dropout(0.4), rb.Activation("silu"), rb.Dense(1)],
        [rb.Dense(6), rb.Activation("silu"), rb.Dropout(0.4), rb.Dropout(0.2), rb.Dense(1)],
        [rb.Dense(6), rb.Activation("silu"), rb.Activation("tanh"), rb.Dropout(0.4), rb.Dense(1)],
        [rb.Activation("silu"), rb.Dropout(0.4), rb.Dense(6), rb.Dropout(0.3), rb.Dense(1)],
        [rb.Dense(1), rb.Dropout(0.4)],
        [
            rb.Dense(33),
            rb.Activation("relu"),
            rb.Dropout(0.5),
            rb.Dense(20),
            rb.Dropout(0.1),
            rb.Activation("tanh"),
            rb.Dense(1),
            rb.Activation("softplus"),
        ],
    ],
    ids=lambda layers: "-".join(type(layer).__name__.lower() for layer in layers),
)
def test_gradients_under_masks_are_central_differences(layers):
    density = target(rb.Model(layers, input_shape=(3,))).masked()
    theta = 0.5 * np.random.default_rng(3).normal(size=density.dim)
    value, grad = density.masked_value_and_grad(theta, seed=4, step=9)
    assert np.isfinite(value)
    for i in range(density.dim):
        step = 1e-5 * np.eye(density.dim)[i]
        up, down = (
            density.masked_value_and_grad(t, seed=4, step=9)[0]
            for t in (theta + step, theta - step)
        )
        assert abs((up - down) / 2e-5 - grad[i]) < 1e-7 * max(1.0, np.abs(grad).max())


def fitted(net=None, **options):
    """A fit whose weights are a draw of the prior: what it predicts does not depend on training."""
    density = target(net, **options)
    mcd = rb.MCDropout(density, batch_size=None, learning_rate=1e-12)
    return mcd.fit(1, seed=1, init=0.5 * np.random.default_rng(6).normal(size=density.dim))


@pytest.mark.parametrize("num_rows", [1, 5, 16, 17, 70])  # up to 16: samples share a panel
@pytest.mark.parametrize("masks", ["row", "shared"])
def test_predictions_draw_the_addressed_masks(masks, num_rows):
    fit = fitted()
    x = np.random.default_rng(8).normal(size=(num_rows, 3))
    draws = fit.draws(40, seed=11, masks=masks)
    found = draws.predict(x, keep=True).samples[0, ..., 0]
    rows = np.arange(num_rows) if masks == "row" else np.zeros(num_rows, int)
    for s in range(40):
        first, second = masks_of(rows, seed=11, step=0, sample=s, purpose=PREDICTIVE_MASK)
        expected, _ = forward(fit.theta, x, first, second)
        np.testing.assert_allclose(found[s], expected[:, 0], rtol=1e-10, atol=1e-12)


def enumeration(theta, x, rates, hidden):
    """Mean and variance (n,) of the output over all masks, by their probabilities."""
    mean = np.zeros(len(x))
    square = np.zeros(len(x))
    total = 0.0
    for kept in itertools.product([0, 1], repeat=3 + hidden):
        kept = np.array(kept, float)
        rate = np.r_[np.full(3, rates[0]), np.full(hidden, rates[1])]
        p = np.prod(np.where(kept == 1, 1 - rate, rate))
        scaled = kept / (1 - rate)
        f = forward(theta, x, scaled[:3], scaled[3:])[0][:, 0]
        mean += p * f
        square += p * f**2
        total += p
    assert total == pytest.approx(1)
    return mean, square - mean**2


def errors(fit, draws, rates, hidden=5):
    """Errors of mean and variance in standard errors of S independent masks, (2, n)."""
    x = np.random.default_rng(9).normal(size=(6, 3))
    mean, variance = enumeration(fit.theta, x, rates, hidden)
    found = draws.predict(x, keep=True).samples[0, ..., 0]
    count = len(found)
    centred = (found - mean) ** 2
    return np.stack(
        [
            np.abs(found.mean(axis=0) - mean) / np.sqrt(variance / count),
            np.abs(centred.mean(axis=0) - variance) / (centred.std(axis=0) / np.sqrt(count)),
        ]
    )


SAMPLES = 20_000


@pytest.mark.parametrize("masks", ["row", "shared"])
def test_predictions_follow_the_enumeration_of_all_masks(masks):
    """12 checks at 5.5 standard errors: a false-fail rate of 5e-7."""
    fit = fitted()
    assert errors(fit, fit.draws(SAMPLES, seed=3, masks=masks), (0.3, 0.45)).max() < 5.5


@pytest.mark.parametrize(
    ("fault", "rates"),
    [("rate +10 %", (0.33, 0.495)), ("no mask on the input", (1e-9, 0.45))],
)
def test_wrong_rates_are_caught(fault, rates):
    fit = fitted()
    assert errors(fit, fit.draws(SAMPLES, seed=3), rates).max() > 5.5, fault


def test_inverted_scaling_is_caught():
    """Kept units times (1 - rate) instead of 1 / (1 - rate), planted in the weights."""
    fit = fitted()
    density = target()
    wrong = fit.theta.copy()
    views = density.unravel(wrong)
    views["1.weight"] *= 0.7**2
    views["4.weight"] *= 0.55**2
    planted = DropoutFit(wrong, fit.rates, True, {}, fit.target)
    assert errors(fit, planted.draws(SAMPLES, seed=3), (0.3, 0.45)).max() > 5.5


@pytest.mark.slow
def test_no_alarm_in_a_hundred_seeds():
    fit = fitted()
    worst = [errors(fit, fit.draws(5_000, seed=s), (0.3, 0.45)).max() for s in range(100)]
    assert max(worst) < 5.5


def test_predictions_do_not_depend_on_chunks_or_on_other_rows():
    fit = fitted()
    x = np.random.default_rng(8).normal(size=(100, 3))
    draws = fit.draws(50, seed=2)
    whole = draws.predict(x)
    for threads in (1, 2, 4):
        rb.set_num_threads(threads)
        again = fit.draws(50, seed=2).predict(x)
        assert again.mean.tobytes() == whole.mean.tobytes()
    rb.set_num_threads(2)
    np.testing.assert_array_equal(draws.predict(x[:37]).mean, whole.mean[:37])
    kept = draws.predict(x, keep=True)
    np.testing.assert_array_equal(kept.mean, whole.mean)
    quantiles = draws.predict(x).quantile([0.1, 0.9])  # computed in blocks of rows
    np.testing.assert_array_equal(quantiles, kept.quantile([0.1, 0.9]))
    few = fit.draws(20, seed=2).predict(x, keep=True).samples
    np.testing.assert_array_equal(few, kept.samples[:, :20])
    assert draws.positions.strides[1] == 0  # one weight vector, whatever the number of masks


# --- training ------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [None, 20])
def test_training_steps_are_those_of_the_oracle(batch):
    density = target()
    start = 0.3 * np.random.default_rng(4).normal(size=density.dim)
    fit = rb.MCDropout(density, learning_rate=0.02, batch_size=batch).fit(
        6, seed=9, init=start, progress=False
    )
    theta, first, second = start.copy(), np.zeros(density.dim), np.zeros(density.dim)
    for step in range(6 * (1 if batch is None else 3)):
        rows = batch_of(step, ROWS, batch, seed=9, chain=0)
        g = gradient(theta, rows, *masks_of(rows, seed=9, step=step, sample=0))
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        move = first / (1 - 0.9 ** (step + 1))
        theta = theta + 0.02 * move / (np.sqrt(second / (1 - 0.999 ** (step + 1))) + 1e-8)
    np.testing.assert_allclose(fit.theta, theta, rtol=1e-9, atol=1e-11)


def test_length_scale_rate_and_precision():
    """The prior of Gal and Ghahramani: precision l^2 (1 - rate) behind dropout, l^2 for biases."""
    density = target()
    mcd = rb.MCDropout(density, rate=0.2, length_scale=0.7, precision=4.0, batch_size=None)
    masked = mcd._masked
    np.testing.assert_array_equal(masked.rates, 0.2)
    theta = np.random.default_rng(4).normal(size=density.dim)
    plain = target(
        model(rates=(0.2, 0.2)),
        prior={"*.weight": rb.Normal(1 / (0.7 * 0.8**0.5)), "*.bias": rb.Normal(1 / 0.7)},
        likelihood=rb.Gaussian(0.5),
    ).masked()
    for found, expected in zip(
        masked.masked_value_and_grad(theta, seed=1, step=2),
        plain.masked_value_and_grad(theta, seed=1, step=2),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    fit = mcd.fit(1, progress=False)
    assert fit.settings["rates"] == [0.2, 0.2]
    p = fit.draws(10).predict(X)
    np.testing.assert_allclose(p.aleatoric_std, 0.5)


def test_a_fit_learns_and_its_spread_is_wider_off_the_data():
    x = np.linspace(-1, 1, 200)[:, None]
    y = np.sin(4 * x) + 0.1 * np.random.default_rng(0).normal(size=x.shape)
    net = rb.Model(
        [rb.Dense(50), rb.Activation("relu"), rb.Dropout(0.05), rb.Dense(1)], input_shape=(1,)
    )
    density = rb.Posterior(net, x, y, prior=rb.Normal(3.0), likelihood=rb.Gaussian(0.1))
    fit = rb.MCDropout(density, batch_size=50, learning_rate=1e-2).fit(600, seed=1, progress=False)
    p = fit.draws(400).predict(x)
    assert rb.metrics.rmse(y, p.mean) < 0.2
    far = fit.draws(400).predict(np.array([[3.0]]))
    assert far.epistemic_std[0, 0] > 2 * np.median(p.epistemic_std)


@pytest.mark.parametrize("make", ["dropout", "ensemble"])
@pytest.mark.parametrize("batch", [48, 300, None])
def test_bits_do_not_depend_on_threads_or_restarts(make, batch):
    x = np.random.default_rng(0).normal(size=(700, 6))
    layers = [rb.Dense(40), rb.Activation("silu"), rb.Dense(30), rb.Activation("relu"), rb.Dense(1)]
    if make == "dropout":
        layers[2:2] = [rb.Dropout(0.2)]
    density = rb.Posterior(
        rb.Model(layers, input_shape=(6,)),
        x,
        np.sin(x[:, 0]),
        prior=rb.Normal(0.7),
        likelihood=rb.Gaussian(),
    )
    kind = rb.MCDropout if make == "dropout" else rb.DeepEnsemble
    trainer = kind(density, batch_size=batch)
    rb.set_num_threads(2)
    whole = trainer.fit(5, seed=3, progress=False)
    for threads in (1, 3, 4):
        rb.set_num_threads(threads)
        again = trainer.fit(5, seed=3, progress=False)
        assert again.theta.tobytes() == whole.theta.tobytes()
    rb.set_num_threads(2)
    rest = trainer.fit(3, resume=trainer.fit(2, seed=3, progress=False), progress=False)
    assert rest.theta.tobytes() == whole.theta.tobytes()
    if make == "ensemble":
        alone = rb.DeepEnsemble(density, members=2, batch_size=batch).fit(5, seed=3, progress=False)
        assert alone.theta.tobytes() == whole.theta[:2].tobytes()
        assert np.unique(whole.theta, axis=0).shape == whole.theta.shape


def test_draws_of_fits_are_saved_and_start_others(tmp_path):
    fit = fitted()
    draws = fit.draws(30, seed=5, masks="shared")
    draws.save(tmp_path / "run")
    back = rb.load_draws(tmp_path / "run")
    np.testing.assert_array_equal(back.predict(X).mean, draws.predict(X).mean)
    np.testing.assert_array_equal(back.positions, draws.positions)
    many = fit.draws(100_000)  # one position, and not one for each draw
    many.save(tmp_path / "many")
    assert (tmp_path / "many").stat().st_size < 20_000
    assert rb.load_draws(tmp_path / "many").positions.shape == many.positions.shape
    plain = rb.Posterior(
        rb.mlp(3, (5,), 1), X, Y, prior=rb.Normal(0.8), likelihood=rb.Gaussian(0.3)
    )
    ensemble = rb.DeepEnsemble(plain, members=3, batch_size=20).fit(3, seed=1, progress=False)
    assert "3 members" in repr(ensemble)
    assert "DropoutFit" in repr(fit)
    draws = ensemble.draws()
    assert draws.positions.shape == (1, 3, plain.dim)
    mixed = ensemble.draws(3_000, seed=1).positions[0]
    counts = [np.sum((mixed == member).all(axis=1)) for member in ensemble.theta]
    assert sum(counts) == 3_000
    assert min(counts) > 800  # 7 standard deviations below 1,000
    sgld = rb.SGLD(plain, step_size=1e-12, batch_size=20)
    for init, count, expected in (
        (ensemble.theta, None, ensemble.theta),
        (ensemble, None, ensemble.theta),
        (ensemble, [4, 0], ensemble.theta[[1, 0]]),
        (fit, 2, np.stack([fit.theta, fit.theta])),
    ):
        run = sgld.sample(1, warmup=0, chains=count, init=init, progress=False)
        np.testing.assert_allclose(run.positions[:, 0], expected, atol=1e-4)
    field = rb.MeanField(fit.theta, np.full_like(fit.theta, 0.1))
    run = sgld.sample(1, warmup=0, chains=[3, 1], seed=6, init=field, progress=False)
    np.testing.assert_allclose(run.positions[:, 0], field.sample(4, seed=6)[[3, 1]], atol=1e-4)
    assert sgld.sample(1, warmup=0, init=field, progress=False).positions.shape[0] == 4


def test_objectives_of_an_ensemble():
    """Linear model: MAP and least squares, by an Adam that has settled (deterministic)."""
    design = np.c_[X, np.ones(ROWS)]
    plain = rb.Posterior(
        rb.mlp(3, (), 1), X, Y, prior=rb.Normal(0.1), likelihood=rb.Gaussian(0.3), dtype=np.float64
    )
    options = {
        "members": 2,
        "batch_size": None,
        "learning_rate": 0.02,
        "schedule": rb.schedules.cosine(4_000),
    }
    shrunk = np.linalg.solve(design.T @ design / 0.09 + np.eye(4) / 0.01, design.T @ Y[:, 0] / 0.09)
    least = np.linalg.lstsq(design, Y[:, 0])[0]
    for objective, expected in (("map", shrunk), ("likelihood", least)):
        fit = rb.DeepEnsemble(plain, objective=objective, **options).fit(4_000, progress=False)
        np.testing.assert_allclose(fit.theta, np.tile(expected, (2, 1)), atol=1e-5)
    assert np.abs(shrunk - least).max() > 0.01


# --- bad input -----------------------------------------------------------------------------------


def test_bad_input():
    plain = rb.Posterior(rb.mlp(3, (5,), 1), X, Y, prior=rb.Normal(1), likelihood=rb.Gaussian(0.3))
    with pytest.raises(TypeError, match=r"a model with Dropout layers, got Model.* without"):
        rb.MCDropout(plain)
    with pytest.raises(TypeError, match="a target with masks"):
        rb.MCDropout(rb.CallableDensity(lambda t: (0.0, 0 * t), 2))
    for rate in (0.0, 1.0, -0.1, 1.5):
        with pytest.raises(ValueError, match="rate"):
            rb.MCDropout(target(), rate=rate)
    for name in ("length_scale", "precision", "learning_rate"):
        with pytest.raises(ValueError, match=name):
            rb.MCDropout(target(), **{"batch_size": 20, name: 0.0})
    with pytest.raises(ValueError, match=f"batch_size <= {ROWS}"):
        rb.MCDropout(target())
    with pytest.raises(TypeError, match="Gaussian likelihood of known scale for precision"):
        rb.MCDropout(target(likelihood=rb.Gaussian()), precision=1.0)
    mcd = rb.MCDropout(target(), batch_size=20)
    with pytest.raises(ValueError, match="num_epochs"):
        mcd.fit(0)
    with pytest.raises(ValueError, match="expected init"):
        mcd.fit(1, init=np.zeros(3))
    with pytest.raises(TypeError, match="resume as a DropoutFit"):
        mcd.fit(1, resume=3)
    fit = fitted()
    with pytest.raises(ValueError, match="masks"):
        fit.draws(3, masks="column")
    with pytest.raises(ValueError, match="num_draws"):
        fit.draws(0)
    with pytest.raises(TypeError, match="without Dropout layers"):
        rb.DeepEnsemble(target(), batch_size=20)
    with pytest.raises(ValueError, match="objective"):
        rb.DeepEnsemble(plain, batch_size=20, objective="mle")
    with pytest.raises(ValueError, match="members"):
        rb.DeepEnsemble(plain, batch_size=20, members=0)
    line = rb.CallableDensity(lambda t: (0.0, 0 * t), 2)
    with pytest.raises(TypeError, match="prior can be left out"):
        rb.DeepEnsemble(line, batch_size=None, objective="likelihood")
    with pytest.raises(TypeError, match="resume as an EnsembleFit"):
        rb.DeepEnsemble(plain, batch_size=20).fit(
            1, resume=EnsembleFit(np.zeros((5, plain.dim)), True, {})
        )


def test_training_that_explodes_says_where():
    mcd = rb.MCDropout(target(dtype=np.float32), batch_size=20, learning_rate=1e38)
    with pytest.raises(NonFiniteError, match="MCDropout") as caught:
        mcd.fit(50, seed=1, progress=False)
    assert np.isfinite(caught.value.state.position).all()


def results():
    table = Table(
        "MC dropout against the enumeration of all masks",
        ("masks", "code", "largest error", "gate"),
        note=f"3-5-1 tanh network, dropout 0.3 and 0.45, {SAMPLES:,} draws, means and variances "
        "at six inputs, in standard errors.",
    )
    fit = fitted()
    for masks in ("row", "shared"):
        found = errors(fit, fit.draws(SAMPLES, seed=3, masks=masks), (0.3, 0.45)).max()
        table.add(masks, "right", f"{found:.2f}", "< 5.5", holds=found < 5.5)
    for fault, rates in (("rate +10 %", (0.33, 0.495)), ("no mask on the input", (1e-9, 0.45))):
        found = errors(fit, fit.draws(SAMPLES, seed=3), rates).max()
        table.add("row", fault, f"{found:.2f}", "> 5.5", holds=found > 5.5)
    return [table]
