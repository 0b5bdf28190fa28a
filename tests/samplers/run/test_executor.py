"""Chains on executors: the bits of a run without, whoever makes the steps and whoever is lost."""

import concurrent.futures
import copy
import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import ribbit as rb
from ribbit import executor as workers
from ribbit._arrays.threads import num_threads
from ribbit.chains import NativeChains
from tests.support.executors import Here, Mortal

pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")  # short runs


def target(rows=60):
    x = np.linspace(-1, 1, rows)[:, None]
    return rb.Posterior(
        rb.mlp(1, (8,), 1),
        x,
        np.sin(3 * x[:, 0]),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.3),
    )


RUNS = {
    "hmc": (rb.HMC, {}, {"num_draws": 12, "warmup": 30}),
    "nuts": (rb.NUTS, {}, {"num_draws": 6, "warmup": 20}),
    "mclmc": (rb.MCLMC, {}, {"num_draws": 12, "warmup": 200, "thin": 9}),
    "adjusted": (rb.MCLMC, {"adjusted": True}, {"num_draws": 6, "warmup": 20}),
    "sgld": (rb.SGLD, {"step_size": 1e-5, "batch_size": 20}, {"num_draws": 12, "thin": 5}),
    "sghmc": (rb.SGHMC, {"step_size": 1e-5, "batch_size": 20}, {"num_draws": 12, "thin": 5}),
    "baoab": (rb.BAOAB, {"batch_size": 20}, {"num_draws": 6, "warmup": 100, "thin": 5}),
}


def equal(a, b):
    """Whether two runs are the same in all but their seconds."""
    if not np.array_equal(np.asarray(a.positions), np.asarray(b.positions)):
        return False
    if a.settings != b.settings or a.stats.keys() != b.stats.keys():
        return False
    return all(np.array_equal(a.stats[k], b.stats[k], equal_nan=True) for k in a.stats)


@pytest.mark.parametrize("name", RUNS)
def test_threads_give_the_same_bits(name):
    make, options, call = RUNS[name]
    sampler = make(target(), **options)
    alone = sampler.sample(**call, chains=3, seed=5)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        moved = sampler.sample(**call, chains=3, seed=5, executor=pool)
    assert equal(alone, moved)


def test_processes_give_the_same_bits_and_all_that_a_run_has(tmp_path):
    posterior = target()
    x, y = posterior.x, posterior.y
    sampler = rb.HMC(posterior)
    call = {
        "num_draws": 10,
        "warmup": 20,
        "chains": [3, 1, 7],
        "save_warmup": True,
        "predict_at": (x, y),
        "seed": 2,
    }
    alone = sampler.sample(**call)
    seen = []
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        moved = sampler.sample(**call, executor=pool, store=tmp_path / "run", progress=seen.append)
    assert equal(alone, moved)
    assert seen
    assert np.array_equal(alone.warmup_positions, moved.warmup_positions)
    assert np.array_equal(alone.prediction.mean, moved.prediction.mean)
    assert equal(alone, rb.load(tmp_path / "run"))
    more = sampler.sample(5, resume=alone)
    assert equal(more, sampler.sample(5, resume=moved, executor=Here()))


def test_tasks_are_no_longer_than_predictions_at_once():
    def quick(work, task):
        return dataclasses.replace(work(task), seconds=1e-6)

    x = np.linspace(-1, 1, 40_000)[:, None]
    sampler, call = rb.HMC(target()), {"num_draws": 30, "warmup": 100, "chains": 3}
    alone, executor = sampler.sample(**call, predict_at=x), Here(quick)
    moved = sampler.sample(**call, predict_at=x, executor=executor)
    assert equal(alone, moved)
    assert np.array_equal(alone.prediction.mean, moved.prediction.mean)
    steps = [(task.end, task.end - task.state.step) for task in executor.tasks]
    assert max(count for end, count in steps if end <= 100) > 10
    assert 0 < max(count for end, count in steps if end > 100) < 10


