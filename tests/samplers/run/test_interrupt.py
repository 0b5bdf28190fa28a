"""Ctrl-C: within 100 ms, with what there is, and the old handler back."""

import contextlib
import hashlib
import os
import signal
import threading
import time

import numpy as np
import pytest

import ribbit as rb
from ribbit.density import Density
from ribbit.errors import RibbitWarning
from ribbit.sample import Run
from ribbit.samplers import HMC, MCLMC
from tests.support.targets import OPTIONS, Gaussian, Line, equal, posterior, same, state_of

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")

START = np.zeros((2, 3))


@pytest.fixture(autouse=True)
def handler():
    """Every test leaves the handler that it found: Python's own.

    A process started in the background by a shell ignores SIGINT, and so would the runs.
    """
    original = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    left = signal.signal(signal.SIGINT, original)
    assert left is signal.default_int_handler


class CtrlC:
    """Sends SIGINT a while after the block has taken it over, measures how long it goes on."""

    def __init__(self, delay=0.3):
        self.delay, self.sent, self._over = delay, None, threading.Event()
        self._before = signal.getsignal(signal.SIGINT)
        self._thread = threading.Thread(target=self._send)

    def _send(self):
        while signal.getsignal(signal.SIGINT) is self._before:
            if self._over.wait(0.001):
                return
        if not self._over.wait(self.delay):
            self.sent = time.perf_counter()
            os.kill(os.getpid(), signal.SIGINT)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self.sent if self.sent else None
        self._over.set()
        self._thread.join()


# as many draws as there is time for, whose bits are looked at and not where they are
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")


def interrupted(run, attempts=4):
    """Draws of an interrupted run; the fastest of a few attempts counts, machines are shared."""
    fastest = np.inf
    for _ in range(attempts):
        with pytest.warns(RibbitWarning, match=r"interrupted after \d+ of"), CtrlC() as press:
            draws = run()
        assert not draws.complete
        assert "INCOMPLETE" in repr(draws)
        fastest = min(fastest, press.seconds)
        if fastest < 0.1:
            return draws
    raise AssertionError(f"took {fastest:.3f} s")


def test_between_short_trajectories():
    hmc = HMC(posterior(), **OPTIONS["fixed"])
    draws = interrupted(lambda: hmc.sample(10**6, chains=2, progress=False, warmup=0))
    count = len(draws)
    assert count > 0
    assert draws.positions.shape == (2, count, draws.positions.shape[2])
    assert draws.state.step == count
    assert same(draws.state.position, draws.positions[:, -1])
    again = hmc.sample(count + 2, chains=2, warmup=0)  # the interruption changed no draw
    equal(again, draws, rows=slice(0, count))
    equal(again, hmc.sample(2, resume=draws), rows=slice(count, None))


def test_inside_a_native_trajectory_of_a_million_steps():
    options = {
        "num_leapfrog_steps": 10**6,
        "max_num_leapfrog_steps": 10**6,
        "randomize_length": False,
    }
    hmc = HMC(posterior(), step_size=1e-6, **options)
    draws = interrupted(lambda: hmc.sample(10, chains=2, progress=False))
    assert len(draws) == 0
    assert draws.state.step == 0


def test_inside_native_steps_of_mclmc():
    # one draw every million steps: the call that is cut short is made again
    mclmc = MCLMC(posterior(), step_size=0.01, decoherence_length=1.0)
    draws = interrupted(lambda: mclmc.sample(10, chains=2, thin=10**6, progress=False, warmup=0))
    step = draws.state.step
    assert 0 < step < 10**6
    again = mclmc.sample(1, chains=2, thin=step, progress=False, warmup=0)
    assert same(again.state.position, draws.state.position)


