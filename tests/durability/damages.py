"""Damaged folders: a run that was broken off, and what is done to its files."""

from __future__ import annotations

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

DRAWS, PLANNED = 50, 80


def broken_off(folder: Path) -> Path:
    """Make a run that has stopped in the middle of a chunk, of several files."""
    patch = pytest.MonkeyPatch()
    dim = posterior().dim
    patch.setattr(layout, "_CHUNK_BYTES", 2 * dim * 8 * 12)  # 12 draws in a chunk
    patch.setattr(layout, "_FEWEST_STATISTICS", 20)
    for draws in (DRAWS - 18, 18):  # a checkpoint at the end of each call, none between
        with pytest.raises(Enough):
            line(folder, draws)
    patch.undo()
    return folder


class Enough(Exception):
    pass


def line(folder: Path, stop: int | None = None) -> rb.Draws:
    """PLANNED draws, of which an error lets `stop` more happen."""
    target, calls = posterior(), [0]
    original = target.predictive

    class Stopping:
        def __getattr__(self, name: str) -> object:
            return getattr(target, name)

        def predictive(self, theta: np.ndarray, x: np.ndarray) -> object:
            calls[0] += 1
            if stop is not None and calls[0] > stop + 4:  # four come before the run
                raise Enough
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
            save_warmup=True,
            progress=False,
            store=rb.Store(folder, flush_seconds=1e3),
        )


def everything(draws: rb.Draws) -> dict[str, np.ndarray]:
    object.__setattr__(draws, "complete", True)
    return arrays_of(draws)


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "checkpoint.previous")


def flip(path: Path, rng: random.Random, _: list[Path]) -> None:
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
        flip(path, rng, files)
        return
    other = rng.choice(same)
    data = other.read_bytes()
    other.write_bytes(path.read_bytes())
    path.write_bytes(data)


DAMAGES = (flip, _cut, _remove, _swap)


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
    expected = everything(rb.load(whole))
    try:
        found, error = everything(rb.load(folder)), None
    except (DataError, FileNotFoundError) as caught:
        found, error = None, caught
    if found is not None:
        assert difference(expected, found) == "", f"silent: {path}"
    else:
        assert str(folder) in str(error), error
        if path.name != "checkpoint":
            rescued = rb.load(folder, rescue=True)
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
