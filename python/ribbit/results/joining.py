"""Draws of several runs made one: those that follow each other, or chains side by side."""

# Shapes: C chains, D draws, P parameters.

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.keywords import explain
from ribbit._arrays.namespace import host_dtype, namespace, to_host
from ribbit.protocols import Array
from ribbit.results.draws import Draws
from ribbit.results.lazy import join_arrays
from ribbit.results.outcome import superchains_of
from ribbit.results.prediction import Prediction
from ribbit.results.state import AnyState, State

__all__ = ["concatenate"]

_NAME = "concatenate"
_AXES = {"chains": 0, "draws": 1}
# Settings in which runs of one sampler may differ.
_FREE = {"num_draws", "chains", "seed", "start", "stopped", "until", "joined", "versions", "pilot"}
_FREE |= {"monitored", "faults", "caller"}


def concatenate(draws: Sequence[Draws], axis: str = "draws") -> Draws:
    """Join draws of consecutive runs, or chains of several runs.

    One longer run would give bit-identical positions and statistics, and the same predictions up to
    rounding.

    Parameters
    ----------
    draws : sequence of Draws
        Draws of one sampler with the same settings on one target (compared by the fingerprints in
        their states), in memory or in a folder.
    axis : str
        "draws": each run continued the one before (``resume=``); the state is the last one.
        "chains": runs of one seed with different chain ids (``chains=[4, 5, 6, 7]``) and equally
        many draws; the state has all chains.

    Returns
    -------
    Draws
        ``resume=`` continues all its chains. Warmup is kept if all runs have it (or had no warmup
        to make), predictions if all runs collected them at the same inputs.

    Raises
    ------
    TypeError
        For arguments that are not draws of a sampler.
    ValueError
        For draws with another target, sampler, setting, seed or dtype, which the message names; for
        draws that are not consecutive, and for chain ids that occur twice.

    Examples
    --------
    >>> import numpy as np
    >>> import ribbit as rb
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> hmc = rb.HMC(target)
    >>> first = hmc.sample(100, chains=2, progress=False)
    >>> more = hmc.sample(50, resume=first, progress=False)
    >>> len(rb.concatenate([first, more]))
    150
    >>> others = hmc.sample(100, chains=[2, 3], progress=False)
    >>> rb.concatenate([first, others], axis="chains").positions.shape
    (4, 100, 2)
    """
    parts = checks.items(_NAME, "draws", draws, "Draws, such as [a, b]")
    for part in parts:
        if not isinstance(part, Draws):
            raise TypeError(f"[{_NAME}] expected draws as Draws, got {checks.summary(part)}")
        part._check_lengths(_NAME)
        if part.state is None:
            raise TypeError(f"[{_NAME}] expected draws of a sampler, got draws of a fit")
    if not parts:
        raise ValueError(f"[{_NAME}] expected draws, got none")
    checks.choice(_NAME, "axis", axis, _AXES)
    _check_same(parts)
    if axis == "draws":
        _check_successive(parts)
    else:
        _check_distinct(parts)
    return parts[0] if len(parts) == 1 else _joined(parts, axis)


def _joined(parts: tuple[Draws, ...], axis: str) -> Draws:
    """Join what has been checked."""
    last, number = parts[-1], _AXES[axis]
    along_draws = axis == "draws"
    positions = join_arrays([part.positions for part in parts], number)
    warm_positions, warm_stats = _warmup(parts, axis)
    predictive = next((p.predictive for p in parts if p.predictive is not None), None)
    seconds = [part.seconds for part in parts if part.seconds is not None]
    return Draws(
        positions=positions,
        stats=_stats([part.stats for part in parts], number),
        complete=last.complete if along_draws else all(part.complete for part in parts),
        state=last.state if along_draws else _state([part.state for part in parts]),
        settings=_settings(parts, axis),
        predictive=predictive,
        prediction=_prediction(parts, positions, axis),
        warmup_positions=warm_positions,
        warmup_stats=warm_stats,
        seconds=sum(seconds) if len(seconds) == len(parts) else None,
        monitored=_monitored(parts, number),
    )


