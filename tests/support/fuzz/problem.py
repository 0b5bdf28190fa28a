"""Arguments that are right, with what is wrong for them, and objects to call."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ribbit as rb
from tests.support.fuzz import malformed as m

# right value, wrong ones, and other names under which an error may know the argument
Argument = tuple[Any, m.Values] | tuple[Any, m.Values, tuple[str, ...]]


@dataclass(frozen=True)
class Call:
    """A callable of the public surface."""

    function: Callable[..., Any]
    arguments: dict[str, Argument]

    def right(self) -> dict[str, Any]:
        """Arguments that are right."""
        return {name: argument[0] for name, argument in self.arguments.items()}


N, D, K = 6, 2, 3
X = np.linspace(-1.0, 1.0, N * D).reshape(N, D)
Y = np.linspace(-1.0, 1.0, N)
LABELS = np.arange(N) % K
MODEL = rb.mlp(D, (3,), 1)
P = MODEL.dim
THETA = np.full(P, 0.1)
NORMAL, NOISE = rb.Normal(1.0), rb.Gaussian(0.5)
TARGET = rb.Posterior(MODEL, X, Y, prior=NORMAL, likelihood=NOISE, dtype=np.float64)
CLASSES = rb.Posterior(
    rb.mlp(D, (3,), K), X, LABELS, prior=NORMAL, likelihood=rb.Categorical(), dtype=np.float64
)
DROPPING = rb.Posterior(
    rb.Model([rb.Dense(3), rb.Dropout(0.2), rb.Dense(1)], input_shape=(D,)),
    X,
    Y,
    prior=NORMAL,
    likelihood=NOISE,
    dtype=np.float64,
)
RUN: dict[str, Any] = {"warmup": 0, "chains": 2, "progress": False}
HMC = rb.HMC(TARGET, step_size=0.05, num_leapfrog_steps=2)
NUTS = rb.NUTS(TARGET, step_size=0.05, max_tree_depth=2)
SGLD = rb.SGLD(TARGET, step_size=1e-4, batch_size=3)
SGHMC = rb.SGHMC(TARGET, step_size=1e-5, batch_size=3)
BAOAB = rb.BAOAB(TARGET, step_size=1e-2, batch_size=3)
MCLMC = rb.MCLMC(TARGET, step_size=0.05, decoherence_length=0.5)
DRAWS = HMC.sample(6, **RUN)
CLASS_DRAWS = rb.HMC(CLASSES, step_size=0.05, num_leapfrog_steps=2).sample(4, **RUN)
SG_STATE, SGHMC_STATE, BAOAB_STATE, MCLMC_STATE = (
    one.sample(1, thin=1, init=THETA, **RUN).state for one in (SGLD, SGHMC, BAOAB, MCLMC)
)
MCLMC_DRAWS = MCLMC.sample(4, **RUN)
BBB = rb.BBB(TARGET, batch_size=3)
MCD = rb.MCDropout(DROPPING, batch_size=3)
ENSEMBLE = rb.DeepEnsemble(TARGET, members=2, batch_size=3)
SWAG = rb.SWAG(TARGET, members=2, batch_size=3)
FITS = {name: f.fit(1, progress=False) for name, f in [("B", BBB), ("M", MCD), ("E", ENSEMBLE)]}
LAPLACE = rb.LaplaceApproximation(TARGET, batch_size=3)
FITS["L"] = LAPLACE.fit(1, progress=False)
FITS["S"] = SWAG.fit(1, swag_epochs=2, progress=False)
DENSITY = rb.CallableDensity(lambda theta: (-0.5 * theta @ theta, -theta), P)
PREDICTION = DRAWS.predict(X, keep=True)
SCALER = rb.datasets.standardize(X, Y)
SCHEDULE = rb.schedules.cyclical(3, 10, exploration=0.5)
PROBS = np.full((N, K), 1.0 / K)
FOLDER = Path(tempfile.mkdtemp(prefix="ribbit-fuzz-"))
(FOLDER / "table.csv").write_text("a,b,c\n" + "1,2,3\n4,5,6\n")
np.savez(FOLDER / "arrays.npz", x=X, y=Y)
(FOLDER / "images").write_bytes(b"\0\0\x08\x01\0\0\0\x03abc")
DRAWS.save(FOLDER / "draws")
FITS["B"].save(FOLDER / "fit")
rb.BBB(TARGET).fit(1, progress=False, store=FOLDER / "run")

SEED: Argument = (0, m.integers(0, 2**64 - 1, none=True))
THETAS: Argument = (THETA, m.arrays((P,), exact=True, finite=False))
STARTS: Argument = (
    THETA,
    m.without(m.arrays((P,)), "list of None"),
    ("position", "chain", "start"),
)
INPUTS: Argument = (X, m.arrays((N, D), rows=True))
PRIORS = m.without(m.no(), "dict")


def seed(value: int = 0) -> Argument:
    return value, m.integers(0, 2**64 - 1, none=True)


def count(value: int, low: int = 1, high: int = 2**39, *, none: bool = False) -> Argument:
    return value, m.integers(low, high, none=none)


def positive(value: Any, *, none: bool = False, also: tuple[str, ...] = ()) -> Argument:
    return value, m.reals(0.0, none=none), also


def fraction(value: Any, *, none: bool = False) -> Argument:
    return value, m.reals(0.0, 1.0, none=none)


def flag(value: bool = False) -> Argument:
    return value, m.flags()


def choice(value: Any, *, none: bool = False) -> Argument:
    return value, m.choices(none=none)


def scale(value: float = 1.0) -> Argument:
    return positive(value)


def progress() -> Argument:
    return False, m.without(m.no("callable", "none"), "True")


PROBABILITIES: Argument = (
    PROBS,
    [*m.arrays((N, K)), ("negative", PROBS - 0.5), ("sum", 2.0 * PROBS)],
    ("rows",),
)
CHAINS: Argument = (
    2,
    [
        *m.without(m.integers(1, 2**31, none=True), "list", "tuple"),
        ("repeated", [1, 1]),
        ("float ids", [0.0, 1.0]),
        ("long id", [2**32]),
        ("no id", [-1]),
    ],
    ("chain",),
)
