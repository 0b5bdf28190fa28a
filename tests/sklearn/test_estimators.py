"""What the estimators give back: units, shapes, labels, weights, frames, and what they refuse."""

import copy
import itertools
import pickle
import types
import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6", reason="needs scikit-learn 1.6 or newer")
import sklearn
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import ribbit as rb
from ribbit.sklearn import BNNClassifier, BNNRegressor

# Short fits end while they still rise; they are judged by nothing but their form.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning"),
    pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning"),
]
SHORT = {"method": "ensemble", "epochs": 150, "chains": 3, "random_state": 0}


def table(rows: int = 80, columns: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Columns of other units, y between -400 and 600 with an sd of the noise of 20."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(rows, columns)) * [1.0, 50.0, 1e-3][:columns] + 7.0
    y = 100.0 + 200.0 * np.sin(x[:, 0] - 7.0) + 20.0 * rng.normal(size=rows)
    return x, y


def regressor(**more) -> BNNRegressor:
    return BNNRegressor((8,), **{**SHORT, **more})


def classifier(**more) -> BNNClassifier:
    return BNNClassifier((8,), **{**SHORT, **more})


def test_chains_predict_in_the_units_of_y() -> None:
    x, y = table(120)
    chains = {"method": "mclmc", "epochs": None, "draws": 100, "warmup": 3_000, "thin": 20}
    model = regressor(**chains).fit(x[:90], y[:90])
    mean, std = model.predict(x[90:], return_std=True)
    lower, upper = model.predict_interval(x[90:], 0.9)
    assert model.score(x[90:], y[90:]) > 0.8
    assert 10.0 < np.median(std) < 80.0
    # 30 rows at 0.9: fewer than 19 inside have a probability of 1e-5, one seed
    assert ((lower < y[90:]) & (y[90:] < upper)).sum() >= 19
    assert (lower < mean).all()
    assert (mean < upper).all()
    normal = -0.5 * ((y[90:] - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    assert model.log_score(x[90:], y[90:]) == pytest.approx(normal.mean(), abs=0.3)
    assert model.draws_.positions.shape[:2] == (3, 100)
    assert model.n_draws_ == 300
    assert model.approximation_ is None
    assert model.converged_ == model.summary_.converged
    assert isinstance(model.posterior_, rb.Posterior)
    # other units of y: the same network of the same standardised numbers
    other = regressor(**chains).fit(x[:90], 1024.0 * y[:90])
    np.testing.assert_allclose(other.predict(x[90:]), 1024.0 * mean, rtol=1e-6)


@pytest.mark.parametrize("method", ["bbb", "dropout", "ensemble", "laplace", "swag"])
def test_fits_predict(method: str) -> None:
    x, y = table()
    model = regressor(method=method, epochs=400, noise="constant").fit(x, y)
    assert model.score(x, y) > 0.5
    assert model.approximation_ is not None
    assert model.predict(x, return_std=True)[1].shape == (80,)
    assert model.sample_y(x, 2).shape == (80, 2)


def test_quantiles_and_samples_have_the_shapes_of_the_field() -> None:
    x, y = table()
    model = regressor().fit(x, y)
    levels = model.predict_quantiles(x[:7], [0.1, 0.5, 0.9])
    assert levels.shape == (7, 3)
    assert (np.diff(levels, axis=1) > 0).all()
    lower, upper = model.predict_interval(x[:7], 0.8)
    np.testing.assert_allclose(levels[:, [0, 2]].T, [lower, upper])
    assert model.sample_y(x[:7], 5).shape == (7, 5)
    assert (model.sample_y(x[:7], 5) == model.sample_y(x[:7], 5)).all()
    assert (model.sample_y(x[:7], 5) != model.sample_y(x[:7], 5, random_state=1)).all()
    both = regressor().fit(x, np.stack([y, -3.0 * y], axis=1))
    assert both.predict(x[:7]).shape == (7, 2)
    assert both.predict_quantiles(x[:7], [0.1, 0.9]).shape == (7, 2, 2)
    assert both.sample_y(x[:7], 5).shape == (7, 2, 5)
    assert both.score(x, np.stack([y, -3.0 * y], axis=1)) > 0.5


def test_scales_are_of_arrays_unless_something_else_is_stated() -> None:
    """Of whole numbers, whose noise has a floor with which MCLMC would whiten inputs."""
    x, y = table()
    y = np.round(y / 200.0)
    chains = {"method": "mclmc", "epochs": None, "draws": 4, "warmup": 100, "thin": 1}
    for options, found in (
        (None, "layers"),
        ({"inverse_mass_matrix": "inputs"}, "inputs"),
        ({"step_size": 1e-3}, None),
        ({"step_size": 1e-3, "inverse_mass_matrix": "layers"}, "layers"),
        ({"adjusted": True}, None),
        ({"adjusted": False, "step_size": "auto", "decoherence_length": "auto"}, "layers"),
    ):
        model = regressor(**chains, options=options).fit(x, y)
        assert model.posterior_.noise_floor > 0.05
        assert model.draws_.settings["inverse_mass_matrix"] == found


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("hidden", "options", "share"),
    [
        ((50,), None, 1.0),
        ((250,), None, (1250 / 1752) ** 2),  # 4 inputs, 250 units, mean and sd
        (250, {"desired_energy_var": "auto"}, (1250 / 1752) ** 2),
        ((250,), {"desired_energy_var": (0.5, 0.01)}, 1.0),
        ((250,), {"adjusted": True}, 1.0),  # nothing looks at it
    ],
)
def test_of_many_parameters_mclmc_has_less_energy_variance(
    hidden: int | tuple[int, ...], options: dict[str, object] | None, share: float
) -> None:
    x = np.random.default_rng(0).normal(size=(40, 4))
    chains = {"method": "mclmc", "epochs": None, "draws": 1, "warmup": 100, "thin": 1}
    model = BNNRegressor(hidden=hidden, chains=2, options=options, **chains).fit(x, x[:, 0])
    found = model.draws_.settings["desired_energy_var"]
    np.testing.assert_allclose(found, [0.5 * share, 0.01 * share], rtol=1e-12)
    adjusted = options == {"adjusted": True}
    assert model.draws_.settings["step_limit"] == (None if adjusted else 0.25)


def test_noise_is_of_the_kind_that_was_asked_for() -> None:
    x, y = table()
    assert regressor(noise=20.0).fit(x, y).predict(x, return_std=True)[1].min() >= 20.0
    assert regressor(noise="constant").fit(x, y).posterior_.likelihood == rb.Gaussian()
    stepped = regressor().fit(x, np.round(y / 300.0)).posterior_.likelihood
    width = np.round(y / 300.0).std()
    assert stepped.min_sd == pytest.approx(1.0 / width / 12.0**0.5)
    with pytest.raises(ValueError, match="one sd for each"):
        regressor(noise=20.0).fit(x, np.stack([y, 2 * y], axis=1))
    two = np.stack([y, 50 * y], axis=1)
    each = regressor(noise="constant").fit(x, two)
    assert each.posterior_.noises == 2
    given = regressor(noise=[20.0, 3000.0]).fit(x, two)
    np.testing.assert_allclose(given.posterior_.likelihood.scale, [20, 3000] / two.std(axis=0))
    assert (given.predict(x, return_std=True)[1] >= [20.0, 3000.0]).all()
    with pytest.raises(ValueError, match=r"expected noise of shape \(2,\)"):
        regressor(noise=[20.0, 3.0, 4.0]).fit(x, two)
    with pytest.raises(ValueError, match=r"expected noise\[1\] > 0"):
        regressor(noise=[20.0, -3.0]).fit(x, two)


@pytest.mark.parametrize(
    "labels", [np.array(["no", "yes"]), np.array([False, True]), np.array([-4, 9])]
)
def test_labels_come_back(labels: np.ndarray) -> None:
    x, y = table()
    named = labels[(y > 100.0).astype(int)]
    model = classifier().fit(x, named)
    assert model.classes_.dtype == named.dtype
    assert model.score(x, named) > 0.9
    probs = model.predict_proba(x)
    chosen = probs[np.arange(80), np.searchsorted(labels, named)]
    assert model.log_score(x, named) == pytest.approx(np.log(chosen).mean(), rel=1e-5)
    assert set(model.sample_y(x, 3).ravel().tolist()) <= set(labels.tolist())
    with pytest.raises(ValueError, match="expected labels among"):
        model.log_score(x[:1], np.array(["other"]))


@pytest.mark.parametrize("method", ["bbb", "dropout", "ensemble", "laplace", "swag", "hmc"])
@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_sum_to_one(method: str, classes: int) -> None:
    x, _ = table()
    chains = {"epochs": None, "draws": 3, "warmup": 10, "options": {"num_leapfrog_steps": 3}}
    more = chains if method == "hmc" else {"epochs": 3, "draws": 20}
    model = classifier(method=method, **more).fit(x, np.arange(80) % classes)
    probs = model.predict_proba(x)
    assert probs.dtype == np.float64
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, rtol=1e-15)


def test_one_class_is_refused() -> None:
    x, _ = table()
    with pytest.raises(ValueError, match="got one class"):
        classifier().fit(x, np.zeros(80))
    for tiny in (0.0, 1e-300):
        weights = np.where(np.arange(80) < 5, 1.0, tiny)
        with pytest.raises(ValueError, match=r"in rows that sample_weight .* got one class"):
            classifier().fit(x, np.arange(80) > 10, weights)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames(library: str) -> None:
    frames = pytest.importorskip(library, reason=f"needs {library}")
    x, y = table()
    columns = dict(zip(["width", "height", "depth"], x.T, strict=True))
    frame = frames.DataFrame(columns)
    model = regressor().fit(frame, y)
    assert model.feature_names_in_.tolist() == ["width", "height", "depth"]
    assert model.n_features_in_ == 3
    assert (model.predict(frame) == regressor().fit(x, y).predict(x)).all()
    word = frames.DataFrame({**columns, "city": ["Paris"] * 80})
    with pytest.raises(ValueError, match=r"column 'city' with str 'Paris' in row 0: encode it"):
        regressor().fit(word, y)
    times = frames.DataFrame({**columns, "day": np.arange(80).astype("datetime64[ms]")})
    with pytest.raises(ValueError, match=r"got .* in column 'day': make numbers .* such as days"):
        regressor().fit(times, y)
    hole = np.where(np.arange(80) == 3, np.nan, x[:, 1])
    with pytest.raises(ValueError, match="no NaN, got one in column 'height' in row 3: fill"):
        regressor().fit(frames.DataFrame({**columns, "height": hole}), y)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frames.DataFrame(dict(reversed(columns.items()))))


