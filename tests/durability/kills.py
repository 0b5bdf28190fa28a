"""Kills at random moments, from a process that has not computed anything itself.

Each attempt is a fork with everything imported, so that 300 of them take minutes.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ribbit as rb
from tests.durability.lines import difference, quick, result


def forked(job: Callable[[], object]) -> int:
    """Do a job in a fork, which ends with what it returns, if that is a number; its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        found = job()
        status = found if isinstance(found, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def status_of(pid: int) -> int:
    """Wait for a fork; minus the signal that has ended it, or its status."""
    _, status = os.waitpid(pid, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


def saved(out: Path, found: dict[str, np.ndarray]) -> None:
    """Write arrays by name, of whatever name."""
    np.savez(out, **{str(i): value for i, value in enumerate(found.values())})
    out.with_suffix(".txt").write_text("\n".join(found))


def loaded(out: Path) -> dict[str, np.ndarray]:
    """Read what `saved` wrote."""
    with np.load(out) as file:
        values = [file[str(i)] for i in range(len(file.files))]
    names = out.with_suffix(".txt").read_text().split("\n") if values else []
    return dict(zip(names, values, strict=True))


def _child(name: str, store: object, out: Path, threads: int) -> int:
    """Run a line in a fork, its arrays into a file; returns the fork's process id."""

    def run() -> None:
        os.setsid()  # the workers of an executor outlive it, but not its group
        rb.set_num_threads(threads)
        saved(out, result(name, store))

    return forked(run)


def kill_often(name: str, folder: Path, kills: int, seed: int) -> int:
    """Kill a line `kills` times at random moments, runs begun anew as they end; returns how many.

    Raises
    ------
    AssertionError
        When a resumed run gives other draws than an uninterrupted one.
    """
    rng = random.Random(f"{name} {seed}")
    out, store = folder / "out.npz", folder / "run"
    assert status_of(_child(name, None, out, 1)) == 0, name
    alone = loaded(out)
    begin = time.monotonic()
    assert status_of(_child(name, quick(store), out, 2)) == 0, name
    seconds = time.monotonic() - begin
    assert difference(alone, loaded(out)) == "", f"{name}: {difference(alone, loaded(out))}"
    shutil.rmtree(store)
    done = 0
    while done < kills:
        out.unlink(missing_ok=True)
        pid = _child(name, quick(store), out, rng.choice((1, 2)))
        time.sleep(rng.uniform(0.0, 1.1 * seconds))
        os.kill(pid, signal.SIGKILL)
        ended = status_of(pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        assert ended in (0, -signal.SIGKILL), f"{name}: ended with {ended}"
        done += ended != 0
        if ended == 0 or done == kills:
            goes_on = 0 if ended == 0 else status_of(_child(name, quick(store), out, 2))
            assert goes_on == 0, f"{name}: does not resume"
            found = difference(alone, loaded(out))
            assert found == "", f"{name}: other bits after a kill: {found}"
            shutil.rmtree(store)
    return done
