"""What is timed: shapes, data, seeds, the expected answer, and the goal.

A workload knows nothing about any framework. Its `kind` says which function of an entry prepares
it (`benchmarks.rivals`), its `check` raises when an answer is not the reference's. Data are
synthetic and drawn from a teacher network, so that nothing has to be downloaded.
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness.workload import Goal
from benchmarks.workloads import networks
from benchmarks.workloads.first_draw import FirstDraw
from benchmarks.workloads.langevin import Langevin
from benchmarks.workloads.leapfrog import Leapfrog
from benchmarks.workloads.network_gradient import NetworkGradient
from benchmarks.workloads.predictive import MaskDraws, WeightDraws
from benchmarks.workloads.random_weights import Normals, Reparam
from benchmarks.workloads.variational import BayesByBackprop


def _networks() -> list[NetworkGradient]:
    return [
        NetworkGradient(
            "resnet20",
            networks.resnet20,
            (32, 32, 3),
            512,
            Goal(1.8, share=0.7),
            reduced_rows=16,
            quick_rows=64,
        ),
        NetworkGradient(
            "lenet5",
            networks.lenet5,
            (28, 28, 1),
            2048,
            Goal(1.0),
            reduced_rows=64,
            quick_rows=512,
        ),
        NetworkGradient(
            "cnn-lstm",
            networks.cnn_lstm,
            (100,),
            256,
            Goal(1.0),
            reduced_rows=16,
            tokens=20_000,
            seed=3,  # with 1 two cells of a pool are equal to float32, and gradients part ways
        ),
    ]


def _catalogue() -> dict[str, Any]:
    small: dict[str, Any] = {
        "sizes": (8, 50, 1),
        "activation": "silu",
        "likelihood": "gaussian",
        "rows": 927,
        "step_size": 2e-4,
        "prior_scale": 0.5,
        "noise_scale": 0.1,
    }
    small_1 = Leapfrog("hmc-small-1", chains=1, num_steps=200, goal=Goal(5.0), **small)
    small_8 = Leapfrog("hmc-small-8", chains=8, num_steps=200, goal=Goal(5.0), **small)
    deep = {**small, "sizes": (8, 50, 50, 50, 1), "step_size": 2e-5}
    deep_4 = Leapfrog("hmc-deep-4", chains=4, num_steps=100, goal=Goal(3.5), **deep)
    synthreg = Leapfrog(
        "hmc-synthreg",
        sizes=(2, 100, 100, 100, 1),
        activation="relu",
        likelihood="gaussian",
        rows=120,
        chains=1,
        num_steps=1000,
        step_size=1e-5,
        prior_scale=0.1,
        noise_scale=0.02,
        goal=Goal(1.3),
        threads=1,
    )
    wide = Leapfrog(
        "hmc-wide",
        sizes=(784, 256, 256, 10),
        activation="silu",
        likelihood="categorical",
        rows=8192,
        chains=1,
        num_steps=20,
        step_size=5e-4,
        prior_scale=0.05,
        noise_scale=1.0,
        goal=Goal(1.35, share=0.75),
        quick_rows=1024,
    )
    first = FirstDraw("first-draw", of=small_1, draws=100, num_steps=10, goal=Goal(10.0, None, 0.3))
    reparam = Reparam("reparam", samples=20, dim=1_000_000, goal=Goal(5.0))
    normals = Normals("normals", count=1 << 20, goal=Goal(None, None, 1e-9))
    narrow = (1, 20, 20, 20, 20, 1)
    bbb = BayesByBackprop(
        "bbb-seed", narrow, rows=16_000, epochs=50, goal=Goal(3.0, against=("torch", 11.0))
    )
    forward = WeightDraws("mc-forward", narrow, rows=16_000, draws=1000, goal=Goal(6.0))
    dropout = MaskDraws(
        "mc-dropout", (784, 400, 400, 10), rows=10_000, samples=100, goal=Goal(4.0, share=0.6)
    )
    sgld = Langevin("sgld", (784, 256, 256, 10), rows=8192, batch=128, num_steps=64, goal=Goal(3.0))
    listed: tuple[Any, ...] = (
        small_1,
        small_8,
        deep_4,
        synthreg,
        wide,
        bbb,
        forward,
        dropout,
        sgld,
    )
    listed += (*_networks(), reparam, normals, first)
    return {workload.name: workload for workload in listed}


WORKLOADS = _catalogue()
