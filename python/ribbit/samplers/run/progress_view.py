"""How a snapshot of a run looks: one line of text, or a rich table."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_MAX_ROWS = 16  # chains listed one by one


def format_line(snapshot: Mapping[str, Any]) -> str:
    """One line of plain text for a snapshot of :meth:`Progress.snapshot`."""
    done, total = snapshot["done"], snapshot["total"]
    percent = 100.0 * done / total if total else 100.0
    fit, count = snapshot["phase"] == "fitting", snapshot["chains"]
    steps = " steps" if fit else ""
    parts = [f"{snapshot['title']}: {snapshot['phase']} {done}/{total}{steps} ({percent:.0f} %)"]
    if count > 1 or not fit:
        one = "member" if fit else "chain"
        parts.append(f"{count} {one}" + ("" if count == 1 else "s"))
    if "acceptance_rate" in snapshot:
        parts.append(f"acceptance {_span(snapshot['acceptance_rate'], '.2f')}")
    if "diverging" in snapshot:
        parts.append(f"{sum(snapshot['diverging'])} divergences")
    if "step_size" in snapshot:
        parts.append(f"step size {_span(snapshot['step_size'], '.3g')}")
    if snapshot["gradients_per_second"]:
        parts.append(f"{_count(snapshot['gradients_per_second'])} gradients/s")
    parts.append(f"{_clock(snapshot['elapsed'])} elapsed")
    if done < total and snapshot["eta"] is not None:
        parts.append(f"{_clock(snapshot['eta'])} left")
    return ", ".join(parts)


def render_table(snapshot: Mapping[str, Any]) -> Any:
    """Lay a snapshot out for rich: a header with a bar, then a row per chain."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    done, total = snapshot["done"], max(snapshot["total"], 1)
    finished = done >= total
    head = Table.grid(padding=(0, 1))
    head.add_row(
        Text(str(snapshot["title"]), style="bold"),
        Text(
            "done" if finished else snapshot["phase"],
            style="green" if finished else ("yellow" if snapshot["phase"] == "warmup" else "cyan"),
        ),
        ProgressBar(total=total, completed=done, width=28),
        Text(f"{done}/{snapshot['total']}"),
        Text(f"{_clock(snapshot['elapsed'])} elapsed", style="dim"),
        Text(
            "" if finished or snapshot["eta"] is None else f"{_clock(snapshot['eta'])} left",
            style="dim",
        ),
        Text(
            f"{_count(speed)} gradients/s" if (speed := snapshot["gradients_per_second"]) else "",
            style="magenta",
        ),
    )
    table = Table(box=None, padding=(0, 2), header_style="dim")
    phase = snapshot["phase"]
    table.add_column("member" if phase == "fitting" else "chain", justify="right")
    counted = {"warmup": "warmup", "fitting": "steps"}.get(phase, "draws")
    table.add_column(counted, justify="right")
    columns: list[tuple[str, str, Callable[[float], Any]]] = [
        ("acceptance_rate", "acceptance", lambda v: f"{v:.2f}"),
        (
            "diverging",
            "divergences",
            lambda v: Text(f"{int(v)}", style="bold red" if v else ""),
        ),
        ("step_size", "step size", lambda v: f"{v:.3g}"),
        ("chain_gradients_per_second", "gradients/s", _count),
    ]
    columns = [column for column in columns if column[0] in snapshot]
    for _, header, _ in columns:
        table.add_column(header, justify="right")
    steps = snapshot["draws"] if phase == "sampling" else done
    rows = min(snapshot["chains"], _MAX_ROWS)
    for chain in range(rows):
        cells = [show(snapshot[key][chain]) for key, _, show in columns]
        table.add_row(str(chain), str(steps), *cells)
    if snapshot["chains"] > rows:
        rest = [
            show(
                float(
                    sum(snapshot[key][rows:])
                    if key == "diverging"
                    else np.mean(snapshot[key][rows:])
                )
            )
            for key, _, show in columns
        ]
        table.add_row(f"+{snapshot['chains'] - rows}", str(steps), *rest, style="dim")
    return Group(head, table) if columns else head


def _span(values: list[float], spec: str) -> str:
    """'0.81' or, when chains differ, '0.78-0.85'."""
    low, high = format(min(values), spec), format(max(values), spec)
    return low if low == high else f"{low}-{high}"


def _count(value: float) -> str:
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.0f}"


def _clock(seconds: float) -> str:
    """'12 s', '3:07' or '2:03:07'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
