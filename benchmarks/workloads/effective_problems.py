"""What `benchmarks.effective` samples and fits: data, network, prior, and what is judged."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import machine

F64 = NDArray[np.float64]
Split = tuple[F64, F64, F64, F64]  # x (N, D), y (N,), the same of the test rows; y standardised
JUDGED = 20  # test rows whose predictions are judged, spread over all


class MissingDataError(Exception):
    """The development data are not here."""


def data_folder() -> Path:
    """RIBBIT_SHARED_DATA, or ../shared/data beside the checkout, as for the tests."""
    default = machine.ROOT.parent / "shared" / "data"
    folder = Path(os.environ.get("RIBBIT_SHARED_DATA", default))
    if not folder.is_dir():
        raise MissingDataError("no development data (set RIBBIT_SHARED_DATA)")
    return folder


def curve() -> Split:
    """100 rows of a noisy curve in powers of u, (1, u, u^2), as in NumPyro's BNN example."""
    rng = np.random.default_rng(0)
    coefficients = 0.5 * rng.standard_normal(3)

    def features(u: F64) -> F64:
        return u[:, None] ** np.arange(3.0)

    def mean(u: F64) -> F64:
        return np.asarray(features(u) @ coefficients + 0.5 * (0.5 + u) ** 2 * np.sin(4.0 * u))

    u, new = np.linspace(-1.0, 1.0, 100), rng.uniform(-1.0, 1.0, 200)
    y, y_new = (mean(v) + 0.05 * rng.standard_normal(v.size) for v in (u, new))
    centre, width = y.mean(), y.std()
    return (
        features(u),
        (y - centre) / width,
        features(np.sort(new)),
        _sorted(new, y_new, centre, width),
    )


def _sorted(u: F64, y: F64, centre: float, width: float) -> F64:
    return np.asarray((y[np.argsort(u)] - centre) / width)


def concrete() -> Split:
    """Concrete strength (UCI), split 0, standardised on its 927 training rows."""
    with np.load(data_folder() / "uci" / "concrete.npz") as file:
        x, y, train, test = file["X"], file["y"], file["train"][0], file["test"][0]
    x = (x - x[train].mean(axis=0)) / x[train].std(axis=0)
    y = (y - y[train].mean()) / y[train].std()
    return x[train], y[train], x[test], y[test]


@dataclass(frozen=True)
class Posterior:
    """Regression by a tanh MLP with learned noise: y ~ N(f(x), exp(log_noise)^2).

    Weights (and biases, with `bias`) are N(0, prior_scale^2), log_noise is N(0, 1). Parameters are
    flat: per layer weight (in, out) in C order and bias, then log_noise.
    """

    name: str
    title: str
    load: Callable[[], Split]
    sizes: tuple[int, ...]
    bias: bool
    prior_scale: float
    chains: int
    nuts: tuple[int, int]  # warmup, draws per chain of the rivals
    hmc: tuple[int, int]  # of Ribbit
    settings: dict[str, Any]  # of rb.HMC
    threads: int = 2
    seed: int = 1

    @cached_property
    def data(self) -> Split:
        """Training and test rows."""
        return self.load()

    @property
    def dim(self) -> int:
        """Weights, biases and log_noise."""
        return sum((a + self.bias) * b for a, b in pairwise(self.sizes)) + 1

    def outputs(self, theta: F64, x: F64) -> F64:
        """Mean function (M, N) of draws (M, P), float64."""
        h, at = np.broadcast_to(x, (len(theta), *x.shape)), 0
        for k, (a, b) in enumerate(pairwise(self.sizes)):
            h = h @ theta[:, at : at + a * b].reshape(-1, a, b)
            at += a * b
            if self.bias:
                h = h + theta[:, None, at : at + b]
                at += b
            h = np.tanh(h) if k < len(self.sizes) - 2 else h
        return np.asarray(h[..., 0])

    def judge(self, positions: NDArray[Any]) -> dict[str, F64]:
        """Read off draws (C, D, P) what is compared, by the same code for every entry.

        Returns
        -------
        dict
            "quantities" (C, D, 21): predictions at test rows and the log density; "held_out"
            (C, D): log likelihood per test row of each draw; "mixture" (): of their mixture.
        """
        chains, count = positions.shape[:2]
        x, y, x_test, y_test = self.data
        picked = np.linspace(0, len(x_test) - 1, JUDGED).astype(int)
        flat = positions.reshape(-1, self.dim).astype(np.float64)
        quantities, held_out, rows = [], [], np.full(len(y_test), -np.inf)
        for theta in np.array_split(flat, -(-len(flat) // 500)):
            log_noise = theta[:, -1:]
            prior = -0.5 * np.sum(theta[:, :-1] ** 2, axis=1) / self.prior_scale**2
            density = normal(y, self.outputs(theta, x), log_noise).sum(axis=1)
            density += prior - 0.5 * log_noise[:, 0] ** 2
            test = self.outputs(theta, x_test)
            terms = normal(y_test, test, log_noise)
            held_out.append(terms.mean(axis=1))
            rows = np.logaddexp(rows, np.logaddexp.reduce(terms, axis=0))
            quantities.append(np.column_stack([test[:, picked], density]))
        return {
            "quantities": np.concatenate(quantities).reshape(chains, count, -1),
            "held_out": np.concatenate(held_out).reshape(chains, count),
            "mixture": np.mean(rows - math.log(len(flat))),
        }


def normal(y: F64, mean: F64, log_scale: F64) -> F64:
    """Log density of N(mean, exp(log_scale)^2) at y."""
    z = (y - mean) * np.exp(-log_scale)
    return np.asarray(-0.5 * z * z - log_scale - 0.5 * math.log(2.0 * math.pi))


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


PROBLEMS: dict[str, Posterior | Digits] = {
    problem.name: problem
    for problem in (
        Posterior(
            "bnn",
            "3-5-5-1 tanh without biases, N = 100, prior N(0, 1) (NumPyro's BNN example)",
            curve,
            (3, 5, 5, 1),
            False,
            1.0,
            chains=4,
            nuts=(400, 400),
            hmc=(1000, 2000),
            settings={"trajectory_length": 1.0, "jitter": 0.3},
        ),
        Posterior(
            "concrete",
            "8-50-1 tanh, concrete (UCI) split 0, N = 927, prior N(0, 0.7^2)",
            concrete,
            (8, 50, 1),
            True,
            0.7,
            chains=4,
            nuts=(200, 200),
            hmc=(200, 400),
            settings={"trajectory_length": 1.1},
        ),
        Digits("mnist-bbb", "bbb", 0.07, 30),
        Digits("mnist-sgld", "sgld", 0.09, 40),
    )
}
