"""sample(..., blocking=False): the same bits in a thread, seen, stopped and waited for."""

import contextlib
import inspect
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import typing
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ribbit as rb
from ribbit import handle, sample
from ribbit.errors import ConvergenceWarning
from ribbit.samplers import HMC
from tests.support.targets import OPTIONS, Gaussian, Line, equal, posterior, same

# as many draws as there is time for, whose bits are looked at and not where they are
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
posix = pytest.mark.skipif(os.name == "nt", reason="POSIX processes")
LONG = 10**7


def hmc(target=None):
    return HMC(target or posterior(), **OPTIONS["fixed"])


def until(true, seconds=30.0):
    """Wait for something that comes soon."""
    end = time.perf_counter() + seconds
    while not true():
        assert time.perf_counter() < end
        time.sleep(0.002)


def long(sampler, **options):
    """A run that is well under way."""
    run = sampler.sample(LONG, warmup=0, max_seconds=120.0, **options, blocking=False)
    until(lambda: run.progress["draws"] >= 20)
    return run


SAMPLERS = {
    "HMC": (rb.HMC, OPTIONS["fixed"], {}),
    "NUTS": (rb.NUTS, {"step_size": 0.05, "max_tree_depth": 3}, {}),
    "MCLMC": (rb.MCLMC, {"step_size": 0.02, "decoherence_length": 0.5}, {"thin": 3}),
    "SGLD": (rb.SGLD, {"step_size": 1e-4, "batch_size": 20}, {"thin": 5}),
    "BAOAB": (rb.BAOAB, {"step_size": 1e-2, "batch_size": 20}, {"thin": 5}),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_bits_of_sample(name):
    make, how, options = SAMPLERS[name]
    options = {**options, "warmup": 20, "seed": 5, "chains": 2, "save_warmup": True}
    run = make(posterior(), **how).sample(40, **options, blocking=False)
    draws = run.wait()
    whole = make(posterior(), **how).sample(40, progress=False, **options)
    equal(whole, draws)
    assert same(whole.warmup_positions, draws.warmup_positions)
    assert draws.complete
    assert run.wait() is draws
    assert run.draws() is draws
    assert not run.running
    assert "ended, Draws(" in repr(run)


def test_type_checkers_know_every_option():
    """The overloads have the options of the function itself."""
    options = list(inspect.signature(rb.Sampler.sample).parameters)
    assert options[:2] == ["self", "num_draws"]
    assert options[-1] == "blocking"
    assert list(sample._Call.__annotations__) == options[2:-1]
    returns = [one.__annotations__["return"] for one in typing.get_overloads(rb.Sampler.sample)]
    assert returns == ["Draws", "RunHandle", "Draws | RunHandle"]


def test_with_workers_a_folder_a_rule_and_a_start(tmp_path):
    """Options that begin threads, fits and files of their own."""
    sampler = hmc()
    options = {"chains": 2, "seed": 3, "warmup": 10, "max_draws": 60, "progress": False}
    options |= {"until": rb.Converged(rhat=3.0, ess=10), "init": rb.EnsembleStart(max_steps=20)}
    whole = sampler.sample(**options)
    with ThreadPoolExecutor(2) as pool:
        call = {**options, "executor": pool, "store": tmp_path / "run"}
        draws = sampler.sample(**call, blocking=False).wait()
    equal(whole, draws)
    equal(whole, rb.load(tmp_path / "run"))


@pytest.mark.parametrize("blocking", [None, 1, "no"])
def test_wrong_values_of_blocking(blocking):
    with pytest.raises(TypeError, match=r"^\[HMC.sample\] expected blocking as a bool"):
        hmc().sample(5, blocking=blocking)


def test_draws_so_far_are_draws(tmp_path):
    sampler = hmc()
    with long(sampler, seed=1, chains=2, predict_at=np.ones((3, 3))) as run:
        parts = []
        for _ in range(3):
            parts.append(run.draws())
            count = len(parts[-1])
            until(lambda count=count: run.progress["draws"] > count)
    end = run.wait()
    for part in parts:
        count = len(part)
        assert not part.complete
        assert part.settings["stopped"] == {"reason": "running", "draws": count}
        equal(end, part, rows=slice(0, count))
        assert part.prediction.num_draws == 2 * count
        # gathered while sampling: no later draw is in them
        again = sampler.sample(
            count, warmup=0, seed=1, chains=2, predict_at=np.ones((3, 3)), progress=False
        )
        assert same(part.prediction.mean, again.prediction.mean)
        assert part.summary().rows
    parts[0].save(tmp_path / "part")
    rest = sampler.sample(5, resume=rb.load(tmp_path / "part"), progress=False)
    count = len(parts[0])
    assert same(rest.positions[:, :5], end.positions[:, count : count + 5])


def test_draws_so_far_while_it_looks():
    """Snapshots join the blocks of a run that grows, again and again."""
    sampler = HMC(Line([1.0, 2.0, 0.3]), step_size=0.5, num_leapfrog_steps=3)
    rule = rb.Converged(rhat=1.0001, ess=1e6, at=np.eye(3))
    options = {"until": rule, "warmup": 0, "chains": 2, "predict_at": np.eye(3)}
    run = sampler.sample(max_draws=3_000, save_draws=True, **options, blocking=False)
    parts = []
    while run.running:
        parts.append(run.draws())
        time.sleep(0.001)
    with pytest.warns(ConvergenceWarning):
        end = run.wait()
    assert len(end) == 3_000
    for part in parts:
        equal(end, part, rows=slice(0, len(part)))
        assert part.prediction.num_draws == 2 * len(part)


def test_stop_is_ctrl_c_without_a_warning():
    sampler = hmc()
    run = long(sampler, chains=2)
    assert run.running
    while "chains" not in run.progress:  # before the first refresh
        time.sleep(0.01)
    assert repr(run).startswith("RunHandle(HMC: sampling ")
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draws = run.stop()
    assert time.perf_counter() - begun < 5.0
    assert draws.settings["stopped"]["reason"] == "interrupted"
    assert not draws.complete
    assert "INCOMPLETE" in repr(draws)
    assert run.stop() is draws
    again = sampler.sample(2, resume=draws, progress=False)
    whole = sampler.sample(len(draws) + 2, warmup=0, chains=2, progress=False)
    equal(whole, again, rows=slice(len(draws), None))


def test_stop_inside_a_native_trajectory():
    """Of a million steps: the flag is polled there."""
    options = {
        "num_leapfrog_steps": 10**6,
        "max_num_leapfrog_steps": 10**6,
        "randomize_length": False,
    }
    run = HMC(posterior(), step_size=1e-6, **options).sample(10, chains=2, blocking=False)
    time.sleep(0.1)
    assert len(run.stop(timeout=30.0)) == 0


def test_progress():
    seen = []
    run = long(hmc(), chains=2, progress=seen.append)
    until(lambda: len(seen) > 1)
    found = run.progress
    run.stop()
    assert found["phase"] == "sampling"
    assert 0 < found["draws"] <= found["done"] < found["total"] == LONG
    assert len(found["acceptance_rate"]) == 2
    assert found["eta"] > 0.0
    assert found["elapsed"] > 0.0
    assert found["running"]
    assert not run.progress["running"]
    assert seen[-1].pop("stopped") == "interrupted"
    assert set(found) == {*seen[-1], "running"}


def test_exceptions_surface_at_wait_with_the_draws():
    class Fails(Gaussian):
        def value_and_grad(self, theta, rows=None):
            if self.calls > 200:
                raise ZeroDivisionError("mine")
            return super().value_and_grad(theta)

    run = HMC(Fails([1.0]), step_size=0.1, num_leapfrog_steps=2).sample(
        LONG, warmup=0, init=np.zeros((2, 1)), blocking=False
    )
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="mine") as caught:
            run.wait()
    assert len(caught.value.draws) > 10
    assert run.draws() is caught.value.draws
    assert "ended by ZeroDivisionError" in repr(run)


