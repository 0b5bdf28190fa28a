"""The digits on which `benchmarks.digits` trains, and where the development data lie."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import machine


class MissingDataError(Exception):
    """The development data are not here."""


def data_folder() -> Path:
    """RIBBIT_SHARED_DATA, or ../shared/data beside the checkout, as for the tests."""
    default = machine.ROOT.parent / "shared" / "data"
    folder = Path(os.environ.get("RIBBIT_SHARED_DATA", default))
    if not folder.is_dir():
        raise MissingDataError("no development data (set RIBBIT_SHARED_DATA)")
    return folder


@dataclass(frozen=True)
class Digits:
    """10,000 digits (MNIST), 784-400-400-10 ReLU, batches of 125: seconds to a test error.

    Pixels over 126, prior N(0, 0.3^2). "bbb": local reparameterisation, KL in closed form, Adam at
    1e-3, the probabilities of 20 weight draws. "sgld": step 2e-5 from He's initialisation, a draw
    per epoch, probabilities averaged over the later half of the draws so far.
    """

    name: str
    method: str
    level: float
    epochs: int
    sizes: tuple[int, ...] = (784, 400, 400, 10)
    batch: int = 125
    prior_scale: float = 0.3
    learning_rate: float = 1e-3
    init_scale: float = 0.01
    step_size: float = 2e-5
    draws: int = 20
    threads: int = 2
    seeds: tuple[int, ...] = (1, 2, 3)

    @cached_property
    def data(self) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], Any]:
        """Pixels (N, 784) and labels of the training digits, of the 2,000 test digits."""
        with np.load(data_folder() / "mnist" / "mnist_small.npz") as file:
            x, y, x_test, y_test = (file[k] for k in ("x_train", "y_train", "x_test", "y_test"))
        rows = [(a.reshape(-1, 784) / 126.0).astype(np.float32) for a in (x, x_test)]
        return rows[0], y.astype(np.int64), rows[1], y_test.astype(np.int64)

    @property
    def rows(self) -> int:
        """Training digits."""
        return len(self.data[0])

    def start(self, seed: int) -> NDArray[np.float32]:
        """He's initialisation (P,): weights N(0, 2 / fan-in), biases 0."""
        rng = np.random.default_rng([seed, 20])
        blocks = []
        for a, b in pairwise(self.sizes):
            blocks += [rng.standard_normal(a * b) * (2.0 / a) ** 0.5, np.zeros(b)]
        return np.concatenate(blocks).astype(np.float32)

    def error(self, probabilities: Any) -> float:
        """Share of the test digits whose largest probability is another's."""
        found = np.argmax(np.asarray(probabilities), axis=1)
        return float(np.mean(found != self.data[3]))


DIGITS = {
    digits.name: digits
    for digits in (Digits("mnist-bbb", "bbb", 0.07, 30), Digits("mnist-sgld", "sgld", 0.09, 40))
}
