"""The bias of unadjusted steps, found by shorter ones from where the chains are."""

# Shapes: C chains, M terms of the log density.

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import to_host
from ribbit.density import Density
from ribbit.progress import Progress, ProgressOption, check_progress
from ribbit.results.discretization_bias import DiscretizationBias
from ribbit.results.draws import Draws
from ribbit.results.state import MicrocanonicalState
from ribbit.samplers.mcmc.microcanonical import Unadjusted

if TYPE_CHECKING:
    import numpy.typing as npt


_NAME = "MCLMC.discretization_bias"
# Of two chains of LeNet-5 on 100 digits that had stayed out of narrow parts the log likelihood rose
# by 12 nats in 1,500 steps of a third, and by 85 in as many of a tenth (by hand).
_SHORTER = 10
_LEAST, _UNIT = 1_000, 100  # short steps: fewer say nothing; as long a way has whole steps


class Way(NamedTuple):
    """Chains on a way from their last positions."""

    # (C, n, M) float64: after each of n equal parts of the second half of the way
    terms: npt.NDArray[np.float64]
    gradients: int  # of all chains, on all of the way


def state_of(draws: Any) -> MicrocanonicalState:
    """Return where unadjusted chains past their warmup ended."""
    if not isinstance(draws, Draws):
        raise TypeError(f"[{_NAME}] expected Draws, got {checks.summary(draws)}")
    state = draws.state
    if not isinstance(state, MicrocanonicalState):
        got = "draws without one" if state is None else f"draws of {draws.settings['sampler']}"
        raise TypeError(f"[{_NAME}] expected draws of MCLMC with their state, got {got}")
    if state.velocity is None:
        raise ValueError(f"[{_NAME}] expected draws without adjusted=True: these have no bias")
    if state.step <= state.warmup:
        raise ValueError(
            f"[{_NAME}] expected draws past their warmup, got a run that ended after "
            f"{state.step} of {state.warmup} steps of it"
        )
    if len(state.chains) < 2:
        raise ValueError(
            f"[{_NAME}] expected draws of two chains or more, got one: their spread is the error"
        )
    return state


def count_of(num_steps: int | None, state: MicrocanonicalState) -> int:
    """Return how many short steps each chain makes."""
    if num_steps is None:
        return max(2 * _LEAST, round(0.1 * state.step / _LEAST) * _LEAST)
    count = checks.integer(_NAME, "num_steps", num_steps, minimum=_LEAST, maximum=2**31)
    if count % _UNIT:
        raise ValueError(f"[{_NAME}] expected num_steps as a multiple of {_UNIT}, got {count}")
    return count


def set_by(settings: dict[str, Any], state: MicrocanonicalState) -> str:
    """Return the option that the step sizes of most chains come from."""
    if settings["step_size"] != "auto":
        return "step_size"
    limit = settings.get("step_limit")
    turns = state.step_size / state.decoherence_length
    if limit is not None and np.median(turns) > 0.99 * limit:
        return "step_limit"
    return "desired_energy_var"


def discretization_bias(
    density: Density,
    moves: Unadjusted,
    state: MicrocanonicalState,
    num_steps: int,
    *,
    set_by: str,
    progress: ProgressOption,
) -> DiscretizationBias:
    """Compare `num_steps` steps of a tenth the size with as long a way of the chains' own."""
    # The error of a law that is sampled with steps of size e is of order e^2, so that the
    # difference is 1 - 1/100 of the bias. Both ways begin at the same positions, which takes out
    # what differs between the modes of the chains.
    check_progress(_NAME, progress)
    own_steps = num_steps // _SHORTER
    reporter = Progress(
        progress,
        total=num_steps + own_steps,
        chains=len(state.chains),
        title="MCLMC discretization bias",
    )
    with reporter:
        shorter = dataclasses.replace(state, step_size=state.step_size / _SHORTER)
        short = terms_along(moves, shorter, own_steps, _SHORTER, reporter.update)
        # after every step: some integrators go there and back where steps are longer than a turn
        own = terms_along(
            moves, state, own_steps, 1, lambda done, info: reporter.update(num_steps + done, info)
        )
    spread = short.terms.std(axis=1)
    floor = 1e-12 * np.abs(short.terms).max(axis=1)
    return DiscretizationBias(
        names=_names(getattr(density.target, "term_names", None), spread.shape[1]),
        by_chain=(own.terms.mean(axis=1) - short.terms.mean(axis=1)) / (1.0 - _SHORTER**-2),
        sd=np.sqrt(np.where(spread > floor, spread**2, 0.0).mean(axis=0)),
        num_still=int(np.all(spread <= floor, axis=1).sum()),
        set_by=set_by,
        num_steps=num_steps,
        num_gradients=short.gradients + own.gradients,
    )


def terms_along(
    moves: Unadjusted,
    state: MicrocanonicalState,
    parts: int,
    each: int,
    report: Callable[[int, Any], object],
) -> Way:
    """Make `parts` times `each` steps; the first half of the way is left out."""
    found, gradients = [], 0
    for part in range(parts):
        state, info = moves.advance(state, each, None)
        gradients += each * int(to_host(info["n_steps"]).sum())
        if part >= parts // 2:
            found.append(to_host(state.terms))
        report((part + 1) * each, info)
    return Way(np.stack(found, axis=1), gradients)


def _names(names: Any, count: int) -> tuple[str, ...]:
    """Names of `count` terms: the target's, or their numbers."""
    if names is not None and len(names) == count:
        return tuple(names)
    return ("log density",) if count == 1 else tuple(f"term {i}" for i in range(count))
