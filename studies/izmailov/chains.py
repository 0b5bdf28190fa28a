"""Tasks that sample a posterior by HMC, and the arrays that they keep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import ribbit as rb
from studies.izmailov.shift import CORRUPTIONS, shifted_predictions
from studies.izmailov.study import Arrays, Study, Task

RHAT_BAR = 1.1
"""R-hat below which the paper calls a quantity mixed."""


def leapfrogs(study: Study, length: float, step: float) -> float:
    """Return the gradients of all chains of a run with trajectories of a length."""
    size = study.size
    return size.chains * (size.warmup + size.draws) * max(1.0, length / step)


def forward_passes(study: Study, *, shifts: bool) -> float:
    """Return the cost of predictions in gradients on all rows; a prediction costs a third.

    Test rows are predicted twice: for the means and for R-hat.
    """
    size = study.size
    sets = 2 + (len(CORRUPTIONS) * len(size.strengths) if shifts and study.images else 0)
    return size.chains * size.draws * sets * size.tests / size.rows / 3


def of_stuck_too(rhat: Any) -> np.ndarray:
    """Flatten R-hat; NaN (chains that never moved) becomes infinity."""
    flat = np.asarray(rhat, dtype=float).ravel()
    return np.asarray(np.nan_to_num(flat, nan=np.inf, posinf=np.inf))


def reduce(study: Study, seed: int, draws: Any, *, shifts: bool = False) -> Arrays:
    """Return the arrays that the figures need from draws (C, D, P).

    `curve` is (counts, C, N, K): each chain's mean probabilities over its first draws; the last
    count is all of them.
    """
    split = study.split(seed)
    x = split.scaled(split.x_test)
    each = np.asarray(draws.predict(x, keep=True).samples, dtype=np.float64)
    counts = [count for count in study.size.counts if count < each.shape[1]] + [each.shape[1]]
    weights = of_stuck_too(rb.diagnostics.weight_rhat(draws))
    functions = of_stuck_too(rb.diagnostics.predictive_rhat(draws, x, method="split"))
    stats = draws.stats
    out = {
        "curve": np.stack([each[:, :count].mean(axis=1) for count in counts]),
        "first": each[:, 0],
        "counts": np.array(counts),
        "weight_rhat": weights,
        "function_rhat": functions,
        "acceptance": np.asarray(stats["acceptance_rate"]).mean(axis=1),
        "last": np.asarray(draws.positions[:, -1]),
        "diverging": np.asarray(stats["diverging"]).sum(),
        "leapfrogs": np.asarray(stats["n_steps"]).mean(),
        "step": np.asarray(stats["step_size"])[:, -1],
    }
    if shifts and study.images:
        out["shifted"] = shifted_predictions(study, split, draws)
    return out


def probabilities(found: Mapping[str, np.ndarray]) -> np.ndarray:
    """Average over all draws of all chains, (N, K)."""
    return np.asarray(found["curve"][-1].mean(axis=0))


def hmc_options(study: Study, *, scale: float = 1.0, temperature: float = 1.0) -> dict[str, Any]:
    """Return the size's arguments of HMC, adapted to the prior's scale and the temperature."""
    options = dict(study.size.hmc)
    if "trajectory_length" in options:
        options["trajectory_length"] *= scale * math.sqrt(temperature)
    if "step_size" in options:
        options["step_size"] *= min(1.0, temperature)
    return options


def hmc(
    study: Study,
    seed: int,
    *,
    name: str = "hmc",
    prior: tuple[str, float] = ("normal", 1.0),
    temperature: float = 1.0,
    chain_seed: int = 0,
    shifts: bool = False,
    options: Mapping[str, Any] | None = None,
    start_from: Task | None = None,
) -> Task:
    """Sample one posterior: a split, a prior (family, scale), a temperature, options of HMC.

    With `start_from` the chains begin at the last draws of another task, without warmup.
    """
    size, scale = study.size, prior[1]
    given = dict(hmc_options(study, scale=scale, temperature=temperature))
    given.update(options or {})
    warmup = size.warmup if start_from is None else 0
    settings = study.settings(
        split=seed,
        prior=list(prior),
        temperature=temperature,
        chain_seed=chain_seed,
        shifts=shifts,
        options=given,
        start=start_from.key if start_from else None,
    )

    def make(store: Path) -> Arrays:
        target = study.target(
            study.split(seed),
            prior=make_prior(prior[0], size.prior_sd * scale),
            temperature=temperature,
        )
        init = None
        if start_from is not None:
            init = study.found(start_from)["last"]
        draws = rb.HMC(target, **given).sample(
            size.draws,
            warmup=warmup,
            chains=size.chains,
            seed=1000 * seed + chain_seed,
            init=init,
            progress=False,
            store=store,
        )
        return reduce(study, seed, draws, shifts=shifts)

    length = given.get("trajectory_length", size.prior_sd * scale * math.sqrt(temperature))
    step = given.get("step_size", size.step_guess * min(1.0, scale, math.sqrt(temperature)))
    gradients = leapfrogs(study, length, step) + forward_passes(study, shifts=shifts)
    return Task(f"{name}-split{seed}", settings, gradients, make)


def reference(study: Study, seed: int) -> Task:
    """Return the reference run: the prior of the size, temperature 1."""
    return hmc(study, seed, name="hmc", shifts=True)


def make_prior(family: str, sd: float) -> Any:
    """Build a prior of a family with standard deviation `sd`.

    The mixture has two normals of equal weight, one four times as wide as the other.
    """
    if family == "normal":
        return rb.Normal(sd)
    if family == "logistic":  # variance scale^2 pi^2 / 3
        return rb.Logistic(sd * math.sqrt(3) / math.pi)
    if family == "mixture":
        narrow = sd / math.sqrt(0.5 * (1 + 16))
        return rb.ScaleMixture(0.5, 4 * narrow, narrow)
    raise ValueError(f"[make_prior] expected normal, logistic or mixture, got {family!r}")
