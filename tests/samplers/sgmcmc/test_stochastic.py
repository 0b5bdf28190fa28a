"""SGLD, SGHMC and their schedules: every step against the oracle, batches, bits, bad input."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

import ribbit as rb
from ribbit import schedules
from ribbit._arrays import random_numbers
from ribbit.errors import NonFiniteError
from tests.oracle.stochastic_reference import epoch_order, first_velocity, run

ROWS, DIM = 75, 3
RNG = np.random.default_rng(3)
X = RNG.normal(size=(ROWS, DIM - 1))
Y = X @ [0.5, -1.0] + 0.3 + 0.4 * RNG.normal(size=ROWS)
DESIGN = np.c_[X, np.ones(ROWS)]


def target(dtype=np.float64, hidden=()):
    return rb.Posterior(
        rb.mlp(DIM - 1, hidden, 1),
        X,
        Y,
        prior=rb.Normal(0.7),
        likelihood=rb.Gaussian(0.4),
        dtype=dtype,
    )


def gradient(theta, rows):
    """Of the linear model's log density on a batch, scaled by N/n."""
    residual = Y[rows] - DESIGN[rows] @ theta
    return ROWS / len(rows) * DESIGN[rows].T @ residual / 0.4**2 - theta / 0.7**2


class Foreign:
    """The same density without native steps."""

    def __init__(self, inner):
        self.inner, self.dim = inner, inner.dim
        self.dtype, self.num_rows = inner.dtype, inner.num_rows

    def value_and_grad(self, theta, rows=None):
        return self.inner.value_and_grad(theta, rows=rows)


CASES = {
    "sgld": (rb.SGLD, {"step_size": 1e-3}, {"kind": "sgld"}),
    "preconditioned": (
        rb.SGLD,
        {"step_size": 1e-4, "preconditioner": "rmsprop"},
        {"kind": "sgld", "decay": 0.99, "epsilon": 1e-5, "adapt_until": 30},
    ),
    "sghmc": (
        rb.SGHMC,
        {"step_size": 1e-4, "friction": 0.15},
        {"kind": "sghmc", "friction": 0.15},
    ),
}


# --- every step ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["native", "python"])
@pytest.mark.parametrize("batch", [1, 32, 50, 75, None])
@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_the_oracle(case, batch, path):
    make, options, rule = CASES[case]
    density = target() if path == "native" else Foreign(target())
    sampler = make(
        density, batch_size=batch, schedule=schedules.polynomial(0.4, offset=5.0), **options
    )
    start = np.array([[0.1, 0.2, -0.3], [0.0, 0.5, 0.4]])
    seed = 2**63 + 11
    state = sampler.init(start, seed=seed, chains=[0, 9], warmup=30)
    draws = sampler.sample(40, resume=state, keep_warmup=True, progress=False)
    found = np.concatenate([draws.warmup_positions, draws.positions], axis=1)
    factors = (1 + np.arange(70) / 5.0) ** -0.4
    for c, chain in enumerate((0, 9)):
        extra = {"step_size": options["step_size"]}
        if case == "sghmc":
            extra["velocity"] = first_velocity(DIM, 1e-4, seed=seed, chain=chain)
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
    state = sampler.init(theta, seed=3)
    moved, _ = sampler.step(state, num_steps=3)
    mean = (moved.position[0] - theta) / (0.5e-9 * 3)
    np.testing.assert_allclose(mean, density.value_and_grad(theta)[1], rtol=1e-5)
    one, _ = sampler.step(state, num_steps=1)  # the control: one batch is not the whole
    assert np.abs((one.position[0] - theta) / 0.5e-9 - mean).max() > 0.1 * np.abs(mean).max()


