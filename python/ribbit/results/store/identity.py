"""Whether a folder is of the run that is asked for: settings as plain values, compared one by one.

Arrays are compared by a digest.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from ribbit._arrays.namespace import is_array, to_host

__all__ = ["difference", "plain"]


def plain(value: Any) -> Any:
    """Return what JSON knows: numbers, texts, lists and dicts as they are, arrays as digests."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return repr(value)  # NaN and infinity too
    if isinstance(value, np.generic):
        return plain(value.item())
    if is_array(value):
        import hashlib  # not with ribbit: slow to load

        host = np.ascontiguousarray(to_host(value))
        digest = hashlib.blake2b(host.tobytes(), digest_size=16).hexdigest()
        return f"{host.dtype} {host.shape} {digest}"
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(v) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        # What a state, draws or a fit are made of; not the target behind them, nor the clock.
        skipped = ("predictive", "prediction", "target", "settings", "seconds", "history", "stats")
        return {
            "kind": type(value).__name__,
            **{k: plain(v) for k, v in own.items() if k not in skipped},
        }
    return type(value).__name__


def difference(
    function: str,
    folder: Path,
    before: dict[str, Any],
    now: dict[str, Any],
    kept: int | None = None,
) -> ValueError | None:
    """Return an error that names the first value of `now` that differs from the folder's.

    `kept`: draws in the folder.
    """
    before, now = (_given(json.loads(json.dumps(values))) for values in (before, now))
    for key in [*now, *(k for k in before if k not in now)]:
        old, new = before.get(key), now.get(key)
        if old == new:
            continue
        if key == "target" and isinstance(old, dict) and isinstance(new, dict):
            return _other_target(function, folder, old, new)
        name, old, new = _first(key, old, new)
        return ValueError(
            f"[{function}] expected the run in {folder}, got another one with {name}="
            f"{new!r:.80} where it was {old!r:.80}: {_advice(folder, name, old, new, kept)}"
        )
    return None


def _advice(folder: Path, name: str, old: Any, new: Any, kept: int | None) -> str:
    """Return how to make more draws or epochs of a run, else how to keep another run."""
    more = isinstance(old, int) and isinstance(new, int) and new > old
    if name in ("num_draws", "num_epochs") and more:
        call = f"fit({new - old}" if kept is None else f"sample({new - kept}"
        joined = "" if kept is None else "; rb.concatenate([draws, more]) has all draws"
        names = ("fit", "more") if kept is None else ("draws", "more")
        return (
            f"to continue, {names[0]} = rb.load({str(folder)!r}), then {names[1]} = "
            f"...{call}, resume={names[0]}, store=another folder){joined}"
        )
    if name == "seed":
        return f"seed={old} resumes it; give another run a folder of its own"
    return "give it a folder of its own"


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is None, at any depth: an option that did not exist yet is one not given."""
    return {
        key: _given(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }


def _first(key: str, old: Any, new: Any) -> tuple[str, Any, Any]:
    """Return the name and both values of the first difference inside."""
    while isinstance(old, dict) and isinstance(new, dict):
        inner = next(k for k in [*new, *old] if old.get(k) != new.get(k))
        key = inner if key == "settings" else f"{key}.{inner}"
        old, new = old.get(inner), new.get(inner)
    return key, old, new


def _other_target(
    function: str, folder: Path, old: dict[str, str], new: dict[str, str]
) -> ValueError:
    names = [k for k in [*new, *old] if old.get(k) != new.get(k)]
    other = [name for name in dict.fromkeys(names) if name != "instruction set"]
    if "shards" in other:
        other = ["number of shards"]  # by which rows have their digests
    if other:
        return ValueError(
            f"[{function}] expected the target of the run in {folder}, got one with another "
            f"{' and '.join(other)}: give it a folder of its own"
        )
    return ValueError(
        f"[{function}] expected the instruction set of the run in {folder}, "
        f"{old['instruction set']}, got {new['instruction set']}: rounding would change within "
        f"one run. RIBBIT_ISA={old['instruction set']} in the environment continues it "
        "bit-identically if the processor supports it"
    )