def test_what_is_no_table_is_refused() -> None:
    from scipy import sparse

    x, y = table()
    with pytest.raises(TypeError, match="dense data is required"):
        regressor().fit(sparse.csr_array(x), y)
    with pytest.raises(NotFittedError):
        regressor().predict(x)
    assert not hasattr(regressor(), "partial_fit")


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_units_of_y_do_not_matter(unit: float) -> None:
    x, y = table()
    mean, std = regressor().fit(x, y).predict(x, return_std=True)
    found = regressor().fit(x, unit * y).predict(x, return_std=True)
    np.testing.assert_allclose(found, [unit * mean, unit * std], rtol=1e-4)


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_units_whose_squares_are_no_numbers_are_refused(unit: float) -> None:
    x, y = table()
    with pytest.raises(ValueError, match="divide y by that"):
        regressor().fit(x, unit * y)


def test_the_order_of_rows_changes_nothing() -> None:
    x, y = table()
    order = np.random.default_rng(1).permutation(80)
    found, other = regressor().fit(x, y), regressor().fit(x[order], y[order])
    assert (found.predict(x) == other.predict(x)).all()
    assert (found.predict(x) != regressor(random_state=1).fit(x, y).predict(x)).any()


def test_weights_are_copies_of_rows() -> None:
    x, y = table()
    weights = np.random.default_rng(1).integers(0, 4, size=80)
    copied = regressor().fit(np.repeat(x, weights, axis=0), np.repeat(y, weights))
    weighted = regressor().fit(x, y, sample_weight=weights)
    assert (copied.predict(x) == weighted.predict(x)).all()
    assert (weighted.predict(x) != regressor().fit(x, y).predict(x)).any()
    assert weighted.posterior_.sample_weight is None
    with pytest.raises(ValueError, match="sample_weight >= 0, got -"):
        regressor().fit(x, y, sample_weight=-weights)


