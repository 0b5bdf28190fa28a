"""A run folder: each task runs once, its file is written by rename and read again later."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import ribbit as rb
from ribbit.errors import RibbitWarning
from studies.izmailov import problems
from studies.izmailov.problems import Split
from studies.izmailov.sizes import IMDB, Size

Arrays = dict[str, Any]
"""NumPy arrays and scalars of a task by name."""


@dataclass(frozen=True)
class Task:
    """One run of one method; `make` returns its arrays and gets a folder for Ribbit's store.

    Attributes
    ----------
    name
        Readable, for the file's name and the log.
    settings
        All settings that decide the numbers, as JSON; other settings have another file.
    gradients
        Number of gradients on all rows, all chains together, for the cost model.
    """

    name: str
    settings: Mapping[str, Any]
    gradients: float
    make: Callable[[Path], Arrays]

    @property
    def key(self) -> str:
        """Name of the file."""
        text = json.dumps(self.settings, sort_keys=True)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def write(path: Path, data: bytes) -> None:
    """Write to a temporary file in the same folder, flush, rename."""
    temporary = path.with_name(f"{path.name}.part")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays as .npz, by rename."""
    temporary = path.with_name(f"{path.name}.part")
    with temporary.open("wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


class Study:
    """Settings of a run, its data and targets, and the folder of finished tasks."""

    def __init__(
        self,
        size: Size,
        root: Path,
        *,
        network: str | None = None,
        data: str | None = None,
        data_folder: Path = Path("data"),
        log: Callable[[str], None] = lambda line: print(line, flush=True),
    ) -> None:
        if data == "imdb":
            size = replace(size, **IMDB)
        self.size = replace(size, network=network or size.network, data=data or size.data)
        self.root = root / f"{size.name}-{self.size.network}-{self.size.data}"
        self.data_folder, self.log = data_folder, log
        for name in ("kept", "chains"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self.split = lru_cache(maxsize=2)(self._split)

    def _split(self, seed: int) -> Split:
        size = self.size
        return problems.load(size.data, size.rows, size.tests, seed, self.data_folder)

    @property
    def images(self) -> bool:
        """Return whether rows are images, which can be corrupted."""
        return len(problems.SHAPES[self.size.data]) == 3

    def model(self, rate: float = 0.0) -> Any:
        """Build the network, with dropout if the rate is above zero."""
        data = self.size.data
        build = problems.NETWORKS[self.size.network]
        return build(problems.SHAPES[data], problems.CLASSES[data], rate)

    def target(
        self, split: Split, *, prior: Any = None, temperature: float = 1.0, rate: float = 0.0
    ) -> Any:
        """Build the posterior of the training rows; the default prior is the normal of the size.

        All pixels have one mean and one scale, as is usual for images, so some pixels at the
        border hardly vary. Ribbit's warning about them is expected and not shown.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rb.errors.ScaleWarning)
            return rb.Posterior(
                self.model(rate),
                split.scaled(split.x),
                split.y,
                prior=prior or rb.Normal(self.size.prior_sd),
                likelihood=rb.Categorical(),
                temperature=temperature,
                dtype=np.float32,
            )

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the settings that decide the numbers of a task: data, network, chains, `more`."""
        every = ("name", "network", "data", "rows", "tests", "prior_variance", "warmup", "draws")
        also = ("chains", "counts", "strengths")
        size = {name: getattr(self.size, name) for name in (*every, *also)}
        return {"size": size, "ribbit": rb.__version__, **more}

    def found(self, task: Task) -> Arrays:
        """Return the arrays of a task, from its file if it exists; "seconds" is its wall time."""
        path = self.root / "kept" / f"{task.key}.npz"
        chains = self.root / "chains" / task.key
        if not path.is_file():
            began = time.perf_counter()
            with warnings.catch_warnings():
                # The figures themselves report R-hat and acceptance of single runs.
                warnings.simplefilter("ignore", RibbitWarning)
                arrays = task.make(chains)
            seconds = time.perf_counter() - began
            write_arrays(path, {**arrays, "seconds": np.float64(seconds)})
            self.log(f"{time.strftime('%H:%M:%S')} {task.name}: {seconds:.1f} s")
        if chains.exists():  # a killed process can leave this folder
            shutil.rmtree(chains)
        with np.load(path) as archive:
            return {name: archive[name] for name in archive.files}

    def done(self, task: Task) -> bool:
        """Return whether the file of the task exists."""
        return (self.root / "kept" / f"{task.key}.npz").is_file()
