"""The targets of the recorded runs.

Data and log densities that NumPy computes use +, -, * and / only. These round the same on every
processor, so the records do not depend on NumPy's exp, log or sin.
"""

import ctypes
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

import ribbit as rb

SDS = np.array([1.0, 0.5, 2.0, 1.5, 0.25, 1.0, 3.0, 0.75, 1.25, 0.5])
RELU = rb.Activation("relu")


def uniform(*shape: int, seed: int) -> np.ndarray:
    """Return numbers between -1 and 1."""
    return 2.0 * np.random.default_rng(seed).random(shape) - 1.0


def labels(rows: int, classes: int, seed: int) -> np.ndarray:
    """Return class labels (N,)."""
    return np.random.default_rng(seed).integers(0, classes, rows)


def table(rows: int, columns: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs (N, D) and targets (N, 1) with noise."""
    x = uniform(rows, columns, seed=seed)
    first, last = x[:, :1], x[:, -1:]
    return x, 2.0 * first - 1.5 * first * first * last + 0.2 * uniform(rows, 1, seed=seed + 1)


def t1(**options: Any) -> rb.Posterior:
    """One input, known noise, tanh: HMC and NUTS integrate out the last layer."""
    model = rb.mlp(1, (8,), 1, activation="tanh")
    known = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian(0.3)}
    return rb.Posterior(model, *table(40, 1, 1), **known, **options)


def t2(**options: Any) -> rb.Posterior:
    """Six inputs in other units, learned noise."""
    x, y = table(60, 6, 2)
    learned = {"prior": rb.Normal(1.0, fan_in=True), "likelihood": rb.Gaussian()}
    return rb.Posterior(rb.mlp(6, (30,), 1), 5.0 * x + 3.0, 10.0 * y, **learned, **options)


def t3_model(*between: rb.Dropout) -> rb.Model:
    """Return the network of T3, with Dropout behind its first layers or without."""
    hidden = [layer for _ in range(2) for layer in (rb.Dense(10), RELU, *between)]
    return rb.Model([*hidden, rb.Dense(3)], input_shape=(5,))


def t3(model: rb.Model | None = None, **options: Any) -> rb.Posterior:
    """Three classes, priors by name, weights of rows."""
    x, y = uniform(45, 5, seed=3), labels(45, 3, seed=4)
    prior = {"*.bias": rb.Normal(2.0), "0.weight": rb.Laplace(1.0), "*": rb.Normal(0.5)}
    weighted = {"prior": prior, "likelihood": rb.Categorical()}
    weights = 1.0 + 0.5 * uniform(45, seed=5)
    return rb.Posterior(model or t3_model(), x, y, sample_weight=weights, **weighted, **options)


def t4(**options: Any) -> rb.Posterior:
    """Noise that depends on the input, a learned scale for each input."""
    x, y = table(50, 2, 6)
    prior = rb.Normal(rb.HalfNormal(1.0), per="input")
    likelihood = rb.HeteroscedasticGaussian(min_sd=0.05)
    return rb.Posterior(rb.mlp(2, (8,), 2), x, y, prior=prior, likelihood=likelihood, **options)


def t5(*last: rb.Dropout, **options: Any) -> rb.Posterior:
    """Images of bytes through a convolution, a group norm, a residual block and two pools."""
    block = rb.Residual((rb.GroupNorm(2), RELU, rb.Conv2D(4, 3, padding="same")))
    layers = [rb.Conv2D(4, 3, padding="same"), block, rb.MaxPool2D(2), rb.GlobalAvgPool2D()]
    model = rb.Model([*layers, *last, rb.Dense(3)], input_shape=(8, 8, 2))
    x = np.random.default_rng(8).integers(0, 256, (32, 8, 8, 2), dtype=np.uint8)
    known = {"prior": rb.Normal(0.5), "likelihood": rb.Categorical()}
    return rb.Posterior(model, x, labels(32, 3, seed=9), **known, **options)


def t6(**options: Any) -> rb.Posterior:
    """Sequences of tokens through an embedding and an LSTM."""
    model = rb.Model([rb.Embedding(10, 4), rb.LSTM(5), rb.Dense(1)], input_shape=(7,))
    x = np.random.default_rng(10).integers(0, 10, (24, 7))
    known = {"prior": rb.Normal(1.0), "likelihood": rb.Bernoulli()}
    return rb.Posterior(model, x, labels(24, 2, seed=11), **known, **options)


POINTER = ctypes.POINTER(ctypes.c_double)


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, POINTER, POINTER, POINTER, ctypes.c_void_p)
def normals(n: int, x: Any, grad: Any, lp: Any, user: Any) -> int:
    """Write the log density of independent normals, as a compiled function does."""
    lp[0] = 0.0
    for i in range(n):
        scaled = x[i] / SDS[i]
        grad[i] = -scaled / SDS[i]
        lp[0] -= 0.5 * scaled * scaled
    return 0


def t7(*, threadsafe: bool = False) -> Any:
    """Ten normals by the address of a C function."""
    return rb.CallableDensity.from_pointer(normals, len(SDS), threadsafe=threadsafe)


def t8(*, batched: bool = False) -> rb.CallableDensity:
    """Ten normals by a Python function, of one position or of all."""

    def density(theta: np.ndarray) -> tuple[Any, np.ndarray]:
        scaled = theta / SDS
        lp = np.zeros(theta.shape[:-1])
        for column in np.moveaxis(scaled, -1, 0):
            lp = lp - 0.5 * column * column
        return lp if batched else float(lp), -scaled / SDS

    return rb.CallableDensity(density, len(SDS), batched=batched)


class Rows:
    """A line through rows, as a user writes a target: only NumPy, and minibatches."""

    dim, num_rows, dtype = 4, 50, np.dtype(np.float64)

    def __init__(self) -> None:
        self.x, self.y = table(self.num_rows, self.dim, 12)

    def init(self, seed: int = 0, chains: Any = None) -> np.ndarray:
        """Return starts (C, P)."""
        count = chains if isinstance(chains, int) else len(chains)
        return uniform(count, self.dim, seed=seed)

    def value_and_grad(self, theta: np.ndarray, rows: Any = None) -> tuple[Any, Any]:
        """Return log densities (C,) and gradients (C, P)."""
        some = np.arange(self.num_rows) if rows is None else np.asarray(rows)
        lp, grad = np.zeros(len(theta)), -theta
        for column in theta.T:
            lp = lp - 0.5 * column * column
        share = self.num_rows / some.shape[-1]
        for c, position in enumerate(theta):
            for row in some if some.ndim == 1 else some[c]:
                x, residual = self.x[row], self.y[row, 0]
                for weight, one in zip(position, x, strict=True):
                    residual = residual - weight * one
                lp[c] -= 0.5 * share * residual * residual
                grad[c] += share * residual * x
        return lp, grad


class Strict:
    """Ten normals on arrays of a strict array library."""

    dtype = np.dtype(np.float64)

    def __init__(self, xp: ModuleType) -> None:
        self.array_namespace, self.sds = xp, xp.asarray(SDS)
        self.dim = len(SDS)

    def init(self, seed: int = 0, chains: Any = None) -> Any:
        """Return starts (C, P)."""
        count = chains if isinstance(chains, int) else len(chains)
        return self.array_namespace.asarray(uniform(count, self.dim, seed=seed))

    def value_and_grad(self, theta: Any, rows: None = None) -> tuple[Any, Any]:
        """Return log densities (C,) and gradients (C, P)."""
        scaled = theta / self.sds
        lp = 0.0 * theta[:, 0]
        for i in range(self.dim):
            lp = lp - 0.5 * scaled[:, i] * scaled[:, i]
        return lp, -scaled / self.sds


def t9() -> Strict:
    """Ten normals on arrays that are not NumPy's."""
    import array_api_strict

    return Strict(array_api_strict)


def t10(**options: Any) -> Any:
    """A module of torch that does not become layers of ours, of sums and products."""
    import torch

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Parameter(torch.tensor(uniform(3, 4, seed=14)))
            self.last = torch.nn.Parameter(torch.tensor(uniform(4, seed=15)))

        def forward(self, x: Any) -> Any:
            h = x[:, 0:1] * self.first[0] + x[:, 1:2] * self.first[1] + x[:, 2:3] * self.first[2]
            h = h / (1.0 + h * h) * self.last
            return h[:, 0:1] + h[:, 1:2] + h[:, 2:3] + h[:, 3:4]

    data = tuple(torch.tensor(part) for part in table(30, 3, 13))
    given = {"prior": rb.Normal(1.0), "native": False, "vmap": False}
    return rb.torch.posterior(Module(), rb.Gaussian(0.3), data, **given, **options)


def t11(**options: Any) -> rb.Posterior:
    """T3 with Dropout layers."""
    return t3(t3_model(rb.Dropout(0.2)), **options)


def t12(**options: Any) -> rb.Posterior:
    """A wider network on many rows."""
    known = {"prior": rb.Normal(0.3), "likelihood": rb.Gaussian(0.3)}
    return rb.Posterior(rb.mlp(20, (100,), 1), *table(5000, 20, 16), **known, **options)


def t13(group: Any = None, **options: Any) -> rb.Posterior:
    """T2 with its rows on several ranks."""
    x, y = table(60, 6, 2)
    mine = slice(None) if group is None else group.rows(60)
    learned = {"prior": rb.Normal(1.0, fan_in=True), "likelihood": rb.Gaussian()}
    model = rb.mlp(6, (30,), 1)
    return rb.Posterior(model, x[mine], y[mine], group=group, **learned, **options)


MAKE: dict[str, Callable[..., Any]] = {
    "T1": t1,
    "T2": lambda **options: t2(standardize=True, **options),
    "T2 tempered": lambda **options: t2(
        standardize=True, temperature=0.5, likelihood_temperature=2.0, **options
    ),
    "T3": t3,
    "T4": t4,
    "T5": t5,
    "T5 dropout": lambda **options: t5(rb.Dropout(0.3), **options),
    "T6": t6,
    "T7": t7,
    "T7 threadsafe": lambda: t7(threadsafe=True),
    "T8": t8,
    "T8 batched": lambda: t8(batched=True),
    "T8 rows": Rows,
    "T9": t9,
    "T10": t10,
    "T11": t11,
    "T12": t12,
    "T13": t13,
}


# New inputs and targets of the runs whose predictions are recorded.
NEW: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    "T1": lambda: table(5, 1, 20),
    "T2": lambda: tuple(
        a * part + b for part, a, b in zip(table(5, 6, 20), (5, 10), (3, 0), strict=True)
    ),
    "T3": lambda: (uniform(5, 5, seed=20), labels(5, 3, 21)),
    "T4": lambda: table(5, 2, 20),
}


def make(name: str, **options: Any) -> Any:
    """Return a target; a name such as "T2 float64" has the dtype behind it."""
    name, _, dtype = name.partition(" float")
    if dtype:
        options["dtype"] = np.dtype(f"float{dtype}")
    return MAKE[name](**options)
