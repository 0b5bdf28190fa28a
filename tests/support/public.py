"""What Ribbit makes public."""

import importlib
import importlib.util

import ribbit as rb

__all__ = ["public"]

ROOMS = "datasets diagnostics distributed metrics plots random samplers schedules zoo layers"
OUTER = [("sklearn", "sklearn"), ("torch", "torch"), ("jax", "jax"), ("pymc", "pymc")]


def public() -> dict[str, object]:
    """What modules make public, by name."""
    rooms = [rb, *(getattr(rb, name) for name in ROOMS.split())]
    for name, package in OUTER:
        if importlib.util.find_spec(package):
            rooms.append(importlib.import_module(f"ribbit.{name}"))
    return {
        f"{room.__name__}.{name}": getattr(room, name)
        for room in rooms
        for name in room.__all__
        if name not in ("__version__", "show_versions")
    }
