"""Tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def html_table(title: str, rows: Iterable[Sequence[str]], note: str = "") -> str:
    """Return an HTML table of escaped texts, with a note below."""
    from html import escape  # not with ribbit: slow to load

    cell = '<td style="text-align: left">{}</td>'  # Jupyter aligns cells to the right
    body = "".join(f"<tr>{''.join(cell.format(escape(text)) for text in row)}</tr>" for row in rows)
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<table><caption>{escape(title)}</caption>{body}</table>{below}"
