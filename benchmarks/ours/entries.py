"""Ribbit's entries, through the public calls a user makes."""

from __future__ import annotations

import dataclasses
import os
import time
from importlib import metadata
from typing import Any

import numpy as np

import ribbit as rb
from benchmarks.harness.framework import Prepared
from benchmarks.ours.calls import call as prepare_call
from benchmarks.ours.small_calls import CALLS
from benchmarks.workloads import networks
from benchmarks.workloads.calls import Call, SmallCall
from benchmarks.workloads.langevin import Langevin
from benchmarks.workloads.leapfrog import Leapfrog
from benchmarks.workloads.network_gradient import NetworkGradient
from benchmarks.workloads.predictive import MaskDraws, WeightDraws
from benchmarks.workloads.random_weights import Normals, Reparam
from benchmarks.workloads.variational import BayesByBackprop
from ribbit import _core

_PURPOSE = 9  # the address space of rb.random


def versions() -> dict[str, str]:
    """Version of Ribbit, and the instruction set that it picked."""
    try:
        version = metadata.version("ribbit")
    except metadata.PackageNotFoundError:  # imported from the source tree
        version = "uninstalled"
    return {"ribbit": version, "isa": _core.isa(), "numpy": np.__version__}


def posterior(workload: Leapfrog | Langevin | BayesByBackprop) -> Any:
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
    """`Posterior.leapfrog`: all steps of all chains in one native call."""
    rb.set_num_threads(workload.threads)
    target = posterior(workload)
    position, momentum = workload.start
    eps, steps = workload.step_size, workload.num_steps
    return Prepared(
        lambda: target.leapfrog(position, momentum, None, eps, steps),
        lambda end: {"position": end[0], "logdensity": end[2].sum(axis=1)},
        "Posterior.leapfrog",
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


def handover() -> float:
    """Nanoseconds until one thread sees what another has written; 0: they never ran at once."""
    return float(_core.handover_ns())


def calm() -> float:
    """Seconds of a block of normals on the slowest core: longer beside others on the same core.

    They wait for what a core can look ahead, of which a neighbour takes half; multiply-adds do not.
    """
    out, chains = np.empty((1, 1 << 14), np.float32), np.zeros(1, np.uint32)

    def once() -> float:
        begin = time.perf_counter()
        _core.fill_normal(out, 1, 0, chains, _PURPOSE, 0)
        return time.perf_counter() - begin

    if not hasattr(os, "sched_setaffinity"):
        return min(once() for _ in range(20))
    before, found = os.sched_getaffinity(0), []
    try:
        for core in before:
            os.sched_setaffinity(0, [core])  # of this thread alone
            found.append(min(once() for _ in range(20)))
    finally:
        os.sched_setaffinity(0, before)
    return max(found)


def bbb(workload: BayesByBackprop) -> Prepared:
    """Fit `rb.BBB` from a given start."""
    rb.set_num_threads(workload.threads)
    mean, rho = workload.start
    start = rb.MeanField(mean, np.logaddexp(np.float32(0), rho))
    sampler = rb.BBB(posterior(workload), learning_rate=workload.learning_rate)

    def fit(epochs: int) -> Any:
        return sampler.fit(epochs, seed=workload.seed, init=start, progress=False)

    def answer(found: Any) -> dict[str, Any]:
        # After one step Adam's first moment is a tenth of the ascent direction, and the step's
        # noise is that of sample 0.
        moments = fit(1).state[0]
        drawn = rb.reparameterize(mean, rho, 64, workload.seed)
        scale = found.scale.astype(np.float64)
        return {
            "mean": found.mean,
            "rho": scale + np.log(-np.expm1(-scale)),
            "elbo": found.elbo,
            "noise": (drawn - start.mean) / start.scale,
            "gradient": -10.0 * np.stack([moments[2], moments[4]]),
        }

    return Prepared(lambda: fit(workload.epochs), answer, "rb.BBB.fit")


def mc_forward(workload: WeightDraws) -> Prepared:
    """Mean and sd of the mean function over draws of a MeanField."""
    rb.set_num_threads(workload.threads)
    mean, scale = workload.variational
    sizes, x = workload.sizes, workload.x
    model = rb.mlp(sizes[0], sizes[1:-1], sizes[-1], activation=workload.activation)
    target = rb.Posterior(
        model, x, np.zeros_like(x), prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.1)
    )
    fit = rb.MeanField(mean, scale, predictive=target)

    def run() -> tuple[Any, Any]:
        p = fit.predict(x, workload.draws, seed=workload.seed)
        return p.mean, p.epistemic_std

    def answer(found: tuple[Any, Any]) -> dict[str, Any]:
        outputs = model.apply(workload.weights, x)
        return {"mean": found[0], "sd": found[1], "outputs": outputs}

    return Prepared(run, answer, "MeanField.predict")


