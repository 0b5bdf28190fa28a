"""Frames as inputs: columns are matched by name wherever predictions are made."""

import warnings

import numpy as np
import pytest

import ribbit as rb

pd = pytest.importorskip("pandas")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2))
FRAME = pd.DataFrame(X, columns=["age", "height"])
OTHER = FRAME[["height", "age"]]
Y = X[:, 0] - 2 * X[:, 1]


def posterior(x=FRAME, y=Y, **options):
    options = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian(0.3), **options}
    return rb.Posterior(rb.mlp(2, (3,), options.pop("outputs", 1)), x, y, **options)


def sampled(target, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hmc = rb.HMC(target, step_size=0.02, num_leapfrog_steps=3)
        return hmc.sample(5, warmup=0, chains=2, seed=0, progress=False, **options)


@pytest.fixture(scope="module")
def draws():
    return sampled(posterior(standardize=True))


def same(one, other):
    np.testing.assert_array_equal(np.asarray(one.mean), np.asarray(other.mean))


def test_predictions_take_columns_in_any_order(draws):
    mean = draws.predict(X)
    same(draws.predict(FRAME), mean)
    same(draws.predict(OTHER), mean)
    assert str(draws.summary(OTHER)) == str(draws.summary(X)) == str(draws.summary(FRAME))
    theta = draws.positions[0]
    predictive = draws.predictive
    for method in (predictive.outputs, lambda t, x: predictive.predictive(t, x).mean):
        np.testing.assert_array_equal(method(theta, OTHER), method(theta, X))
    np.testing.assert_array_equal(
        predictive.log_likelihood(theta, OTHER, Y), predictive.log_likelihood(theta, X, Y)
    )


def test_what_judges_predictions_does_too(draws):
    for function in (rb.diagnostics.predictive_rhat, rb.diagnostics.predictive_ess):
        np.testing.assert_array_equal(function(draws, OTHER), function(draws, X))


def test_runs_with_predictions_do_too(draws):
    found = [sampled(posterior(), predict_at=(x, Y)).prediction for x in (X, OTHER)]
    same(*found)
    rule = [rb.Converged(at=x, rhat=9.0, ess=1) for x in (X, OTHER)]
    ends = [sampled(posterior(), until=until, max_draws=20) for until in rule]
    np.testing.assert_array_equal(ends[0].monitored, ends[1].monitored)


def test_frames_of_polars_do_too(draws):
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"height": X[:, 1], "age": X[:, 0]})
    same(draws.predict(frame), draws.predict(X))
    same(
        sampled(posterior(pl.DataFrame({"a": X[:, 0], "b": X[:, 1]}))).predict(X),
        sampled(posterior(X)).predict(X),
    )


def test_arrays_at_construction_have_no_names():
    draws = sampled(posterior(X))
    assert draws.predictive.columns is None
    same(draws.predict(FRAME), draws.predict(X))


def test_a_frame_without_names_is_taken_as_it_is(draws):
    same(draws.predict(pd.DataFrame(X)), draws.predict(X))


def test_numbers_are_names():
    draws = sampled(posterior(pd.DataFrame(X)))
    same(draws.predict(pd.DataFrame(X)[[1, 0]]), draws.predict(X))


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (FRAME[["age"]], "without 'height'"),
        (FRAME.assign(weight=1.0), "with 'weight'"),
        (FRAME.rename(columns={"age": "Age"}), "without 'age' and with 'Age'"),
    ],
)
def test_other_columns_are_named(draws, frame, said):
    for function in (draws.predict, draws.summary):
        with pytest.raises(ValueError, match=rf"expected x with the columns of the data.*{said}"):
            function(frame)


@pytest.mark.parametrize("where", ["construction", "prediction"])
@pytest.mark.parametrize(
    ("column", "said"),
    [
        (["a"] * 30, r"holds column 'height' with str 'a' in row 0: leave such columns out"),
        (pd.date_range("2020-01-01", periods=30), r"column 'height' of times: make numbers"),
        ([None] * 30, r"column 'height' with None in row 0"),
    ],
    ids=["text", "dates", "none"],
)
def test_a_column_of_no_numbers_is_named(draws, where, column, said):
    frame = FRAME.assign(height=pd.Series(column, dtype=None if said[0] == "c" else object))
    make = posterior if where == "construction" else draws.predict
    with pytest.raises(TypeError, match=said):
        make(frame)