def test_between_python_steps_of_mclmc():
    mclmc = MCLMC(Gaussian([1.0, 1.0, 1.0]))
    draws = interrupted(lambda: mclmc.sample(1, init=START, progress=False, warmup=10**6, chains=2))
    step = draws.state.step
    assert 0 < step < 10**6
    chains = rb.Chains(mclmc, START, warmup=10**6)
    chains.advance(step)
    again = chains._chains.state
    assert same(again.position, draws.state.position)
    assert same(again.step_size, draws.state.step_size)


def test_inside_a_python_callable():
    class Slow(Gaussian):
        def value_and_grad(self, theta, rows=None):
            for _ in range(1000 if self.calls > 50 else 1):
                time.sleep(0.01)
            return super().value_and_grad(theta)

    hmc = HMC(Slow([1.0, 1.0, 1.0]), step_size=0.1, num_leapfrog_steps=2)
    draws = interrupted(lambda: hmc.sample(1000, init=START, progress=False, warmup=0))
    assert draws.state.step == len(draws) < 1000


def test_inside_a_python_trajectory_of_quick_calls():
    hmc = HMC(
        Gaussian([1.0, 1.0, 1.0]), step_size=1e-6, num_leapfrog_steps=90_000, randomize_length=False
    )
    draws = interrupted(lambda: hmc.sample(100, init=START, progress=False))
    assert len(draws) < 100


def test_inside_predictions():
    class Slow(Line):
        def predictive(self, theta, x):
            time.sleep(5.0 if self.calls > 1 else 0.0)
            return super().predictive(theta, x)

    hmc = HMC(Slow([1.0, 1.0, 1.0]), step_size=0.1, num_leapfrog_steps=2)
    draws = interrupted(
        lambda: hmc.sample(5, chains=2, predict_at=np.ones((2, 3)), progress=False, warmup=0)
    )
    assert len(draws) == 0
    assert draws.state.step == 0
    with pytest.raises(ValueError, match="at least one draw"):
        _ = draws.prediction.mean


def test_in_warmup_then_resume():
    hmc = HMC(Line([1.0, 2.0, 0.3]), step_size="auto", num_leapfrog_steps=5)
    draws = interrupted(lambda: hmc.sample(3, warmup=20_000, chains=2, seed=1, progress=False))
    step = draws.state.step
    assert 0 < step < 20_000
    assert len(draws) == 0
    chains = rb.Chains(hmc, chains=2, seed=1, warmup=20_000)
    chains.advance(step)
    assert same(chains.position, draws.state.position)
    assert same(state_of(chains).step_size, draws.state.step_size)


def test_a_callable_that_swallows_keyboard_interrupt():
    class Swallows(Gaussian):
        def value_and_grad(self, theta, rows=None):
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(0.002)
            return super().value_and_grad(theta)

    hmc = HMC(Swallows([1.0, 1.0, 1.0]), step_size=0.1, num_leapfrog_steps=50_000)
    interrupted(lambda: hmc.sample(1000, init=START, progress=False))


def test_before_there_is_anything():
    class Slow(Gaussian):
        def value_and_grad(self, theta, rows=None):
            time.sleep(5.0)
            return super().value_and_grad(theta)

    hmc = HMC(Slow([1.0, 1.0, 1.0]), step_size=0.1, num_leapfrog_steps=2)
    with CtrlC(0.1), pytest.raises(KeyboardInterrupt):
        hmc.sample(5, init=START)


def test_just_before_code_that_does_not_poll(monkeypatch):
    """Ctrl-C between two steps of the preparations does not wait for a gradient of all rows."""
    calls = []

    class Counts(Gaussian):
        def value_and_grad(self, theta, rows=None):
            calls.append(1)
            return super().value_and_grad(theta)

    def pressed(self, *given, make=HMC._chains, **named):
        os.kill(os.getpid(), signal.SIGINT)
        return make(self, *given, **named)

    monkeypatch.setattr(HMC, "_chains", pressed)
    hmc = HMC(Counts([1.0, 1.0, 1.0]), step_size=0.1, num_leapfrog_steps=2)
    before = len(calls)
    with pytest.raises(KeyboardInterrupt):
        hmc.sample(5, init=START)
    assert len(calls) == before


