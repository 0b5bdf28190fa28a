"""Gate "one-step invariance": HMC keeps the posterior, and eight faulty samplers do not.

theta from the prior and y given theta make theta a draw of the posterior given y; after K
transitions it must be one again. So over replicates theta has the distribution of the prior,
|theta|^2 is chi-square with P degrees of freedom, and the squared residuals are chi-square with N:
three Kolmogorov-Smirnov tests whose smallest p times three must exceed 1e-6 (the false-fail rate).
The mean acceptance must also be 0.5-0.95, and theta must move. Every fault must break one of these.
Faults of the sampler are planted in the native core, and in the transitions in Python
(tests/support/faults.py).

Two targets: a batched callable that holds one y per chain, and one small Posterior per replicate.
The network is 1-2-1 tanh with four rows and noise as large as the signal: the prior matters, so a
prior precision off by 5 % shows.
"""

import numpy as np
import pytest

import ribbit as rb
from tests.support import faults
from tests.support.gates import Table
from tests.support.joint_draw import (
    DIM,
    HIDDEN,
    NOISE,
    REPLICATES,
    ManyDatasets,
    X,
    joint_draw,
    judge,
)

STEP, LEAPFROGS, TRANSITIONS = 0.45, 3, 8

CORE_FAULTS = (  # planted in the core on both paths
    "no accept step",
    "wrong sign of the energy",
    "missing kinetic term",
    "momentum variance +10 %",
)
DENSITY_FAULTS = (  # made by the callable density, and planted in the core on the native path
    "wrong sign of the gradient",
    "stale energy",
    "prior precision +5 %",
    "full instead of half kicks",
)
FAULTS = (*CORE_FAULTS, *DENSITY_FAULTS)
LOCKSTEP_FAULTS = {  # of the transitions in Python: the right text, and the wrong one
    "wrong sign of the energy": ("(kinetic[1] - kinetic[0]) +", "(kinetic[0] - kinetic[1]) -"),
    "missing kinetic term": ("(kinetic[1] - kinetic[0]) +", ""),
    "momentum variance +10 %": ("return p if at.mass", "p = 1.1**0.5 * p; return p if at.mass"),
    "full instead of half kicks": ("eps * mass, 0.5 * eps", "eps * mass, eps"),
    "gradient of the old position": ("return position, grad,", "return position, at.grad,"),
}


class FullKicks(ManyDatasets):
    """Doubles the gradients at both ends of a trajectory, which makes full of half kicks."""

    calls = 0

    def __call__(self, theta):
        value, grad = super().__call__(theta)
        end = self.calls % LEAPFROGS == 0
        self.calls += 1
        return value, (2.0 * grad if end else grad)


def run_callable(seed, fault=None):
    """20,000 replicates as chains of one batched callable, which may have a fault."""
    theta, y = joint_draw(seed)
    full = fault == "full instead of half kicks"
    density = FullKicks(y) if full else ManyDatasets(y, fault)
    target = rb.CallableDensity(density, DIM, batched=True)
    # Fixed lengths keep every chain in the batch: the density tells the chains by their rows.
    hmc = rb.HMC(target, step_size=STEP, num_leapfrog_steps=LEAPFROGS, randomize_length=False)
    positions, stats = rb.Chains(hmc, theta, seed=seed, warmup=0).advance(TRANSITIONS)
    return judge(theta, positions[:, -1], y, stats["acceptance_rate"])


def run_native(seed, replicates=REPLICATES, dtype=np.float32):
    """A small Posterior per replicate; the replicate is the chain id, so no numbers repeat."""
    theta, y = joint_draw(seed, replicates)
    theta = theta.astype(dtype)
    end, rates = np.empty_like(theta), np.empty(replicates)
    model = rb.mlp(1, (HIDDEN,), 1, activation="tanh")
    x = X[:, None].astype(dtype)
    prior, likelihood = rb.Normal(1.0), rb.Gaussian(NOISE)
    for r in range(replicates):
        target = rb.Posterior(model, x, y[r], prior=prior, likelihood=likelihood, dtype=dtype)
        hmc = rb.HMC(target, step_size=STEP, num_leapfrog_steps=LEAPFROGS)
        chains = rb.Chains(hmc, theta[r], seed=seed, chains=[r], warmup=0)
        positions, stats = chains.advance(TRANSITIONS)
        end[r], rates[r] = positions[0, -1], stats["acceptance_rate"][0, -1]
    return judge(theta, end, y, rates)


