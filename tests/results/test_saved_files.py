"""Files of draws in ``saved``: they load, predict as they did when written, and go on.

The files come from commit 21cfd2b with AVX-512. The state in ``hmc.npz`` was rewritten as bytes.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import ribbit as rb
from ribbit import _core

FILES = Path(__file__).with_name("saved")
RNG = np.random.default_rng(3)
X = RNG.normal(size=(12, 2))
Y = np.sin(X[:, :1])
SEQUENCES = np.linspace(-1, 1, 30).reshape(3, 5, 2)
SAVED = {  # rows, the first predictions
    "hmc": (X[:3], [0.9820590217908224, 0.44297432402769726, -0.265166516105334]),
    "sghmc": (X[:3], [0.14635465294122696, 0.1846834048628807, 0.20444254204630852]),
    "dropout": (SEQUENCES, [0.6687845140695572, 0.3312154859304428, 0.12397342920303345]),
}


@pytest.mark.parametrize("name", SAVED)
def test_old_files_predict(name):
    rows, expected = SAVED[name]
    draws = rb.load(FILES / f"{name}.npz")
    p = draws.predict(rows)
    values = p.probs if p.kind == "classification" else p.mean
    np.testing.assert_allclose(values.ravel()[:3], expected, rtol=1e-5)
    assert not np.allclose(values.ravel()[:3], np.roll(expected, 1), rtol=1e-5)


def test_an_old_run_goes_on():
    """State, gathered predictions and warmup are in the file."""
    target = rb.Posterior(
        rb.mlp(2, (4,), 1, activation="tanh"),
        X,
        Y,
        prior={"*.bias": rb.Normal(1.0), "*": rb.StudentT(4.0, 0.5)},
        likelihood=rb.Gaussian(),
    )
    draws = rb.load(FILES / "hmc.npz")
    assert draws.warmup_positions.shape == (2, 30, target.dim)
    np.testing.assert_allclose(draws.prediction.mean, draws.predict(X[:3]).mean, rtol=1e-6)
    options = {"num_leapfrog_steps": 4, "inverse_mass_matrix": "adapt", "randomize_length": False}
    hmc = rb.HMC(target, step_size="auto", **options)
    # A state continues on its own instruction set. Another one differs in the last bits only.
    state = rb.samplers.State._of(draws.state.fields | {"instruction set": _core.isa()})
    more = hmc.sample(2, resume=dataclasses.replace(draws, state=state), progress=False)
    # the sum of two draws of two chains, as version 0.1 continued them
    assert float(more.positions.sum()) == pytest.approx(-17.959888458251953, rel=1e-4)