FINGERPRINTS = {
    "sample": lambda target: rb.SGLD(target, step_size=1e-9).sample(1, warmup=0, chains=1),
    "ensemble": lambda target: rb.EnsembleStart(max_steps=1).fit(target, chains=2),
}


@pytest.mark.filterwarnings("ignore::ribbit.errors.RibbitWarning")
@pytest.mark.parametrize("served", [True, False], ids=["served", "control"])
@pytest.mark.parametrize("name", FINGERPRINTS)
def test_while_a_fingerprint_is_taken(name, served, monkeypatch):
    """Ctrl-C comes in block 3, and at most one more is read: each takes a millisecond or less.

    The control reads the fingerprint as bookkeeping, which is not cut in half.
    """
    blocks, hashed = [], hashlib.blake2b

    class Pressed:
        def __init__(self, **options):
            self._hash = hashed(**options)
            self.hexdigest = self._hash.hexdigest

        def update(self, data):
            if isinstance(data, memoryview) and data.nbytes > 10**5:
                blocks.append(data.nbytes)
                if len(blocks) == 3:
                    os.kill(os.getpid(), signal.SIGINT)
            self._hash.update(data)

    x = np.sin(np.arange(2**20, dtype=np.float32)).reshape(-1, 8)
    target = rb.Posterior(
        rb.mlp(8, (), 1), x, x[:, 0], prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    )
    monkeypatch.setattr(hashlib, "blake2b", Pressed)
    if not served:
        monkeypatch.setattr(Density, "identify", lambda self, guard: self.fingerprint)
    with contextlib.suppress(KeyboardInterrupt):
        FINGERPRINTS[name](target)
    assert (len(blocks) <= 4) == served
    assert max(blocks) <= 2**20


def test_handler_comes_back_after_an_exception():
    class Raises(Gaussian):
        def value_and_grad(self, theta, rows=None):
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
            if self.calls > 3:
                raise RuntimeError("mine")
            return super().value_and_grad(theta)

    with pytest.raises(RuntimeError, match="mine"):
        HMC(Raises([1.0, 1.0, 1.0]), num_leapfrog_steps=2).sample(5, init=START)


def test_a_keyboard_interrupt_of_the_callable_itself_comes_through():
    class Raises(Gaussian):
        def value_and_grad(self, theta, rows=None):
            if self.calls > 3:
                raise KeyboardInterrupt("mine")
            return super().value_and_grad(theta)

    with pytest.raises(KeyboardInterrupt, match="mine"):
        HMC(Raises([1.0, 1.0, 1.0]), num_leapfrog_steps=2).sample(5, init=START)


def test_own_and_ignored_handlers():
    hmc = HMC(posterior(), **OPTIONS["fixed"])
    before, calls = signal.getsignal(signal.SIGINT), []
    try:
        own = signal.signal(signal.SIGINT, lambda *_: calls.append(1)) and signal.getsignal(
            signal.SIGINT
        )
        interrupted(lambda: hmc.sample(10**6, chains=1, progress=False))
        assert signal.getsignal(signal.SIGINT) is own
        assert calls == []
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with CtrlC(0.05):
            assert hmc.sample(10**6, chains=1, progress=False, max_seconds=0.3).state.step > 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_install_nothing():
    hmc = HMC(posterior(), **OPTIONS["fixed"])
    seen, before = [], signal.getsignal(signal.SIGINT)

    def work():
        seen.append(
            hmc.sample(
                20, chains=2, progress=lambda _: seen.append(signal.getsignal(signal.SIGINT))
            )
        )

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert all(item is before for item in seen[:-1])
    assert seen[:-1]
    equal(hmc.sample(20, chains=2), seen[-1])


