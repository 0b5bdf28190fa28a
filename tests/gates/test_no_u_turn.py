"""Gate "NUTS": it samples the posterior, and faults planted in the tree are detected.

Conjugate regression: the shipped defaults against the closed form; means within 5.5 Monte Carlo
standard errors (256 batch means: false-fail rate 1e-7 per parameter, 9 parameters) and standard
deviations within 5 %. Controls: closed forms that are slightly wrong.

One-step invariance, as for HMC (tests/support/joint_draw.py): 10,000 replicates start at exact
draws, each with data of its own, and must be exact draws after some transitions; false-fail rate
1e-6. 20,000 normal draws must stay normal, in shallow and in deep trees, in the core and in Python.
Every fault of the core (tests/support/faults.py) and of the trees in Python must raise an alarm
there. A missing U-turn check inside subtrees shows in deep trees, other faults in shallow ones.
"""

import functools

import numpy as np
import pytest
from scipy import stats

import ribbit as rb
from tests.gates.posteriordb_models import MODELS
from tests.support import faults
from tests.support import linear_posterior as linear
from tests.support.gates import Table, agreement
from tests.support.joint_draw import DIM, HIDDEN, NOISE, ManyDatasets, X, joint_draw, judge
from tests.support.targets import Gaussian

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
    """Draws of one case; options that the case does not set are the sampler's defaults."""
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
    """Replicates with data of their own. The last parameter is the number of the replicate: chains
    leave the batch when their trees end, so their place in it does not tell."""

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


TREE_FAULTS = (
    "equal weights of states",
    "last state of a subtree",
    "new subtree always accepted",
    "no U-turn check inside a subtree",
)
CORE_FAULTS = (
    *TREE_FAULTS,
    "momentum variance +10 %",
    "missing kinetic term",
    "stale energy",
    "full instead of half kicks",
    "wrong sign of the gradient",
)
DENSITY_FAULTS = ("wrong sign of the gradient", "prior precision +5 %")


def run_network(seed, fault=None, replicates=REPLICATES):
    """Replicates of the network of the gate on HMC."""
    theta, y = joint_draw(seed, replicates)
    start = np.column_stack([theta, np.arange(replicates)])
    mass = np.append(np.ones(DIM), FIXED)
    target = Numbered(Rows(y, fault), DIM)
    nuts = rb.NUTS(target, step_size=STEP, inverse_mass_matrix=mass)
    positions, stats = rb.Chains(nuts, start, seed=seed, warmup=0).advance(TRANSITIONS)
    return judge(theta, positions[:, -1, :-1], y, stats["acceptance_rate"])


NORMALS, SD, MOVES = 20_000, np.array([1.0, 0.2]), 10
SHALLOW, DEEP = 1.6, 0.4  # step sizes of shallow and deep trees, as shares of the narrow sd


# Faults of the same trees in Python: the right text, and the wrong one.
LOCKSTEP_FAULTS = {
    "equal weights of states": (
        'host["leaves"][:, n] < -error - host["added"]',
        'host["leaves"][:, n] < -np.log(n + 1.0)',
    ),
    "last state of a subtree": (
        'host["leaves"][:, n] < -error - host["added"]',
        "np.ones(error.shape, dtype=bool)",
    ),
    "new subtree always accepted": (
        'host["accepts"] < added - weight',
        "np.ones(added.shape, dtype=bool)",
    ),
    "no U-turn check inside a subtree": (
        'self._host["turned"] = ~on',
        'self._host["turned"] = on & False',
    ),
    "missing kinetic term": (
        "error = kinetic - host",
        "error = 0.0 * kinetic - 0.0 * host",
    ),
    "full instead of half kicks": (  # at the end of a step
        'vectors |= {"q": q, "p": p,',
        'p = p + 0.5 * vectors["signed"][:, None] * g; vectors |= {"q": q, "p": p,',
    ),
}


