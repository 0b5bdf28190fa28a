"""HMC: what decides a draw and what does not."""

import warnings

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import RibbitWarning
from ribbit.samplers import HMC
from tests.support.targets import OPTIONS, SDS, START, TARGETS, Gaussian, equal, posterior, same

# short runs whose bits are compared: whether they have converged does not matter
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")


@pytest.fixture(params=list(TARGETS))
def any_target(request):
    return TARGETS[request.param]()


@pytest.fixture(params=list(OPTIONS))
def hmc(request, any_target):
    return HMC(any_target, **OPTIONS[request.param])


def test_a_draw_does_not_depend_on_the_other_chains(hmc):
    together = hmc.sample(12, warmup=30, chains=5, seed=9)
    for chains in ([0], [3], [2, 4], [4, 2], [1, 2, 3]):
        equal(together, hmc.sample(12, warmup=30, chains=chains, seed=9), chains)


def test_a_draw_does_not_depend_on_thinning(hmc):
    every = hmc.sample(12, warmup=40, chains=2, seed=9)
    assert every.stats["accepted"].any(axis=1).all()  # chains that stand still are always equal
    for thin in (2, 3, 5):
        thinned = hmc.sample(12 // thin, warmup=40, chains=2, thin=thin, seed=9)
        equal(every, thinned, rows=slice(thin - 1, thin * (12 // thin), thin))


def test_a_draw_does_not_depend_on_progress_or_what_is_kept(hmc, capfd):
    plain = hmc.sample(8, warmup=40, chains=2, seed=9, progress=False)
    assert capfd.readouterr() == ("", "")
    seen = []
    equal(plain, hmc.sample(8, warmup=40, chains=2, seed=9, progress=seen.append))
    assert seen
    assert seen[-1]["done"] == 48
    assert seen[-1]["draws"] == 8
    equal(plain, hmc.sample(8, warmup=40, chains=2, seed=9, progress=True))
    equal(plain, hmc.sample(8, warmup=40, chains=2, seed=9, save_warmup=True))
    x = np.zeros((4, 3), dtype=np.float32)
    equal(plain, hmc.sample(8, warmup=40, chains=2, seed=9, predict_at=x))


def test_a_draw_does_not_depend_on_the_number_of_threads():
    from ribbit import _core

    hmc = HMC(posterior(), step_size=0.02, num_leapfrog_steps=10)
    before = _core.num_threads()
    try:
        runs = []
        for threads in (1, 2, 4):
            rb.set_num_threads(threads)
            runs.append(hmc.sample(10, chains=3, seed=1))
        equal(runs[0], runs[1])
        equal(runs[0], runs[2])
    finally:
        rb.set_num_threads(before)


def test_seed_and_chain_change_a_draw(hmc):
    a = hmc.sample(5, warmup=20, chains=2, seed=1).positions
    b = hmc.sample(5, warmup=20, chains=2, seed=2).positions
    assert not np.isclose(a, b).any()
    assert not np.isclose(a[0], a[1]).any()


def test_step_is_what_sample_does(any_target):
    hmc = HMC(any_target, **OPTIONS["fixed"])
    draws = hmc.sample(6, chains=2, seed=5, warmup=0)
    state = hmc.init(any_target.init(seed=5, chains=2), seed=5)
    for d in range(6):
        state, info = hmc.step(state)
        assert same(state.position, draws.positions[:, d])
        for name, value in info.items():
            assert same(value, draws.stats[name][:, d])
    equal(draws, hmc.sample(6, init=any_target.init(seed=5, chains=2), seed=5, warmup=0))


def test_no_warning_from_a_plain_run(hmc):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hmc.sample(5, warmup=20, chains=2)


def test_chains_that_only_diverge_are_a_warning():
    target = Gaussian(SDS)
    with pytest.warns(RibbitWarning, match=r"100.0% of the transitions of a chain diverged"):
        HMC(target, step_size=1e3, num_leapfrog_steps=3).sample(10, warmup=0, init=START)
    HMC(target, step_size=0.1, num_leapfrog_steps=3).sample(10, warmup=0, init=START)


def test_steps_of_auto_that_became_too_large_ask_for_a_longer_warmup():
    """A flat law in warmup, then a narrow one."""
    wide, narrow = HMC(Gaussian([1e3 * sd for sd in SDS])), HMC(Gaussian([1e-3 * sd for sd in SDS]))
    draws = wide.sample(1, warmup=100, init=START, seed=1)
    with pytest.warns(RibbitWarning, match=r"chain diverged.* longer warmup"):
        narrow.sample(10, resume=draws)