def test_warnings_surface_at_wait_once(recwarn):
    start = np.array([[50.0, 0, 0], [-50.0, 0, 0]])
    run = HMC(Gaussian([1e3] * 3), step_size=1e-3, num_leapfrog_steps=1).sample(
        50, warmup=0, init=start, blocking=False
    )
    until(lambda: not run.running)
    assert not recwarn.list
    with pytest.warns(ConvergenceWarning, match="R-hat") as told:
        draws = run.wait()
    assert told[0].filename == __file__
    assert run.wait() is draws


def test_wrong_arguments_are_told_at_once():
    sampler = hmc()
    with pytest.raises(TypeError, match="nonsense"):
        sampler.sample(10, nonsense=1, blocking=False)
    with pytest.raises(ValueError, match=r"\[HMC.sample\] expected thin"):
        sampler.sample(10, thin=0, blocking=False)
    with pytest.raises(TypeError, match="expected num_draws, or until"):
        sampler.sample(blocking=False)
    with pytest.raises(MemoryError, match="free memory for"):
        sampler.sample(2**38, blocking=False)
    with pytest.raises(TypeError, match="expected progress"):
        sampler.sample(10, progress="x", blocking=False)
    # None of them counts as a run of the target.
    assert sampler.sample(5, warmup=0, blocking=False).wait().complete


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "x", True])
def test_wrong_timeouts(value):
    run = hmc().sample(1, warmup=0, blocking=False)
    with pytest.raises((TypeError, ValueError), match=r"^\[RunHandle.wait\] expected timeout"):
        run.wait(value)
    run.wait()


def test_a_wait_that_ends_before_the_run():
    run = long(hmc(), chains=2)
    with pytest.raises(TimeoutError, match=rf"within 0.01 s, after \d+ of {LONG} steps"):
        run.wait(0.01)
    assert run.running
    run.stop()


def test_one_run_of_a_target_and_several_targets():
    target = posterior()
    first = long(hmc(target), chains=2)
    with pytest.raises(ValueError, match="this target has a run in a thread already"):
        rb.SGLD(target, step_size=1e-4, batch_size=20).sample(10, blocking=False)
    other = hmc(posterior()).sample(50, warmup=0, chains=2, seed=3, blocking=False)
    here = hmc(target).sample(50, warmup=0, chains=2, seed=3, progress=False)  # in the foreground
    equal(here, other.wait())
    draws = first.stop()
    equal(hmc(target).sample(len(draws), warmup=0, chains=2, progress=False), draws)
    assert hmc(target).sample(5, warmup=0, blocking=False).wait().complete


