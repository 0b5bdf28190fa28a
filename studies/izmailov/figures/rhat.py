"""R-hat of weights and of predictions."""

from __future__ import annotations

from typing import Any

import numpy as np

from studies.izmailov.chains import RHAT_BAR, reference
from studies.izmailov.pictures import COLORS, axes, finish
from studies.izmailov.study import Arrays, Study, Task
from studies.izmailov.verdicts import Verdict, above, every

NAME = "rhat"
TITLE = "R-hat in weight space and in function space"
CLAIM = (
    "HMC mixes well in function space: R-hat of nearly all predicted probabilities is close to 1. "
    "It mixes less well in weight space."
)
ENOUGH = 0.9
CRITERION = (
    f"the share of predicted probabilities with R-hat below {RHAT_BAR:g} is above {ENOUGH:g}, and "
    "the mean of log10(R-hat - 1) of the weights is above that of the predictions"
)
EDGES = np.linspace(-4, 0.5, 46)


def excess(rhat: np.ndarray) -> np.ndarray:
    """log10(R-hat - 1), at least -4: split R-hat may lie below 1 by chance."""
    return np.log10(np.maximum(rhat - 1, 1e-4))


def tasks(study: Study) -> list[Task]:
    """Return the reference run of each split."""
    return [reference(study, seed) for seed in study.size.splits]


def numbers(study: Study, found: dict[str, Arrays]) -> dict[str, Any]:
    """Shares, quantiles and histograms of both spaces, a list over splits each."""
    out: dict[str, Any] = {"splits": list(study.size.splits)}
    for space in ("weight", "function"):
        each = [arrays[f"{space}_rhat"] for arrays in found.values()]
        out[space] = {
            "below": [float((r < RHAT_BAR).mean()) for r in each],
            "median": [float(np.median(r)) for r in each],
            "worst 1 %": [float(np.quantile(r, 0.99)) for r in each],
            "excess": [float(excess(r).mean()) for r in each],
            "histogram": np.histogram(excess(np.concatenate(each)), EDGES)[0].tolist(),
        }
    return out


def judge(found: dict[str, Any]) -> Verdict:
    """Judge both halves of the claim."""
    function, weight = found["function"], found["weight"]
    gap = [w - f for w, f in zip(weight["excess"], function["excess"], strict=True)]
    return every(
        [
            above(f"share of predictions below {RHAT_BAR:g}", function["below"], ENOUGH),
            above("log10(R-hat - 1), weights minus predictions", gap, 0.0),
        ]
    )


def table(found: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return head and rows; lists over splits become mean and interval."""
    columns = ("below", "median", "worst 1 %")
    head = ["space", f"share below {RHAT_BAR:g}", "median", "99 % quantile"]
    return head, [[s, *(found[s][c] for c in columns)] for s in ("weight", "function")]


def draw(found: dict[str, Any]) -> Any:
    """Histograms of log10(R-hat - 1)."""
    figure, (ax,) = axes(1)
    for color, space in zip(COLORS, ("weight", "function"), strict=False):
        share = np.array(found[space]["histogram"], dtype=float)
        ax.stairs(100 * share / share.sum(), EDGES, fill=True, alpha=0.45, color=color, label=space)
        ax.stairs(100 * share / share.sum(), EDGES, color=color)
    ax.axvline(np.log10(RHAT_BAR - 1), color="#263238", ls="--", lw=1)
    ax.set(xlabel="log10(R-hat - 1), -4 also below; dashed: R-hat 1.1", ylabel="share (%)")
    finish(ax, legend=True)
    return figure
