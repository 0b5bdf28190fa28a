"""Estimates the time of the figures: gradients on all rows, times the time of one gradient."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

import ribbit as rb
from studies.izmailov import figures, problems
from studies.izmailov.study import Study

TIMED_ROWS = 500
"""Largest number of rows to time; the time of more rows is in proportion."""
HOURS = 24.0
"""Above this estimate the command advises a GPU or a cluster."""


def gradient_seconds(study: Study, seconds: float = 1.0) -> float:
    """Time one gradient of one chain on all rows, on noise of the same shape.

    The chains of a run are evaluated at once, as samplers do.
    """
    size = study.size
    rows = min(size.rows, TIMED_ROWS if size.name != "paper" else 32)
    x, y = problems.stand_in(size.data, rows)
    prior = rb.Normal(size.prior_sd)
    target = rb.Posterior(
        study.model(), x, y, prior=prior, likelihood=rb.Categorical(), dtype=np.float32
    )
    theta = np.stack([target.init(seed=seed) for seed in range(size.chains)]).astype(np.float32)
    target.value_and_grad(theta)  # memory and threads
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        target.value_and_grad(theta)
        count += 1
    return (time.perf_counter() - began) / (count * size.chains) * size.rows / rows


def text(seconds: float) -> str:
    """Return a time in its largest suitable unit."""
    for unit, length in (("years", 3.156e7), ("days", 86400.0), ("hours", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.1f} s"


def lines(study: Study, names: Sequence[str]) -> list[str]:
    """Return the estimate for each figure; finished and shared runs cost nothing."""
    gradient = gradient_seconds(study)
    out = [
        f"size {study.size.name}: {study.size.network} on {study.size.data}, "
        f"{study.model().dim:,} weights, {study.size.rows:,} rows; "
        f"a gradient of one chain takes {1e3 * gradient:.3g} ms here",
    ]
    seen: set[str] = set()
    total = 0.0
    for name in names:
        if not figures.fits(name, study):
            continue
        figure = figures.module(name)
        count, gradients = 0, 0.0
        for task in figure.tasks(study):
            if task.key not in seen and not study.done(task):
                count, gradients = count + 1, gradients + task.gradients
            seen.add(task.key)
        seconds = gradients * gradient
        total += seconds
        out.append(f"  {name}: {count} runs, {gradients:.3g} gradients, {text(seconds)}")
    out.append(f"  in all: {text(total)} by this model")
    if total > HOURS * 3600:
        devices = max(1, round(total / 100 / (30 * 86400)))
        out.append(
            f"This needs a GPU or a cluster: {text(total)} on this machine; on devices that are "
            f"100 times as fast {text(total / 100)} of one, or 30 days of {devices:,}."
        )
    return out