def test_before_there_is_a_start():
    entered, leave = threading.Event(), threading.Event()

    class Late(Gaussian):
        def init(self, seed=0, chains=None):
            entered.set()
            leave.wait(60.0)
            return np.zeros((chains, self.dim))

    run = HMC(Late([1.0]), step_size=0.1, num_leapfrog_steps=2).sample(10, blocking=False)
    assert entered.is_set()
    assert run.progress["phase"] == "starting"
    assert run.progress["draws"] == 0
    assert "starting" in repr(run)
    with pytest.raises(RuntimeError, match="finds its start"):
        run.draws()
    with pytest.raises(TimeoutError):
        run.stop(timeout=0.01)
    leave.set()
    with pytest.raises(RuntimeError, match="no draws"):
        run.wait()


def test_a_block_ends_the_run_and_an_exception_comes_through():
    with pytest.raises(KeyError, match="mine"), long(hmc(), chains=2) as run:
        raise KeyError("mine")
    assert not run.running
    assert len(run.draws()) >= 20


def test_it_does_not_travel():
    run = hmc().sample(5, warmup=0, blocking=False)
    with pytest.raises(TypeError, match="a run stays in its process"):
        pickle.dumps(run)
    run.wait()


@posix
def test_ctrl_c_ends_the_waiting_and_not_the_run():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run = long(hmc(), chains=2)
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            run.wait()
        timer.join()
        count = run.progress["draws"]
        until(lambda: run.progress["draws"] > count)
        assert len(run.stop()) > count
    finally:
        signal.signal(signal.SIGINT, before)


@posix
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_is_refused_in_a_sentence():
    run = long(hmc(), chains=2)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        run.__exit__(KeyError)  # waits for nothing
        for ask in (run.draws, run.stop, run.wait, lambda: run.__exit__(None)):
            try:
                ask()
            except RuntimeError as error:
                said.append(str(error))
        os.write(write, "\n".join([*said, repr(run)]).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        lines = pipe.read().splitlines()
    os.waitpid(child, 0)
    assert len(lines) == 5
    for line in lines[:4]:
        assert "the run is in the process that this one was forked from" in line
    assert "another process" in lines[4]
    assert run.running
    run.stop()


EXIT = """
import sys, threading, time
import numpy as np
import ribbit as rb
x = np.random.default_rng(0).normal(size=(2000, 20))
target = rb.Posterior(
    rb.mlp(20, (100, 100), 1), x, np.sin(x[:, 0]), prior=rb.Normal(0.5),
    likelihood=rb.Gaussian(0.3)
)
run = rb.HMC(target, step_size=1e-4, num_leapfrog_steps=int(sys.argv[1])).sample(
    10**4, warmup=0, chains=2, progress=lambda s: None, blocking=False
)
time.sleep(float(sys.argv[2]))
print(run.running, flush=True)
"""


@posix
@pytest.mark.parametrize("steps", [3, 10_000])
def test_the_interpreter_ends_in_order(steps):
    """While a run goes on, between trajectories and inside a long one."""
    for delay in (0.0, 0.1):
        command = [sys.executable, "-c", EXIT, str(steps), str(delay)]
        begun = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
        assert time.perf_counter() - begun < 60.0


def test_the_end_waits_for_all_runs_together(monkeypatch):
    """Runs that do not end keep the process for one patience, not for one each."""
    leave = threading.Event()

    class Stuck(Gaussian):
        def value_and_grad(self, theta, rows=None):
            leave.wait(60.0)
            return super().value_and_grad(theta)

    monkeypatch.setattr(handle, "_LAST", 1.0)
    monkeypatch.setattr(handle, "_PATIENCE", 0.1)
    options = {"warmup": 0, "init": np.zeros((2, 1)), "blocking": False}
    targets = [Stuck([1.0]), Stuck([1.0])]
    runs = [HMC(t, step_size=0.1, num_leapfrog_steps=2).sample(5, **options) for t in targets]
    begun = time.perf_counter()
    handle._end_all()
    assert 0.9 < time.perf_counter() - begun < 1.9
    assert all(run.running for run in runs)
    leave.set()
    for run in runs:
        with contextlib.suppress(RuntimeError):  # no start yet
            assert not run.wait().complete
        assert not run.running


def test_the_main_thread_stays_usable():
    """The longest of two hundred naps of 1 ms, beside Python steps that hold the GIL."""
    run = long(HMC(Line([1.0, 2.0, 0.3]), step_size=0.1, num_leapfrog_steps=20), chains=4)
    naps = []
    for _ in range(200):
        begin = time.perf_counter()
        time.sleep(0.001)
        naps.append(time.perf_counter() - begin)
    run.stop()
    assert np.median(naps) < 0.1  # 5 ms is the interval at which Python hands the GIL over
