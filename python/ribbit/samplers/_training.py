"""Epochs of Adam on the members of a batch of weight vectors, until done or Ctrl-C."""

from __future__ import annotations

import warnings

import numpy as np

from ribbit import _backend, _checks
from ribbit.protocols import Array
from ribbit.samplers._chunk import Chunk
from ribbit.samplers._interrupt import InterruptGuard
from ribbit.samplers._run import ProgressOption
from ribbit.samplers.state import StochasticState
from ribbit.samplers.stochastic import Stepper

__all__ = ["train"]


def train(
    function: str,
    title: str,
    stepper: Stepper,
    num_epochs: int,
    *,
    seed: int,
    start: Array | None,
    members: int,
    resume: StochasticState | None,
    progress: ProgressOption,
) -> tuple[StochasticState, bool]:
    """Train `members` weight vectors together.

    Parameters
    ----------
    function, title : str
        Names for errors and for the progress display.
    stepper : Stepper
    num_epochs : int
    seed : int
    start : (P,) or (M, P) array or None
        None: ``target.init`` with the member's number as chain.
    members : int
        M.
    resume : StochasticState or None
        Goes on from there, bit for bit.
    progress
        As for ``sample``.

    Returns
    -------
    state : StochasticState
    complete : bool
        False after Ctrl-C, with a warning.
    """
    from ribbit.progress import open_progress

    epochs = _checks.integer(function, "num_epochs", num_epochs, minimum=1, maximum=2**39)
    seed = _checks.seed(function, seed)
    ids = np.arange(members, dtype=np.uint32)
    with InterruptGuard() as guard:
        if resume is not None:
            state = stepper.adopt(function, resume)
        else:
            density = stepper.density
            position = density.target.init(seed=seed, chains=members) if start is None else start
            position = np.asarray(position, density.dtype)
            if position.ndim == 1:
                position = np.tile(position, (members, 1))
            if position.shape != (members, density.dim):
                raise ValueError(
                    f"[{function}] expected init ({density.dim},) or ({members}, {density.dim}), "
                    f"got shape {position.shape}"
                )
            state = stepper.start(function, position.copy(), seed, ids, 0, guard)
        first = state.step
        end = first + epochs * stepper.batches
        chunk = Chunk()
        with open_progress(
            progress, total=end - first, chains=members, title=title, fit=True
        ) as reporter:
            while state.step < end and not guard.requested:
                count = chunk.size(end - state.step)
                try:
                    state, info = stepper.advance(state, count, guard)
                except _backend.Interrupted:
                    break  # the steps of this call are discarded
                done = state.step - first
                reporter.update(done, {"step_size": info["step_size"]}, float(done * members))
                chunk.made(count)
    complete = state.step == end
    if not complete:
        warnings.warn(
            f"[{function}] interrupted after {(state.step - first) // stepper.batches} of {epochs} "
            "epochs; returning the fit so far (go on with resume=fit)",
            RuntimeWarning,
            stacklevel=3,
        )
    return state, complete
