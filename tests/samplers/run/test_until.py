"""sample(until=...): where it stops, that its draws are those of any run, and what it says."""

import dataclasses
import math
import time

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import ConvergenceWarning
from ribbit.samplers import HMC
from ribbit.sinks import Memory
from ribbit.until import ConvergenceMonitor
from tests.support.targets import Gaussian, Line, equal, same, state_of

X = np.linspace(-1.0, 1.0, 40)[:, None]
RULE = rb.Converged(rhat=1.05, ess=150)
SDS = [1.0, 2.0, 0.3]


def network(**options):
    return rb.Posterior(
        rb.mlp(1, (3,), 1),
        X,
        np.sin(2 * X[:, 0]),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.5),
        **options,
    )


def line():
    return rb.Posterior(
        rb.mlp(1, (), 1), X, 2 * X[:, 0], prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    )


SAMPLERS = {
    "HMC": lambda t: rb.HMC(t, step_size=0.05, num_leapfrog_steps=7),
    "NUTS": lambda t: rb.NUTS(t, step_size=0.1, max_tree_depth=4),
    "MCLMC": lambda t: rb.MCLMC(t, step_size=0.1, decoherence_length=0.5),
    "SGLD": lambda t: rb.SGLD(t, step_size=2e-3, batch_size=20),
    "SGHMC": lambda t: rb.SGHMC(t, step_size=1e-3, batch_size=20),
    "BAOAB": lambda t: rb.BAOAB(t, step_size=0.05, batch_size=20),
}
THIN = {"SGLD": 20, "SGHMC": 20, "MCLMC": 10, "BAOAB": 10}


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_stops_with_the_first_draws_of_a_longer_run(name):
    sampler = SAMPLERS[name](line())
    options = {"warmup": 50, "thin": THIN.get(name), "seed": 3, "progress": False}
    draws = sampler.sample(until=RULE, max_draws=8_000, **options)
    stopped = draws.settings["stopped"]
    assert stopped["reason"] == "converged"
    assert stopped["draws"] == len(draws) < 8_000
    assert stopped["rhat"] <= 1.05
    assert stopped["ess"] >= 150
    assert draws.complete
    assert draws.summary().converged
    longer = sampler.sample(len(draws) + 3, **options)
    equal(longer, draws, rows=slice(0, len(draws)))
    equal(longer, sampler.sample(3, resume=draws, **options), rows=slice(len(draws), None))


def slowly(draws, rule, first, most):
    """The obvious way: all of the draws at every look, by the public diagnostics."""
    count = first
    while True:
        part = draws.positions[:, :count]
        chains, _, dim = part.shape
        outputs = draws.predictive.predictive(part.reshape(-1, dim), rule.at).mean
        outputs = np.asarray(outputs, np.float64).reshape(chains, count, -1)
        rhat, ess = rb.diagnostics.rhat(outputs).max(), rb.diagnostics.ess(outputs).min()
        if (rhat <= rule.rhat and ess >= rule.ess) or count == most:
            return count, rhat, ess
        count = min(most, count + math.ceil(count / 4))


@pytest.mark.parametrize("rhat", [1.2, 1.03, 1.01])
def test_it_stops_where_the_obvious_way_does(rhat):
    """At 30 rows, all of which are judged; a limit above the summary's is the summary's."""
    rule = rb.Converged(rhat=rhat, ess=200, at=X[:30])
    hmc = HMC(network(), step_size=0.02, num_leapfrog_steps=20)
    options = {"warmup": 100, "seed": 1, "progress": False}
    draws = hmc.sample(30, until=rule, max_draws=6_000, **options)
    whole = hmc.sample(len(draws), **options)
    limit = rb.Converged(rhat=min(rhat, 1.05), ess=200, at=X[:30])
    count, worst, least = slowly(whole, limit, 30, 6_000)
    assert len(draws) == count
    assert draws.settings["stopped"]["reason"] == "converged"
    assert np.isclose(draws.settings["stopped"]["rhat"], worst, rtol=1e-6)
    assert np.isclose(draws.settings["stopped"]["ess"], least, rtol=1e-3)


