"""Cold posteriors: temperatures below one."""

from __future__ import annotations

from typing import Any

from studies.izmailov.chains import hmc, probabilities, reference
from studies.izmailov.outcomes import Claim, Outcome, above, every
from studies.izmailov.pictures import COLORS, GREY, axes, finish, line
from studies.izmailov.scores import columns, minus, scores
from studies.izmailov.study import Arrays, Study, Task

NAME = "temperature"
TITLE = "Temperature"
LOSS, POINTS = 0.01, 0.005
BY_HAND = "temperature of likelihood and prior together; no data augmentation"


def _task(study: Study, seed: int, temperature: float) -> Task:
    if temperature == 1.0:
        return reference(study, seed)
    return hmc(study, seed, name=f"temperature-{temperature:g}", temperature=temperature)


def tasks(study: Study) -> list[Task]:
    """Every temperature on every split; 1 is the reference."""
    return [_task(study, s, t) for s in study.size.splits for t in study.size.temperatures]


def numbers(study: Study, found: dict[str, Arrays]) -> dict[str, Any]:
    """Scores by temperature, lists over splits."""
    out: dict[str, Any] = {"temperatures": list(study.size.temperatures), "rows": []}
    for temperature in study.size.temperatures:
        rows = []
        for seed in study.size.splits:
            one = found[_task(study, seed, temperature).name]
            row = scores(study.split(seed).y_test, probabilities(one))
            row["function_below"] = float((one["function_rhat"] < 1.1).mean())
            rows.append(row)
        out["rows"].append(columns(rows))
    return out


def not_needed(found: dict[str, Any]) -> Outcome:
    """Temperature 1 predicts about as well as every lower one."""
    rows = dict(zip(found["temperatures"], found["rows"], strict=True))
    parts = []
    for temperature, row in rows.items():
        if temperature < 1:
            for key, margin in (("log_likelihood", LOSS), ("accuracy", POINTS)):
                gain = minus(rows[1.0][key], row[key])
                name = f"{key.replace('_', ' ')}, 1 minus {temperature:g}"
                parts.append(above(name, gain, -margin))
    return every(parts)


CLAIMS = (
    Claim(
        "No cold posterior effect without data augmentation: temperature 1 is near the best.",
        f"compared with every temperature below 1, temperature 1 loses at most {LOSS:g} nats per "
        f"row of test log likelihood and at most {POINTS:g} of accuracy",
        not_needed,
    ),
)


def table(found: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Return a row per temperature."""
    head = ["temperature", "accuracy", "log likelihood", "ECE", "predictions with R-hat < 1.1"]
    keys = ("accuracy", "log_likelihood", "ece", "function_below")
    rows = [
        [f"{temperature:g}", *(row[key] for key in keys)]
        for temperature, row in zip(found["temperatures"], found["rows"], strict=True)
    ]
    return head, rows


def draw(found: dict[str, Any]) -> Any:
    """Accuracy, log likelihood and ECE over the temperature."""
    figure, panels = axes(3)
    titles = {"accuracy": "accuracy", "log_likelihood": "log likelihood", "ece": "ECE"}
    for ax, color, (key, title) in zip(panels, COLORS, titles.items(), strict=False):
        line(ax, found["temperatures"], [row[key] for row in found["rows"]], title, color)
        ax.axvline(1.0, color=GREY, ls="--", lw=1)
        ax.set(xscale="log", xlabel="temperature", ylabel=title)
        ax.set_xticks(found["temperatures"], [f"{t:g}" for t in found["temperatures"]])
        ax.minorticks_off()
        finish(ax, legend=False)
    return figure
