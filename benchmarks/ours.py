"""Ribbit's entries, through the public calls a user makes."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import numpy as np

import ribbit as rb
from benchmarks.random_weights import Normals, Reparam
from benchmarks.rivals import Prepared
from benchmarks.workloads import Leapfrog
from ribbit import _core

_PURPOSE = 9  # the address space of rb.random


def versions() -> dict[str, str]:
    """Version of Ribbit, and the instruction set that it picked."""
    try:
        version = metadata.version("ribbit")
    except metadata.PackageNotFoundError:  # imported from the source tree
        version = "uninstalled"
    return {"ribbit": version, "isa": _core.isa(), "numpy": np.__version__}


def posterior(workload: Leapfrog) -> Any:
    """Build the workload's log density as a Posterior."""
    x, y = workload.data
    hidden = workload.sizes[1:-1]
    gaussian = workload.likelihood == "gaussian"
    return rb.Posterior(
        rb.mlp(workload.sizes[0], hidden, workload.sizes[-1], activation=workload.activation),
        x,
        y,
        prior=rb.Normal(workload.prior_scale),
        likelihood=rb.Gaussian(workload.noise_scale) if gaussian else rb.Categorical(),
        dtype=np.float32,
    )


def leapfrog(workload: Leapfrog) -> Prepared:
    """`rb.leapfrog`: all steps of all chains in one native call."""
    rb.set_num_threads(workload.threads)
    target = posterior(workload)
    position, momentum = workload.start
    eps, steps = workload.step_size, workload.num_steps
    return Prepared(
        lambda: rb.leapfrog(target, position, momentum, eps, steps),
        lambda end: {"position": end.position, "logdensity": end.logdensity},
        "rb.leapfrog",
    )


def reparam(workload: Reparam) -> Prepared:
    """`rb.reparameterize`: a fresh result array each time."""
    rb.set_num_threads(workload.threads)
    mean, rho = workload.variational
    return Prepared(
        lambda: rb.reparameterize(mean, rho, workload.samples, workload.seed),
        lambda weights: {"weights": weights},
        "rb.reparameterize, fresh memory",
    )


def normals(workload: Normals) -> Prepared:
    """Time the fill behind `rb.random.normal`, into memory that is reused."""
    rb.set_num_threads(workload.threads)
    out = np.empty((1, workload.count), np.float32)
    chains = np.zeros(1, np.uint32)

    def run() -> Any:
        _core.fill_normal(out, workload.seed, 0, chains, _PURPOSE, 0)
        return out

    return Prepared(run, lambda z: {"normals": z}, "_core.fill_normal, memory reused")


def fma_peak(seconds: float) -> float:
    """float32 multiply-adds of one core, flop/s, measured for about `seconds`."""
    return float(_core.fma_peak_gflops(seconds, 32)) * 1e9


PREPARE = {"leapfrog": leapfrog, "reparam": reparam, "normals": normals}
