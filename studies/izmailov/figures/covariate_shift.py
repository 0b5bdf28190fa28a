"""Test images under corruptions."""

from __future__ import annotations

from typing import Any

import numpy as np

from studies.izmailov import approximations
from studies.izmailov.chains import reference
from studies.izmailov.figures.methods import LABELS
from studies.izmailov.outcomes import Claim, Outcome, above
from studies.izmailov.pictures import COLORS, INK, axes, finish, line
from studies.izmailov.scores import minus, scores
from studies.izmailov.shift import CORRUPTIONS
from studies.izmailov.study import Arrays, Study, Task

NAME = "covariate_shift"
TITLE = "Covariate shift"
NEEDS_IMAGES = True
BY_HAND = (
    "seven corruptions of the test images at strengths 1 to 5 (`studies/izmailov/shift.py`), "
    "with pixels clipped to [0, 1]; "
    "the runs are the runs of the methods above; "
    "the table has accuracies, averaged over strengths, and log likelihoods in its last row"
)
ORDER = ("hmc", "one net", "ensemble", "sgld", "bbb", "mc dropout")


def tasks(study: Study) -> list[Task]:
    """HMC and the methods whose corrupted predictions were kept, on every split."""
    out = []
    for seed in study.size.splits:
        out.append(reference(study, seed))
        out += [approximations.task(study, name, seed) for name in approximations.SHIFTED]
    return out


def _accuracy(study: Study, found: dict[str, Arrays], name: str, seed: int) -> np.ndarray:
    """Accuracy and log likelihood, (2, kinds, strengths)."""
    if name == "one net":
        return found[f"ensemble-split{seed}"]["shifted_members"]
    y = study.split(seed).y_test
    probs = found[f"{name.replace(' ', '_')}-split{seed}"]["shifted"]
    each = [[scores(y, one) for one in strengths] for strengths in probs]
    return np.array(
        [[[s[key] for s in row] for row in each] for key in ("accuracy", "log_likelihood")]
    )


def numbers(study: Study, found: dict[str, Arrays]) -> dict[str, Any]:
    """Both scores by method, kind and strength; lists over splits come last."""
    out: dict[str, Any] = {"strengths": list(study.size.strengths), "kinds": list(CORRUPTIONS)}
    for i, key in enumerate(("accuracy", "log_likelihood")):
        out[key] = {}
        for name in ORDER:
            each = [_accuracy(study, found, name, seed)[i] for seed in study.size.splits]
            out[key][name] = np.stack(each, axis=-1).tolist()
    return out


def over_kinds(found: dict[str, Any], key: str, name: str, least: int = 1) -> list[float]:
    """Mean over kinds and strengths from `least` on, per split."""
    values = np.array(found[key][name])  # (kinds, strengths, splits)
    return list(values[:, np.array(found["strengths"]) >= least].mean(axis=(0, 1)))


def worse_than(other: str) -> Any:
    """Return a check that HMC is less accurate than another method at strengths 3 to 5."""

    def judge(found: dict[str, Any]) -> Outcome:
        theirs, ours = (over_kinds(found, "accuracy", name, 3) for name in (other, "hmc"))
        return above(f"accuracy, {LABELS[other]} minus HMC", minus(theirs, ours), 0.0)

    return judge


_WORDS = "averaged over all corruptions at strengths 3 to 5, HMC is less accurate than"
CLAIMS = (
    Claim(
        "HMC generalises poorly under covariate shift: worse than one trained network.",
        f"{_WORDS} one network",
        worse_than("one net"),
    ),
    Claim(
        "HMC generalises poorly under covariate shift: worse than a deep ensemble.",
        f"{_WORDS} the ensemble",
        worse_than("ensemble"),
    ),
)


def table(found: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Accuracy by kind over all strengths, a column per method; last: log likelihood of all."""
    head = ["corruption", *(LABELS[name] for name in ORDER)]
    rows: list[list[Any]] = []
    for i, kind in enumerate(found["kinds"]):
        means = [list(np.mean(found["accuracy"][name][i], axis=0)) for name in ORDER]
        rows.append([kind, *means])
    rows.append(["all, strengths 3 to 5", *(over_kinds(found, "accuracy", n, 3) for n in ORDER)])
    rows.append(["log likelihood, all", *(over_kinds(found, "log_likelihood", n) for n in ORDER)])
    return head, rows


def draw(found: dict[str, Any]) -> Any:
    """Draw scores minus HMC's, split by split, over the strength; means over the kinds."""
    figure, panels = axes(2, height=3.6)
    for ax, key in zip(panels, ("accuracy", "log_likelihood"), strict=True):
        scored = {name: np.array(found[key][name]).mean(axis=0) for name in ORDER}
        for color, name in zip(COLORS, ORDER[1:], strict=False):
            values = scored[name] - scored["hmc"]  # (strengths, splits)
            line(ax, found["strengths"], values.tolist(), LABELS[name], color)
        ax.axhline(0.0, color=INK, ls="--", lw=1)
        ax.set(xlabel="strength", ylabel=f"{key.replace('_', ' ')}, minus HMC's")
        ax.set_xticks(found["strengths"])
        finish(ax, legend=False)
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=5, frameon=False, fontsize="small")
    return figure
