"""Runs of HMC and NUTS: what decides a draw and what does not; thinning, cuts, threads, Ctrl-C."""

import copy
import os
import pickle
import signal
import threading
import time
import warnings

import array_api_strict as strict
import numpy as np
import pytest

import ribbit as rb
from ribbit import sample
from ribbit.chains import CallSize
from ribbit.errors import RibbitWarning
from ribbit.samplers import HMC, NUTS
from tests.support.targets import (
    OPTIONS,
    SDS,
    START,
    TARGETS,
    Gaussian,
    Line,
    equal,
    posterior,
    same,
    state_of,
)

# short runs whose bits are compared: whether they have converged does not matter
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")

TREES = {
    "fixed": {"step_size": 0.02, "max_tree_depth": 5},
    "defaults": {"max_tree_depth": 6},
    "adapted": {"inverse_mass_matrix": "adapt", "max_tree_depth": 6},
}
SAMPLERS = {f"HMC, {name}": (HMC, how) for name, how in OPTIONS.items()} | {
    f"NUTS, {name}": (NUTS, how) for name, how in TREES.items()
}
WHOLE = {"warmup": 40, "chains": 3, "seed": 11, "progress": False}


@pytest.fixture(params=TARGETS)
def target(request):
    return TARGETS[request.param]()


@pytest.fixture(params=SAMPLERS)
def sampler(request, target):
    kind, options = SAMPLERS[request.param]
    return kind(target, **options)


# --- what decides a draw -------------------------------------------------------------------------


def test_other_chains_do_not_matter(sampler):
    together = sampler.sample(8, warmup=30, chains=5, seed=9)
    for chains in ([3], [4, 2], [0, 1, 2]):
        equal(together, sampler.sample(8, warmup=30, chains=chains, seed=9), chains)
    assert not same(together.positions[0], together.positions[1])  # control


