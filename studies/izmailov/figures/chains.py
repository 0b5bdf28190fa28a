"""Numbers of chains and of draws."""

from __future__ import annotations

from typing import Any

import numpy as np

from studies.izmailov.chains import reference
from studies.izmailov.outcomes import Claim, Outcome, above, every, within
from studies.izmailov.pictures import COLORS, axes, finish, line
from studies.izmailov.scores import columns, minus, scores
from studies.izmailov.study import Arrays, Study, Task

NAME = "chains"
TITLE = "Numbers of chains and of draws"
DIFFERENCE, POINTS = 0.01, 0.005


def tasks(study: Study) -> list[Task]:
    """Return the reference run of each split."""
    return [reference(study, seed) for seed in study.size.splits]


def _of_chains(study: Study, seed: int, probs: np.ndarray, count: int) -> dict[str, float]:
    """Scores of `count` chains together, averaged over disjoint groups; probs (C, N, K)."""
    y = study.split(seed).y_test
    groups = [probs[i : i + count].mean(axis=0) for i in range(0, len(probs) - count + 1, count)]
    each = columns([scores(y, group) for group in groups])
    return {name: float(np.mean(values)) for name, values in each.items()}


def numbers(study: Study, found: dict[str, Arrays]) -> dict[str, Any]:
    """Scores for each number of draws per chain and of chains, lists over splits.

    "equal" has as many draws from all chains together as "one" has from one chain.
    """
    first = next(iter(found.values()))
    counts, chains = first["counts"].tolist(), len(first["curve"][0])
    out: dict[str, Any] = {"counts": counts, "chains": [1, chains], "rows": {}}
    for together in (1, chains):
        for i, count in enumerate(counts):
            rows = [
                _of_chains(study, seed, found[f"hmc-split{seed}"]["curve"][i], together)
                for seed in study.size.splits
            ]
            out["rows"][f"{together} x {count}"] = columns(rows)
    share = max(1, counts[-1] // chains)
    out["equal"] = max(count for count in counts if count <= share)
    return out


def one_long(found: dict[str, Any]) -> Outcome:
    """One chain's draws predict as the same number of several chains."""
    one = found["rows"][f"1 x {found['counts'][-1]}"]
    many = found["rows"][f"{found['chains'][1]} x {found['equal']}"]
    return every(
        [
            within(
                "log likelihood, one minus several",
                minus(one["log_likelihood"], many["log_likelihood"]),
                DIFFERENCE,
            ),
            within("accuracy, one minus several", minus(one["accuracy"], many["accuracy"]), POINTS),
        ]
    )


def more_draws(found: dict[str, Any]) -> Outcome:
    """All draws of a chain predict better than its first."""
    first, last = (found["rows"][f"1 x {found['counts'][i]}"]["log_likelihood"] for i in (0, -1))
    return above("log likelihood, all draws minus one", minus(last, first), 0.0)


CLAIMS = (
    Claim(
        "A single long chain represents the posterior about as well as several shorter ones.",
        f"test log likelihood within {DIFFERENCE:g} nats per row and accuracy within {POINTS:g}, "
        "for one chain compared with all chains and the same number of draws in total",
        one_long,
    ),
    Claim(
        "Averaging over more draws predicts better.",
        "the test log likelihood is higher for all draws of a chain than for its first draw",
        more_draws,
        of_paper=False,
    ),
)


def table(found: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return a row per number of chains and of draws per chain."""
    head = ["chains x draws", "accuracy", "log likelihood", "ECE"]
    keys = ("accuracy", "log_likelihood", "ece")
    return head, [[name, *(row[key] for key in keys)] for name, row in found["rows"].items()]


def draw(found: dict[str, Any]) -> Any:
    """Log likelihood and ECE over the draws of all chains together."""
    figure, panels = axes(2)
    for ax, key in zip(panels, ("log_likelihood", "ece"), strict=True):
        for color, chains in zip(COLORS, found["chains"], strict=False):
            x = [chains * count for count in found["counts"]]
            y = [found["rows"][f"{chains} x {count}"][key] for count in found["counts"]]
            label = "1 chain" if chains == 1 else f"{chains} chains"
            line(ax, x, y, label, color)
        ax.set(xscale="log", xlabel="draws in all", ylabel=key.replace("_", " "))
        finish(ax, legend=ax is panels[0])
    panels[1].set_ylabel("ECE")
    return figure
