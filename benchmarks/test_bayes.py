"""Bayes by Backprop, Monte Carlo predictions, SGLD: bbb-seed, mc-forward, mc-dropout, sgld."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.conftest import Measure
from benchmarks.harness.framework import Framework
from benchmarks.harness.workload import WrongAnswerError
from benchmarks.rivals import IN_PROCESS
from benchmarks.workloads import reference
from benchmarks.workloads.table import WORKLOADS

NAMES = ["bbb-seed", "mc-forward", "mc-dropout", "sgld"]


@pytest.mark.parametrize("framework", IN_PROCESS.values(), ids=list(IN_PROCESS))
@pytest.mark.parametrize("name", NAMES)
def test_bayes(name: str, framework: Framework, measure: Measure) -> None:
    """What is not random is the reference's, the rest has its law; then the time."""
    measure(name, framework)


def rejects(check: Callable[[Any], Any], right: dict[str, Any], key: str, **wrong: Any) -> None:
    """Pass the right answer; with the wrong entries it must fail for `key`."""
    check(right)
    with pytest.raises(WrongAnswerError, match=key):
        check({**right, **wrong})


def test_bbb_check_has_teeth() -> None:
    """A gradient 2 % or noise 10 % off, a mean KL, doubled and missing noise are rejected."""
    workload = WORKLOADS["bbb-seed"].reduced
    mean, rho = (a.astype(float) for a in workload.start)
    noise = np.random.default_rng(3).standard_normal((64, workload.dim))
    loss = reference.negative_elbo(workload._density, mean, rho, noise[0])
    right = workload.train(99) | {"noise": noise, "gradient": np.stack(loss[1:])}
    rejects(workload.check, right, "gradient_mean", gradient=1.02 * right["gradient"])
    # the gradient of the KL in rho with prior sd 1, divided by P
    scale = reference.softplus(rho)
    kl = (scale - 1.0 / scale) / (1.0 + np.exp(-rho))
    averaged = right["gradient"] - [np.zeros_like(kl), (1.0 - 1.0 / workload.dim) * kl]
    rejects(workload.check, right, "gradient_rho", gradient=averaged)
    other = np.concatenate([noise[:1], 1.1 * noise[1:]])
    rejects(workload.check, right, "variance", noise=other)
    rejects(workload.check, right, "travelled", **workload.train(99, 2.0))
    rejects(workload.check, right, "travelled", **workload.train(99, 0.0))


def test_sgld_check_has_teeth() -> None:
    """Noise 5 % off, a drift of the wrong sign and a likelihood without N/n are rejected."""
    workload = WORKLOADS["sgld"].reduced
    start = workload.start.astype(float)
    gradient = workload.gradient(start, slice(0, workload.batch))
    right = {"position": workload.walk(99), "gradient": gradient}
    rejects(workload.check, right, "noise_variance", position=workload.walk(99, 1.05))
    prior = -start / workload.prior_scale**2
    missing = (gradient - prior) * workload.batch / workload.rows + prior
    rejects(workload.check, right, "gradient", gradient=missing)
    away = right["position"] - 2.0 * workload.expected["drift"].mean() * workload._direction
    rejects(workload.check, right, "drift|loglikelihood", position=away)


def moments(drawn: Any) -> dict[str, Any]:
    """Mean and sd as an entry returns them."""
    return {"mean": drawn.mean(axis=0), "sd": drawn.std(axis=0)}


def test_mc_forward_check_has_teeth() -> None:
    """Noise 1.5 times too large, a mean 0.6 sd off, an output 0.01 % off: rejected."""
    workload = WORKLOADS["mc-forward"].reduced
    everything = slice(None)
    right = moments(workload.simulate(workload.draws, everything, 1))
    right["outputs"] = workload.expected["outputs"]
    loud = moments(workload.simulate(workload.draws, everything, 1, 1.5))
    rejects(workload.check, right, "variance", sd=loud["sd"])
    rejects(workload.check, right, "mean", mean=right["mean"] + 0.6 * right["sd"])
    rejects(workload.check, right, "outputs", outputs=right["outputs"] * 1.0001)


def test_mc_dropout_check_has_teeth() -> None:
    """A mask for all rows, a sd 10 % off, and probabilities 1 % off are rejected."""
    workload = WORKLOADS["mc-dropout"].reduced
    everything = slice(None)
    right = moments(workload.simulate(workload.samples, everything, 1))
    right["outputs"] = workload.expected["outputs"]
    shared = moments(workload.simulate(workload.samples, everything, 1, shared=True))
    rejects(workload.check, right, "mean|variance", **shared)
    rejects(workload.check, right, "variance", sd=1.1 * right["sd"])
    rejects(workload.check, right, "mean", mean=right["mean"] + 0.01)
    rejects(workload.check, right, "outputs", outputs=right["outputs"] * 1.0001)
