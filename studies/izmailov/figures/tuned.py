"""HMC, one network and an ensemble, each with the prior scale that predicts best."""

from __future__ import annotations

from typing import Any

import numpy as np

from studies.izmailov import approximations
from studies.izmailov.chains import probabilities
from studies.izmailov.figures import methods
from studies.izmailov.figures.priors import prior_task
from studies.izmailov.outcomes import Claim
from studies.izmailov.pictures import axes, bars
from studies.izmailov.scores import columns, log_likelihood, scores
from studies.izmailov.study import Arrays, Study, Task

NAME = "tuned"
TITLE = "HMC and networks, each with its own prior scale"
BY_HAND = (
    "candidates: the normal priors of the section before; "
    "each split chooses a scale for each method by the log likelihood of every other test row, "
    "and the other half of the test rows gives the scores; "
    "the paper also tunes HMC's prior variance and the weight decay of networks; "
    "this section was added when the outcomes on methods and temperature were known, and the "
    "outcomes on priors were not; "
    "the largest scale was added after a first run, in which all splits chose the edge of the grid"
)
ORDER = ("hmc", "one net", "ensemble")


def tasks(study: Study) -> list[Task]:
    """HMC and an ensemble under the normal prior of every scale, on every split."""
    out = []
    for seed in study.size.splits:
        for scale in study.size.scales:
            out.append(prior_task(study, seed, "normal", scale))
            out.append(approximations.task(study, "ensemble", seed, scale=scale))
    return out


def _probabilities(found: dict[str, Arrays], study: Study, name: str, seed: int) -> list[Any]:
    """Probabilities under each scale, (members, N, K); HMC and the ensemble have one member."""
    out = []
    for scale in study.size.scales:
        if name == "hmc":
            one = found[prior_task(study, seed, "normal", scale).name]
            out.append(probabilities(one)[None])
        else:
            one = found[approximations.task(study, "ensemble", seed, scale=scale).name]
            out.append(one["members"] if name == "one net" else one["probs"][None])
    return out


def _mean(y: np.ndarray, members: np.ndarray) -> dict[str, float]:
    each = columns([scores(y, one) for one in members])
    return {key: float(np.mean(values)) for key, values in each.items()}


def numbers(study: Study, found: dict[str, Arrays]) -> dict[str, Any]:
    """Return the chosen scale of each method and its scores, lists over splits."""
    out = {}
    for name in ORDER:
        rows = []
        for seed in study.size.splits:
            y = study.split(seed).y_test
            each = _probabilities(found, study, name, seed)
            chosen = int(
                np.argmax([np.mean([log_likelihood(y[::2], one[::2]) for one in p]) for p in each])
            )
            row = _mean(y[1::2], each[chosen][:, 1::2])
            row["prior_sd"] = study.size.scales[chosen] * study.size.prior_sd
            rows.append(row)
        out[name] = columns(rows)
    return out


CLAIMS = tuple(
    Claim(claim.text, f"{claim.criterion}. Each method has its own prior scale", claim.judge)
    for claim in methods.CLAIMS
)


def table(found: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return a row per method."""
    head = ["method", "prior sd by split", "accuracy", "log likelihood", "ECE"]
    keys = ("accuracy", "log_likelihood", "ece")
    rows = [
        [methods.LABELS[name], ", ".join(f"{sd:.2f}" for sd in row["prior_sd"])]
        + [row[key] for key in keys]
        for name, row in found.items()
    ]
    return head, rows


def draw(found: dict[str, Any]) -> Any:
    """Draw a panel per score, a row per method."""
    figure, panels = axes(3, height=2.4)
    titles = {"accuracy": "accuracy", "log_likelihood": "log likelihood", "ece": "ECE"}
    for ax, (key, title) in zip(panels, titles.items(), strict=True):
        names = [methods.LABELS[name] if ax is panels[0] else "" for name in found]
        bars(ax, names, [row[key] for row in found.values()], title)
    return figure
