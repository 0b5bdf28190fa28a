"""Ribbit's entries of `benchmarks.digits`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import ribbit as rb
from benchmarks.ours.entries import versions
from benchmarks.workloads.digits import Digits


def learn(problem: Digits, seed: int) -> dict[str, Any]:
    """`rb.BBB` or `rb.SGLD`, an epoch at a time."""
    rb.set_num_threads(problem.threads)
    x, y, x_test, _ = problem.data
    started = time.perf_counter()
    hidden = problem.sizes[1:-1]
    model = rb.mlp(problem.sizes[0], hidden, problem.sizes[-1], activation="relu")
    prior = rb.Normal(problem.prior_scale)
    target = rb.Posterior(model, x, y, prior=prior, likelihood=rb.Categorical(), dtype=np.float32)
    theta = problem.start(seed)
    bbb = rb.BBB(
        target,
        batch_size=problem.batch,
        learning_rate=problem.learning_rate,
        estimator="local",
    )
    sgld = rb.SGLD(target, step_size=problem.step_size, batch_size=problem.batch)
    fit: Any = rb.MeanField(theta, np.full(theta.size, problem.init_scale, np.float32))
    state = rb.Chains(sgld, theta, chains=1, seed=seed, warmup=0)._chains.state
    steps = -(-problem.rows // problem.batch)
    built = time.perf_counter()
    seconds, errors, probabilities = [], [], []
    for epoch in range(problem.epochs):
        begun = time.perf_counter()
        if problem.method == "bbb":
            how = {"resume": fit} if epoch else {"init": fit}
            fit = bbb.fit(1, seed=seed, progress=False, **how)
        else:
            state, _ = sgld._advance(state, steps, None)
        seconds.append(time.perf_counter() - begun)
        if problem.method == "bbb":
            found = fit.predict(x_test, problem.draws, seed=seed).probs
        else:
            logits = model.apply(np.asarray(state.position)[0], x_test)
            shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
            probabilities.append(shifted / shifted.sum(axis=1, keepdims=True))
            found = np.mean(probabilities[len(probabilities) // 2 :], axis=0)
        errors.append(problem.error(found))
        if errors[-1] <= problem.level:
            break
    form = "rb.BBB, estimator='local'" if problem.method == "bbb" else "rb.SGLD"
    return {
        "compile": built - started,
        "seconds": seconds,
        "errors": errors,
        "form": form,
        "versions": versions(),
    }
