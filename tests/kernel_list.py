"""Kernels that must compile and run: those of representative posteriors, and all others.

A new layer adds posteriors to `cases`, a kernel that samplers launch themselves its name to
`OUTSIDE_POSTERIORS`; a test fails for a kernel of ``cpp/cuda`` that is in neither.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

import ribbit as rb
from cpu_device import CPP
from device_problems import LIKELIHOODS, PRIORS, persistent_of, problem, program_of
from ribbit._device import THREADS
from ribbit.gradients import Program
from ribbit.kernels.persistent import Persistent
from ribbit.layers import ACTIVATIONS

DTYPES = ("float32", "float64")
CHAINS = 2
OUTSIDE_POSTERIORS = (
    "FillNormal<float>",
    "FillNormal<double>",
    "FillUniform",
    "KickDrift<float>",
    "KickDrift<double>",
    "KineticEnergy<float>",
    "KineticEnergy<double>",
    "FiniteRows<float>",
    "FiniteRows<double>",
    "Accept",
    "Select<float>",
    "Select<double>",
    *(
        f"Update<{scalar}, {rule}Rule<{scalar}>>"
        for scalar in ("float", "double")
        for rule in ("Langevin", "Preconditioned", "Friction", "Adam")
    ),
    "NextStep<float>",
    "NextStep<double>",
)


@dataclass(frozen=True)
class Case:
    """A posterior, the rows of a minibatch or None for all, and whether trajectories are run."""

    label: str
    target: rb.Posterior
    rows: tuple[int, ...] | None = None
    moves: bool = False

    def program(self, device=None) -> Program:
        """The program of `CHAINS` chains."""
        return program_of(self.target, CHAINS, device=device, rows=self.rows)

    def persistent(self, device=None) -> Persistent:
        """What runs whole trajectories in one launch."""
        return persistent_of(self.target, device=device)


def cases() -> Iterator[Case]:
    """Posteriors of the fewest rows and units that reach every kernel of programs."""
    rng = np.random.default_rng(7)
    activations = list(ACTIVATIONS)
    for dtype in DTYPES:
        for activation in ACTIVATIONS:
            target = problem(rng, rows=17, hidden=(17,), activation=activation, dtype=dtype)
            yield Case(f"{activation}-{dtype}", target)
        for number, name in enumerate(LIKELIHOODS):
            activation = activations[number]
            target = problem(
                rng, name, rows=20, hidden=(3,), activation=activation, prior="several", dtype=dtype
            )
            # trajectories are the largest kernels: not all of them twice
            yield Case(f"{name}-{dtype}", target, moves=dtype == "float32" or name == "learned")
        for prior in PRIORS:
            target = problem(rng, rows=3, hidden=(3,), prior=prior, dtype=dtype)
            yield Case(f"{prior} prior-{dtype}", target)
        for name, rows in (("wide", 70), ("few rows", 5)):  # tiles of all shapes
            yield Case(f"{name}-{dtype}", problem(rng, rows=rows, hidden=(3, 40, 33), dtype=dtype))
        large = problem(rng, rows=70, hidden=(50, 50), dtype=dtype)
        yield Case(f"large-{dtype}", large, moves=True)
        sliced = problem(rng, rows=2050, hidden=(3,), dtype=dtype)
        yield Case(f"sliced-{dtype}", sliced)
        yield Case(f"minibatch-{dtype}", sliced, rows=(3, 2049, 3, 0, 17))
        yield Case(f"images-{dtype}", _images(rng, dtype))
        yield Case(f"no bias-{dtype}", _no_bias(rng, dtype))


def _images(rng, dtype):
    model = rb.Model([rb.Flatten(), rb.Dense(3)], input_shape=(3, 2, 2))
    x = rng.integers(0, 256, size=(9, 3, 2, 2), dtype=np.uint8)
    return rb.Posterior(
        model, x, rng.integers(0, 3, 9), prior=rb.Normal(0.7), likelihood=rb.Categorical(),
        dtype=dtype,
    )  # fmt: skip


def _no_bias(rng, dtype):
    """And an activation after the last layer."""
    layers = [rb.Dense(2, bias=False), rb.Activation("tanh")]
    model = rb.Model(layers, input_shape=(3,))
    return rb.Posterior(
        model, rng.normal(size=(9, 3)), rng.normal(size=(9, 2)), prior=rb.Normal(0.7),
        likelihood=rb.Gaussian(0.4), dtype=dtype,
    )  # fmt: skip


@cache
def names() -> tuple[str, ...]:
    """Names of all kernels that must compile."""
    found = list(OUTSIDE_POSTERIORS)
    for case in cases():
        found += case.program().names
        if case.moves:
            found.append(case.persistent().name)
    return tuple(dict.fromkeys(found))


def template(name: str) -> str:
    """Name of the struct behind a kernel such as ``KickDrift<float>``."""
    return name.partition("<")[0]


def structs() -> dict[str, int]:
    """Every kernel of ``cpp/cuda`` and its threads: the structs that say how many they need."""
    found = {}
    for path in sorted((CPP / "cuda").glob("*_kernels.h")):
        for name, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", path.read_text(), re.M | re.S):
            block = re.search(r"\bkBlock = (\w+);", body)
            if block:
                found[name] = THREADS if block[1] == "kThreads" else int(block[1])
    return found
