"""Gate "NUTS": its law is the posterior's, and faults planted in the tree are noticed.

Conjugate regression: the shipped defaults against the closed form; means within 5.5 Monte Carlo
standard errors (256 batch means: false-fail rate 1e-7 per parameter, 9 parameters) and standard
deviations within 5 %. Controls: closed forms that are slightly wrong.

One-step invariance, as for HMC (tests/support/joint_draw.py): 10,000 replicates start at exact
draws, each with data of its own, and must have their law after some transitions; false-fail rate
1e-6. The trees of the Python path, all in one batch; those of the native path are the same, state
by state (tests/samplers/mcmc/test_nuts.py). Every fault must raise an alarm, on one of two targets:
what is wrong with the criterion shows where trees are deep.
"""

import functools

import numpy as np
import pytest
from scipy import stats

import ribbit as rb
from ribbit._arrays import random_numbers, transitions
from ribbit.samplers.mcmc import no_u_turn
from tests.gates.posteriordb_models import MODELS
from tests.support import linear_posterior as linear
from tests.support.gates import Table, agreement
from tests.support.joint_draw import DIM, HIDDEN, NOISE, ManyDatasets, X, joint_draw, judge

CHAINS, DRAWS = 64, 400


def closed_form(noise=linear.NOISE, prior=linear.PRIOR, temperature=1.0):
    """Mean and sd (P,) of the regression."""
    precision = linear.DESIGN.T @ linear.DESIGN / noise**2 + np.eye(linear.DIM) / prior**2
    covariance = np.linalg.inv(precision)
    return covariance @ linear.DESIGN.T @ linear.Y / noise**2, np.sqrt(
        temperature * np.diag(covariance)
    )


CASES = {
    "defaults": {},
    "mass from the prior": {"inverse_mass_matrix": "prior"},
    "cold, float32": {"temperature": 0.25, "dtype": np.float32},
}


@functools.cache
def run(name):
    """Draws of one case; what is not said is the sampler's default."""
    options = dict(CASES[name])
    given = {k: options.pop(k) for k in ("temperature", "dtype") if k in options}
    nuts = rb.NUTS(linear.target(**given), **options)
    draws = nuts.sample(DRAWS, chains=CHAINS, seed=5, progress=False)
    return draws, {k: v for k, v in given.items() if k != "dtype"}


@pytest.mark.parametrize("name", CASES)
def test_posterior_has_its_closed_form(name):
    draws, given = run(name)
    found = agreement(draws.positions, *closed_form(**given))
    assert found.mean_errors <= 5.5
    assert found.sd_error <= 0.05
    assert 0.7 < np.mean(draws.stats["acceptance_rate"]) < 0.97
    assert not np.any(draws.stats["diverging"])
    assert not np.any(draws.stats["reached_max_treedepth"])


@pytest.mark.parametrize(
    "wrong", [{"noise": 1.1 * linear.NOISE}, {"prior": linear.PRIOR / 3}, {"temperature": 1.15}]
)
def test_a_wrong_closed_form_is_refused(wrong):
    draws, _ = run("defaults")
    assert not agreement(draws.positions, *closed_form(**wrong)).holds


# --- one-step invariance -------------------------------------------------------------------------

REPLICATES, TRANSITIONS, STEP = 10_000, 4, 0.42
FIXED = 1e-200  # inverse mass of a parameter that never moves


class Numbered:
    """Replicates with data of their own, by a last parameter that says which: chains leave the
    batch when their trees end, so that their place does not."""

    dtype, array_namespace = np.dtype(np.float64), np

    def __init__(self, density, dim):
        self.density, self.dim = density, dim + 1

    def value_and_grad(self, theta, rows=None):
        value, grad = self.density(theta[:, :-1], theta[:, -1].astype(int))
        return value, np.column_stack([grad, np.zeros(len(theta))])


class Rows(ManyDatasets):
    """The data of the replicates that are asked for."""

    def __call__(self, theta, which):
        kept, self.y = self.y, self.y[which]
        try:
            return super().__call__(theta)
        finally:
            self.y = kept


