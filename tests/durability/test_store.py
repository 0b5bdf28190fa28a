"""Folders of runs: killed, damaged, on full disks, read while they are written, exported."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import DataError
from ribbit.results.lazy import RoundedArray, encoded
from tests.durability.damages import (
    BEFORE,
    DRAWS,
    FILES,
    broken_off,
    damage_often,
    everything,
    line,
)
from tests.durability.lines import LINES, X, Y, difference, posterior
from tests.durability.reads import read_often, read_while, whole_run
from tests.support.paths import ROOT

pytestmark = pytest.mark.filterwarnings("ignore::ribbit.errors.RibbitWarning")  # short runs

CALL: dict[str, Any] = {"warmup": 5, "chains": 2, "seed": 1, "progress": False}
AT = np.linspace(-1.0, 1.0, 5)[:, None]


def _hmc(target: object = None) -> rb.HMC:
    target = posterior() if target is None else target
    return rb.HMC(target, step_size=0.02, num_leapfrog_steps=3)


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # In a process of its own: only one without threads may fork.
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, **environment},
    )


def _durability(*arguments: str) -> str:
    done = _run("-m", "tests.durability", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_line_goes_on_after_a_kill() -> None:
    """Bit-identical to an uninterrupted run, on one thread or two."""
    kills = len(LINES)
    assert f"{kills} of {kills} bit-identical" in _durability("--kills", str(kills))


def test_a_full_disk_at_random_bytes() -> None:
    of = ["--of", "hmc", "--of", "sgld", "--of", "bbb", "--of", "laplace"]
    assert "4 of 4 bit-identical" in _durability("--full", "4", *of)


@pytest.mark.slow
def test_all_kills() -> None:
    assert "300 of 300 bit-identical" in _durability("--kills", "300")


@pytest.mark.slow
def test_all_full_disks() -> None:
    assert "50 of 50 bit-identical" in _durability("--full", "50")


def test_no_silent_load(tmp_path: Path) -> None:
    """Every kind of damage in every kind of file, of one block and of many."""
    assert damage_often(tmp_path, 30, 1).startswith("30 of 30 raised an error")


@pytest.mark.slow
def test_no_silent_load_of_many(tmp_path: Path) -> None:
    assert damage_often(tmp_path, 2_000, 1000).startswith("2000 of 2000 raised an error")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return broken_off(tmp_path_factory.mktemp("whole") / "run", 1 << 10)


def test_the_undamaged_one_opens(whole: Path) -> None:
    """The control: what is found damaged is found so because of the damage."""
    draws = rb.load(whole)
    assert draws.positions.shape[1] == DRAWS
    assert not draws.complete
    assert difference(everything(draws), everything(rb.load(whole, rescue=True))) == ""
    assert difference(everything(draws), everything(rb.load(whole, verify=False))) == ""


def test_an_old_state_beside_new_draws(whole: Path, tmp_path: Path) -> None:
    """Counts what it counted then; going on makes the same draws again."""
    folder = shutil.copytree(whole, tmp_path / "run")
    os.replace(folder / "state.previous", folder / "state")
    before, now = rb.load(folder), rb.load(whole)
    assert before.positions.shape[1] == BEFORE
    assert np.array_equal(before.positions, now.positions[:, :BEFORE])
    assert np.array_equal(line(folder).positions[:, :DRAWS], now.positions)


def test_rescued_draws_end_before_the_damage(whole: Path, tmp_path: Path) -> None:
    """At the block of a file of many, at the state before for a file of one."""
    for block in (1 << 10, 1 << 26):
        folder = broken_off(tmp_path / f"{block}", block)
        data = bytearray((folder / "positions.bin").read_bytes())
        data[-1] ^= 1
        (folder / "positions.bin").write_bytes(data)
        rescued, now = rb.load(folder, rescue=True), rb.load(whole)
        count = rescued.positions.shape[1]
        assert count == BEFORE if block == 1 << 26 else BEFORE <= count < DRAWS
        assert rescued.state is None
        assert np.array_equal(rescued.positions, now.positions[:, :count])


def test_a_damaged_state_leaves_the_one_before(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    os.truncate(folder / "state", 1000)
    with pytest.raises(DataError, match="state"):
        rb.load(folder)
    rescued = rb.load(folder, rescue=True)
    assert np.array_equal(rescued.positions, rb.load(whole).positions[:, :BEFORE])
    assert rescued.state is not None
    (folder / "state.previous").unlink()
    with pytest.raises(DataError, match="state"):
        rb.load(folder, rescue=True)


def test_another_format_is_refused(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    data = (folder / "state").read_bytes()
    (folder / "state").write_bytes(data.replace(b'"ribbit run": 1', b'"ribbit run": 2', 1))
    for use in (rb.load, line):
        with pytest.raises(DataError, match="has format 2 of a run"):
            use(folder)


@pytest.mark.parametrize("name", FILES)
def test_what_does_not_count_is_cut_off(whole: Path, tmp_path: Path, name: str) -> None:
    """A torn tail behind the counts is not read, and the next writer removes it."""
    folder = shutil.copytree(whole, tmp_path / "run")
    alone = line(tmp_path / "alone")
    torn = folder / ("state.new" if name == "state" else name)
    with open(torn, "ab") as file:
        file.write(b"torn")
    size = torn.stat().st_size
    assert difference(everything(rb.load(folder)), everything(rb.load(whole))) == ""
    assert torn.stat().st_size == size  # a reader changes nothing
    assert np.array_equal(line(folder).positions, alone.positions)
    assert (folder / "stats.bin").read_bytes() == (tmp_path / "alone/stats.bin").read_bytes()


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


def _remove(folder: Path) -> None:
    while folder.exists():  # a state may be written meanwhile
        shutil.rmtree(folder, ignore_errors=True)


def _forbid(folder: Path) -> None:
    # Root may write anywhere, so a folder takes the place of a file instead.
    while not (folder / "state.new").is_dir():
        (folder / "state.new").unlink(missing_ok=True)
        (folder / "state.new").mkdir(exist_ok=True)


@pytest.mark.parametrize("deed", [_remove, _forbid])
def test_what_was_drawn_stays_in_memory(tmp_path: Path, deed: Any) -> None:
    """The error names the cause, has the draws, and continues elsewhere bit for bit."""
    folder = tmp_path / "run"
    alone = _hmc().sample(3000, **CALL)
    target = Meddling(lambda: deed(folder), 700)
    with pytest.raises(OSError, match="could not write the run in") as got:
        _hmc(target).sample(3000, store=rb.Store(folder, flush_seconds=1e-2), **CALL)
    assert ("the same call resumes" in str(got.value)) == (deed is _forbid)  # else no state is left
    draws = got.value.draws
    count = draws.positions.shape[1]
    assert 100 < count < 3000
    assert not draws.complete
    assert np.array_equal(draws.positions, alone.positions[:, :count])
    same = Meddling(lambda: None, 0)  # a target that only Python can evaluate, like the first
    rest = _hmc(same).sample(3000 - count, resume=draws.state, progress=False)
    assert np.array_equal(rest.positions, alone.positions[:, count:])


_FULL = """
import resource, sys, warnings
import numpy as np
import ribbit as rb
from tests.durability.lines import posterior
warnings.simplefilter("ignore")
folder, limit = sys.argv[1], int(sys.argv[2])
hmc = rb.HMC(posterior(), step_size=0.02, num_leapfrog_steps=3)
call = dict(warmup=5, chains=2, seed=1, progress=False)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
for _ in range(2):
    try:
        hmc.sample(2000, store=rb.Store(folder, flush_seconds=1e-2), **call)
    except OSError as error:
        print(type(error).__name__, error)
        kept = error.draws.positions if limit else None
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
if limit:
    opened = rb.load(folder).positions
    assert np.array_equal(opened, kept[:, :opened.shape[1]])