# --- what decides a draw -------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*expected chains within 20 prior")
@pytest.mark.parametrize("hidden", [(), (40, 30)])
@pytest.mark.parametrize("case", CASES)
def test_bits_do_not_depend_on_threads_chains_chunks_or_restarts(case, hidden):
    make, options, _ = CASES[case]
    options = {**options, "step_size": options["step_size"] / (1 if hidden == () else 10)}
    x = np.random.default_rng(0).normal(size=(700, 6))
    density = rb.Posterior(
        rb.mlp(6, hidden, 1),
        x,
        np.sin(x[:, 0]),
        prior=rb.Normal(0.7),
        likelihood=rb.Gaussian(0.3),
    )
    for batch in (48, 300, 700):
        sampler = make(density, batch_size=batch, **options)
        rb.set_num_threads(2)
        whole = sampler.sample(6, warmup=7, thin=3, chains=3, seed=8, progress=False)
        assert np.all(np.diff(whole.positions, axis=1) != 0)
        for threads in (1, 3, 4):
            rb.set_num_threads(threads)
            again = sampler.sample(6, warmup=7, thin=3, chains=3, seed=8, progress=False)
            assert again.positions.tobytes() == whole.positions.tobytes()
        alone = sampler.sample(6, warmup=7, thin=3, chains=[1], seed=8, progress=False)
        assert alone.positions.tobytes() == whole.positions[1:2].tobytes()
        first = sampler.sample(2, warmup=7, thin=3, chains=3, seed=8, progress=False)
        rest = sampler.sample(4, thin=3, resume=first, progress=False)
        joined = np.concatenate([first.positions, rest.positions], axis=1)
        assert joined.tobytes() == whole.positions.tobytes()
        every = sampler.sample(18, warmup=7, chains=3, seed=8, keep_warmup=True, progress=False)
        assert every.positions[:, 2::3].tobytes() == whole.positions.tobytes()
        state = sampler.init(density.init(seed=8, chains=3), seed=8, warmup=7)
        stepped, _ = sampler.step(state, num_steps=25)
        assert stepped.position.tobytes() == whole.positions[:, -1].tobytes()
    rb.set_num_threads(2)


def test_save_and_load(tmp_path):
    for make, options, _ in CASES.values():
        sampler = make(target(), batch_size=20, **options)
        draws = sampler.sample(5, warmup=4, chains=2, seed=1, progress=False)
        draws.save(tmp_path / "run")
        back = rb.load_draws(tmp_path / "run")
        assert back.positions.tobytes() == draws.positions.tobytes()
        assert back.settings == draws.settings
        rest = [sampler.sample(3, resume=d, progress=False).positions for d in (draws, back)]
        assert rest[0].tobytes() == rest[1].tobytes()


def test_statistics_and_predictions():
    draws = rb.SGLD(target(), step_size=1e-3, batch_size=20, track_lp=True).sample(
        30, warmup=100, thin=5, chains=2, seed=1, predict_at=X[:4], progress=False
    )
    lp = target().value_and_grad(draws.positions[0])[0]
    np.testing.assert_allclose(draws.stats["lp"][0], lp)
    assert (draws.stats["step_size"] == 1e-3).all()
    np.testing.assert_allclose(draws.prediction.mean, draws.predict(X[:4]).mean)
    plain = rb.SGLD(target(), step_size=1e-3, batch_size=20).sample(3, progress=False)
    assert np.isnan(plain.stats["lp"]).all()
    assert "SGLD" in repr(plain)
    assert len(plain) == 3


# --- schedules -----------------------------------------------------------------------------------


