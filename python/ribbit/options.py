"""Options of samplers: checks, and defaults that come from the target."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import host_dtype, namespace
from ribbit.density import Density
from ribbit.errors import DTypeError, ShapeError
from ribbit.protocols import Array
from ribbit.results.draws import Draws
from ribbit.results.state import AnyState

BATCH_SIZE = 128  # what samplers and fits of minibatches have by default

__all__ = [
    "BATCH_SIZE",
    "batch_size",
    "check_progress",
    "check_resume",
    "no_dropout",
    "num_rows",
    "same_density",
    "same_kind",
    "same_target",
    "starts",
    "sums_over_rows",
]


def no_dropout(function: str, target: Any) -> None:
    """Raise TypeError for a target with Dropout layers."""
    layers = () if isinstance(target, type) else tuple(getattr(target, "dropout_layers", ()))
    if layers:
        module = hasattr(target, "state_dict")
        off = "call module.eval() before posterior()" if module else "take the layer out"
        raise TypeError(
            f"[{function}] expected a target without Dropout layers, got "
            f"{', '.join(map(str, layers))} (use MCDropout, or {off})"
        )


def sums_over_rows(function: str, target: Any) -> None:
    """Raise TypeError for a density that is no sum over rows: something is integrated out."""
    part = getattr(target, "integrated", None)
    if part is not None:
        raise TypeError(
            f"[{function}] expected a density that is a sum over rows, got one with its {part} "
            "integrated out (marginalize=): use HMC, NUTS or MCLMC, or the posterior without it"
        )


def one_process(function: str, target: Any) -> None:
    """Raise ValueError for a target whose rows lie on several ranks."""
    group = getattr(target, "group", None)
    if group is not None:
        raise ValueError(
            f"[{function}] expected a posterior without group=, got one whose rows lie on "
            f"{group.size} ranks: it needs all rows in one process"
        )


def num_rows(function: str, target: Any) -> int | None:
    """Return a target's number of rows, None where it has none."""
    rows = getattr(target, "num_rows", None)
    if rows is None:
        return None
    if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < 1:
        raise TypeError(
            f"[{function}] expected target.num_rows as an integer >= 1, got {checks.summary(rows)}"
        )
    return int(rows)


def batch_size(function: str, value: int | None, rows: int | None) -> int | None:
    """Return the rows of a batch; None: all there are, whatever their number.

    So is the default of those that take minibatches where there are fewer rows.
    """
    if value is None:
        return rows
    size = checks.integer(function, "batch_size", value, minimum=1)
    if rows is None:
        raise ValueError(
            f"[{function}] expected batch_size=None for a target without num_rows, got {size}"
        )
    if size == BATCH_SIZE:
        return min(size, rows)
    if size > rows:
        raise ValueError(
            f"[{function}] expected batch_size <= {rows}, the rows of the data, or None for "
            f"all of them, got {size}"
        )
    return size


def starts(function: str, init: Any, *arguments: Any, **options: Any) -> Any:
    """Return the result of `init._starts`, or with options of `init._fitted`, checked."""
    found = (init._fitted if options else init._starts)(*arguments, **options)
    positions = found[0] if options and isinstance(found, tuple) and len(found) == 2 else found
    if not hasattr(positions, "ndim") or (options and positions is found):
        raise TypeError(
            f"[{function}] expected init as positions, a fit or 'ensemble', got "
            f"{checks.summary(init)}, which gave {checks.summary(found)} for positions"
        )
    return found


def check_progress(function: str, progress: object) -> None:
    """Raise TypeError unless `progress` is a bool, None or a function to call."""
    if isinstance(progress, type) or not (
        progress is None or isinstance(progress, bool | np.bool_) or callable(progress)
    ):
        raise TypeError(
            f"[{function}] expected progress as bool, callable or None, got "
            f"{checks.summary(progress)}"
        )


def check_resume(function: str, resume: object) -> None:
    """Raise TypeError unless `resume` is None, draws or a state of a sampler."""
    if resume is None or isinstance(resume, Draws | AnyState):
        return
    hint = ""
    if isinstance(resume, str | os.PathLike):
        hint = ": resume=rb.load(path) continues saved draws, or the run in a folder"
    elif callable(getattr(resume, "_starts", None)):
        hint = ": chains start at a fit with init=fit"
    raise TypeError(
        f"[{function}] expected resume as Draws or a state, got {checks.summary(resume)}{hint}"
    )


def same_kind(function: str, density: Density, position: Array) -> None:
    """Raise for a state's position (C, P) of another size, array library or dtype."""
    xp = density.xp
    if position.shape[1] != density.dim:
        hint = ""
        if getattr(density.target, "marginal", None) is not None or density.full_dim != density.dim:
            hint = (
                ": one of the two samplers integrates the last layer out. HMC and NUTS do so if no "
                "step, length or mass is given and it pays; Posterior(marginalize=) decides for all"
            )
        raise ShapeError(
            f"[{function}] expected a state of dim {density.dim}, got {position.shape[1]}{hint}"
        )
    if namespace(position, function=function) is not xp or host_dtype(position) != density.dtype:
        raise DTypeError(
            f"[{function}] expected a state of {xp.__name__} {density.dtype} arrays, "
            f"got {checks.summary(position)}"
        )


def same_density(density: Density, state: Any) -> bool:
    """Return whether a state says that it is of the same part of a target's parameters."""
    now, before = density.fingerprint or {}, getattr(state, "target", None) or {}
    return now.get("integrated") == before.get("integrated")


def same_target(function: str, density: Density, before: dict[str, str] | None) -> None:
    """Raise for the state of a run on another target, or with other kernels.

    `before` is the fingerprint of that target. Where one of the two is None nothing is known.
    """
    now = density.fingerprint
    if before is None or now is None:
        return
    other = [name for name, value in now.items() if before.get(name, value) != value]
    if other == ["instruction set"]:
        name = other[0]
        raise ValueError(
            f"[{function}] expected a state of the same {name}, got one of {before[name]} where "
            f"{now[name]} computes: rounding would change within one run. RIBBIT_ISA="
            f"{before[name]} in the environment continues it bit-identically if the processor "
            "supports it; init=state.position starts another run here"
        )
    if other:
        raise ValueError(
            f"[{function}] expected a state of this target, got one with another "
            f"{', '.join(other)}: to start from where it ended give init=state.position"
        )
