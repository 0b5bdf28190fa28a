"""A table of findings and their outcome: what `summary()` of draws and fits returns."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any, NamedTuple

from ribbit._arrays.keywords import explain
from ribbit._arrays.tables import html_table

__all__ = ["CONVERGED", "NOT", "PREDICTIONS", "SHORT", "Row", "Summary"]

CONVERGED = "converged"
PREDICTIONS = "predictions converged, weights did not"
NOT = "not converged"
SHORT = "too short to tell"

_WIDTH = 78


class Row(NamedTuple):
    """One line of a summary.

    Attributes
    ----------
    name, value : str
    wanted : str
        What the value should be; empty if nothing is wanted.
    good : bool or None
        Whether it is; None if that is not known, or nothing is wanted.
    """

    name: str
    value: str
    wanted: str = ""
    good: bool | None = None


@dataclass(frozen=True, repr=False)
class Summary:
    """What was found, and what to do next.

    Printed in full; rich draws it as a table (``rich.print``), a notebook too.

    Attributes
    ----------
    title : str
    rows : tuple of Row
    outcome : str
        "converged", "predictions converged, weights did not" (usual for networks, and fine), "not
        converged" or "too short to tell".
    message : str
        The outcome with its reasons, and the next step.
    """

    title: str
    rows: tuple[Row, ...]
    outcome: str
    message: str

    @property
    def converged(self) -> bool | None:
        """True for the first two outcomes, False for "not converged", else None."""
        return {NOT: False, SHORT: None}.get(self.outcome, True)

    @property
    def text(self) -> str:
        """The table in plain letters, then the message."""
        cells = self._cells()
        limited = [cell for cell in cells if cell[2]] or cells  # only these align their limits
        widths = [
            max((len(c[i]) for c in some), default=0) for i, some in ((0, cells), (1, limited))
        ]
        lines = [self.title]
        for cell in cells:
            padded = (text.ljust(width) for text, width in zip(cell, [*widths, 0], strict=True))
            lines.append(("  " + "  ".join(padded)).rstrip())
        return "\n".join([*lines, *textwrap.wrap(self.message, _WIDTH)])

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def __rich__(self) -> Any:
        """Return the table for a rich console."""
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, title=self.title, title_justify="left", pad_edge=False)
        for name in ("", "found", "wanted"):
            table.add_column(name)
        for row in self.rows:
            style = {True: "green", False: "bold red", None: ""}[row.good]
            table.add_row(Text(row.name), Text(row.value, style=style), Text(row.wanted))
        style = {True: "green", False: "bold red", None: ""}[self.converged]
        return Group(table, Text(self.message, style=style))

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return html_table(self.title, self._cells(), self.message)

    def _cells(self) -> list[tuple[str, str, str]]:
        return [(row.name, row.value, _wanted(row)) for row in self.rows]


def _wanted(row: Row) -> str:
    if not row.wanted:
        return ""
    return f"want {row.wanted}" + ("  <- no" if row.good is False else "")


explain(globals())
