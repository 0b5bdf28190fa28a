"""Gate "BAOAB": it keeps its exact second moments, with all rows and with minibatches.

On a linear model with Gaussian noise a sweep is an affine map with Gaussian noise, drawn with the
order of its rows: second moments follow a linear recursion, whose fixed point the oracle solves
over all orders. Chains that start with these moments have them again after any number of sweeps.
The smallest p of all means and products (normal: 20,000 chains, their own errors), times their
number, must exceed 1e-6, the false-fail rate; batches that never go back and planted faults must
raise an alarm.
"""

import dataclasses
import functools

import numpy as np
import pytest
from scipy import stats

import ribbit as rb
from tests.oracle.stochastic_reference import kinetic_law
from tests.support import faults
from tests.support.gates import Table
from tests.support.kinetic_problem import (
    BATCH,
    DIM,
    FRICTION,
    ROWS,
    quadratic,
    sweeps,
    target,
)
from tests.support.stepwise import started, stepped
from tests.support.targets import Foreign

CHAINS, SWEEPS = 20_000, 8


@functools.cache
def law(order, share):
    """Step size, mean and covariance (2P,): `share` of the step that is stable, about half."""
    hessian, _ = quadratic(range(ROWS))
    h = share / np.sqrt(np.linalg.eigvalsh(hessian)[-1])
    return h, *kinetic_law(*sweeps(order), h, friction=FRICTION)


def bias(order, share):
    """Largest relative error of a variance of any linear function of the parameters."""
    exact, _ = quadratic(range(ROWS))
    _, _, covariance = law(order, share)
    root = np.linalg.cholesky(exact)
    return np.max(np.abs(np.linalg.eigvalsh(root.T @ covariance[:DIM, :DIM] @ root) - 1))


def p_value(both, mean, covariance):
    """Smallest p of means and of products about `mean`, times their number."""
    away = both - mean
    upper = np.triu_indices(both.shape[1])
    values = np.c_[away, away[:, upper[0]] * away[:, upper[1]]]
    expected = np.concatenate([np.zeros(both.shape[1]), covariance[upper]])
    error = values.std(axis=0) / np.sqrt(len(both))
    p = 2 * stats.norm.sf(np.abs(values.mean(axis=0) - expected) / error)
    return min(1.0, p.min() * p.size)


def run(density, order, share, judged_by=None, seed=5, chains=CHAINS):
    h, mean, covariance = law(order, share)
    start = np.random.default_rng((7, seed)).multivariate_normal(mean, covariance, size=chains)
    sampler = rb.BAOAB(
        density,
        step_size=h,
        friction=FRICTION,
        batch_size=None if order == "all" else BATCH,
        inverse_mass_matrix=np.ones(DIM),
    )
    state = started(sampler, start[:, :DIM].copy(), seed=seed)
    state = dataclasses.replace(state, first_moment=start[:, DIM:].copy())
    sweep = 1 if order == "all" else 2 * ROWS // BATCH
    for steps in (3, SWEEPS * sweep - 3):  # cut anywhere
        state, _ = stepped(sampler, state, num_steps=steps)
    assert np.mean(np.abs(state.position - start[:, :DIM])) > 0.01  # movement
    _, mean, covariance = law(judged_by or order, share)
    return p_value(np.c_[state.position, state.first_moment], mean, covariance)


def run_native():
    return run(target(), "there and back", 0.3)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("order", ["all", "there and back"])
def test_the_exact_moments_are_kept(order, native):
    chains = CHAINS if native else 1_000  # a call for each chain and step
    density = target() if native else Foreign(target())
    assert run(density, order, 0.3, chains=chains) > 1e-6


def test_batches_that_do_not_go_back_would_be_caught():
    assert run(target(), "there and back", 0.3, judged_by="there again") < 1e-6


FAULTS = ("noise scale +10 %", "half the gradient", "no noise")


@faults.needed
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_of_the_native_steps_is_caught(fault):
    assert faults.with_fault(fault, run_native) < 1e-6


def test_the_law_of_positions_is_exact_with_all_rows():
    assert bias("all", 0.3) < 1e-12
    assert bias("all", 1.5) < 1e-12


def test_the_error_falls_with_the_square_of_the_step():
    """Where batches drawn afresh lose one order: the exponent between steps h and h / 2."""
    exponents = {
        order: np.log2(bias(order, 0.02) / bias(order, 0.01))
        for order in ("there and back", "afresh")
    }
    assert exponents["there and back"] > 1.9
    assert exponents["afresh"] < 1.1
    assert bias("there and back", 0.1) < 0.05 * bias("afresh", 0.1)


def results():
    table = Table(
        "Moments of BAOAB",
        ("batches", "code", "p", "gate"),
        note=f"Linear model, all rows or minibatches. {CHAINS:,} chains start with the exact means "
        f"and second moments and make {SWEEPS} sweeps. They must have the same moments again. A "
        'sweep "there and back" uses the batches in order, then in reverse order.',
    )
    for order in ("all", "there and back"):
        p = run(target(), order, 0.3)
        table.add(order, "right", f"{p:.1e}", "> 1e-6", holds=p > 1e-6)
    for fault in FAULTS:
        p = faults.with_fault(fault, run_native)
        table.add("there and back", fault, f"{p:.1e}", "< 1e-6", holds=p < 1e-6)
    errors = Table(
        "Error of a variance by BAOAB's step size",
        ("step size x largest frequency", "all rows", "there and back", "drawn afresh"),
        note=f"Largest relative error of a variance, for a linear model of {ROWS} rows in batches "
        f"of {BATCH}. The stationary distribution of the chain is computed exactly, without "
        'sampling. "Drawn afresh" means a new random batch for each step.',
    )
    for share in (0.4, 0.2, 0.1, 0.05):
        found = [bias(order, share) for order in ("all", "there and back", "afresh")]
        errors.add(share, *(f"{b:.1e}" for b in found))
    return [table, errors]
