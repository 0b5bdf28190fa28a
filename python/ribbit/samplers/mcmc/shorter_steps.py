"""The bias of unadjusted steps, found by shorter ones from where the chains are.

Shapes: C chains, M terms of the log density.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays.namespace import to_host
from ribbit.results.state import MicrocanonicalState
from ribbit.results.step_bias import StepBias
from ribbit.samplers.mcmc.microcanonical import Unadjusted

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["UNIT", "step_bias"]

_SHORTER = 10  # times: narrow parts that steps a third as long hardly enter let these in at once
_LOOKS = 100  # at the terms, on either way; the first half is left out
UNIT = _SHORTER * _LOOKS
"""Short steps come in multiples of this, so that both ways are equally long."""


def step_bias(
    moves: Unadjusted, state: MicrocanonicalState, num_steps: int, *, names: Any
) -> StepBias:
    """Compare `num_steps` steps of a tenth the size with as long a way of the chains' own.

    The error of a law that is sampled with steps of size e is of order e^2, so that the difference
    is 1 - 1/100 of the bias. Both ways begin at the same positions, which takes out what differs
    between the modes of the chains.
    """
    shorter = dataclasses.replace(state, step_size=state.step_size / _SHORTER)
    short, gradients = _terms(moves, shorter, num_steps // _LOOKS)
    own, more = _terms(moves, state, num_steps // UNIT)
    share = 1.0 - 1.0 / _SHORTER**2
    by_chain = (own.mean(axis=1) - short.mean(axis=1)) / share
    sd = np.sqrt(0.5 * (own.var(axis=1) + short.var(axis=1)).mean(axis=0))
    return StepBias(
        names=_names(names, by_chain.shape[1]),
        by_chain=by_chain,
        sd=sd,
        num_steps=num_steps,
        num_gradients=gradients + more,
    )


def _terms(
    moves: Unadjusted, state: MicrocanonicalState, every: int
) -> tuple[npt.NDArray[np.float64], int]:
    """Return terms (C, looks, M), `every` steps apart in the second half of the way; gradients."""
    found, gradients = [], 0
    for _ in range(_LOOKS):
        state, info = moves.advance(state, every, None)
        found.append(to_host(state.terms))
        gradients += every * int(to_host(info["n_steps"]).sum())
    return np.stack(found[_LOOKS // 2 :], axis=1), gradients


def _names(names: Any, count: int) -> tuple[str, ...]:
    """Names of `count` terms: the target's, or their numbers."""
    if names is not None and len(names) == count:
        return tuple(names)
    return ("log density",) if count == 1 else tuple(f"term {i}" for i in range(count))