@pytest.mark.parametrize("seed", range(2))
def test_hmc_leaves_the_law_alone(seed):
    outcome = run_callable(seed)
    assert not outcome.alarms, outcome


@pytest.mark.parametrize("fault", DENSITY_FAULTS)
def test_every_fault_of_the_density_is_caught(fault):
    outcome = run_callable(0, fault)
    assert outcome.alarms, outcome


@faults.needed
@pytest.mark.parametrize("fault", CORE_FAULTS)
def test_every_fault_of_the_core_is_caught(fault):
    outcome = faults.with_fault(fault, run_callable, 0)
    assert outcome.alarms, outcome


@pytest.mark.parametrize("fault", LOCKSTEP_FAULTS)
def test_every_fault_in_python_is_caught(fault):
    with faults.in_python("hmc", *LOCKSTEP_FAULTS[fault]):
        outcome = run_callable(0)
    assert outcome.alarms, outcome


def test_native_hmc_leaves_the_law_alone():
    outcome = run_native(0, replicates=600)
    assert not outcome.alarms, outcome


# Few replicates are enough for these faults. The slow test has all eight.
@faults.needed
@pytest.mark.parametrize(
    "fault", ["stale energy", "missing kinetic term", "full instead of half kicks"]
)
def test_faults_in_the_native_path_are_caught(fault):
    outcome = faults.with_fault(fault, run_native, 0, replicates=600)
    assert outcome.alarms, outcome


@pytest.mark.slow
def test_no_alarm_in_a_hundred_seeds():
    alarms = {seed: o for seed in range(100) if (o := run_callable(seed)).alarms}
    assert not alarms


@pytest.mark.slow
def test_native_hmc_raises_no_alarm_in_a_hundred_seeds():
    alarms = {s: o for s in range(100) if (o := run_native(s, replicates=600)).alarms}
    assert not alarms


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_native_hmc_leaves_the_law_alone_at_length(dtype):
    outcome = run_native(1, dtype=dtype)
    assert not outcome.alarms, outcome


@pytest.mark.slow
@faults.needed
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_in_the_native_path_is_caught(fault):
    outcome = faults.with_fault(fault, run_native, 0)
    assert outcome.alarms, outcome


def results():
    table = Table(
        "One-step invariance",
        ("code", "path", "p", "acceptance", "movement", "alarms"),
        note=f"{REPLICATES:,} replicates start at exact draws of their posteriors and make "
        f"{TRANSITIONS} HMC transitions, each of {LEAPFROGS} leapfrog steps of {STEP}. Their end "
        "points must have the same distribution. The target is a Python callable or a native "
        "`Posterior`. Movement is the mean absolute change of a parameter. Gate of the right code: "
        "p > 1e-6, acceptance 0.5-0.95, movement at least 0.3. Each fault must break one of these "
        "bounds; the last column names it.",
    )
    for path in ("callable", "native"):
        for fault in (None, *FAULTS):
            if path == "native":
                o = faults.with_fault(fault, run_native, 0)
            elif fault in CORE_FAULTS:
                o = faults.with_fault(fault, run_callable, 0)
            else:
                o = run_callable(0, fault)
            table.add(
                fault or "right",
                path,
                f"{o.p:.1e}",
                f"{o.acceptance:.3f}",
                f"{o.movement:.3f}",
                ", ".join(o.alarms).replace("law", "distribution") or "none",
                holds=bool(o.alarms) == bool(fault),
            )
    alarms = sum(bool(run_callable(seed).alarms) for seed in range(100))
    table.add("right, 100 seeds", "callable", "", "", "", f"{alarms} of 100", holds=alarms == 0)
    return [table]