class TwoModes(Gaussian):
    """Two normals far apart along the first axis; nothing leads from one to the other."""

    def value_and_grad(self, theta, rows=None):
        centre = np.zeros_like(theta)
        centre[:, 0] = np.where(theta[:, 0] > 0.0, 50.0, -50.0)
        return super().value_and_grad(theta - centre)


APART = np.array([[50.0, 0, 0], [-50.0, 0, 0], [50.0, 0, 0], [-50.0, 0, 0]])


def test_modes_that_do_not_mix_are_never_called_converged():
    """The control: the same density with one start converges."""
    hmc = HMC(TwoModes([1.0, 1.0, 1.0]), step_size=0.3, num_leapfrog_steps=5)
    with pytest.warns(ConvergenceWarning):
        draws = hmc.sample(until=RULE, max_draws=700, warmup=0, init=APART, progress=False)
    stopped = draws.settings["stopped"]
    assert (stopped["reason"], len(draws)) == ("max_draws", 700)
    assert stopped["rhat"] > 2.0
    assert draws.complete
    assert not draws.summary().converged
    assert "max_draws after 700 draws" in draws.summary().text
    one = hmc.sample(until=RULE, warmup=0, init=np.abs(APART), progress=False)
    assert one.settings["stopped"]["reason"] == "converged"


def test_what_it_says_when_the_limit_alone_is_missed():
    with pytest.warns(ConvergenceWarning, match=r"until= was not met after 200 draws"):
        draws = HMC(line(), step_size=0.05, num_leapfrog_steps=7).sample(
            until=rb.Converged(rhat=1.05, ess=1e6), max_draws=200, progress=False
        )
    assert draws.settings["stopped"]["reason"] == "max_draws"
    assert draws.summary().converged  # by the summary's own limit; a row says what was missed
    assert "aims at R-hat 1.05, 1e+06 effective draws" in draws.summary().text


def test_the_number_of_draws_hangs_on_no_clock_nor_threads():
    found = set()
    hmc = HMC(network(), step_size=0.02, num_leapfrog_steps=20)
    for threads in (1, 2):
        rb.set_num_threads(threads)
        for progress in (False, lambda s: time.sleep(0.01)):
            draws = hmc.sample(until=RULE, max_draws=4_000, warmup=50, progress=progress)
            found.add((len(draws), draws.positions.tobytes()))
    assert len(found) == 1


class Rounds(Line):
    """Predictions that show with how many others each of them was computed."""

    def predictive(self, theta, x):
        terms = super().predictive(theta, x)
        return dataclasses.replace(terms, mean=terms.mean + 1e-9 * len(theta))


@pytest.mark.filterwarnings("ignore::ribbit.errors.RibbitWarning")  # of calls without time
@pytest.mark.parametrize("target", [network, lambda: Rounds(SDS)], ids=["core", "Python"])
@pytest.mark.parametrize("batch", [None, 50], ids=["whole batches", "50 draws"])
def test_the_length_of_calls_changes_nothing(target, batch, monkeypatch, tmp_path):
    """Neither the draws, nor what is monitored, nor a run that stops and resumes in between."""
    if batch is not None:
        monkeypatch.setattr("ribbit.until._BATCH", batch * 4 * 8 * 3)
    core = target is network
    steps = {"step_size": 0.02, "num_leapfrog_steps": 20} if core else {"step_size": 0.3}
    hmc = HMC(target(), **{"num_leapfrog_steps": 5, **steps})
    rule = rb.Converged(rhat=1.05, ess=150, at=None if core else np.eye(3))
    options = {"until": rule, "max_draws": 4_000, "warmup": 20, "seed": 2, "progress": False}
    found = set()
    for seconds in (0.0, 0.001, 0.01, 0.1):
        monkeypatch.setattr("ribbit.sample._SECONDS", seconds)
        draws = hmc.sample(**options)
        assert draws.settings["stopped"]["reason"] == "converged"
        found.add((len(draws), draws.positions.tobytes(), draws.monitored.tobytes()))
    for _ in range(3):  # a call that ends by the clock has a check of its own
        hmc.sample(**options, store=tmp_path / "run", max_seconds=0.01)
    draws = hmc.sample(**options, store=tmp_path / "run")
    found.add((len(draws), np.array(draws.positions).tobytes(), draws.monitored.tobytes()))
    assert len(found) == 1


