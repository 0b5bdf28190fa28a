"""Predictions from draws on the disk: the answers of draws in memory, in memory that is bounded.

Resident sizes come from ``/proc/self/status`` of a process of its own. Nothing is random but the
fixed seeds of the draws.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.namespace import is_lazy
from ribbit.results import lazy, prediction
from ribbit.results.lazy import JoinedArray
from ribbit.results.prediction import Prediction

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2))
Y = np.abs(X[:, :1])
LIKELIHOODS = {
    "gaussian": (rb.Gaussian(), 1),
    "heteroscedastic": (rb.HeteroscedasticGaussian(), 2),
    "student": (rb.StudentTNoise(4.0), 1),
    "poisson": (rb.Poisson(), 1),
}


def answers(p):
    """Everything that goes through all draws row by row."""
    found = {
        "interval": p.interval(0.8),
        "quantile": p.quantile([0.1, 0.7]),
        "credible_interval": p.credible_interval(0.8),
        "cdf": p.cdf(Y),
        "sample": p.sample(50, seed=3),
    }
    return found if p.kind == "count" else {**found, "crps": p.crps(Y)}


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@pytest.mark.parametrize("axis", [None, "draws", "chains"])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_answers_are_those_of_draws_in_memory(name, axis, tmp_path, monkeypatch):
    """Bit for bit; sums over draws, which go folder by folder, to rounding."""
    likelihood, outputs = LIKELIHOODS[name]
    y = np.floor(Y) if name == "poisson" else Y
    target = rb.Posterior(
        rb.mlp(2, (4,), outputs), X, y, prior=rb.Normal(1.0), likelihood=likelihood
    )
    sgld = rb.SGLD(target, step_size=1e-4, batch_size=10)
    plain = {"warmup": 0, "thin": 1, "progress": False}
    runs: list[rb.Draws] = []
    for i, chains in enumerate({"chains": [[0, 1], [2]], "draws": [3, None], None: [3]}[axis]):
        given = {"resume": runs[-1]} if chains is None else {"chains": chains}
        sgld.sample(40, store=tmp_path / str(i), **given, **plain)
        runs.append(rb.load(tmp_path / str(i)))
    stored = runs[0] if axis is None else rb.concatenate(runs, axis)
    assert is_lazy(stored.positions)
    memory = Prediction(stored.predictive, X, positions=np.asarray(stored.positions))
    expected, density = answers(memory), memory.log_likelihood(y)
    for held, chunk in ((1 << 20, 1 << 20), (4000, 100)):
        monkeypatch.setattr(prediction, "_HELD_OF_DISK", held)
        monkeypatch.setattr(lazy, "CHUNK", chunk)
        p = stored.predict(X)
        for key, value in answers(p).items():
            np.testing.assert_array_equal(value, expected[key], err_msg=key)
        assert p.log_likelihood(y) == pytest.approx(density, rel=1e-12)
        np.testing.assert_allclose(p.mean, memory.mean, rtol=1e-12)


class Numbered:
    """Predicts by the number of the draw and of the row, as a dropout mask does."""

    kind, numbered = "regression", True

    def outputs(self, theta, x, *, first=0, row=0):
        numbers = first + np.arange(len(theta))
        rows = row + np.arange(len(x))
        return (theta[:, :1] * x[:, 0] + np.cos(numbers[:, None] * rows))[:, :, None]

    def predictive(self, theta, x, *, first=0, row=0):
        mean = self.outputs(theta, x, first=first, row=row)
        return rb.protocols.PredictiveTerms(mean=mean, noise_sd=np.full((1, 1, 1), 0.1))

    def log_likelihood(self, theta, x, y, *, first=0, row=0):
        return -0.5 * ((y - self.outputs(theta, x, first=first, row=row)) ** 2)[:, :, 0]

    def describe(self):
        return {}


def test_draws_keep_their_numbers_in_different_folders(monkeypatch):
    whole = RNG.normal(size=(3, 8, 2))
    parts = JoinedArray([whole[:2], whole[2:]], 0)
    memory, joined = (Prediction(Numbered(), X, positions=p) for p in (whole, parts))
    monkeypatch.setattr(lazy, "CHUNK", 200)
    monkeypatch.setattr(prediction, "_HELD", 2000)
    for key, value in answers(memory).items():
        np.testing.assert_array_equal(answers(joined)[key], value, err_msg=key)
    assert joined.log_likelihood(Y) == pytest.approx(memory.log_likelihood(Y), rel=1e-12)
    np.testing.assert_allclose(joined.mean, memory.mean, rtol=1e-12)
    swapped = Prediction(Numbered(), X, positions=whole[[2, 0, 1]])
    assert np.abs(swapped.quantile(0.3) - memory.quantile(0.3)).max() > 1e-3


MEMORY = """
import json, re, sys
import numpy as np
import ribbit as rb

def status(name):
    return int(re.search(name + r":\\s*(\\d+)", open("/proc/self/status").read())[1]) >> 10

x = np.random.default_rng(0).normal(size=(400, 20)).astype(np.float32)
y = x[:, :1]
target = rb.Posterior(
    rb.mlp(20, (90, 90), 2), x[:64], y[:64], prior=rb.Normal(1.0),
    likelihood=rb.HeteroscedasticGaussian(),
)
sgld, runs = rb.SGLD(target, step_size=1e-6, batch_size=32), []
for i in range(8):
    sgld.sample(500, warmup=0, thin=1, chains=[2 * i, 2 * i + 1], progress=False,
                store=f"{sys.argv[1]}/{i}")
    runs.append(rb.load(f"{sys.argv[1]}/{i}"))
draws = rb.concatenate(runs, "chains")
found = {"raw": draws.positions.size * 4 >> 20}
for name, call in {
    "mean": lambda p: p.mean,
    "interval": lambda p: p.interval(),
    "quantile": lambda p: p.quantile(0.3),
    "cdf": lambda p: p.cdf(y),
    "crps": lambda p: p.crps(y),
    "log_likelihood": lambda p: p.log_likelihood(y),
    "sample": lambda p: p.sample(100),
    "summary": lambda p: draws.summary(x),
    "predictive_rhat": lambda p: rb.diagnostics.predictive_rhat(draws, x),
    "positions": lambda p: np.asarray(draws.positions),
}.items():
    p = draws.predict(x)
    before = status("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    kept = call(p)
    found[name] = status("VmHWM") - before
print(json.dumps(found))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc/self/status")
def test_at_most_256_mib_are_held(tmp_path):
    """Eight folders of 39 MiB, 8,000 draws at 400 rows; control: all positions take more."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MEMORY, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("raw") > 300
    assert found.pop("positions") > 300
    assert len(found) == 9
    assert max(found.values()) < 256, found
