"""Four executors that others make: draws, a fit and starts of chains with the bits of none."""

import contextlib
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import ribbit as rb
from tests.support.executors import killed

# Short runs and fits.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ribbit.errors.FitWarning", "ignore::ribbit.errors.ConvergenceWarning"
)

WORK = """
def work(executor):
    x = np.linspace(-1, 1, 60)[:, None]
    prior, likelihood = rb.Normal(1.0), rb.Gaussian(0.3)
    target = rb.Posterior(
        rb.mlp(1, (8,), 1), x, np.sin(3 * x[:, 0]), prior=prior, likelihood=likelihood
    )
    options = {} if executor is None else {"executor": executor}
    hmc = rb.HMC(target).sample(12, warmup=30, chains=3, progress=False, **options)
    mclmc = rb.MCLMC(target).sample(9, warmup=200, chains=3, progress=False, **options)
    nuts = rb.NUTS(target).sample(6, warmup=20, chains=3, progress=False, **options)
    sgld = rb.SGLD(target, step_size=1e-5, batch_size=20).sample(
        12, thin=5, chains=3, progress=False, **options
    )
    ensemble = rb.DeepEnsemble(target, members=3, batch_size=20)
    fit = ensemble.fit(10, progress=False, **options)
    starts = rb.EnsembleStart(max_steps=100).fit(target, 3, progress=False, **options)
    runs = [run.positions for run in (hmc, mclmc, nuts, sgld)]
    return [*runs, fit.theta, starts.theta]
"""
HERE = {"np": np, "rb": rb}
exec(WORK, HERE)  # the same here and under mpiexec, where nothing of the tests can be imported
work = HERE["work"]


@contextlib.contextmanager
def loky():
    """Yield what makes the executor, or a new one where it is broken or has been shut down."""
    make = partial(pytest.importorskip("joblib.externals.loky").get_reusable_executor, 2)
    try:
        yield make
    finally:
        make().shutdown(wait=True)


@contextlib.contextmanager
def dask():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client.get_executor


MAKERS = {
    "threads": lambda: contextlib.nullcontext(partial(ThreadPoolExecutor, 2)),
    "processes": lambda: contextlib.nullcontext(partial(ProcessPoolExecutor, 2)),
    "loky": loky,
    "dask": dask,
}


@pytest.fixture(scope="module")
def alone():
    return work(None)


def equal(alone, found):
    for one, other in zip(alone, found, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("name", MAKERS)
def test_an_executor_gives_the_same_bits(name, alone):
    with MAKERS[name]() as make, make() as executor:
        equal(alone, work(executor))


def test_a_class_makes_an_executor(alone):
    equal(alone, work(ThreadPoolExecutor))


class Killing:
    """An executor of which a worker is killed by its task number `task`."""

    def __init__(self, executor, task):
        self._executor, self.left = executor, task

    def __getattr__(self, name):
        return getattr(self._executor, name)

    def submit(self, function, *arguments):
        self.left -= 1
        if self.left == 0:
            return self._executor.submit(killed, function, *arguments)
        return self._executor.submit(function, *arguments)


@pytest.mark.parametrize("name", ["processes", "loky", "dask"])
def test_a_killed_worker_changes_no_bit(name, alone):
    made = []

    def make_one():
        made.append(Killing(make(), 0 if made else 4))  # a worker of the first executor
        return made[-1]

    with MAKERS[name]() as make:
        equal(alone, work(make_one))
    assert made[0].left <= 0


def test_pools_that_break_again_and_again_end_the_run(tmp_path):
    """A script that its own workers begin by running, since nothing stands under __main__."""
    script = f"""
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        import numpy as np, ribbit as rb
        {textwrap.indent(WORK, " " * 8).strip()}
        spawn = multiprocessing.get_context("spawn")
        work(lambda: ProcessPoolExecutor(2, mp_context=spawn))
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "two executors broke before a task came back" in done.stderr
    assert "under if __name__ == '__main__':" in done.stderr


def launcher():
    """The mpiexec of the environment that the tests run in, or the system's."""
    here = Path(sysconfig.get_path("scripts")) / "mpiexec"
    return str(here) if here.exists() else shutil.which("mpiexec")


def test_mpi_gives_the_same_bits(tmp_path, alone):
    """Two workers and the one who asks, each a process of MPI."""
    pytest.importorskip("mpi4py")
    if launcher() is None:
        pytest.skip("needs mpiexec")
    script = f"""
        import warnings
        import numpy as np, ribbit as rb
        from mpi4py.futures import MPIPoolExecutor
        warnings.simplefilter("ignore")
        {textwrap.indent(WORK, " " * 8).strip()}
        if __name__ == "__main__":
            with MPIPoolExecutor() as pool:
                np.savez("found.npz", *work(pool))
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    command = [launcher(), "-n", "3", sys.executable, "-m", "mpi4py.futures", "script.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with np.load(tmp_path / "found.npz") as found:
        for number, one in enumerate(alone):
            assert np.array_equal(one, found[f"arr_{number}"])


def test_another_seed_would_be_noticed(alone):
    x = np.linspace(-1, 1, 60)[:, None]
    target = rb.Posterior(
        *(rb.mlp(1, (8,), 1), x, np.sin(3 * x[:, 0])),
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(0.3),
    )
    found = rb.NUTS(target).sample(6, warmup=20, chains=3, progress=False, seed=1)
    assert not np.array_equal(alone[0], found.positions)
