"""What all samplers share: the checks around one run, and where chains start."""

from __future__ import annotations

import contextlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypedDict, Unpack, overload

import numpy as np

from ribbit._arrays import checks, overrides
from ribbit._arrays.namespace import dtype_in, errstate, from_host, is_array, namespace, to_host
from ribbit._arrays.threads import Interrupted
from ribbit.adapter import Thinning
from ribbit.density import Density
from ribbit.distributed.ranks import together
from ribbit.errors import DTypeError, ShapeError
from ribbit.handle import RunHandle
from ribbit.interrupt import InterruptGuard
from ribbit.options import check_progress, check_resume, same_density, starts
from ribbit.progress import ProgressOption
from ribbit.protocols import Array
from ribbit.results.draws import Draws
from ribbit.results.outcome import superchains_of
from ribbit.results.running import RunningPrediction
from ribbit.results.state import AnyState, placed
from ribbit.run import Run
from ribbit.store import Store, folder_opened
from ribbit.until import Converged, ConvergenceMonitor, counts

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["STARTS", "Sampler"]

_DEFAULT_CHAINS = 4

# What `init` may be instead of positions, by name: rooms above this one fill it.
STARTS: dict[str, Any] = {}


class _Call(TypedDict, total=False):
    """Options of `Sampler.sample` without `blocking`."""

    warmup: int | None
    thin: int | None
    chains: int | Sequence[int] | None
    seed: checks.Seed
    init: Array | str | None
    resume: AnyState | Draws | None
    progress: ProgressOption
    predict_at: Array | tuple[Array, Array] | None
    save_draws: bool
    save_warmup: bool
    until: Converged | None
    max_draws: int | None
    max_seconds: float | None
    store: Store | str | os.PathLike[str] | None
    executor: Any


