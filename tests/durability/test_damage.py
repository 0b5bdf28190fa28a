"""Damaged folders: no silent load, and every error names a file."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import DataError
from tests.durability.damages import (
    DAMAGES,
    DRAWS,
    broken_off,
    damage_often,
    damaged,
    everything,
    flip,
    line,
)
from tests.durability.lines import difference

pytest.importorskip("zarr")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return broken_off(tmp_path_factory.mktemp("damage") / "run")


@pytest.mark.parametrize("how", DAMAGES)
def test_no_silent_load(whole: Path, tmp_path: Path, how: Callable[..., None]) -> None:
    outcomes = [damaged(whole, tmp_path / "copy", seed, how) for seed in range(8)]
    assert outcomes.count("named") >= 6


@pytest.mark.slow
def test_no_silent_load_of_many(tmp_path: Path) -> None:
    assert damage_often(tmp_path, 2_000, 1000)["named"] > 1_500


def test_the_undamaged_one_opens(whole: Path) -> None:
    """The control: what is found damaged above is found so because of the damage."""
    draws = rb.load(whole)
    assert draws.positions.shape[1] == DRAWS
    assert not draws.complete
    rescued = rb.load(whole, rescue=True)
    assert difference(everything(draws), everything(rescued)) == ""


def test_an_old_checkpoint_beside_new_draws(whole: Path, tmp_path: Path) -> None:
    """Counts what it counted then; going on makes the same draws again."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    os.replace(folder / "checkpoint.previous", folder / "checkpoint")
    before, now = rb.load(folder), rb.load(whole)
    count = before.positions.shape[1]
    assert count == DRAWS - 18
    assert np.array_equal(before.positions, now.positions[:, :count])
    ended = line(folder)
    assert np.array_equal(ended.positions[:, :DRAWS], now.positions)


def test_going_on_refuses_a_damaged_run(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    last = folder / "posterior" / "theta" / "c.1.4.0"
    flip(last, random.Random(1), [])
    with pytest.raises(DataError, match=r"c\.1\.4\.0"):
        line(folder)
    shutil.rmtree(folder)
    shutil.copytree(whole, folder)
    (folder / "posterior" / "theta" / "c.0.2.0").unlink()
    with pytest.raises(DataError, match=r"c\.0\.2\.0"):
        line(folder)


def test_a_damaged_checkpoint_leaves_the_one_before(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    os.truncate(folder / "checkpoint", 1000)
    with pytest.raises(DataError, match="checkpoint"):
        rb.load(folder)
    rescued = rb.load(folder, rescue=True)
    count = rescued.positions.shape[1]
    assert count == DRAWS - 18
    assert np.array_equal(rescued.positions, rb.load(whole).positions[:, :count])


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
        rb.load(folder)
    with pytest.raises(DataError, match="expected a run of version 1, got 2"):
        line(folder)