@pytest.mark.parametrize("method", ["bbb", "dropout", "ensemble", "laplace", "swag", "mclmc"])
def test_weights_of_any_size_count_in_the_likelihood(method: str) -> None:
    """Rows of a second line, weighted by 0.002: it is hardly seen; by 1: it is."""
    x, y = table(120)
    y[60:] = 300.0 - y[60:]
    weights = np.repeat([1.3, 0.002], 60)
    chains = {"epochs": None, "draws": 100, "warmup": 2_000, "thin": 10}
    more = {"method": method, "noise": "constant"} | (chains if method == "mclmc" else {})
    model = regressor(**more).fit(x, y, sample_weight=weights)
    np.testing.assert_allclose(np.sort(model.posterior_.sample_weight), np.sort(weights), rtol=1e-6)
    assert model.score(x[:60], y[:60]) > 0.7
    assert regressor(**more).fit(x, y).score(x[:60], y[:60]) < 0.5
    order = np.random.default_rng(2).permutation(120)
    again = regressor(**more).fit(x[order], y[order], sample_weight=weights[order])
    assert (again.predict(x) == model.predict(x)).all()
    right = model.log_score(x[:60], y[:60])
    own = model.log_score(x, y, sample_weight=np.repeat([1.0, 0.0], 60))
    assert own == pytest.approx(right)