class Sampler(ABC):
    """Base class of the MCMC samplers, with their common ``sample``.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> isinstance(rb.HMC(target), rb.Sampler)
    True
    """

    settings: dict[str, Any]
    # Names and dtypes of what `step` reports.
    _statistics: ClassVar[dict[str, str]]
    # Whether several steps are made in one call where no draw lies between.
    _chunked: ClassVar[bool] = True
    # Whether `_advance_several` makes steps of warmup too.
    _several_in_warmup: ClassVar[bool] = False
    # Steps on all rows that an ensemble start ends with.
    _ensemble_finish: int = 0
    # How long a call of several steps takes, about.
    _call_seconds: ClassVar[float] = 0.1
    # Steps of warmup and per draw where the caller names none.
    _default_warmup: int = 500
    _default_thin: int = 1

    def __init__(self, density: Density) -> None:
        self._density = density
        self._marginal: Any = None  # this sampler's form for ``target.marginal``

    def __repr__(self) -> str:
        knobs = ", ".join(f"{k}={_short(v)}" for k, v in self.settings.items() if v is not None)
        return f"{type(self).__name__}({type(self._density.target).__name__}, {knobs})"

    @property
    def _title(self) -> str:
        return type(self).__name__

    def _warmup(self, num_draws: int | None, thin: int) -> int:
        """Return the steps of warmup where none are given; `num_draws`: before a first look."""
        return self._default_warmup

    @abstractmethod
    def _init(
        self,
        function: str,
        position: Array,
        seed: int,
        chains: npt.ArrayLike | None,
        warmup: int,
        guard: InterruptGuard | None,
    ) -> AnyState:
        """Start at `position` (C, P)."""

    @abstractmethod
    def _adopt(self, function: str, state: Any, guard: InterruptGuard | None) -> AnyState:
        """Check a state and put this sampler's fixed settings into it."""

    @abstractmethod
    def _advance(
        self, state: Any, num_steps: int, guard: InterruptGuard | None
    ) -> tuple[AnyState, dict[str, Array]]:
        """Make steps; a pure function of `state`."""

    @property
    def _several(self) -> bool:
        """Whether one call makes several draws, with `_advance_several`."""
        return False

    def _advance_several(
        self,
        state: Any,
        stops: npt.NDArray[np.int64],
        kept: npt.NDArray[Any] | None,
        guard: InterruptGuard | None,
    ) -> tuple[AnyState, dict[str, Array]] | None:
        """Make the steps up to the last of `stops` (K,), each the step of a draw after warmup.

        Or every step of warmup from the next one on; None of `kept`: no position is. Fills kept
        (C, K, P); statistics are (C, K). Where the call took long it may have ended at an earlier
        stop, of fewer columns. None where a step fails, or the sampler does not do that: the run
        then makes draws one by one.
        """
        return None

    @overload
    def sample(
        self, num_draws: int | None = None, *, blocking: Literal[True] = True, **more: Unpack[_Call]
    ) -> Draws: ...

    @overload
    def sample(
        self, num_draws: int | None = None, *, blocking: Literal[False], **more: Unpack[_Call]
    ) -> RunHandle: ...

    @overload
    def sample(
        self, num_draws: int | None = None, *, blocking: bool, **more: Unpack[_Call]
    ) -> Draws | RunHandle: ...

    def sample(
        self,
        num_draws: int | None = None,
        *,
        warmup: int | None = None,
        thin: int | None = None,
        chains: int | Sequence[int] | None = None,
        seed: checks.Seed = 0,
        init: Array | str | None = None,
        resume: AnyState | Draws | None = None,
        progress: ProgressOption = None,
        predict_at: Array | tuple[Array, Array] | None = None,
        save_draws: bool = True,
        save_warmup: bool = False,
        until: Converged | None = None,
        max_draws: int | None = None,
        max_seconds: float | None = None,
        store: Store | str | os.PathLike[str] | None = None,
        executor: Any = None,
        blocking: bool = True,
    ) -> Draws | RunHandle:
        """Run chains and return their draws.

        A draw depends on (seed, chain id, number of the step) alone. Threads, progress, thinning,
        restarts and the other chains do not change it.

        Parameters
        ----------
        num_draws : int, optional
            Draws D to keep per chain. With `until` this is the smallest number; else required.
        warmup : int, optional
            Steps before the first kept draw. Default: 500. BAOAB: 10,000. MCLMC: as many steps as
            the draws take (``num_draws * thin``), at least 10,000.
        thin : int, optional
            Steps per kept draw. Default: 1. MCLMC: 20, BAOAB: 50. With a cyclical schedule: one
            draw at the end of each cycle, or its ``draws_per_cycle``.
        chains : int or sequence of int, optional
            Number of chains (with ids 0, 1, ...), or their ids. Default: the rows of `init`, else
            4.
        seed : int, Generator, SeedSequence or None
            64-bit key of all random numbers. Two calls with the same seed give identical draws.
        init : (P,) or (C, P) array, a fit, or "ensemble", optional
            Start of all chains, or of each. "ensemble" trains a network for each chain
            (:class:`EnsembleStart` has its options). A fit gives each chain a draw, a member or,
            for a :class:`DropoutFit`, its weights. Default: ``target.init`` per chain. Parameters
            that the target integrates out (``marginalize=``) may be left out of P.
        resume : State or Draws, optional
            Continue from there, bit-identically to one longer run, after any warmup steps that are
            left. `seed` and `warmup` are ignored, `chains` and `init` are errors. Returns only the
            new draws.
        progress : bool or callable, optional
            None shows progress of long runs, True always, False never. A callable gets a dict at
            most five times a second and at the end; :doc:`/guide/long_runs` lists its keys.
        predict_at : array or tuple (x, y), optional
            Collect predictions at these inputs while sampling, in ``draws.prediction``.
        save_draws : bool
            False: ``draws.positions`` is empty, and memory does not grow with D. Predictions at
            `predict_at` keep evenly spaced draws of at most 64 MiB.
        save_warmup : bool
            Keep warmup as ``draws.warmup_positions`` and ``draws.warmup_stats``.
        until : Converged, optional
            Sample until the draws meet this rule, such as ``rb.Converged(rhat=1.01, ess=400)``.
            ``draws.settings["stopped"]`` says why the run ended. With `resume` only the new draws
            are checked.
        max_draws : int, optional
            With `until`: the largest number of draws per chain, default 100,000.
        max_seconds : float, optional
            End the run after the step in which this time since the call is over.
        store : path or Store, optional
            Folder for draws and a checkpoint, written during the run; ``draws.positions`` is read
            from there. The same call again resumes an interrupted run, bit-identically.
        executor : object with submit, or callable, optional
            Workers that move groups of chains, with bit-identical draws:
            ``concurrent.futures.ProcessPoolExecutor``, loky's, ``dask_client.get_executor()`` or
            ``mpi4py.futures.MPIPoolExecutor``. A callable makes an executor, and a new one if a
            worker died. The target must be on NumPy arrays and support pickle.
        blocking : bool
            False: run in a thread and return a handle at once. With ``progress=None`` the run is
            then silent, True prints a line every five seconds. A callable runs in that thread.

        Returns
        -------
        Draws or RunHandle
            ``complete=False`` after Ctrl-C (with a warning) or `max_seconds`. With
            ``blocking=False`` a :class:`RunHandle`, whose ``wait()`` returns the draws.

        Raises
        ------
        TypeError, ValueError
            For bad arguments or a bad start, before any work. With ``blocking=False`` errors after
            the first second are raised by ``wait()``. A target has one such run at a time.

        Warns
        -----
        ConvergenceWarning
            If the outcome of ``draws.summary()`` is "not converged" (with at least 10 draws per
            chain), or if the run ended before it met `until`.

        Notes
        -----
        An exception that ends a run after its start, also one from a callable, carries the draws so
        far as its attribute ``draws``; ``resume=error.draws`` continues.
        """
        call = {key: value for key, value in locals().items() if key not in ("self", "blocking")}
        begin = time.perf_counter()
        name = f"{type(self).__name__}.sample"
        call["seed"] = seed = checks.seed(name, seed)  # a Generator advances in this thread
        if not checks.boolean(name, "blocking", blocking):
            handle = RunHandle.__new__(RunHandle)
            return handle._begin(type(self).__name__, self._density.target, self.sample, call)
        inner = self._sampler_of(resume)
        if inner is not self:
            draws: Draws = inner.sample(**call)
            return draws
        with together(name, self._density.group) as ranks:
            first, num_draws = counts(name, num_draws, until, max_draws)
            thin = self._default_thin if thin is None else thin
            thin = checks.integer(name, "thin", thin, minimum=1, maximum=2**32)
            warmup = self._warmup(first, thin) if warmup is None else warmup
            save_draws = checks.boolean(name, "save_draws", save_draws)
            save_warmup = checks.boolean(name, "save_warmup", save_warmup)
            if max_seconds is not None:
                max_seconds = checks.positive(name, "max_seconds", max_seconds)
            thin = self._thin(name, num_draws, thin)
            check_progress(name, progress)
            check_resume(name, resume)
            if store is not None:
                store = Store.of(name, store)
                if store.keep == "predictions" and predict_at is None:
                    raise ValueError(
                        f"[{name}] expected predict_at= for keep='predictions', got none"
                    )
                save_draws = save_draws and store.keep == "draws"
            running = self._running(name, predict_at, save_draws)
            origin: dict[str, Any] | None = None
            with (
                folder_opened(name, store if ranks.leads else None) as folder,
                InterruptGuard(ranks.group) as guard,
                contextlib.ExitStack() as stack,
            ):
                ranks.guard = guard
                self._density.identify(guard)
                ranks.refuse(
                    executor=executor,
                    until_and_store=until is not None and store is not None,
                    init=isinstance(init, str) or callable(getattr(init, "_fitted", None)),
                )
                ranks.alike(
                    sampler=repr(self),
                    seed=seed,
                    num_draws=num_draws,
                    warmup=warmup,
                    thin=thin,
                    chains=np.asarray(chains).tolist(),
                    until=until,
                    max_draws=max_draws,
                    save_draws=save_draws,
                    save_warmup=save_warmup,
                    predict_at=predict_at is not None,
                    store=store is not None,
                )
                if not ranks.leads:
                    progress = False
                    save_draws = save_draws and store is None
                    save_warmup = save_warmup and store is None
                if folder is not None:
                    request = self._request(
                        num_draws=num_draws,
                        warmup=warmup,
                        thin=thin,
                        chains=chains,
                        seed=seed,
                        init=init,
                        resume=resume.state if isinstance(resume, Draws) else resume,
                        predict_at=predict_at,
                        save_draws=save_draws,
                        save_warmup=save_warmup,
                        until=until,
                        first=first,
                    )
                    folder.resume(request)
                kept = None if store is None else ranks.stored(folder)
                if kept is not None and kept.begun:
                    origin = kept.header["origin"]
                    state = self._adopt(name, placed(self._density.xp, kept.state), guard)
                elif resume is None:
                    try:
                        state, origin = self._start(
                            name, warmup, chains, seed, init, guard, progress, max_seconds, executor
                        )
                    except Interrupted:  # nothing to return yet
                        raise KeyboardInterrupt from None
                else:
                    given = resume.state if isinstance(resume, Draws) else resume
                    origin = _shared_before(resume)
                    if given is None:
                        raise ValueError(
                            f"[{name}] expected draws of a sampler to resume, got draws of a fit: "
                            "give them as init"
                        )
                    try:
                        state = self._adopt(name, given, guard)
                    except Interrupted:
                        raise KeyboardInterrupt from None
                    if chains is not None or init is not None:
                        other = "chains" if init is None else "init"
                        raise ValueError(
                            f"[{name}] expected resume without {other}, got both: they come "
                            "from the state"
                        )
                done = 0 if kept is None else kept.num_draws
                self._check_end(name, state, num_draws - done, thin)
                if running is not None:  # bad x or y: before any work
                    theta = self._density.completed(state)
                    running.prepare(theta, guard)
                    gathered = None if kept is None else kept.part("prediction")
                    if gathered is not None:
                        running.restore(*gathered)
                watch = ConvergenceMonitor(
                    name,
                    until,
                    self._density,
                    self._density.completed(state),
                    first,
                    num_draws,
                    running=running,
                    origin=origin,
                    guard=guard,
                )
                watched = None if kept is None else kept.part("watch")
                if watched is not None:
                    plain, arrays = watched
                    watch.restore(plain, arrays, self._density.xp)
                thinning = self._thinning(thin)
                remote = None
                if executor is not None:
                    from ribbit.executor import RemoteChains  # not with ribbit: slow to load

                    remote = stack.enter_context(
                        RemoteChains(name, executor, self, state, thinning, each=save_warmup)
                    )
                run = Run(
                    self,
                    state,
                    num_draws,
                    thinning,
                    save_draws,
                    save_warmup,
                    running,
                    origin=origin,
                    found=kept.header["found"]
                    if kept and kept.begun
                    else self._found(state, resume),
                    begin=begin,
                    watch=watch,
                    store=kept,
                    ranks=ranks,
                    remote=remote,
                )
                return run.complete(name, guard, progress, max_seconds)

    def _request(self, **call: Any) -> dict[str, Any]:
        """Return what decides the draws of a call, to tell it from another one's."""
        density = self._density
        return {
            "sampler": type(self).__name__,
            "target": density.fingerprint or type(density.target).__name__,
            "dim": density.dim,
            "settings": self.settings,
            **call,
        }

    def _move_marginal(self, target: Any, **options: Any) -> None:
        """Leave runs to this sampler of ``target.marginal``, where there is one.

        For samplers with nothing set that depends on which parameters move.
        """
        marginal = overrides.own(target, "marginal", overrides.WHOLE)
        if marginal is not None:
            self._marginal = type(self)(marginal, **options)

    def _sampler_of(self, resume: Any) -> Self:
        """Return who makes a run: this sampler, or its form for a target's marginal density.

        A state to go on from says itself which of the two it belongs to.
        """
        state = resume.state if isinstance(resume, Draws) else resume
        inner: Self | None = self._marginal
        if inner is None or (state is not None and not same_density(inner._density, state)):
            return self
        return inner

    def _found(self, state: Any, resume: Any) -> dict[str, Any]:
        """Return settings that a run has beside its sampler's: found when its state was made."""
        return {}

    def _reports_lp(self) -> bool:
        """Return whether the statistic lp is one."""
        return True

    def _settled(self, warmup: int) -> int | None:
        """Return the step of warmup from which steps cost about what they will; None: unknown."""
        return None

    def _thin(self, function: str, num_draws: int, thin: int) -> int:
        """Return steps per draw; a schedule may ask for its own."""
        return thin

    def _thinning(self, thin: int) -> Thinning:
        """Return which steps give draws."""
        return Thinning(thin)

    def _check_end(self, function: str, state: Any, num_draws: int, thin: int) -> None:
        """Raise when a schedule ends before the run that begins at `state`."""
        return None

    def _start(
        self,
        name: str,
        warmup: int,
        chains: int | Sequence[int] | None,
        seed: int,
        init: Array | str | None,
        guard: InterruptGuard,
        progress: ProgressOption,
        max_seconds: float | None,
        executor: Any,
    ) -> tuple[AnyState, dict[str, Any] | None]:
        """Return the first state, and how its positions were found where that took a fit."""
        origin: dict[str, Any] | None = None
        warmup = checks.integer(name, "warmup", warmup, minimum=0, maximum=2**39)
        # Position, gradient, momentum and proposal: before the first of them is made.
        each = 4 * self._density.dim * self._density.dtype.itemsize
        ids = None if chains is None else checks.chain_ids(name, chains, each=each)
        if ids is not None and len(set(ids.tolist())) != ids.size:
            raise ValueError(f"[{name}] expected distinct chain ids, got {ids.tolist()}")
        if isinstance(init, str):
            init = STARTS[checks.choice(name, "init", init, STARTS)]
        if isinstance(init, type):
            raise TypeError(f"[{name}] expected init as {init.__name__}(...), got the class itself")
        if isinstance(init, Draws):
            raise TypeError(
                f"[{name}] expected init as positions, a fit or 'ensemble', got Draws: "
                "resume=draws continues a run, init=draws.positions[:, -1] starts another where it "
                "ended"
            )
        if callable(getattr(init, "_starts", None)):
            init = starts(name, init, ids, seed)
        elif callable(getattr(init, "_fitted", None)):
            ids = np.arange(_DEFAULT_CHAINS, dtype=np.uint32) if ids is None else ids
            target = self._density.target
            by: dict[str, Any] = {"finish": self._ensemble_finish}
            if executor is not None:
                by["executor"] = executor
            place = name, target, ids, seed, guard, progress, max_seconds
            init, origin = starts(name, init, *place, **by)
        if init is None:
            ids = np.arange(_DEFAULT_CHAINS, dtype=np.uint32) if ids is None else ids
            position = self._target_init(name, seed, ids, guard)
        else:
            position = self._position(name, init, "init")
            single = getattr(init, "ndim", np.ndim(init)) == 1
            if ids is None:
                count = _DEFAULT_CHAINS if single else position.shape[0]
                ids = np.arange(count, dtype=np.uint32)
            if single:
                position = self._density.xp.concat([position] * ids.shape[0], axis=0)
            elif position.shape[0] != ids.shape[0]:
                whole = self._density.full_dim
                given = getattr(init, "shape", None) or np.shape(init)
                raise ShapeError(
                    f"[{name}] expected init ({whole},) or ({ids.shape[0]}, {whole}) for "
                    f"{ids.shape[0]} chain{'s' if len(ids) > 1 else ''}, got shape {given}"
                )
            shared = _groups(to_host(position))
            if shared is not None:
                origin = {**(origin or {}), "superchains": shared}
        return self._init(name, position, seed, ids, warmup, guard), origin

    def _target_init(
        self, name: str, seed: int, ids: npt.NDArray[np.uint32], guard: InterruptGuard
    ) -> Array:
        make = getattr(self._density.target, "init", None)
        if make is None:
            raise ValueError(
                f"[{name}] expected init=, or a target with init(seed, chains), "
                f"got {type(self._density.target).__name__} without it"
            )
        plain = bool((ids == np.arange(ids.shape[0])).all())
        guard.begin_foreign()
        try:
            return make(seed=seed, chains=ids.shape[0] if plain else ids.tolist())
        finally:
            guard.foreign = False

    def _position(self, name: str, position: Array, argument: str = "position") -> Array:
        """Copy of a start as (C, P) in the target's dtype."""
        density, xp = self._density, self._density.xp
        if is_array(position):
            if namespace(position, function=name, name=argument) is not xp:
                raise DTypeError(
                    f"[{name}] expected {argument} as {xp.__name__} array, "
                    f"got {checks.summary(position)}"
                )
            if not xp.isdtype(position.dtype, ("real floating", "integral")):
                raise DTypeError(
                    f"[{name}] expected {argument} of real numbers, got dtype {position.dtype}"
                )
            checks.unmasked(name, argument, position)
            array = position
        else:
            host = checks.numeric(name, argument, position)
            array = from_host(xp, np.array(host, dtype=np.float64))
        given, whole = tuple(array.shape), density.full_dim
        array = density.reduced(name, array)
        if not 1 <= array.ndim <= 2 or array.shape[-1] != density.dim or array.shape[0] == 0:
            model = getattr(density.target, "model", None)
            hint = ""
            if given and given[-1] + 1 == whole and given[-1] == getattr(model, "dim", None):
                hint = ": the model's parameters without log_noise, which stands last"
            elif len(given) == 3 and given[-1] == whole:
                hint = ": of draws the last ones are draws.positions[:, -1]"
            raise ShapeError(
                f"[{name}] expected {argument} ({whole},) or (C, {whole}), got shape {given}{hint}"
            )
        with errstate(xp):
            array = xp.astype(array, dtype_in(xp, density.dtype), copy=True)
        return xp.reshape(array, (-1, density.dim))

    def _start_arrays(
        self,
        function: str,
        position: Array,
        seed: int,
        chains: npt.ArrayLike | None,
        warmup: int,
    ) -> tuple[Array, npt.NDArray[np.uint32]]:
        """Check the arguments of ``init``; positions (C, P) and ids (C,)."""
        checks.integer(function, "warmup", warmup, minimum=0, maximum=2**39)
        start = self._position(function, position)
        ids = checks.chain_ids(function, start.shape[0] if chains is None else chains)
        if ids.shape[0] != start.shape[0]:
            raise ShapeError(
                f"[{function}] expected {ids.shape[0]} positions, got {start.shape[0]}"
            )
        return start, ids

    def _running(
        self, name: str, predict_at: Array | tuple[Array, Array] | None, save_draws: bool
    ) -> RunningPrediction | None:
        if predict_at is None:
            return None
        x, y = predict_at, None
        if isinstance(predict_at, tuple):
            if len(predict_at) != 2:
                raise ValueError(
                    f"[{name}] expected predict_at as x or (x, y), "
                    f"got a tuple of length {len(predict_at)}"
                )
            x, y = predict_at
        target, dim = self._density.target, self._density.full_dim
        return RunningPrediction(target, x, y, dim=dim, keep=not save_draws, function=name)


def _shared_before(resume: Any) -> dict[str, Any] | None:
    """Return which chains shared a start, as draws to go on from remember it."""
    if not isinstance(resume, Draws):
        return None
    found = superchains_of(resume.settings, resume.positions.shape[0])
    return None if found is None else {"superchains": found.tolist()}


def _groups(starts: npt.NDArray[Any]) -> list[int] | None:
    """Return the number of the start (C, P) of each chain where chains share one, else None."""
    # Bit by bit and without copies, of maybe millions of parameters; most rows differ at once.
    rows = np.ascontiguousarray(starts)
    rows = rows.view(f"u{rows.dtype.itemsize}")
    alike: dict[bytes, list[int]] = {}  # numbers of the starts that begin so
    firsts: list[int] = []
    found: list[int] = []
    for row in rows:
        numbers = alike.setdefault(row[:64].tobytes(), [])
        same = (n for n in numbers if np.array_equal(row, rows[firsts[n]]))
        number = next(same, len(firsts))
        if number == len(firsts):
            numbers.append(number)
            firsts.append(len(found))
        found.append(number)
    return found if len(firsts) < len(found) else None


def _short(value: Any) -> str:
    return f"[{len(value)} values]" if isinstance(value, list) and len(value) > 8 else repr(value)
