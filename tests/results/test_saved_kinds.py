"""Draws of every layer, prior and likelihood travel through a file: the same predictions."""

import numpy as np
import pytest

import ribbit as rb
from tests.support.likelihoods import CASES
from tests.support.sampled_networks import NETWORKS, inputs, made_of

RNG = np.random.default_rng(8)
X = RNG.normal(size=(12, 3))
ANCHOR = rb.mlp(3, (4,), 2, activation="tanh").init(seed=3)
PRIORS = {
    "normal": rb.Normal(0.5),
    "around an array": rb.Normal(0.5, mean=ANCHOR),
    "around a number": {"*.bias": rb.Normal(1.0, mean=0.25), "*": rb.Laplace(0.5)},
    "of the noise": {"*": rb.Normal(0.5), "log_noise": rb.GammaPrecision(3.0, 1.0)},
}


def round_trip(target, x, path):
    """Predictions before and after a file."""
    sgld = rb.SGLD(target, step_size=1e-6, batch_size=5)
    draws = sgld.sample(3, warmup=2, chains=2, progress=False)
    draws.save(path / "draws")
    both = [d.predict(x) for d in (draws, rb.load(path / "draws"))]
    classes = both[0].kind == "classification"
    return [p.probs if classes else np.stack([p.mean, p.std]) for p in both]


def test_running_predictions_of_several_outputs_with_one_noise(tmp_path):
    y = RNG.normal(size=(12, 2))
    model = rb.mlp(3, (4,), 2, activation="tanh")
    target = rb.Posterior(model, X, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian())
    sgld = rb.SGLD(target, step_size=1e-6, batch_size=5)
    draws = sgld.sample(3, warmup=2, chains=2, predict_at=X, save_draws=False, progress=False)
    draws.save(tmp_path / "draws")
    again = rb.load(tmp_path / "draws").prediction
    assert again.std.tobytes() == draws.prediction.std.tobytes()
    assert again.std.shape == (12, 2)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, tmp_path):
    made = made_of(name)
    x, _ = inputs(made, 4)
    before, after = round_trip(made.native(np.float32), x, tmp_path)
    assert before.tobytes() == after.tobytes()
    assert np.ptp(before) > 0


@pytest.mark.parametrize("name", PRIORS)
def test_priors(name, tmp_path):
    noise = rb.Gaussian() if name == "of the noise" else rb.Gaussian(0.3)
    options = {"prior": PRIORS[name], "likelihood": noise}
    model = rb.mlp(3, (4,), 2, activation="tanh")
    target = rb.Posterior(model, X, X[:, :2], **options)
    before, after = round_trip(target, X[:3], tmp_path)
    assert before.tobytes() == after.tobytes()


@pytest.mark.parametrize("name", CASES)
def test_likelihoods(name, tmp_path):
    case = CASES[name]
    y = case.labels(np.random.default_rng(2), len(X), case.outputs)
    options = {"prior": rb.Normal(0.5), "likelihood": case.likelihood}
    target = rb.Posterior(rb.mlp(3, (4,), case.outputs), X, y, **options)
    before, after = round_trip(target, X[:3], tmp_path)
    assert before.tobytes() == after.tobytes()
