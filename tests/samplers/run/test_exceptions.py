"""Whatever ends a run as an exception brings what was done, and a run that goes on from it."""

import concurrent.futures
import copy
import multiprocessing
import os
import pickle
import signal
import threading
import warnings

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import NonFiniteError, RibbitWarning
from ribbit.samplers import HMC
from tests.support.targets import OPTIONS, Gaussian, equal, posterior

START = np.zeros((2, 3))
HMC_OPTIONS = {"step_size": 0.1, "num_leapfrog_steps": 2}
FIXED = {"randomize_length": False, "max_num_leapfrog_steps": 10**6}


class Fails(Gaussian):
    """A density that raises at a later call."""

    error: BaseException | None = None
    at = 40

    def value_and_grad(self, theta, rows=None):
        if self.error is not None and self.calls >= self.at:
            raise self.error
        return super().value_and_grad(theta)


class Slotted(Exception):
    """An exception that takes what everybody gives it."""


ERRORS = [
    RuntimeError("mine"),
    ZeroDivisionError("mine"),
    StopIteration("mine"),
    KeyboardInterrupt("mine"),
    SystemExit("mine"),
    Slotted("mine"),
    MemoryError("mine"),
]


# 100 draws, that go on where they ended: whether they have converged does not matter
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_an_exception_of_the_density_brings_the_draws(error):
    target = Fails([1.0, 1.0, 1.0])
    hmc = HMC(target, **HMC_OPTIONS)
    whole = hmc.sample(100, init=START, warmup=0, progress=False)
    target.calls, target.error = 0, error
    with pytest.raises(type(error)) as caught:
        hmc.sample(100, init=START, warmup=0, progress=False)
    target.error = None
    assert caught.value is error
    draws = error.draws
    assert 0 < len(draws) < 100
    assert not draws.complete
    assert "draws per chain" in error.__notes__[-1]
    equal(whole, draws, rows=slice(0, len(draws)))
    rest = hmc.sample(100 - len(draws), resume=draws, progress=False)
    equal(whole, rest, rows=slice(len(draws), None))


def test_an_exception_in_warmup_brings_a_state():
    target = Fails([1.0, 1.0, 1.0])
    target.error = RuntimeError("mine")
    hmc = HMC(target, **HMC_OPTIONS)
    with pytest.raises(RuntimeError, match="mine") as caught:
        hmc.sample(5, init=START, warmup=1000, progress=False)
    target.error = None
    draws = caught.value.draws
    assert len(draws) == 0
    assert 0 < draws.state.step < 1000
    equal(
        hmc.sample(5, init=START, warmup=1000, progress=False),
        hmc.sample(5, resume=draws, progress=False),
    )


def test_an_exception_of_the_callback_brings_the_draws():
    def fail(snapshot):
        raise OSError("mine")

    hmc = HMC(posterior(), **OPTIONS["fixed"])
    with pytest.raises(OSError, match="mine") as caught:
        hmc.sample(50, warmup=0, chains=2, progress=fail)
    draws = caught.value.draws
    assert draws.state.step == len(draws) > 0


def test_an_exception_of_the_predictions_brings_the_draws(monkeypatch):
    """All draws before the block that failed; a block is a single draw here."""
    monkeypatch.setattr("ribbit.sample._SECONDS", 0.0)

    class Target(Fails):
        kind = "regression"

        def predictive(self, theta, x):
            if self.calls > 40:
                raise RuntimeError("mine")
            values = np.asarray(theta)[:, None, :1] + np.asarray(x)[None, :, :1]
            return rb.protocols.PredictiveTerms(mean=values, noise_sd=np.ones((1, 1, 1)))

    hmc = HMC(Target([1.0, 1.0, 1.0]), **HMC_OPTIONS)
    with pytest.raises(RuntimeError, match="mine") as caught:
        hmc.sample(50, warmup=0, init=START, predict_at=np.ones((2, 3)), progress=False)
    draws = caught.value.draws
    assert draws.state.step == len(draws) > 0
    assert draws.prediction.num_draws == 2 * len(draws)


def test_a_warning_that_is_an_error_brings_the_draws():
    hmc = HMC(posterior(), step_size=1e6, num_leapfrog_steps=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RibbitWarning, match="Not converged") as caught:
            hmc.sample(20, warmup=0, chains=2, progress=False)
    assert caught.value.draws.complete
    assert len(caught.value.draws) == 20


def test_an_exception_before_the_run_has_nothing_to_bring():
    with pytest.raises(ValueError, match="num_draws") as caught:
        HMC(posterior(), **OPTIONS["fixed"]).sample(0)
    assert not hasattr(caught.value, "draws")


