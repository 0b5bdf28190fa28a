"""docs/developer/izmailov.md and its pictures, from the figures' JSON files."""

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


def wrapped(text: str) -> list[str]:
    """Lines of at most 98 characters, which leaves room for a list."""
    return textwrap.wrap(text, 98, break_long_words=False, break_on_hyphens=False)


def write(results: Path) -> None:
    """Write the pictures and the page of what results there are."""
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
    "Izmailov, Vikram, Hoffman and Wilson (2021), *What Are Bayesian Neural Network Posteriors "
    "Really Like?* ([arXiv 2104.14421](https://arxiv.org/abs/2104.14421)), ran full-batch HMC on "
    "ResNet-20 and a CNN-LSTM and asked how other methods compare. This page asks the same at a "
    "size that fits on two cores. A small network on small images is not theirs: "
    "*reproduced* says that the claim holds here as well, *not reproduced* that it does not hold "
    "here, neither that they are right or wrong at their size. Claims are in our words; what "
    "HMC should do anyway, and we do not ascribe to the paper, is marked *expected*."
)
STATISTICS = (
    "Every outcome is a predicate in code that was written before the numbers that it judges "
    "(`judge` in `studies/izmailov/figures/`), with margins; the sentence under *criterion* says "
    "it in words. Settings were chosen by looking: the grid of steps about the step that HMC "
    "finds, epochs on a split that no figure uses, and, for time, three scales of two families of "
    "the prior. Numbers are means over {splits} random splits into training and test rows, "
    "each with other chains, ± half a 95 % interval by Student's t. The splits draw from the same "
    "1,797 images, so the intervals are somewhat too short. Splits differ by more than "
    "methods do, so the intervals in tables and pictures are wide; outcomes are on differences "
    "within a split. Where an interval holds the bar, "
    "the outcome is *not testable at this size*."
)
BY_HAND = (
    (
        "data",
        "scikit-learn's digits, 8 x 8 pixels with one mean and scale for all pixels; "
        "{rows} rows train, {tests} test; no data augmentation",
    ),
    ("network", "64-20-10 with SiLU, 1,510 weights, float32"),
    ("prior", "Normal of variance 1/5 on all weights, theirs for CIFAR-10; not tuned here"),
    (
        "HMC",
        "Ribbit's defaults: the step size by dual averaging, random trajectory lengths of "
        "one prior sd on average; {warmup} trajectories of warmup, {draws} draws, {chains} chains",
    ),
)
TIMES = (
    "Times are wall-clock times beside other work on the same cores. That of a run that was "
    "interrupted counts its last part; a run that two figures share is "
    "counted by the first. Seeds: split s shuffles by `RandomState(s)`; its chains have the seed "
    "1000 s."
)
NOT_MADE = (
    (
        "Their networks and data at their size",
        "not testable at this size: `--size paper` constructs; `--cost` says how long it takes",
    ),
    (
        "The CNN-LSTM on IMDB",
        "not testable at this size: no text ships with Ribbit or scikit-learn; "
        "`--size paper --data imdb` runs it where the data are",
    ),
    (
        "Data augmentation is what causes the cold posterior effect",
        "not tested: no figure has augmented data",
    ),
)


def head(found: dict[str, dict[str, Any]]) -> list[str]:
    """Introduction, settings and the table of outcomes."""
    size = LAPTOP
    numbers = {name: getattr(size, name) for name in ("rows", "tests", "warmup", "draws", "chains")}
    out = ["# A study repeated: properties of posteriors of networks", ""]
    out += [*wrapped(f"Written by `{COMMAND}`. {INTRODUCTION}"), ""]
    out += [*wrapped(STATISTICS.format(splits=len(size.splits))), ""]
    out += ["| set by hand | to |", "|---|---|"]
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
    """One figure: claim, criterion, outcome, table, picture."""
    name = result["name"]
    facts = []
    for one in result["claims"]:
        facts += [
            f"{'Claim of the paper' if one['of_paper'] else 'Expected of HMC'}: {one['claim']}",
            f"Criterion: {one['criterion']}.",
            f"Outcome: **{one['outcome']}**. {one['because'].replace('+-', '±')}.",
        ]
    if result["by_hand"]:
        facts.append(f"Set by hand: {result['by_hand']}")
    facts.append(
        f"Command: `python -m studies.izmailov --figure {name}`, {result['runs']} runs, "
        f"{result['seconds'] / 60:.1f} minutes, splits {result['splits']}."
    )
    out = ["", f"## {result['title']}", ""]
    for fact in facts:
        first, *rest = wrapped(fact)
        out += [f"- {first}", *(f"  {line}" for line in rest)]
    head = result["head"]
    out += ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    out += [f"| {' | '.join(cell(value) for value in row)} |" for row in result["rows"]]
    return [*out, "", f"![{result['title']}](../_static/izmailov/{name}.png)"]