def _check_same(parts: tuple[Draws, ...]) -> None:
    """Raise for another kind of state, target, size or setting, named."""
    first = parts[0]
    for number, part in enumerate(parts[1:], 1):
        for name, one, other in (
            ("sampler", first.settings.get("sampler"), part.settings.get("sampler")),
            ("kind of state", type(first.state).__name__, type(part.state).__name__),
            ("dim", first.positions.shape[2], part.positions.shape[2]),
            ("dtype", str(host_dtype(first.positions)), str(host_dtype(part.positions))),
            ("seed", _state_of(first).seed, _state_of(part).seed),
        ):
            _same(number, name, one, other)
        before, now = _state_of(first).target or {}, _state_of(part).target or {}
        for name in before.keys() & now.keys():
            if before[name] != now[name]:
                raise ValueError(
                    f"[{_NAME}] expected draws of one target, got another {name} in draws {number}"
                )
        for name in sorted((first.settings.keys() | part.settings.keys()) - _FREE):
            _same(number, name, first.settings.get(name), part.settings.get(name))
        _same(number, "names of statistics", sorted(first.stats), sorted(part.stats))


def _same(number: int, name: str, one: object, other: object) -> None:
    if one != other:
        raise ValueError(
            f"[{_NAME}] expected one {name}, got {one!r:.60} in draws 0 and {other!r:.60} in "
            f"draws {number}"
        )


def _check_successive(parts: tuple[Draws, ...]) -> None:
    """Raise unless each begins where the one before ends, of the same chains."""
    before: int | None = None  # draws that the calendar counts up to the end of the one before
    for number, part in enumerate(parts):
        state = _state_of(part)
        ids = _state_of(parts[0]).chains.tolist()
        if state.chains.tolist() != ids:
            raise ValueError(
                f"[{_NAME}] expected chains {ids} in all draws, got {state.chains.tolist()} in "
                f"draws {number} (axis='chains' joins runs of other chains)"
            )
        regular = "cyclical" not in str(part.settings.get("schedule", ""))
        thin = int(part.settings.get("thin", 1)) if regular else 0
        end = max(0, state.step - state.warmup) // thin if thin else state.step
        begin = end - len(part) if thin else None
        wrong = before is not None and (end < before if begin is None else begin != before)
        if wrong or (begin is not None and begin < 0):
            raise ValueError(
                f"[{_NAME}] expected draws that follow each other (resume=), got draws {number} "
                f"which begin behind draw {begin} of the run where those before end with {before}"
                if begin is not None
                else f"[{_NAME}] expected draws in their order, got draws {number} which end first"
            )
        before = end


def _check_distinct(parts: tuple[Draws, ...]) -> None:
    """Raise unless chains differ, and all have made the same steps."""
    first = _state_of(parts[0])
    seen: set[int] = set()
    for number, part in enumerate(parts):
        state = _state_of(part)
        ids = set(state.chains.tolist())
        if seen & ids:
            raise ValueError(
                f"[{_NAME}] expected distinct chain ids, got {sorted(seen & ids)} again in draws "
                f"{number}: chains of the same seed and id are the same (chains=[4, 5, ...] makes "
                "others)"
            )
        seen |= ids
        _same(number, "number of draws", len(parts[0]), len(part))
        kept = [p.positions.shape[1] for p in (parts[0], part)]
        _same(number, "number of kept draws", *kept)
        _same(number, "step of the state", first.step, state.step)


def _warmup(parts: tuple[Draws, ...], axis: str) -> tuple[Array | None, dict[str, Array] | None]:
    """Join what was kept of warmup; a run that went on behind it had none to keep."""
    having = list(parts)
    if axis == "draws":
        having = [parts[0]]
        for before, part in itertools.pairwise(parts):
            state = _state_of(before)
            if part.warmup_positions is not None or state.step < state.warmup:
                having.append(part)
    if any(part.warmup_positions is None for part in having):
        return None, None
    number = _AXES[axis]
    positions = [part.warmup_positions for part in having]
    if axis == "chains" and len({p.shape[1] for p in positions if p is not None}) > 1:
        return None, None
    stats = [part.warmup_stats or {} for part in having]
    return join_arrays(positions, number), _stats(stats, number)