def plain(dropout=False):
    layers = [rb.Dense(3), rb.Dense(1)]
    if dropout:
        layers.insert(1, rb.Dropout(0.1))
    x = np.linspace(-1.0, 1.0, 20).reshape(10, 2)
    model = rb.Model(layers, input_shape=(2,))
    options = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian(0.5)}
    return rb.Posterior(model, x, x[:, 0], **options)


FITS = {
    "BBB": lambda **options: rb.BBB(plain(), **options),
    "MCDropout": lambda **options: rb.MCDropout(plain(dropout=True), **options),
    "DeepEnsemble": lambda **options: rb.DeepEnsemble(plain(), members=2, **options),
}


def theta(fit):
    return fit.mean if isinstance(fit, rb.MeanField) else fit.theta


@pytest.mark.parametrize("name", FITS)
def test_an_exception_of_the_callback_brings_the_fit(name):
    trainer, seen = FITS[name](batch_size=5), []

    def fail(snapshot):
        seen.append(snapshot)
        if len(seen) == 2:
            raise OSError("mine")

    with pytest.raises(OSError, match="mine") as caught:
        trainer.fit(10**6, progress=fail)
    fit = caught.value.fit
    assert not fit.complete
    assert "epochs" in caught.value.__notes__[-1]
    epochs = fit.settings["num_epochs"]
    assert 0 < epochs < 10**6
    step = fit.state[1] if name == "BBB" else fit.state.step
    if step % 2 == 0:
        whole = trainer.fit(epochs + 1, progress=False)
        rest = trainer.fit(1, resume=fit, progress=False)
        assert theta(whole).tobytes() == theta(rest).tobytes()


def explode():
    """Raise NonFiniteError; what a worker of a pool runs."""
    sampler = rb.SGLD(plain(), step_size=10.0, batch_size=5)
    with np.errstate(all="ignore"):
        sampler.sample(10_000, warmup=0, chains=2, progress=False)


def test_a_run_that_explodes_travels_between_processes():
    with pytest.raises(NonFiniteError) as here:
        explode()
    context = multiprocessing.get_context("spawn")
    with (
        concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool,
        pytest.raises(NonFiniteError) as there,
    ):
        pool.submit(explode).result(timeout=60)
    for error in (there.value, pickle.loads(pickle.dumps(here.value)), copy.copy(here.value)):
        assert str(error) == str(here.value)
        assert type(error) is NonFiniteError
        for name in ("step", "step_size", "largest_gradient"):
            assert getattr(error, name) == getattr(here.value, name)
        assert error.state.position.tobytes() == here.value.state.position.tobytes()
        equal(here.value.draws, error.draws)


@pytest.mark.parametrize("name", FITS)
def test_a_fit_that_explodes_brings_itself(name):
    trainer = FITS[name](batch_size=5, learning_rate=1e37)
    with pytest.raises(NonFiniteError) as caught:
        trainer.fit(10**6, progress=False)
    error = pickle.loads(pickle.dumps(caught.value))
    for one in (caught.value, error):
        assert theta(one.fit).tobytes() == theta(one.state).tobytes()
        assert np.isfinite(theta(one.fit)).all()


# --- SIGTERM -------------------------------------------------------------------------------------

posix = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")


def later(seconds):
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    return timer


@posix
# the clock ends these runs: how far they came is not looked at
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
def test_a_handler_of_the_user_stays():
    calls = []
    before = signal.signal(signal.SIGTERM, lambda *_: calls.append(1))
    try:
        timer = later(0.05)
        hmc = HMC(posterior(), **OPTIONS["fixed"])
        assert hmc.sample(10**6, warmup=0, chains=1, progress=False, max_seconds=0.3).state.step > 0
        timer.join()
        assert calls == [1]
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        timer = later(0.05)
        hmc.sample(10**6, warmup=0, chains=1, progress=False, max_seconds=0.3)
        timer.join()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


RUNS = {
    "sample": lambda note: HMC(posterior(), **OPTIONS["fixed"]).sample(2, warmup=0, progress=note),
    "sample in a thread": lambda note: (
        HMC(posterior(), **OPTIONS["fixed"])
        .sample(2, warmup=0, progress=note, blocking=False)
        .wait()
    ),
    "fit": lambda note: FITS["BBB"](batch_size=5).fit(2, progress=note),
}


@posix
# two draws, which tell nothing
@pytest.mark.filterwarnings("ignore::ribbit.errors.RibbitWarning")
@pytest.mark.parametrize("name", RUNS)
def test_a_run_leaves_sigterm_alone(name):
    before, seen = signal.signal(signal.SIGTERM, signal.SIG_DFL), []
    try:
        RUNS[name](lambda note: seen.append(signal.getsignal(signal.SIGTERM)))
        assert set(seen) == {signal.SIG_DFL}
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