def plant(patch, fault):
    """Faults in the tree, and in the calls for momenta and kinetic energies."""
    growth = no_u_turn._Growth
    normal, leapfrog, replace = random_numbers.normal, growth._leapfrog, growth._replace
    if fault == "momentum variance +10 %":
        patch.setattr(random_numbers, "normal", lambda *a, **k: np.sqrt(1.1) * normal(*a, **k))
    elif fault == "missing kinetic term":
        patch.setattr(transitions, "kinetic_energy", lambda xp, p, mass: np.zeros(len(p)))
    elif fault == "states counted, not weighed":
        patch.setattr(no_u_turn, "_log_add_exp", lambda a, b: np.logaddexp(a, np.zeros_like(b)))
    elif fault == "the last state instead of one by its weight":

        def last(self, n, threshold):
            leapfrog(self, n, threshold)
            for name in ("q", "g"):
                self._far[f"new_{name}"] = self._far[name]
            if n:
                self._far["new_terms"] = self._far["state_terms"]

        patch.setattr(growth, "_leapfrog", last)
    elif fault == "always the new half":

        def always(self, old, new, chosen):
            replace(self, old, new, np.ones_like(chosen) if old == "drawn" else chosen)

        patch.setattr(growth, "_replace", always)
    elif fault == "parts are not looked into":
        join = growth._join

        def blind(self, n):
            join(self, n)
            self._host["turned"] = np.zeros_like(self._host["turned"])

        patch.setattr(growth, "_join", blind)


TREE_FAULTS = (
    "states counted, not weighed",
    "the last state instead of one by its weight",
    "always the new half",
    "parts are not looked into",
)
FAULTS = (
    *TREE_FAULTS,
    "wrong sign of the gradient",
    "prior precision +5 %",
    "momentum variance +10 %",
    "missing kinetic term",
)


def run_network(seed, fault=None, replicates=REPLICATES):
    """Replicates of the network of the gate on HMC."""
    theta, y = joint_draw(seed, replicates)
    start = np.column_stack([theta, np.arange(replicates)])
    mass = np.append(np.ones(DIM), FIXED)
    with pytest.MonkeyPatch.context() as patch:
        plant(patch, fault)
        target = Numbered(Rows(y, fault), DIM)
        nuts = rb.NUTS(target, step_size=STEP, inverse_mass_matrix=mass)
        state, rates = nuts.init(start, seed=seed), []
        for _ in range(TRANSITIONS):
            state, info = nuts.step(state)
            rates.append(np.mean(info["acceptance_rate"]))
    return judge(theta, state.position[:, :-1], y, rates)


def run_gaussian(seed, fault=None, step_size=0.4, transitions=10):
    """p of normal draws in two dimensions, one narrow, after some transitions of deep trees."""
    sd = np.array([1.0, 0.2])
    start = np.random.default_rng((4321, seed)).normal(size=(REPLICATES, 2)) * sd
    target = rb.CallableDensity(
        lambda theta: (-0.5 * np.sum((theta / sd) ** 2, axis=1), -theta / sd**2), 2, batched=True
    )
    with pytest.MonkeyPatch.context() as patch:
        plant(patch, fault)
        nuts = rb.NUTS(target, step_size=step_size * sd[1], inverse_mass_matrix=None)
        state, _ = nuts.step(nuts.init(start, seed=seed), num_steps=transitions)
    z = state.position / sd
    tests = [stats.kstest(z[:, i], stats.norm.cdf, method="asymp") for i in range(2)]
    tests += [stats.kstest(np.sum(z**2, axis=1), stats.chi2(2).cdf, method="asymp")]
    return float(min(1.0, 3 * min(test.pvalue for test in tests)))


def test_nuts_leaves_the_law_alone():
    outcome = run_network(0)
    assert not outcome.alarms, outcome
    assert run_gaussian(0) > 1e-6


def caught(fault):
    """Whether a fault raises an alarm, on the target where it shows."""
    if fault == "parts are not looked into":
        return run_gaussian(0, fault) <= 1e-6
    # few are enough for most
    return bool(run_network(0, fault, 3_000 if fault in TREE_FAULTS else REPLICATES).alarms)


