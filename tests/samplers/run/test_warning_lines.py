"""Warnings point at the line of the program that called the library."""

import functools
import inspect
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ribbit as rb
from ribbit._arrays.warning import warn

X = np.linspace(-1.0, 1.0, 20)[:, None]
TARGET = rb.Posterior(
    rb.mlp(1, (3,), 1), X, 2.0 * X, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
)
STUCK = rb.HMC(TARGET, step_size=1e3, num_leapfrog_steps=3)
FIT = {"seed": 0, "progress": False}


def sample(**more):
    return STUCK.sample(12, warmup=0, chains=2, seed=0, progress=False, **more)


def wait_for_a_run_in_a_thread():
    run = STUCK.sample(12, warmup=0, chains=2, seed=0, blocking=False)
    return run.wait()


CALLS = {
    "sample": sample,
    "a run on an executor": lambda: sample(executor=lambda: ThreadPoolExecutor(2)),
    "a run in a thread": wait_for_a_run_in_a_thread,
    "BBB": lambda: rb.BBB(TARGET, schedule=rb.schedules.cosine(3)).fit(20, **FIT),
    "MCDropout": lambda: rb.MCDropout(
        rb.Posterior(
            rb.Model((rb.Dense(3), rb.Dropout(0.1), rb.Dense(1)), input_shape=(1,)),
            *(X, 2.0 * X),
            prior=rb.Normal(1.0),
            likelihood=rb.Gaussian(0.3),
        ),
        schedule=rb.schedules.cosine(3),
    ).fit(20, **FIT),
    "DeepEnsemble": lambda: rb.DeepEnsemble(TARGET, schedule=rb.schedules.cosine(3)).fit(20, **FIT),
    "LaplaceApproximation": lambda: rb.LaplaceApproximation(
        TARGET, schedule=rb.schedules.cosine(3)
    ).fit(20, **FIT),
    "the scale of a posterior": lambda: rb.Posterior(
        rb.mlp(1, (3,), 1), 1e3 + X, X, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ),
    "a prior that changes nothing": lambda: rb.Posterior(
        rb.mlp(1, (3,), 1),
        *(X, X),
        prior={"*": rb.Normal(1.0), "0.weight": rb.Normal(3.0)},
        likelihood=rb.Gaussian(0.3),
    ),
    "a call through the standard library": lambda: functools.reduce(
        lambda _, call: call(), [sample], None
    ),
}


def recorded(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return caught


@pytest.mark.parametrize("name", CALLS)
def test_a_warning_points_here(name):
    caught = recorded(CALLS[name])
    assert caught
    for one in caught:
        assert issubclass(one.category, rb.errors.RibbitWarning)
        assert one.filename == __file__, f"{one.filename}:{one.lineno}"


def test_the_line_is_that_of_the_call():
    (one,) = recorded(sample)
    lines, first = inspect.getsourcelines(sample)
    assert first < one.lineno < first + len(lines)


def test_a_thread_without_a_line_of_the_user():
    """All of its frames are the library's and Python's."""
    done = threading.Thread(
        target=STUCK.sample, args=(12,), kwargs={"warmup": 0, "chains": 2, **FIT}
    )
    caught = recorded(lambda: (done.start(), done.join()))
    assert caught
    assert all(one.filename == threading.__file__ for one in caught)


def test_a_filter_by_module_is_that_of_the_caller():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", module=__name__.replace(".", r"\."))
        warn("[f] expected nothing, got nothing")


SCRIPT = """
import ribbit as rb
from ribbit._arrays.warning import warn
warn("[f] expected nothing, got nothing")
"""


def test_the_main_program_is_the_users(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    run = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60)
    assert f"{path}:4: RibbitWarning: [f]" in run.stderr