def test_a_run_until_the_chains_agree_ends_after_the_same_draw():
    posterior = target()
    rule = rb.Converged(rhat=1.2, ess=60, at=posterior.x)
    call = {"num_draws": 10, "warmup": 60, "until": rule, "max_draws": 200}
    sampler = rb.HMC(posterior)
    assert equal(sampler.sample(**call), sampler.sample(**call, executor=Here()))


def test_a_chain_that_is_changed_on_the_way_is_noticed():
    def tampering(work, task):
        made = work(task)
        position = made.state.position.copy()
        position[0, 0] = np.nextafter(position[0, 0], np.inf)
        state = rb.samplers.State._of(made.state.fields | {"position": position})
        return dataclasses.replace(made, state=state)

    make, options, call = RUNS["hmc"]
    sampler = make(target(), **options)
    alone = sampler.sample(**call, chains=2)
    assert not equal(alone, sampler.sample(**call, chains=2, executor=Here(tampering)))


def test_a_worker_that_does_not_see_the_file_asks_for_the_sampler_once():
    def remote(work, task):
        return work(dataclasses.replace(task, path="/nonexistent"))

    executor = Here(remote)
    make, options, call = RUNS["mclmc"]
    sampler = make(target(61), **options)  # rows that no other test has: nobody knows it
    assert equal(sampler.sample(**call), sampler.sample(**call, executor=executor))
    sent = [task.payload is not None for task in executor.tasks]
    assert sum(sent) == 1
    assert len(sent) > 2


def test_states_may_come_as_arrays_that_are_read_only():
    def frozen(work, task):
        state = copy.deepcopy(task.state)
        for name in type(state).__dataclass_fields__:
            if isinstance(getattr(state, name), np.ndarray):
                getattr(state, name).flags.writeable = False
        return work(dataclasses.replace(task, state=state))

    for name in ("mclmc", "baoab"):  # the arrays of HMC are read-only anyway
        make, options, call = RUNS[name]
        sampler = make(target(), **options)
        assert equal(sampler.sample(**call), sampler.sample(**call, executor=Here(frozen)))


def test_tasks_of_a_lost_worker_are_made_again():
    lost = []

    def losing(work, task):
        if len(lost) < 2 and task.state.step > 0:
            lost.append(task)
            raise concurrent.futures.BrokenExecutor("a worker is gone")
        return work(task)

    made = []

    def make():
        made.append(Here(losing))
        return made[-1]

    sampler = rb.HMC(target())
    call = {"num_draws": 10, "warmup": 20, "chains": 3}
    assert equal(sampler.sample(**call), sampler.sample(**call, executor=make))
    assert len(lost) == 2
    assert len(made) >= 2

    lost.clear()  # nobody makes another: what there is goes along
    with pytest.raises(concurrent.futures.BrokenExecutor) as caught:
        sampler.sample(**call, executor=Here(losing))
    assert "executor=lambda" in "".join(caught.value.__notes__)
    assert len(caught.value.draws) == 0

    def always(work, task):
        raise concurrent.futures.CancelledError

    with pytest.raises(concurrent.futures.CancelledError):
        sampler.sample(**call, executor=Here(always))


def test_a_killed_process_costs_a_task():
    sampler = rb.HMC(target(), step_size=0.01)
    call = {"num_draws": 60, "warmup": 0, "chains": 3}
    pools = []

    def make():
        pools.append(Mortal(2))
        pools[-1].mortal = len(pools) < 3
        return pools[-1]

    assert equal(sampler.sample(**call), sampler.sample(**call, executor=make))
    assert len(pools) == 3


def test_errors_of_a_task_are_those_of_a_run():
    x = np.linspace(-1, 1, 30)[:, None]
    posterior = rb.Posterior(
        rb.mlp(1, (8,), 1), x, x[:, 0], prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.1)
    )
    sampler = rb.SGLD(posterior, step_size=1e3, batch_size=10)
    with pytest.raises(rb.errors.NonFiniteError) as alone:
        sampler.sample(50, warmup=0, chains=2)
    with (
        concurrent.futures.ProcessPoolExecutor(1) as pool,
        pytest.raises(rb.errors.NonFiniteError) as moved,
    ):
        sampler.sample(50, warmup=0, chains=2, executor=pool)
    assert str(alone.value) == str(moved.value)