def mc_dropout(workload: MaskDraws) -> Prepared:
    """Mean and sd of the probabilities over masks of a DropoutFit."""
    rb.set_num_threads(workload.threads)
    layers: list[Any] = []
    for width in workload.sizes[1:-1]:
        layers += [rb.Dense(width), rb.Activation("relu"), rb.Dropout(workload.rate)]
    model = rb.Model((*layers, rb.Dense(workload.sizes[-1])), input_shape=workload.sizes[:1])
    x = workload.x
    target = rb.Posterior(
        model, x[:1], np.zeros(1, np.int64), prior=rb.Normal(1.0), likelihood=rb.Categorical()
    )
    # a fit, with the workload's weights in the place of its own
    fit = rb.MCDropout(target, batch_size=None).fit(1, progress=False)
    fit = dataclasses.replace(fit, theta=workload.weights)

    def run() -> tuple[Any, Any]:
        p = fit.draws(workload.samples, seed=workload.seed, masks="row").predict(x)
        return p.probs, p.epistemic_std

    def answer(found: tuple[Any, Any]) -> dict[str, Any]:
        return {"mean": found[0], "sd": found[1], "outputs": model.apply(workload.weights, x)}

    return Prepared(run, answer, "DropoutFit.draws, predict")


def sgld(workload: Langevin) -> Prepared:
    """`rb.SGLD`: all steps in one native call."""
    rb.set_num_threads(workload.threads)
    target = posterior(workload)
    sampler = rb.SGLD(target, step_size=workload.step_size, batch_size=workload.batch)
    chains = rb.Chains(sampler, workload.start, chains=1, seed=workload.seed, warmup=0)
    state = chains._chains.state

    def answer(found: tuple[Any, Any]) -> dict[str, Any]:
        rows = np.arange(workload.batch)
        gradient = target.value_and_grad(workload.start, rows)[1]
        return {"position": np.asarray(found[0].position)[0], "gradient": gradient}

    return Prepared(lambda: sampler._advance(state, workload.num_steps, None), answer, "rb.SGLD")


def strided() -> rb.Model:
    """Three 5 x 5 convolutions of stride 2, one dense layer."""
    layers: list[Any] = []
    for filters in (16, 32, 64):
        layers += [rb.Conv2D(filters, 5, stride=2, padding="same"), rb.Activation("silu")]
    return rb.Model([*layers, rb.Flatten(), rb.Dense(10)], input_shape=(28, 28, 1))


NETWORKS: dict[networks.Wiring, Any] = {
    networks.resnet20: rb.resnet20_frn,
    networks.lenet5: rb.lenet5,
    networks.cnn_lstm: rb.cnn_lstm,
    networks.strided: strided,
}


def classifier(workload: NetworkGradient) -> rb.Posterior:
    """Build the workload's log density as a Posterior."""
    return rb.Posterior(
        NETWORKS[workload.wiring](),
        *workload.data,
        prior=rb.Normal(workload.prior_scale),
        likelihood=rb.Categorical(),
        dtype=np.float32,
    )


def network(workload: NetworkGradient) -> Prepared:
    """One `Posterior.value_and_grad`."""
    rb.set_num_threads(workload.threads)
    target = classifier(workload)

    def answer(found: tuple[Any, Any]) -> dict[str, Any]:
        return {"value": found[0], "gradient": found[1]}

    return Prepared(
        lambda: target.value_and_grad(workload.start), answer, "Posterior.value_and_grad"
    )


def call(workload: Call) -> Prepared:
    """One of the whole calls."""
    of = workload.of
    return prepare_call(workload, posterior(of) if isinstance(of, Leapfrog) else classifier(of))


def small_call(workload: SmallCall) -> Prepared:
    """One of the calls on a small network."""
    rb.set_num_threads(workload.threads)
    return Prepared(CALLS[workload.name](), lambda _: {}, workload.name)


PREPARE = {
    "leapfrog": leapfrog,
    "bbb": bbb,
    "mc_forward": mc_forward,
    "mc_dropout": mc_dropout,
    "sgld": sgld,
    "network": network,
    "call": call,
    "small_call": small_call,
    "reparam": reparam,
    "normals": normals,
}