def test_schedules():
    np.testing.assert_array_equal(schedules.constant().factors(5, 3), 1.0)
    np.testing.assert_allclose(
        schedules.polynomial(0.5, offset=2.0).factors(2, 2), [2.0**-0.5, 2.5**-0.5]
    )
    found = schedules.cosine(10, final=0.2).factors(0, 15)
    np.testing.assert_allclose(found[[0, 5, 10, 14]], [1.0, 0.6, 0.2, 0.2])
    cycle = schedules.cyclical(3, 4, exploration=0.5)
    expected = 0.5 * (1 + np.cos(np.pi * np.array([0, 1, 2, 3, 0, 1]) / 4))
    np.testing.assert_allclose(cycle.factors(4, 6), expected)
    np.testing.assert_array_equal(cycle.noise(4, 6), [0, 0, 1, 1, 0, 0])
    for schedule in (found, cycle):
        assert repr(schedule)


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options", "text"),
    [
        (rb.SGLD, {"batch_size": 76}, "batch_size <= 75, the rows of the data"),
        (rb.SGLD, {"batch_size": 0}, "batch_size"),
        (rb.SGLD, {"step_size": 0.0}, "step_size"),
        (rb.SGLD, {"step_size": np.nan}, "step_size"),
        (rb.SGLD, {"preconditioner": "adam"}, "preconditioner"),
        (rb.SGHMC, {"friction": 0.0}, "friction"),
        (rb.SGHMC, {"friction": 1.0}, "friction"),
        (rb.SGHMC, {"friction": -0.1}, "friction"),
        (schedules.polynomial, {"power": 0.0}, "power"),
        (schedules.cosine, {"num_steps": 0}, "num_steps"),
        (schedules.cosine, {"num_steps": 5, "final": 2.0}, "final"),
        (schedules.cyclical, {"num_cycles": 0, "num_steps": 3}, "num_cycles"),
        (schedules.cyclical, {"num_cycles": 1, "num_steps": 3, "exploration": 1.0}, "exploration"),
    ],
)
def test_bad_numbers(make, options, text):
    call = (
        (lambda: make(target(), **{"batch_size": 20, **options}))
        if make
        in (
            rb.SGLD,
            rb.SGHMC,
        )
        else (lambda: make(**options))
    )
    with pytest.raises(ValueError, match=text):
        call()


def test_bad_kinds():
    with pytest.raises(TypeError, match=r"schedule of rb\.schedules"):
        rb.SGLD(target(), batch_size=20, schedule="cosine")
    with pytest.raises(TypeError, match="unexpected keyword"):
        rb.SGLD(target(), momentum=0.9)
    with pytest.raises(ValueError, match="batch_size=None for a target without num_rows"):
        rb.SGLD(rb.CallableDensity(lambda t: (0.0, 0 * t), 2))
    dropped = rb.Posterior(
        rb.Model([rb.Dense(3), rb.Dropout(0.1), rb.Dense(1)], input_shape=(2,)),
        X,
        Y,
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.1),
    )
    for make in (rb.SGLD, rb.SGHMC):
        with pytest.raises(TypeError, match=r"without Dropout layers, got 1: Dropout\(0.1\)"):
            make(dropped, batch_size=20)
    sgld, sghmc = rb.SGLD(target(), batch_size=20), rb.SGHMC(target(), batch_size=20)
    with pytest.raises(ValueError, match="a sampler of another kind"):
        sghmc.sample(2, resume=sgld.init(np.zeros(DIM)))
    with pytest.raises(TypeError, match="expected a StochasticState, got"):
        sgld.step(rb.HMC(target()).init(np.zeros(DIM)))
    state = sgld.init(np.zeros(DIM))
    with pytest.raises(ValueError, match="state of dim 3, got 2"):
        sgld.step(dataclasses.replace(state, position=state.position[:, :2]))
    with pytest.raises(ValueError, match="moves in warmup, got 0"):
        rb.SGLD(target(), batch_size=20, preconditioner="rmsprop").init(np.zeros(DIM))
    with pytest.raises(ValueError, match="a finite position"):
        sgld.init(np.array([0.0, np.inf, 0.0]))


@pytest.mark.parametrize("path", ["native", "python"])
@pytest.mark.parametrize("make", [rb.SGLD, rb.SGHMC])
def test_a_run_that_explodes_says_where_and_keeps_the_last_finite_state(make, path):
    density = target(np.float32)
    sampler = make(density if path == "native" else Foreign(density), step_size=1.0, batch_size=20)
    with pytest.raises(NonFiniteError, match=r"step size 1, largest \|gradient\|") as caught:
        sampler.sample(2, warmup=10_000, chains=3, seed=2, progress=False, init=np.zeros(DIM))
    error = caught.value
    assert error.step > 0
    assert error.step_size == 1.0
    assert not error.largest_gradient <= 1e6  # large, or not a number
    assert np.isfinite(error.state.position).all()
    assert error.state.step == error.step
    again, _ = sampler.step(sampler.init(np.zeros((3, DIM)), seed=2), num_steps=error.step)
    assert again.position.tobytes() == error.state.position.tobytes()
    with pytest.raises(NonFiniteError) as twice:
        sampler.step(again)
    assert twice.value.step == error.step
