"""Damaged folders: a run that was broken off, and what is done to its files."""

from __future__ import annotations

import os
import random
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

import ribbit as rb
from ribbit.errors import DataError
from tests.durability.lines import AT, arrays_of, difference, posterior

DRAWS, BEFORE, PLANNED = 50, 32, 80  # of the last state, of the one before, of the whole run
FILES = ("positions.bin", "stats.bin", "state")


class Enough(Exception):
    pass


def line(folder: Path, stop: int | None = None, seed: int = 2) -> rb.Draws:
    """PLANNED draws, of which an error lets `stop` more happen."""
    target, calls = posterior(), [0]
    original = target.predictive

    class Stopping:
        def __getattr__(self, name: str) -> object:
            return getattr(target, name)

        def predictive(self, theta: np.ndarray, x: np.ndarray) -> object:
            calls[0] += 1
            if stop is not None and calls[0] > stop + 3:  # three come before the run
                raise Enough
            return original(theta, x)

    hmc = rb.HMC(Stopping(), step_size=0.02, num_leapfrog_steps=3)
    call = {"warmup": 10, "chains": 2, "seed": seed, "predict_at": AT, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not converged
        store = rb.Store(folder, flush_seconds=1e3)
        return hmc.sample(PLANNED, save_warmup=True, store=store, **call)


def broken_off(folder: Path, block: int = 1 << 26, seed: int = 2) -> Path:
    """Make a run that has stopped twice, whose checksums are of `block` bytes each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ribbit.store._BLOCK", block)
        # Draws come one by one, as they do if predictions take long.
        patch.setattr("ribbit.results.running.RunningPrediction.room", lambda self, chains: 1)
        for draws in (BEFORE, DRAWS - BEFORE):  # a state at the end of each call, none between
            with pytest.raises(Enough):
                line(folder, draws, seed)
    return folder


def everything(draws: rb.Draws) -> dict[str, np.ndarray]:
    """Every array of an unfinished run, by name."""
    object.__setattr__(draws, "complete", True)
    return arrays_of(draws)


def flip(path: Path, rng: random.Random, _: Path) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def zero(path: Path, rng: random.Random, _: Path) -> None:
    data = bytearray(path.read_bytes())
    at = 4096 * rng.randrange(-(-len(data) // 4096))
    size = min(4096, len(data) - at)
    data[at : at + size] = bytes(size)
    path.write_bytes(data)


def cut(path: Path, rng: random.Random, _: Path) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def remove(path: Path, _: random.Random, __: Path) -> None:
    path.unlink()


def swap(path: Path, _: random.Random, other: Path) -> None:
    """Put the file of a run with another seed into its place."""
    shutil.copy(other / path.name, path)


DAMAGES = (flip, zero, cut, remove, swap)


def damaged(whole: Path, other: Path, folder: Path, number: int, seed: int) -> int:
    """Damage a copy of a run, which is refused; returns how many draws were rescued.

    Raises
    ------
    AssertionError
        When it loads, the error does not name the file, or what is rescued is not a beginning.
    """
    how, name = DAMAGES[number % len(DAMAGES)], FILES[number // len(DAMAGES) % len(FILES)]
    rng = random.Random(f"{how.__name__} {name} {number} {seed}")
    shutil.copytree(whole, folder)
    how(folder / name, rng, other)
    expected = everything(rb.load(whole))
    for use in (rb.load, line):  # reading, and resuming
        with pytest.raises(ValueError) as error:
            use(folder)
        assert name in str(error.value) or how is swap, f"{how.__name__} {name}: {error.value}"
        assert str(folder) in str(error.value)
        assert use is line or isinstance(error.value, DataError)
    draws = rb.load(folder, rescue=True)
    count = draws.positions.shape[1]
    rescued = {"positions": draws.positions, **{f"stats/{k}": v for k, v in draws.stats.items()}}
    for part, values in rescued.items():
        beginning = {part: expected[part][:, :count]}
        assert difference(beginning, {part: values}) == "", f"silent: {name}, {part}"
    assert not draws.complete
    shutil.rmtree(folder)
    return count


def damage_often(folder: Path, times: int, seed: int) -> str:
    """Damage a run of one block and one of many by turns; says what happened."""
    runs = [broken_off(folder / f"{block}", block) for block in (1 << 26, 1 << 10)]
    others = [broken_off(folder / f"{block} other", block, 3) for block in (1 << 26, 1 << 10)]
    kept = [
        damaged(runs[i // 15 % 2], others[i // 15 % 2], folder / "copy", i, seed)
        for i in range(times)
    ]
    some = sum(0 < count < DRAWS for count in kept)
    refused = f"{len(kept)} of {times} raised an error that names the file"
    return f"{refused}; {some} were cut to their valid draws"
