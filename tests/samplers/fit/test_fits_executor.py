"""Fits whose members are trained by workers: the bits of a fit without."""

import concurrent.futures
import dataclasses
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import ribbit as rb
from tests.support.executors import Here, Mortal

# Short fits, whose objective still rises.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ribbit.errors.FitWarning", "ignore::ribbit.errors.ConvergenceWarning"
)


def target(rows=60):
    x = np.linspace(-1, 1, rows)[:, None]
    return rb.Posterior(
        rb.mlp(1, (8,), 1),
        x,
        np.sin(3 * x[:, 0]),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.3),
    )


FITS = {
    "ensemble": (rb.DeepEnsemble, {"members": 3, "batch_size": 20}, {"num_epochs": 45}),
    "full batch": (rb.DeepEnsemble, {"members": 3, "batch_size": None}, {"num_epochs": 30}),
    "swag": (
        rb.SWAG,
        {"members": 3, "batch_size": 16, "max_rank": 4},
        {"num_epochs": 23, "swag_epochs": 9},
    ),
}


def equal(a, b):
    """Whether two fits are the same."""
    arrays = ["theta", "mean", "squares", "deviations"]
    pairs = [(getattr(a, n), getattr(b, n)) for n in arrays if hasattr(a, n)]
    pairs += [(a.state.position, b.state.position), (a.state.second_moment, b.state.second_moment)]
    pairs += [(a.history[name], b.history[name]) for name in a.history]
    same = all(np.array_equal(one, other) for one, other in pairs)
    return same and a.settings == b.settings and a.history.keys() == b.history.keys()


@pytest.mark.parametrize("name", FITS)
def test_workers_give_the_same_bits(name):
    make, options, call = FITS[name]
    fitter = make(target(), **options)
    alone = fitter.fit(**call, seed=5)
    assert alone.history
    assert equal(alone, fitter.fit(**call, seed=5, executor=Here()))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert equal(alone, fitter.fit(**call, seed=5, executor=pool))
    assert not equal(alone, fitter.fit(**call, seed=6, executor=Here()))


def test_processes_store_and_resume(tmp_path):
    make, options, call = FITS["swag"]
    fitter = make(target(), **options)
    alone = fitter.fit(**call)
    seen = []
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        moved = fitter.fit(**call, executor=pool, store=tmp_path / "a", progress=seen.append)
    assert equal(alone, moved)
    assert seen
    assert equal(alone, fitter.fit(**call, store=tmp_path / "a"))  # it is complete
    more = fitter.fit(0, swag_epochs=5, resume=alone)
    assert equal(more, fitter.fit(0, swag_epochs=5, resume=moved, executor=Here()))


def test_a_member_that_is_changed_on_the_way_is_noticed():
    def tampering(work, task):
        made = work(task)
        made.state.position[0, 0] = np.nextafter(made.state.position[0, 0], np.inf)
        return made

    make, options, call = FITS["ensemble"]
    fitter = make(target(), **options)
    assert not equal(fitter.fit(**call), fitter.fit(**call, executor=Here(tampering)))


def test_a_killed_process_costs_a_task():
    make, options, call = FITS["ensemble"]
    fitter = make(target(), **options)
    pools = []

    def pool():
        pools.append(Mortal(2))
        pools[-1].mortal = len(pools) < 3
        return pools[-1]

    assert equal(fitter.fit(**call), fitter.fit(**call, executor=pool))
    assert len(pools) == 3


@pytest.mark.parametrize("workers", [None, 2])
def test_a_member_that_runs_away_ends_the_fit_as_it_would_without_workers(workers):
    """The error, and the fit that it carries with all members at one step."""
    fitter = rb.SWAG(
        target(), members=3, learning_rate=30.0, optimizer="sgd", batch_size=20, max_rank=2
    )
    with pytest.raises(rb.errors.NonFiniteError) as alone:
        fitter.fit(50)
    executor = Here()
    if workers:
        executor._max_workers = workers
    with pytest.raises(rb.errors.NonFiniteError) as moved:
        fitter.fit(50, executor=executor)
    assert str(alone.value) == str(moved.value)
    assert equal(alone.value.fit, moved.value.fit)
    assert alone.value.fit.state.step > 0


STARTS = rb.EnsembleStart(max_steps=300, every=10, patience=2, finish=100)


