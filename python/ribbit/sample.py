"""One call of ``sample``: its options, where chains start, and the only loop over draws."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

import numpy as np

from ribbit._arrays import checks, overrides
from ribbit._arrays.namespace import (
    dtype_in,
    errstate,
    from_host,
    host_dtype,
    is_array,
    namespace,
    to_host,
)
from ribbit._arrays.threads import Interrupted, version
from ribbit._arrays.warning import warn
from ribbit.chains import AgreedChains, AnyChains, Start, Thinning
from ribbit.density import Density
from ribbit.distributed.ranks import RankAgreement, agreement
from ribbit.errors import ConvergenceWarning, DTypeError, NoiseWarning, RibbitWarning, ShapeError
from ribbit.handle import RunHandle
from ribbit.interrupt import InterruptGuard, carrying, foreign, here, how_to_resume
from ribbit.progress import Progress, ProgressOption, check_progress
from ribbit.protocols import Array
from ribbit.results import archive
from ribbit.results.draws import Draws
from ribbit.results.outcome import superchains_of, unconverged
from ribbit.results.prediction import Prediction
from ribbit.results.running import RunningPrediction
from ribbit.results.state import AnyState, placed
from ribbit.sinks import Memory, Sink
from ribbit.store import Checkpoint, Folder, Store, folder_opened
from ribbit.until import Converged, ConvergenceMonitor, counts

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["STARTS", "Run", "Sampler", "start_positions", "starts"]

_DEFAULT_CHAINS = 4
_SECONDS = 0.1  # of a call of `advance`, between looks at Ctrl-C, the clock and the display
_BLOCK = 1 << 14  # parameters that are looked at together
# Options that decide the draws, so that a folder refuses others; and options that all ranks share.
_DECIDES = (
    *("num_draws", "warmup", "thin", "chains", "seed", "init", "resume", "predict_at"),
    *("save_draws", "save_warmup", "until", "first"),
)
_ALIKE = (
    *("seed", "num_draws", "warmup", "thin", "chains", "until", "max_draws"),
    *("save_draws", "save_warmup", "predict_at", "store"),
)
# Transitions of the runtime forecast. After so many seconds fewer suffice.
_FORECAST, _FORECAST_SECONDS = 10, 15.0
# Leapfrogs of a trajectory, on average. HMC's default length is cut to 1,024, and the mean of ten
# random lengths has an sd of 190.
_LONG = 700.0
_PATIENCE = 120.0  # seconds without a warning

# Values of `init` that are names; packages above this module fill it.
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
    _density: Density
    # Steps on all rows that an ensemble start ends with.
    _ensemble_finish: int = 0
    # Steps of warmup and per draw if the caller names none.
    _default_warmup: int = 500
    _default_thin: int = 1

    def __repr__(self) -> str:
        knobs = ", ".join(f"{k}={_short(v)}" for k, v in self.settings.items() if v is not None)
        return f"{type(self).__name__}({type(self._density.target).__name__}, {knobs})"

    def _warmup(self, num_draws: int | None, thin: int) -> int:
        """Return the steps of warmup if none are given; `num_draws`: before a first look."""
        return self._default_warmup

    @abstractmethod
    def _chains(
        self, name: str, density: Density, start: Start, guard: InterruptGuard | None
    ) -> AnyChains:
        """Return chains at a start, which is checked, with this sampler's settings."""

    @abstractmethod
    def _statistics_of(self, *, thinned: bool) -> dict[str, str]:
        """Return the dtypes of the statistics of a run by name."""

    def _density_for(self, resume: Any) -> Density:
        """Return the density of a run. A state decides whether a layer is integrated out."""
        return self._density

    def _settings_on(self, density: Density) -> dict[str, Any]:
        """Return the settings of a run on a density."""
        return self.settings

    def _warmed_up(self, density: Density, chains: Any) -> None:  # noqa: B027
        """Warn of settings that warmup has found."""

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
            left. The sampler's settings are used, but step sizes and masses from warmup are kept.
            Another `inverse_mass_matrix` after warmup needs a `step_size`, too. `seed` and `warmup`
            are ignored, `chains` and `init` are errors. Returns only the new draws.
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
        begin = time.perf_counter()
        options = {k: v for k, v in locals().items() if k not in ("self", "blocking", "begin")}
        name = f"{type(self).__name__}.sample"
        options["seed"] = checks.seed(name, seed)  # a Generator advances in this thread
        if not checks.boolean(name, "blocking", blocking):
            handle = RunHandle.__new__(RunHandle)
            return handle._begin(type(self).__name__, self._density.target, self.sample, options)
        call = SimpleNamespace(**options, density=self._density_for(resume))
        group = call.density.group
        agreed: Any = contextlib.nullcontext() if group is None else agreement(name, group)
        with agreed as ranks:  # None in one process
            self._check(name, call)
            opened: Any = contextlib.nullcontext()
            if call.store is not None and (ranks is None or ranks.leads):
                opened = folder_opened(name, call.store)
            # The guard first: Ctrl-C while a folder opens would leave its lock to this process.
            with InterruptGuard(group) as guard, opened as folder, contextlib.ExitStack() as stack:
                return Run(self, name, call, ranks, folder, guard, stack, begin).complete()

    def _check(self, name: str, call: SimpleNamespace) -> None:
        """Check the options that need no start, and fill in the defaults."""
        call.first, call.num_draws = counts(name, call.num_draws, call.until, call.max_draws)
        thin = self._default_thin if call.thin is None else call.thin
        thin = checks.integer(name, "thin", thin, minimum=1, maximum=2**32)
        if call.warmup is None:
            call.warmup = self._warmup(call.first, thin)
        call.save_draws = checks.boolean(name, "save_draws", call.save_draws)
        call.save_warmup = checks.boolean(name, "save_warmup", call.save_warmup)
        if call.max_seconds is not None:
            call.max_seconds = checks.positive(name, "max_seconds", call.max_seconds)
        call.thinning = dataclasses.replace(self._thinning(name, thin), each=call.save_warmup)
        call.thin = call.thinning.period
        check_progress(name, call.progress)
        if not isinstance(call.resume, Draws | AnyState | None):
            hint = ""
            if isinstance(call.resume, str | os.PathLike):
                hint = ": resume=rb.load(path) continues saved draws, or the run in a folder"
            elif callable(getattr(call.resume, "_starts", None)):
                hint = ": chains start at a fit with init=fit"
            got = f"{checks.summary(call.resume)}{hint}"
            raise TypeError(f"[{name}] expected resume as Draws or a state, got {got}")
        if call.store is not None:
            call.store = Store.of(name, call.store)
            if call.store.keep == "predictions" and call.predict_at is None:
                raise ValueError(f"[{name}] expected predict_at= for keep='predictions', got none")
            call.save_draws = call.save_draws and call.store.keep == "draws"
        call.running = None
        if call.predict_at is not None:
            x, y = call.predict_at, None
            if isinstance(x, tuple):
                if len(x) != 2:
                    got = f"got a tuple of length {len(x)}"
                    raise ValueError(f"[{name}] expected predict_at as x or (x, y), {got}")
                x, y = x
            how: dict[str, Any] = {"dim": call.density.full_dim, "keep": not call.save_draws}
            call.running = RunningPrediction(call.density.target, x, y, **how, function=name)

    def _found(self, state: Any, resume: Any) -> dict[str, Any]:
        """Return the settings of a run that were found when its state was made."""
        return {}

    def _settled(self, density: Density, warmup: int) -> int | None:
        """Return the step of warmup after which the cost of a step stays similar. None: unknown."""
        return None

    def _thinning(self, function: str, thin: int) -> Thinning:
        """Return the thinning. A schedule may have its own."""
        return Thinning(thin)

    def _check_end(self, function: str, state: Any, num_draws: int, thinning: Thinning) -> None:
        """Raise when a schedule ends before the run that begins at `state`."""
        return None

    def _start(
        self, name: str, call: SimpleNamespace, guard: InterruptGuard
    ) -> tuple[AnyChains, dict[str, Any] | None]:
        """Return the chains, and how their positions were found if that took a fit."""
        origin: dict[str, Any] | None = None
        init, seed, density = call.init, call.seed, call.density
        warmup = checks.integer(name, "warmup", call.warmup, minimum=0, maximum=2**39)
        # Position, gradient, momentum and proposal: before the first of them is made.
        each = 4 * density.dim * density.dtype.itemsize
        ids = None if call.chains is None else checks.chain_ids(name, call.chains, each=each)
        if ids is not None and len(set(ids.tolist())) != ids.size:
            raise ValueError(f"[{name}] expected distinct chain ids, got {ids.tolist()}")
        if isinstance(init, str):
            init = STARTS[checks.choice(name, "init", init, STARTS)]
        if isinstance(init, type):
            raise TypeError(f"[{name}] expected init as {init.__name__}(...), got the class itself")
        if isinstance(init, Draws):
            more = "sample(resume=draws)" if name == "Chains" else "resume=draws"
            raise TypeError(
                f"[{name}] expected init as positions, a fit or 'ensemble', got Draws: {more} "
                "continues a run, init=draws.positions[:, -1] starts another where it ended"
            )
        if callable(getattr(init, "_starts", None)):
            init = starts(name, init, ids, seed)
        elif callable(getattr(init, "_fitted", None)):
            ids = np.arange(_DEFAULT_CHAINS, dtype=np.uint32) if ids is None else ids
            by = {"finish": self._ensemble_finish, "executor": call.executor}
            how = ids, seed, guard, call.progress, call.max_seconds
            init, origin = starts(name, init, name, density.target, *how, **by)
        if init is None:
            ids = np.arange(_DEFAULT_CHAINS, dtype=np.uint32) if ids is None else ids
            make = getattr(density.target, "init", None)
            if make is None:
                expected = "init=, or a target with init(seed, chains)"
                got = f"{type(density.target).__name__} without it"
                raise ValueError(f"[{name}] expected {expected}, got {got}")
            plain = bool((ids == np.arange(len(ids))).all())
            with foreign(guard):
                init = make(seed=seed, chains=len(ids) if plain else ids.tolist())
            position = start_positions(density, name, init)
        else:
            position = start_positions(density, name, init, "init")
            single = getattr(init, "ndim", np.ndim(init)) == 1
            if ids is None:
                count = _DEFAULT_CHAINS if single else position.shape[0]
                ids = np.arange(count, dtype=np.uint32)
            if single:
                position = density.xp.concat([position] * ids.shape[0], axis=0)
            elif position.shape[0] != ids.shape[0]:
                whole = density.full_dim
                given = getattr(init, "shape", None) or np.shape(init)
                count = f"{len(ids)} chain{'s' if len(ids) > 1 else ''}"
                expected = f"init ({whole},) or ({len(ids)}, {whole}) for {count}"
                raise ShapeError(f"[{name}] expected {expected}, got shape {given}")
            shared = _groups(to_host(position))
            if shared is not None:
                origin = {**(origin or {}), "superchains": shared}
        start = Start(position, seed, ids, warmup, call.thinning)
        return self._chains(name, density, start, guard), origin


