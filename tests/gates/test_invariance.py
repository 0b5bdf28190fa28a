"""Gate "one-step invariance": HMC leaves the posterior alone, and eight faults do not.

theta from the prior and y given theta make theta a draw of the posterior given y; after K
transitions it must be one again. So over replicates theta has the law of the prior, |theta|^2 is
chi-square with P degrees of freedom, and the squared residuals are chi-square with N: three
Kolmogorov-Smirnov tests whose smallest p times three must exceed 1e-6 (the false-fail rate).
Besides, the mean acceptance must be 0.5-0.95 and theta must move. Every fault must break one of
these. Faults of the sampler itself are planted in the transition that is composed in Python, which
devices and own densities run; that of the core, which the right code runs here on a Posterior, has
its bits (tests/samplers/mcmc/test_fused_transitions.py).

Two targets: a batched callable that holds one y per chain, and one small Posterior per replicate.
The network is 1-2-1 tanh with four rows and noise as large as the signal: the prior matters, so a
prior precision off by 5 % shows.
"""

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays import random_numbers, transitions
from ribbit.targets.native import NativeDensity
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


# --- targets -------------------------------------------------------------------------------------


class FullKicks:
    """A target whose trajectories begin and end with full instead of half kicks."""

    def __init__(self, target):
        self.target, self.dim, self.dtype = target, target.dim, target.dtype

    def value_and_grad(self, theta, rows=None):
        return self.target.value_and_grad(theta, rows)

    def leapfrog(
        self, position, momentum, grad, step_size, num_steps, *, inverse_mass=None, interrupt=None
    ):
        half = 0.5 * np.asarray(step_size)[:, None]
        if hasattr(self.target, "leapfrog"):
            kicked = (momentum + half * grad).astype(position.dtype)
            q, p, terms, grad = self.target.leapfrog(
                position, kicked, grad, step_size, num_steps, inverse_mass=inverse_mass
            )
            terms = np.sum(terms, axis=1, keepdims=True)
            return q, (p + half * grad).astype(position.dtype), terms, grad
        q, p = position, momentum + 2 * half * grad
        for _ in range(int(num_steps[0])):
            q = q + 2 * half * p
            value, grad = self.target.value_and_grad(q)
            p = p + 2 * half * grad
        return q, p, value[:, None], grad


class WrongSign:
    """A native target that reports the gradient with the wrong sign."""

    def __init__(self, target):
        self.target, self.dim, self.dtype = target, target.dim, target.dtype

    def value_and_grad(self, theta, rows=None):
        value, grad = self.target.value_and_grad(theta, rows)
        return value, -grad


class StaleTerms:
    """A native target whose trajectory reports the energy of the one before."""

    def __init__(self, target):
        self.target, self.dim, self.dtype = target, target.dim, target.dtype
        self.last = None

    def terms_and_grad(self, theta):
        self.last, grad = self.target.terms_and_grad(theta)
        return self.last, grad

    def value_and_grad(self, theta, rows=None):
        return self.target.value_and_grad(theta, rows)

    def leapfrog(self, *args, **options):
        q, p, terms, grad = self.target.leapfrog(*args, **options)
        terms, self.last = self.last, terms
        return q, p, terms, grad


# --- faults --------------------------------------------------------------------------------------

FAULTS = (
    "no accept step",
    "wrong sign of the gradient",
    "wrong sign of the energy",
    "stale energy",
    "missing kinetic term",
    "prior precision +5 %",
    "momentum variance +10 %",
    "full instead of half kicks",
)
OF_THE_SAMPLER = {FAULTS[0], FAULTS[2], FAULTS[4], FAULTS[6]}


def plant(patch, fault):
    """Faults in the sampler itself: its calls for momenta, kinetic energy and acceptance."""
    normal, accept = random_numbers.normal, transitions.accept
    if fault in OF_THE_SAMPLER:
        patch.delattr(NativeDensity.leapfrog, "in_transitions")
    if fault == "momentum variance +10 %":
        patch.setattr(
            random_numbers,
            "normal",
            lambda *a, **k: (np.sqrt(1.1) * (z := normal(*a, **k))).astype(z.dtype),
        )
    elif fault == "missing kinetic term":
        patch.setattr(
            transitions, "kinetic_energy", lambda xp, momentum, mass: np.zeros(len(momentum))
        )
    elif fault == "wrong sign of the energy":
        patch.setattr(transitions, "accept", lambda xp, error, **k: accept(xp, -error, **k))
    elif fault == "no accept step":

        def always(xp, error, **options):
            flags, rate = accept(xp, error, **options)
            return np.ones_like(flags), rate

        patch.setattr(transitions, "accept", always)