draws = hmc.sample(2000, store=folder, **call)
if limit:
    assert np.array_equal(draws.positions[:, :kept.shape[1]], kept)
assert np.array_equal(draws.positions, hmc.sample(2000, **call).positions)
print("complete")
"""


@pytest.mark.parametrize("limit", [0, 20_000, 200_000])
def test_a_full_disk(tmp_path: Path, limit: int) -> None:
    """A limit on the size of files fails as a full disk does; 0: not even the lock fits."""
    done = _run("-c", _FULL, str(tmp_path / "run"), str(limit))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("OSError") and "File too large" in line for line in lines[:2])


def test_a_file_that_does_not_close_leaves_the_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.close

    def fail(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        original(descriptor)
        if path.endswith("positions.bin"):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "close", fail)
    with pytest.raises(OSError, match="Input/output error") as got:
        _hmc().sample(20, store=tmp_path / "run", **CALL)
    assert np.array_equal(got.value.draws.positions, _hmc().sample(20, **CALL).positions)


def test_an_error_of_the_target_keeps_what_was_drawn(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("theirs")

    with pytest.raises(RuntimeError, match="theirs") as got:
        _hmc(Meddling(fail, 600)).sample(3000, store=tmp_path / "run", **CALL)
    count = got.value.draws.positions.shape[1]
    assert np.array_equal(rb.load(tmp_path / "run").positions, got.value.draws.positions)
    assert count > 100
    again = _hmc(Meddling(lambda: None, -1)).sample(3000, store=tmp_path / "run", **CALL)
    assert np.array_equal(again.positions, _hmc().sample(3000, **CALL).positions)


@pytest.mark.parametrize("save_draws", [True, False])
def test_a_reader_of_a_resumed_run_has_monitored_quantities(
    tmp_path: Path, save_draws: bool
) -> None:
    """Of the draws of the first call: the new ones still wait for their predictions."""

    def fail() -> None:
        raise RuntimeError("theirs")

    def run(deed: object = None, after: int = -1, **options: Any) -> rb.Draws:
        options = {"save_draws": save_draws, "store": tmp_path / "run", **CALL, **options}
        return _hmc(Meddling(deed, after)).sample(300, **options)

    first = run(lambda: time.sleep(1.0), 60, max_seconds=1.0)
    assert not first.complete
    with pytest.raises(RuntimeError, match="theirs"):
        run(fail, 60)
    read = rb.load(tmp_path / "run")
    assert len(read.stats["lp"][0]) > len(first.stats["lp"][0])
    assert np.array_equal(read.monitored, first.monitored)
    assert np.array_equal(run().monitored, run(store=None).monitored)


def test_a_long_run_in_a_folder_has_the_monitored_quantities_of_one_in_memory(
    tmp_path: Path,
) -> None:
    """More draws than are shown, and than make a batch."""
    _hmc().sample(9000, store=tmp_path / "run", **CALL)
    read, alone = rb.load(tmp_path / "run"), _hmc().sample(9000, **CALL)
    assert alone.settings["monitored"]["every"] == 2
    assert read.settings["monitored"] == alone.settings["monitored"]
    assert np.array_equal(read.monitored, alone.monitored)


def test_an_error_after_the_last_draw_leaves_a_run_to_finish(tmp_path: Path) -> None:
    """The same call adds no draw, but the monitored quantities and the reason of the end."""

    def fail(note: dict[str, Any]) -> None:
        if note["done"] == note["total"]:
            raise RuntimeError("theirs")

    options = {"save_draws": False, "predict_at": AT, "store": tmp_path / "run"}
    with pytest.raises(RuntimeError, match="theirs"):
        _hmc().sample(20, **{**CALL, **options, "progress": fail})
    assert not rb.load(tmp_path / "run").complete
    again, read = _hmc().sample(20, **CALL, **options), rb.load(tmp_path / "run")
    assert read.complete
    assert read.settings["stopped"] == {"reason": "num_draws", "draws": 20}
    assert np.array_equal(read.monitored, again.monitored)


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
    done = _run("-c", _TERM, str(folder))
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")
    assert (folder / "lock").exists()
    kept = rb.load(folder).positions
    assert 0 < kept.shape[1] < 2_000_000
    again = _hmc().sample(2_000_000, store=folder, max_seconds=0.5, **CALL)
    assert len(again) > kept.shape[1]
    assert np.array_equal(again.positions[:, : kept.shape[1]], kept)


def test_a_fit_says_so_too(tmp_path: Path) -> None:
    folder = tmp_path / "fit"

    def remove(_: object) -> None:
        if folder.exists():
            shutil.rmtree(folder)

    store = rb.Store(folder, flush_seconds=0.01)
    with pytest.raises(OSError, match="could not write the run") as got:
        rb.BBB(posterior()).fit(200_000, store=store, progress=remove)
    assert got.value.fit.elbo.size > 0
    assert not os.path.exists(folder)


def test_a_finished_run_needs_no_place_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write anywhere, so that opening a file for writing fails instead."""
    original = os.open

    def readonly(path: Any, flags: int, *more: int) -> int:
        if flags & os.O_RDWR and str(tmp_path) in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, flags, *more)

    def run() -> list[np.ndarray]:
        store = {"store": tmp_path / "run", "progress": False}
        draws = _hmc().sample(20, warmup=5, chains=2, seed=1, **store)
        bbb = rb.BBB(posterior()).fit(3, store=tmp_path / "fit", progress=False)
        laplace = rb.LaplaceApproximation(posterior(), batch_size=8)
        fit = laplace.fit(3, store=tmp_path / "laplace", progress=False)
        return [draws.positions, draws.stats["lp"], bbb.mean, fit.factor]

    first = run()
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    monkeypatch.setattr(os, "open", readonly)
    again = run()
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} == before
    with pytest.raises(OSError, match="could not write the run"):
        _hmc().sample(20, store=tmp_path / "other", **CALL)
    with pytest.raises(ValueError, match="seed=2 where it was 1"):
        _hmc().sample(20, store=tmp_path / "run", **{**CALL, "seed": 2})


