"""Messy tables: gaps, dates, texts, far cells, weights; each error names the row or column."""

import datetime

import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6", reason="needs scikit-learn 1.6 or newer")

from ribbit.errors import ScaleWarning
from ribbit.sklearn import BNNClassifier, BNNRegressor

pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")
RNG = np.random.default_rng(4)
X = RNG.normal(size=(40, 3))
Y = X[:, 0] + 0.1 * RNG.normal(size=40)
GAP = np.where(np.arange(40) == 7, np.nan, Y)
LABELS = np.array(["a", "b"] * 20, dtype=object)
DAYS = [datetime.date(2020, 1, 1) + datetime.timedelta(i) for i in range(40)]


def fitted(kind, x, y, weights=None, **more):
    options = {"method": "ensemble", "epochs": 20, "chains": 2, "random_state": 0, **more}
    return kind((4,), **options).fit(x, y, weights)


def with_gap(values, gap):
    """The values as objects, with a gap in row 7."""
    found = np.asarray(values, dtype=object).copy()
    found[7] = gap
    return found


def frames(name, **columns):
    return pytest.importorskip(name, reason=f"needs {name}").DataFrame(columns)


@pytest.mark.parametrize("name", ["pandas", "polars"])
@pytest.mark.parametrize(
    "values",
    [
        DAYS,
        [None, *DAYS[1:]],
        [datetime.datetime(2020, 1, 1)] * 40,
        [datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)] * 40,
        [datetime.timedelta(days=i) for i in range(40)],
        [datetime.time(3)] * 40,
    ],
)
def test_columns_of_times_are_named(name, values) -> None:
    frame = frames(name, size=Y, visit=values)
    advice = r"^\[BNNRegressor.fit\] expected numbers in X, got .* in column 'visit': .* days since"
    with pytest.raises(ValueError, match=advice):
        fitted(BNNRegressor, frame, Y)


def test_periods_and_arrays_of_times_are_named() -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    periods = pandas.DataFrame({"visit": pandas.period_range("2020", periods=40, freq="D")})
    with pytest.raises(ValueError, match="got Period in column 'visit'"):
        fitted(BNNRegressor, periods, Y)
    for x in (np.array(DAYS, "M8[D]")[:, None], np.array([[day] for day in DAYS], object)):
        with pytest.raises(ValueError, match="in column 0: make numbers of dates"):
            fitted(BNNRegressor, x, Y)


@pytest.mark.parametrize(
    "y", [GAP, GAP.tolist(), with_gap(Y, None), with_gap(Y, None).tolist(), np.c_[Y, GAP]]
)
def test_a_gap_in_targets_is_named(y) -> None:
    with pytest.raises(
        ValueError, match=r"^\[BNNRegressor.fit\] expected y without .* NaN in row 7"
    ):
        fitted(BNNRegressor, X, y)


@pytest.mark.parametrize(
    "y",
    [
        np.where(np.isnan(GAP), np.nan, GAP > 0),
        with_gap(LABELS, None),
        with_gap(LABELS, np.nan).tolist(),
    ],
)
def test_a_missing_label_is_named(y) -> None:
    with pytest.raises(
        ValueError, match=r"^\[BNNClassifier.fit\] expected y without .* NaN in row 7"
    ):
        fitted(BNNClassifier, X, y)
    with pytest.raises(ValueError, match=r"expected y without .* NaN in row 7"):
        fitted(BNNClassifier, X, LABELS).log_score(X, y)


@pytest.mark.parametrize("dtype", ["Float64", "float64", "object", "string", "category", "Int64"])
def test_a_gap_in_a_series_is_named(dtype) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    text = dtype in ("string", "category")
    y = pandas.Series(with_gap(LABELS if text else np.arange(40) % 2, None), dtype=dtype)
    for kind in [BNNClassifier] if text else [BNNClassifier, BNNRegressor]:
        with pytest.raises(ValueError, match=r"expected y without .* NaN in row 7"):
            fitted(kind, X, y)


def test_what_is_no_number_in_targets_is_named() -> None:
    for y, match in (
        (
            with_gap(Y, "high"),
            "expected y of numbers, got str 'high' in row 7: BNNClassifier takes",
        ),
        (LABELS.astype(str), "expected y of numbers, got str 'a' in row 0: BNNClassifier takes"),
        (np.where(np.isnan(GAP), -np.inf, GAP), "expected y of finite numbers, got inf in row 7"),
        (np.ma.masked_invalid(GAP), "y without masked values"),
        (Y[:-1], r"y of N rows, got .* shape \(39,\)"),
        (None, "requires y"),
    ):
        with pytest.raises((TypeError, ValueError), match=match) as error:
            fitted(BNNRegressor, X, y)
        assert str(error.value).startswith("[BNNRegressor.fit]")


