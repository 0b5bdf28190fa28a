"""Disks that are full, folders that go away."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import ribbit as rb
from tests.durability.lines import posterior
from tests.support.paths import ROOT

pytest.importorskip("zarr")
pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.RibbitWarning")  # short runs

CALL = {"warmup": 5, "chains": 2, "seed": 1, "progress": False}


class Meddling:
    """A target that does something to the folder once some gradients were asked for."""

    def __init__(self, deed: object, after: int) -> None:
        self._target, self._deed, self._left = posterior(), deed, after
        self.dim, self.dtype, self.init = self._target.dim, self._target.dtype, self._target.init

    def value_and_grad(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._left -= 1
        if self._left == 0:
            self._deed()
            time.sleep(0.2)  # the thread that writes notices before the run ends
        return self._target.value_and_grad(theta)


def _hmc(target: object) -> rb.HMC:
    return rb.HMC(target, step_size=0.02, num_leapfrog_steps=3)


def _remove(folder: Path) -> None:
    while folder.exists():  # a chunk may be written meanwhile
        shutil.rmtree(folder, ignore_errors=True)


def _forbid(folder: Path) -> None:
    # Root may write anywhere, so a folder takes the place of a file instead.
    for path in (folder / "sample_stats").glob("*/.c.0.0.tmp"):
        path.unlink()
    (folder / "sample_stats" / "lp" / ".c.0.0.tmp").mkdir()


@pytest.mark.parametrize("deed", [_remove, _forbid])
def test_what_was_drawn_stays_in_memory(tmp_path: Path, deed: object) -> None:
    """The error names the cause, has the draws, and goes on elsewhere bit for bit."""
    folder = tmp_path / "run"
    alone = _hmc(posterior()).sample(3000, **CALL)
    target = Meddling(lambda: deed(folder), 700)
    with pytest.raises(
        OSError, match=r"expected to write the run in .*the same call resumes"
    ) as got:
        _hmc(target).sample(3000, store=rb.Store(folder, flush_seconds=1e-2), **CALL)
    draws = got.value.draws
    count = draws.positions.shape[1]
    assert 100 < count < 3000
    assert not draws.complete
    assert np.array_equal(draws.positions, alone.positions[:, :count])
    rest = _hmc(posterior()).sample(3000 - count, resume=draws.state, progress=False)
    assert np.array_equal(rest.positions, alone.positions[:, count:])


_FULL = """
import resource, sys, warnings
import numpy as np
import ribbit as rb
from tests.durability.lines import posterior
warnings.simplefilter("ignore")
import zarr
folder, limit = sys.argv[1], int(sys.argv[2])
hmc = rb.HMC(posterior(), step_size=0.02, num_leapfrog_steps=3)
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
try:
    store = rb.Store(folder, flush_seconds=1e-2)
    draws = hmc.sample(2000, warmup=5, chains=2, seed=1, progress=False, store=store)
except OSError as error:
    print(type(error).__name__, error)
    kept = error.draws.positions
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    opened = rb.load(folder).positions
    assert np.array_equal(opened, kept[:, :opened.shape[1]])
    draws = hmc.sample(2000, warmup=5, chains=2, seed=1, progress=False, store=folder)
    assert np.array_equal(draws.positions[:, :kept.shape[1]], kept)
    print("went on")
assert np.array_equal(draws.positions, hmc.sample(
    2000, warmup=5, chains=2, seed=1, progress=False).positions)
print("complete")
"""


@pytest.mark.parametrize("limit", [20_000, 200_000])
def test_a_full_disk(tmp_path: Path, limit: int) -> None:
    """A limit on the size of files fails as a full disk does: in the middle of a write."""
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path / "run"), str(limit)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "OSError" in done.stdout
    assert "File too large" in done.stdout
    assert done.stdout.endswith("went on\ncomplete\n")


_NO_ROOM = """
import resource, sys
import ribbit as rb
from tests.durability.lines import posterior
hmc = rb.HMC(posterior(), step_size=0.02, num_leapfrog_steps=3)
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
for _ in range(2):
    try:
        hmc.sample(20, warmup=5, progress=False, store=sys.argv[1])
    except OSError as error:
        print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
assert hmc.sample(20, warmup=5, progress=False, store=sys.argv[1]).complete
print("went on")
"""


def test_no_room_for_the_lock(tmp_path: Path) -> None:
    """Not even who holds the folder can be written: nobody does afterwards."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _NO_ROOM, str(tmp_path / "run")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert lines[0] == lines[1]
    assert "got File too large: " in lines[0]
    assert lines[0].count(str(tmp_path / "run" / "lock")) == 1


def test_an_error_of_the_target_keeps_what_was_drawn(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("theirs")

    with pytest.raises(RuntimeError, match="theirs") as got:
        _hmc(Meddling(fail, 600)).sample(3000, store=tmp_path / "run", **CALL)
    count = got.value.draws.positions.shape[1]
    assert np.array_equal(rb.load(tmp_path / "run").positions, got.value.draws.positions)
    assert count > 100
    again = _hmc(Meddling(lambda: None, -1)).sample(3000, store=tmp_path / "run", **CALL)
    assert np.array_equal(again.positions, _hmc(posterior()).sample(3000, **CALL).positions)


_TERM = """
import os, signal, sys, warnings
from tests.durability.lines import posterior
import ribbit as rb
warnings.simplefilter("ignore")
def progress(note):
    if note["elapsed"] > 0.5:
        os.kill(os.getpid(), signal.SIGTERM)
hmc = rb.HMC(posterior(), step_size=0.02, num_leapfrog_steps=3)
store = rb.Store(sys.argv[1], flush_seconds=0.01)
hmc.sample(2_000_000, warmup=5, chains=2, seed=1, progress=progress, store=store)
"""


def test_sigterm_ends_the_process_and_the_run_goes_on(tmp_path: Path) -> None:
    """SIGTERM does what a kill does."""
    folder = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", _TERM, str(folder)], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")
    assert (folder / "lock").exists()
    kept = rb.load(folder).positions
    assert 0 < kept.shape[1] < 2_000_000
    again = _hmc(posterior()).sample(2_000_000, store=folder, max_seconds=0.5, **CALL)
    assert len(again) > kept.shape[1]
    assert np.array_equal(again.positions[:, : kept.shape[1]], kept)


def test_a_fit_says_so_too(tmp_path: Path) -> None:
    folder = tmp_path / "fit"

    def remove(_: object) -> None:
        if folder.exists():
            shutil.rmtree(folder)

    with pytest.raises(OSError, match="expected to write the run") as got:
        rb.BBB(posterior()).fit(
            200_000, store=rb.Store(folder, flush_seconds=0.01), progress=remove
        )
    assert got.value.fit.elbo.size > 0
    assert not os.path.exists(folder)
