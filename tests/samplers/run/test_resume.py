"""A run split in two is the run, bit for bit, wherever it is cut."""

import dataclasses

import numpy as np
import pytest

import ribbit as rb
from ribbit.samplers import HMC
from ribbit.store import load
from tests.support.targets import OPTIONS, Gaussian, Line, equal, posterior, same, state_of

# short runs whose bits are compared: whether they have converged does not matter
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")

WHOLE = {"warmup": 40, "chains": 3, "seed": 11}


def joined(first, second):
    return np.concatenate([first.positions, second.positions], axis=1)


@pytest.fixture(params=["network", "python"])
def target(request):
    return posterior() if request.param == "network" else Line([1.0, 2.0, 0.3], dtype=np.float32)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_split_between_draws(target, options):
    hmc = HMC(target, **options)
    whole = hmc.sample(12, **WHOLE)
    first = hmc.sample(5, **WHOLE)
    for resume in (first, first.state):
        second = hmc.sample(7, resume=resume)
        assert same(whole.positions, joined(first, second))
        for name in whole.stats:
            assert same(whole.stats[name][:, 5:], second.stats[name])
        assert second.state.step == whole.state.step == 52
    fresh = HMC(target, **options)  # nothing hides in the sampler
    assert same(whole.positions, joined(first, fresh.sample(7, resume=first)))


@pytest.mark.parametrize("cut", [0, 1, 5, 6, 7, 20, 35, 36, 37, 39, 40, 41])
def test_split_inside_warmup(cut):
    """Around the start (6) and end (36) of the mass window and the end of warmup (40)."""
    hmc = HMC(Line([1.0, 2.0, 0.3]), **OPTIONS["adapted"])
    whole = hmc.sample(6, **WHOLE, save_warmup=True)
    chains = rb.Chains(hmc, **WHOLE)
    if cut:
        chains.advance(cut)
    rest = hmc.sample(6 - max(0, cut - 40), resume=state_of(chains), save_warmup=True)
    assert same(whole.positions[:, max(0, cut - 40) :], rest.positions)
    assert same(whole.warmup_positions[:, cut:], rest.warmup_positions)
    assert same(whole.state.step_size, rest.state.step_size)
    assert same(whole.state.inverse_mass_matrix, rest.state.inverse_mass_matrix)


