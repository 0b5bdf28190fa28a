"""R-hat of weights and of predictions."""

from __future__ import annotations

from typing import Any

import numpy as np

from studies.izmailov.chains import RHAT_BAR, reference
from studies.izmailov.outcomes import Claim, Outcome, above
from studies.izmailov.pictures import COLORS, axes, finish
from studies.izmailov.scores import minus
from studies.izmailov.study import Arrays, Study, Task

NAME = "rhat"
TITLE = "R-hat in weight space and in function space"
ENOUGH = 0.9
EDGES = np.linspace(-4, 0.5, 46)


def excess(rhat: np.ndarray) -> np.ndarray:
    """Return log10(R-hat - 1), at least -4 (it may be below 1 by chance), at most 2 (stuck)."""
    return np.asarray(np.log10(np.clip(rhat - 1, 1e-4, 1e2)))


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
            "median": [float(np.quantile(r, 0.5, method="higher")) for r in each],
            "worst 1 %": [float(np.quantile(r, 0.99, method="higher")) for r in each],
            "excess": [float(excess(r).mean()) for r in each],
            "histogram": np.histogram(excess(np.concatenate(each)), EDGES)[0].tolist(),
        }
    return out


def mixed(found: dict[str, Any]) -> Outcome:
    """Check the share of mixed predictions."""
    name = f"share of predictions below {RHAT_BAR:g}"
    return above(name, found["function"]["below"], ENOUGH)


def worse_in_weights(found: dict[str, Any]) -> Outcome:
    """Compare the two spaces."""
    gap = minus(found["weight"]["excess"], found["function"]["excess"])
    return above("log10(R-hat - 1), weights minus predictions", gap, 0.0)


CLAIMS = (
    Claim(
        "HMC mixes well in function space: R-hat of nearly all predictions is close to 1.",
        f"the share of predicted probabilities with R-hat below {RHAT_BAR:g} is above {ENOUGH:g}",
        mixed,
    ),
    Claim(
        "HMC mixes less well in weight space than in function space.",
        "the mean of log10(R-hat - 1) is larger for the weights than for the predictions",
        worse_in_weights,
    ),
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
