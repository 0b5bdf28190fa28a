"""Gate "UCI": HMC with learned noise, against NumPyro's figures for the same posterior.

One hidden layer of 50 tanh units, prior sd 0.7, log_noise ~ N(0, 1), x and y standardised on the
training rows, 4 chains x 80 draws after 80, dual averaging to 0.8, trajectory length 1.1. RMSE at
most 10 % above and mean test log likelihood (raw units) at most 0.1 nat below the reference.

The references are single runs of that length with an error of their own, which on yacht is larger
than the gate: our runs with seeds 0 to 3 give RMSE 0.311, 0.276, 0.305, 0.323 and log likelihood
0.51, 0.60, 0.30, 0.58, the chains of one run 0.22 to 0.38, and any change of a last bit makes
another run. So the gate is one-sided, and on yacht it tests the mean of four runs.
"""

import time

import numpy as np
import pytest

import ribbit as rb
from tests.gates.uci import load
from tests.support.gates import Table

# RMSE, log likelihood, leapfrogs per draw, seconds on two cores: NumPyro 0.22, float32
REFERENCES = {
    ("concrete", 0): (4.381, -2.912, 1046, 45),
    ("concrete", 1): (3.718, -2.711, 748, 45),
    ("energy", 0): (0.237, -0.016, 6406, 252),
    ("yacht", 0): (0.349, 0.469, 11301, 257),
    ("wine", 0): (0.595, -0.895, 199, 30),
    ("wine", 1): (0.629, -0.932, 278, 30),
}


REPEATS = {"yacht": 4}


def run(folder, name, split):
    """Means over the runs of a set of what `run_once` gives."""
    runs = [run_once(folder, name, split, split + r) for r in range(REPEATS.get(name, 1))]
    return {key: float(np.mean([r[key] for r in runs])) for key in runs[0]}


def run_once(folder, name, split, seed):
    """RMSE and log likelihood in raw units, leapfrogs per draw, acceptance, seconds."""
    x, z, x_test, z_test, width = load(folder, name, split)
    target = rb.Posterior(
        rb.mlp(x.shape[1], (50,), 1, activation="tanh"),
        x,
        z,
        prior=rb.Normal(0.7),
        likelihood=rb.Gaussian(),
    )
    hmc = rb.HMC(target, step_size="auto", trajectory_length=1.1, target_accept=0.8)
    begin = time.perf_counter()
    draws = hmc.sample(80, warmup=80, chains=4, seed=seed, progress=False)
    seconds = time.perf_counter() - begin
    prediction = draws.predict(x_test)
    mean = np.asarray(prediction.mean).reshape(-1)
    return {
        "rmse": width * float(np.sqrt(np.mean((mean - z_test) ** 2))),
        "log_likelihood": float(prediction.log_likelihood(z_test) - np.log(width)),
        "leapfrogs": float(np.mean(draws.stats["n_steps"])),
        "acceptance": float(np.mean(draws.stats["acceptance_rate"])),
        "seconds": seconds,
    }


def holds(found, reference):
    rmse, log_likelihood, *_ = reference
    return found["rmse"] <= 1.1 * rmse and found["log_likelihood"] >= log_likelihood - 0.1


# 80 draws, as the references are: neither they nor these have converged
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::ribbit.errors.NoiseWarning")
@pytest.mark.slow
@pytest.mark.parametrize(("name", "split"), REFERENCES)
def test_hmc_agrees_with_the_reference(shared_data, name, split):
    found = run(shared_data, name, split)
    assert holds(found, REFERENCES[name, split]), found


def results(folder):
    table = Table(
        "UCI, HMC with learned noise",
        (
            "data set",
            "RMSE (reference)",
            "log likelihood (reference)",
            "leapfrog steps per draw (reference)",
            "acceptance",
            "seconds (reference)",
        ),
        note="4 chains x 80 draws after a warmup of 80 (yacht: means of 4 such runs). The "
        "reference is NumPyro 0.22 in float32, a single run of the same length. Gate: RMSE at most "
        "10 % above the reference, log likelihood at most 0.1 nat below it.",
    )
    for (name, split), reference in REFERENCES.items():
        found = run(folder, name, split)
        table.add(
            f"{name}, split {split}",
            f"{found['rmse']:.3f} ({reference[0]})",
            f"{found['log_likelihood']:.3f} ({reference[1]})",
            f"{found['leapfrogs']:.0f} ({reference[2]})",
            f"{found['acceptance']:.3f}",
            f"{found['seconds']:.1f} ({reference[3]})",
            holds=holds(found, reference),
        )
    return [table]
