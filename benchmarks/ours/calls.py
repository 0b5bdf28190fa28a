"""Whole public calls of Ribbit (`benchmarks.workloads.calls`), with settings given by hand.

Steps and lengths are fixed, so that a floor can count the gradients; defaults would tune them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import ribbit as rb
from benchmarks.harness.framework import Prepared
from benchmarks.workloads.calls import Call


def call(workload: Call, target: rb.Posterior) -> Prepared:
    """One of the five calls on `target`."""
    rb.set_num_threads(workload.threads)
    made: Prepared = {
        "BBB.fit": _fit,
        "Draws.predict": _predict,
    }.get(workload.call, _sample)(workload, target)
    return made


def _sampler(w: Call, target: rb.Posterior) -> Any:
    if w.call == "HMC.sample":
        return rb.HMC(
            target, step_size=w.step_size, num_leapfrog_steps=w.steps, randomize_length=False
        )
    if w.call == "MCLMC.sample":
        return rb.MCLMC(target, step_size=w.step_size, decoherence_length=1.0)
    return rb.SGLD(target, step_size=w.step_size, batch_size=w.batch)


def _sample(w: Call, target: rb.Posterior) -> Prepared:
    sampler, hmc = _sampler(w, target), w.call == "HMC.sample"
    init = np.tile(w.start, (w.chains, 1))
    thin = 1 if hmc else w.steps

    def run() -> rb.Draws:
        draws: rb.Draws = sampler.sample(
            w.draws, warmup=0, thin=thin, chains=w.chains, init=init, seed=1, progress=False
        )
        return draws

    def answer(draws: rb.Draws) -> dict[str, Any]:
        state: Any = draws.state
        steps = int(np.sum(draws.stats["n_steps"])) if hmc else w.chains * state.step
        first = 0 if w.call == "SGLD.sample" else w.chains
        return {"positions": draws.positions, "gradients": steps + first}

    return Prepared(run, answer, f"rb.{w.call}")


def _fit(w: Call, target: rb.Posterior) -> Prepared:
    start = rb.MeanField(w.start, np.full_like(w.start, 0.01))
    sampler = rb.BBB(target, learning_rate=w.step_size)

    def answer(fit: rb.MeanField) -> dict[str, Any]:
        return {"positions": np.asarray(fit.mean)[None, None], "gradients": len(fit.elbo)}

    return Prepared(
        lambda: sampler.fit(w.draws, seed=1, init=start, progress=False), answer, "rb.BBB.fit"
    )


def _predict(w: Call, target: rb.Posterior) -> Prepared:
    draws = rb.Draws(w.positions, {}, True, None, {}, predictive=target)
    kind = "mean" if isinstance(target.likelihood, rb.Gaussian) else "probs"

    def run() -> tuple[Any, Any]:
        prediction = draws.predict(w.x)  # which computes nothing until it is asked
        return getattr(prediction, kind), prediction.epistemic_std

    def answer(found: tuple[Any, Any]) -> dict[str, Any]:
        thetas = w.positions.reshape(-1, w.dim)
        outputs = np.stack([target.model.apply(theta, w.x) for theta in thetas]).astype(np.float64)
        if kind == "probs":
            outputs = np.exp(outputs - outputs.max(axis=2, keepdims=True))
            outputs /= outputs.sum(axis=2, keepdims=True)
        wanted = np.concatenate([outputs.mean(axis=0), outputs.std(axis=0, ddof=0)])
        return {"found": np.concatenate(found), "wanted": wanted}

    return Prepared(run, answer, "Draws.predict")