def test_the_folder_has_the_covariance(tmp_path: Path) -> None:
    """The training continues, the covariance is there in the end, and the history comes once."""
    laplace = rb.LaplaceApproximation(posterior(), batch_size=8)
    first = laplace.fit(100, progress=False)
    for resume in (None, first):
        alone = laplace.fit(100, resume=resume, progress=False)
        store = tmp_path / f"{resume is None}"
        for _ in range(2):  # the second one finds everything there
            fit = laplace.fit(100, resume=resume, progress=False, store=store)
            assert np.array_equal(fit.history["epoch"], alone.history["epoch"])
            loaded = rb.load(store)  # which has the epochs of its own training
            own = loaded.history["epoch"]
            assert np.array_equal(own, alone.history["epoch"][-len(own) :])
            for found in (fit, loaded):
                assert np.array_equal(found.factor, alone.factor)
                assert found.complete


@pytest.mark.parametrize("name", ["hmc", "sghmc"])
def test_goes_on_from_a_folder_on_a_device(device: ModuleType, tmp_path: Path, name: str) -> None:
    x, y = device.asarray(X), device.asarray(Y)
    prior, likelihood = rb.Normal(1.0), rb.Gaussian(0.3)
    options = {"prior": prior, "likelihood": likelihood, "dtype": np.float64}
    target = rb.Posterior(rb.mlp(1, (4,), 1), x, y, **options)
    sampler: Any = rb.SGHMC(target, step_size=1e-5, batch_size=8)
    if name == "hmc":
        sampler = rb.HMC(target, step_size="auto", num_leapfrog_steps=3)
    call = {**CALL, "warmup": 8}
    alone = sampler.sample(8, **call)
    store = rb.Store(tmp_path / "run", flush_seconds=1e-4)
    calls = 0
    while not (draws := sampler.sample(8, store=store, max_seconds=1e-6, **call)).complete:
        calls += 1
    assert calls >= 8
    assert np.array_equal(draws.positions, alone.positions.get())
    if name == "hmc":
        assert bytes(draws.state) == bytes(alone.state)
    else:
        assert np.array_equal(draws.state.position.get(), alone.state.position.get())
    assert np.array_equal(rb.load(tmp_path / "run").positions, draws.positions)


