"""Tell two modules with arrays of the same shapes apart, by their layers and their outputs."""

# Shapes: n rows, P parameters.

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ribbit._arrays.random_numbers import normal_starts
from ribbit.torch.evaluation import called, quiet
from ribbit.torch.masks import Mask
from ribbit.torch.parameters import ModuleParameter

_ROWS, _NUMBERS = 3, 64  # rows that a module is tried on, outputs that are kept
_TOLERANCES = {"float64": 1e-6, "float32": 1e-3}


def structure(
    module: torch.nn.Module, parameters: Sequence[ModuleParameter], writes: bool, x: torch.Tensor
) -> dict[str, Any]:
    """Return the layers of a module, as text, and its outputs at fixed weights and inputs."""
    found: dict[str, Any] = {"layers": _layers(module)}
    for number in (torch.float64, torch.float32):
        try:
            outputs = _outputs(module, parameters, writes, x, number)
        except Exception:  # whatever the module's own code raises at such inputs
            continue
        if np.isfinite(outputs).all():
            return {**found, "dtype": str(number).removeprefix("torch."), "outputs": outputs}
    return found


def _layers(module: torch.nn.Module) -> list[str]:
    found = []
    for name, part in module.named_modules():
        masked = isinstance(part, Mask)
        text = part.text if masked else f"{type(part).__name__}({part.extra_repr()})"
        for option in (", inplace=True", "inplace=True", ", inplace=False"):
            text = text.replace(option, "")
        found.append(f"{name or 'module'}: {text}")
    return found


def _outputs(
    module: torch.nn.Module,
    parameters: Sequence[ModuleParameter],
    writes: bool,
    x: torch.Tensor,
    number: torch.dtype,
) -> list[float]:
    copied = copy.deepcopy(module).to(number)
    device = next(copied.parameters()).device
    size, shape = sum(p.size for p in parameters), x.shape[1:]
    numbers = np.dtype(np.float64)
    theta = torch.from_numpy(normal_starts("describe", 0, None, size, numbers)[0])
    rows = torch.from_numpy(normal_starts("describe", 1, _ROWS, shape.numel(), numbers))
    rows = rows.reshape(_ROWS, *shape)
    rows = rows.to(number) if x.is_floating_point() else (rows > 0).to(x.dtype)
    arrays = {
        p.name: (theta[p.offset : p.offset + p.size] * p.fan_in**-0.5)
        .reshape(p.shape)
        .to(device, number)
        for p in parameters
    }
    with quiet(), torch.no_grad():
        out = called(copied, arrays, rows.to(device), writes=writes)
    found: list[float] = out.double().cpu().reshape(-1)[:_NUMBERS].tolist()
    return found


def difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return what differs between two descriptions of predictions, "" if nothing does."""
    before, now = (one.get("module", one) for one in (before, now))
    if ("model" in before) != ("model" in now):
        kinds = ("torch", "the native core")
        return (
            f"a target that {kinds['model' in now]} runs, whose parameters have another order: "
            f"make it with native={'model' in before}"
        )
    ours, theirs = (one.get("model", one)["layers"] for one in (before, now))
    for one, other in zip(ours, theirs, strict=False):
        if one != other:
            return f"a module with {other!r} in place of {one!r}"
    if len(ours) != len(theirs):
        return f"a module of {len(theirs)} parts in place of {len(ours)}"
    for key in ("model", "learned_scales", "likelihood"):
        if before.get(key) != now.get(key):
            return f"another {key}: {now.get(key)} in place of {before.get(key)}"
    if "outputs" in before and before.get("dtype") == now.get("dtype"):
        known, found = np.array(before["outputs"]), np.array(now["outputs"])
        bound = _TOLERANCES[before["dtype"]] * max(1e-30, float(np.abs(known).max()))
        if known.shape != found.shape or not (np.abs(found - known) <= bound).all():
            return "a module of the same layers whose forward, or whose fixed arrays, differ"
    return ""
