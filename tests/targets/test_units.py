"""Data in the user's units: what is standardised, what predictions say, and who is warned."""

import pickle
import warnings

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays import columns
from ribbit.errors import ScaleWarning

RNG = np.random.default_rng(8)
ROWS = 40
X = RNG.normal(size=(ROWS, 3)) * (0.002, 30.0, 1.0) + (0.0, 500.0, 7.0)
Y = 300.0 + 80.0 * np.sin(X[:, 2]) + 5.0 * RNG.normal(size=ROWS)
NEW = X[:7] * 1.01
LIKELIHOODS = {
    "known": (rb.Gaussian(0.3), 1),
    "learned": (rb.Gaussian(), 1),
    "heteroscedastic": (rb.HeteroscedasticGaussian(), 2),
    "student": (rb.StudentTNoise(4.0), 1),
}


def posterior(x, y, likelihood="learned", **options):
    law, outputs = LIKELIHOODS[likelihood]
    layers = [rb.Dense(5), rb.Activation("tanh"), rb.Dropout(0.1), rb.Dense(outputs)]
    if not options.pop("masks", False):
        layers.pop(2)
    model = rb.Model(layers, input_shape=(3,))
    return rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=law, **options)


def pair(y=Y, **options):
    """A target that standardises, and one of data that were standardised by hand."""
    scaler = rb.datasets.standardize(X, y)
    return posterior(X, y, standardize=True, **options), posterior(scaler.x, scaler.y, **options)


def sampled(target):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few draws have not converged
        hmc = rb.HMC(target, step_size=0.02, num_leapfrog_steps=10)
        return hmc.sample(12, warmup=5, chains=2, seed=4, progress=False)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_positions_are_those_of_data_standardised_by_hand(likelihood):
    own, by_hand = pair(likelihood=likelihood)
    assert np.array_equal(own.x, by_hand.x)
    assert np.array_equal(own.y, by_hand.y)
    assert np.array_equal(sampled(own).positions, sampled(by_hand).positions)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("how", ["draws", "loaded", "running"])
def test_predictions_are_in_the_users_units(likelihood, how, tmp_path):
    own, by_hand = pair(likelihood=likelihood)
    scaler = rb.datasets.standardize(X, Y)
    draws, known = sampled(own), sampled(by_hand).predict(scaler.transform(NEW))
    if how == "loaded":
        draws.save(tmp_path / "draws.npz")
        draws = rb.load(tmp_path / "draws.npz")
    if how == "running":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hmc = rb.HMC(own, step_size=0.02, num_leapfrog_steps=10)
            p = hmc.sample(
                12, warmup=5, chains=2, seed=4, progress=False, predict_at=NEW
            ).prediction
    else:
        p = draws.predict(NEW)
    width = float(scaler.y_scale)
    assert p.mean.shape == (7,)
    np.testing.assert_allclose(p.mean, scaler.inverse_y(known.mean), rtol=1e-6)
    for name in ("std", "epistemic_std", "aleatoric_std"):
        np.testing.assert_allclose(getattr(p, name), getattr(known, name) * width, rtol=1e-5)
    for name in ("interval", "credible_interval"):
        expected = scaler.inverse_y(getattr(known, name)(0.8))
        np.testing.assert_allclose(getattr(p, name)(0.8), expected, rtol=1e-5)
    found = p.log_likelihood(Y[:7])
    expected = known.log_likelihood(scaler.transform_y(Y[:7])) - np.log(width)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    with pytest.raises(AssertionError):  # the control: without the way back
        np.testing.assert_allclose(p.mean, known.mean, rtol=1e-2)