def test_thinning_and_the_length_of_calls_do_not_matter(sampler, monkeypatch):
    """A thinned run has one more statistic, the divergences between its draws."""
    every = sampler.sample(12, warmup=40, chains=2, seed=9, save_warmup=True)
    assert np.ptp(every.positions, axis=1).any(axis=1).all()  # chains that stand are always equal
    for seconds in (0.1, 0.0):  # of a call
        monkeypatch.setattr(sample, "_SECONDS", seconds)
        equal(every, sampler.sample(12, warmup=40, chains=2, seed=9))
        for thin in (2, 5):
            thinned = sampler.sample(12 // thin, warmup=40, chains=2, thin=thin, seed=9)
            equal(every, thinned, rows=slice(thin - 1, thin * (12 // thin), thin))


def test_progress_and_what_is_kept_do_not_matter(sampler, capfd):
    run, x = {"warmup": 40, "chains": 2, "seed": 9}, np.zeros((4, 3), dtype=np.float32)
    plain = sampler.sample(8, **run, progress=False)
    assert capfd.readouterr() == ("", "")
    seen = []
    equal(plain, sampler.sample(8, **run, progress=seen.append))
    assert seen
    assert seen[-1]["done"] == 48
    assert seen[-1]["draws"] == 8
    assert seen[-1]["acceptance_rate"]
    for more in ({"progress": True}, {"save_warmup": True}, {"predict_at": x}):
        equal(plain, sampler.sample(8, **run, **more))


def test_seed_and_chain_change_a_draw(sampler):
    a = sampler.sample(5, warmup=20, chains=2, seed=1).positions
    b = sampler.sample(5, warmup=20, chains=2, seed=2).positions
    assert not np.isclose(a, b).any()
    assert not np.isclose(a[0], a[1]).any()


def test_chains_of_a_loop_are_those_of_sample(sampler, target):
    draws = sampler.sample(6, chains=2, seed=5, warmup=30, save_warmup=True)
    start = target.init(seed=5, chains=2)
    equal(draws, sampler.sample(6, init=start, seed=5, warmup=30))
    chains = rb.Chains(sampler, start, seed=5, warmup=30)
    positions, stats = chains.advance(30)
    assert same(positions, draws.warmup_positions)
    for name, values in stats.items():
        assert same(values, draws.warmup_stats[name])
    for d in range(6):
        position, stats = chains.advance()
        assert same(position[:, 0], draws.positions[:, d])
        assert same(chains.position, draws.positions[:, d])
        for name, values in stats.items():
            assert same(values[:, 0], draws.stats[name][:, d])


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("kind", [HMC, NUTS])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_threads(kind, dtype):
    """1,100 rows make four partitions and a gradient of 3 MFLOP: threads divide every call."""
    x = rb.random.normal((1100, 8), seed=3).astype(dtype)
    y = np.sin(x.sum(axis=1, keepdims=True)) + 0.1 * x[:, :1]
    model = rb.mlp(8, (50,), 1, activation="silu")
    target = rb.Posterior(
        model, x, y, prior=rb.Normal(0.5), likelihood=rb.Gaussian(0.3), dtype=dtype
    )
    depth = {"max_tree_depth": 5} if kind is NUTS else {"num_leapfrog_steps": 6}
    runs = []
    for count in (1, 2, 4, 3):
        rb.set_num_threads(count)
        runs.append(kind(target, **depth).sample(4, warmup=30, chains=3, seed=4, progress=False))
    for run in runs[1:]:
        equal(runs[0], run)
    assert (np.diff(runs[0].positions, axis=1) != 0).any(axis=2).any(axis=1).all()  # control


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("chains", [1, 2, 5])
def test_any_number_of_threads_for_a_small_network(chains):
    """Any thread makes the next transition of any chain."""
    found = []
    for threads in (1, 2, 3, 6):
        rb.set_num_threads(threads)
        found.append(HMC(posterior()).sample(9, warmup=40, chains=chains, progress=False))
        equal(found[0], found[-1])


@pytest.mark.parametrize("mass", [None, "adapt"])
def test_arrays_of_another_library(mass):
    """Equal up to the rounding of sums."""
    runs = [
        NUTS(Line([1.0, 2.0, 0.3], xp, np.float32), inverse_mass_matrix=mass).sample(
            8, warmup=25, chains=3, seed=4, progress=False
        )
        for xp in (strict, np)
    ]
    assert type(runs[0].positions) is type(strict.asarray(0.0))
    positions = [np.asarray(run.positions) for run in runs]
    np.testing.assert_allclose(*positions, rtol=1e-2, atol=1e-2)
    assert same(runs[0].stats["tree_depth"], runs[1].stats["tree_depth"])


# --- cuts ----------------------------------------------------------------------------------------


def test_split_between_draws(sampler, target, tmp_path):
    whole, first = sampler.sample(9, **WHOLE), sampler.sample(4, **WHOLE)
    starts = [first, first.state]
    if isinstance(target, rb.Posterior):  # others cannot be read back
        first.save(tmp_path / "first")
        starts.append(rb.load(tmp_path / "first"))
        assert starts[-1].stats["n_steps"].dtype == np.int64
    for resume in starts:
        second = type(sampler)(target, **sampler._options).sample(5, resume=resume, progress=False)
        equal(whole, second, rows=slice(4, 9))


@pytest.mark.parametrize("cut", [1, 6, 20, 36, 39, 40])
def test_split_inside_warmup(cut):
    """Around the start (6) and end (36) of the mass window and the end of warmup (40)."""
    nuts = NUTS(Line([1.0, 2.0, 0.3]))  # adapts its mass
    whole = nuts.sample(6, **WHOLE, save_warmup=True)
    chains = rb.Chains(nuts, chains=3, seed=11, warmup=40)
    chains.advance(cut)
    rest = nuts.sample(6, resume=state_of(chains), save_warmup=True, progress=False)
    assert same(whole.positions, rest.positions)
    assert same(whole.warmup_positions[:, cut:], rest.warmup_positions)
    assert same(whole.state.inverse_mass_matrix, rest.state.inverse_mass_matrix)
    assert len(set(whole.state.step_size.tolist())) == 3  # adapted chain by chain


def test_hmc_and_nuts_start_where_the_other_ended(target):
    nuts, hmc = NUTS(target, step_size=0.02), HMC(target, step_size=0.02, num_leapfrog_steps=5)
    for one, other in ((nuts, hmc), (hmc, nuts)):
        draws = one.sample(3, chains=2, warmup=0)
        with pytest.raises(ValueError, match=r"expected a state of .* init=draws\.positions"):
            other.sample(3, resume=draws)
        after = other.sample(3, init=draws.state.position, warmup=0)
        assert after.stats["n_steps"].max() > 1


def test_a_state_that_does_not_fit():
    draws = NUTS(Line([1.0, 2.0, 0.3]), **TREES["fixed"]).sample(2, chains=2, warmup=0)
    with pytest.raises(ValueError, match="state of dim 2"):
        NUTS(Gaussian([1.0, 2.0]), **TREES["fixed"]).sample(2, resume=draws)
    with pytest.raises(TypeError, match="float32"):
        NUTS(Line([1.0, 2.0, 0.3], dtype=np.float32)).sample(2, resume=draws)
    with pytest.raises(ValueError, match="step_size"):
        NUTS(Line([1.0, 2.0, 0.3]), step_size=[0.1, 0.1, 0.1]).sample(2, resume=draws)
    nuts = NUTS(Line([1.0, 2.0, 0.3]))
    with pytest.raises(TypeError, match=r"must be bytes, got .*give bytes\(draws\.state\)"):
        rb.Chains.load(nuts, draws)
    with pytest.raises(TypeError, match=r"must be bytes, got .*give bytes\(state\)"):
        rb.Chains.load(nuts, draws.state)
    with pytest.raises(TypeError, match=r"expected a state of NUTS, got .*MicrocanonicalState"):
        rb.Chains.load(nuts, rb.Chains(rb.MCLMC(Line([1.0, 2.0, 0.3])), np.zeros(3)).save())
    with pytest.raises(TypeError, match=r"must be one such as HMC\(target\), got the class NUTS"):
        rb.Chains(NUTS)


def test_copies_of_chains_are_independent():
    x, prior = np.linspace(-1, 1, 20)[:, None], rb.Normal(1.0)
    target = rb.Posterior(rb.mlp(1, (3,), 1), x, x, prior=prior, likelihood=rb.Gaussian(0.3))
    chains = rb.Chains(NUTS(target), chains=2, warmup=20)
    chains.advance(22)
    copies = [chains.copy(), copy.copy(chains), copy.deepcopy(chains)]
    copies.append(pickle.loads(pickle.dumps(chains)))
    expected = chains.advance(3)[0]
    for one in copies:
        assert one.step == 22
        assert np.array_equal(one.advance(3)[0], expected)


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("name", TARGETS)
def test_ctrl_c_inside_a_tree(name):
    """The run ends within 100 ms, in the fastest of a few attempts, before its first step."""
    original = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        target, fastest = TARGETS[name](), np.inf
        nuts = NUTS(target, step_size=1e-6, max_tree_depth=20)  # a million leapfrog steps
        for _ in range(4):
            sent = []

            def send(sent=sent):
                sent.append(time.perf_counter())
                os.kill(os.getpid(), signal.SIGINT)

            timer = threading.Timer(0.3, send)
            timer.start()
            with pytest.warns(RibbitWarning, match=r"interrupted after 0 of"):
                draws = nuts.sample(3, warmup=0, chains=2, progress=False)
            fastest = min(fastest, time.perf_counter() - sent[0])
            timer.join()
            if fastest < 0.1:
                break
        assert fastest < 0.1
        assert draws.state.step == 0
        assert same(draws.state.position, target.init(seed=0, chains=2))
    finally:
        signal.signal(signal.SIGINT, original)


def test_ctrl_c_between_calls_and_resuming(monkeypatch):
    hmc, run = HMC(posterior()), {"warmup": 40, "chains": 2, "seed": 1, "progress": False}
    whole, put, left = hmc.sample(30, **run), sample.Run._put, [45]

    def interrupted(self, positions, stats, *, warming):
        left[0] -= 1
        if left[0] == 0:
            self.guard.flag.set()
        return put(self, positions, stats, warming=warming)

    monkeypatch.setattr(sample, "_SECONDS", 0.0)
    monkeypatch.setattr(sample.Run, "_put", interrupted)
    with pytest.warns(RibbitWarning, match="interrupted after"):
        part = hmc.sample(30, **run)
    assert 0 < len(part) < 30
    rest = hmc.sample(30 - len(part), resume=part, progress=False)
    assert same(np.concatenate([part.positions, rest.positions], axis=1), whole.positions)


# --- time ----------------------------------------------------------------------------------------


def test_calls_get_shorter_when_transitions_get_slower(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("ribbit.chains.time.perf_counter", lambda: now[0])
    size = CallSize()
    for _ in range(6):  # of 50 us each
        count = size.size(1000)
        now[0] += 5e-5 * count
        size.made(count)
    assert count == 1000
    size.size(3)  # the last of a phase; each takes 0.25 s from here on
    now[0] += 0.75
    size.made(3)
    assert size.size(1000) == 1


@pytest.mark.filterwarnings(
    "ignore:.*expected at least one draw within max_seconds:ribbit.errors.RibbitWarning"
)
def test_a_time_limit_holds_when_trajectories_get_long():
    """A transition takes a few ms; a call of hundreds, learned from brief ones, takes seconds."""
    sampler = HMC(posterior(), num_leapfrog_steps=1500)
    begin = time.perf_counter()
    draws = sampler.sample(30_000, warmup=200, chains=2, progress=False, max_seconds=0.25)
    # Other programs may use the machine.
    assert time.perf_counter() - begin < 4.0
    assert draws.state.step < 30_000


def test_the_forecast_sees_transitions_of_full_length(monkeypatch):
    """They follow the first half of a short warmup; earlier ones say nothing about the rest."""
    seen, inner = [], sample._Forecast.after

    def noted(self, step, before, stats, seconds):
        found = inner(self, step, before, stats, seconds)
        seen.append((step, self._count, found is None))
        return found

    monkeypatch.setattr(sample._Forecast, "after", noted)
    monkeypatch.setattr(sample, "_SECONDS", 0.0)
    HMC(posterior()).sample(20, warmup=130, chains=2, progress=False)
    assert seen[-1][2]
    assert [count for _, count, _ in seen] == [max(0, step - 65) for step, _, _ in seen]
    assert seen[-1][1] >= 10


# --- warnings ------------------------------------------------------------------------------------


def test_no_warning_from_a_plain_run(sampler):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler.sample(5, warmup=20, chains=2)


@pytest.mark.parametrize("seconds", [0.1, 0.0])
def test_a_display_is_told_of_all_divergences_of_thinned_draws(seconds, monkeypatch):
    monkeypatch.setattr(sample, "_SECONDS", seconds)  # of a call
    run = {"warmup": 0, "chains": 2, "seed": 1}
    hmc = HMC(posterior(), step_size=0.05, num_leapfrog_steps=3, divergence_threshold=0.05)
    shown = []
    hmc.sample(40, thin=3, progress=shown.append, **run)
    every = hmc.sample(120, progress=False, **run).stats["diverging"]
    assert shown[-1]["diverging"] == every.sum(axis=1).tolist()
    assert (shown[-1]["done"], shown[-1]["draws"]) == (120, 40)
    assert every.any()


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


def test_the_summary_speaks_of_the_largest_depth():
    target = Gaussian([1.0, 1.0])
    short = NUTS(target, step_size=0.01, max_tree_depth=3).sample(
        50, init=np.zeros((2, 2)), warmup=0, progress=False
    )
    text = short.summary().message
    assert "of the trajectories ended at" in text
    assert "max_tree_depth=3" in text
    assert "max_tree_depth=5" in text
    free = NUTS(target, step_size=0.5).sample(200, init=np.zeros((2, 2)), warmup=0, progress=False)
    assert "max_tree_depth" not in free.summary().text