def test_mapped_draws_are_those_in_memory(tmp_path: Path) -> None:
    ram = _hmc().sample(70, **CALL)
    after = _hmc().sample(70, store=tmp_path / "run", **CALL)
    disk = rb.load(tmp_path / "run")
    for found in (after, disk):
        assert isinstance(found.positions, np.memmap)
        assert np.array_equal(ram.positions, found.positions)
        with pytest.raises(ValueError, match="read-only"):
            found.positions[0, 0, 0] = 1.0
    p, q = ram.predict(AT), disk.predict(AT)
    np.testing.assert_allclose(p.mean, q.mean, rtol=1e-12)
    np.testing.assert_allclose(p.std, q.std, rtol=1e-9)
    np.testing.assert_allclose(p.quantile([0.1, 0.9]), q.quantile([0.1, 0.9]), rtol=1e-9)
    assert np.array_equal(p.sample(7), q.sample(7))
    diagnostics = rb.diagnostics
    for rhat in (diagnostics.weight_rhat, lambda draws: diagnostics.predictive_rhat(draws, AT)):
        assert np.array_equal(rhat(ram), rhat(disk))
    now, then = (dataclasses.replace(draws, seconds=1.0) for draws in (ram, disk))
    assert now.summary(AT).text == then.summary(AT).text
    disk.save(tmp_path / "draws.npz")
    assert np.array_equal(rb.load(tmp_path / "draws.npz").positions, ram.positions)


