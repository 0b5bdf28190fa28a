"""Epochs of Adam on the members of a batch of weight vectors, until done or Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import dtype_in, from_host, is_array, namespace, to_host
from ribbit._arrays.threads import Interrupted
from ribbit.errors import DTypeError, NonFiniteError, ShapeError
from ribbit.protocols import Array
from ribbit.results.state import StochasticState
from ribbit.samplers.run.caution import warn
from ribbit.samplers.run.interrupt import Carrying, InterruptGuard
from ribbit.samplers.run.record import Chunk
from ribbit.samplers.run.run import ProgressOption
from ribbit.samplers.run.target import Density
from ribbit.samplers.sgmcmc.stepper import Stepper

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["begin", "run_epochs", "train"]


def begin(
    function: str,
    init: Any,
    resume: Any,
    kind: type[Any],
    settings: dict[str, Any],
    members: int,
    seed: int,
) -> Any:
    """Return the start that `init` means; errors for a `resume` that does not fit.

    A fit as `init` gives what it would give a sampler of `members` chains.

    Raises
    ------
    TypeError, ValueError
        For `resume` together with `init`, of another kind, or of other settings.
    """
    if resume is None:
        starts = getattr(init, "starts", None)
        if not callable(starts):
            return init
        start = starts(np.arange(members, dtype=np.uint32), checks.seed(function, seed))
        return start[0, :] if members == 1 and start.ndim == 2 else start
    if init is not None:
        raise ValueError(f"[{function}] expected one of init and resume, got both")
    if not isinstance(resume, kind) or resume.state is None:
        article = "an" if kind.__name__[0] in "AEIO" else "a"
        raise TypeError(
            f"[{function}] expected resume as {article} {kind.__name__} that {function} returned, "
            f"got {checks.summary(resume)}"
        )
    for key, value in settings.items():
        before = resume.settings.get(key, value)
        if before != value:
            raise ValueError(
                f"[{function}] expected resume of the same settings, got {key}={value!r} where it "
                f"was {before!r}: to start from a fit with other settings give it as init"
            )
    return None


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
    fit: Callable[[StochasticState], Any],
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
    fit : function of a state
        The fit so far, for exceptions.

    Returns
    -------
    state : StochasticState
    complete : bool
        False after Ctrl-C, with a warning.
    """
    epochs = checks.integer(function, "num_epochs", num_epochs, minimum=1, maximum=2**39)
    seed = checks.seed(function, seed)
    ids = np.arange(members, dtype=np.uint32)
    with InterruptGuard() as guard:
        if resume is not None:
            state = stepper.adopt(function, resume)
        else:
            density = stepper.density
            if start is None:
                start = density.target.init(seed=seed, chains=members)
            position = _start(function, density, start)
            if position.ndim == 1:
                position = density.xp.concat([position[None, :]] * members, axis=0)
            if position.shape != (members, density.dim):
                raise ShapeError(
                    f"[{function}] expected init ({density.dim},) or ({members}, {density.dim}), "
                    f"got shape {position.shape}"
                )
            if members > 1 and stepper.batches == 1:
                _distinct(function, to_host(position))
            state = stepper.start(function, position, seed, ids, 0, guard)
        first, held = state.step, [state]

        def advance(step: int, count: int) -> Any:
            del step
            try:
                held[0], info = stepper.advance(held[0], count, guard)
            except NonFiniteError as error:  # the steps of this call that were finite
                held[0] = error.state
                raise
            return info["step_size"]

        complete = run_epochs(
            function,
            title,
            first=first,
            epochs=epochs,
            batches=stepper.batches,
            members=members,
            gradients=members,
            advance=advance,
            fit=lambda: fit(held[0]),
            guard=guard,
            progress=progress,
        )
    return held[0], complete


def _distinct(function: str, starts: npt.NDArray[Any]) -> None:
    """Raise when two members start at one place and every step takes all rows."""
    members = starts.shape[0]
    found = np.unique(starts, axis=0).shape[0]
    if found < members:
        raise ValueError(
            f"[{function}] expected a start for each of the {members} members, got {found}: with "
            "all rows in every step nothing else tells them apart, they would be copies. Leave "
            f"init out, give ({members}, P) different starts, or a batch_size"
        )


def run_epochs(
    function: str,
    title: str,
    *,
    first: int,
    epochs: int,
    batches: int,
    members: int,
    gradients: int,
    advance: Callable[[int, int], Array],
    fit: Callable[[], Any],
    guard: InterruptGuard,
    progress: ProgressOption,
) -> bool:
    """Make the steps of some epochs, in calls that Ctrl-C and the display wait for.

    Parameters
    ----------
    function, title : str
        Names for the warning and for the progress display.
    first : int
        Steps done before; an epoch that was interrupted is finished first and not counted.
    epochs, batches : int
        Epochs to make, steps of each.
    members, gradients : int
        Rows of the display; gradients of a step.
    advance : function of (step, count)
        Makes steps and keeps what they give; returns the last step sizes (members,).
    fit : function
        The fit so far: what exceptions carry as their attribute ``fit``.
    guard : InterruptGuard
    progress
        As for ``sample``.

    Returns
    -------
    bool
        False after Ctrl-C, with a warning.
    """
    from ribbit.samplers.run.progress import open_progress

    step, end = first, (first // batches + epochs) * batches
    chunk = Chunk()

    def done() -> tuple[Any, str]:
        return fit(), f"{(step - first) // batches} of {epochs} epochs"

    with (
        Carrying(function, "fit", done, guard),
        open_progress(
            progress, total=end - first, chains=members, title=title, fit=True
        ) as reporter,
    ):
        while step < end and not guard.requested:
            count = chunk.size(end - step)
            try:
                rates = advance(step, count)
            except (Interrupted, KeyboardInterrupt):
                if not guard.requested:
                    raise
                break  # the steps of this call are discarded
            step += count
            steps = step - first
            if reporter.wanted:
                reporter.update(steps, {"step_size": to_host(rates)}, float(steps * gradients))
            chunk.made(count)
        guard.check_terminated()
        if step < end:
            warn(
                f"[{function}] interrupted after {done()[1]}; returning the fit so far "
                "(go on with resume=fit)",
                stacklevel=4,
            )
    return step == end


def _start(function: str, density: Density, start: Any) -> Array:
    """Return where members start as an array of the target's library and dtype, a copy."""
    xp = density.xp
    if xp is np or not is_array(start):
        host = checks.numeric(function, "init", start)
        checks.memory(function, host.size, density.dtype, f"init of shape {host.shape}")
        host = host.astype(density.dtype)
        return from_host(xp, host)
    if namespace(start, function=function, name="init") is not xp:
        raise DTypeError(
            f"[{function}] expected init as {xp.__name__} array, got {checks.summary(start)}"
        )
    return xp.astype(start, dtype_in(xp, density.dtype), copy=True)
