"""Epochs of an optimiser on the members of a batch of weight vectors, until done or Ctrl-C."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import dtype_in, from_host, is_array, namespace, to_host
from ribbit._arrays.threads import Interrupted
from ribbit._arrays.warning import warn
from ribbit.adapter import LocalChains
from ribbit.chains import CallSize, Start, Thinning
from ribbit.density import Density
from ribbit.distributed.ranks import RankAgreement
from ribbit.errors import DTypeError, FitWarning, NonFiniteError, ShapeError
from ribbit.interrupt import InterruptGuard, carrying, how_to_resume
from ribbit.progress import Progress, ProgressOption, check_progress
from ribbit.protocols import Array
from ribbit.results import archive
from ribbit.results.outcome import History
from ribbit.results.state import StochasticState, placed
from ribbit.results.summary import NOT
from ribbit.sample import starts
from ribbit.samplers.sgmcmc.stepper import Stepper
from ribbit.schedules import Schedule
from ribbit.store import Checkpoint, Folder, Save, folder_opened

if TYPE_CHECKING:
    import numpy.typing as npt

    from ribbit.samplers.fit.collection import Collection


# The state at the end of a task is all that a fit needs.
_NO_DRAWS = Thinning(1 << 62)

# Values of a request that all ranks of a group must share.
_ALIKE = ("sampler", "settings", "num_epochs", "swag_epochs", "seed")


# Steps of training by default. If a step has more rows than a large batch, there are fewer steps.
_STEPS, _FEWEST_STEPS, _LARGE_BATCH = 10_000, 2_000, 1_024


def default_epochs(batches: int, rows: int, schedule: Schedule | None = None) -> int:
    """Return the default epochs: the schedule's, or enough steps, `batches` an epoch."""
    steps = min(max(_STEPS * _LARGE_BATCH // max(rows, 1), _FEWEST_STEPS), _STEPS)
    if schedule is not None and schedule.kind in ("cosine", "cyclical"):
        steps = schedule.num_steps * max(schedule.num_cycles, 1)
    return -(-steps // batches)


def epochs_of(
    function: str,
    num_epochs: object,
    stepper: Stepper,
    *,
    init: Any,
    resume: Any,
    store: Any,
) -> int:
    """Return the checked number of epochs, or the default."""
    if num_epochs is None:
        rows = stepper.batch_size or stepper.num_rows or 1
        return default_epochs(stepper.batches, rows, stepper.schedule)
    epochs = checks.integer(function, "num_epochs", num_epochs, minimum=0, maximum=2**39)
    if epochs == 0 and init is None and resume is None:
        raise ValueError(
            f"[{function}] expected num_epochs >= 1 without init, got 0: 0 epochs keep the weights "
            "that init= gives"
        )
    if epochs == 0 and store is not None:
        raise ValueError(
            f"[{function}] expected num_epochs >= 1 with store, got 0: without training there is "
            "nothing to resume"
        )
    return epochs


@contextlib.contextmanager
def fitting(
    function: str, ranks: RankAgreement, store: Any, request: dict[str, Any]
) -> Iterator[Checkpoint | None]:
    """Yield the folder of a fit's checkpoints, once all ranks have asked for the same fit."""
    # Rank 0 alone writes it; the others know what it holds.
    with folder_opened(function, store if ranks.leads else None) as folder:
        asked = {key: request[key] for key in _ALIKE if key in request}
        resumes = request["resume"] is not None
        ranks.alike(store=store is not None, resume=resumes, **asked)
        if folder is not None:
            folder.resume(request, fit=True)
        yield None if store is None else ranks.stored(folder)


def saved(fit: Any, **loop: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a folder needs to continue a fit; `loop`: where its loop is."""
    header, arrays = fit._packed()
    return {**header, "loop": loop}, arrays


def begin(
    function: str,
    init: Any,
    resume: Any,
    kind: type[Any],
    settings: dict[str, Any],
    members: int,
    seed: int,
) -> Any:
    """Return the start that `init` means; raise for a `resume` that does not fit."""
    # A fit as `init` gives what it would give a sampler of `members` chains.
    if resume is None:
        if not callable(getattr(init, "_starts", None)):
            for name, part in (("positions", "positions[:, -1]"), ("position", "position")):
                if is_array(getattr(init, name, None)):
                    raise TypeError(
                        f"[{function}] expected init as weights or a fit, got "
                        f"{type(init).__name__}: its .{part} are weights"
                    )
            return init
        start = starts(function, init, np.arange(members, dtype=np.uint32), seed)
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


def predictive_of(target: Any) -> Any:
    """Return the target if it predicts, else None."""
    return target if callable(getattr(target, "predictive", None)) else None


class Fitter:
    """Base class of DeepEnsemble, SWAG, MCDropout, LaplaceApproximation and BBB."""

    settings: dict[str, Any]
    _name: ClassVar[str]  # of the public class
    _density: Density
    _stepper: Stepper  # not of BBB, whose steps the target makes

    def __repr__(self) -> str:
        knobs = ", ".join(f"{k}={v!r}" for k, v in self.settings.items())
        return f"{self._name}({type(self._density.target).__name__}, {knobs})"

    def _start(self, name: str, init: Any) -> Any:
        """Return the initial parameters; MCDropout appends the dropout rates that it learns."""
        del name
        return init

    def _request(self, **asked: Any) -> dict[str, Any]:
        """Return the request that a stored fit must match to be resumed."""
        target = self._density.fingerprint
        return {"sampler": self._name, "target": target, "settings": self.settings, **asked}

    def _fields(
        self, state: StochasticState, history: History | None, **found: Any
    ) -> dict[str, Any]:
        """Return settings, state and history of a fit; `found` are settings that it has learned."""
        return {
            "settings": {
                "sampler": self._name,
                **self.settings,
                **found,
                "num_epochs": state.step // self._stepper.batches,
                "num_rows": self._stepper.num_rows,
                "seed": state.seed,
            },
            "state": state,
            "history": {} if history is None else history,
        }

    def _trained(
        self,
        name: str,
        ranks: RankAgreement,
        store: Any,
        *,
        num_epochs: int,
        seed: int,
        init: Any,
        resume: Any,
        start: Any,
        members: int,
        fit: Callable[..., Any],  # of a state, `complete` and `history`
        also: dict[str, Any] | None = None,  # other arguments of a stored request
        **options: Any,  # of `train`
    ) -> Any:
        """Train, and return the fit; warn if it has not settled."""
        request = self._request(
            num_epochs=num_epochs, seed=seed, init=init, resume=resume, **(also or {})
        )
        with fitting(name, ranks, store, request) as kept:
            state, complete, history = train(
                name,
                self._name,
                self._stepper,
                num_epochs,
                seed=seed,
                start=self._start(name, start),
                members=members,
                resume=resume,
                fit=lambda state: fit(state, complete=False),
                ranks=ranks,
                store=kept,
                **options,
            )
        found = fit(state, complete=complete, history=joined(resume, history))
        if complete:
            warn_of_end(name, found)
        return found


def train(
    function: str,
    title: str,
    stepper: Stepper,
    epochs: int,  # checked; 0 keeps the weights as they are
    *,
    seed: int,
    # (P,) or (M, P) or None: ``target.init`` with the member's number as chain
    start: Array | None,
    members: int,
    resume: Any,  # the fit to continue, or None
    progress: ProgressOption,
    fit: Callable[[StochasticState], Any],  # the fit so far, for exceptions
    likelihood_alone: bool = False,  # the prior is no part of the objective
    # keeps the weights at the ends of the epochs that follow `epochs`; its stepper makes their
    # steps
    collect: Collection | None = None,
    finishes: bool = True,  # the fit is complete after the epochs
    ranks: RankAgreement,  # on which the fit is made
    store: Checkpoint | None = None,  # where checkpoints go, and where the fit goes on
    executor: Any = None,
) -> tuple[StochasticState, bool, History]:
    """Train `members` weight vectors together; return state, whether complete, history."""
    # history: "epoch" (E,) and "objective" (E, M).
    more = 0 if collect is None else collect.epochs
    ids = np.arange(members, dtype=np.uint32)
    ranks.refuse(executor=executor)
    with InterruptGuard(ranks.group) as guard, contextlib.ExitStack() as stack:
        ranks.guard = guard
        stored = store is not None and store.begun
        if store is not None and stored:
            state = stepper.adopt(function, placed(stepper.density.xp, store.state))
        elif resume is not None:
            state = stepper.adopt(function, resume.state)
        else:
            density = stepper.density
            if start is None:
                start = density.target.init(seed=seed, chains=members)
            position = as_position(function, density, start)
            given = tuple(position.shape)
            if position.ndim == 1:
                position = density.xp.concat([position[None, :]] * members, axis=0)
            if position.shape != (members, density.dim):
                raise ShapeError(
                    f"[{function}] expected init ({density.dim},) or ({members}, {density.dim}), "
                    f"got shape {given}"
                )
            if members > 1 and (stepper.batches == 1 or epochs + more == 0):
                _distinct(function, to_host(position))
            state = stepper.start(function, position, seed, ids, 0, guard)
        first, held = state.step, [state]
        if store is not None and stored:
            first = int(store.header["loop"]["first"])
        batches = stepper.batches
        # An epoch that was interrupted is finished before the last of `num_epochs` is counted.
        turn = max(first, (first // batches + epochs) * batches)  # from here on `collect` steps
        warn_of_rest(function, stepper.schedule, turn, batches)
        objective = _Objective(stepper, epochs + more, without_prior=likelihood_alone)
        if store is not None and stored:
            objective.restore(store)
            if collect is not None:
                collect.restore(store, stepper.density.xp)

        mover = _Mover(stepper, None if collect is None else collect.stepper, turn)
        remote: Any = None
        if executor is not None:
            from ribbit.executor import RemoteChains  # not with ribbit: slow to load

            density = mover._density
            start = mover, density, LocalChains(mover, state, _NO_DRAWS), _NO_DRAWS
            remote = RemoteChains(function, executor, *start)
            stack.enter_context(remote)

        def advance(step: int, count: int) -> tuple[Any, int]:
            try:
                if remote is None:
                    held[0], info = mover._advance(held[0], count, guard)
                else:
                    remote.advance(1, 0.0, guard, step + count)
                    if not remote.calls:
                        raise Interrupted
                    held[0], info = remote.state, remote.calls[-1][1]
            except NonFiniteError as error:  # the steps of this call that were finite
                held[0] = error.state
                raise
            return info["step_size"], held[0].step - step

        def stop(step: int) -> int:
            every = objective.every * batches
            found = (step // every + 1) * every
            if collect is None:
                return found
            # The turn from training to collecting, and the end of each epoch after it.
            return min(found, turn) if step < turn else (step // batches + 1) * batches

        def note(step: int) -> None:
            due = step % (objective.every * batches) == 0
            if collect is not None and step > turn:
                due = step % batches == 0 and collect.looks()
            if due:
                objective.look(step, held[0].position, guard)

        def look(step: int) -> None:
            if collect is not None and step > turn:  # the end of an epoch
                collect.take(held[0], turn)
            note(step)

        def save() -> tuple[dict[str, Any], dict[str, Any]]:
            last = first + (epochs + more) * batches - first % batches
            complete = finishes and held[0].step >= last
            found = dataclasses.replace(fit(held[0]), history=objective.history, complete=complete)
            return saved(found, first=first, taken=0 if collect is None else collect.taken)

        if first == 0 or (stored and state.step > first):
            note(state.step)  # the start; Ctrl-C may have come before it

        try:
            complete = run_epochs(
                function,
                title,
                first=first,
                epochs=epochs + more,
                batches=batches,
                members=members,
                gradients=members,
                advance=advance,
                fit=lambda: fit(held[0]),
                guard=guard,
                progress=progress,
                look=look,
                stop=stop,
                at=state.step,
                store=store,
                save=save,
                ahead=executor is not None,
                ranks=ranks,
                place=lambda: held[0].position,
            )
        except NonFiniteError as error:
            error.state = error.fit or error.state
            raise
    return held[0], complete, objective.history


@dataclass(frozen=True)
class _Mover:
    """Makes the steps of a fit: `training`'s as far as the step `turn`, then `collecting`'s."""

    training: Stepper
    collecting: Stepper | None
    turn: int
    _chunked: ClassVar[bool] = True
    _statistics: ClassVar[dict[str, str]] = {}

    @property
    def _density(self) -> Density:
        return self.training.density

    def _advance(
        self, state: StochasticState, num_steps: int, guard: InterruptGuard | None
    ) -> tuple[StochasticState, dict[str, Array]]:
        training = self.collecting is None or state.step < self.turn
        now = self.training if training else self.collecting
        assert now is not None
        return now.advance(state, num_steps, guard)

    def _chains(
        self, name: str, density: Density, start: Start, guard: InterruptGuard | None
    ) -> LocalChains:
        return LocalChains(self, start.state, start.thinning)


def _distinct(function: str, starts: npt.NDArray[Any]) -> None:
    """Raise when two members start at one place and every step takes all rows."""
    members = starts.shape[0]
    found = np.unique(starts, axis=0).shape[0]
    if found < members:
        raise ValueError(
            f"[{function}] expected a start for each of the {members} members, got {found}: "
            "without epochs, or with all rows in every step, nothing else tells them apart, they "
            f"would be copies. Leave init out, give ({members}, P) different starts, or a "
            "batch_size"
        )


def run_epochs(
    function: str,
    title: str,
    *,
    # steps done before; an epoch that was interrupted is finished first and not counted
    first: int,
    epochs: int,  # to make
    batches: int,
    members: int,  # rows of the display; gradients of a step
    gradients: int,
    # makes steps and keeps what they give; returns the last step sizes (members,), and how many
    # steps it made: `count`, or fewer where they come from workers
    advance: Callable[[int, int], tuple[Array, int]],
    fit: Callable[[], Any],  # the fit so far: what exceptions carry as their attribute ``fit``
    guard: InterruptGuard,
    progress: ProgressOption,
    look: Callable[[int], None] | None = None,  # called at every stop
    stop: Callable[[int], int] | None = None,  # the next step behind this one where a call ends
    at: int | None = None,  # the step where a stored fit goes on; default `first`
    # where checkpoints go, with what `save` returns, if this rank writes them
    store: Checkpoint | None = None,
    save: Save,
    ahead: bool = False,  # steps are made before they are asked for: one call takes what there is
    # of a group each makes the same calls, as many steps as rank 0 says; it alone writes
    ranks: RankAgreement,
    place: Callable[[], Array],  # where the fit is: what must be the same on every rank
) -> bool:
    """Make the steps of some epochs between interrupt checks; return False after Ctrl-C."""
    step, end = first if at is None else at, (first // batches + epochs) * batches
    begun = step
    size = CallSize()
    check_progress(function, progress)
    if not ranks.leads:
        progress = False
    written = store if isinstance(store, Folder) else None

    def done() -> tuple[Any, str]:
        return fit(), f"{(step - first) // batches} of {epochs} epochs"

    with (
        carrying(function, "fit", done, how_to_resume(written)),
        Progress(progress, total=end - begun, chains=members, title=title, fit=True) as reporter,
        contextlib.nullcontext() if written is None else written.finishing(save),
    ):
        while step < end and not guard.requested:
            left = end - step
            halt = end if stop is None else stop(step)
            left = min(left, halt - step)
            count, _ = ranks.agree(place, left if ahead else size.size(left), False)
            if guard.requested:
                break
            try:
                rates, count = advance(step, count)
            except (Interrupted, KeyboardInterrupt):
                if not guard.requested:
                    raise
                break  # the steps of this call are discarded
            step += count
            steps = step - begun
            if reporter.wanted:
                reporter.update(steps, {"learning_rate": to_host(rates)}, float(steps * gradients))
            size.made(count)
            if look is not None and step == halt:
                look(step)
            if written is not None:
                written.checkpoint(save)
        if step < end:
            warn(
                f"[{function}] interrupted after {done()[1]}; returning the fit so far "
                f"({how_to_resume(written) or 'continue with resume=fit'})",
            )
    return step == end


_POINTS = 20  # of a history
_SHARE = 0.02  # of the work of a fit that goes into its history
_FEWEST_ROWS, _MOST_ROWS, _ROWS_AT_ONCE = 32, 512, 32


class _Objective:
    """The objective at some epochs, on rows (and under masks) that stay the same."""

    def __init__(self, stepper: Stepper, epochs: int, *, without_prior: bool) -> None:
        self._stepper, self._without_prior = stepper, without_prior
        self.every = max(1, -(-epochs // _POINTS))
        total = stepper.num_rows
        self._rows: npt.NDArray[np.int64] | None = None
        if total is not None:
            wanted = int(_SHARE * total * epochs / _POINTS)
            count = min(total, max(_FEWEST_ROWS, min(wanted, _MOST_ROWS)))
            self._rows = np.linspace(0, total - 1, count).astype(np.int64)
        self._found: list[tuple[float, npt.NDArray[np.float64]]] = []

    def look(self, step: int, position: Array, guard: InterruptGuard) -> None:
        """Note the objective at weights (M, P), once; nothing after Ctrl-C."""
        epoch, target = step / self._stepper.batches, self._stepper.density.target
        if self._found and self._found[-1][0] == epoch:
            return
        parts, sizes = [], []
        guard.foreign = not getattr(target, "interruptible", False)
        try:
            if self._rows is None:
                pieces: list[Any] = [None]
            else:
                pieces = np.array_split(self._rows, -(-len(self._rows) // _ROWS_AT_ONCE))
            for rows in pieces:
                if guard.requested:
                    return
                lp, _ = target.value_and_grad(position, rows)
                parts.append(np.asarray(to_host(lp), np.float64))
                sizes.append(1 if rows is None else len(rows))
            value = np.average(parts, axis=0, weights=sizes)  # each is scaled to all rows
            if self._without_prior:
                value = value - to_host(target.log_prior(position)) / target.temperature
        except KeyboardInterrupt:
            if not guard.requested:
                raise
            return
        finally:
            guard.foreign = False
        self._found.append((epoch, value))

    def restore(self, store: Checkpoint) -> None:
        """Put back what a stored fit has noted."""
        found = archive.get(store.arrays, "history")
        if found:
            self._found = list(zip(found["epoch"].tolist(), found["objective"], strict=True))

    @property
    def history(self) -> History:
        """The objective of each look."""
        if not self._found:
            return {}
        epochs, values = zip(*self._found, strict=True)
        return {"epoch": np.array(epochs), "objective": np.stack(values)}


def warn_of_rest(function: str, schedule: Schedule, last: int, batches: int) -> None:
    """Warn of a rate that is 0 for epochs on end."""
    # A fit has `last` steps, `batches` an epoch. Rounding may leave one epoch of rest.
    steps = schedule.num_steps
    if schedule.kind != "cosine" or schedule.final != 0.0 or last <= steps + batches:
        return
    warn(
        f"[{function}] expected a learning rate above 0, got a schedule that reaches 0 after "
        f"{steps:,} of {last:,} steps ({batches:,} an epoch): later epochs change nothing. "
        f"Schedules count steps: schedule=rb.schedules.cosine({last})",
        FitWarning,
    )


def warn_of_end(function: str, fit: Any) -> None:
    """Warn if the objective still moved at the end, or the fit diverged."""
    found = fit.summary()
    if found.outcome == NOT:
        warn(f"[{function}] {found.message}", FitWarning)


def joined(resume: Any, history: History) -> History:
    """Put the history of a fit behind the history of the fit that it resumes."""
    before = {} if resume is None else resume.history
    if not before or not history:
        return history or before
    return {name: np.concatenate([before[name], values]) for name, values in history.items()}


def as_position(function: str, density: Density, start: Any) -> Array:
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
