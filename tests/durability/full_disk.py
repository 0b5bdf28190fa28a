"""Full disks at random bytes, of every line: ``python -m tests.durability --full 20``.

A small tmpfs where mounting is allowed, which is a disk that is full; else, and every other time, a
limit on the size of files (RLIMIT_FSIZE), set at a random moment.
"""

from __future__ import annotations

import contextlib
import random
import resource
import shutil
import subprocess
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ribbit as rb
from tests.durability.kills import forked, loaded, saved, status_of
from tests.durability.lines import LINES, arrays_of, difference, quick, result

_CAUSES = ("No space left on device", "File too large")
_FULL = 3  # what a process ends with whose run says that the disk is full
_PAGE = 4096


def fill_often(name: str, folder: Path, times: int, seed: int) -> int:
    """Let the disk become full `times` times, each time in a run of its own; returns how many.

    Raises
    ------
    AssertionError
        When the error does not name the cause, the draws so far do not come with it, the folder is
        not whole up to its last checkpoint, or a resumed run gives other draws.
    """
    rng = random.Random(f"full {name} {seed}")
    out, disk = folder / "out.npz", folder / "disk"
    assert status_of(forked(lambda: _alone(name, out))) == 0, name
    alone, beginnings = loaded(out), loaded(out.with_name("beginnings.npz"))
    begin = time.monotonic()
    store = folder / "run"
    assert status_of(forked(lambda: saved(out, result(name, quick(store))))) == 0, name
    seconds = time.monotonic() - begin
    sizes = [p.stat().st_size for p in store.rglob("*") if p.is_file()]
    pages = sum(-(-size // _PAGE) for size in sizes)
    shutil.rmtree(store)
    done = 0
    with _small_disk(disk) as mounted:
        while done < times:
            on_disk = mounted and done % 2 == 0
            place, limit = disk / "run" if on_disk else store, None
            if on_disk:
                _resize(disk, _PAGE * rng.randrange(1, pages))
            else:
                limit = rng.uniform(0.0, seconds), rng.randrange(max(sizes))
            ended = status_of(forked(lambda at=place, by=limit: _line(name, at, by, out)))
            assert ended in (0, _FULL), f"{name}: ended with {ended}"
            if on_disk:
                _resize(disk, 1 << 26)
            if ended == _FULL:
                done += 1
                _compare(beginnings, loaded(out), f"{name}, the error")
                assert status_of(forked(lambda at=place: _look(at, out))) == 0, name
                again = forked(lambda at=place: saved(out, result(name, quick(at))))
                assert status_of(again) == 0, f"{name}: does not resume"
            found = difference(alone, loaded(out))
            assert found == "", f"{name}: other bits after a full disk: {found}"
            shutil.rmtree(place, ignore_errors=True)
    return done


def beginning(found: Any) -> dict[str, np.ndarray]:
    """What an unfinished run has in common with a whole one.

    Draws and statistics (C, D, ...); of a fit its state's step, or epochs, and the history where it
    has one, a row an epoch.
    """
    if isinstance(found, rb.Draws):
        arrays = {f"stats/{k}": np.asarray(v) for k, v in found.stats.items()}
        return {"positions": np.asarray(found.positions), **arrays}
    history = {name: np.asarray(values) for name, values in found.history.items()}
    step = found.state.step if hasattr(found.state, "step") else history["epoch"].size
    return {"step": np.array(step), **history}


def _alone(name: str, out: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # short runs have not converged
        found = LINES[name](None)
    saved(out, arrays_of(found))
    saved(out.with_name("beginnings.npz"), beginning(found))


def _line(name: str, store: Path, limit: tuple[float, int] | None, out: Path) -> int:
    """Run a line until it ends or there is no room; `limit`: after so many seconds, of bytes."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    timer = threading.Timer(0.0, lambda: None)
    if limit is not None:
        soft = (limit[1], unlimited[1])
        timer = threading.Timer(limit[0], resource.setrlimit, (resource.RLIMIT_FSIZE, soft))
    timer.start()
    try:
        found, ended = result(name, quick(store)), 0
    except OSError as error:
        text = str(error)
        assert any(cause in text for cause in _CAUSES), text
        assert str(store) in text, text
        kept = getattr(error, "draws", getattr(error, "fit", None))
        found, ended = {} if kept is None else beginning(kept), _FULL
    timer.cancel()
    timer.join()
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    saved(out, found)
    return ended


def _look(store: Path, out: Path) -> None:
    """Open what the last checkpoint counts, and compare it with what came with the error."""
    if (store / "state").exists():
        kept = loaded(out)
        assert kept, "nothing came with the error"
        _compare(kept, beginning(rb.load(store)), "the folder")


def _compare(whole: dict[str, np.ndarray], part: dict[str, np.ndarray], what: str) -> None:
    """Compare the first draws, or the epochs that both know."""
    if "step" in part:
        assert part.pop("step") <= whole["step"], what
        none = np.zeros(0)
        ours, theirs = part.get("epoch", none), whole.get("epoch", none)
        mine, same = np.isin(ours, theirs), np.isin(theirs, ours)
        pairs = {k: (part[k][mine], whole[k][same]) for k in part.keys() & whole.keys()}
    else:
        pairs = {k: (values, whole[k][:, : values.shape[1]]) for k, values in part.items()}
    for name, (a, b) in pairs.items():
        assert a.tobytes() == np.ascontiguousarray(b).tobytes(), f"{what}: {name}"


@contextlib.contextmanager
def _small_disk(place: Path) -> Iterator[bool]:
    """Mount a tmpfs; False where that is not allowed."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_PAGE}", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(place)], check=True)


def _resize(place: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(place)], check=True)
