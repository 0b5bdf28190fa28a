"""HMC against other methods: accuracy, log likelihood, calibration."""

from __future__ import annotations

from typing import Any

import numpy as np

from studies.izmailov import approximations
from studies.izmailov.chains import probabilities
from studies.izmailov.outcomes import Claim, Outcome, above, every
from studies.izmailov.pictures import axes, bars
from studies.izmailov.scores import columns, minus, scores
from studies.izmailov.sizes import LAPTOP
from studies.izmailov.study import Arrays, Study, Task

NAME = "methods"
TITLE = "HMC and other methods on clean test rows"
POINTS = 0.005
BY_HAND = approximations.BY_HAND.format(
    batch_size=LAPTOP.batch_size,
    updates=LAPTOP.updates,
    epochs=LAPTOP.epochs,
    four=4 * LAPTOP.epochs,
    members=LAPTOP.members,
)
LABELS = {
    "hmc": "HMC",
    "hmc2": "HMC, other chains",
    "one net": "one network",
    "ensemble": "deep ensemble",
    "sgld": "SGLD",
    "sghmc": "SGHMC",
    "sghmc cyclical": "SGHMC, cyclical",
    "bbb": "mean-field VI",
    "mc dropout": "MC dropout",
    "swag": "SWAG",
    "laplace": "Laplace",
    "mclmc": "MCLMC",
}


def tasks(study: Study) -> list[Task]:
    """HMC twice and every method, on every split."""
    return approximations.tasks(study)


def _scores(study: Study, found: dict[str, Arrays], seed: int) -> dict[str, dict[str, float]]:
    """Scores of every method on one split; one network is the mean over the members."""
    y = study.split(seed).y_test
    truth = probabilities(found[f"hmc-split{seed}"])
    out = {
        name: scores(y, probabilities(found[f"{name}-split{seed}"]), truth)
        for name in ("hmc", "hmc2")
    }
    members = found[f"ensemble-split{seed}"]["members"]
    alone = columns([scores(y, one, truth) for one in members])
    out["one net"] = {key: float(np.mean(values)) for key, values in alone.items()}
    for name in approximations.names(study):
        one = found[f"{name.replace(' ', '_')}-split{seed}"]
        out[name] = scores(y, one["probs"], truth)
    return out


def numbers(study: Study, found: dict[str, Arrays]) -> dict[str, Any]:
    """Scores by method, lists over splits."""
    each = [_scores(study, found, seed) for seed in study.size.splits]
    return {name: columns([one[name] for one in each]) for name in each[0]}


def gain(other: str) -> Any:
    """Return a check that HMC has the higher log likelihood and no lower accuracy."""

    def judge(found: dict[str, Any]) -> Outcome:
        ours, theirs = found["hmc"], found[other]
        gains = {key: minus(ours[key], theirs[key]) for key in ("log_likelihood", "accuracy")}
        return every(
            [
                above("log likelihood, HMC minus other method", gains["log_likelihood"], 0.0),
                above("accuracy, HMC minus other method", gains["accuracy"], -POINTS),
            ]
        )

    return judge


_WORDS = f"HMC's test log likelihood is higher, and its accuracy is at most {POINTS:g} lower"
CLAIMS = (
    Claim("HMC predicts better than one trained network.", _WORDS, gain("one net")),
    Claim("HMC predicts better than a deep ensemble.", _WORDS, gain("ensemble")),
)


def table(found: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return a row per method."""
    head = ["method", "accuracy", "log likelihood", "ECE"]
    keys = ("accuracy", "log_likelihood", "ece")
    return head, [[LABELS[name], *(row[key] for key in keys)] for name, row in found.items()]


def draw(found: dict[str, Any]) -> Any:
    """Draw a panel per score, a row per method."""
    figure, panels = axes(3, height=4.2)
    titles = {"accuracy": "accuracy", "log_likelihood": "log likelihood", "ece": "ECE"}
    for ax, (key, title) in zip(panels, titles.items(), strict=True):
        names = [LABELS[name] if ax is panels[0] else "" for name in found]
        bars(ax, names, [row[key] for row in found.values()], title)
    return figure
