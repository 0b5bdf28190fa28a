"""Families and scales of the prior."""

from __future__ import annotations

from typing import Any

from studies.izmailov.chains import hmc, probabilities, reference
from studies.izmailov.outcomes import Claim, Outcome, every, within
from studies.izmailov.pictures import COLORS, axes, finish, line
from studies.izmailov.scores import columns, minus, scores
from studies.izmailov.study import Arrays, Study, Task

NAME = "priors"
TITLE = "Families and scales of the prior"
FAMILIES = ("normal", "logistic", "mixture")
LOSS, POINTS = 0.05, 0.01
FAMILY_LOSS, FAMILY_POINTS = 0.02, 0.005
BY_HAND = (
    "scales are multiples of the prior sd at the top of this page; "
    "logistic and mixture priors have the same sd as the normal prior of their scale; "
    "the mixture has two normals of equal weight, one four times as wide as the other"
)


def prior_task(study: Study, seed: int, family: str, scale: float) -> Task:
    if (family, scale) == ("normal", 1.0):
        return reference(study, seed)
    return hmc(study, seed, name=f"{family}-{scale:g}", prior=(family, scale))


def _scales(study: Study, family: str) -> list[float]:
    """All scales for the normal prior, half to twice the prior sd for the others."""
    return [c for c in study.size.scales if family == "normal" or 0.5 <= c <= 2]


def tasks(study: Study) -> list[Task]:
    """Every family and scale on every split; the normal prior of scale 1 is the reference."""
    splits = study.size.splits
    return [prior_task(study, s, f, c) for s in splits for f in FAMILIES for c in _scales(study, f)]


def numbers(study: Study, found: dict[str, Arrays]) -> dict[str, Any]:
    """Scores by family and scale, lists over splits."""
    size = study.size
    scales = {family: _scales(study, family) for family in FAMILIES}
    out: dict[str, Any] = {"scales": scales, "prior_sd": size.prior_sd, "rows": {}}
    for family in FAMILIES:
        rows = []
        for scale in scales[family]:
            each = []
            for seed in size.splits:
                one = found[prior_task(study, seed, family, scale).name]
                row = scores(study.split(seed).y_test, probabilities(one))
                row["function_below"] = float((one["function_rhat"] < 1.1).mean())
                each.append(row)
            rows.append(columns(each))
        out["rows"][family] = rows
    return out


def _differences(
    a: dict[str, Any], b: dict[str, Any], name: str, loss: float, points: float
) -> Any:
    return [
        within(f"log likelihood, {name}", minus(a["log_likelihood"], b["log_likelihood"]), loss),
        within(f"accuracy, {name}", minus(a["accuracy"], b["accuracy"]), points),
    ]


def scale_hardly_matters(found: dict[str, Any]) -> Outcome:
    """Compare normal priors of scale 0.5 and 2 with the normal prior of scale 1."""
    rows = dict(zip(found["scales"]["normal"], found["rows"]["normal"], strict=True))
    parts = []
    for scale, row in rows.items():
        if 0.5 <= scale <= 2 and scale != 1:
            parts += _differences(row, rows[1.0], f"scale {scale:g} minus 1", LOSS, POINTS)
    return every(parts)


def family_hardly_matters(found: dict[str, Any]) -> Outcome:
    """Compare families of the same sd."""
    at = {family: scales.index(1.0) for family, scales in found["scales"].items()}
    normal = found["rows"]["normal"][at["normal"]]
    parts = []
    for family in FAMILIES[1:]:
        row, name = found["rows"][family][at[family]], f"{family} minus normal"
        parts += _differences(row, normal, name, FAMILY_LOSS, FAMILY_POINTS)
    return every(parts)


CLAIMS = (
    Claim(
        "Predictions are robust to the scale of the prior.",
        f"with half and with twice the prior sd, the test log likelihood changes by less than "
        f"{LOSS:g} nats per row and the accuracy by less than {POINTS:g}",
        scale_hardly_matters,
    ),
    Claim(
        "Normal, logistic and mixture priors perform similarly.",
        f"with scale 1, the test log likelihood is within {FAMILY_LOSS:g} nats per row of the "
        f"normal prior, and the accuracy within {FAMILY_POINTS:g}",
        family_hardly_matters,
    ),
)


def table(found: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return a row per family and scale."""
    head = ["family", "prior sd", "accuracy", "log likelihood", "ECE"]
    head += ["predictions with R-hat < 1.1"]
    keys = ("accuracy", "log_likelihood", "ece", "function_below")
    rows = [
        [family, f"{scale * found['prior_sd']:.3f}", *(row[key] for key in keys)]
        for family, each in found["rows"].items()
        for scale, row in zip(found["scales"][family], each, strict=True)
    ]
    return head, rows


def draw(found: dict[str, Any]) -> Any:
    """Accuracy and log likelihood over the prior sd, a line per family."""
    figure, panels = axes(2)
    sds = {f: [c * found["prior_sd"] for c in found["scales"][f]] for f in FAMILIES}
    for ax, key in zip(panels, ("accuracy", "log_likelihood"), strict=True):
        for color, (family, rows) in zip(COLORS, found["rows"].items(), strict=False):
            line(ax, sds[family], [row[key] for row in rows], family, color)
        ax.set(xscale="log", xlabel="prior sd", ylabel=key.replace("_", " "))
        ax.set_xticks(sds["normal"], [f"{sd:.2g}" for sd in sds["normal"]])
        ax.minorticks_off()
        finish(ax, legend=ax is panels[0])
    return figure