def test_workers_share_the_cores():
    before = num_threads()
    used = []

    def counting(work, task):
        found = dataclasses.replace(task, client=0)  # as in another process
        made = work(found)
        used.append(num_threads())
        return made

    class Two(Here):
        _max_workers = 2

    try:
        workers._own_threads.pop(os.getpid(), None)
        rb.set_num_threads(4)
        rb.HMC(target()).sample(4, warmup=4, chains=4, executor=Two(counting))
        assert set(used) == {2}
        used.clear()
        rb.set_num_threads(4)
        rb.HMC(target()).sample(4, warmup=4, chains=4, executor=Here(counting))
        assert set(used) == {1}  # nobody says how many workers there are
        rb.set_num_threads(4)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            threads = []
            rb.HMC(target()).sample(
                4,
                warmup=4,
                executor=pool,
                progress=lambda note: threads.append(num_threads()),
            )
        assert set(threads) == {2}
        assert num_threads() == 4
    finally:
        workers._own_threads.pop(os.getpid(), None)
        rb.set_num_threads(before)


def test_a_worker_of_two_runs_has_the_share_of_each():
    before = num_threads()
    executor = Here()
    rb.HMC(target()).sample(1, warmup=2, executor=executor)
    found = []
    try:
        workers._own_threads.pop(os.getpid(), None)
        rb.set_num_threads(4)
        for threads in (1, 2, 8):
            workers.work(dataclasses.replace(executor.tasks[0], client=0, threads=threads))
            found.append(num_threads())
    finally:
        workers._own_threads.pop(os.getpid(), None)
        rb.set_num_threads(before)
    assert found == [1, 2, 4]


