"""How rows are divided into shards, and shards into the runs that ranks have."""

# As `RowGroup` of ``cpp/cpu/density/row_group.h``.

from __future__ import annotations

from ribbit import _core

DEFAULT_SHARDS = 16  # with a group, where nobody says
MOST_SHARDS = 16
PANEL: int = _core.build_info()["panel_rows"]


def row_bounds(count: int, shards: int, parts: int) -> list[int]:
    """Return where the rows of each part begin, and their end (parts + 1,)."""
    # Shards are runs of whole panels of 32 rows; a part has a run of whole shards.
    panels = -(-count // PANEL)
    firsts = [shards * part // parts for part in range(parts + 1)]
    return [min(count, panels * first // shards * PANEL) for first in firsts]