def test_several_targets_have_a_unit_each():
    y = np.column_stack([Y, 1e-3 * Y[::-1]])
    scaler = rb.datasets.standardize(X, y)
    model = rb.mlp(3, (4,), 2)
    own = rb.Posterior(
        model, X, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(), standardize=True
    )
    known = rb.Posterior(model, scaler.x, scaler.y, prior=rb.Normal(1.0), likelihood=rb.Gaussian())
    p, q = sampled(own).predict(NEW), sampled(known).predict(scaler.transform(NEW))
    np.testing.assert_allclose(p.mean, scaler.inverse_y(q.mean), rtol=1e-6)
    np.testing.assert_allclose(p.std, q.std * scaler.y_scale, rtol=1e-6)


@pytest.mark.parametrize("method", ["BBB", "MCDropout", "DeepEnsemble"])
def test_fits_predict_in_the_users_units(method, tmp_path):
    own, by_hand = pair(masks=method == "MCDropout")
    scaler = rb.datasets.standardize(X, Y)

    def fitted(target):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # still rising
            fit = getattr(rb, method)(target, batch_size=10, learning_rate=1e-2)
            return fit.fit(3, seed=2, progress=False)

    fit = fitted(own)
    fit.save(tmp_path / "fit.npz")
    known = fitted(by_hand).draws(20, seed=3).predict(scaler.transform(NEW))
    for one in (fit, rb.load(tmp_path / "fit.npz")):
        p = one.draws(20, seed=3).predict(NEW)
        np.testing.assert_allclose(p.mean, scaler.inverse_y(known.mean), rtol=1e-6)
        np.testing.assert_allclose(p.std, known.std * float(scaler.y_scale), rtol=1e-5)


def test_labels_counts_bytes_and_tokens_have_no_unit():
    labels = (Y > 300).astype(int)
    target = rb.Posterior(
        rb.mlp(3, (4,), 2),
        X,
        labels,
        prior=rb.Normal(1.0),
        likelihood=rb.Categorical(),
        standardize=True,
    )
    assert np.array_equal(target.y[:, 0], labels)
    np.testing.assert_allclose(target.x.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(target.x.std(axis=0), 1.0, atol=1e-5)
    assert sampled(target).predict(NEW).probs.shape == (7, 2)
    images = RNG.integers(0, 256, size=(6, 4, 4, 1), dtype=np.uint8)
    model = rb.Model([rb.Flatten(), rb.Dense(1)], input_shape=(4, 4, 1))
    options = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian()}
    target = rb.Posterior(model, images, Y[:6], standardize=True, **options)
    assert target.x.dtype == np.uint8
    np.testing.assert_allclose(target.y.std(), 1.0, rtol=1e-5)


def test_constant_columns_stay_finite_and_pickles_keep_the_units():
    x = X.copy()
    x[:, 1] = 0.1 + 0.2
    target = posterior(x, Y, standardize=True)
    np.testing.assert_allclose(target.x[:, 1], 0.0, atol=1e-12)
    again = pickle.loads(pickle.dumps(target))
    theta = target.init(seed=1, chains=3)
    assert np.array_equal(again.predictive(theta, NEW).mean, target.predictive(theta, NEW).mean)
    assert again.fingerprint == target.fingerprint
    assert again.fingerprint != posterior(10 * x, 2 * Y, standardize=True).fingerprint


def test_bad_data_are_named_as_without_it():
    bad = X.copy()
    bad[3, 1] = np.nan
    with pytest.raises(ValueError, match=r"finite values in x.*x\[3, 1\] is nan"):
        posterior(bad, Y, standardize=True)
    with pytest.raises(ValueError, match="expected x of shape"):
        posterior(X[:, :2], Y, standardize=True)
    with pytest.raises(ValueError, match="expected x of shape"):
        posterior(np.zeros((ROWS, 0, 3)), Y, standardize=True)
    with pytest.raises(ValueError, match="y"):
        posterior(X, Y[:5], standardize=True)
    with pytest.raises(TypeError, match="standardize"):
        posterior(X, Y, standardize=1)
    draws = sampled(posterior(X, Y, standardize=True))
    with pytest.raises(ValueError, match="expected x of shape"):
        draws.predict(NEW[:, :2])


