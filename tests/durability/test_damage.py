"""Damaged folders: no silent load, and every error names a file."""

import os
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import DataError
from ribbit.results.store import layout
from tests.durability.lines import AT, arrays_of, difference, posterior

pytest.importorskip("zarr")

DRAWS, PLANNED = 50, 80


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return broken_off(tmp_path_factory.mktemp("damage") / "run")


def broken_off(folder: Path) -> Path:
    """Make a run that has stopped in the middle of a chunk, of several files."""
    patch = pytest.MonkeyPatch()
    dim = posterior().dim
    patch.setattr(layout, "_CHUNK_BYTES", 2 * dim * 8 * 12)  # 12 draws in a chunk
    patch.setattr(layout, "_FEWEST_STATISTICS", 20)
    for draws in (DRAWS - 18, 18):  # a checkpoint at the end of each call, none between
        with pytest.raises(_Enough):
            _line(folder, draws)
    patch.undo()
    return folder


class _Enough(Exception):
    pass


def _line(folder: Path, stop: int | None = None) -> rb.Draws:
    """PLANNED draws, of which an error lets `stop` more happen."""
    target, calls = posterior(), [0]
    original = target.predictive

    class Stopping:
        def __getattr__(self, name: str) -> object:
            return getattr(target, name)

        def predictive(self, theta: np.ndarray, x: np.ndarray) -> object:
            calls[0] += 1
            if stop is not None and calls[0] > stop + 2:  # two come before the run
                raise _Enough
            return original(theta, x)

    hmc = rb.HMC(Stopping(), step_size=0.02, num_leapfrog_steps=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not converged
        return hmc.sample(
            PLANNED,
            warmup=10,
            chains=2,
            seed=2,
            predict_at=AT,
            keep_warmup=True,
            progress=False,
            store=rb.Store(folder, flush_seconds=1e3),
        )


def _everything(draws: rb.Draws) -> dict[str, np.ndarray]:
    object.__setattr__(draws, "complete", True)
    return arrays_of(draws)


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "checkpoint.previous")


def _flip(path: Path, rng: random.Random, _: list[Path]) -> None:
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _cut(path: Path, rng: random.Random, _: list[Path]) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def _remove(path: Path, rng: random.Random, _: list[Path]) -> None:
    path.unlink()


def _swap(path: Path, rng: random.Random, files: list[Path]) -> None:
    same = [p for p in files if p.parent == path.parent and p.read_bytes() != path.read_bytes()]
    if not same:
        _flip(path, rng, files)
        return
    other = rng.choice(same)
    data = other.read_bytes()
    other.write_bytes(path.read_bytes())
    path.write_bytes(data)


DAMAGES = (_flip, _cut, _remove, _swap)


def damaged(whole: Path, folder: Path, seed: int, how: Callable[..., None]) -> str:
    """Damage a copy of a run; says what happened: "named" or "same".

    Raises
    ------
    AssertionError
        For other numbers without an error, or an error that names no file.
    """
    rng = random.Random(f"{how.__name__} {seed}")
    shutil.copytree(whole, folder)
    files = _files(folder)
    path = rng.choice(files)
    how(path, rng, files)
    expected = _everything(rb.open_run(whole))
    try:
        found, error = _everything(rb.open_run(folder)), None
    except (DataError, FileNotFoundError) as caught:
        found, error = None, caught
    if found is not None:
        assert difference(expected, found) == "", f"silent: {path}"
    else:
        assert str(folder) in str(error), error
        if path.name != "checkpoint":
            rescued = rb.open_run(folder, rescue=True)
            positions = np.asarray(rescued.positions)
            count = positions.shape[1]
            assert positions.tobytes() == expected["positions"][:, :count].tobytes()
            assert rescued.complete is False
            for name, values in rescued.stats.items():
                assert values.shape[1] == count
                assert values.tobytes() == expected[f"stats/{name}"][:, :count].tobytes()
    shutil.rmtree(folder)
    return "same" if found is not None else "named"


def damage_often(folder: Path, times: int, seed: int) -> dict[str, int]:
    """Damage a run in every way by turns; how often it was named, and how often nothing changed."""
    whole, outcomes = broken_off(folder / "whole"), {"named": 0, "same": 0}
    for i in range(times):
        outcomes[damaged(whole, folder / "copy", seed + i, DAMAGES[i % len(DAMAGES)])] += 1
    return outcomes


@pytest.mark.parametrize("how", DAMAGES)
def test_no_silent_load(whole: Path, tmp_path: Path, how: Callable[..., None]) -> None:
    outcomes = [damaged(whole, tmp_path / "copy", seed, how) for seed in range(8)]
    assert outcomes.count("named") >= 6


@pytest.mark.slow
def test_no_silent_load_of_many(tmp_path: Path) -> None:
    assert damage_often(tmp_path, 2_000, 1000)["named"] > 1_500


def test_the_undamaged_one_opens(whole: Path) -> None:
    """The control: what is found damaged above is found so because of the damage."""
    draws = rb.open_run(whole)
    assert draws.positions.shape[1] == DRAWS
    assert not draws.complete
    rescued = rb.open_run(whole, rescue=True)
    assert difference(_everything(draws), _everything(rescued)) == ""


def test_an_old_checkpoint_beside_new_draws(whole: Path, tmp_path: Path) -> None:
    """Counts what it counted then; going on makes the same draws again."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    os.replace(folder / "checkpoint.previous", folder / "checkpoint")
    before, now = rb.open_run(folder), rb.open_run(whole)
    count = before.positions.shape[1]
    assert count == DRAWS - 18
    assert np.array_equal(before.positions, now.positions[:, :count])
    ended = _line(folder)
    assert np.array_equal(ended.positions[:, :DRAWS], now.positions)


def test_going_on_refuses_a_damaged_run(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    last = folder / "posterior" / "theta" / "c.1.4.0"
    _flip(last, random.Random(1), [])
    with pytest.raises(DataError, match=r"c\.1\.4\.0"):
        _line(folder)
    shutil.rmtree(folder)
    shutil.copytree(whole, folder)
    (folder / "posterior" / "theta" / "c.0.2.0").unlink()
    with pytest.raises(DataError, match=r"c\.0\.2\.0"):
        _line(folder)


def test_a_damaged_checkpoint_leaves_the_one_before(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    os.truncate(folder / "checkpoint", 1000)
    with pytest.raises(DataError, match="checkpoint"):
        rb.open_run(folder)
    rescued = rb.open_run(folder, rescue=True)
    count = rescued.positions.shape[1]
    assert count == DRAWS - 18
    assert np.array_equal(rescued.positions, rb.open_run(whole).positions[:, :count])


def test_a_later_version_is_refused(whole: Path, tmp_path: Path) -> None:
    from ribbit.results import archive
    from ribbit.results.store import checkpoint

    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    with archive.opened("test", folder / "checkpoint", "") as (header, arrays):
        pass
    header["run"]["version"] = checkpoint.VERSION + 1
    arrays.pop("header")
    archive.write("test", folder / "checkpoint", header, arrays)
    with pytest.raises(DataError, match="expected a run of version 1, got 2"):
        rb.open_run(folder)
    with pytest.raises(DataError, match="expected a run of version 1, got 2"):
        _line(folder)