def run_callable(seed, fault=None):
    """20,000 replicates as chains of one batched callable."""
    theta, y = joint_draw(seed)
    target = rb.CallableDensity(ManyDatasets(y, fault), DIM, batched=True)
    if fault == "full instead of half kicks":
        target = FullKicks(target)
    with pytest.MonkeyPatch.context() as patch:
        plant(patch, fault)
        # Of one length, not the default: the density knows the chains by their rows.
        options = {"num_leapfrog_steps": LEAPFROGS, "randomize_length": False}
        hmc = rb.HMC(target, step_size=STEP, **options)
        state, rates = hmc.init(theta, seed=seed), []
        for _ in range(TRANSITIONS):
            state, info = hmc.step(state)
            rates.append(np.mean(info["acceptance_rate"]))
    return judge(theta, state.position, y, rates)


def run_native(seed, fault=None, replicates=REPLICATES, dtype=np.float32):
    """A small Posterior per replicate; the replicate is the chain id, so no numbers repeat."""
    theta, y = joint_draw(seed, replicates)
    theta = theta.astype(dtype)
    end, rates = np.empty_like(theta), np.empty(replicates)
    model = rb.mlp(1, (HIDDEN,), 1, activation="tanh")
    x = X[:, None].astype(dtype)
    prior = rb.Normal(1 / np.sqrt(1.05) if fault == "prior precision +5 %" else 1.0)
    likelihood = rb.Gaussian(NOISE)
    wrap = {
        "full instead of half kicks": FullKicks,
        "wrong sign of the gradient": WrongSign,
        "stale energy": StaleTerms,
    }.get(fault, lambda target: target)
    with pytest.MonkeyPatch.context() as patch:
        plant(patch, fault)
        for r in range(replicates):
            target = rb.Posterior(model, x, y[r], prior=prior, likelihood=likelihood, dtype=dtype)
            hmc = rb.HMC(wrap(target), step_size=STEP, num_leapfrog_steps=LEAPFROGS)
            state = hmc.init(theta[r], seed=seed, chains=[r])
            state, info = hmc.step(state, num_steps=TRANSITIONS)
            end[r], rates[r] = state.position[0], info["acceptance_rate"][0]
    return judge(theta, end, y, rates)


@pytest.mark.parametrize("seed", range(2))
def test_hmc_leaves_the_law_alone(seed):
    outcome = run_callable(seed)
    assert not outcome.alarms, outcome


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_caught(fault):
    outcome = run_callable(0, fault)
    assert outcome.alarms, outcome


def test_native_hmc_leaves_the_law_alone():
    outcome = run_native(0, replicates=600)
    assert not outcome.alarms, outcome


# three of the faults that few replicates are enough for; the slow set has all eight
@pytest.mark.parametrize(
    "fault", ["stale energy", "missing kinetic term", "full instead of half kicks"]
)
def test_faults_in_the_native_path_are_caught(fault):
    outcome = run_native(0, fault, replicates=600)
    assert outcome.alarms, outcome


@pytest.mark.slow
def test_no_alarm_in_a_hundred_seeds():
    alarms = {seed: o for seed in range(100) if (o := run_callable(seed)).alarms}
    assert not alarms


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_native_hmc_leaves_the_law_alone_at_length(dtype):
    outcome = run_native(1, dtype=dtype)
    assert not outcome.alarms, outcome


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_in_the_native_path_is_caught(fault):
    outcome = run_native(0, fault)
    assert outcome.alarms, outcome


def results():
    table = Table(
        "One-step invariance",
        ("code", "path", "p", "acceptance", "movement", "alarms"),
        note=f"{REPLICATES:,} replicates, {TRANSITIONS} transitions of {LEAPFROGS} leapfrogs of "
        f"{STEP}; gate: the right code p > 1e-6, acceptance 0.5-0.95; each fault raises an alarm.",
    )
    for path, run in (("callable", run_callable), ("native", run_native)):
        for fault in (None, *FAULTS):
            o = run(0, fault)
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