# --- who is warned -------------------------------------------------------------------------------


def test_a_warning_names_the_columns_and_the_two_ways_out():
    with pytest.warns(ScaleWarning) as caught:
        posterior(X, Y)
    text = str(caught[0].message)
    assert caught[0].filename == __file__
    assert "x column 0 with mean" in text
    assert "x column 1 with mean" in text
    assert "y with mean" in text
    assert "column 2" not in text
    assert "standardize=True" in text
    assert "rb.datasets.standardize(x, y)" in text


def test_no_warning_without_a_reason():
    pair()  # warnings are errors here
    scaler = rb.datasets.standardize(X, Y)
    by_layer = {"*.weight": rb.Normal(1.0), "*.bias": rb.Normal(10.0)}
    rb.Posterior(rb.mlp(3, (4,), 1), X, Y, prior=by_layer, likelihood=rb.Gaussian())
    rb.Posterior(
        rb.mlp(3, (4,), 1), scaler.x, np.round(Y), prior=rb.Normal(1.0), likelihood=rb.Poisson()
    )


def test_a_rare_category_is_no_reason_to_warn():
    x = np.zeros((20_000, 3))
    x[:, 0] = np.linspace(-1.0, 1.0, len(x))
    x[7, 1] = 1.0  # sd 0.007
    x[:200, 2] = 0.06  # sd 0.006, 9.95 of them from its mean
    y = np.sin(np.arange(len(x)))
    with pytest.warns(ScaleWarning) as caught:
        posterior(x, y)
    assert "x column 2 with" in str(caught[0].message)
    assert "column 1" not in str(caught[0].message)
    x[0, 2] = 0.07
    posterior(x, y)  # warnings are errors here
    # targets, and channels, which one lit place does not make wide, are named
    with pytest.warns(ScaleWarning, match="y with mean"):
        posterior(x, x[:, 2])
    model = rb.Model([rb.Flatten(), rb.Dense(1)], input_shape=(1, 3))
    with pytest.warns(ScaleWarning, match="x channel 2 with mean"):
        rb.Posterior(model, x[:, None], y, prior=rb.Normal(1.0), likelihood=rb.Gaussian())


# --- columns of any unit, constant columns, far cells --------------------------------------------

PICK = RNG.random(ROWS) < 0.5
TABLE = RNG.normal(size=(ROWS, 3))


def scaled(column, weights=None):
    """A column as the third of x and as y, as `standardize` and `Posterior` scale it."""
    x = np.column_stack([TABLE[:, :2], column])
    scaler = rb.datasets.standardize(x, column)
    options = {"standardize": True, "dtype": "float64", "sample_weight": weights}
    target = posterior(x, column.astype(float), **options)
    return scaler.x[:, 2], scaler.y, target.x[:, 2], target.y[:, 0]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float32 in float64"])
@pytest.mark.parametrize("value", [0.3, -14.62, 1e-10, 3.3e5, 1e10, 1e20])
def test_a_column_of_float_neighbours_is_constant(value, dtype):
    value = np.dtype(dtype[:7]).type(value)
    column = np.where(PICK, value, np.nextafter(value, value.dtype.type(np.inf)))
    column = column.astype(dtype[-7:])
    for weights in (None, RNG.random(ROWS)):
        for found in scaled(column, weights):
            assert np.ptp(found) < 1e-5


def test_constants_that_are_computed_in_several_ways_are_constant():
    shares = RNG.dirichlet(np.ones(30), ROWS).sum(axis=1)
    shifted = (TABLE[:, 0] + 0.3) - TABLE[:, 0]
    for column in (np.where(PICK, 0.3, 0.1 + 0.2), shares, shifted):
        assert len(np.unique(column)) > 1
        for found in scaled(column):
            assert np.ptp(found) < 1e-12


