"""Writes docs/developer/izmailov.md and its pictures from the JSON files of the figures."""

from __future__ import annotations

import platform
import textwrap
from pathlib import Path
from typing import Any

from studies.izmailov import figures
from studies.izmailov.outcomes import interval
from studies.izmailov.record import read_result
from studies.izmailov.sizes import LAPTOP

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parent / "results"
PAGE = ROOT / "docs" / "developer" / "izmailov.md"
PICTURES = ROOT / "docs" / "_static" / "izmailov"


def kind() -> str:
    """Name the kind of processor, not the machine."""
    return f"{platform.machine()}, {platform.system()}"


def cell(value: Any) -> str:
    """Write a list over splits as mean and half a 95 % interval, other numbers in four digits."""
    if isinstance(value, list):
        mean, half = interval(value)
        digits = 2 if abs(mean) >= 100 else 4
        return f"{mean:.{digits}f} ± {half:.{digits}f}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def text_table(head: list[str], rows: list[list[Any]]) -> str:
    """Align columns by spaces."""
    lines = [head, *([cell(value) for value in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(value.ljust(width) for value, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def wrapped(text: str, width: int = 98) -> list[str]:
    """Break a paragraph into lines of at most `width` characters."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def item(text: str, depth: int = 0) -> list[str]:
    """Return the lines of a list item, indented by two spaces per level."""
    margin = "  " * depth
    first, *rest = wrapped(text, 98 - len(margin))
    return [f"{margin}- {first}", *(f"{margin}  {line}" for line in rest)]


def write(results: Path) -> None:
    """Write the pictures and the page from all results in the folder."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    found = {name: read_result(results, name) for name in figures.NAMES}
    for name, result in found.items():
        if result is not None:
            picture = figures.module(name).draw(result["numbers"])
            picture.savefig(PICTURES / f"{name}.png", dpi=110)
    PAGE.write_text(text({name: result for name, result in found.items() if result}))


def text(found: dict[str, dict[str, Any]]) -> str:
    """Text of the page."""
    body = [line for result in found.values() for line in section(result)]
    return "\n".join([*head(found), *body]) + "\n"


COMMAND = "python -m studies.izmailov --size laptop --write"
INTRODUCTION = (
    "This page repeats a study by Izmailov, Vikram, Hoffman and Wilson (2021): *What Are Bayesian "
    "Neural Network Posteriors Really Like?* ([arXiv 2104.14421]"
    "(https://arxiv.org/abs/2104.14421)). The paper ran full-batch HMC on ResNet-20 and a "
    "CNN-LSTM, and compared other methods with HMC. This page asks the same questions with a small "
    "network on small images, which fits on two cores. The outcomes say nothing about the networks "
    "and data of the paper. Claims are in our words."
)
OUTCOMES = (
    "*Reproduced*: the claim also holds here. The whole interval meets the criterion.",
    "*Not reproduced*: the claim does not hold here. The whole interval misses the criterion.",
    "*Not testable at this size*: the limit of the criterion lies inside the interval.",
    "*Expected*: HMC should do this anyway. We do not ascribe the claim to the paper.",
)
STATISTICS = (
    "A criterion can have several parts. If one part is not reproduced, the claim is not "
    "reproduced. Otherwise, if one part is not testable, the claim is not testable.",
    "Each criterion is a function (`judge` in `studies/izmailov/figures/`). It was written, with "
    "its margins, before the numbers that it checks.",
    "Some settings were chosen from first runs: the grid of step sizes around the step size that "
    "HMC finds, and the epochs, on a split that no figure uses. To save time, two of the three "
    "families of the prior have three scales only.",
    "Numbers are means over {splits} random splits into training and test rows, each with other "
    "chains, ± half of a 95 % interval (Student's t). The splits draw from the same 1,797 images, "
    "so the intervals are somewhat too short.",
    "Splits differ more than methods, so the intervals in tables and pictures are wide. Outcomes "
    "use differences within a split.",
    "Log likelihoods are means per test row, in nats. ECE is the expected calibration error.",
)
BY_HAND = (
    (
        "data",
        "scikit-learn's digits, 8 x 8 pixels with one mean and scale for all pixels; "
        "{rows} rows train, {tests} test; no data augmentation",
    ),
    ("network", "64-20-10 with SiLU, 1,510 weights, float32"),
    (
        "prior",
        "Normal of variance 1/5 on all weights, as in the paper for CIFAR-10; not tuned here",
    ),
    (
        "HMC (reference run)",
        "Ribbit's defaults: step size by dual averaging, random trajectory lengths of "
        "one prior sd on average; {warmup} trajectories of warmup, {draws} draws, {chains} chains",
    ),
)
TIMES = (
    "Times are wall-clock times with other work on the same cores. For an interrupted run, only "
    "the last part counts. A run that two figures share counts for the first. Split s shuffles by "
    "`RandomState(s)`; its chains have the seed 1000 s."
)
NOT_MADE = (
    (
        "The networks and data of the paper at their size",
        "not testable at this size: `--size paper` runs them, `--cost` estimates the time",
    ),
    (
        "The CNN-LSTM on IMDB",
        "not testable at this size: neither Ribbit nor scikit-learn ships texts; "
        "`--size paper --data imdb` runs it if you have the data",
    ),
    (
        "Data augmentation causes the cold posterior effect",
        "not tested: no figure has augmented data",
    ),
)


def head(found: dict[str, dict[str, Any]]) -> list[str]:
    """Introduction, settings and the table of outcomes."""
    size = LAPTOP
    numbers = {name: getattr(size, name) for name in ("rows", "tests", "warmup", "draws", "chains")}
    out = ["# A study repeated: posteriors of neural networks", ""]
    out += [*wrapped(f"Written by `{COMMAND}`. {INTRODUCTION}"), ""]
    out += [line for entry in OUTCOMES for line in item(entry)]
    out += ["", "How numbers and outcomes are computed:", ""]
    out += [line for entry in STATISTICS for line in item(entry.format(splits=len(size.splits)))]
    out += ["", "| setting | value |", "|---|---|"]
    out += [f"| {name} | {what.format(**numbers)} |" for name, what in BY_HAND]
    out += ["", "| section | claim | outcome |", "|---|---|---|"]
    for result in found.values():
        for one in result["claims"]:
            whose = "" if one["of_paper"] else " (expected)"
            out.append(f"| {result['title']} | {one['claim']}{whose} | **{one['outcome']}** |")
    out += [f"| | {what} | {why} |" for what, why in NOT_MADE]
    seconds = sum(result["seconds"] for result in found.values())
    machines = sorted(
        {f"{r['machine']['cores']} cores, {r['machine']['kind']}" for r in found.values()}
    )
    minutes = f"{seconds / 60:.0f} minutes on {'; '.join(machines)}"
    return [*out, "", *wrapped(f"All figures together took {minutes}. {TIMES}")]


def section(result: dict[str, Any]) -> list[str]:
    """One figure: claims with criterion and outcome, settings, table, picture."""
    name = result["name"]
    out = ["", f"## {result['title']}", ""]
    for one in result["claims"]:
        whose = "Claim of the paper" if one["of_paper"] else "Expected of HMC"
        out += [*wrapped(f"**{whose}:** {one['claim']}"), ""]
        out += item(f"Criterion: {one['criterion']}.")
        out += item(f"Outcome: **{one['outcome']}**")
        for part in one["because"].replace("+-", "±").split("; "):
            out += item(part, 1)
        out.append("")
    if result["by_hand"]:
        out += ["**Settings:**", ""]
        out += [line for part in result["by_hand"].split("; ") for line in item(part)]
        out.append("")
    out += wrapped(
        f"Command: `python -m studies.izmailov --figure {name}`, {result['runs']} runs, "
        f"{result['seconds'] / 60:.1f} minutes, splits {result['splits']}."
    )
    head = result["head"]
    out += ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    out += [f"| {' | '.join(cell(value) for value in row)} |" for row in result["rows"]]
    return [*out, "", f"![{result['title']}](../_static/izmailov/{name}.png)"]
