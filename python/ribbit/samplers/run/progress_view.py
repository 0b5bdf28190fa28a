"""How a snapshot of a run looks: a line of text, a table of rich, or HTML for a notebook."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ribbit._arrays.tables import html_table

_MAX_ROWS = 16  # chains listed one by one


def format_line(snapshot: Mapping[str, Any]) -> str:
    """One line of plain text for a snapshot of :meth:`Progress.snapshot`."""
    done, total = snapshot["done"], snapshot["total"]
    percent = 100.0 * done / total if total else 100.0
    fit, count = snapshot["phase"] == "fitting", snapshot["chains"]
    steps = " steps" if fit else ""
    state = _stopped(snapshot) or snapshot["phase"]
    parts = [f"{snapshot['title']}: {state} {done}/{total}{steps} ({percent:.0f} %)"]
    if count > 1 or not fit:
        one = "member" if fit else "chain"
        parts.append(f"{count} {one}" + ("" if count == 1 else "s"))
    if "acceptance_rate" in snapshot:
        parts.append(f"acceptance {_span(snapshot['acceptance_rate'], '.2f')}")
    if "diverging" in snapshot:
        found = sum(snapshot["diverging"])
        parts.append(f"{found} divergence{'' if found == 1 else 's'}")
    for name in ("step_size", "learning_rate"):
        if name in snapshot:
            parts.append(f"{name.replace('_', ' ')} {_span(snapshot[name], '.3g')}")
    return ", ".join([*parts, *_times(snapshot)])


def render_table(snapshot: Mapping[str, Any]) -> Any:
    """Lay a snapshot out for rich: a header with a bar, then a row per chain."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    done, total = snapshot["done"], max(snapshot["total"], 1)
    state = _state(snapshot)
    color = {"done": "green", "sampling": "cyan", "fitting": "cyan"}.get(state, "yellow")
    head = Table.grid(padding=(0, 1))
    head.add_row(
        Text(str(snapshot["title"]), style="bold"),
        Text(state, style=color),
        ProgressBar(total=total, completed=done, width=28),
        Text(f"{done}/{snapshot['total']}"),
        *(Text(part, style="dim") for part in _times(snapshot)),
    )
    names, rows = _rows(snapshot)
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in names:
        table.add_column(name, justify="right")
    diverging = names.index("divergences") if "divergences" in names else -1
    for row in rows:
        cells = [
            Text(cell, style="bold red" if i == diverging and cell != "0" else "")
            for i, cell in enumerate(row)
        ]
        table.add_row(*cells, style="dim" if row[0].startswith("+") else "")
    return Group(head, table) if len(names) > 2 else head


class Cell:
    """A snapshot in the output of a notebook."""

    def __init__(self, snapshot: Mapping[str, Any]) -> None:
        self._snapshot = snapshot

    def __repr__(self) -> str:
        return format_line(self._snapshot)

    def _repr_html_(self) -> str:
        """Return a bar and a row per chain."""
        snapshot = self._snapshot
        done, total = snapshot["done"], max(snapshot["total"], 1)
        title = f"{snapshot['title']}: {_state(snapshot)}"
        facts = ", ".join([f"{done}/{snapshot['total']}", *_times(snapshot)])
        names, rows = _rows(snapshot)
        bar = f'<progress value="{done}" max="{total}" style="width: 20em"></progress>'
        return bar + html_table(title, [names, *rows] if len(names) > 2 else [], facts)


def _state(snapshot: Mapping[str, Any]) -> str:
    """Return the phase, or how the run has ended."""
    if snapshot["done"] >= max(snapshot["total"], 1):
        return "done"
    return _stopped(snapshot) or str(snapshot["phase"])


def _stopped(snapshot: Mapping[str, Any]) -> str:
    """Return that a run has stopped early, and why, or nothing."""
    reason = snapshot.get("stopped")
    return "" if reason is None else f"stopped early ({reason})" if reason else "stopped early"


def _times(snapshot: Mapping[str, Any]) -> list[str]:
    """Return speed and times, as texts."""
    found = [f"{_clock(snapshot['elapsed'])} elapsed"]
    if snapshot["gradients_per_second"]:
        found.insert(0, f"{_count(snapshot['gradients_per_second'])} gradients/s")
    unfinished = snapshot["done"] < snapshot["total"] and "stopped" not in snapshot
    if unfinished and snapshot["eta"] is not None:
        found.append(f"{_clock(snapshot['eta'])} left")
    return found


# Columns of a table, by the key of the snapshot.
_COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "acceptance_rate": ("acceptance", lambda v: f"{v:.2f}"),
    "diverging": ("divergences", lambda v: f"{int(v)}"),
    "step_size": ("step size", lambda v: f"{v:.3g}"),
    "learning_rate": ("learning rate", lambda v: f"{v:.3g}"),
    "chain_gradients_per_second": ("gradients/s", lambda v: _count(v)),
}


def _rows(snapshot: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns and the texts of a row per chain, the last ones as one."""
    phase, chains = snapshot["phase"], snapshot["chains"]
    keys = [key for key in _COLUMNS if key in snapshot]
    counted = {"warmup": "warmup", "fitting": "steps"}.get(phase, "draws")
    names = ["member" if phase == "fitting" else "chain", counted]
    names += [_COLUMNS[key][0] for key in keys]
    steps = str(snapshot["draws"] if phase == "sampling" else snapshot["done"])
    rows = [
        [str(chain), steps, *(_COLUMNS[key][1](snapshot[key][chain]) for key in keys)]
        for chain in range(min(chains, _MAX_ROWS))
    ]
    if chains > _MAX_ROWS:
        rest = {key: snapshot[key][_MAX_ROWS:] for key in keys}
        means = {k: float(sum(v) if k == "diverging" else np.mean(v)) for k, v in rest.items()}
        last = [_COLUMNS[key][1](mean) for key, mean in means.items()]
        rows.append([f"+{chains - _MAX_ROWS}", steps, *last])
    return names, rows


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