def test_class_weights() -> None:
    x, y = table()
    labels = y > 250.0
    weighted = classifier(class_weight={False: 1, True: 3}).fit(x, labels)
    copied = classifier().fit(x, labels, sample_weight=1 + 2 * labels)
    assert (weighted.predict_proba(x) == copied.predict_proba(x)).all()
    rare = np.r_[np.flatnonzero(~labels), np.flatnonzero(labels)[:3]]
    long = {**SHORT, "epochs": 2_000}
    plain = BNNClassifier((), **long).fit(x[rare], labels[rare])
    even = BNNClassifier((), class_weight="balanced", **long).fit(x[rare], labels[rare])
    assert even.predict_proba(x)[:, 1].mean() > 1.5 * plain.predict_proba(x)[:, 1].mean()
    sure = classifier(class_weight={False: 1e-4, True: 1e3}).fit(x, labels)
    assert sure.predict(x).mean() > 0.9


@pytest.mark.parametrize("make", [regressor, classifier])
def test_clone_pickle_and_html(make) -> None:
    x, y = table()
    model = make().fit(x, y > 100.0)
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict(x) == model.predict(x)).all()
    assert again.summary_.text == model.summary_.text
    fresh = clone(model)
    assert not hasattr(fresh, "draws_")
    assert (fresh.fit(x, y > 100.0).predict(x) == model.predict(x)).all()
    assert type(model).__name__ in model._repr_html_()


@pytest.mark.parametrize("method", ["bbb", "dropout", "ensemble", "laplace", "swag", "hmc"])
def test_copies_predict_the_same_without_training_rows(method: str) -> None:
    x, y = table(4_000)
    chains = {"epochs": None, "draws": 5, "warmup": 10, "options": {"num_leapfrog_steps": 3}}
    more = chains if method == "hmc" else {"epochs": 1, "draws": 20}
    more |= {"options": {"polish": 0}} if method == "laplace" else {}
    model = regressor(method=method, **more).fit(x, y)
    stored = pickle.dumps(model)
    assert len(stored) < y.nbytes < x.nbytes
    for again in (pickle.loads(stored), copy.deepcopy(model), copy.copy(model)):
        same = [(one.predict_interval(x[:9]), one.log_score(x, y)) for one in (model, again)]
        np.testing.assert_array_equal(same[0][0], same[1][0])
        assert same[0][1] == same[1][1]
        assert again.summary_.text == model.summary_.text
        assert again.draws_.summary().converged == model.draws_.summary().converged
        assert not hasattr(again, "posterior_")
        with pytest.raises(AttributeError, match="posterior_ holds the training rows"):
            _ = again.posterior_
        assert len(pickle.dumps(again)) < y.nbytes
    assert model.posterior_.num_rows == 4_000
    with pytest.raises(AttributeError, match="has no attribute 'posterior_'"):
        _ = regressor().posterior_


def test_intervals_pass_through_pipelines() -> None:
    x, y = table()
    model = regressor().fit(x, y)
    mean, lower, upper = model.predict(x, interval=0.8)
    assert (mean == model.predict(x)).all()
    np.testing.assert_array_equal([lower, upper], model.predict_interval(x, 0.8))
    found = model.predict(x, return_std=True, interval=0.8)
    assert found.shape == (4, 80)
    np.testing.assert_array_equal(found[:2], model.predict(x, return_std=True))
    for routing in (False, True):
        with sklearn.config_context(enable_metadata_routing=routing):
            pipeline = make_pipeline(FunctionTransformer(), regressor()).fit(x, y)
            np.testing.assert_array_equal(pipeline.predict(x, interval=0.8), [mean, lower, upper])
    behind = TransformedTargetRegressor(regressor(), func=np.arcsinh, inverse_func=np.sinh)
    mean, lower, upper = behind.fit(x, y).predict(x, interval=0.9)
    assert (lower < mean).all()
    assert (mean < upper).all()
    both = regressor().fit(x, np.stack([y, -y], axis=1))
    assert both.predict(x, interval=0.9).shape == (3, 80, 2)
    for bad in (0.0, 1, 1.5):
        with pytest.raises(ValueError, match=r"^\[BNNRegressor.predict\] expected interval in"):
            model.predict(x, interval=bad)


