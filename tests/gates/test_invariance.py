"""Gate "one-step invariance": HMC leaves the posterior alone, and eight faults do not.

theta from the prior and y given theta make theta a draw of the posterior given y; after K
transitions it must be one again. So over replicates theta has the law of the prior, |theta|^2 is
chi-square with P degrees of freedom, and the squared residuals are chi-square with N: three
Kolmogorov-Smirnov tests whose smallest p times three must exceed 1e-6 (the false-fail rate).
Besides, the mean acceptance must be 0.5-0.95 and theta must move. Every fault must break one of
these. Faults of the sampler are planted in the native core (tests/support/faults.py).

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


# Of the core, on both paths, and of the density.
CORE_FAULTS = (
    "no accept step",
    "wrong sign of the energy",
    "missing kinetic term",
    "momentum variance +10 %",
)
DENSITY_FAULTS = ("wrong sign of the gradient", "stale energy", "prior precision +5 %")
FAULTS = (*CORE_FAULTS, *DENSITY_FAULTS, "full instead of half kicks")


def run_callable(seed, fault=None):
    """20,000 replicates as chains of one batched callable, which may have a fault."""
    theta, y = joint_draw(seed)
    target = rb.CallableDensity(ManyDatasets(y, fault), DIM, batched=True)
    # Of one length, not the default: the density knows the chains by their rows.
    hmc = rb.HMC(target, step_size=STEP, num_leapfrog_steps=LEAPFROGS, randomize_length=False)
    state, rates = hmc.init(theta, seed=seed), []
    for _ in range(TRANSITIONS):
        state, info = hmc.step(state)
        rates.append(np.mean(info["acceptance_rate"]))
    return judge(theta, state.position, y, rates)


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
        state = hmc.init(theta[r], seed=seed, chains=[r])
        state, info = hmc.step(state, num_steps=TRANSITIONS)
        end[r], rates[r] = state.position[0], info["acceptance_rate"][0]
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


def test_native_hmc_leaves_the_law_alone():
    outcome = run_native(0, replicates=600)
    assert not outcome.alarms, outcome


# the faults that few replicates are enough for; the slow set has all eight
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
        note=f"{REPLICATES:,} replicates, {TRANSITIONS} transitions of {LEAPFROGS} leapfrogs of "
        f"{STEP}; gate: the right code p > 1e-6, acceptance 0.5-0.95; each fault raises an alarm.",
    )
    for path, known in (("callable", FAULTS[:-1]), ("native", FAULTS)):
        for fault in (None, *known):
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
                ", ".join(o.alarms) or "none",
                holds=bool(o.alarms) == bool(fault),
            )
    alarms = sum(bool(run_callable(seed).alarms) for seed in range(100))
    table.add("right, 100 seeds", "callable", "", "", "", f"{alarms} of 100", holds=alarms == 0)
    return [table]