@pytest.mark.parametrize("steps", range(7))
def test_thinning_keeps_its_phase(steps):
    """Draws sit at fixed steps, also when the first run ended between two of them."""
    hmc = HMC(Line([1.0, 2.0, 0.3]), **OPTIONS["fixed"])
    whole = hmc.sample(6, thin=3, chains=2, warmup=0)
    chains = rb.Chains(hmc, chains=2, warmup=0)
    if steps:
        chains.advance(steps)
    rest = hmc.sample(6 - steps // 3, thin=3, resume=state_of(chains))
    equal(whole, rest, rows=slice(steps // 3, 6))


def test_many_small_pieces():
    hmc = HMC(posterior(), **OPTIONS["adapted"])
    whole = hmc.sample(9, **WHOLE)
    pieces = [hmc.sample(1, **WHOLE)]
    for _ in range(8):
        pieces.append(hmc.sample(1, resume=pieces[-1]))
    assert same(whole.positions, np.concatenate([p.positions for p in pieces], axis=1))


def test_max_seconds_then_resume():
    hmc = HMC(posterior(), **OPTIONS["fixed"])
    whole = hmc.sample(20_000, chains=2, warmup=0)
    first = hmc.sample(20_000, chains=2, max_seconds=0.005, warmup=0)
    assert not first.complete
    assert 0 < len(first) < 20_000
    assert first.positions.shape[1] == len(first) == first.stats["lp"].shape[1]
    second = hmc.sample(20_000 - len(first), resume=first)
    assert second.complete
    assert same(whole.positions, joined(first, second))


def test_fixed_settings_come_from_the_sampler_and_adapted_ones_from_the_state():
    target = Line([1.0, 2.0, 0.3])
    adapted = HMC(target, **OPTIONS["adapted"]).sample(2, **WHOLE)
    again = HMC(target, step_size=0.125, num_leapfrog_steps=3).sample(2, resume=adapted)
    assert (again.stats["step_size"] == 0.125).all()
    assert again.state.inverse_mass_matrix is None
    kept = HMC(target, step_size="auto", inverse_mass_matrix="adapt").sample(2, resume=adapted)
    assert same(kept.state.step_size, adapted.state.step_size)
    assert same(kept.state.inverse_mass_matrix, adapted.state.inverse_mass_matrix)


def test_a_state_that_does_not_fit():
    draws = HMC(Line([1.0, 2.0, 0.3]), **OPTIONS["fixed"]).sample(2, chains=2)
    with pytest.raises(ValueError, match="state of dim 2"):
        HMC(Gaussian([1.0, 2.0]), **OPTIONS["fixed"]).sample(2, resume=draws)
    with pytest.raises(TypeError, match="float32"):
        HMC(Line([1.0, 2.0, 0.3], dtype=np.float32), **OPTIONS["fixed"]).sample(2, resume=draws)
    with pytest.raises(ValueError, match="step_size"):
        HMC(Line([1.0, 2.0, 0.3]), step_size=[0.1, 0.1, 0.1], num_leapfrog_steps=1).sample(
            2, resume=draws
        )


def test_a_state_of_another_target_is_evaluated_on_this_one():
    """Data, prior or temperature may change between two runs: the old energy must not stay."""
    wide, narrow = Gaussian([1.0, 2.0]), Gaussian([0.1, 0.2])
    start = HMC(wide, step_size=0.5, num_leapfrog_steps=3)
    start = start.sample(4, init=np.zeros((3, 2)), warmup=0)
    hmc = HMC(narrow, step_size=0.01, num_leapfrog_steps=3)
    resumed = hmc.sample(3, resume=start)
    fresh = state_of(rb.Chains(hmc, start.state.position, warmup=0))
    fresh = rb.samplers.State._of(fresh.fields | {"step": start.state.step})
    equal(hmc.sample(3, resume=fresh), resumed)


def test_fixed_settings_win_inside_warmup():
    target = Line([1.0, 2.0, 0.3])
    given, run = HMC(target, step_size=0.125, num_leapfrog_steps=3), {"chains": 2, "warmup": 40}
    half = state_of(rb.Chains(HMC(target, **OPTIONS["adapted"]), **run))
    fixed = given.sample(2, resume=half)
    assert (fixed.stats["step_size"] == 0.125).all()
    assert fixed.state.inverse_mass_matrix is None
    plain = state_of(rb.Chains(given, **run))
    auto = HMC(target, step_size="auto", num_leapfrog_steps=3).sample(2, resume=plain)
    assert (auto.stats["step_size"] != 0.125).all()


def test_resume_takes_no_chains_and_no_start():
    draws = HMC(Line([1.0, 2.0, 0.3]), **OPTIONS["fixed"]).sample(2, chains=2)
    for contradiction in ({"chains": 3}, {"init": np.zeros(3)}):
        with pytest.raises(ValueError, match="expected resume without"):
            HMC(Line([1.0, 2.0, 0.3]), **OPTIONS["fixed"]).sample(2, resume=draws, **contradiction)


def test_two_threads_may_sample_from_one_target():
    from concurrent.futures import ThreadPoolExecutor

    target = posterior()
    hmc = HMC(target, step_size=0.02, num_leapfrog_steps=20)
    expected = [hmc.sample(20, chains=2, seed=s) for s in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda s: hmc.sample(20, chains=2, seed=s), range(4)))
    for a, b in zip(expected, found, strict=True):
        equal(a, b)


def test_resume_from_a_file_inside_warmup(tmp_path):
    target = posterior()
    hmc = HMC(target, **OPTIONS["adapted"])
    whole = hmc.sample(5, **WHOLE)
    start = hmc.sample(1, **WHOLE)
    chains = rb.Chains(hmc, **WHOLE)
    chains.advance(17)
    dataclasses.replace(start, state=state_of(chains)).save(tmp_path / "cut")
    assert same(whole.positions, hmc.sample(5, resume=load(tmp_path / "cut")).positions)