def test_in_pipelines_and_behind_transformed_targets() -> None:
    x, y = table()
    model = make_pipeline(StandardScaler(), regressor())
    found = cross_val_predict(model, x, y, cv=3)
    assert np.corrcoef(found, y)[0, 1] > 0.7
    behind = TransformedTargetRegressor(regressor(), func=np.arcsinh, inverse_func=np.sinh)
    assert behind.fit(x, y).predict(x).shape == (80,)


def test_metadata_is_routed() -> None:
    x, y = table()
    with sklearn.config_context(enable_metadata_routing=True):
        model = regressor().set_fit_request(sample_weight=True)
        model = model.set_score_request(sample_weight=False)
        search = GridSearchCV(model, {"prior_scale": [1.0]}, cv=2)
        weights = np.tile([1, 2], 40)
        best = search.fit(x, y, sample_weight=weights).best_estimator_
    assert best.posterior_.num_rows == 120


@pytest.mark.filterwarnings("default::ribbit.errors.ConvergenceWarning")
def test_a_shortened_step_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = table()
    chains = {"method": "sgld", "epochs": None, "draws": 5, "warmup": 20, "thin": 1}
    sample, left = rb.SGLD.sample, [1]

    def fails_once(self, *args, **more):
        if left and left.pop():
            lost = {"state": None, "step": 3, "largest_gradient": 1.0}
            raise rb.errors.NonFiniteError("overflow", step_size=3e-3, **lost)
        return sample(self, *args, **more)

    monkeypatch.setattr(rb.SGLD, "sample", fails_once)
    with pytest.warns(rb.errors.ConvergenceWarning, match="0.003, got .* sampled with 0.0003"):
        regressor(**chains).fit(x, y)


@pytest.mark.filterwarnings("error::ribbit.errors.PriorWarning")
@pytest.mark.parametrize("hidden", [(), (5,), (5, 4)])
def test_chains_learn_the_sd_of_the_output_layer(hidden: tuple[int, ...]) -> None:
    x, y = table()
    chains = {"method": "hmc", "epochs": None, "draws": 2, "warmup": 2, "chains": 2}
    found = classifier(**chains).set_params(hidden=hidden).fit(x, y > 100.0).posterior_
    extra = [name for name in found.unravel(found.init(seed=0)) if name.startswith("log_")]
    assert extra == [f"log_scale.{2 * len(hidden)}.weight"]
    known = (
        classifier(prior_scale=3.0, **chains).set_params(hidden=hidden).fit(x, y > 100.0).posterior_
    )
    assert known.prior == rb.Normal(3.0, fan_in=True)
    assert known.dim == found.dim - 1


@pytest.mark.parametrize("method", ["sghmc", "ensemble", "laplace"])
def test_methods_that_learn_no_sd_have_a_known_one(method: str) -> None:
    x, y = table()
    given = {"epochs": None, "draws": 2, "warmup": 2} if method == "sghmc" else {"epochs": 2}
    found = classifier(method=method, **given).fit(x, y > 100.0).posterior_
    assert found.prior == rb.Normal(2.0, fan_in=True)


def test_probabilities_follow_how_clean_labels_are() -> None:
    """Confident where a column decides, not where nothing does; a known sd of 2 is between them."""
    x, y = table()
    chains = {"method": "mclmc", "epochs": None, "draws": 150, "warmup": 2_000, "thin": 20}
    pure = np.random.default_rng(1).permutation(y > 100.0)
    clean, noisy = (
        classifier(**chains).fit(x, label).predict_proba(x) for label in (y > 100.0, pure)
    )
    known = classifier(prior_scale=2.0, **chains)
    assert (
        clean.max(axis=1).mean()
        > known.fit(x, y > 100.0).predict_proba(x).max(axis=1).mean() + 0.02
    )
    assert noisy.max(axis=1).mean() < known.fit(x, pure).predict_proba(x).max(axis=1).mean() - 0.02