KEYS = [..., 1, (-1, -1), np.s_[:, 5:50:7], np.s_[1, 5:50, 3], np.s_[:, ::-3, 2], [0, 1], None]


@pytest.mark.parametrize(("dtype", "error"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_smaller_weights(tmp_path: Path, dtype: str, error: float) -> None:
    """Draws are rounded, the run is not."""
    ram = _hmc().sample(60, **CALL)
    disk = _hmc().sample(60, store=rb.Store(tmp_path / "run", dtype=dtype), **CALL)
    assert disk.positions.dtype == np.float64
    rounded = np.asarray(disk.positions)
    relative = np.abs(rounded / ram.positions - 1.0)
    assert 0.0 < relative.max() <= error
    assert np.array_equal(disk.state.position, ram.state.position)
    loaded = rb.load(tmp_path / "run").positions
    for key in KEYS:
        assert np.array_equal(loaded[key], rounded[key])
    with pytest.raises(AttributeError, match=r"got \.mean: .*numpy\.asarray"):
        loaded.mean()


def test_bfloat16_rounds_to_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -0.0, np.inf, np.nan, 3.4e38], np.float32)
    found = RoundedArray(encoded(values, "bfloat16"), "float32")[...]
    wanted = np.array([1.0, 1.0, 1.015625, -0.0, np.inf, np.nan, np.inf], np.float32)
    assert np.array_equal(found, wanted, equal_nan=True)


def test_predictions_in_place_of_weights(tmp_path: Path) -> None:
    store = rb.Store(tmp_path / "run", keep="predictions")
    with pytest.raises(ValueError, match="expected predict_at="):
        _hmc().sample(30, store=store, **CALL)
    disk = _hmc().sample(30, predict_at=AT, store=store, **CALL)
    ram = _hmc().sample(30, **CALL).predict(AT, keep=True)
    assert disk.positions.shape[1] == 0
    for found in (disk, rb.load(tmp_path / "run")):
        assert np.array_equal(found.prediction.samples, ram.samples)
        np.testing.assert_allclose(found.prediction.mean, ram.mean, rtol=1e-12)


def test_others_read_the_export(tmp_path: Path) -> None:
    """zarr-python and xarray see groups and names."""
    zarr, xarray = pytest.importorskip("zarr"), pytest.importorskip("xarray")
    keep = rb.Store(tmp_path / "run", keep="predictions")
    for i, options in enumerate(({}, {"store": tmp_path / "a"}, {"store": keep})):
        draws = _hmc().sample(40, save_warmup=True, predict_at=AT, **options, **CALL)
        draws.to_zarr(tmp_path / f"{i}.zarr")
        group = zarr.open_group(str(tmp_path / f"{i}.zarr"), mode="r")
        tree = xarray.open_datatree(str(tmp_path / f"{i}.zarr"), engine="zarr")
        if i < 2:
            assert np.array_equal(group["posterior/theta"][...], draws.positions)
            assert np.array_equal(tree["posterior/theta"].values, draws.positions)
        else:
            assert np.array_equal(group["predictions/mean"][...], draws.prediction.samples)
            assert "posterior" not in group
        assert np.array_equal(group["sample_stats/diverging"][...], draws.stats["diverging"])
        assert tree["warmup_sample_stats/lp"].dims == ("chain", "draw")
        tree.close()
        with pytest.raises(FileExistsError, match="expected a new folder"):
            draws.to_zarr(tmp_path / f"{i}.zarr")
    assert "posterior" in rb.load(tmp_path / "a").to_datatree().children


def test_no_half_draw_while_it_goes_on(tmp_path: Path) -> None:
    counts = read_while(tmp_path / "run", whole_run(250_000), 60, 6)
    assert counts == sorted(counts)
    assert len(set(counts)) >= 6


@pytest.mark.slow
def test_no_half_draw_in_many_reads(tmp_path: Path) -> None:
    assert read_often(tmp_path, 10_000) >= 10_000