@pytest.mark.parametrize(
    "column",
    [
        1e9 + TABLE[:, 0],
        1e9 + 1e-6 * TABLE[:, 0],  # 8 units in the last place
        1.7e9 + RNG.integers(0, 10, ROWS),  # times of day in seconds
        1e7 + PICK,  # neighbours in float32, and whole numbers
        np.float32(1e7) + PICK.astype(np.float32),
        1e15 + PICK,
        10**15 + PICK.astype(np.int64),
        (1000.0 + 1e-2 * TABLE[:, 0]).astype(np.float32),
        1.0 + 1e-12 * TABLE[:, 0],
    ],
)
def test_small_differences_of_large_numbers_are_kept(column):
    for found in scaled(column):
        assert found.std() == pytest.approx(1.0, rel=1e-6)
        assert abs(found.mean()) < 0.3  # a mean that is no float is rounded to one


def test_constant_targets_have_scale_one():
    for value in (7.7, 0.1, 1 / 3):  # the mean of 40 times 0.1 is rounded
        units = posterior(TABLE, np.full(ROWS, value), standardize=True).network_predictive.units
        assert units.y_scale.tolist() == [1.0]
        assert units.y_mean.tolist() == [value]


@pytest.mark.parametrize("unit", [1e160, 1e-162, 1e-310, 1e307, 1e30, 1e-40])
@pytest.mark.parametrize("weighted", [False, True])
def test_units_of_x_do_not_matter(unit, weighted, tmp_path):
    weights = 0.5 + RNG.random(ROWS) if weighted else None
    plain = posterior(TABLE, Y, standardize=True, sample_weight=weights)
    x = TABLE * [unit, 1.0, 1.0]
    target = posterior(x, Y, standardize=True, sample_weight=weights)
    np.testing.assert_allclose(target.x, plain.x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(target.inputs(ROWS), x, rtol=1e-5, atol=1e-6 * unit)
    theta = target.init(seed=0)
    found = [one.predictive(theta[None], rows).mean for one, rows in ((target, x), (plain, TABLE))]
    np.testing.assert_allclose(*found, rtol=1e-5)
    if not weighted:
        scaler = rb.datasets.standardize(x)
        np.testing.assert_allclose(scaler.x.std(axis=0), 1.0, rtol=1e-9)
        assert np.array_equal(scaler.transform(x), scaler.x)
        np.save(tmp_path / "x.npy", x)
        mapped = posterior(np.load(tmp_path / "x.npy", mmap_mode="r"), Y, standardize=True)
        np.testing.assert_allclose(np.asarray(mapped.x), plain.x, rtol=1e-5, atol=1e-6)


def test_units_of_images_do_not_matter():
    images = RNG.random((30, 4, 5, 2)) * [1e200, 1e-200]
    np.testing.assert_allclose(
        rb.datasets.standardize(images).x.reshape(-1, 2).std(axis=0), 1.0, rtol=1e-12
    )


def test_differences_that_overflow_are_scaled():
    x = np.where(PICK, 1.7e308, -1.7e308)[:, None]
    np.testing.assert_allclose(rb.datasets.standardize(x).x.std(), 1.0, rtol=1e-12)


@pytest.mark.parametrize("unit", [1e160, 1e-162, 1e-310])
def test_units_of_y_are_scaled_or_refused(unit):
    y = np.column_stack([unit * TABLE[:, 0], TABLE[:, 1]])
    scaler = rb.datasets.standardize(TABLE, y)
    np.testing.assert_allclose(scaler.y.std(axis=0), 1.0, rtol=1e-9)
    np.testing.assert_allclose(scaler.inverse_y(scaler.y), y, rtol=1e-9)
    for weights in (None, 0.5 + RNG.random(ROWS)):
        with pytest.raises(ValueError, match=r"\[Posterior\] expected y with an sd from 1e-150"):
            posterior(TABLE, y[:, 0], standardize=True, sample_weight=weights)


@pytest.mark.parametrize("tiny", [1e-300, 1e-40, 1e-20])
def test_weights_that_rounding_loses_are_zero(tiny):
    weights = np.where(np.arange(ROWS) < 9, 1.5, tiny)
    target = posterior(X, Y, standardize=True, sample_weight=weights)
    zero = posterior(X, Y, standardize=True, sample_weight=np.where(weights < 1, 0.0, 1.5))
    assert np.array_equal(target.x, zero.x)
    assert np.array_equal(target.y, zero.y)


@pytest.mark.parametrize("cell", [1e12, -1e12, 1e6])
@pytest.mark.parametrize("far", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_far_cells_are_named(cell, far, weighted):
    x, y = TABLE.copy(), TABLE[:, 0].copy()
    x[17 : 17 + far, 1] = cell
    y[5] = cell
    weights = 0.5 + RNG.random(ROWS) if weighted else None
    for function, call in (
        ("Posterior", lambda: posterior(x, y, standardize=True, sample_weight=weights)),
        ("standardize", lambda: rb.datasets.standardize(x, y)),
    ):
        with pytest.warns(ScaleWarning) as caught:
            call()
        assert [one.filename for one in caught] == [__file__] * 2
        assert f"[{function}] row 17 of x column 1 is {cell:.3g}" in str(caught[0].message)
        assert f"[{function}] row 5 of y is {cell:.3g}" in str(caught[1].message)


def test_far_cells_of_files_and_images_are_named(tmp_path):
    x = RNG.normal(size=(200_000, 4))  # several blocks of a file
    x[190_000, 2] = 1e12
    np.save(tmp_path / "x.npy", x)
    with pytest.warns(ScaleWarning, match=r"row 190000 of x column 2 is 1e\+12"):
        rb.Posterior(
            rb.mlp(4, (), 1),
            np.load(tmp_path / "x.npy", mmap_mode="r"),
            x[:, 0],
            prior=rb.Normal(1.0),
            likelihood=rb.Gaussian(),
            standardize=True,
        )
    images = RNG.normal(size=(30, 4, 5, 2))
    images[7, 2, 3, 1] = 1e12
    with pytest.warns(ScaleWarning, match=r"row 7 of x column 1 is 1e\+12"):
        rb.datasets.standardize(images)


@pytest.mark.parametrize("rows", [12, 300, 3000])
def test_heavy_tails_rare_categories_and_counts_have_no_far_cells(rows):
    """One fixed seed; of a lognormal of sigma 2 one table of 30,000 would be named."""
    rng = np.random.default_rng(3)
    table = [
        rng.lognormal(0.0, 1.0, rows),
        rng.lognormal(0.0, 2.0, rows),
        rng.standard_t(2.0, rows),
        rng.poisson(0.1, rows),
        rng.negative_binomial(0.3, 0.01, rows),
        np.arange(rows) == 5,  # a category of one row
        rng.random(rows) < 0.02,
        np.where(rng.random(rows) < 0.9, 0.0, rng.lognormal(0.0, 1.0, rows)),
        np.where(np.arange(rows) == 5, 1e12, 3.0),  # nothing else to tell apart
    ]
    for column in table:
        rb.datasets.standardize(TABLE[:1].repeat(rows, 0), column)  # warnings are errors here


# --- images and sequences ------------------------------------------------------------------------

IMAGES = RNG.uniform(0.0, 1.0, (30, 4, 5, 2)) * np.array([1.0, 0.3]) + np.array([0.0, 2.0])
IMAGES[:, 0] = 0.0, 2.0  # a margin, constant
IMAGES[7, 0, 0, 0] = 1.0  # but for one pixel of one image


@pytest.mark.parametrize("shape", [(4, 5, 2), (20, 2)], ids=["images", "sequences"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_channel_has_one_mean_and_one_sd(shape, weighted):
    x = IMAGES.reshape(30, *shape)
    weights = RNG.integers(0, 3, 30) if weighted else np.ones(30, int)
    rows = np.repeat(x, weights, axis=0).reshape(-1, 2)
    mean, sd = columns.spread(x, weights.astype(float) if weighted else None)
    assert mean.shape == sd.shape == shape
    places = (0,) * (len(shape) - 1)
    np.testing.assert_allclose(mean[places], rows.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(sd[places], rows.std(axis=0), rtol=1e-13)
    assert (mean == mean[places]).all()
    assert (sd == sd[places]).all()
    if not weighted:
        # the control: by pixels the lit one would be sqrt(29) sds from its mean, 3.5 times as far
        assert x.std(axis=0)[places][0] < sd[places][0] / 1.5
        scaler = rb.datasets.standardize(x)
        assert np.abs(scaler.x).max() < 3.0
        np.testing.assert_allclose(scaler.x.reshape(-1, 2).std(axis=0), 1.0, rtol=1e-12)


def test_constant_channels_are_only_shifted():
    x = IMAGES.copy()
    x[..., 1] = 0.1 + 0.2
    mean, sd = columns.spread(x)
    assert (mean[..., 1] == 0.1 + 0.2).all()
    assert (sd[..., 1] == 1.0).all()
    x[:, 2, 2, 1] = 5.0  # constant at each place, but of two values
    mean, sd = columns.spread(x)
    assert (sd[..., 1] > 0.5).all()
    assert (sd[..., 1] < 2.0).all()


def test_dark_margins_of_images_are_no_reason_to_warn():
    def target(x, **options):
        return rb.Posterior(
            rb.Model([rb.Flatten(), rb.Dense(3)], input_shape=(4, 5, 2)),
            x,
            np.arange(30) % 3,
            prior=rb.Normal(1.0),
            likelihood=rb.Categorical(),
            **options,
        )

    dim = IMAGES.copy()
    dim[:, 0] *= 1e-3  # columns of sd 2e-4, which of a table would be named
    target(dim)  # warnings are errors here
    with pytest.warns(
        ScaleWarning, match=r"x channel 0 with mean [\d.]+ and sd [\d.]+, x channel 1"
    ):
        target(255.0 * IMAGES)
    scaled = target(255.0 * IMAGES, standardize=True).x.reshape(-1, 2)
    np.testing.assert_allclose(scaled.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(axis=0), 1.0, rtol=1e-5)


def table(*cells):
    """What NumPy makes of a table whose columns differ in kind."""
    return np.array(list(zip(*cells, strict=True)), dtype=object)


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (table([1.0, 2.0], ["a", "b"]), "that holds str 'a': leave such columns out"),
        (table([1.0, None], [1.0, 2.0]), "that holds None: leave"),
        (table([1.5, 2.5], [True, False]), r"mixed kinds of numbers: np.asarray\(x, dtype=float\)"),
    ],
)
def test_what_is_no_number_in_a_table_is_named(x, text):
    with pytest.raises(TypeError, match=r"^\[Posterior\] expected x as an array of .*" + text):
        rb.Posterior(
            rb.mlp(2, (3,), 1),
            x,
            np.zeros(2),
            prior=rb.Normal(1.0),
            likelihood=rb.Gaussian(),
            standardize=True,
        )


@pytest.mark.parametrize("standardize", [False, True])
def test_inputs_of_images_have_the_shape_that_the_model_takes(standardize):
    x = 50.0 + 9.0 * np.random.default_rng(3).normal(size=(7, 4, 4, 2))
    model = rb.Model([rb.Conv2D(2, 3), rb.Flatten(), rb.Dense(1)], input_shape=(4, 4, 2))
    y, noise = x.mean(axis=(1, 2, 3)), rb.Gaussian(0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rb.errors.ScaleWarning)
        target = rb.Posterior(
            model, x, y, prior=rb.Normal(1.0), likelihood=noise, standardize=standardize
        )
    np.testing.assert_allclose(target.inputs(7), x, rtol=1e-5)
    assert target.inputs(3).shape == (3, 4, 4, 2)
    target.check_inputs(target.inputs(3))
