"""The posteriors of `benchmarks.effective`, stated once: data, network, priors, what is judged.

The log density is written here in float64 NumPy, for clarity: every entry's own is held against it
before it samples (`check`). Parameters are flat: per layer weight (in, out) in C order and bias,
then log_noise where the noise is learned. y is standardised on the training rows, and so is every
log likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.workloads.digits import data_folder
from benchmarks.workloads.networks import Layout, lenet5

F64 = NDArray[np.float64]
INSIDE, OUTSIDE = 48, 16  # inputs at which f is judged, by whether they lie among the data


@dataclass(frozen=True)
class Data:
    """Rows of a problem: training, test, and the 64 inputs at which f is judged.

    x (N, ...), y (N,) real or labels; inputs (64, ...): the last 16 lie outside the data.
    """

    x: F64
    y: NDArray[Any]
    x_test: F64
    y_test: NDArray[Any]
    inputs: F64


def spread(rows: int, count: int) -> NDArray[np.int64]:
    """`count` row numbers out of `rows`, evenly."""
    return np.linspace(0, rows - 1, count).astype(np.int64)


def curve() -> Data:
    """Make the data of NumPyro's BNN example: 100 noisy rows in powers of u, (1, u, u^2).

    u in [-1, 1]; outside: eight u on each side up to 2.
    """
    rng = np.random.default_rng(0)
    coefficients = 0.5 * rng.standard_normal(3)

    def features(u: F64) -> F64:
        return u[:, None] ** np.arange(3.0)

    def mean(u: F64) -> F64:
        return np.asarray(features(u) @ coefficients + 0.5 * (0.5 + u) ** 2 * np.sin(4.0 * u))

    u, new = np.linspace(-1.0, 1.0, 100), np.sort(rng.uniform(-1.0, 1.0, 200))
    y, y_new = (mean(v) + 0.05 * rng.standard_normal(v.size) for v in (u, new))
    beyond = np.linspace(1.125, 2.0, OUTSIDE // 2)
    inputs = np.concatenate([new[spread(200, INSIDE)], -beyond, beyond])
    centre, width = y.mean(), y.std()
    return Data(
        features(u),
        (y - centre) / width,
        features(new),
        (y_new - centre) / width,
        features(inputs),
    )


def uci(name: str, split: int) -> Data:
    """Load a UCI set, standardised on the training rows of a split.

    Inside: test rows, and where they are fewer than 48, training rows. Outside: 16 test rows three
    times as far from the mean.
    """
    with np.load(data_folder() / "uci" / f"{name}.npz") as file:
        x, y, train, test = file["X"], file["y"], file["train"][split], file["test"][split]
    width = x[train].std(axis=0)
    x = (x - x[train].mean(axis=0)) / np.where(width > 0.0, width, 1.0)
    y = (y - y[train].mean()) / y[train].std()
    x_test = x[test]
    far = 3.0 * x_test[spread(len(test), OUTSIDE)]
    near = x_test[spread(len(test), min(INSIDE, len(test)))]
    near = np.concatenate([near, x[train[spread(len(train), INSIDE - len(near))]]])
    inputs = np.concatenate([near, far])
    return Data(x[train], y[train], x_test, y[test], inputs)


def digits() -> Data:
    """100 digits (MNIST) for training, 500 for the test, pixels over 255.

    Outside: 16 test digits with black and white exchanged.
    """
    with np.load(data_folder() / "mnist" / "mnist_small.npz") as file:
        x, y = file["x_train"][:100, ..., None] / 255.0, file["y_train"][:100]
        x_test, y_test = file["x_test"][:500, ..., None] / 255.0, file["y_test"][:500]
    inputs = np.concatenate([x_test[spread(500, INSIDE)], 1.0 - x_test[spread(500, OUTSIDE)]])
    return Data(x, y.astype(np.int64), x_test, y_test.astype(np.int64), inputs)


@dataclass(frozen=True)
class Problem:
    """One posterior, and the protocol's numbers for it.

    Weights and biases are N(0, prior_scale^2). `noise`: "gamma", the precision exp(-2 log_noise)
    is Gamma(3, 1); "normal", log_noise is N(0, 1); "outputs", the second output is an sd through
    softplus; "classes", softmax.
    """

    name: str
    title: str
    load: Callable[[], Data]
    sizes: tuple[int, ...]  # of a tanh MLP; () is LeNet-5
    noise: str
    prior_scale: float
    chains: int = 8
    bias: bool = True
    activation: str = "tanh"  # "relu" where a rival has no tanh
    # Whether chains can be expected to agree: then a run ends when they do, else at its budget.
    mixes: bool = True
    block: int = 50  # draws of one call
    gradients: float = 3e7  # budget of a run, all chains
    seconds: float = 600.0

    @cached_property
    def data(self) -> Data:
        """Rows; MissingDataError without the development data."""
        return self.load()

    @property
    def learns_noise(self) -> bool:
        """Whether log_noise is the last parameter."""
        return self.noise in ("gamma", "normal")

    @cached_property
    def dim(self) -> int:
        """Parameters, log_noise included."""
        if not self.sizes:
            return Layout(lenet5, (28, 28, 1)).dim
        weights = sum((a + self.bias) * b for a, b in pairwise(self.sizes))
        return weights + self.learns_noise

    def outputs(self, theta: F64, x: F64) -> F64:
        """Return outputs (M, N, K) of draws (M, P)."""
        if not self.sizes:
            x = x.astype(theta.dtype)
            return np.stack([lenet5(Images(draw), x) for draw in theta]).astype(np.float64)
        h, at = np.broadcast_to(x, (len(theta), *x.shape)), 0
        for k, (a, b) in enumerate(pairwise(self.sizes)):
            h = h @ theta[:, at : at + a * b].reshape(-1, a, b)
            at += a * b
            if self.bias:
                h = h + theta[:, None, at : at + b]
                at += b
            if k < len(self.sizes) - 2:
                h = np.tanh(h) if self.activation == "tanh" else np.maximum(h, 0.0)
        return np.asarray(h)

    def log_likelihood(self, theta: F64, outputs: F64, y: NDArray[Any]) -> F64:
        """Log density (M, N) of each row, normalised."""
        if self.noise == "classes":
            top = outputs.max(axis=2, keepdims=True)
            normaliser = top[..., 0] + np.log(np.exp(outputs - top).sum(axis=2))
            return np.asarray(outputs[:, np.arange(len(y)), y] - normaliser)
        log_sd = self.log_sd(theta, outputs)
        z = (y - outputs[..., 0]) * np.exp(-log_sd)
        return np.asarray(-0.5 * z * z - log_sd - 0.5 * math.log(2.0 * math.pi))

    def log_sd(self, theta: F64, outputs: F64) -> F64:
        """Log sd of the noise, (M, N) or (M, 1)."""
        if self.learns_noise:
            return theta[:, -1:]
        return np.asarray(np.log(np.logaddexp(0.0, outputs[..., 1])))

    def log_prior(self, theta: F64) -> F64:
        """Log prior (M,) up to a constant; of log_noise with the Jacobian of its scale."""
        weights = theta[:, : self.dim - self.learns_noise]
        density = -0.5 * np.sum(weights**2, axis=1) / self.prior_scale**2
        if self.noise == "normal":
            density = density - 0.5 * theta[:, -1] ** 2
        elif self.noise == "gamma":
            density = density - 6.0 * theta[:, -1] - np.exp(-2.0 * theta[:, -1])
        return np.asarray(density)

    def log_density(self, theta: F64) -> F64:
        """Log posterior (M,) up to a constant."""
        rows = self.log_likelihood(theta, self.outputs(theta, self.data.x), self.data.y)
        return np.asarray(rows.sum(axis=1) + self.log_prior(theta))

    @property
    def quantities(self) -> list[str]:
        """Names of what is judged."""
        noise = {"gamma": ["log noise"], "normal": ["log noise"], "outputs": ["mean log sd"]}
        inputs = len(self.data.inputs)
        return [*(f"f{i}" for i in range(inputs)), *noise.get(self.noise, []), "log likelihood"]

    def read(self, positions: NDArray[Any]) -> tuple[F64, F64]:
        """Read off draws (C, D, P) what is judged: quantities (C, D, Q) and test rows.

        f is the mean of y; of classes the logit of class i mod 10 less the mean of all, at input i.
        Test rows: log of the sum over these draws of the likelihood of each, (N_test,).
        """
        chains, count = positions.shape[:2]
        data = self.data
        # LeNet-5 in float32 as its draws are: in float64 reading costs as much as sampling.
        flat = positions.reshape(-1, self.dim).astype(np.float64 if self.sizes else np.float32)
        found, test = [], np.full(len(data.y_test), -np.inf)
        for theta in np.array_split(flat, -(-len(flat) // 200)):
            f = self.outputs(theta, data.inputs)
            columns = [f[..., 0]]
            if self.noise == "classes":
                each = np.arange(f.shape[1])
                columns = [f[:, each, each % f.shape[2]] - f.mean(axis=2)]
            else:
                columns.append(self.log_sd(theta, f).mean(axis=1, keepdims=True))
            rows = self.log_likelihood(theta, self.outputs(theta, data.x), data.y)
            columns.append(rows.sum(axis=1, keepdims=True))
            found.append(np.concatenate(columns, axis=1))
            terms = self.log_likelihood(theta, self.outputs(theta, data.x_test), data.y_test)
            test = np.logaddexp(test, np.logaddexp.reduce(terms, axis=0))
        return np.concatenate(found).reshape(chains, count, -1), test

    def probes(self) -> F64:
        """Four points (4, P) at which densities are compared: half a prior sd, of relu a quarter.

        Further out a deep relu network's noise sd is 1e-12, where bde has a floor of 1e-6.
        """
        rng = np.random.default_rng(5)
        share = 0.25 if self.activation == "relu" else 0.5
        return share * self.prior_scale * rng.standard_normal((4, self.dim))

    def check(self, density: Callable[[F64], tuple[Any, Any]]) -> float:
        """Hold an entry's log density and gradient, f(theta (M, P)) -> (M,), (M, P), to this.

        Returns the largest error, relative to the largest value and directional derivative; those
        of this form are central differences. DensityError above 2e-3: float32 has 1e-5.
        """
        theta = self.probes()
        directions = np.random.default_rng(6).standard_normal(theta.shape)
        step = 1e-4 / math.sqrt(self.dim)
        expected = self.log_density(theta)
        ahead, behind = (self.log_density(theta + s * directions) for s in (step, -step))
        slopes = (ahead - behind) / (2.0 * step)
        value, gradient = (np.asarray(a, np.float64) for a in density(theta))
        off = (value - value[0]) - (expected - expected[0])
        slopes_off = np.sum(gradient * directions, axis=1) - slopes
        error = max(
            float(np.abs(off).max() / np.abs(expected).max()),
            float(np.abs(slopes_off).max() / np.abs(slopes).max()),
        )
        if not error <= 2e-3:
            raise DensityError(f"{self.name}: another density than ours, by {error:.2g}")
        return error


class DensityError(Exception):
    """An entry samples something else."""


class Images:
    """A `net` (see `workloads.networks`) of one draw (P,) on rows (N, H, W, C), for LeNet-5."""

    def __init__(self, theta: F64) -> None:
        self.theta, self.at = theta, 0

    def _take(self, *shape: int) -> F64:
        size = math.prod(shape)
        self.at += size
        return self.theta[self.at - size : self.at].reshape(shape)

    def conv(self, x: F64, filters: int, kernel: tuple[int, int]) -> F64:
        """Convolve, 'same': the gathered cells times the kernel."""
        reach = kernel[0] // 2
        padded = np.pad(x, [(0, 0), (reach, reach), (reach, reach), (0, 0)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=(1, 2))
        cells = np.moveaxis(windows, 3, 5).reshape(*x.shape[:3], -1)
        weight = self._take(cells.shape[-1], filters)
        return np.asarray(cells @ weight + self._take(filters))

    def relu(self, x: F64) -> F64:
        """max(x, 0)."""
        return np.maximum(x, 0.0)

    def max_pool(self, x: F64, window: tuple[int, int], stride: tuple[int, int]) -> F64:
        """Largest of each window that lies inside."""
        windows = np.lib.stride_tricks.sliding_window_view(x, window, axis=(1, 2))
        return np.asarray(windows[:, :: stride[0], :: stride[1]].max(axis=(4, 5)))

    def flatten(self, x: F64) -> F64:
        """(N, H W C)."""
        return x.reshape(len(x), -1)

    def dense(self, x: F64, units: int) -> F64:
        """Weights first, then biases."""
        weight = self._take(x.shape[1], units)
        return np.asarray(x @ weight + self._take(units))


UCI = {"concrete": (8, 927), "yacht": (6, 277), "energy": (8, 691), "wine": (11, 1439)}
SPLITS = 5


def _one_layer(name: str) -> Problem:
    width, rows = UCI[name]
    return Problem(
        f"{name}-50",
        f"{width}-50-1 tanh, {name} (UCI) split 0, N = {rows}, prior N(0, 0.7^2), "
        "log noise N(0, 1)",
        lambda: uci(name, 0),
        (width, 50, 1),
        "normal",
        0.7,
    )


def _four_layers(name: str, split: int) -> Problem:
    width, rows = UCI[name]
    return Problem(
        f"{name}-4x16-{split}",
        f"{width}-16-16-16-16-2 tanh, {name} (UCI) split {split}, N = {rows}, prior N(0, 1), "
        "the second output an sd through softplus",
        lambda: uci(name, split),
        (width, 16, 16, 16, 16, 2),
        "outputs",
        1.0,
        chains=10,
        mixes=False,
        gradients=6e5,
    )


PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for problem in (
        Problem(
            "bnn",
            "NumPyro's BNN example: 3-5-5-1 tanh without biases, N = 100, prior N(0, 1), precision "
            "of the noise Gamma(3, 1)",
            curve,
            (3, 5, 5, 1),
            "gamma",
            1.0,
            bias=False,
        ),
        Problem(
            "bnn-normal",
            "the same with log noise N(0, 1) instead",
            curve,
            (3, 5, 5, 1),
            "normal",
            1.0,
            bias=False,
        ),
        *(_one_layer(name) for name in UCI),
        *(_four_layers(name, split) for name in UCI for split in range(SPLITS)),
        Problem(
            "digits-lenet5",
            "LeNet-5 (ReLU, 91,946 parameters), 100 digits (MNIST), prior N(0, 0.1^2)",
            digits,
            (),
            "classes",
            0.1,
            chains=4,
            mixes=False,
            block=1,
            gradients=2e5,  # of which HMC needs some 50,000 for its warmup
            seconds=3_600.0,
        ),
    )
}