def test_starts_of_chains_are_found_by_workers():
    hmc = rb.HMC(target())
    call = {"num_draws": 4, "warmup": 10, "chains": [4, 0, 2], "seed": 3, "init": STARTS}
    alone = hmc.sample(**call)
    executor = Here()
    moved = hmc.sample(**call, executor=executor)
    assert np.array_equal(alone.positions, moved.positions)
    assert alone.settings == moved.settings
    assert any(task.end == 0 for task in executor.tasks)  # those of the starts
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        fit = STARTS.fit(target(), [4, 0, 2], seed=3, executor=pool)
    assert np.array_equal(fit.theta, STARTS.fit(target(), [4, 0, 2], seed=3).theta)


def test_starts_do_not_depend_on_the_seconds_of_a_task(monkeypatch):
    """Cut after every round, and a worker lost in the middle."""
    alone = STARTS.fit(target(), 3)
    monkeypatch.setattr("ribbit.executor.SECONDS", 0.0)
    lost = []

    def losing(work, task):
        climb = task.state
        if (climb.now is not None and not lost) or (climb.finish is not None and len(lost) == 1):
            lost.append(task)
            raise concurrent.futures.CancelledError
        return work(task)

    executor = Here(losing)
    seen = []
    moved = STARTS.fit(target(), 3, executor=executor, progress=seen.append)
    assert np.array_equal(alone.theta, moved.theta)
    assert alone.settings == moved.settings
    assert len(lost) == 2
    assert len(executor.tasks) > 20
    assert seen

    def forgetting(work, task):  # a control: a climb that begins anew has other waits
        if task.state.now is not None:
            task.state.now.peak[:] = -np.inf
        return work(task)

    other = STARTS.fit(target(), 3, executor=Here(forgetting))
    assert alone.settings != other.settings


def test_starts_that_fail_are_the_same_and_warned_of():
    x = np.linspace(-1, 1, 60)[:, None]
    broken = rb.Posterior(
        rb.mlp(1, (8,), 1), x, x[:, 0], prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    )
    start = dataclasses.replace(STARTS, learning_rate=1e30, restarts=1, max_steps=20)
    fits, texts = [], []
    for executor in (None, Here()):
        with pytest.warns(rb.errors.FitWarning) as found:
            fits.append(start.fit(broken, 3, executor=executor))
        texts.append([str(one.message) for one in found])
    assert texts[0] == texts[1]
    assert "in 2 attempts" in texts[0][0]
    assert np.array_equal(fits[0].theta, fits[1].theta)
    assert fits[0].settings == fits[1].settings


def test_what_cannot_be_is_refused():
    for fitter in (rb.DeepEnsemble(target(200)), rb.SWAG(target(200))):
        with pytest.raises(TypeError, match=r"\.fit\] expected executor with a method submit"):
            fitter.fit(2, executor=3)
    with pytest.raises(TypeError, match="expected executor with a method submit"):
        STARTS.fit(target(), executor="processes")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("what", ["fit", "start"])
def test_ctrl_c_ends_a_fit_and_leaves_the_workers_alone(what):
    """Sent once the display has been told of work, to all processes of the group."""
    code = f"""
        import concurrent.futures, os, signal, warnings
        import numpy as np, ribbit as rb
        warnings.simplefilter("ignore")
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has none
        x = np.linspace(-1, 1, 400)[:, None]
        target = rb.Posterior(
            rb.mlp(1, (16,), 1), x, x[:, 0], prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
        )
        sent = []
        def press(note):
            if not sent:
                sent.append(note)
                os.killpg(0, signal.SIGINT)
        if __name__ == "__main__":
            ensemble = rb.DeepEnsemble(target, members=2)
            with concurrent.futures.ProcessPoolExecutor(2) as pool:
                if {what!r} == "fit":
                    fit = ensemble.fit(10**6, executor=pool, progress=press)
                    print("ended", fit.complete, fit.state.step > 0)
                else:
                    start = rb.EnsembleStart(max_steps=10**8, patience=10**6)
                    try:
                        start.fit(target, 2, executor=pool, progress=press)
                    except KeyboardInterrupt:
                        print("ended", False, True)
                print("more", ensemble.fit(2, executor=pool, progress=False).complete)
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
    assert done.stdout.split() == ["ended", "False", "True", "more", "True"]
    assert "Traceback" not in done.stderr