@pytest.mark.parametrize("method", ["bbb", "dropout", "ensemble"])
def test_early_stopping_ends_sooner_and_keeps_the_best(method: str) -> None:
    x, y = table()
    model = regressor(method=method, epochs=4_000, early_stopping=True, validation_fraction=0.25)
    found = model.fit(x, y)
    assert found.approximation_.settings["num_rows"] == 60
    assert found.approximation_.settings["num_epochs"] < 4_000
    assert found.score(x, y) > 0.5


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"method": "vi"}, "method"),
        ({"method": "mclmc", "epochs": 3}, "epochs"),
        ({"method": "mclmc", "epochs": None, "early_stopping": True}, "early_stopping"),
        ({"method": "swag", "early_stopping": True}, "early_stopping"),
        ({"warmup": 3}, "warmup"),
        ({"hidden": (0,)}, r"hidden\[0\] >= 1"),
        ({"hidden": 0}, "hidden >= 1"),
        ({"prior_scale": -1.0}, "prior_scale"),
        ({"noise": "loud"}, "noise"),
        ({"chains": 0}, "chains"),
        ({"draws": 0, "method": "bbb"}, "draws"),
        ({"epochs": 0}, "epochs"),
        ({"dropout_rate": 1.5}, "dropout_rate"),
        ({"options": 3}, "options"),
        ({"early_stopping": True, "validation_fraction": 2.0}, "validation_fraction"),
        ({"early_stopping": True, "store": "a"}, "store"),
    ],
)
def test_parameters_that_do_not_fit_are_named(given, named: str) -> None:
    x, y = table()
    with pytest.raises((TypeError, ValueError), match=named):
        regressor().set_params(**given).fit(x, y)


@pytest.mark.parametrize("scale", ["wide", 0.0, None, b"auto"])
def test_a_prior_scale_that_is_none_is_named(scale: object) -> None:
    x, y = table()
    with pytest.raises((TypeError, ValueError), match=r"\[BNNClassifier.fit\] .*prior_scale"):
        classifier(prior_scale=scale).fit(x, y > 100.0)
    with pytest.raises(TypeError, match=r"\[BNNRegressor.fit\] .*prior_scale"):
        regressor(prior_scale="auto").fit(x, y)


@pytest.mark.parametrize("method", ["ensemble", "laplace"])
def test_a_fit_in_a_folder_is_found_again(tmp_path, method: str) -> None:
    x, y = table()
    stored = regressor(method=method, store=str(tmp_path / "run")).fit(x, y)
    again = regressor(method=method, store=str(tmp_path / "run")).fit(x, y)
    assert (stored.predict(x) == again.predict(x)).all()
    with pytest.raises(ValueError, match="data"):  # control: other rows are another run
        regressor(method=method, store=str(tmp_path / "run")).fit(x, y + x[:, 0])


def test_a_run_in_a_folder_goes_on(tmp_path) -> None:
    x, y = table()
    chains = {"method": "mclmc", "epochs": None, "draws": 20, "warmup": 200, "thin": 2}
    stored = regressor(store=str(tmp_path / "run"), **chains).fit(x, y)
    again = regressor(store=str(tmp_path / "run"), **chains).fit(x, y)
    assert (stored.predict(x) == again.predict(x)).all()
    kept = regressor(**chains).fit(x, y)
    assert (np.asarray(stored.draws_.positions) == kept.draws_.positions).all()
    np.testing.assert_allclose(stored.predict(x), kept.predict(x), rtol=1e-9)


def test_a_run_that_takes_minutes_says_so_before_it_begins():
    """The clock is replaced: a gradient of ten seconds beside one that takes none."""
    from ribbit.sklearn import methods

    x, y = np.linspace(-1, 1, 20)[:, None], np.linspace(-1, 1, 20)
    for second, told in ((10.0, True), (0.0, False)):
        clock = types.SimpleNamespace(perf_counter=itertools.count(0.0, second).__next__)
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            patch.setattr(methods, "time", clock)
            BNNRegressor((4,), warmup=100, draws=4, chains=2, random_state=0).fit(x, y)
        found = [str(one.message) for one in said if "minutes" in str(one.message)]
        assert bool(found) == told
        if told:
            assert "20 rows and 18 parameters" in found[0]
            assert "method='baoab'" in found[0]


@pytest.mark.filterwarnings("ignore:.*expected at least one draw within max_seconds")
def test_a_time_that_ends_in_warmup_is_said():
    x, y = table(3000)
    model = BNNRegressor((4,), max_seconds=0.5, warmup=2_000_000)
    with pytest.raises(
        ValueError, match=r"expected a draw within max_seconds=0.5, got none"
    ) as said:
        model.fit(x, y)
    assert "of 2,000,000 steps of warmup" in str(said.value)
    assert not hasattr(model, "draws_")