def _stats(parts: list[dict[str, Array]], axis: int) -> dict[str, Array]:
    return {name: join_arrays([part[name] for part in parts], axis) for name in parts[0]}


def _monitored(parts: tuple[Draws, ...], axis: int) -> Array | None:
    """Join what was monitored, if at the same inputs and at the same share of the draws."""
    found = [part.monitored for part in parts if part.monitored is not None]
    how = [part.settings.get("monitored", {}) for part in parts]
    every = int(how[0].get("every", 1))
    even = axis == 0 or all(len(part) % every == 0 for part in parts[:-1])
    if len(found) < len(parts) or how.count(how[0]) < len(how) or not even:
        return None
    return np.concatenate(found, axis=axis)


def _settings(parts: tuple[Draws, ...], axis: str) -> dict[str, Any]:
    first, last = parts[0].settings, parts[-1].settings
    settings = {**last, "joined": {"axis": axis, "parts": len(parts)}}
    if axis == "draws":
        settings["num_draws"] = sum(len(part) for part in parts)
        start = first.get("start")
    else:
        settings["chains"] = [int(i) for p in parts for i in _state_of(p).chains]
        starts = [part.settings.get("start") for part in parts]
        start = starts[0] if starts.count(starts[0]) == len(starts) else None
        shared = _superchains(parts)
        if shared is not None:
            start = {**(start or {}), "superchains": shared}
        settings.pop("until", None)
        settings.pop("stopped", None)
    settings.pop("start", None)
    faults = [part.settings.get("faults", {}) for part in parts]
    settings["faults"] = {k: max(f.get(k, 0.0) for f in faults) for k in set().union(*faults)}
    return settings if start is None else {**settings, "start": start}


def _superchains(parts: tuple[Draws, ...]) -> list[int] | None:
    """Which chains have shared a start, of all parts; None where each had its own."""
    found: list[int] = []
    shared = False
    for part in parts:
        chains = part.positions.shape[0]
        own = superchains_of(part.settings, chains)
        shared |= own is not None
        numbers = np.arange(chains) if own is None else own
        found += (numbers + (max(found) + 1 if found else 0)).tolist()
    return found if shared else None


def _prediction(parts: tuple[Draws, ...], positions: Any, axis: str) -> Prediction | None:
    """Join what was gathered while sampling; None where one has nothing, or other inputs."""
    found = [None if part.prediction is None else part.prediction.running for part in parts]
    running = [one for one in found if one is not None]
    if len(running) < len(parts):
        return None
    x = to_host(running[0].x)
    if not all(np.array_equal(x, to_host(one.x)) for one in running[1:]):
        return None
    joined = running[0]
    for one in running[1:]:
        joined = joined.joined(one, axis=axis)
    kept = positions if positions.shape[1] else None
    return Prediction(joined.predictive, joined.x, positions=kept, running=joined)


def _state_of(part: Draws) -> AnyState:
    assert part.state is not None
    return part.state


def _state(states: Sequence[Any]) -> Any:
    """Return the state of all chains: arrays end to end, what all share once."""
    if isinstance(states[0], State):
        try:
            return State._merged(states)
        except ValueError as error:
            raise ValueError(str(error).replace("[State]", f"[{_NAME}]")) from None
    values = {
        field.name: _field(field.name, [getattr(state, field.name) for state in states])
        for field in dataclasses.fields(states[0])
    }
    return dataclasses.replace(copy.copy(states[0]), **values)


def _field(name: str, values: list[Any]) -> Any:
    first = values[0]
    if any(type(value) is not type(first) for value in values):
        raise ValueError(f"[{_NAME}] expected one kind of {name} in all states, got several")
    if first is None or isinstance(first, int | float | str | dict):
        if any(value != first for value in values):
            raise ValueError(f"[{_NAME}] expected one {name} in all states, got several")
        return first
    if dataclasses.is_dataclass(first):
        return _state(values)
    if name == "inverse_mass" and first.ndim == 1:  # (P,), of all chains
        if any(not np.array_equal(to_host(first), to_host(value)) for value in values):
            raise ValueError(f"[{_NAME}] expected one {name} in all states, got several")
        return first
    return namespace(*values).concat(values, axis=0)


explain(globals())