def run_gaussian(seed, step_size, native=True):
    """Return p and acceptance after transitions from normal draws, one sd of two narrow."""
    start = np.random.default_rng((4321, seed)).normal(size=(NORMALS, 2)) * SD
    prior = 2.0
    target = rb.Posterior(
        rb.Model([rb.Dense(1, bias=False)], input_shape=(2,)),
        np.diag(np.sqrt(1.0 / SD**2 - 1.0 / prior**2)),
        np.zeros((2, 1)),
        prior=rb.Normal(prior),
        likelihood=rb.Gaussian(1.0),
        dtype=np.float64,
    )
    if not native:
        target = Gaussian(SD)
    nuts = rb.NUTS(target, step_size=step_size * SD[1], inverse_mass_matrix=None)
    positions, stats_of = rb.Chains(nuts, start, seed=seed, warmup=0).advance(MOVES)
    z = positions[:, -1] / SD
    tests = [stats.kstest(z[:, i], stats.norm.cdf, method="asymp") for i in range(2)]
    tests += [stats.kstest(np.sum(z**2, axis=1), stats.chi2(2).cdf, method="asymp")]
    p = float(min(1.0, 3 * min(test.pvalue for test in tests)))
    return p, float(np.mean(stats_of["acceptance_rate"][:, -1]))


def alarms(seed, step_size, native=True):
    """Return whether the distribution of the normals is wrong or the acceptance below 0.5."""
    p, acceptance = run_gaussian(seed, step_size, native)
    return not (p > 1e-6 and acceptance >= 0.5)


def test_nuts_leaves_the_law_alone():
    outcome = run_network(0)
    assert not outcome.alarms, outcome
    for size in (SHALLOW, DEEP):
        for native in (True, False):
            assert not alarms(0, size, native)


@pytest.mark.slow
@pytest.mark.parametrize("fault", DENSITY_FAULTS)
def test_every_fault_of_the_density_is_caught(fault):
    assert run_network(0, fault).alarms


@faults.needed
@pytest.mark.parametrize("fault", CORE_FAULTS)
def test_every_fault_of_the_core_is_caught(fault):
    assert caught(fault)


def caught(fault):
    """Return whether a fault of the core raises an alarm."""
    return faults.with_fault(fault, alarms, 0, size_for(fault))


def size_for(fault):
    """Return the step size of the trees in which a fault shows."""
    return DEEP if fault == "no U-turn check inside a subtree" else SHALLOW


@pytest.mark.parametrize("fault", LOCKSTEP_FAULTS)
def test_every_fault_in_python_is_caught(fault):
    with faults.in_python("nuts", *LOCKSTEP_FAULTS[fault]):
        assert alarms(0, size_for(fault), native=False)


@pytest.mark.slow
def test_no_alarm_in_a_hundred_seeds():
    for seed in range(1, 101):
        assert not alarms(seed, SHALLOW), seed
        assert not alarms(seed, DEEP), seed
    for seed in range(1, 21):
        outcome = run_network(seed)
        assert not outcome.alarms, (seed, outcome)


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
        chains = rb.Chains(nuts, theta[r], seed=seed, chains=[r], warmup=0)
        positions, stats = chains.advance(TRANSITIONS)
        end[r], rates[r] = positions[0, -1], stats["acceptance_rate"][0, -1]
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
        (
            "case",
            "largest error of a mean (MCSE)",
            "largest error of a sd",
            "acceptance",
            "leapfrog steps per draw",
        ),
        note=f"{CHAINS} chains x {DRAWS} draws; each case names the options that are not defaults. "
        "Gate: means within 5.5 MCSE, sds within 5 %.",
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
    invariance = Table(
        "NUTS, one-step invariance",
        ("code", "alarm"),
        note=f"{NORMALS:,} normal draws with sds {SD[0]:g} and {SD[1]:g} make {MOVES} transitions, "
        f"with a step of {SHALLOW:g} narrow sds (shallow trees) and of {DEEP:g} (deep trees). "
        f"{REPLICATES:,} replicates of a network make {TRANSITIONS} transitions with a step of "
        f"{STEP:g}. The right code runs on all of them. Faults in the density run on the network, "
        "a missing U-turn check in the deep trees, all other faults in the shallow trees. Gate: no "
        "alarm for the right code in ten seeds, and an alarm for each fault.",
    )
    found = sum(
        bool(run_network(s).alarms) or alarms(s, SHALLOW) or alarms(s, DEEP) for s in range(10)
    )
    invariance.add("right, 10 seeds", f"{found} of 10", holds=found == 0)
    for fault in CORE_FAULTS:
        alarm = caught(fault)
        invariance.add(fault, "yes" if alarm else "no", holds=alarm)
    for fault in DENSITY_FAULTS:
        alarm = bool(run_network(0, fault).alarms)
        invariance.add(f"{fault}, in the density", "yes" if alarm else "no", holds=alarm)
    return [law, invariance]
