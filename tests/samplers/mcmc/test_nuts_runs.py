"""Runs of NUTS: threads, chains, cuts, files, Ctrl-C, other array libraries change no bit."""

import dataclasses
import os
import signal
import threading
import time

import array_api_strict as strict
import numpy as np
import pytest

import ribbit as rb
from ribbit import _core
from ribbit.errors import RibbitWarning
from ribbit.samplers import HMC, NUTS
from tests.support.targets import Gaussian, Line, equal, posterior, same

# short runs whose bits are compared: whether they have converged does not matter
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")

WHOLE = {"warmup": 40, "chains": 3, "seed": 11, "progress": False}
OPTIONS = {
    "fixed": {"step_size": 0.02, "max_tree_depth": 5},
    "defaults": {"max_tree_depth": 6},
    "adapted": {"inverse_mass_matrix": "adapt", "max_tree_depth": 6},
}
TARGETS = {"network": posterior, "python": lambda: Line([1.0, 2.0, 0.3], dtype=np.float32)}


@pytest.fixture(params=TARGETS)
def target(request):
    return TARGETS[request.param]()


@pytest.fixture
def _threads():
    before = _core.num_threads()
    yield
    rb.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_threads(dtype):
    """1,100 rows make four shards and a gradient of 3 MFLOP: every call is cut among threads."""
    x = rb.random.normal((1100, 8), seed=3).astype(dtype)
    y = np.sin(x.sum(axis=1, keepdims=True)) + 0.1 * x[:, :1]
    model = rb.mlp(8, (50,), 1, activation="silu")
    target = rb.Posterior(
        model, x, y, prior=rb.Normal(0.5), likelihood=rb.Gaussian(0.3), dtype=dtype
    )
    nuts = NUTS(target, max_tree_depth=5)
    runs = []
    for count in (1, 2, 4, 3):
        rb.set_num_threads(count)
        runs.append(nuts.sample(4, warmup=30, chains=3, seed=4, progress=False))
    for run in runs[1:]:
        equal(runs[0], run)
    assert (np.diff(runs[0].positions, axis=1) != 0).any(axis=2).any(axis=1).all()  # control


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_other_chains_do_not_matter(target, options):
    nuts = NUTS(target, **options)
    together = nuts.sample(6, **WHOLE)
    for chain in range(3):
        alone = nuts.sample(6, **WHOLE | {"chains": [chain]})
        equal(together, alone, chains=slice(chain, chain + 1))
    assert not same(together.positions[0], together.positions[1])  # control


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_split_between_draws(target, options, tmp_path):
    nuts = NUTS(target, **options)
    whole = nuts.sample(9, **WHOLE)
    first = nuts.sample(4, **WHOLE)
    starts = [first, first.state]
    if isinstance(target, rb.Posterior):  # others cannot be read back
        first.save(tmp_path / "first")
        starts.append(rb.load(tmp_path / "first"))
        assert starts[-1].stats["tree_depth"].dtype == np.int64
    for resume in starts:
        second = NUTS(target, **options).sample(5, resume=resume, progress=False)
        equal(whole, second, rows=slice(4, 9))


@pytest.mark.parametrize("cut", [1, 6, 20, 36, 39, 40])
def test_split_inside_warmup(cut):
    """Around the start (6) and end (36) of the mass window and the end of warmup (40)."""
    nuts = NUTS(Line([1.0, 2.0, 0.3]))  # adapts its mass
    whole = nuts.sample(6, **WHOLE, save_warmup=True)
    start = Line([1.0, 2.0, 0.3]).init(seed=11, chains=3)
    state, _ = nuts.step(nuts.init(start, seed=11, warmup=40), num_steps=cut)
    rest = nuts.sample(6, resume=state, save_warmup=True, progress=False)
    assert same(whole.positions, rest.positions)
    assert same(whole.warmup_positions[:, cut:], rest.warmup_positions)
    assert same(whole.state.inverse_mass, rest.state.inverse_mass)
    assert len(set(whole.state.step_size.tolist())) == 3  # adapted chain by chain


def test_thinning_and_predictions():
    nuts = NUTS(Line([1.0, 2.0, 0.3]), **OPTIONS["fixed"])
    plain = nuts.sample(12, **WHOLE)
    x = np.ones((2, 3))
    thinned = nuts.sample(4, **WHOLE, thin=3, predict_at=x)
    equal(plain, thinned, rows=slice(2, 12, 3))
    assert thinned.prediction.mean.shape == (2, 1)


def test_hmc_and_nuts_go_on_from_each_other():
    target = posterior()
    nuts, hmc = NUTS(target, step_size=0.02), HMC(target, step_size=0.02, num_leapfrog_steps=5)
    state, _ = nuts.step(nuts.init(target.init(seed=1, chains=2)), num_steps=3)
    after, info = hmc.step(state)
    assert info["n_steps"].max() > 1
    back, info = nuts.step(after)
    assert back.step == 5
    assert info["tree_depth"].max() > 1


def test_a_state_that_does_not_fit():
    draws = NUTS(Line([1.0, 2.0, 0.3]), **OPTIONS["fixed"]).sample(2, chains=2, warmup=0)
    with pytest.raises(ValueError, match="state of dim 2"):
        NUTS(Gaussian([1.0, 2.0]), **OPTIONS["fixed"]).sample(2, resume=draws)
    with pytest.raises(TypeError, match="float32"):
        NUTS(Line([1.0, 2.0, 0.3], dtype=np.float32)).sample(2, resume=draws)
    with pytest.raises(ValueError, match="step_size"):
        NUTS(Line([1.0, 2.0, 0.3]), step_size=[0.1, 0.1, 0.1]).sample(2, resume=draws)
    with pytest.raises(TypeError, match="expected a State"):
        NUTS(Line([1.0, 2.0, 0.3])).step(draws)
    lost = dataclasses.replace(draws.state, position=np.full((2, 3), 1e200))
    with pytest.raises(ValueError, match="finite log density"), np.errstate(over="ignore"):
        NUTS(Line([1.0, 2.0, 0.3])).step(lost)


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("name", TARGETS)
def test_ctrl_c_inside_a_tree(name):
    """Within 100 ms, the fastest of a few attempts; the step is made again from the state."""
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


def test_exceptions_of_the_target_come_through():
    error = ZeroDivisionError("mine")

    class Raises(Gaussian):
        def value_and_grad(self, theta, rows=None):
            if self.calls > 20:
                raise error
            return super().value_and_grad(theta)

    with pytest.raises(ZeroDivisionError) as caught:
        NUTS(Raises([1.0, 2.0]), step_size=0.1).sample(100, init=np.zeros(2), warmup=0)
    assert caught.value is error


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