def test_resume_thin_and_states():
    hmc = HMC(network(), step_size=0.02, num_leapfrog_steps=20)
    first = hmc.sample(9, warmup=50, thin=2, seed=2, progress=False, save_warmup=True)
    rest = hmc.sample(until=RULE, max_draws=4_000, thin=2, resume=first, progress=False)
    count = len(rest)
    whole = hmc.sample(9 + count, warmup=50, thin=2, seed=2, progress=False)
    equal(whole, rest, rows=slice(9, None))
    state = state_of(rb.Chains(hmc, np.zeros((4, 10)), warmup=9))
    in_warmup = hmc.sample(until=RULE, max_draws=4_000, thin=2, resume=state)
    assert in_warmup.settings["stopped"]["reason"] == "converged"


@pytest.mark.parametrize("at", [None, X[::7]])
def test_without_draws(at):
    """Predictions are gathered while sampling, and judged; the same run as with draws."""
    hmc = HMC(network(), step_size=0.02, num_leapfrog_steps=20)
    rule = rb.Converged(rhat=1.05, ess=150, at=at)
    options = {"warmup": 50, "predict_at": X, "progress": False, "max_draws": 4_000}
    bare = hmc.sample(until=rule, save_draws=False, **options)
    kept = hmc.sample(until=rule, **options)
    assert bare.settings["stopped"] == kept.settings["stopped"]
    assert bare.settings["stopped"]["reason"] == "converged"
    assert bare.positions.shape == (4, 0, 10)
    assert bare.summary().converged
    assert kept.summary().converged
    assert same(bare.prediction.mean, kept.prediction.mean)


def test_a_target_of_ones_own_with_predictions():
    hmc = HMC(Line([1.0, 2.0, 0.3]), step_size=0.3, num_leapfrog_steps=5)
    rule = rb.Converged(rhat=1.05, ess=150, at=np.eye(3))
    draws = hmc.sample(until=rule, chains=3, progress=False)
    assert draws.monitored.shape == (3, len(draws), 6)  # predictions and weights
    assert draws.settings["until"] == {"rhat": 1.05, "ess": 150.0}
    assert draws.settings["monitored"]["predictions"] == 3
    assert draws.summary().converged
    assert draws.summary(np.eye(3)).converged


def test_units_of_the_user():
    """The rows that a posterior shows are what it predicts at, in the units they came in."""
    raw = 1e3 + 50.0 * X
    target = rb.Posterior(
        rb.mlp(1, (3,), 1),
        raw,
        np.sin(X[:, 0]),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(),
        standardize=True,
    )
    assert np.allclose(target.inputs(10), raw[::4], rtol=1e-6)
    assert network().inputs(7).shape == (7, 1)
    assert np.array_equal(network().inputs(100), X.astype(np.float32))


def test_saved(tmp_path):
    draws = HMC(network(), step_size=0.02, num_leapfrog_steps=20).sample(
        until=RULE, max_draws=4_000, progress=False
    )
    draws.save(tmp_path / "a")
    back = rb.load(tmp_path / "a")
    assert same(back.monitored, draws.monitored)
    assert back.summary().text == draws.summary().text


