"""A table of findings with a verdict: what `summary()` of draws and fits returns."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ribbit._arrays.tables import html_table

__all__ = ["Row", "Summary", "stopped_row"]

_WIDTH = 78


class Row(NamedTuple):
    """One line of a summary.

    Attributes
    ----------
    name, value : str
    wanted : str
        What the value should be; empty where there is nothing to want.
    good : bool or None
        Whether it is; None where that is not known, or there is nothing to want.
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
    converged : bool or None
        None where nothing says.
    verdict : str
        One or two sentences, the next step included.
    """

    title: str
    rows: tuple[Row, ...]
    converged: bool | None
    verdict: str

    @property
    def text(self) -> str:
        """The table in plain letters, then the verdict."""
        cells = self._cells()
        widths = [max((len(cell[i]) for cell in cells), default=0) for i in range(3)]
        lines = [self.title]
        for cell in cells:
            padded = (text.ljust(width) for text, width in zip(cell, widths, strict=True))
            lines.append(("  " + "  ".join(padded)).rstrip())
        return "\n".join([*lines, *textwrap.wrap(self.verdict, _WIDTH)])

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
        return Group(table, Text(self.verdict, style=style))

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return html_table(self.title, self._cells(), self.verdict)

    def _cells(self) -> list[tuple[str, str, str]]:
        return [(row.name, row.value, _wanted(row)) for row in self.rows]


def stopped_row(settings: Mapping[str, Any]) -> Row | None:
    """Say why a run with ``until=`` has ended; None for others."""
    stopped, until = settings.get("stopped"), settings.get("until")
    if not isinstance(stopped, dict) or not isinstance(until, dict):
        return None
    reason = str(stopped.get("reason"))
    text = f"{reason} after {stopped.get('draws')} draws"
    if stopped.get("rhat") is not None:
        text += f": R-hat {stopped['rhat']:.3f}"
        if stopped.get("ess") is not None:
            text += f", {stopped['ess']:.0f} effective draws"
    wanted = f"R-hat <= {until.get('rhat'):g}, {until.get('ess'):g} effective"
    return Row("run ended", text, wanted, reason == "converged")


def _wanted(row: Row) -> str:
    if not row.wanted:
        return ""
    return f"want {row.wanted}" + ("  <- no" if row.good is False else "")
