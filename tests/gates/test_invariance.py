"""Gate "one-step invariance": HMC leaves the posterior alone, and eight faults do not.

theta from the prior and y given theta make theta a draw of the posterior given y; after K
transitions it must be one again. So over replicates theta has the law of the prior, |theta|^2 is
chi-square with P degrees of freedom, and the squared residuals are chi-square with N: three
Kolmogorov-Smirnov tests whose smallest p times three must exceed 1e-6 (the false-fail rate).
Besides, the mean acceptance must be 0.5-0.95 and theta must move. Every fault, planted in the path
that ships, must break one of these.

Two targets: a batched callable that holds one y per chain, and one small Posterior per replicate.
The network is 1-2-1 tanh with four rows and noise as large as the signal: the prior matters, so a
prior precision off by 5 % shows.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

import ribbit as rb
from ribbit._arrays import random_numbers, transitions
from tests.support.gates import Table

HIDDEN, NUM_ROWS, NOISE = 2, 4, 1.0
DIM = 3 * HIDDEN + 1
X = np.linspace(-1.5, 1.5, NUM_ROWS)
STEP, LEAPFROGS, TRANSITIONS = 0.45, 3, 8
REPLICATES = 20_000


def network(theta):
    """Hidden units (C, N, H) and output (C, N): weights in the flat order of mlp(1, (2,), 1)."""
    w, b, v = theta[:, :HIDDEN], theta[:, HIDDEN : 2 * HIDDEN], theta[:, 2 * HIDDEN : 3 * HIDDEN]
    hidden = np.tanh(X[None, :, None] * w[:, None, :] + b[:, None, :])
    return hidden, np.einsum("cnh,ch->cn", hidden, v) + theta[:, -1:]


def joint_draw(seed, replicates=REPLICATES):
    """theta (R, P) from the prior N(0, 1) and y (R, N) given theta."""
    rng = np.random.default_rng((1234, seed))
    theta = rng.normal(size=(replicates, DIM))
    return theta, network(theta)[1] + NOISE * rng.normal(size=(replicates, NUM_ROWS))


@dataclass(frozen=True)
class Outcome:
    """What a run over all replicates gave."""

    p: float  # smallest Kolmogorov-Smirnov p, times the number of tests
    acceptance: float
    movement: float  # mean absolute change of a parameter

    @property
    def alarms(self):
        found = []
        if not self.p > 1e-6:
            found.append("law")
        if not 0.5 <= self.acceptance <= 0.95:
            found.append("acceptance")
        if not self.movement >= 0.3:
            found.append("movement")
        return found


def judge(start, end, y, acceptance):
    end = np.asarray(end, np.float64)
    with np.errstate(over="ignore"):
        squares = np.sum(((y - network(end)[1]) / NOISE) ** 2, axis=1)
        tests = [
            stats.kstest(end.ravel(), stats.norm.cdf, method="asymp"),
            stats.kstest(np.sum(end**2, axis=1), stats.chi2(DIM).cdf, method="asymp"),
            stats.kstest(squares, stats.chi2(NUM_ROWS).cdf, method="asymp"),
        ]
    return Outcome(
        p=float(min(1.0, 3 * min(test.pvalue for test in tests))),
        acceptance=float(np.mean(acceptance)),
        movement=float(np.mean(np.abs(end - start))),
    )


# --- targets -------------------------------------------------------------------------------------


class ManyDatasets:
    """Log density and gradient of R chains, each with its own y; ``fault`` spoils it."""

    def __init__(self, y, fault=None):
        self.y = y
        self.precision = 1.05 if fault == "prior precision +5 %" else 1.0
        self.sign = -1.0 if fault == "wrong sign of the gradient" else 1.0
        self.stale = fault == "stale energy"
        self.last = None

    def __call__(self, theta):
        hidden, f = network(theta)
        residual = (self.y - f) / NOISE**2
        value = -0.5 * NOISE**2 * np.sum(residual**2, axis=1)
        value = value - 0.5 * self.precision * np.sum(theta**2, axis=1)
        v = theta[:, None, 2 * HIDDEN : 3 * HIDDEN]
        delta = residual[:, :, None] * v * (1 - hidden**2)
        grad = np.concatenate(
            [
                np.einsum("cnh,n->ch", delta, X),
                np.sum(delta, axis=1),
                np.einsum("cnh,cn->ch", hidden, residual),
                np.sum(residual, axis=1, keepdims=True),
            ],
            axis=1,
        )
        if self.stale:  # the energy of the position before
            value, self.last = (value if self.last is None else self.last), value
        return value, self.sign * (grad - self.precision * theta)


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


def plant(patch, fault):
    """Faults in the sampler itself: its calls for momenta, kinetic energy and acceptance."""
    normal, accept = random_numbers.normal, transitions.accept
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
        options = {"num_leapfrog_steps": LEAPFROGS, "randomize": None}
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
