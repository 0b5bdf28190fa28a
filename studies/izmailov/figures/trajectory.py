"""Trajectory length against mixing and quality."""

from __future__ import annotations

from typing import Any

import numpy as np

from studies.izmailov.chains import RHAT_BAR, hmc, probabilities, reference
from studies.izmailov.figures.rhat import excess
from studies.izmailov.outcomes import Claim, Outcome, above
from studies.izmailov.pictures import COLORS, axes, finish, line
from studies.izmailov.scores import columns, minus, scores
from studies.izmailov.study import Arrays, Study, Task

NAME = "trajectory"
TITLE = "Trajectory length"
LOSS = 0.01
BY_HAND = (
    "fixed lengths, as in the paper; step size found in warmup; "
    "last row of the table: the reference run, with random lengths of one prior sd on average "
    "(0.64 of pi/2 prior sds)"
)


def tasks(study: Study) -> list[Task]:
    """Every length on every split, and the reference."""
    out = []
    for seed in study.size.splits:
        out.append(reference(study, seed))
        for length in study.size.lengths:
            options = {
                "trajectory_length": length * study.size.quarter_turn,
                "randomize_length": False,
            }
            out.append(hmc(study, seed, name=f"length-{length:g}", options=options))
    return out


def numbers(study: Study, found: dict[str, Arrays]) -> dict[str, Any]:
    """Scores and R-hat at each length, lists over splits; the reference is the last row."""
    names = [f"length-{length:g}" for length in study.size.lengths]
    out: dict[str, Any] = {"lengths": list(study.size.lengths), "rows": []}
    for name in (*names, "hmc"):
        rows = []
        for seed in study.size.splits:
            one = found[f"{name}-split{seed}"]
            row = scores(study.split(seed).y_test, probabilities(one))
            for space in ("weight", "function"):
                row[f"{space}_excess"] = float(excess(one[f"{space}_rhat"]).mean())
                row[f"{space}_below"] = float((one[f"{space}_rhat"] < RHAT_BAR).mean())
            row["acceptance"] = float(one["acceptance"].mean())
            row["leapfrogs"] = float(one["leapfrogs"])
            rows.append(row)
        out["rows"].append(columns(rows))
    return out


def _ends(found: dict[str, Any], key: str) -> tuple[list[float], list[float]]:
    """Values at the shortest length and at pi/2 prior sds."""
    full = found["lengths"].index(1.0)
    return found["rows"][0][key], found["rows"][full][key]


def mixes(found: dict[str, Any]) -> Outcome:
    """R-hat of weights falls from the shortest length to the full one."""
    short, full = _ends(found, "weight_excess")
    return above("log10(R-hat - 1) of weights, shortest minus full", minus(short, full), 0.0)


def predicts(found: dict[str, Any]) -> Outcome:
    """Compare predictions of the full length and of the shortest."""
    short, full = _ends(found, "log_likelihood")
    return above("log likelihood, full minus shortest", minus(full, short), -LOSS)


CLAIMS = (
    Claim(
        "Longer trajectories, up to pi/2 prior sds, mix better for the same number of draws.",
        "the mean of log10(R-hat - 1) of the weights is larger at the shortest length than at "
        "pi/2 prior sds",
        mixes,
        of_paper=False,
    ),
    Claim(
        "Trajectories of pi/2 prior sds predict no worse than short ones.",
        f"the test log likelihood at pi/2 prior sds is at most {LOSS:g} nats per row lower than "
        "at the shortest length",
        predicts,
        of_paper=False,
    ),
)


def table(found: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return a row per length, and the reference."""
    keys = ("leapfrogs", "acceptance", "accuracy", "log_likelihood", "ece", "weight_below")
    head = ["length / (pi/2 prior sds)", "leapfrogs", "acceptance", "accuracy", "log likelihood"]
    head += ["ECE", f"weights below {RHAT_BAR:g}", "log10(R-hat - 1), weights", "predictions"]
    names = [*(f"{length:g}" for length in found["lengths"]), "defaults"]
    rows = [
        [name, *(row[key] for key in (*keys, "weight_excess", "function_excess"))]
        for name, row in zip(names, found["rows"], strict=True)
    ]
    return head, rows


def draw(found: dict[str, Any]) -> Any:
    """R-hat of both spaces and the log likelihood over the length; dashed: the reference."""
    figure, (left, right) = axes(2)
    lengths, rows, last = found["lengths"], found["rows"][:-1], found["rows"][-1]
    for color, space in zip(COLORS, ("weight", "function"), strict=False):
        line(left, lengths, [row[f"{space}_excess"] for row in rows], space, color)
        left.axhline(np.mean(last[f"{space}_excess"]), color=color, ls="--", lw=1)
    left.set(ylabel="mean of log10(R-hat - 1)")
    line(right, lengths, [row["log_likelihood"] for row in rows], "", COLORS[2])
    right.axhline(np.mean(last["log_likelihood"]), color=COLORS[2], ls="--", lw=1)
    right.set(ylabel="log likelihood; dashed: defaults")
    for ax in (left, right):
        ax.set(xscale="log", xlabel="length / (pi/2 prior sds)")
        ax.set_xticks(lengths, [f"{length:g}" for length in lengths])
        ax.minorticks_off()
        finish(ax, legend=ax is left)
    return figure