def test_what_cannot_be_is_refused():
    posterior = target()
    with pytest.raises(TypeError, match=r"with a method submit, .* or a callable .* got int 3"):
        rb.HMC(posterior).sample(4, executor=3)
    with pytest.raises(TypeError, match=r"got function, which makes int 3"):
        rb.HMC(posterior).sample(4, executor=lambda: 3)

    class Own:
        dim = 2

        def value_and_grad(self, theta):
            return -0.5 * (theta**2).sum(axis=1), -theta

    own = Own()
    own.lock = threading.Lock()
    with pytest.raises(TypeError, match="expected a target that can be pickled"):
        rb.HMC(own, step_size=0.1).sample(4, init=np.zeros((4, 2)), executor=Here())


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_ends_a_run_and_leaves_the_workers_alone():
    code = """
        import concurrent.futures, os, signal, threading, time, warnings
        import numpy as np, ribbit as rb
        warnings.simplefilter("ignore")
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has none
        x = np.linspace(-1, 1, 400)[:, None]
        target = rb.Posterior(
            rb.mlp(1, (16,), 1), x, x[:, 0], prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
        )
        if __name__ == "__main__":
            with concurrent.futures.ProcessPoolExecutor(2) as pool:
                threading.Timer(2.0, os.killpg, (0, signal.SIGINT)).start()
                sampler = rb.HMC(target, step_size=1e-4, trajectory_length=0.1)
                draws = sampler.sample(10**5, warmup=0, chains=2, executor=pool, progress=False)
                print("draws", len(draws), draws.complete, flush=True)
                more = sampler.sample(3, resume=draws, executor=pool, progress=False)
                print("more", len(more))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=300,
        start_new_session=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert int(words[1]) > 0
    assert [words[0], *words[2:]] == ["draws", "False", "more", "3"]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("seconds", "most"), [(0.1, 5), (1e-6, 10_000)])
def test_tasks_take_about_half_a_second(seconds, most):
    """By the seconds that steps took before: that is what a loss costs."""

    def timed(work, task):
        made = work(task)
        return dataclasses.replace(made, seconds=seconds * (task.end - task.state.step))

    executor = Here(timed)
    rb.HMC(target(), step_size=0.01).sample(300, warmup=0, chains=1, executor=executor)
    steps = [task.end - task.state.step for task in executor.tasks]
    assert steps[0] == 1
    assert sum(steps) == 300  # none beyond the end
    assert max(steps) <= most
    assert (max(steps) > 100) == (most > 100)


def slow(work, task):
    """Do a task as if each of its steps took a tenth of a second."""
    made = work(task)
    return dataclasses.replace(made, seconds=0.1 * (task.end - task.state.step))


@pytest.mark.parametrize("name", ["hmc", "sgld"])
def test_tasks_may_end_between_two_draws(name):
    """The next task goes on with the divergences since the last draw, and progress with steps."""
    make, options, _ = RUNS[name]
    if name == "hmc":
        options = {"step_size": 0.6}  # some transitions diverge
    sampler = make(target(), **options)
    call = {"num_draws": 6, "warmup": 0, "thin": 12, "chains": 3}
    alone, executor, seen = sampler.sample(**call), Here(slow), []
    moved = sampler.sample(
        **call, executor=executor, progress=lambda note: seen.append(note["done"])
    )
    assert equal(alone, moved)
    assert name == "sgld" or alone.stats["divergences"].sum() > 0
    assert any(task.end % 12 for task in executor.tasks)
    assert seen[-1] == 72


def test_all_groups_make_tasks_to_the_same_steps_and_none_beyond_a_look():
    executor = Here()
    rule = rb.Converged(rhat=10.0, ess=4.0)
    draws = rb.HMC(target()).sample(
        20, warmup=30, chains=3, until=rule, max_draws=10_000, executor=executor
    )
    ends = {}
    for task in executor.tasks:
        ends.setdefault(int(task.state.chains[0]), []).append(task.end)
    assert ends[0] == ends[1] == ends[2]
    assert 30 in ends[0]
    assert ends[0][-1] == draws.state.step < 10_030


@pytest.mark.parametrize("begins", ["workers", "process"])
def test_a_folder_begun_with_workers_resumes_without_and_the_other_way_round(
    tmp_path, monkeypatch, begins
):
    call = {"num_draws": 12, "warmup": 20, "chains": 3, "thin": 3, "seed": 4}
    sampler, advance = rb.NUTS(target(), step_size=0.05), NativeChains.advance

    def failing(self, most, *rest):
        if self.step >= 40:
            raise RuntimeError("the power is gone")
        return advance(self, min(most, 2), *rest)

    def lost(work, task):
        if task.end > 40:
            raise RuntimeError("the power is gone")
        return slow(work, task)

    first, then = {"executor": Here(lost)}, {}
    with monkeypatch.context() as patch:
        if begins == "process":
            first, then = {}, {"executor": Here()}
            patch.setattr(NativeChains, "advance", failing)
        with pytest.raises(RuntimeError, match="the power is gone") as caught:
            sampler.sample(**call, **first, store=tmp_path / "run")
    assert 0 < len(caught.value.draws) < 12
    assert equal(sampler.sample(**call), sampler.sample(**call, **then, store=tmp_path / "run"))


def test_an_error_of_a_worker_alone_ends_the_run_after_the_draws_before():
    def failing(work, task):
        if task.state.step > 1 and task.state.chains[0] == 1:  # after at most 8 draws
            raise RuntimeError("no memory there")
        return work(task)

    sampler, call = rb.HMC(target()), {"num_draws": 50, "warmup": 1, "chains": 3}
    with pytest.raises(RuntimeError, match="no memory there") as caught:
        sampler.sample(**call, executor=Here(failing))
    found = caught.value.draws
    assert 0 < len(found) < 50
    assert np.array_equal(found.positions, sampler.sample(**call).positions[:, : len(found)])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks of POSIX")
def test_sigterm_ends_a_worker_that_was_forked_during_a_run():
    """Else a pool that breaks waits forever for workers that it has told to end."""
    seen = []

    def fork(note):
        if seen:
            return
        ready, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(tell, b"!")  # Python drops signals that come in the middle of a fork
            time.sleep(10)
            os._exit(0)
        os.read(ready, 1)
        os.kill(pid, signal.SIGTERM)
        seen.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    rb.HMC(target(), step_size=0.01).sample(4, warmup=0, progress=fork)
    assert seen == [-signal.SIGTERM]