def test_a_run_inside_a_run():
    inner = HMC(posterior(), **OPTIONS["fixed"])

    class Nested(Gaussian):
        def value_and_grad(self, theta, rows=None):
            inner.sample(1, warmup=0, chains=1, progress=False)
            return super().value_and_grad(theta)

    hmc = HMC(Nested([1.0, 1.0, 1.0]), step_size=0.1, num_leapfrog_steps=1)
    assert hmc.sample(3, init=START).complete


WIDE = np.random.default_rng(0).normal(size=(4000, 30))


def wide(*, dropout=False):
    """A target whose epochs take long, so that Ctrl-C falls inside a native call."""
    layers = [rb.Dense(200), rb.Activation("silu"), rb.Dense(1)]
    if dropout:
        layers.insert(2, rb.Dropout(0.1))
    return rb.Posterior(
        rb.Model(layers, input_shape=(30,)),
        WIDE,
        np.sin(WIDE[:, 0]),
        prior=rb.Normal(0.5),
        likelihood=rb.Gaussian(0.3),
    )


class Work:
    """Processor time of the block since Ctrl-C, which no load of the machine lengthens."""

    def __init__(self, run, delay):
        self.sent = None
        timer = threading.Timer(delay, self._send)
        timer.start()
        try:
            self.result = run()
        except KeyboardInterrupt:
            self.result = None
        end = time.process_time()
        timer.join()
        self.seconds = end - self.sent

    def _send(self):
        self.sent = time.process_time()
        os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def images():
    """A gradient of a panel of 32 rows takes a tenth of a second, of all rows some seconds."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(512, 32, 32, 3)).astype(np.float32)
    return rb.Posterior(
        rb.resnet20_frn(),
        x,
        rng.integers(10, size=512),
        prior=rb.Normal(0.1),
        likelihood=rb.Categorical(),
    )


LARGE = {
    "HMC": lambda t: rb.HMC(t, step_size=1e-5, num_leapfrog_steps=20).sample(
        100, warmup=0, chains=2, progress=False
    ),
    "SGLD": lambda t: rb.SGLD(t, step_size=1e-7, batch_size=256).sample(
        100, warmup=0, chains=2, progress=False
    ),
    "local": lambda t: rb.BBB(t, batch_size=256, estimator="local").fit(100, progress=False),
    "flipout": lambda t: rb.BBB(t, batch_size=256, estimator="flipout").fit(100, progress=False),
    "gradient": lambda t: t.value_and_grad(t.init(0, 2)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", LARGE)
def test_within_a_panel_of_a_large_network(images, case):
    seconds = [Work(lambda: LARGE[case](images), delay).seconds for delay in (0.3, 0.4, 0.5, 0.6)]
    # two threads, and one of the four may fall on something that is done once
    assert sorted(seconds)[2] < 0.25


def test_inside_quantiles_of_kept_predictions():
    target = wide()
    sgld = rb.SGLD(target, step_size=1e-7, batch_size=500)
    draws = sgld.sample(500, warmup=0, chains=2, progress=False)
    kept = draws.predict(WIDE, keep=True)
    kept.credible_quantile(0.5)

    def often(ask):
        return lambda: [ask([0.1, 0.9]) for _ in range(50)]

    for ask in (kept.credible_quantile, kept.quantile):
        work = [Work(often(ask), delay) for delay in (0.1, 0.13, 0.16, 0.2)]
        assert sorted(w.seconds for w in work)[2] < 0.04


def test_a_second_ctrl_c_loses_nothing(monkeypatch):
    def again(self, pack=Run._pack):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.001)
        return pack(self)

    monkeypatch.setattr(Run, "_pack", again)
    hmc = HMC(posterior(), **OPTIONS["fixed"])
    draws = interrupted(lambda: hmc.sample(10**6, chains=2, progress=False, warmup=0))
    assert len(draws) == draws.state.step > 0


@pytest.mark.parametrize("make", [rb.SGLD, rb.SGHMC, rb.BAOAB])
def test_inside_stochastic_steps(make):
    sampler = make(wide(), step_size=1e-7, batch_size=500)
    draws = interrupted(
        lambda: sampler.sample(5_000, warmup=5, thin=3, chains=2, seed=1, progress=False)
    )
    count = len(draws)
    assert count > 0
    again = sampler.sample(count, warmup=5, thin=3, chains=2, seed=1, progress=False)
    equal(again, draws)
    rest = sampler.sample(2, thin=3, resume=draws, progress=False)
    whole = sampler.sample(count + 2, warmup=5, thin=3, chains=2, seed=1, progress=False)
    equal(whole, rest, rows=slice(count, None))


# as many epochs as there is time for
@pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")
def test_inside_a_collection():
    """Where SWAG keeps the ends of epochs; the one that was cut short is finished first."""
    trainer = rb.SWAG(wide(), batch_size=500, learning_rate=1e-4)
    fit = interrupted(lambda: trainer.fit(2, swag_epochs=10**6, seed=1, progress=False))
    assert fit.count == max(0, fit.state.step // 8 - 2)
    left = max(0, 2 - fit.state.step // 8)
    rest = trainer.fit(left, swag_epochs=1, resume=fit, progress=False)
    whole = trainer.fit(2, swag_epochs=fit.count + 1, seed=1, progress=False)
    for name in ("mean", "squares", "deviations"):
        assert getattr(rest, name).tobytes() == getattr(whole, name).tobytes()


def test_inside_a_curvature():
    """Nothing is lost but the curvature: the weights come back, and the fit goes on from them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100_000, 8))
    target = rb.Posterior(
        rb.mlp(8, (20,), 10),
        x,
        rng.integers(0, 10, size=100_000),
        prior=rb.Normal(1.0),
        likelihood=rb.Categorical(),
    )
    laplace = rb.LaplaceApproximation(target)
    start = target.init(seed=1)
    fastest = np.inf
    for _ in range(4):
        warned = pytest.warns(RibbitWarning, match=r"interrupted before there was a covariance")
        with warned, CtrlC() as press:
            fit = laplace.fit(0, init=start, progress=False)
        assert not fit.complete
        assert same(fit.mean, start)
        assert "INCOMPLETE" in repr(fit)
        fastest = min(fastest, press.seconds)
        if fastest < 0.1:
            break
    assert fastest < 0.1
    with pytest.raises(ValueError, match="expected a fit with a covariance"):
        fit.predict(x[:2])


