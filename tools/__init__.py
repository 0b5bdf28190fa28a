"""Tools that are neither tests nor product."""