def test_a_gap_in_a_table_is_named_by_row_and_column() -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    x = X.copy()
    x[7, 1] = np.nan
    for table in (x, x.tolist(), np.where(np.isnan(x), None, x)):
        with pytest.raises(ValueError, match="no NaN, got one in column 1 in row 7: fill gaps"):
            fitted(BNNRegressor, table, Y)
    twice = pandas.DataFrame(x, columns=["a", "a", "c"])
    with pytest.raises(ValueError, match=r"no NaN, got one in column 'a' \(number 1\) in row 7"):
        fitted(BNNRegressor, twice, Y)
    words = pandas.DataFrame({"a": Y, "b": ["x"] * 40}).set_axis(["a", "a"], axis=1)
    with pytest.raises(ValueError, match=r"column 'a' \(number 1\) with str 'x' in row 0: encode"):
        fitted(BNNRegressor, words, Y)
    with pytest.raises(ValueError, match="no inf, got one in column 1 in row 7: correct the cell"):
        fitted(BNNRegressor, X, Y).predict(np.where(np.isnan(x), np.inf, x))


def test_far_cells_are_named_by_the_rows_as_they_came() -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    x, y = X.copy(), Y.copy()
    x[17, 0] = 1e12
    frame = pandas.DataFrame(x, columns=list("abc"))
    for kind, table, target, column in (
        (BNNRegressor, x, y, "0"),
        (BNNClassifier, frame, LABELS, "'a'"),
    ):
        with pytest.warns(ScaleWarning) as caught:
            kind((4,), method="ensemble", epochs=2).fit(table, target)
        assert [one.filename for one in caught if one.category is ScaleWarning] == [__file__]
        wanted = f"[{kind.__name__}.fit] row 17 of X column {column} is 1e+12"
        assert any(wanted in str(one.message) for one in caught)
    y[23] = -1e9
    with pytest.warns(ScaleWarning, match=r"row 23 of y is -1e\+09"):
        fitted(BNNRegressor, X, y, 0.5 + RNG.random(40))


@pytest.mark.parametrize("value", [7.7, 0.1, 1 / 3])
def test_a_known_noise_of_a_constant_target_is_its_sd(value) -> None:
    model = fitted(BNNRegressor, X, np.full(40, value), noise=0.3, method="laplace", epochs=40)
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, value, atol=0.5)
    assert 0.29 < std.min() <= std.max() < 0.6


def test_units_of_inputs_do_not_matter() -> None:
    plain = fitted(BNNRegressor, X, Y).predict(X)
    for unit in (1e160, 1e-162, 1e-310):
        x = X * [unit, 1.0, 1.0]
        np.testing.assert_allclose(fitted(BNNRegressor, x, Y).predict(x), plain, atol=1e-3)


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize(
    ("weights", "match"),
    [
        (np.full(40, 1e-40), None),
        (np.where(np.arange(40) < 20, 1.5, 1e-300), None),
        (np.where(np.arange(40) < 20, 1.5, 1e-40), None),
        (np.where(np.arange(40) < 20, 1.5, 1e-14), None),
        (np.where(np.arange(40) == 0, 1.5, 1e-300), "one row"),
        (np.where(np.arange(40) == 0, 1.5, 1e-40), "one row"),
        (np.where(np.arange(40) == 0, 1.5, 0.0), "one row"),
        (np.full(40, 1e-300), "sample_weight above 0 in float32, got 1e-300"),
        (np.full(40, 1e300), r"sample_weight of a sum <= 1e\+12"),
        (np.full(40, 1e38), r"sample_weight of a sum <= 1e\+12"),
        (np.zeros(40), "sample_weight"),
        (np.where(np.arange(40) == 3, -1.0, 1.5), "sample_weight >= 0, got -1 in row 3"),
        (np.where(np.arange(40) == 3, np.nan, 1.5), "sample_weight"),
    ],
)
def test_weights_of_any_size_work_or_are_named(weights, match, early_stopping) -> None:
    if match == "one row":
        match = "two rows or more of sample_weight above 0" if early_stopping else None
    if match is None:
        model = fitted(BNNRegressor, X, Y, weights, early_stopping=early_stopping)
        assert np.isfinite(model.predict(X, return_std=True)).all()
        return
    with pytest.raises(ValueError, match=match) as error:
        fitted(BNNRegressor, X, Y, weights, early_stopping=early_stopping)
    assert str(error.value).startswith("[BNNRegressor.fit]")