def test_time_is_over():
    """With a last look, so that the result says how far it is."""
    hmc = HMC(network(), step_size=0.02, num_leapfrog_steps=20)
    with pytest.warns(ConvergenceWarning, match=r"\(max_seconds\)"):
        draws = hmc.sample(
            until=rb.Converged(rhat=1.001, ess=1e9), warmup=0, max_seconds=0.3, progress=False
        )
    stopped = draws.settings["stopped"]
    assert stopped["reason"] == "max_seconds"
    assert stopped["draws"] == len(draws) > 4
    assert stopped["ess"] > 0
    assert not draws.complete


def test_ctrl_c_while_it_looks():
    """Predictions of the user's take long: the draws come back, and go on with the same bits."""

    class Slow(Line):
        def predictive(self, theta, x):
            if len(theta) > 4:
                raise KeyboardInterrupt
            return super().predictive(theta, x)

    hmc = HMC(Slow([1.0, 1.0, 1.0]), step_size=0.3, num_leapfrog_steps=5)
    rule = rb.Converged(rhat=1.05, ess=150, at=np.eye(3))
    with pytest.raises(KeyboardInterrupt) as caught:  # the callable's own
        hmc.sample(until=rule, warmup=0, progress=False)
    draws = caught.value.draws
    assert len(draws) == 38  # 150 effective draws of four chains
    assert draws.settings["stopped"]["reason"] == "an exception"


def test_the_display_knows_what_may_come():
    seen = []
    HMC(network(), step_size=0.02, num_leapfrog_steps=20).sample(
        until=RULE, warmup=10, max_draws=4_000, progress=seen.append
    )
    assert seen[-1]["done"] == seen[-1]["total"] < 4_010


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({}, TypeError, "expected num_draws, or until"),
        ({"max_draws": 5}, ValueError, "expected until= together with max_draws"),
        ({"until": 1.01}, TypeError, "expected until as rb.Converged"),
        ({"until": RULE, "num_draws": 9, "max_draws": 5}, ValueError, "num_draws <= max_draws = 5"),
        ({"until": RULE, "max_draws": 0}, ValueError, "max_draws"),
        ({"until": rb.Converged(at=np.ones((2, 7)))}, ValueError, "x"),
    ],
)
def test_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        HMC(line(), step_size=0.1, num_leapfrog_steps=2).sample(**arguments)


def test_refused_where_there_is_nothing_to_judge():
    with pytest.raises(TypeError, match="target with predictions for Converged"):
        HMC(Gaussian([1.0]), step_size=0.1, num_leapfrog_steps=2).sample(
            until=rb.Converged(at=X), init=np.zeros((2, 1))
        )
    with pytest.raises(ValueError, match="until= cannot be met: no predictions"):
        rb.SGLD(Line([1.0]), step_size=0.1, batch_size=None).sample(until=RULE)
    with pytest.raises(TypeError, match="until"):
        rb.BBB(line()).fit(1, until=RULE)


@pytest.mark.parametrize("value", [1.0, 0.5, math.nan, "x", None, [1.1]])
def test_limits(value):
    with pytest.raises((TypeError, ValueError), match=r"^\[Converged\] expected rhat"):
        rb.Converged(rhat=value)


def test_no_buffer_of_all_draws():
    """Blocks hold what a buffer made at once would, and little more."""
    start = np.zeros((2, 3))
    statistics = {"lp": "float64"}
    rng = np.random.default_rng(0)
    for asked in ((7, 100, 101, 1000), (1000,), (1, 2, 3)):
        whole = Memory(start, 1000, statistics, positions=True)
        grown = Memory(start, 10**9, statistics, positions=True, grows=True)
        for i in range(1000):
            position, info = rng.normal(size=(2, 1, 3)), {"lp": rng.normal(size=(2, 1))}
            whole.append(position, info)
            grown.append(position, info)
            held = sum(positions.nbytes for positions in grown._blocks)
            assert held <= 2 * 3 * 8 * max(64 + 64 + 16, 1.25 * (i + 1) + 64)
            if i + 1 in asked:
                assert same(grown.positions(i + 1), whole.positions(i + 1))
            if i + 1 in asked or i in (5, 500):
                assert same(grown.stats(i + 1)["lp"], whole.stats(i + 1)["lp"])


