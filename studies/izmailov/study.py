"""A run folder: every piece of work is made once, kept by rename, and read again afterwards."""

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
"""NumPy arrays and scalars by name: what is kept of a task."""


@dataclass(frozen=True)
class Task:
    """One run of one method: its arrays are made by `make` with a folder for Ribbit's own store.

    Attributes
    ----------
    name
        Readable, for the file's name and the log.
    settings
        All that decides the numbers, as JSON; another one is another file.
    gradients
        Gradients on all rows, of all chains together, that the cost model counts.
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
    """Write beside the place, flush, rename."""
    beside = path.with_name(f"{path.name}.part")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays as .npz, by rename."""
    beside = path.with_name(f"{path.name}.part")
    with beside.open("wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


class Study:
    """Settings of a run, its data and targets, and the folder of what is done."""

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
        """Whether rows are images, which can be corrupted."""
        return len(problems.SHAPES[self.size.data]) == 3

    def model(self, rate: float = 0.0) -> Any:
        """Build the network, with dropout where a rate is given."""
        data = self.size.data
        build = problems.NETWORKS[self.size.network]
        return build(problems.SHAPES[data], problems.CLASSES[data], rate)

    def target(
        self, split: Split, *, prior: Any = None, temperature: float = 1.0, rate: float = 0.0
    ) -> Any:
        """Build the posterior of the training rows; by default under the normal prior of the size.

        Pixels have one mean and one scale for all, as is usual for images, so that some pixels at
        the border hardly vary; Ribbit's warning of that is expected and not shown.
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
        """Give what decides the numbers of every task: data, network, chains; and the given."""
        every = ("name", "network", "data", "rows", "tests", "prior_variance", "warmup", "draws")
        also = ("chains", "counts", "strengths")
        size = {name: getattr(self.size, name) for name in (*every, *also)}
        return {"size": size, "ribbit": rb.__version__, **more}

    def found(self, task: Task) -> Arrays:
        """Arrays of a task, from its file where there is one; "seconds" is what it took."""
        path = self.root / "kept" / f"{task.key}.npz"
        chains = self.root / "chains" / task.key
        if not path.is_file():
            began = time.perf_counter()
            with warnings.catch_warnings():
                # Outcomes of single runs (R-hat, acceptance) are what the figures are about.
                warnings.simplefilter("ignore", RibbitWarning)
                arrays = task.make(chains)
            seconds = time.perf_counter() - began
            write_arrays(path, {**arrays, "seconds": np.float64(seconds)})
            self.log(f"{time.strftime('%H:%M:%S')} {task.name}: {seconds:.1f} s")
        if chains.exists():  # also what a kill left between the two
            shutil.rmtree(chains)
        with np.load(path) as archive:
            return {name: archive[name] for name in archive.files}

    def done(self, task: Task) -> bool:
        """Whether the task's file is there."""
        return (self.root / "kept" / f"{task.key}.npz").is_file()
