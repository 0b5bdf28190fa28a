"""Folders of other runs, of other things, and of resumed runs."""

import concurrent.futures
import errno
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import ribbit as rb
from ribbit.chains import NativeChains
from ribbit.errors import DataError, RibbitWarning
from ribbit.store import Lock, difference, writer
from tests.durability.lines import X, Y, posterior

pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.RibbitWarning")  # short runs

CALL = {"warmup": 5, "chains": 2, "seed": 1, "progress": False}


def _hmc(**options: object) -> rb.HMC:
    return rb.HMC(posterior(), **{"step_size": 0.02, "num_leapfrog_steps": 3, **options})


OTHERS = {
    "num_draws=21": lambda s: _hmc().sample(21, store=s, **CALL),
    "seed=2": lambda s: _hmc().sample(20, store=s, **{**CALL, "seed": 2}),
    "chains=3": lambda s: _hmc().sample(20, store=s, **{**CALL, "chains": 3}),
    "thin=2": lambda s: _hmc().sample(20, store=s, thin=2, **CALL),
    "save_warmup=True": lambda s: _hmc().sample(20, store=s, save_warmup=True, **CALL),
    "step_size='0.03'": lambda s: _hmc(step_size=0.03).sample(20, store=s, **CALL),
    "sampler='NUTS'": lambda s: rb.NUTS(posterior(), step_size=0.02).sample(20, store=s, **CALL),
    "init=": lambda s: _hmc().sample(20, store=s, init=posterior().init(seed=7), **CALL),
    "predict_at=": lambda s: _hmc().sample(20, store=s, predict_at=X, **CALL),
    "store.dtype='float16'": lambda s: _hmc().sample(
        20, store=rb.Store(s, dtype="float16"), **CALL
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("refusals") / "run"
    _hmc().sample(20, store=path, **CALL)
    return path


@pytest.mark.parametrize("name", OTHERS)
def test_another_run_is_refused_by_name(folder: Path, name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"has {name}")) as refused:
        OTHERS[name](folder)
    assert not isinstance(refused.value, DataError)  # the folder is whole


def test_another_target_is_refused_by_name(folder: Path) -> None:
    other = rb.Posterior(
        rb.mlp(1, (6,), 1),
        X,
        Y + 1.0,
        prior=rb.Normal(1.0),
        likelihood=rb.Gaussian(),
        dtype=np.float64,
    )
    hmc = rb.HMC(other, step_size=0.02, num_leapfrog_steps=3)
    text = r"holds a run of a target with another data\."
    with pytest.raises(ValueError, match=text) as refused:
        hmc.sample(20, store=folder, **CALL)
    assert not isinstance(refused.value, DataError)


def test_all_that_is_other_about_a_target_is_named(tmp_path: Path) -> None:
    def run(sd: float, shards: int, rows: int = 40) -> rb.Draws:
        target = rb.Posterior(
            *(rb.mlp(1, (6,), 1), np.linspace(-1, 1, rows)[:, None], np.zeros(rows)),
            prior=rb.Normal(sd),
            likelihood=rb.Gaussian(),
            shards=shards,
        )
        hmc = rb.HMC(target, step_size=0.02, num_leapfrog_steps=3)
        return hmc.sample(5, store=tmp_path / "run", **CALL)

    run(1.0, 2)
    with pytest.raises(ValueError, match="with another number of shards"):
        run(1.0, 1)
    with pytest.raises(ValueError, match="with another prior and data"):
        run(2.0, 2, 41)


def test_another_instruction_set_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = rb.Posterior.fingerprint.fget
    fake = property(lambda self: {**real(self), "instruction set": "other"})
    monkeypatch.setattr(rb.Posterior, "fingerprint", fake)
    with pytest.raises(ValueError, match="RIBBIT_ISA="):
        _hmc().sample(20, store=folder, **CALL)


def test_the_same_line_is_not(folder: Path) -> None:
    again = _hmc().sample(20, store=rb.Store(folder, flush_seconds=2.0), **CALL)
    assert again.complete
    assert np.array_equal(again.positions, _hmc().sample(20, **CALL).positions)


def test_another_release_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ribbit.sample._versions", lambda: {"ribbit": "9.9"})
    assert _hmc().sample(20, store=folder, **CALL).settings["versions"]["ribbit"] == "9.9"


def test_a_fit_and_a_sampler_do_not_share(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds a sampler's run, not a fit"):
        rb.BBB(posterior()).fit(2, store=folder, progress=False)
    rb.BBB(posterior()).fit(2, store=tmp_path / "fit", progress=False)
    with pytest.raises(DataError, match="holds a fit, not a sampler's run"):
        _hmc().sample(20, store=tmp_path / "fit", **CALL)
    with pytest.raises(ValueError, match="num_epochs=3 where it was 2"):
        rb.BBB(posterior()).fit(3, store=tmp_path / "fit", progress=False)
    laplace = rb.LaplaceApproximation(posterior(), batch_size=8)
    with pytest.raises(ValueError, match="expected num_epochs >= 1 with store, got 0"):
        laplace.fit(0, init=posterior().init(), store=tmp_path / "b")
    with pytest.raises(ValueError, match="without keep= and dtype="):
        rb.BBB(posterior()).fit(2, store=rb.Store(tmp_path / "a", dtype="float16"))


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match=r"store must be a new or empty folder.*thesis\.tex"):
        _hmc().sample(20, store=tmp_path, **CALL)
    with pytest.raises(NotADirectoryError, match="got the file"):
        _hmc().sample(20, store=tmp_path / "thesis.tex", **CALL)
    assert os.listdir(tmp_path) == ["thesis.tex"]
    with pytest.raises(FileNotFoundError, match="without a run"):
        rb.load(tmp_path)


def test_files_and_folders_are_told_apart(tmp_path: Path) -> None:
    run, fit = tmp_path / "run", tmp_path / "fit"
    draws = _hmc().sample(4, store=run, **CALL)
    draws.save(tmp_path / "draws.npz")
    rb.BBB(posterior()).fit(2, store=fit, progress=False)
    kinds = [type(rb.load(path)) for path in (run, tmp_path / "draws.npz", fit)]
    assert kinds == [rb.Draws, rb.Draws, rb.MeanField]
    for part in ("state", "state.previous", "positions.bin"):
        with pytest.raises(ValueError, match=rf"a part of a run: use rb.load\('{run}'\)"):
            rb.load(run / part)
    with pytest.raises(FileNotFoundError, match="or the folder of a run, got none at"):
        rb.load(tmp_path / "nothing")
    with pytest.raises(NotADirectoryError, match=r"\[HMC.sample\] store must be a folder that"):
        _hmc().sample(4, store=tmp_path / "draws.npz" / "run", **CALL)


def test_more_draws_or_epochs_in_a_folder_say_how_to_go_on(tmp_path: Path) -> None:
    run, call = tmp_path / "run", {**CALL, "seed": 3}
    _hmc().sample(4, store=run, **call)
    with pytest.raises(
        ValueError, match=r"num_draws=10 where it was 4. To continue, draws = .*"
    ) as one:
        _hmc().sample(10, store=run, **call)
    assert f"rb.load('{run}'), then more = ...sample(6, resume=draws, " in str(one.value)
    with pytest.raises(ValueError, match=r"num_draws=3 where it was 4\. Give this run a folder"):
        _hmc().sample(3, store=run, **call)
    draws = rb.load(run)  # as it says
    more = _hmc().sample(6, resume=draws, store=tmp_path / "more", progress=False)
    both = np.asarray(rb.concatenate([draws, more]).positions)
    assert (both == _hmc().sample(10, **call).positions).all()
    fit = rb.BBB(posterior())
    fit.fit(2, store=tmp_path / "fit", progress=False)
    with pytest.raises(ValueError, match=r"then more = \.\.\.fit\(3, resume=fit, store="):
        fit.fit(5, store=tmp_path / "fit", progress=False)


def test_what_a_kill_leaves_before_the_first_state_is_no_other_thing(tmp_path: Path) -> None:
    for name, data in {"state.new": b"{", "positions.bin": b"", "stats.bin": b""}.items():
        (tmp_path / name).write_bytes(data)
    assert _hmc().sample(20, store=tmp_path, **CALL).complete
    os.unlink(tmp_path / "state")
    with pytest.raises(ValueError, match=r"positions\.bin in it. Its state is missing: rename"):
        _hmc().sample(20, store=tmp_path, **CALL)
    assert (tmp_path / "positions.bin").stat().st_size > 0


def test_a_call_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected distinct chain ids"):
        _hmc().sample(20, store=tmp_path / "a", **{**CALL, "chains": [1, 1]})
    assert not (tmp_path / "a").exists()


def test_a_second_process_is_refused(folder: Path) -> None:
    lock = Lock("test", folder)
    try:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            error = pool.submit(Lock, "test", folder).exception()
        assert f"process {os.getpid()} on" in str(error)
        with pytest.raises(ValueError, match=f"process {os.getpid()} on {socket.gethostname()}"):
            _hmc().sample(20, store=folder, **CALL)
        code = (
            "import sys; from pathlib import Path; from ribbit.store import Lock\n"
            "try: Lock('test', Path(sys.argv[1]))\nexcept ValueError as e: print(e)"
        )
        told = subprocess.run(
            [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
        )
        assert f"process {os.getpid()} on" in told.stdout
        assert "needs group=" not in told.stdout
        told = subprocess.run(
            [sys.executable, "-c", code, str(folder)],
            env={**os.environ, "PMI_RANK": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert "needs group=" in told.stdout
        assert rb.load(folder).complete  # readers need no lock
    finally:
        lock.release()
    assert not (folder / "lock").exists()


@pytest.mark.parametrize("fits", [False, True], ids=["sample", "fit"])
def test_ctrl_c_as_a_folder_opens_leaves_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: bool
) -> None:
    lock = fcntl.flock

    def pressed(*arguments: int) -> None:
        lock(*arguments)
        signal.raise_signal(signal.SIGINT)

    def call() -> rb.Draws | rb.MeanField:
        if fits:
            return rb.BBB(posterior()).fit(2, store=tmp_path / "a", progress=False)
        return _hmc().sample(20, store=tmp_path / "a", **CALL)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has none
    try:
        monkeypatch.setattr(fcntl, "flock", pressed)
        with pytest.raises(KeyboardInterrupt):
            call()
    finally:
        signal.signal(signal.SIGINT, before)
    monkeypatch.undo()
    assert call().complete


def test_a_failing_call_leaves_the_folder_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    for name in ("own", "new"):
        with pytest.raises(rb.errors.ShapeError):
            _hmc().sample(20, store=tmp_path / name, init=[1.0, 2.0], progress=False)
    assert (tmp_path / "own").exists()
    assert not (tmp_path / "new").exists()


def test_a_folder_says_how_its_run_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hmc, advance = _hmc(), NativeChains.advance

    def failing(self: NativeChains, *rest: object) -> object:
        if self.step > 60:
            raise RuntimeError("no power")
        return advance(self, *rest)

    monkeypatch.setattr(NativeChains, "advance", failing)
    with pytest.raises(RuntimeError, match="no power") as caught:
        hmc.sample(100_000, store=tmp_path / "a", **CALL)
    found = rb.load(tmp_path / "a")
    assert found.settings["stopped"]["reason"] == "an exception"
    assert found.settings["stopped"] == caught.value.draws.settings["stopped"]
    # Readers judge the draws by the monitored quantities, although their batch is not complete.
    assert found.monitored is not None
    assert found.monitored.shape[1] == len(found) > 0


_HOLDS = """
import os, sys, time
from pathlib import Path
from ribbit.store import Lock
lock = Lock("test", Path(sys.argv[1]))
"""


def test_a_lock_of_a_dead_process_is_taken(folder: Path) -> None:
    killed = _HOLDS + "os.kill(os.getpid(), 9)"
    gone = subprocess.run([sys.executable, "-c", killed, str(folder)], check=False)
    assert gone.returncode == -9
    assert (folder / "lock").read_text().startswith("process ")
    assert writer(folder) is None
    assert _hmc().sample(20, store=folder, **CALL).complete
    assert not (folder / "lock").exists()


def test_a_fork_does_not_hold_the_lock(folder: Path) -> None:
    """A worker that is forked during a run may live longer than the writer."""
    code = _HOLDS + "os.fork() or (lock.release(), print(os.getpid(), flush=True)); time.sleep(60)"
    writes = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True
    )
    fork = int(writes.stdout.readline())
    try:
        assert writer(folder) == f"process {writes.pid} on {socket.gethostname()}"
        with pytest.raises(ValueError, match=f"process {writes.pid} on"):
            Lock("test", folder)
        writes.kill()
        writes.wait()
        Lock("test", folder).release()
    finally:
        writes.kill()
        os.kill(fork, signal.SIGKILL)


def test_a_look_at_the_lock_refuses_no_run(folder: Path) -> None:
    with open(folder / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        timer = threading.Timer(0.01, fcntl.flock, (file, fcntl.LOCK_UN))
        timer.start()
        Lock("test", folder).release()
        timer.join()


def test_a_file_system_without_locks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.warns(RibbitWarning, match=r"without locks\. Do not start a second run"):
        lock = Lock("test", folder)
    assert writer(folder) == f"process {os.getpid()} on {socket.gethostname()}"
    lock.release()
    assert writer(folder) is None


def test_an_option_that_did_not_exist_yet_is_one_not_given(tmp_path):
    before = {"settings": {"thin": 1}, "chains": 2}
    now = {"settings": {"thin": 1, "step_limit": None}, "chains": 2}
    assert difference("f", tmp_path, before, now) is None
    now["settings"]["step_limit"] = 0.25
    assert "step_limit=0.25 where it was None" in str(difference("f", tmp_path, before, now))
    assert "step_limit=None" in str(difference("f", tmp_path, now, before))
