"""That the checks of the workloads reject wrong answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.harness.workload import WrongAnswerError
from benchmarks.studies.zoo import same_bits, standard
from benchmarks.workloads import reference
from benchmarks.workloads.calls import CALLS
from benchmarks.workloads.leapfrog import Leapfrog
from benchmarks.workloads.network_gradient import NetworkGradient
from benchmarks.workloads.table import WORKLOADS

TRAJECTORIES = [name for name, w in WORKLOADS.items() if isinstance(w, Leapfrog)]
GRADIENTS = [name for name, w in WORKLOADS.items() if isinstance(w, NetworkGradient)]


@pytest.mark.parametrize("name", TRAJECTORIES)
def test_trajectory_check_has_teeth(name: str) -> None:
    """A trajectory one step short, or a log density 0.1 % off, is rejected."""
    workload = WORKLOADS[name].reduced
    expected = workload.expected
    workload.check(expected)
    with pytest.raises(WrongAnswerError, match="position"):
        workload.check({**expected, "position": expected["before"]})
    with pytest.raises(WrongAnswerError, match="logdensity"):
        workload.check({**expected, "logdensity": 1.001 * expected["logdensity"] + 1.0})


def test_first_draw_check_has_teeth() -> None:
    """A tenth of the distance, or log densities that never left the start, are rejected."""
    workload = WORKLOADS["first-draw"]
    right = {key: float(values.mean()) for key, values in workload.expected.items()}
    workload.check(right)
    with pytest.raises(WrongAnswerError, match="distance"):
        workload.check({**right, "distance": 0.1 * right["distance"]})
    start = workload.of.density.value_and_grad(workload.of.start[0][0].astype(float))[0]
    with pytest.raises(WrongAnswerError, match="logdensity"):
        workload.check({**right, "logdensity": start})


def test_normals_check_has_teeth() -> None:
    """Good normals pass; a scale 1 % off, or a vector drawn twice, is rejected."""
    workload = WORKLOADS["normals"]
    normals = np.random.default_rng(5).standard_normal(workload.count)
    workload.check({"normals": normals})
    with pytest.raises(WrongAnswerError, match="variance"):
        workload.check({"normals": 1.01 * normals})
    quarter = workload.count // 4
    with pytest.raises(WrongAnswerError, match="between"):
        workload.check({"normals": np.tile(normals[:quarter], 4)})


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


def test_call_check_has_teeth() -> None:
    """A gradient more than the floor counts, a chain at rest, a prediction 0.1 % off: rejected."""
    workload = CALLS["mlp HMC.sample"].reduced
    moved = np.tile(workload.start, (workload.chains, workload.draws, 1)) + 1e-3
    right = {"positions": moved, "gradients": workload.gradients}
    rejects(workload.check, right, "gradients", gradients=workload.gradients + 1)
    resting = moved.copy()
    resting[1] = workload.start
    rejects(workload.check, right, "move", positions=resting)
    broken = moved.copy()
    broken[0, 0, 0] = np.nan
    rejects(workload.check, right, "move", positions=broken)
    predicted = {"found": np.ones((8, 1)), "wanted": np.ones((8, 1))}
    predict = CALLS["mlp Draws.predict"].reduced
    rejects(predict.check, predicted, "prediction", found=1.001 * predicted["found"])


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


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_check_has_teeth(name: str) -> None:
    """A gradient 0.1 % off, one bias without its gradient, another row's label: rejected."""
    workload = WORKLOADS[name].reduced
    expected = workload.expected
    workload.check(expected)
    prior = -workload.start.astype(float) / workload.prior_scale**2
    likelihood = expected["gradient"] - prior
    with pytest.raises(WrongAnswerError, match="gradient"):
        workload.check({**expected, "gradient": prior + 1.001 * likelihood})
    missing = likelihood.copy()
    missing[-workload.layout.outputs :] = 0.0  # the last bias
    tolerant = replace(workload, gradient_tolerance=10.0)
    tolerant.use_expected(expected)
    with pytest.raises(WrongAnswerError, match="array"):
        tolerant.check({**expected, "gradient": prior + missing})
    with pytest.raises(WrongAnswerError, match="value"):
        workload.check({**expected, "value": expected["value"] + 1.0})


def test_zoo_checks_have_teeth() -> None:
    """A drift 14 % off, noise 2 % too loud, one bit and NaN are rejected."""
    rng = np.random.default_rng(3)
    noise, drift = rng.standard_normal((2, 100_000))
    standard("right", drift, noise)
    with pytest.raises(WrongAnswerError, match="along_drift"):
        standard("drift", drift, noise + 0.14 * 40.0 * drift / np.linalg.norm(drift))
    with pytest.raises(WrongAnswerError, match="variance"):
        standard("loud", drift, 1.02 * noise)
    same_bits("right", (noise, noise.copy()))
    for wrong in (np.nextafter(noise, 9.0), np.full_like(noise, np.nan)):
        with pytest.raises(WrongAnswerError, match="two runs"):
            same_bits("wrong", (wrong, noise))
