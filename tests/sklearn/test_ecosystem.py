"""Beside what people put around estimators: conformal intervals, processes, warm cores."""

import os
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6", reason="needs scikit-learn 1.6 or newer")
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ribbit.errors import RibbitWarning
from ribbit.sklearn import BNNRegressor

# Short fits end while they still rise.
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")
TASKS = Path("/proc/self/task")


def table(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A sine of the first of three columns, and noise of sd 0.3."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(rows, 3))
    return x, np.sin(2.0 * x[:, 0]) + 0.3 * rng.normal(size=rows)


def test_conformal_intervals_of_mapie() -> None:
    """Of a model told a wrong noise: its own intervals miss, the conformal ones do not."""
    mapie = pytest.importorskip("mapie.regression", reason="needs MAPIE")
    x, y = table(1_300)
    model = BNNRegressor((16,), method="ensemble", epochs=400, noise=0.05, random_state=0)
    model.fit(x[:300], y[:300])
    conformal = mapie.SplitConformalRegressor(model, confidence_level=0.9, prefit=True)
    conformal.conformalize(x[300:800], y[300:800])
    mean, interval = conformal.predict_interval(x[800:])
    assert (mean == model.predict(x[800:])).all()
    inside = (interval[:, 0, 0] <= y[800:]) & (y[800:] <= interval[:, 1, 0])
    # 500 rows at 0.9, calibrated on 500: an sd of 0.019, five of them
    assert 0.80 < inside.mean() < 0.995
    lower, upper = model.predict_interval(x[800:], 0.9)  # control
    assert ((lower <= y[800:]) & (y[800:] <= upper)).mean() < 0.75


def _threads(model: BNNRegressor, x: np.ndarray, y: np.ndarray) -> float:
    """Threads of this process after fits, idle ones of others included."""
    del y
    for _ in range(3):
        model.fit(x, x[:, 0])
    return len(list(TASKS.iterdir()))


@pytest.mark.skipif(not TASKS.is_dir(), reason="needs Linux")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_two_workers_have_half_of_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by the system, in the workers; the control gives each worker all of them."""
    cores = len(os.sched_getaffinity(0))
    counts = {}
    x, y = table(2_000)
    for given in (None, str(cores)):
        for name in ("RIBBIT_NUM_THREADS", "OMP_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)
        if given:
            monkeypatch.setenv("RIBBIT_NUM_THREADS", given)
        model = BNNRegressor((64, 64), method="swag", epochs=2, batch_size=1_000, random_state=0)
        search = GridSearchCV(model, {"chains": [2, 3]}, scoring=_threads, cv=2, n_jobs=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # joblib's workers live on, and keep the environment that they were started with
            _stop_workers()
            search.fit(x, y)
            _stop_workers()
        counts[given] = min(search.cv_results_["mean_test_score"])
    # the pool of a worker has one thread fewer than it computes with
    assert counts[str(cores)] - counts[None] >= cores - max(1, cores // 2)


def _stop_workers() -> None:
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)
    time.sleep(0.1)


@pytest.mark.parametrize("method", ["nuts", "ensemble"])
@pytest.mark.parametrize("around", ["nothing", "pipeline", "search"])
def test_warnings_point_at_the_line_that_fits(around: str, method: str) -> None:
    sizes = {"draws": 30, "warmup": 2} if method == "nuts" else {"epochs": 20}
    model = BNNRegressor((4,), method=method, random_state=0, **sizes)
    if around == "pipeline":
        model = make_pipeline(StandardScaler(), model)
    if around == "search":
        model = GridSearchCV(make_pipeline(model), {"bnnregressor__hidden": [(4,)]}, cv=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(*table(40))
    found = [one for one in caught if issubclass(one.category, RibbitWarning)]
    assert found
    assert {one.filename for one in found} == {__file__}