def test_columns_of_several_dtypes_are_numbers():
    frame = pd.DataFrame({"a": X[:, 0] > 0, "b": pd.array([1, 2, 3] * 10, dtype="Int64")})
    target = posterior(frame)
    np.testing.assert_array_equal(target.x[:, 1], [1, 2, 3] * 10)


@pytest.mark.parametrize("names", [["a", "a"], [1, 1]])
def test_two_columns_of_one_name_are_refused(draws, names):
    frame = pd.DataFrame(X, columns=names)
    for make in (posterior, draws.predict):
        with pytest.raises(ValueError, match=rf"each column of x once, got {names[0]!r} several"):
            make(frame)


def test_saved_draws_keep_the_names(draws, tmp_path):
    draws.save(tmp_path / "draws.rbt")
    loaded = rb.load(tmp_path / "draws.rbt")
    assert loaded.predictive.columns == ("age", "height")
    same(loaded.predict(OTHER), draws.predict(X))


def test_copies_and_parts_of_a_target_keep_the_names():
    import copy

    target = posterior(likelihood=rb.Gaussian(), marginalize="auto")
    for other in (copy.copy(target), target.subset([0, 1, 2]), target.marginal):
        assert other is None or other.columns == ("age", "height")


@pytest.mark.parametrize("fit", [rb.BBB, rb.SWAG, rb.DeepEnsemble, rb.LaplaceApproximation])
def test_fits_take_columns_in_any_order(fit):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = fit(posterior()).fit(2, progress=False)
        same(found.predict(OTHER), found.predict(X))


def test_dropout_takes_columns_in_any_order():
    model = rb.Model([rb.Dense(3), rb.Dropout(0.1), rb.Dense(1)], input_shape=(2,))
    target = rb.Posterior(model, FRAME, Y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3))
    found = rb.MCDropout(target).fit(1, progress=False)
    same(found.predict(OTHER, 5), found.predict(X, 5))


def test_a_boundary_has_the_columns_of_the_data():
    pytest.importorskip("matplotlib").use("Agg")
    labels = (X[:, 0] > 0).astype(int)
    target = posterior(y=labels, outputs=2, likelihood=rb.Categorical())
    draws = sampled(target)
    images = [
        rb.plots.decision_boundary(draws, x, labels, resolution=4).images[0].get_array()
        for x in (X, OTHER)
    ]
    np.testing.assert_array_equal(*images)


def test_a_scaler_takes_columns_in_any_order():
    scaler = rb.datasets.standardize(FRAME, Y)
    np.testing.assert_array_equal(scaler.transform(OTHER), scaler.x)
    with pytest.raises(ValueError, match="without 'height'"):
        scaler.transform(FRAME[["age"]])


def test_columns_of_times_are_refused_in_any_library():
    polars = pytest.importorskip("polars")
    days = pd.date_range("2020", periods=len(X))
    for times in (days, days - days[0]):
        for frame in (pd.DataFrame, polars.DataFrame):
            table = frame({"age": X[:, 0], "visit": times})
            for read in (posterior, lambda x: rb.datasets.standardize(x, Y)):
                with pytest.raises(TypeError, match=r"\bx\b.*'visit' of times: make numbers of it"):
                    read(table)


def test_far_cells_are_told_with_the_name_of_their_column():
    table = FRAME.copy()
    table.loc[17, "height"] = 1e12
    for read in (lambda x: posterior(x, standardize=True), rb.datasets.standardize):
        with pytest.warns(rb.errors.ScaleWarning, match="row 17 of x column 'height' is 1e"):
            read(table)


def test_a_tree_has_the_columns_of_the_data(draws):
    pytest.importorskip("arviz_base")
    trees = [draws.to_datatree(x, Y) for x in (X, OTHER)]
    for name in ("log_likelihood", "constant_data"):
        one, other = (next(iter(tree[name].data_vars.values())) for tree in trees)
        np.testing.assert_array_equal(one, other)


def test_a_stored_run_keeps_the_names(tmp_path):
    draws = sampled(posterior(), store=tmp_path / "run")
    run = rb.load(tmp_path / "run")
    same(run.predict(OTHER), draws.predict(X))