def test_memory_that_is_not_there_ends_the_run_with_its_draws(monkeypatch):
    def block(self, size, make=Memory._block):
        if size < self.count >= 128:  # another block, not one of all
            raise MemoryError("no more")
        return make(self, size)

    monkeypatch.setattr(Memory, "_block", block)
    hmc = HMC(Line([1.0, 2.0]), step_size=0.5, num_leapfrog_steps=4)
    rule = rb.Converged(rhat=1.001, ess=1e5)
    with pytest.raises(MemoryError) as caught:
        hmc.sample(until=rule, predict_at=np.eye(2), warmup=0, chains=2, progress=False)
    draws = caught.value.draws
    assert len(draws) == draws.state.step == 128
    assert draws.prediction.num_draws == 2 * 128
    equal(hmc.sample(128, warmup=0, chains=2, progress=False), draws)


def test_max_seconds_counts_from_the_call():
    """A start that takes longer leaves one step; the end has time for what it needs."""

    class Late(Gaussian):
        def init(self, seed=0, chains=None):
            time.sleep(0.3)
            return np.zeros((chains, self.dim))

    hmc = HMC(Late([1.0]), step_size=0.1, num_leapfrog_steps=2)
    draws = hmc.sample(10**6, warmup=0, max_seconds=0.2, progress=False)
    assert (len(draws), draws.complete) == (1, False)
    assert draws.settings["stopped"] == {"reason": "max_seconds", "draws": 1}
    assert draws.seconds >= 0.3


def test_time_is_left_for_the_end(tmp_path, monkeypatch):
    """The loop ends earlier by the time of a last checkpoint."""
    monkeypatch.setattr("ribbit.store.Folder.reserve", lambda self: 1e6)
    hmc = HMC(Gaussian([1.0]), step_size=0.1, num_leapfrog_steps=2)
    options = {"warmup": 0, "max_seconds": 1e5, "progress": False, "store": tmp_path}
    assert len(hmc.sample(5, init=np.zeros((2, 1)), **options)) == 1


@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@pytest.mark.parametrize("rule", [RULE, rb.Converged(rhat=1.0001, ess=150)], ids=["met", "at most"])
def test_a_look_that_was_cut_short_is_made_up_for(rule, tmp_path, monkeypatch):
    """However the last look ends, the same line gives the same draws, and all that it looked at."""

    def run(store):
        return rb.HMC(network(), step_size=0.05, num_leapfrog_steps=7).sample(
            until=rule, max_draws=2_000, warmup=50, chains=2, seed=3, progress=False, store=store
        )

    looks, predict = [], ConvergenceMonitor.predict

    def counted(self, guard, **options):
        if self._waiting:
            looks.append(None)
        if len(looks) == last:
            raise KeyboardInterrupt  # as Ctrl-C does
        predict(self, guard, **options)

    monkeypatch.setattr(ConvergenceMonitor, "predict", counted)
    last = None
    alone = run(None)
    last = len(looks)
    assert last > 1
    looks.clear()
    with pytest.raises(KeyboardInterrupt) as caught:
        run(tmp_path / "run")
    assert len(caught.value.draws) == len(alone)  # all draws are there, and not all was looked at
    assert caught.value.draws.monitored.shape[1] == len(alone)  # by the last checkpoint
    assert not caught.value.draws.complete
    again = run(tmp_path / "run")
    assert again.settings["stopped"] == alone.settings["stopped"]
    assert again.complete
    assert again.monitored.tobytes() == alone.monitored.tobytes()
    assert np.asarray(again.positions).tobytes() == alone.positions.tobytes()
