"""scikit-learn's own checks of estimators, for every method with settings that learn."""

import pytest

pytest.importorskip("sklearn", minversion="1.6", reason="needs scikit-learn 1.6 or newer")
from sklearn.utils.estimator_checks import check_estimator

from ribbit.sklearn import BNNClassifier, BNNRegressor

CHAINS = {"draws": 100, "warmup": 1_000, "thin": 10}
BATCHES = {"draws": 50, "warmup": 500, "thin": 10}
TRAINED = {"epochs": 1_000}
# As long as tables of 15 to 300 rows need: a method that does not learn fails the checks of scores.
# Trajectories, trees and Newton's way to the mode are short; the other settings of a method are its
# defaults.
SETTINGS = {
    "mclmc": CHAINS,
    "hmc": {"draws": 40, "warmup": 60, "options": {"num_leapfrog_steps": 20}},
    "nuts": {"draws": 40, "warmup": 60, "options": {"max_tree_depth": 5}},
    "sgld": BATCHES,
    "sghmc": BATCHES,
    "baoab": BATCHES,
    "bbb": TRAINED,
    "dropout": TRAINED,
    "ensemble": TRAINED,
    "laplace": {**TRAINED, "options": {"polish": 3}},
    "swag": TRAINED,
}
# Pilot runs of the step size on three classes take 30 s of a core each. Of methods that differ in
# the sampler alone every pull has one; of laplace and mclmc, the longest of the others, regression.
SLOW = {(BNNClassifier, "sgld"), (BNNClassifier, "sghmc"), (BNNRegressor, "sghmc")}
SLOW |= {(BNNClassifier, "laplace"), (BNNClassifier, "mclmc")}
SLOW |= {(kind, method) for kind in (BNNRegressor, BNNClassifier) for method in ("baoab", "nuts")}
CASES = [
    pytest.param(kind, method, marks=pytest.mark.slow if (kind, method) in SLOW else ())
    for kind in (BNNRegressor, BNNClassifier)
    for method in SETTINGS
]


def failed(found: list[dict[str, object]]) -> dict[str, str]:
    """Return the checks that failed unexpectedly, and how."""
    return {
        str(one["check_name"]): repr(one["exception"]) for one in found if one["status"] == "failed"
    }


# Most tables of the checks are noise of a few rows, on which chains and fits rightly warn.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "method"), CASES)
def test_check_estimator(kind: type, method: str) -> None:
    estimator = kind((16,), method=method, **SETTINGS[method])
    found = check_estimator(estimator, on_fail=None, on_skip=None)
    assert len(found) > 40
    assert not failed(found)


@pytest.mark.filterwarnings("ignore")
def test_a_broken_estimator_is_noticed() -> None:
    class Broken(BNNRegressor):
        def predict(self, X, return_std=False):
            return super().predict(X, return_std)[::-1]

    found = check_estimator(Broken((4,), method="ensemble", epochs=20), on_fail=None, on_skip=None)
    assert "check_methods_sample_order_invariance" in failed(found)
