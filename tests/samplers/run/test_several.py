"""Several draws in one call of the core: the bits, statistics and errors of one draw a call."""

import numpy as np
import pytest

import ribbit as rb
from ribbit import schedules
from ribbit.adapter import Thinning
from ribbit.samplers.sgmcmc.stepper import Stepper

CASES = {
    "sgld": lambda t: rb.SGLD(t, step_size=1e-4, batch_size=16, schedule=schedules.polynomial()),
    "sghmc": lambda t: rb.SGHMC(t, step_size=1e-5, batch_size=16, schedule=schedules.cosine(9_000)),
    "baoab": lambda t: rb.BAOAB(t, step_size=1e-3, batch_size=16),
    "rmsprop": lambda t: rb.SGLD(t, step_size=1e-4, batch_size=16, preconditioner="rmsprop"),
}


def posterior():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((40, 2))
    y = np.sin(x[:, :1])
    model = rb.mlp(2, (5,), 1)
    return rb.Posterior(model, x, y, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3))


@pytest.fixture
def sizes(monkeypatch):
    """Note the draws of each call that makes several."""
    made, inner = [], Stepper.advance_several

    def noted(self, state, stops, kept, guard):
        made.append(len(stops))
        return inner(self, state, stops, kept, guard)

    monkeypatch.setattr(Stepper, "advance_several", noted)
    return made


def one_by_one(monkeypatch):
    monkeypatch.setattr(Stepper, "several", property(lambda self: False))


def same(a, b):
    assert np.array_equal(a.positions, b.positions)
    assert a.stats.keys() == b.stats.keys()
    for name, values in a.stats.items():
        assert np.array_equal(values, b.stats[name], equal_nan=True), name
    for name in ("position", "first_moment", "second_moment", "logdensity"):
        one, other = getattr(a.state, name), getattr(b.state, name)
        assert (one is None) == (other is None)
        assert one is None or np.array_equal(one, other, equal_nan=True)
    assert a.state.step == b.state.step


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@pytest.mark.parametrize("thin", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_draws_are_those_of_single_calls(name, thin, sizes, monkeypatch):
    options = {"warmup": 20, "thin": thin, "chains": 3, "seed": 4, "progress": False}
    sampler = CASES[name](posterior())
    several = sampler.sample(300, **options)
    assert sum(sizes) > 200
    half = sampler.sample(151, **options)
    rest = sampler.sample(149, thin=thin, resume=half, progress=False)
    count = len(sizes)
    one_by_one(monkeypatch)
    single = sampler.sample(300, **options)
    assert len(sizes) == count
    same(several, single)
    joined = np.concatenate([half.positions, rest.positions], axis=1)
    assert np.array_equal(joined, single.positions)
    other = sampler.sample(300, **{**options, "seed": 5})
    assert not np.array_equal(other.positions, single.positions)


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_cycles_of_several_draws(sizes, monkeypatch):
    schedule = schedules.cyclical(40, 20, exploration=0.5, sampling=0.5, draws_per_cycle=3)
    sampler = rb.SGLD(posterior(), step_size=1e-4, batch_size=16, schedule=schedule)
    options = {"warmup": 7, "chains": 2, "progress": False}
    several = sampler.sample(100, **options)
    assert sum(sizes) > 50
    one_by_one(monkeypatch)
    same(several, sampler.sample(100, **options))


def test_the_draws_before_a_failure_are_kept(sizes, monkeypatch):
    # The step size grows until a step fails.
    monkeypatch.setattr(
        schedules.Schedule,
        "factors",
        lambda self, first, count: 1.05 ** np.arange(first, first + count),
    )
    sampler = rb.SGLD(posterior(), step_size=1e-6, batch_size=16)
    with pytest.raises(rb.errors.NonFiniteError) as several:
        sampler.sample(5_000, warmup=0, chains=2, progress=False)
    assert sum(sizes) > 50
    one_by_one(monkeypatch)
    with pytest.raises(rb.errors.NonFiniteError) as single:
        sampler.sample(5_000, warmup=0, chains=2, progress=False)
    assert str(several.value) == str(single.value)
    same(several.value.draws, single.value.draws)
    assert len(single.value.draws) > 50


@pytest.mark.parametrize("thinning", [Thinning(1), Thinning(7), Thinning(20, 3, 4)])
def test_several_steps_that_give_draws(thinning):
    for step in range(45):
        found, at = [], step
        for _ in range(9):
            at = thinning.stop(at, 0)
            found.append(at)
        following = thinning.count(step) + np.arange(1, 10)
        assert thinning.step(following).tolist() == found


def test_native_steps_refuse_places_that_are_none():
    target = posterior()
    theta = target.init(seed=0, chains=2)
    given = {
        "seed": 0, "chains": np.arange(2, dtype=np.uint32), "first_step": 0, "batch_size": 16,
        "step_size": np.full(5, 1e-4), "noise": np.ones(5), "rule": "langevin", "prior": 1.0,
        "friction": 0.0, "previous_step_size": 1e-4, "decay": (0.9, 0.999), "epsilon": 1e-8,
        "adapt_until": 0,
    }  # fmt: skip
    kept = np.zeros((2, 2, target.dim), target.dtype)
    for keep in ([0, 5], [2, 2], [3, 1], [-1, 2]):
        with pytest.raises(ValueError, match="ascending steps"):
            target.advance(theta, None, None, **given, keep=np.array(keep), kept=kept)
    with pytest.raises(ValueError, match="kept"):
        target.advance(theta, None, None, **given, keep=np.array([1]), kept=kept)
    last = target.advance(theta, None, None, **given, keep=np.array([1, 4]), kept=kept)[0]
    assert np.array_equal(kept[:, 1], last)
    assert not np.array_equal(kept[:, 0], last)
