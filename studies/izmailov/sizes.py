"""Settings by size: data, network, prior, chains and the grids of each figure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Size:
    """Settings of all figures.

    Attributes
    ----------
    rows, tests
        Training rows, and the largest number of test rows.
    splits
        Seeds of the splits into training and test rows.
    prior_variance
        Variance of the normal prior on every weight.
    hmc
        Arguments of `rb.HMC`; empty: its defaults.
    step_guess
        Leapfrog step of the cost model if HMC finds its own.
    counts
        Numbers of draws per chain that get scores.
    steps
        Leapfrog steps of the figure "step_size".
    lengths
        Trajectory lengths in units of pi/2 prior sds.
    epochs, members
        Epochs of training, and number of networks in the ensemble.
    updates
        Minibatch updates of SGLD and SGHMC per chain; warmup has half as many.
    """

    name: str
    network: str
    data: str
    rows: int
    tests: int
    splits: tuple[int, ...]
    prior_variance: float
    warmup: int
    draws: int
    chains: int
    counts: tuple[int, ...]
    steps: tuple[float, ...]
    lengths: tuple[float, ...]
    temperatures: tuple[float, ...]
    scales: tuple[float, ...]
    strengths: tuple[int, ...]
    epochs: int
    members: int
    updates: int
    batch_size: int
    step_guess: float
    hmc: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prior_sd(self) -> float:
        """Standard deviation of every weight under the prior."""
        return math.sqrt(self.prior_variance)

    @property
    def quarter_turn(self) -> float:
        """pi/2 prior sds, the length that moves a weight of the prior to an independent one."""
        return 0.5 * math.pi * self.prior_sd


LAPTOP = Size(
    name="laptop",
    network="mlp",
    data="digits",
    rows=500,
    tests=1297,
    splits=(0, 1, 2, 3, 4),
    prior_variance=0.2,
    warmup=200,
    draws=400,
    chains=4,
    counts=(1, 3, 10, 30, 100, 200, 400),
    steps=(0.005, 0.01, 0.015, 0.02, 0.03, 0.04),
    lengths=(1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0),
    temperatures=(0.03, 0.1, 0.3, 1.0, 3.0),
    scales=(0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
    strengths=(1, 2, 3, 4, 5),
    epochs=2000,
    members=10,
    updates=40_000,
    batch_size=100,
    step_guess=0.015,
)
TEST = Size(
    name="test",
    network="small",
    data="digits",
    rows=60,
    tests=80,
    splits=(0, 1),
    prior_variance=0.2,
    warmup=20,
    draws=12,
    chains=2,
    counts=(1, 6, 12),
    steps=(0.02, 0.1),
    lengths=(1 / 8, 1.0),
    temperatures=(0.1, 1.0),
    scales=(0.5, 1.0),
    strengths=(1, 5),
    epochs=10,
    members=2,
    updates=60,
    batch_size=20,
    step_guess=0.05,
)
# Network, rows, prior, step, burn-in, draws, chains, batches, epochs and members: the paper's
# table 3 for CIFAR-10. The grids match the size "laptop", in the paper's units.
PAPER = Size(
    name="paper",
    network="resnet20_frn",
    data="cifar10",
    rows=40_960,
    tests=10_000,
    splits=(0, 1, 2),
    prior_variance=0.2,
    warmup=50,
    draws=240,
    chains=3,
    counts=(1, 3, 10, 30, 100, 240),
    steps=(1e-5, 2e-5, 4e-5, 8e-5),
    lengths=(1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0),
    temperatures=(0.1, 0.3, 1.0, 3.0),
    scales=(0.5, 1.0, 2.0),
    strengths=(1, 2, 3, 4, 5),
    epochs=500,
    members=50,
    updates=9_000 * 512,
    batch_size=80,
    step_guess=1e-5,
    hmc={
        "step_size": 1e-5,
        "trajectory_length": 0.5 * math.pi * math.sqrt(0.2),
        "randomize_length": False,
    },
)
# Settings that --data imdb changes: another row of the same table.
IMDB: dict[str, Any] = {
    "network": "cnn_lstm",
    "rows": 25_000,
    "tests": 25_000,
    "prior_variance": 1 / 40,
    "draws": 400,
    "hmc": {
        "step_size": 1e-5,
        "trajectory_length": 0.5 * math.pi * math.sqrt(1 / 40),
        "randomize_length": False,
    },
}
SIZES = {size.name: size for size in (LAPTOP, PAPER, TEST)}
