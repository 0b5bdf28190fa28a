"""Step size against acceptance."""

from __future__ import annotations

from typing import Any

from studies.izmailov.chains import RHAT_BAR, hmc, probabilities, reference
from studies.izmailov.outcomes import Claim, Outcome, above, every, within
from studies.izmailov.pictures import COLORS, axes, finish, line
from studies.izmailov.scores import columns, minus, scores
from studies.izmailov.study import Arrays, Study, Task

NAME = "step_size"
TITLE = "Step size and acceptance"
HIGH, DIFFERENCE = 0.9, 0.01
BY_HAND = (
    "step sizes as in the table, and a fixed trajectory length of pi/2 prior sds; "
    "chains begin where the chains of the reference run ended, without warmup"
)


def tasks(study: Study) -> list[Task]:
    """Return a run per step size and split, started at the ends of the reference's chains."""
    out = []
    for seed in study.size.splits:
        start = reference(study, seed)
        out.append(start)
        for step in study.size.steps:
            options = {
                "step_size": step,
                "trajectory_length": study.size.quarter_turn,
                "randomize_length": False,
            }
            name = f"step-{step:g}"
            out.append(hmc(study, seed, name=name, options=options, start_from=start))
    return out


def numbers(study: Study, found: dict[str, Arrays]) -> dict[str, Any]:
    """Collect acceptance, divergences and scores at each step size, lists over splits."""
    out: dict[str, Any] = {"steps": list(study.size.steps), "rows": []}
    for step in study.size.steps:
        rows = []
        for seed in study.size.splits:
            one = found[f"step-{step:g}-split{seed}"]
            row = scores(study.split(seed).y_test, probabilities(one))
            row["acceptance"] = float(one["acceptance"].mean())
            row["diverging"] = float(one["diverging"])
            row["function_below"] = float((one["function_rhat"] < RHAT_BAR).mean())
            rows.append(row)
        out["rows"].append(columns(rows))
    return out


def falls(found: dict[str, Any]) -> Outcome:
    """Check that acceptance is high at the smallest step and falls from step to step."""
    each = [row["acceptance"] for row in found["rows"]]
    parts = [above("acceptance at the smallest step", each[0], HIGH)]
    for step, small, large in zip(found["steps"], each, each[1:], strict=False):
        parts.append(above(f"fall from step {step:g} to the next", minus(small, large), 0.0))
    return every(parts)


def same(found: dict[str, Any]) -> Outcome:
    """Compare the predictions of the two smallest steps."""
    first, second = (row["log_likelihood"] for row in found["rows"][:2])
    return within("log likelihood, first minus second step", minus(first, second), DIFFERENCE)


CLAIMS = (
    Claim(
        "Acceptance is near 1 for a small step and falls as the step grows.",
        f"mean acceptance is above {HIGH:g} at the smallest step, and falls from each step to the "
        "next",
        falls,
        of_paper=False,
    ),
    Claim(
        "If the step is small enough, a smaller step only takes more time.",
        f"the test log likelihoods of the two smallest steps differ by less than {DIFFERENCE:g} "
        "nats per row",
        same,
        of_paper=False,
    ),
)


def table(found: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return a row per step size."""
    keys = ("acceptance", "accuracy", "log_likelihood", "function_below")
    head = ["step size", "acceptance", "accuracy", "log likelihood", "predictions with R-hat < 1.1"]
    rows = [
        [f"{step:g}", *(row[key] for key in keys)]
        for step, row in zip(found["steps"], found["rows"], strict=True)
    ]
    return head, rows


def draw(found: dict[str, Any]) -> Any:
    """Draw acceptance and log likelihood over the step size."""
    figure, panels = axes(2)
    for ax, key in zip(panels, ("acceptance", "log_likelihood"), strict=True):
        line(ax, found["steps"], [row[key] for row in found["rows"]], key, COLORS[0])
        ax.set(xscale="log", xlabel="leapfrog step", ylabel=key.replace("_", " "))
        ax.set_xticks(found["steps"], [f"{step:g}" for step in found["steps"]], rotation=40)
        ax.minorticks_off()
        finish(ax, legend=False)
    panels[0].set_ylim(0, 1.03)
    return figure
