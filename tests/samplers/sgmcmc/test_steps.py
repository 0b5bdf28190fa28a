"""SGLD and SGHMC: every step against the oracle, the order of an epoch's rows, batches."""

import numpy as np
import pytest
from scipy import stats

import ribbit as rb
from ribbit import schedules
from ribbit._arrays import random_numbers
from tests.oracle.stochastic_reference import epoch_order, first_velocity, run
from tests.samplers.sgmcmc.problem import CASES, DIM, ROWS, gradient, target
from tests.support.stepwise import started
from tests.support.targets import Foreign


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@pytest.mark.parametrize("path", ["native", "python"])
@pytest.mark.parametrize("batch", [1, 32, 50, 75, None])
@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_the_oracle(case, batch, path):
    make, options, rule = CASES[case]
    density = target() if path == "native" else Foreign(target())
    if case == "baoab" and path == "python":  # which does not know its prior
        options = {**options, "inverse_mass_matrix": np.full(DIM, 0.7**2)}
    sampler = make(
        density, batch_size=batch, schedule=schedules.polynomial(0.4, offset=5.0), **options
    )
    start = np.array([[0.1, 0.2, -0.3], [0.0, 0.5, 0.4]])
    seed = 2**63 + 11
    call = {"init": start, "seed": seed, "chains": [0, 9], "warmup": 30}
    draws = sampler.sample(40, thin=1, save_warmup=True, progress=False, **call)
    found = np.concatenate([draws.warmup_positions, draws.positions], axis=1)
    factors = (1 + np.arange(70) / 5.0) ** -0.4
    for c, chain in enumerate((0, 9)):
        extra = {"step_size": options["step_size"]}
        if case == "sghmc":
            extra["velocity"] = first_velocity(DIM, 1e-4, seed=seed, chain=chain)
        if case == "baoab":
            extra["velocity"] = first_velocity(DIM, 1.0, seed=seed, chain=chain)
            extra["warmup"] = 30
        expected = run(
            gradient,
            start[c],
            70,
            rows=ROWS,
            batch=batch,
            seed=seed,
            chain=chain,
            factors=factors,
            rule={**rule, **extra},
        )
        np.testing.assert_allclose(found[c], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_a_wrong_noise_is_seen_by_the_replay():
    """Control of the replay above: 1 % more noise."""
    sampler = rb.SGLD(target(), step_size=1e-3, batch_size=32)
    found = sampler.sample(20, warmup=0, chains=1, seed=5, init=np.zeros(DIM), progress=False)
    options = {"rows": ROWS, "batch": 32, "seed": 5, "chain": 0}
    rule = {"kind": "sgld", "step_size": 1e-3}
    right = run(gradient, np.zeros(DIM), 20, **options, rule=rule)
    wrong = run(gradient, np.zeros(DIM), 20, **options, noises=np.full(20, 1.01), rule=rule)
    np.testing.assert_allclose(found.positions[0], right, rtol=1e-10, atol=1e-12)
    assert np.abs(found.positions[0] - wrong).max() > 1e-5


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_float32_steps_follow_float64():
    for make, options, _ in CASES.values():
        pair = [
            make(target(dtype), batch_size=32, **options).sample(
                20, warmup=5, chains=2, seed=1, init=np.zeros(DIM), progress=False
            )
            for dtype in (np.float32, np.float64)
        ]
        assert pair[0].positions.dtype == np.float32
        np.testing.assert_allclose(pair[0].positions, pair[1].positions, atol=2e-5)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 16, 17, 100, 1000, 4097])
def test_an_epoch_has_every_row_once_in_the_oracles_order(rows):
    for seed, chain, epoch in ((0, 0, 0), (2**64 - 1, 2**32 - 1, 2**40 - 1), (5, 1, 7)):
        where = {"seed": seed, "chain": chain, "epoch": epoch}
        found = random_numbers.epoch_rows(rows, begin=0, count=rows, **where)
        assert sorted(found) == list(range(rows))
        if rows <= 1000:
            np.testing.assert_array_equal(found, epoch_order(rows, **where))
        part = random_numbers.epoch_rows(rows, begin=rows // 3, count=rows // 2, **where)
        np.testing.assert_array_equal(part, found[rows // 3 : rows // 3 + rows // 2])


@pytest.mark.parametrize("rows", [3, 7, 20, 33])
def test_every_row_is_as_likely_at_every_place(rows):
    """Chi-square over (row, place), and over pairs of neighbours, of 20,000 epochs.

    The false-fail rate is 1e-7 per test. Control: the identity.
    """
    epochs = 20_000
    orders = np.stack(
        [
            random_numbers.epoch_rows(rows, seed=4, chain=2, epoch=e, begin=0, count=rows)
            for e in range(epochs)
        ]
    )

    def p_value(orders):
        table = np.zeros((rows, rows))
        for place in range(rows):
            table[place] = np.bincount(orders[:, place], minlength=rows)
        # A doubly stochastic table: (rows - 1)^2 degrees of freedom, variance short of a
        # multinomial's by the factor (rows - 1) / rows.
        statistic = np.sum((table - epochs / rows) ** 2) / (epochs / rows) * (rows - 1) / rows
        return stats.chi2.sf(statistic, (rows - 1) ** 2)

    def pair_p_value(orders):
        pairs = orders[:, 0] * rows + orders[:, 1]
        counts = np.bincount(pairs, minlength=rows * rows).reshape(rows, rows)
        off = counts[~np.eye(rows, dtype=bool)]
        return stats.chisquare(off).pvalue

    assert p_value(orders) > 1e-7
    assert pair_p_value(orders) > 1e-7
    assert p_value(np.tile(np.arange(rows), (epochs, 1))) < 1e-7


def test_batches_of_an_epoch_add_up_to_the_full_gradient():
    """N/n scaling and no replacement: with steps too small to move, the sum is exact."""
    density, theta = target(), np.array([0.2, -0.1, 0.4])
    sampler = rb.SGLD(
        density,
        step_size=1e-9,
        batch_size=25,
        schedule=schedules.cyclical(1, 10**6, exploration=0.9),  # no noise
    )
    moved, _ = rb.Chains(sampler, theta, seed=3, warmup=0).advance(3)
    mean = (moved[0, 2] - theta) / (0.5e-9 * 3)
    np.testing.assert_allclose(mean, density.value_and_grad(theta)[1], rtol=1e-5)
    one = (moved[0, 0] - theta) / 0.5e-9  # the control: one batch is not the whole
    assert np.abs(one - mean).max() > 0.1 * np.abs(mean).max()


@pytest.mark.parametrize("case", CASES)
def test_steps_in_parts_are_steps_at_once(case, monkeypatch):
    """The sizes of 2**31 steps would take 16 GB: long calls are made in parts."""
    make, options, _ = CASES[case]
    sampler = make(target(), batch_size=32, **options)
    start = started(sampler, np.zeros((2, DIM)), seed=1, warmup=30)
    whole, _ = sampler._advance(start, 50, None)
    monkeypatch.setattr("ribbit.samplers.sgmcmc.stepper._AT_ONCE", 7)
    parts, _ = sampler._advance(start, 50, None)
    assert parts.step == whole.step == 50
    assert parts.position.tobytes() == whole.position.tobytes()