# as many epochs as there is time for
@pytest.mark.filterwarnings("ignore::ribbit.errors.FitWarning")
@pytest.mark.parametrize("method", ["BBB", "MCDropout", "DeepEnsemble", "LaplaceApproximation"])
@pytest.mark.parametrize("batch_size", [500, None])
def test_inside_a_fit(method, batch_size):
    make = getattr(rb, method)
    more = {"subset": "last_layer"} if method == "LaplaceApproximation" else {}
    density = wide(dropout=method == "MCDropout")
    trainer = make(density, batch_size=batch_size, learning_rate=1e-4, **more)
    fit = interrupted(lambda: trainer.fit(10**6, seed=1, progress=False))
    batches = 1 if batch_size is None else 8
    step = fit.state[1] if method == "BBB" else fit.state.step
    assert step > 0
    assert fit.settings["num_epochs"] == step // batches
    rest = trainer.fit(1, resume=fit, progress=False)
    assert rest.complete
    theta = "mean" if method in ("BBB", "LaplaceApproximation") else "theta"
    assert np.isfinite(getattr(rest, theta)).all()
    if step % batches == 0:  # at the end of an epoch: what went on is a run that never stopped
        whole = trainer.fit(step // batches + 1, seed=1, progress=False)
        assert getattr(rest, theta).tobytes() == getattr(whole, theta).tobytes()