@pytest.mark.parametrize(
    "fault", [pytest.param(f, marks=() if f in TREE_FAULTS else pytest.mark.slow) for f in FAULTS]
)
def test_every_fault_is_caught(fault):
    assert caught(fault)


@pytest.mark.slow
def test_no_alarm_in_twenty_seeds():
    for seed in range(1, 21):
        outcome = run_network(seed)
        assert not outcome.alarms, (seed, outcome)
        assert run_gaussian(seed) > 1e-6, seed


def run_native(seed, prior_sd=1.0, replicates=600):
    """A small Posterior per replicate; the replicate is the chain id, so no numbers repeat."""
    theta, y = joint_draw(seed, replicates)
    end, rates = np.empty_like(theta), np.empty(replicates)
    model = rb.mlp(1, (HIDDEN,), 1, activation="tanh")
    for r in range(replicates):
        target = rb.Posterior(
            model,
            X[:, None],
            y[r],
            prior=rb.Normal(prior_sd),
            likelihood=rb.Gaussian(NOISE),
            dtype=np.float64,
        )
        nuts = rb.NUTS(target, step_size=STEP)
        state, info = nuts.step(nuts.init(theta[r], seed=seed, chains=[r]), num_steps=TRANSITIONS)
        end[r], rates[r] = state.position[0], info["acceptance_rate"][0]
    return judge(theta, end, y, rates)


def test_native_nuts_leaves_the_law_alone():
    outcome = run_native(0)
    assert not outcome.alarms, outcome
    assert run_native(0, prior_sd=0.85).alarms  # control


# --- posteriordb ---------------------------------------------------------------------------------


@functools.cache
def run_schools(folder):
    """Eight schools with the shipped defaults: agreement with the reference, and the draws."""
    name = "eight_schools-eight_schools_noncentered"
    with np.load(folder / "posteriordb" / f"{name}.npz") as file:
        data = {key: file[key] for key in file.files}
    model = MODELS[name](data)
    target = rb.CallableDensity(model, model.dim, batched=True)
    draws = rb.NUTS(target).sample(DRAWS, chains=CHAINS, seed=1, init=model.start(), progress=False)
    return draws, model.constrain(draws.positions), data


def test_eight_schools_agree_with_the_reference(shared_data):
    draws, positions, data = run_schools(shared_data)
    error = data["sd"] / np.sqrt(data["ess_bulk"])
    found = agreement(positions, data["mean"], data["sd"], error)
    assert found.mean_errors <= 5.5
    assert found.sd_error <= 0.05
    assert np.mean(draws.stats["diverging"]) < 0.01
    shifted = data["mean"] + 0.2 * data["sd"] * (np.arange(error.size) == 0)
    assert not agreement(positions, shifted, data["sd"], error).holds  # control


def results():
    law = Table(
        "NUTS on a conjugate regression",
        ("case", "largest error of a mean (MCSE)", "largest error of a sd", "acceptance", "steps"),
        note=f"{CHAINS} chains x {DRAWS} draws, defaults; gate: 5.5 MCSE and 5 %. steps: leapfrog "
        "steps per draw.",
    )
    for name in CASES:
        draws, given = run(name)
        found = agreement(draws.positions, *closed_form(**given))
        law.add(
            name,
            f"{found.mean_errors:.2f}",
            f"{100 * found.sd_error:.2f} %",
            f"{np.mean(draws.stats['acceptance_rate']):.3f}",
            f"{np.mean(draws.stats['n_steps']):.1f}",
            holds=found.holds,
        )
    faults = Table(
        "NUTS, one-step invariance",
        ("code", "alarm"),
        note=f"{REPLICATES:,} replicates, {TRANSITIONS} transitions; gate: none for the right code "
        "in ten seeds, one for each fault.",
    )
    alarms = sum(bool(run_network(s).alarms) or run_gaussian(s) <= 1e-6 for s in range(10))
    faults.add("right, 10 seeds", f"{alarms} of 10", holds=alarms == 0)
    for fault in FAULTS:
        alarm = caught(fault)
        faults.add(fault, "yes" if alarm else "no", holds=alarm)
    return [law, faults]
