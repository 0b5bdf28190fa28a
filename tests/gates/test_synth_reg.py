"""Gate "synthetic regression": the full-batch HMC run of Izmailov et al. (2021) on their 1-d set.

MLP 2-100-100-100-1 ReLU, prior sd 0.1, noise sd 0.02, start N(0, 0.005^2), float32. Step 1e-5 and
trajectory length (pi/2) * 0.1, fixed, 15,708 leapfrogs: theirs, no defaults of rb.HMC.
Their own run: acceptance 0.833 and training log likelihood 304.6 +- 2.0.
"""

import time

import numpy as np
import pytest

import ribbit as rb
from tests.support.gates import Table

CHAINS, ITERATIONS, SETTLED = 4, 25, 10


def load(folder):
    with np.load(folder / "synth_reg" / "synth_reg_1d.npz") as file:
        return file["f"], file["y"]


def run(folder, iterations=ITERATIONS):
    """Mean acceptance and log likelihood after the first iterations, leapfrogs, and seconds."""
    features, y = load(folder)
    target = rb.Posterior(
        rb.mlp(2, (100, 100, 100), 1, activation="relu"),
        features,
        y,
        prior=rb.Normal(0.1),
        likelihood=rb.Gaussian(0.02),
        dtype=np.float32,
    )
    start = 0.005 * rb.random.normal((CHAINS, target.dim), seed=1, dtype=np.float32)
    begin = time.perf_counter()
    hmc = rb.HMC(target, step_size=1e-5, trajectory_length=0.05 * np.pi, randomize_length=False)
    draws = hmc.sample(iterations, warmup=0, chains=CHAINS, seed=2, init=start, progress=False)
    seconds = time.perf_counter() - begin
    assert np.all(draws.stats["n_steps"] == 15_708)
    fit = np.stack([target.log_likelihood(p) for p in draws.positions])  # (C, D)
    acceptance = np.asarray(draws.stats["acceptance_rate"])
    return {
        "acceptance": float(np.mean(acceptance[:, SETTLED:])),
        "log_likelihood": float(np.mean(fit[:, SETTLED:])),
        "per_chain": [float(v) for v in np.mean(fit[:, SETTLED:], axis=1)],
        "seconds": seconds,
        "diverging": int(np.sum(draws.stats["diverging"])),
    }


# their features, as they are
@pytest.mark.filterwarnings("ignore::ribbit.errors.ScaleWarning")
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@pytest.mark.slow
def test_run_of_izmailov_et_al(shared_data):
    found = run(shared_data)
    assert 0.75 <= found["acceptance"] <= 0.91
    assert 302 <= found["log_likelihood"] <= 307
    assert found["diverging"] == 0


def results(folder):
    found = run(folder)
    table = Table(
        "Synthetic regression",
        ("acceptance", "training log likelihood", "by chain", "us per leapfrog step and chain"),
        note=f"HMC: {CHAINS} chains x {ITERATIONS} iterations of 15,708 leapfrog steps, means "
        f"after the first {SETTLED}. Gate: acceptance 0.75-0.91, training log likelihood 302-307. "
        "Izmailov et al. (2021) report 0.833 and 304.6.",
    )
    table.add(
        f"{found['acceptance']:.3f}",
        f"{found['log_likelihood']:.2f}",
        ", ".join(f"{v:.1f}" for v in found["per_chain"]),
        f"{1e6 * found['seconds'] / (15_708 * ITERATIONS * CHAINS):.1f}",
        holds=0.75 <= found["acceptance"] <= 0.91 and 302 <= found["log_likelihood"] <= 307,
    )
    return [table]
