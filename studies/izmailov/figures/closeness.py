"""Agreement and total variation between the predictions of other methods and HMC."""

from __future__ import annotations

from typing import Any

from studies.izmailov import approximations
from studies.izmailov.figures import methods
from studies.izmailov.outcomes import Claim, Outcome, above, every, within
from studies.izmailov.pictures import axes, bars
from studies.izmailov.scores import minus
from studies.izmailov.study import Arrays, Study, Task

NAME = "closeness"
TITLE = "Agreement and total variation with HMC"
SIMILAR, DISTINCT = 0.02, 0.01
BY_HAND = "runs and settings of the section before"
CHEAP = ("ensemble", "sgld", "sghmc", "sghmc cyclical", "bbb", "mc dropout")


def tasks(study: Study) -> list[Task]:
    """Return the runs of the figure "methods"."""
    return approximations.tasks(study)


def numbers(study: Study, found: dict[str, Arrays]) -> dict[str, Any]:
    """Return the scores of all methods except HMC itself."""
    return {name: row for name, row in methods.numbers(study, found).items() if name != "hmc"}


def _further(found: dict[str, Any], one: str, other: str) -> list[float]:
    """Return the total variation of `one` with HMC minus that number for `other`, per split."""
    return minus(found[one]["total_variation"], found[other]["total_variation"])


def distinct(found: dict[str, Any]) -> Outcome:
    """Compare each cheap method with other chains of HMC."""
    parts = [above(methods.LABELS[name], _further(found, name, "hmc2"), DISTINCT) for name in CHEAP]
    return every(parts)


def similar(found: dict[str, Any]) -> Outcome:
    """Compare ensemble and SGLD."""
    return within("SGLD minus ensemble", _further(found, "sgld", "ensemble"), SIMILAR)


def closer(found: dict[str, Any]) -> Outcome:
    """Compare ensemble and mean-field VI."""
    return above("mean-field VI minus ensemble", _further(found, "bbb", "ensemble"), 0.0)


CLAIMS = (
    Claim(
        "Cheaper methods have predictive distributions that differ from HMC's.",
        "for ensemble, SGLD, SGHMC (both), mean-field VI and MC dropout, the total variation "
        f"with HMC is more than {DISTINCT:g} larger than for other chains of HMC",
        distinct,
    ),
    Claim(
        "A deep ensemble is about as close to HMC as SGLD.",
        f"their total variations with HMC differ by less than {SIMILAR:g}",
        similar,
    ),
    Claim(
        "A deep ensemble is closer to HMC than mean-field VI.",
        "the total variation with HMC is larger for mean-field VI than for the ensemble",
        closer,
    ),
)


def table(found: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return a row per method."""
    head = ["method", "agreement with HMC", "total variation with HMC"]
    keys = ("agreement", "total_variation")
    rows = [[methods.LABELS[name], *(row[key] for key in keys)] for name, row in found.items()]
    return head, rows


def draw(found: dict[str, Any]) -> Any:
    """Agreement and total variation, a row per method."""
    figure, panels = axes(2, height=4.2)
    for ax, key in zip(panels, ("agreement", "total_variation"), strict=True):
        names = [methods.LABELS[name] if ax is panels[0] else "" for name in found]
        values = [row[key] for row in found.values()]
        bars(ax, names, values, f"{key.replace('_', ' ')} with HMC")
    return figure
