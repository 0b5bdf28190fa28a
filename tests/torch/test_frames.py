"""Frames as inputs of modules: columns are matched by name."""

import numpy as np
import pytest

import ribbit as rb

torch = pytest.importorskip("torch")
pd = pytest.importorskip("pandas")
import ribbit.torch  # noqa: E402

X = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
FRAME = pd.DataFrame(X, columns=["age", "height"])


@pytest.mark.parametrize("native", [True, False])
def test_predictions_take_columns_in_any_order(native):
    net = torch.nn.Sequential(torch.nn.Linear(2, 1))
    target = rb.torch.posterior(
        net, rb.Gaussian(0.5), (FRAME, X[:, 0]), prior=rb.Normal(1.0), native=native
    )
    theta, other = target.init(0, chains=2), FRAME[["height", "age"]]
    for part in (target, target.subset([0, 1, 2])):
        np.testing.assert_array_equal(part.outputs(theta, other), part.outputs(theta, X))
    fit = rb.BBB(target).fit(1, progress=False)
    np.testing.assert_array_equal(fit.predict(other, 5).mean, fit.predict(X, 5).mean)
    with pytest.raises(ValueError, match="without 'height'"):
        fit.predict(FRAME[["age"]], 5)