class Run:
    """One call of ``sample``: chains, sinks, and how far they are."""

    def __init__(
        self,
        sampler: Sampler,
        name: str,
        call: SimpleNamespace,
        ranks: RankAgreement | None,
        folder: Folder | None,
        guard: InterruptGuard,
        stack: contextlib.ExitStack,
        begin: float,
    ) -> None:
        """Find the first state and make the sinks, in a call that began at `begin`."""
        self.density = density = call.density
        self.settings = sampler._settings_on(density)
        self.sampler, self.name, self.call, self.guard = sampler, name, call, guard
        self.ranks, self.begin = ranks, begin
        if ranks is not None:
            ranks.guard = guard
        density.identify(guard)
        if ranks is not None:
            self._agree(ranks)
        if folder is not None:
            resumed = call.resume.state if isinstance(call.resume, Draws) else call.resume
            request = {
                "sampler": type(sampler).__name__,
                "target": density.fingerprint or type(density.target).__name__,
                "dim": density.dim,
                "settings": self.settings,
                **{key: getattr(call, key) for key in _DECIDES},
                "resume": resumed,
            }
            folder.resume(request)
        kept: Checkpoint | None = folder
        if call.store is not None and ranks is not None:
            kept = ranks.stored(folder)
        self.kept = 0 if kept is None else kept.num_draws
        chains: Any
        try:
            if kept is not None and kept.begun:
                chains = self._chains_at(placed(density.xp, kept.state))
                self.origin = kept.header["origin"]
            elif call.resume is None:
                chains, self.origin = sampler._start(name, call, guard)
            else:
                chains, self.origin = self._resumed()
        except Interrupted:  # nothing to return yet
            raise KeyboardInterrupt from None
        self.state: AnyState = chains.state
        self.found = sampler._found(self.state, call.resume)
        if kept is not None and kept.begun:
            self.found = kept.header["found"]
        self.num_draws, self.running = call.num_draws, call.running
        sampler._check_end(name, self.state, self.num_draws - self.kept, call.thinning)
        theta = chains.position(guard)
        if self.running is not None:  # bad x or y: before any work
            self.running.prepare(theta, guard)
            if kept is not None and (gathered := kept.part("prediction")) is not None:
                self.running.restore(*gathered)
        self.watch = ConvergenceMonitor(
            *(name, call.until, density, theta, call.first, self.num_draws),
            running=self.running,
            origin=self.origin,
            guard=guard,
        )
        if kept is not None and (watched := kept.part("watch")) is not None:
            self.watch.restore(*watched, density.xp)
        self.thinning: Thinning = call.thinning
        # Only the rank that writes the folder returns the draws.
        self.store = folder
        self.resuming = how_to_resume(folder)
        if call.store is not None and folder is None:
            self.resuming = "the same call resumes"
        self.lock = threading.Lock()  # held while draws, statistics and state change together
        self.ended = "running"  # then the reason of settings["stopped"]
        self.seconds: float | None = None
        # Draws lie at fixed step numbers, whatever the step of a resumed state is.
        past = self.thinning.count(max(0, chains.step - chains.warmup))
        self._draws_before: int = past - self.kept
        self.first: int = chains.step  # of this run, whose earlier calls filled the folder
        if kept is not None and kept.begun:
            self.first = self._step_of(0) if self._draws_before else 0
        self.chains: AnyChains = chains
        self.draws: Sink
        self.warmup: Sink | None = None
        self.predictions: Any = None  # a file of the predictions of each draw
        self._make_sinks(kept, theta)
        self.total: int = self._step_of(self.watch.expected_draws) - self.first
        if call.executor is not None:
            from ribbit.executor import RemoteChains  # not with ribbit: slow to load

            remote = RemoteChains(name, call.executor, sampler, density, chains, self.thinning)
            self.chains = stack.enter_context(remote)
        elif ranks is not None:
            self.chains = AgreedChains(chains, ranks, self._left)
        if self.running is not None:
            self.chains.largest = self.running.room(len(chains.ids))

    def _agree(self, ranks: RankAgreement) -> None:
        """Refuse options that do not go with a group, and calls that differ between ranks."""
        call, init = self.call, self.call.init
        ranks.refuse(
            executor=call.executor,
            until_and_store=call.until is not None and call.store is not None,
            init=isinstance(init, str) or callable(getattr(init, "_fitted", None)),
        )
        same = {key: getattr(call, key) for key in _ALIKE}
        same["chains"] = np.asarray(call.chains).tolist()
        same |= {key: same[key] is not None for key in ("predict_at", "store")}
        ranks.alike(sampler=repr(self.sampler), **same)
        if not ranks.leads:
            call.progress = False
            call.save_draws = call.save_draws and call.store is None
            call.save_warmup = call.save_warmup and call.store is None

    def _chains_at(self, state: Any) -> AnyChains:
        """Return chains that continue at a state."""
        if not isinstance(state, AnyState):
            raise TypeError(f"[{self.name}] expected a state, got {checks.summary(state)}")
        start = Start.at(state, self.call.thinning)
        return self.sampler._chains(self.name, self.density, start, self.guard)

    def _resumed(self) -> tuple[AnyChains, dict[str, Any] | None]:
        """Return the chains of the state to resume from, and the groups that shared a start."""
        call, given, origin = self.call, self.call.resume, None
        if isinstance(given, Draws):
            shared = superchains_of(given.settings, given.positions.shape[0])
            origin = None if shared is None else {"superchains": shared.tolist()}
            given = given.state
        if given is None:
            text = "expected draws of a sampler to resume, got draws of a fit: give them as init"
            raise ValueError(f"[{self.name}] {text}")
        chains = self._chains_at(given)
        if call.chains is not None or call.init is not None:
            text = f"expected resume without {'chains' if call.init is None else 'init'}"
            raise ValueError(f"[{self.name}] {text}, got both: they come from the state")
        return chains, origin

    def _make_sinks(self, kept: Checkpoint | None, theta: Array) -> None:
        """Make the sinks of draws like theta (C, P) and of warmup, after the draws of a folder."""
        call, (chains, dim) = self.call, theta.shape
        owed = max(0, self.chains.warmup - self.chains.step)
        statistics = self.sampler._statistics_of(thinned=self.thinning.period > 1)
        if self.store is not None:
            self.draws, self.warmup, self.predictions = self.store.begin(
                np.empty((chains, 0, dim), host_dtype(theta)),
                statistics,
                positions=call.save_draws,
                warmup=call.save_warmup and owed > 0,
                running=self.running,
            )
            if not self.store.begun:
                self.store.checkpoint(self._checkpoint, now=True)
            return
        how = {"positions": call.save_draws, "grows": call.until is not None}
        self.draws = Memory(theta, self.num_draws, statistics, **how)
        if kept is not None and self.kept:  # another rank has the positions
            none = np.empty((chains, self.kept, 0), host_dtype(theta))
            self.draws.append(none, archive.get(kept.arrays, "stats"))
        if call.save_warmup:
            self.warmup = Memory(theta, owed, statistics, positions=True)

    def complete(self) -> Draws:
        """Run, and pack the draws; an exception carries them too."""
        if here.handle is not None:
            here.handle._take_run(self)
        finishing: Any = contextlib.nullcontext()
        if self.store is not None:
            finishing = self.store.finishing(self._checkpoint)

        def done() -> tuple[Draws, str]:
            return self._pack(), f"{self.kept} of {self.num_draws} draws per chain"

        with carrying(self.name, "draws", done, self.resuming):
            with finishing:
                try:
                    self._loop()
                except BaseException:
                    self.ended = "an exception"  # also in the folder
                    raise
            return self._finish()

    def _loop(self) -> None:
        """Advance until all draws are kept, enough are, Ctrl-C, or the time is over."""
        sampler, watch, guard, chains = self.sampler, self.watch, self.guard, self.chains
        warmup = chains.warmup
        reporter = Progress(
            self.call.progress,
            total=self.total,
            chains=len(chains.ids),
            warmup=max(0, warmup - self.first),
            done=chains.step - self.first,
            draws=self._draws_after,
            title=type(sampler).__name__,
        )
        forecast, settled = None, sampler._settled(self.density, warmup)
        if settled is not None and settled >= chains.step:
            forecast = _Forecast(self.name, chains, self.density, settled, self.first + self.total)
        with reporter:
            # Ctrl-C may have ended the last check of the draws in the folder.
            met = watch.due(self.kept) and self._enough(reporter)
            met = met or watch.met  # of a folder that is complete
            while self.kept < self.num_draws and not (guard.requested or met):
                before, begun = chains.step, time.perf_counter()
                most = sys.maxsize
                if before >= warmup:  # until the next look, if there is memory for so many
                    left = self.num_draws - self.kept
                    most = min(left, watch.room(self.kept), self.draws.room())
                block = chains.advance(most, min(_SECONDS, self._left()), guard)
                if not self._put(*block, warming=before < warmup):
                    break
                if forecast is not None:
                    spent = time.perf_counter() - begun
                    forecast = forecast.after(chains.step, before, block[1], spent)
                if before < warmup <= chains.step:
                    sampler._warmed_up(self.density, chains)
                del block
                met = watch.due(self.kept) and self._enough(reporter)
                if reporter.wanted:
                    for step, stats in chains.calls:
                        reporter.update(step - self.first, stats)
                if met:
                    break
                if self.store is not None:
                    self.store.checkpoint(self._checkpoint)
                if chains.over or (self.ranks is None and self._left() <= 0.0):
                    self._enough(reporter, last=True)
                    break
            chains.raise_deferred()
            reporter.reason = self._why()
        if not guard.requested:
            try:
                watch.predict(guard)
            except (Interrupted, KeyboardInterrupt):
                if not guard.requested:
                    raise
        self.ended = self._why()
        self.seconds = self._elapsed()

    def _left(self) -> float:
        """Return the seconds until `max_seconds`, less the time of a last checkpoint."""
        if self.call.max_seconds is None:
            return math.inf
        reserve = 0.0 if self.store is None else self.store.reserve()
        left: float = self.call.max_seconds - reserve - (time.perf_counter() - self.begin)
        return left

    def _put(self, positions: Array | None, stats: dict[str, Array], *, warming: bool) -> bool:
        """Keep a block; False if Ctrl-C ended the predictions at its draws, which are discarded."""
        batch, running, store = None, self.running, self.store
        if positions is not None and running is not None and not warming:
            xp = namespace(positions)
            theta = xp.reshape(xp.permute_dims(positions, (1, 0, 2)), (-1, positions.shape[2]))
            try:
                batch = running.evaluate(theta, self.guard)
            except (Interrupted, KeyboardInterrupt):
                if not self.guard.requested:
                    raise
                return False
        with self.lock:
            try:
                if positions is not None and not warming:
                    if running is not None and batch is not None:
                        running.add(batch, positions.shape[0])
                        if self.predictions is not None:
                            self.predictions.append(to_host(batch[0].values))
                    self.draws.append(positions, stats)
                    self.watch.append(positions)
                    self.kept += positions.shape[1]
                elif positions is not None and self.warmup is not None:
                    self.warmup.append(positions, stats)
                self.state = self.chains.state
            except BaseException as error:
                if store is not None:  # its files have rows that no state may count
                    store.errors.append(error)
                raise
        return True

    def _elapsed(self) -> float:
        """Return the seconds of this call and of earlier calls that filled the same folder."""
        before = 0.0 if self.store is None else self.store.header.get("seconds", 0.0)
        return before + time.perf_counter() - self.begin

    def _checkpoint(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the plain values and the arrays that a folder needs to continue the run."""
        target = self.density.target
        predicts = callable(getattr(target, "predictive", None))
        values: dict[str, Any] = {
            "complete": self._is_complete(),
            "seconds": self._elapsed(),
            "settings": self._settings(),
            "predictive": overrides.described(target) if predicts else None,
            "origin": self.origin,
            "found": self.found,
        }
        arrays: dict[str, Any] = {}
        archive.put_state(arrays, values, self.state)
        values["watch"], watched = self.watch.pack()
        archive.put(arrays, "watch", watched)
        if self.running is not None and self.running.moments.count:
            values["prediction"], gathered = self.running.pack()
            archive.put(arrays, "prediction", gathered)
        return values, arrays

    def _is_complete(self) -> bool:
        """Whether the run is over: the same call would add nothing."""
        if self.ended in ("running", "an exception") or self.watch.due(self.kept):
            return False
        return self.kept == self.num_draws or self.ended == "converged"

    def _step_of(self, count: int) -> int:
        """Return the number of the step that gives the draw `count` of this run."""
        return self.chains.warmup + self.thinning.step(self._draws_before + count)

    def _draws_after(self, done: int) -> int:
        """Return the draws of this run after so many of its steps."""
        past = max(0, self.first + done - self.chains.warmup)
        return self.thinning.count(past) - self._draws_before

    def _enough(self, reporter: Progress, *, last: bool = False) -> bool:
        """Return whether the draws meet `until`, or Ctrl-C ended the check."""
        watch, guard = self.watch, self.guard
        if self.kept == 0:
            return False
        try:
            watch.check(self.kept, self.draws, self._settings(), guard, self._confirmed, last=last)
        except (Interrupted, KeyboardInterrupt):
            if not guard.requested:
                raise
            return True
        reporter.total = self._step_of(watch.expected_draws) - self.first
        return watch.met

    def _confirmed(self) -> bool:
        """Whether the summary says "converged", at the inputs of the rule."""
        draws, rule = self._pack(), self.watch.rule
        assert rule is not None
        draws.settings["faults"] = self._faults()
        return draws.summary(rule.at if draws.positions.shape[1] else None).converged is True

    def _why(self) -> str:
        """Return why the run has ended."""
        if self.watch.met:
            return "converged"
        if self.kept == self.num_draws:
            return "num_draws" if self.watch.rule is None else "max_draws"
        return "interrupted" if self.guard.requested else "max_seconds"

    def _finish(self) -> Draws:
        """Pack the draws, and warn of faults."""
        interrupted, chains, draws = self.ended == "interrupted", self.chains, self._pack()
        resuming = self.resuming or "continue with resume=draws"
        if interrupted and not self.guard.asked:
            done = f"{self.kept} of {self.num_draws} draws per chain"
            warn(f"[{self.name}] interrupted after {done}; returning these ({resuming})")
        if self.kept == 0 < self.num_draws and not interrupted:
            steps = f"{chains.step} steps, {max(0, chains.warmup - chains.step)} of warmup to go"
            found = "expected at least one draw within max_seconds, got none"
            warn(f"[{self.name}] {found}: the run ended after {steps} ({resuming})")
        text = None if interrupted else unconverged(draws) or self._unmet(draws)
        if text is not None:
            warn(f"[{self.name}] {text}", ConvergenceWarning)
        return draws

    def _unmet(self, draws: Draws) -> str | None:
        """Return a warning if the draws do not meet `until`."""
        rule, last = self.watch.rule, self.watch.last_check
        if rule is None or last is None or last.met:
            return None
        start = f"until= was not met after {self.watch.checked_at} draws per chain ({self.ended})"
        if last.rhat <= rule.rhat and last.ess >= rule.ess:
            return f"{start}. {draws.summary().message}"
        return (
            f"{start}: R-hat is {last.rhat:.3f} (wanted {rule.rhat:g}) for the "
            f"{last.of or 'draws'}, with {last.ess:.0f} effective draws (wanted {rule.ess:g}). "
            "resume=draws continues."
        )

    def snapshot(self) -> Draws:
        """Return the draws so far, from another thread during the run."""
        with self.lock:
            running = None if self.running is None else self.running.copy()
            return self._pack(running, self._elapsed())

    def _pack(
        self, running: RunningPrediction | None = None, seconds: float | None = None
    ) -> Draws:
        """Return the draws so far."""
        target = self.density.target
        running = self.running if running is None else running
        positions, stats = self.draws.positions(self.kept), self.draws.stats(self.kept)
        warmup_positions, warmup_stats = None, None
        if self.warmup is not None:
            warmup_positions = self.warmup.positions(self.warmup.count)
            warmup_stats = self.warmup.stats(self.warmup.count)
        prediction = None
        if running is not None:
            prediction = Prediction(
                running.predictive,
                running.x,
                positions=positions if self.call.save_draws else None,
                running=running,
                samples=None if self.predictions is None else self.predictions.array(self.kept),
            )
        return Draws(
            positions=positions,
            stats=stats,
            complete=self._is_complete(),
            state=self.state,
            settings=self._settings(),
            predictive=target if callable(getattr(target, "predictive", None)) else None,
            prediction=prediction,
            warmup_positions=warmup_positions,
            warmup_stats=warmup_stats,
            seconds=self.seconds if seconds is None else seconds,
            monitored=self.watch.monitored,
        )

    def _settings(self) -> dict[str, Any]:
        """Return how the draws were made, as plain values."""
        sampler, chains, watch = self.sampler, self.chains, self.watch
        target = self.density.target
        stopped: dict[str, Any] = {"reason": self.ended, "draws": self.kept}
        if watch.rule is not None and (last := watch.last_check) and watch.checked_at == self.kept:
            stopped["rhat"] = last.rhat if math.isfinite(last.rhat) else None
            stopped["ess"] = last.ess if math.isfinite(last.ess) else None
            stopped["of"] = last.of
        kernels = {  # how the target computes, if it says so
            "integrated": getattr(target, "integrated", None),
            "dtype": self.density.dtype.name,
            "precision": getattr(target, "precision", None),
            "instruction_set": getattr(target, "instruction_set", None),
        }
        return {
            "sampler": type(sampler).__name__,
            **self.settings,
            **self.found,
            "num_draws": self.num_draws,
            "warmup": chains.warmup,
            "thin": self.thinning.period,
            "chains": chains.ids.tolist(),
            "seed": chains.seed,
            **({} if self.origin is None else {"start": self.origin}),
            **{key: value for key, value in kernels.items() if isinstance(value, str)},
            "save_draws": self.call.save_draws,
            **watch.settings(),
            "stopped": stopped,
            **({} if self.ended == "running" else {"faults": self._faults()}),
            "versions": dict(_versions()),
        }

    def _faults(self) -> dict[str, float]:
        """Return the faults that only the run knows, for the table of checks."""
        found, target = {}, self.density.target
        if self.density.undefined:
            diverging = self.draws.stats(self.kept).get("diverging")
            if diverging is not None and to_host(diverging).any():
                found["undefined"] = 1.0
        sd = self.density.facts["prior_sd"]
        # A normal prior has no mass out there; a heavy tail may have.
        if sd is not None and getattr(target, "normal_prior", False):
            theta = to_host(self.state.position)
            widths = sd * getattr(target, "temperature", 1.0) ** 0.5
            mean = to_host(getattr(target, "prior_mean", np.zeros(1)))
            found["far"] = float(_largest(theta, mean, widths).max())
        return found


class _Forecast:
    """Warns early of a run that will be long; draws never depend on it."""

    def __init__(
        self, name: str, chains: AnyChains, density: Density, first: int, last: int
    ) -> None:
        """Look at the transitions after step `first`, of a run that ends at step `last`."""
        self._name, self._chains, self._density = name, chains, density
        self._first, self._last = first, last
        self._count, self._leapfrogs, self._seconds = 0, 0.0, 0.0

    def after(
        self, step: int, before: int, stats: dict[str, Array], seconds: float
    ) -> _Forecast | None:
        """Take the transitions (C, K) after step `before`; warn and return None at the end."""
        count = step - max(before, self._first)
        if count <= 0 or not stats:
            return self
        lengths = to_host(stats["n_steps"]).mean(axis=0)  # (K,)
        taken = lengths[-count:]
        self._count += count
        self._leapfrogs += count * float(taken.mean())
        self._seconds += seconds * float(taken.sum() / lengths.sum())  # earlier ones are brief
        if self._count < _FORECAST and self._seconds < _FORECAST_SECONDS:
            return self
        mean = self._leapfrogs / self._count
        if mean < _LONG:
            return None
        left = self._seconds / self._count * (self._last - step)
        look = getattr(self._density.target, "_vanishing_noise", None)
        found = None if look is None else look(self._chains.position())
        place = f"after {step} of {self._last} transitions"
        if found is not None:
            size, advice = found
            warn(
                f"[{self._name}] expected data with noise, got a noise sd of {size} {place}: the "
                f"posterior is as narrow as its noise, so that a trajectory takes {mean:,.0f} "
                f"leapfrogs on average and the rest of the run about {_duration(left)}, perhaps "
                f"without converging. Give {advice}; Ctrl-C returns the draws so far.",
                NoiseWarning,
            )
        elif left > _PATIENCE:
            step_size = float(np.median(to_host(stats["step_size"])[:, -1]))
            warn(
                f"[{self._name}] expected trajectories of some hundred leapfrogs, got {mean:,.0f} "
                f"on average (step sizes of {step_size:.1g}) {place}: the posterior is far "
                "narrower than its prior somewhere, and the rest of the run takes about "
                f"{_duration(left)}. num_leapfrog_steps=200 takes shorter ones, for draws that "
                "depend more on each other; rb.MCLMC(target) takes one gradient a step; Ctrl-C "
                "returns the draws so far.",
                RibbitWarning,
            )
        return None


def _duration(seconds: float) -> str:
    for unit, length in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2.0 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def start_positions(
    density: Density, name: str, position: Array, argument: str = "position"
) -> Array:
    """Copy of a start as (C, P) in the target's dtype."""
    xp = density.xp
    if is_array(position):
        if namespace(position, function=name, name=argument) is not xp:
            got = checks.summary(position)
            raise DTypeError(f"[{name}] expected {argument} as {xp.__name__} array, got {got}")
        if not xp.isdtype(position.dtype, ("real floating", "integral")):
            got = position.dtype
            raise DTypeError(f"[{name}] expected {argument} of real numbers, got dtype {got}")
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


def starts(function: str, init: Any, *arguments: Any, **options: Any) -> Any:
    """Return the result of `init._starts`, or with options of `init._fitted`, checked."""
    found = (init._fitted if options else init._starts)(*arguments, **options)
    positions = found[0] if options and isinstance(found, tuple) and len(found) == 2 else found
    if not hasattr(positions, "ndim") or (options and positions is found):
        got = f"{checks.summary(init)}, which gave {checks.summary(found)} for positions"
        raise TypeError(f"[{function}] expected init as positions, a fit or 'ensemble', got {got}")
    return found


@functools.cache
def _versions() -> dict[str, str]:
    """Return the versions that decide rounding."""
    python = ".".join(map(str, sys.version_info[:3]))
    return {"ribbit": version(), "numpy": np.__version__, "python": python}


def _largest(
    position: npt.NDArray[Any], mean: npt.NDArray[Any], widths: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """Return max |position - mean| / widths of each chain (C,), in parts that stay in the cache."""
    shape = position.shape[1:]
    mean, widths = np.broadcast_to(mean, shape), np.broadcast_to(widths, shape)
    worst = np.zeros(position.shape[0])
    for low in range(0, position.shape[1], _BLOCK):
        part = slice(low, low + _BLOCK)
        sizes = np.abs(position[:, part] - mean[part]) / widths[part]
        np.maximum(worst, sizes.max(axis=1), out=worst)
    return worst


def _groups(starts: npt.NDArray[Any]) -> list[int] | None:
    """Return the number of each chain's start (C, P) if chains share starts, else None."""
    # Not the bytes themselves: a start has maybe millions of parameters.
    keys = [hash(row.tobytes()) for row in starts]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] for key in keys] if len(numbers) < len(keys) else None


def _short(value: Any) -> str:
    return f"[{len(value)} values]" if isinstance(value, list) and len(value) > 8 else repr(value)
