"""Find which members of a target belong to the density, or the predictions, that it defines."""

# A class, a wrapper with ``__getattr__`` or an instance may replace `value_and_grad` and keep the
# native trajectories of another density. Such members are not the target's own.

from __future__ import annotations

import functools
import types
from typing import Any

DENSITY = ("value_and_grad", "terms_and_grad")
PREDICTION = ("predictive", "outputs", "log_likelihood")
# Another target that is made of this one would lose a replaced member.
WHOLE = (*DENSITY, *PREDICTION, "init", "unravel")

# Members that look like the density, or like predictions, by the member that is called instead.
_UNHEARD = {
    "value_and_grad": (
        "log_density",
        "log_prior",
        "log_likelihood",
        "prior",
        "likelihood",
        "temperature",
        "likelihood_temperature",
    ),
    "predictive": ("outputs",),
}
_INSTEAD = {
    "value_and_grad": ", or use HMC, NUTS or MCLMC, which call value_and_grad",
    "predictive": ", or use draws(...).predict(x), which calls predictive",
}
_ABSENT, _FORWARDED = object(), object()


def own(target: Any, name: str, of: tuple[str, ...] = DENSITY) -> Any:
    """Return member `name` of a target, None if the members `of` were replaced without it."""
    value = getattr(target, name, None)
    return value if value is not None and followed(target, name, of) else None


def followed(target: Any, name: str, of: tuple[str, ...] = DENSITY) -> bool:
    """Return whether member `name` came with the members `of` as they are, or later."""
    places = _places(target)
    member = _find(target, places, name)
    now = [_find(target, places, key) for key in of]
    # The class that brought the member is the deepest that has it next to one of the others.
    for depth in range(len(places) - 1, -1, -1):
        if _find(target, places[depth:], name) is not member:
            continue
        then = [_find(target, places[depth:], key) for key in of]
        if any(part is not _ABSENT for part in then):
            if any(a is not b for a, b in zip(then, now, strict=True) if a is not _ABSENT):
                return False
            break
    inner = _inner(target, of) if member is _FORWARDED else None
    return inner is None or followed(inner, name, of)


def needed(function: str, target: Any, name: str, of: tuple[str, ...] = DENSITY) -> None:
    """Raise TypeError if a target replaces one of the members `of` and inherits member `name`."""
    if getattr(target, name, None) is None or followed(target, name, of):
        return
    main = next(key for key in of if not followed(target, name, (key,)))
    instead = _INSTEAD.get(main if name != main else "", "")
    raise TypeError(
        f"[{function}] {type(target).__name__} replaces {main} but not {name}, which {function} "
        f"calls: replace both{instead}"
    )


def described(predictive: Any) -> dict[str, Any] | None:
    """Return the description of predictions for a file; None if it would be of other ones."""
    describe = own(predictive, "describe", PREDICTION)
    return describe() if callable(describe) else None


def hidden(target: Any) -> dict[str, Any] | None:
    """Return the attributes of an instance that replace members of its class; None: it has none."""
    kind = type(target)
    return {
        name: value
        for name, value in vars(target).items()
        if hasattr(kind, name) and not isinstance(getattr(kind, name), functools.cached_property)
    } or None


def check(function: str, target: Any) -> None:
    """Raise TypeError if a target replaces a member that its density does not call."""
    for main, names in _UNHEARD.items():
        # A user's method may call members that a subclass replaces; ours do not.
        if not _ours(getattr(target, main, None)):
            continue
        places = _places(target)
        for name in names:
            member = _find(target, places, name)
            if member is _ABSENT or member is _FORWARDED or _ours(member):
                continue
            # Nothing here has it: a class that adds it means the density.
            if name == "log_density" or not followed(target, main, (name,)):
                raise TypeError(
                    f"[{function}] {type(target).__name__} replaces {name}, which {main} does not "
                    f"call: replace {main} too"
                )


def _places(target: Any) -> list[Any]:
    """Return the places of members: the instance, its classes, None for a `__getattr__`."""
    places: list[Any] = [getattr(target, "__dict__", {}), *map(vars, type(target).__mro__)]
    if any("__getattr__" in place for place in places[1:]):
        places.append(None)
    return places


def _find(target: Any, places: list[Any], name: str) -> Any:
    depth = _depth(target, places, name)
    if depth == len(places):
        return _ABSENT
    return _FORWARDED if places[depth] is None else places[depth][name]


def _depth(target: Any, places: list[Any], name: str) -> int:
    """Return the index of the first place that has a member, else the number of places."""
    for depth, place in enumerate(places):
        if place is None:
            return depth
        if name in place:
            cached = isinstance(getattr(type(target), name, None), functools.cached_property)
            if not (cached and place is getattr(target, "__dict__", None)):
                return depth
    return len(places)


def _inner(target: Any, of: tuple[str, ...]) -> Any:
    """Return the object that a wrapper's members `of` belong to, None if that is not known."""
    for name in of:
        inner = getattr(getattr(target, name, None), "__self__", None)
        if inner is not None and inner is not target:
            return inner
    return None


def _ours(member: Any) -> bool:
    """Return whether a member is a method or a property of this package."""
    function = member.fget if isinstance(member, property) else member
    if not isinstance(function, types.FunctionType | types.MethodType):
        return False
    return (function.__module__ or "").partition(".")[0] == "ribbit"
