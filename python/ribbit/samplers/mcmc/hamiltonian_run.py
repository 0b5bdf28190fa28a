"""Many transitions of HMC in one native call, with the adaptation of warmup between them.

Around a transition of a small network Python takes as long as the transition; a run of them gives
the same states and statistics, bit for bit. Shapes: C chains, P parameters, K transitions that are
told of.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit.density import Density
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array
from ribbit.results.state import DualAveraging, State
from ribbit.samplers.mcmc.tuning import Tuning

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["advance_together", "goes_together"]


def goes_together(density: Density, tuning: Tuning, step_size_jitter: float) -> bool:
    """Return whether the target makes runs, and knows all that changes between transitions."""
    return density.run is not None and not tuning.adapts_mass and step_size_jitter == 0.0


def advance_together(
    density: Density,
    tuning: Tuning,
    state: State,
    stops: npt.NDArray[np.int64],
    kept: npt.NDArray[Any] | None,
    *,
    divergence_threshold: float,
    seconds: float,
    guard: InterruptGuard | None,
) -> tuple[State, dict[str, Array]]:
    """Make the transitions up to the last of `stops`, all of warmup or none.

    After `seconds` the call ends at the next of `stops`: K of them are told of.

    Parameters
    ----------
    kept : (C, S, Q) array or None
        To be filled with the positions there, Q parameters of a kept draw each.

    Returns
    -------
    state : State
    info : dict of (C, K) arrays
        Statistics of the transitions at the first K of the S `stops`.
    """
    count = int(stops[-1]) - state.step
    dual = None if state.adaptation is None else state.adaptation.dual
    rule = tuning.rule(state.warmup)
    position, terms, grad, step_size, reals, counts, flags, sums, made, told = density.call(
        density.run,
        guard,
        np.ascontiguousarray(state.position),
        np.ascontiguousarray(state.grad),
        np.ascontiguousarray(state.terms),
        None if state.inverse_mass is None else np.ascontiguousarray(state.inverse_mass),
        seed=state.seed,
        step=state.step,
        chains=state.chains,
        threshold=divergence_threshold,
        count=count,
        step_size=np.ascontiguousarray(state.step_size),
        num_steps=np.ascontiguousarray(state.num_steps),
        capped=np.ascontiguousarray(state.capped),
        sums=None if dual is None else _sums(dual),
        updates=0 if dual is None else dual.count,
        settled=0 if dual is None else dual.settled,
        ends=state.step + count >= state.warmup,
        keep=stops - state.step - 1,
        kept=kept,
        seconds=seconds,
        **rule,
    )
    end = state.step + made
    lp, energy, error, acceptance, sizes = reals[:, :, :told]
    accepted, diverging, capped = flags[:, :, :told]
    lengths, divergences = counts[:, :, :told]
    info = {
        "lp": lp,
        "acceptance_rate": acceptance,
        "accepted": accepted,
        "diverging": diverging,
        "energy": energy,
        "energy_error": error,
        "n_steps": lengths,
        "step_size": sizes,
        "capped": capped,
        "divergences": divergences,
    }
    state = dataclasses.replace(
        state,
        position=position,
        logdensity=lp[:, -1].copy(),
        grad=grad,
        terms=terms,
        step=end,
    )
    if dual is not None:
        settled = dual.settled + max(0, min(made, end - rule["brief_until"]))
        log_step, log_average, mean_error, centre, log_settled = sums
        dual = DualAveraging(
            log_step, log_average, mean_error, centre, log_settled, dual.count + made, settled
        )
    if state.adaptation is not None:
        state = tuning.adapted(state, dual, step_size)
    return state, info


def _sums(dual: DualAveraging) -> npt.NDArray[np.float64]:
    return np.stack([dual.log_step, dual.log_average, dual.error, dual.centre, dual.log_settled])
