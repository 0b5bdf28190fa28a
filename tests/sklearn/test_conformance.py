"""scikit-learn's own checks of estimators, for every method with settings that learn."""

import pytest

pytest.importorskip("sklearn", minversion="1.6", reason="needs scikit-learn 1.6 or newer")
from sklearn.utils.estimator_checks import check_estimator

from ribbit.sklearn import BNNClassifier, BNNRegressor

CHAINS = {"draws": 100, "warmup": 2_000, "thin": 20}
TRAINED = {"epochs": 1_000}
# Trajectories, trees and Newton's way to the mode are short; the other settings of a method are its
# defaults.
SETTINGS = {
    "mclmc": CHAINS,
    "hmc": {"draws": 50, "warmup": 100, "options": {"num_leapfrog_steps": 20}},
    "nuts": {"draws": 50, "warmup": 100, "options": {"max_tree_depth": 5}},
    "sgld": CHAINS,
    "sghmc": CHAINS,
    "baoab": CHAINS,
    "bbb": TRAINED,
    "dropout": TRAINED,
    "ensemble": TRAINED,
    "laplace": {**TRAINED, "options": {"polish": 10}},
    "swag": TRAINED,
}
# Weights from 1e-4 to 1e3: copies of rows cannot state them, and the core has no weights of rows.
EXPECTED = {"check_class_weight_classifiers": "weights that no copies of rows state"}
QUICK = {(BNNRegressor, "mclmc"), (BNNClassifier, "ensemble")}
CASES = [
    pytest.param(kind, method, marks=() if (kind, method) in QUICK else pytest.mark.slow)
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
    found = check_estimator(estimator, expected_failed_checks=EXPECTED, on_fail=None, on_skip=None)
    assert len(found) > 40
    assert not failed(found)


@pytest.mark.filterwarnings("ignore")
def test_a_broken_estimator_is_noticed() -> None:
    class Broken(BNNRegressor):
        def predict(self, X, return_std=False):
            return super().predict(X, return_std)[::-1]

    found = check_estimator(Broken((4,), method="ensemble", epochs=20), on_fail=None, on_skip=None)
    assert "check_methods_sample_order_invariance" in failed(found)
