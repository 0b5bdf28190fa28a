"""Files of draws: everything comes back, damage is named, a kill leaves the old file."""

import json
import os
import re
import stat
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from ribbit import Store
from ribbit.errors import DataError
from ribbit.samplers import HMC
from ribbit.store import load
from tests.support.targets import OPTIONS, Gaussian, equal, posterior, same


@pytest.fixture(scope="module")
def target():
    return posterior()


@pytest.fixture(scope="module")
def draws(target):
    return HMC(target, **OPTIONS["adapted"]).sample(
        6, warmup=40, chains=2, seed=2**64 - 1, save_warmup=True
    )


@pytest.fixture
def saved(draws, tmp_path):
    path = tmp_path / "run.ribbit"
    draws.save(path)
    return path


def test_round_trip(draws, saved):
    back = load(saved)
    equal(draws, back)
    assert same(draws.warmup_positions, back.warmup_positions)
    for name, value in draws.warmup_stats.items():
        assert same(value, back.warmup_stats[name])
    assert back.complete is True
    assert back.settings == draws.settings
    assert bytes(draws.state) == bytes(back.state)
    assert (back.state.step, back.state.seed, back.state.warmup) == (46, 2**64 - 1, 40)
    assert [p.name for p in saved.parent.iterdir()] == ["run.ribbit"]  # no suffix, no leftovers


def test_predict_and_resume_after_loading(draws, saved, target):
    back = load(str(saved))
    x = np.random.default_rng(0).normal(size=(5, 3))
    p, q = draws.predict(x), back.predict(x)
    assert same(p.mean, q.mean)
    assert same(p.std, q.std)
    assert p.log_likelihood(np.ones(5)) == q.log_likelihood(np.ones(5))
    hmc = HMC(target, **OPTIONS["adapted"])
    equal(hmc.sample(4, resume=draws), hmc.sample(4, resume=back))
    back.save(saved)  # over itself
    equal(draws, load(saved))


# short chains: what is gathered is compared before and after
@pytest.mark.filterwarnings("ignore::ribbit.errors.ConvergenceWarning")
@pytest.mark.parametrize("size", [30, 700])  # all draws are kept, and some
def test_gathered_predictions_are_saved(target, tmp_path, size, monkeypatch):
    monkeypatch.setattr("ribbit.results.running._KEPT", 10_000)
    x, y = np.ones((5, 3)), np.ones(5)
    hmc = HMC(target, step_size=0.02, num_leapfrog_steps=1)
    run = hmc.sample(size, chains=2, predict_at=(x, y), save_draws=False)
    run.save(tmp_path / "p")
    p, q = run.prediction, load(tmp_path / "p").prediction
    for name in ("mean", "std", "epistemic_std", "aleatoric_std"):
        assert same(getattr(p, name), getattr(q, name))
    assert same(p.credible_quantile([0.1, 0.6]), q.credible_quantile([0.1, 0.6]))
    assert same(p.quantile([0.1, 0.6]), q.quantile([0.1, 0.6]))
    assert same(p.sample(9, seed=1), q.sample(9, seed=1))
    assert (p.running._thin > 1) == (q.running._thin > 1) == (size == 700)
    assert p.log_likelihood() == q.log_likelihood()
    assert q.num_draws == 2 * size


def test_draws_of_a_plain_density(tmp_path):
    draws = HMC(Gaussian([1.0, 2.0]), step_size=0.1, num_leapfrog_steps=2).sample(3, init=[0, 0])
    draws.save(tmp_path / "plain")
    back = load(tmp_path / "plain")
    equal(draws, back)
    assert back.predictive is None
    assert back.state.inverse_mass_matrix is None


def test_a_numpy_user_can_open_it(saved, draws):
    with np.load(saved, allow_pickle=False) as archive:
        assert same(archive["positions"], draws.positions)
        assert json.loads(archive["header"].tobytes())["format"] == "ribbit draws"


