"""The recorded runs as data: 114 with a record, and 12 that must give the draws of one of them.

A renamed option or argument is renamed here alone. The records use the same names of runs.

Some features went before the first record was made, or never were:

- Quantiles of a run without draws (`quantiles=`) are gone: "no draws" keeps some of them instead.
- Of NUTS, three classes and a shallow tree are one run.
- A function has no rows and no minibatches: "sgld rows" has a target in NumPy that has both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ribbit import schedules

__all__ = ["APART", "GROUPS", "OPTIONS", "TUNED", "Fit", "Option", "Run", "named"]


@dataclass(frozen=True)
class Run:
    """A run: what is sampled or fitted, by what, and how.

    Attributes
    ----------
    name : str
    target : str
        One of `tests.golden.targets`.
    kernel : str
        A sampler or fit of the package.
    options : dict
        Of the sampler or fit.
    call : dict
        Arguments of ``sample`` or ``fit``; "num" is their first one.
    more : dict
        Arguments of the call that goes on from the end; empty: none does.
    predicts : bool
        Whether predictions are recorded, at the first rows of the data.
    """

    name: str
    target: str
    kernel: str
    options: dict[str, Any] = field(default_factory=dict)
    call: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=lambda: {"num": 20})
    predicts: bool = False


@dataclass(frozen=True)
class Fit:
    """A fit of the same target, as a start of chains."""

    kernel: str
    options: dict[str, Any]
    call: dict[str, Any]


def runs(kernel: str, call: dict[str, Any], rows: list[tuple[Any, ...]]) -> Iterator[Run]:
    """Yield runs of (name, target, options, changes of the call, fields) rows."""
    for name, target, options, *rest in rows:
        changes = rest[0] if rest else {}
        fields = rest[1] if len(rest) > 1 else {}
        yield Run(
            f"{kernel.lower()} {name}", target, kernel, options, {**call, **changes}, **fields
        )


def both(name: str, target: str, *rest: Any) -> list[tuple[Any, ...]]:
    """Return a row for each dtype."""
    return [(f"{name} {dtype}", f"{target} {dtype}", *rest) for dtype in ("float32", "float64")]


PREDICTS = {"predicts": True}
MASS = np.linspace(0.5, 1.5, 242)  # of T2

CHAINS = {"num": 5, "warmup": 30, "chains": 2, "seed": 11}
GIVEN = {"step_size": 0.02, "num_leapfrog_steps": 6}
HMC = list(
    runs(
        "HMC",
        CHAINS,
        [
            *both("t1", "T1", {}, {"num": 10}, PREDICTS),
            *both("t2", "T2", {}, {"num": 10}),
            *both("t3", "T3", {}),
            ("steps", "T2", GIVEN, {"num": 10}),
            ("step of each chain", "T2", {"step_size": [0.01, 0.02], "trajectory_length": 0.1}),
            ("whole lengths", "T2", {**GIVEN, "randomize_length": False}),
            ("length", "T1", {"trajectory_length": 1.5}),
            ("mass prior", "T3", {**GIVEN, "inverse_mass_matrix": "prior"}, {}, PREDICTS),
            ("mass adapt", "T2", {"inverse_mass_matrix": "adapt"}, {"warmup": 150}),
            ("mass array", "T2", {**GIVEN, "inverse_mass_matrix": MASS}),
            ("jitter", "T2", {**GIVEN, "step_size_jitter": 0.3}),
            ("jitter auto", "T2", {"step_size_jitter": 0.3}),
            ("target acceptance", "T2", {"target_accept": 0.8}),
            ("cap", "T2", {"step_size": 0.01, "max_num_leapfrog_steps": 4}),
            ("diverging", "T2", {"step_size": 3.0, "num_leapfrog_steps": 3}, {"num": 10}),
            ("lost", "T2", {"step_size": 1e25, "num_leapfrog_steps": 3}, {"num": 10}),
            ("thin", "T2", {}, {"thin": 3, "warmup": 37}),
            ("no warmup", "T2", GIVEN, {"warmup": 0}),
            ("warmup of 12", "T2", {}, {"warmup": 12}),
            ("kept warmup", "T1", {}, {"save_warmup": True}),
            ("chain ids", "T2", GIVEN, {"chains": [4, 2]}),
            ("tempered", "T2 tempered", {}),
            ("t4", "T4", {}),
            ("t5", "T5", {}),
            ("t6", "T6", {}),
            ("t12", "T12", GIVEN, {"chains": 1, "warmup": 3}, {"more": {"num": 3}}),
            ("ranks", "T13", {}, {"warmup": 12}, {"more": {"num": 5}}),
            ("pointer", "T7", {}),
            ("pointer threadsafe", "T7 threadsafe", GIVEN),
            ("function", "T8", {}),
            ("array api", "T9", {}),
        ],
    )
)

NUTS = list(
    runs(
        "NUTS",
        CHAINS,
        [
            *both("t1", "T1", {}),
            *both("t2", "T2", {}),
            ("t3 shallow", "T3", {"max_tree_depth": 3}),
            ("mass none", "T2", {"inverse_mass_matrix": None, "max_tree_depth": 8}),
            ("mass prior", "T2", {"inverse_mass_matrix": "prior", "max_tree_depth": 8}),
            (
                "mass adapt",
                "T2",
                {"inverse_mass_matrix": "adapt", "max_tree_depth": 8},
                {"warmup": 150},
            ),
            ("mass array", "T2", {"inverse_mass_matrix": MASS, "max_tree_depth": 8}),
            ("step", "T2", {"step_size": 0.02, "max_tree_depth": 8}),
            ("t4", "T4", {"max_tree_depth": 8}, {}, PREDICTS),
            ("t5", "T5", {"max_tree_depth": 6}),
            ("kept warmup", "T1", {}, {"save_warmup": True}),
            ("pointer", "T7", {}),
            ("function", "T8 batched", {}),
            ("array api", "T9", {"max_tree_depth": 3}, {}, {"more": {"num": 5}}),
        ],
    )
)

COOLED = {"num": 5, "warmup": 128, "thin": 2, "chains": 2, "seed": 12}
STEPS = {"step_size": 0.05, "decoherence_length": 1.0}
MCLMC = list(
    runs(
        "MCLMC",
        COOLED,
        [
            *both("steps", "T2", STEPS),
            ("minimal norm", "T2", {"integrator": "mclachlan"}),
            ("array api", "T9", {}),
            *both("t2", "T2", {}, {"save_warmup": True}),
            *both("inputs", "T4", {"inverse_mass_matrix": "inputs"}),
            ("mass adapt", "T1", {"inverse_mass_matrix": "adapt"}, {"warmup": 300}),
            ("mass prior", "T2", {"inverse_mass_matrix": "prior"}),
            ("mass none", "T2", {"inverse_mass_matrix": None}),
            ("variances", "T1", {"desired_energy_var": (0.3, 0.01)}, {"warmup": 600}),
            ("no limit", "T7", {"step_limit": None}),
            *both(
                "adjusted", "T2", {"adjusted": True}, {"warmup": 40, "thin": 1, "save_warmup": True}
            ),
            ("adjusted steps", "T2", {**STEPS, "adjusted": True}, {"warmup": 10, "thin": 1}),
            ("pointer", "T7", {}),
            ("function", "T8", {}),
        ],
    )
)
# Warmups whose inputs of the tuner are recorded: both kinds of scales, and four without.
TUNED = (
    "mclmc t2 float32",
    "mclmc inputs float64",
    "mclmc mass adapt",
    "mclmc mass none",
    "mclmc variances",
    "mclmc pointer",
)

NOISY = {"num": 5, "warmup": 20, "thin": 3, "chains": 2, "seed": 13}
TENS = {"step_size": 1e-4, "batch_size": 10}
SGMCMC = [
    *runs(
        "SGLD",
        NOISY,
        [
            *both("t2", "T2", TENS),
            ("all rows", "T2", {"step_size": 1e-4, "batch_size": None}),
            ("rmsprop", "T2", {**TENS, "preconditioner": "rmsprop"}, {"save_warmup": True}),
            ("auto", "T1", {"step_size": "auto", "batch_size": 10}),
            ("polynomial", "T2", {**TENS, "schedule": schedules.polynomial(0.55, offset=10.0)}),
            ("cosine", "T2", {**TENS, "schedule": schedules.cosine(35, final=0.1)}),
            (
                "cyclical",
                "T2",
                {**TENS, "schedule": schedules.cyclical(3, 20, draws_per_cycle=2)},
                {"num": 4, "warmup": 0, "thin": None},
                {"more": {"num": 2, "thin": None}},
            ),
            ("tracked", "T2", {**TENS, "track_lp": True}),
            ("t3", "T3", TENS),
            ("t5", "T5", TENS),
            ("t6", "T6", TENS),
            ("rows", "T8 rows", TENS),
            (
                "not finite",
                "T2",
                {"step_size": 1.0, "batch_size": 10},
                {"num": 100, "warmup": 0, "thin": 1},
                {"more": {}},
            ),
        ],
    ),
    *runs(
        "SGHMC",
        NOISY,
        [
            ("t2", "T2", {**TENS, "step_size": 1e-5}),
            ("auto", "T1", {"step_size": "auto", "batch_size": 10}),
            ("friction", "T2", {**TENS, "step_size": 1e-5, "friction": 0.5}, {"save_warmup": True}),
            ("ranks", "T13", {**TENS, "step_size": 1e-5}),
        ],
    ),
    *runs(
        "BAOAB",
        NOISY,
        [
            ("auto", "T1", {"batch_size": 10}),
            ("step", "T2", {**TENS, "step_size": 0.01}, {"warmup": 0}),
            ("cooling", "T2", {**TENS, "step_size": 0.01}, {"warmup": 40, "save_warmup": True}),
            ("all rows", "T2", {"step_size": 0.01, "batch_size": None}),
        ],
    ),
]

EPOCHS = {"num": 4, "seed": 14}
ON = {"more": {"num": 3}}
GO_ON = {"more": {"num": 0, "swag_epochs": 5}}
BATCH = {"batch_size": 10}
SWAG = {"num": 3, "swag_epochs": 3, "seed": 14}
FITS = [
    *(
        run
        for kernel, call, rows in (
            (
                "BBB",
                EPOCHS,
                [
                    *both("t2", "T2", BATCH, {}, {**ON, **PREDICTS}),
                    ("local", "T2", {**BATCH, "estimator": "local"}, {}, ON),
                    ("flipout", "T2", {**BATCH, "estimator": "flipout"}, {}, ON),
                    ("sampled", "T3", {**BATCH, "kl": "sampled", "num_samples": 2}, {}, ON),
                    ("all rows", "T2", {}, {}, ON),
                    ("t5", "T5", BATCH, {}, ON),
                    ("torch", "T10", BATCH, {}, ON),
                ],
            ),
            (
                "MCDropout",
                EPOCHS,
                [
                    ("t11", "T11", BATCH, {}, ON),
                    ("concrete", "T11", {**BATCH, "rate": "concrete"}, {}, ON),
                    ("t5", "T5 dropout", BATCH, {}, ON),
                ],
            ),
            (
                "DeepEnsemble",
                EPOCHS,
                [
                    *both("t2", "T2", {**BATCH, "members": 2}, {}, ON),
                    ("all rows", "T2", {"batch_size": None, "members": 2}, {}, ON),
                ],
            ),
            (
                "SWAG",
                SWAG,
                [
                    ("adam", "T2", BATCH, {}, GO_ON),
                    ("sgd", "T2", {**BATCH, "optimizer": "sgd"}, {}, GO_ON),
                    ("members", "T2", {**BATCH, "members": 2}, {}, GO_ON),
                ],
            ),
            (
                "LaplaceApproximation",
                EPOCHS,
                [
                    ("t1", "T1", BATCH, {}, {**ON, **PREDICTS}),
                    ("last layer", "T2", {**BATCH, "subset": "last_layer"}, {}, ON),
                    ("evidence", "T1", {**BATCH, "tune_prior": "layers"}, {}, ON),
                ],
            ),
        )
        for run in runs(kernel, call, rows)
    ),
    Run(
        "start long",
        "T2",
        "HMC",
        GIVEN,
        {**CHAINS, "init": Fit("EnsembleStart", {"max_steps": 200, "finish": 20}, {})},
    ),
    Run("start ensemble", "T1", "HMC", {}, {**CHAINS, "init": "ensemble"}),
    Run("start mean field", "T2", "HMC", GIVEN, {**CHAINS, "init": Fit("BBB", BATCH, {"num": 3})}),
    Run("start swag", "T2", "HMC", GIVEN, {**CHAINS, "init": Fit("SWAG", BATCH, {"num": 3})}),
]

# Runs of one process; those whose packages may be missing stand apart.
EVERY = {"HMC": HMC, "NUTS": NUTS, "MCLMC": MCLMC, "SGMCMC": SGMCMC, "fits": FITS}
APART = {"T9": "array_api_strict", "T10": "torch", "T13": "mpi4py"}
GROUPS: dict[str, list[Run]] = {
    **{name: [run for run in some if run.target not in APART] for name, some in EVERY.items()},
    **{
        package: [run for some in EVERY.values() for run in some if run.target == target]
        for target, package in APART.items()
    },
}


def named(name: str) -> Run:
    """Return a run by its name."""
    return next(run for some in EVERY.values() for run in some if run.name == name)


@dataclass(frozen=True)
class Option:
    """A way to make the draws of a recorded run: a function of `tests.golden.same_draws`."""

    name: str
    run: str


OPTIONS = (
    Option("two threads", "hmc t12"),
    Option("executor", "hmc t2 float32"),
    Option("cut store", "hmc t2 float32"),
    Option("resumed at a draw", "hmc t2 float32"),
    Option("resumed in warmup", "hmc t2 float32"),
    Option("predict_at", "hmc t2 float32"),
    Option("no draws", "hmc t2 float32"),
    Option("until", "hmc t1 float32"),
    Option("saved", "hmc t2 float32"),
    Option("concatenated", "hmc steps"),
    Option("c library", "hmc steps"),
    Option("background", "hmc t2 float32"),
)