def test_every_truncation_is_named(saved, tmp_path):
    data = saved.read_bytes()
    for size in [0, 1, 3, 4, 30, 100, *range(200, len(data), len(data) // 40), len(data) - 1]:
        (tmp_path / "cut").write_bytes(data[:size])
        with pytest.raises(DataError, match=r"^\[load\] (.*cut is damaged|.*got another format)"):
            load(tmp_path / "cut")


def test_flipped_bytes_never_crash(saved, draws, tmp_path):
    """Either an error that says so, or (in a part that carries nothing) the same draws."""
    data, rng = saved.read_bytes(), np.random.default_rng(0)
    caught = 0
    for place in rng.integers(0, len(data), size=150):
        damaged = bytearray(data)
        damaged[place] ^= 1 << rng.integers(8)
        (tmp_path / "bad").write_bytes(damaged)
        try:
            back = load(tmp_path / "bad")
        except DataError:
            caught += 1
        else:
            equal(draws, back)
    assert caught > 75


def write(path, header, **arrays):
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with open(path, "wb") as file:
        np.savez(file, header=text, **arrays)


def test_foreign_files(tmp_path):
    path = tmp_path / "other"
    for content in (b"hello", b"\x93NUMPY", b"PK\x03\x04" + b"\0" * 100, b"\x80\x04K\x01."):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"\[load\]"):
            load(path)
    np.save(tmp_path / "a.npy", np.zeros(3))
    np.savez(tmp_path / "a.npz", positions=np.zeros(3))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("text", "hello")
    for name in ("a.npy", "a.npz", "a.zip"):
        with pytest.raises(DataError, match=r"\[load\]"):
            load(tmp_path / name)
    write(path, {"format": "something else"})
    with pytest.raises(DataError, match="another format"):
        load(path)
    write(path, {"format": "ribbit draws", "version": 99})
    with pytest.raises(DataError, match="has format version 99"):
        load(path)
    write(path, {"format": "ribbit draws", "version": 1})
    with pytest.raises(DataError, match="damaged or foreign"):
        load(path)


def test_no_pickle_is_ever_read(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "boom"),)

    header = {"format": "ribbit draws", "version": 1, "state": {"step": 0, "seed": 0, "warmup": 0}}
    write(tmp_path / "bomb", header, positions=np.array([Bomb()], dtype=object))
    with pytest.raises(DataError):
        load(tmp_path / "bomb")
    assert not (tmp_path / "boom").exists()


def test_missing_files_and_bad_paths(draws, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"^\[load\] path must be a file .* got none at"):
        load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"^\[load\] .* got a folder without a run: "):
        load(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=re.escape(f"got none at {tmp_path / 'no'}")):
        load("no")
    with pytest.raises(FileNotFoundError):
        draws.save(tmp_path / "no" / "folder")
    for bad in (3, None, b"x"):
        with pytest.raises(TypeError, match="a path"):
            draws.save(bad)
        with pytest.raises(TypeError, match="a path"):
            load(bad)
    with pytest.raises(OSError, match=r"."):
        draws.save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_order_of_the_disk_operations(draws, tmp_path, monkeypatch):
    """Data is on the disk before the name, the name before the folder is flushed."""
    log = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor):
        log.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        real_sync(descriptor)

    def replace(source, destination):
        assert os.path.dirname(source) == os.path.dirname(destination)
        log.append("rename")
        real_replace(source, destination)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    draws.save(tmp_path / "x")
    assert log == ["file", "rename", "folder"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_a_failed_save_leaves_the_old_file(draws, saved, monkeypatch, where):
    before = saved.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, where, fail)
    with pytest.raises(OSError, match="disk full"):
        draws.save(saved)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == ["run.ribbit"]


KILLED = """
import os, sys
import numpy as np
import ribbit as rb
draws = rb.load(sys.argv[1])
real = np.savez
def half(file, **arrays):
    real(file, **dict(list(arrays.items())[:3]))
    file.flush()
    os.kill(os.getpid(), 9)
np.savez = half
draws.save(sys.argv[1])
"""


def test_a_kill_while_saving_leaves_the_old_file(saved, draws):
    done = subprocess.run([sys.executable, "-c", KILLED, str(saved)], check=False)
    assert done.returncode == -9
    equal(draws, load(saved))


def test_folders_that_are_no_run_say_what_to_load(draws, target, tmp_path):
    run = tmp_path / "runs" / "first"
    HMC(target, step_size=0.05, num_leapfrog_steps=2).sample(4, warmup=0, progress=False, store=run)
    draws.save(tmp_path / "runs" / "draws.npz")
    for part in ("state", "positions.bin", "stats.bin"):
        with pytest.raises(DataError, match=re.escape(f"use rb.load({str(run)!r})")):
            load(run / part)
    with pytest.raises(FileNotFoundError, match=r"which holds draws\.npz, first$"):
        load(tmp_path / "runs")
    assert len(load(run)) == 4


def test_paths_may_begin_at_home(draws, target, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    draws.save("~/draws.npz")
    HMC(target, step_size=0.05, num_leapfrog_steps=2).sample(
        4, warmup=0, progress=False, store=Store("~/run")
    )
    assert len(load("~/draws.npz")) == len(draws)
    assert len(load(tmp_path / "run")) == len(load("~/run")) == 4
