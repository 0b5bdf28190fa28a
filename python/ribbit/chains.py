"""Chains for the loop of a run: native chains, and chains on several ranks.

Shapes: C chains, K rows of a block, P parameters.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from ribbit import _core
from ribbit._arrays import checks
from ribbit._arrays.keywords import explain
from ribbit._arrays.namespace import namespace
from ribbit._arrays.threads import FunctionFailed, Interrupted
from ribbit.density import Density
from ribbit.distributed.ranks import RankAgreement
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array
from ribbit.results import archive
from ribbit.results.state import AnyState, State, placed

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "AgreedChains",
    "AnyChains",
    "Block",
    "CallSize",
    "Chains",
    "NativeChains",
    "PythonChains",
    "Start",
    "Thinning",
    "joined_blocks",
    "naming",
]

# Positions (C, K, P), None in warmup that is not kept, and statistics (C, K); without rows, {}.
Block: TypeAlias = "tuple[Array | None, dict[str, Array]]"

_Numbers = TypeVar("_Numbers", int, "npt.NDArray[np.int64]")


@dataclass(frozen=True)
class Thinning:
    """The last `many` steps of every `period`, `gap` apart, give draws. Step 1 follows warmup."""

    period: int
    many: int = 1
    gap: int = 1
    each: bool = False  # whether the positions of all steps of warmup are kept

    @property
    def _first(self) -> int:
        return self.period - (self.many - 1) * self.gap

    def count(self, step: int) -> int:
        """Return how many draws steps 1 ... `step` give."""
        full, rest = divmod(step, self.period)
        inside = 0 if rest < self._first else 1 + (rest - self._first) // self.gap
        return full * self.many + inside

    def step(self, number: _Numbers) -> _Numbers:
        """Return the step of draw `number`, from 1; also for an array of numbers."""
        full, place = divmod(number - 1, self.many)
        return full * self.period + self._first + place * self.gap

    def stop(self, step: int, warmup: int) -> int:
        """Return the step of the next draw, or of warmup that is kept, or the end of warmup."""
        if step < warmup:
            return step + 1 if self.each else warmup
        return warmup + self.step(self.count(step - warmup) + 1)


class Start(NamedTuple):
    """The start of chains at positions (C, P) or at a state, and their thinning."""

    position: Array | None = None
    seed: int = 0
    ids: Any = None  # (C,) uint32
    warmup: int = 0
    thinning: Thinning = Thinning(1)
    state: Any = None

    @staticmethod
    def at(state: Any, thinning: Thinning) -> Start:
        """Return the start of chains that continue."""
        return Start(None, state.seed, state.chains, state.warmup, thinning, state)


class CallSize:
    """Number of steps of a call. It grows until a call takes about `_seconds`."""

    _seconds = 0.1

    def __init__(self) -> None:
        """Begin with single steps."""
        self._most = 1
        self._began = 0.0
        self._whole = False  # whether the call could have been longer

    def size(self, left: int) -> int:
        """Return how many of `left` steps to make now."""
        self._began = time.perf_counter()
        self._whole = left >= self._most
        return min(self._most, left)

    def made(self, count: int) -> None:
        """Learn from the call that made `count` steps."""
        seconds = max(time.perf_counter() - self._began, 1e-6)
        if seconds > 4 * self._seconds:  # steps have become slower
            self._most = max(1, min(self._most, int(count * self._seconds / seconds)))
        # A call of several draws may end some steps before its limit.
        elif self._whole and 2 * count > self._most:
            self._most = max(1, min(8 * count, int(count * self._seconds / seconds), 1 << 20))


class AnyChains(Protocol):
    """Chains that a run moves: native, in Python, on workers, or on several ranks."""

    over: bool  # whether the ranks of a group have agreed that the time is over
    largest: int  # draws of a block after warmup, at most
    calls: list[tuple[int, dict[str, Array]]]  # step and statistics of every call of a block

    seed: int
    ids: npt.NDArray[np.uint32]  # (C,)
    warmup: int  # steps

    @property
    def step(self) -> int:
        """Steps made, warmup included."""

    @property
    def warming_up(self) -> bool:
        """Whether the next step is a step of warmup."""

    @property
    def state(self) -> AnyState:
        """The state after the last step."""

    def position(self, guard: InterruptGuard | None = None) -> Array:
        """Return the current draws (C, P)."""

    def advance(
        self, most: int, seconds: float, guard: InterruptGuard, stop: int = sys.maxsize
    ) -> Block:
        """Make at most `most` rows in about `seconds`; positions are valid until the next call."""
        # A row is a draw, or a step of warmup. The call ends at step `stop`, at the end of warmup,
        # or at Ctrl-C, with the rows so far.

    def raise_deferred(self) -> None:
        """Raise the error that came after the steps of the last block, if there was one."""


class NativeChains:
    """Chains of the core in this process."""

    over = False

    def __init__(
        self,
        function: str,
        density: Density,
        kernel: str,
        options: dict[str, Any],
        start: Start,
    ) -> None:
        """Make chains that have no positions yet, or that continue; `function` prefixes errors."""
        self._function, self._density, thinning = function, density, start.thinning
        self.seed, self.ids, self.warmup = start.seed, start.ids, start.warmup
        with naming(function):
            self._core = _core.Chains(
                density.core,
                kernel,
                options,
                facts=density.facts,
                seed=start.seed,
                chains=start.ids,
                warmup=start.warmup,
                thinning=(thinning.period, thinning.many, thinning.gap),
                save_warmup=thinning.each,
                fingerprint=density.fingerprint or {},
                bytes=None if start.state is None else bytes(start.state),
            )
        # Steps made, warmup included. A copy, because other threads read it during a call.
        self.step: int = self._core.step
        self.largest = sys.maxsize
        self.calls: list[tuple[int, dict[str, Array]]] = []

    @property
    def warming_up(self) -> bool:
        """Whether the next step is a step of warmup."""
        return self.step < self.warmup

    @property
    def state(self) -> State:
        """The state after the last step."""
        return State(self._core.save())

    @property
    def step_size(self) -> npt.NDArray[np.float64]:
        """Step sizes (C,) of the next transition."""
        return self._core.summary()["step_size"]  # type: ignore[no-any-return]

    def start(self, position: Array, guard: InterruptGuard | None) -> None:
        """Begin at positions (C, dim)."""
        position = self._density.widened(position)
        with naming(self._function):
            self._core.start(position, None if guard is None else guard.flag)

    def position(self, guard: InterruptGuard | None = None) -> Array:
        """Return the current draws (C, P)."""
        return self._core.position(None if guard is None else guard.flag)

    def advance(
        self, most: int, seconds: float, guard: InterruptGuard, stop: int = sys.maxsize
    ) -> Block:
        """Make at most `most` rows; see `AnyChains`."""
        self.calls = []  # else the core cannot write the next block into this one's memory
        if self.warming_up:
            most = min(most, stop - self.step)
        else:
            most = min(most, self.largest)
        block: Block = None, {}
        try:
            with naming(self._function):
                block = self._core.advance(most, seconds, guard.flag)
        except FunctionFailed:
            if most == 1:
                raise
            self.largest = 1  # the draws before the failure come one by one
            return self.advance(1, seconds, guard, stop)
        except (Interrupted, KeyboardInterrupt):
            if not guard.requested:
                raise
        if block[1] and not next(iter(block[1].values())).shape[1]:
            block = None, {}  # the time, or Ctrl-C, came before the first draw
        self.step = self._core.step
        self.calls = [(self.step, block[1])]
        return block

    def raise_deferred(self) -> None:
        """Do nothing: a call that fails changes nothing."""


class PythonChains:
    """Base class of chains that Python moves."""

    over = False  # whether the ranks of a group have agreed that the time is over
    largest = sys.maxsize  # draws of a block after warmup, at most
    warmup: int
    _density: Density
    _at: Any  # after the last step: step, position, seed and chains
    _error: BaseException | None = None  # raised after the rows of the last block

    def __init__(self) -> None:
        # Step and statistics, (C,) or (C, K), of every call of the last block.
        self.calls: list[tuple[int, dict[str, Array]]] = []

    @property
    def step(self) -> int:
        """Steps made, warmup included."""
        return self._at.step  # type: ignore[no-any-return]

    @property
    def warming_up(self) -> bool:
        """Whether the next step is a step of warmup."""
        return self.step < self.warmup

    def position(self, guard: InterruptGuard | None = None) -> Array:
        """Return the current draws (C, P)."""
        return self._density.completed(self._at, guard)

    def raise_deferred(self) -> None:
        """Raise the error that came after the rows of the last block, if there was one."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _defer(self, error: BaseException, guard: InterruptGuard, begun: Any) -> None:
        """Keep the error that ends a block from point `begun`; raise it if there are no steps."""
        ours = guard.requested and isinstance(error, Interrupted | KeyboardInterrupt)
        if not ours and self._at is begun:
            raise error
        self._error = None if ours else error


@contextlib.contextmanager
def naming(function: str) -> Iterator[None]:
    """Put the name of a function in front of errors of the core."""
    try:
        yield
    except ValueError as error:
        if str(error).startswith("["):
            raise
        raise type(error)(f"[{function}] {error}") from None


class AgreedChains:
    """Chains on a target whose rows lie on several ranks. The ranks agree before each call."""

    # Rank 0 decides how many rows a call makes, and by the seconds `left` whether the time is over.

    def __init__(self, chains: Any, ranks: RankAgreement, left: Callable[[], float]) -> None:
        self._chains, self._ranks, self._left = chains, ranks, left
        self._size, self._first, self.over = CallSize(), chains.step, False
        self.largest = sys.maxsize

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chains, name)

    def advance(
        self, most: int, seconds: float, guard: InterruptGuard, stop: int = sys.maxsize
    ) -> Block:
        """Make at most `most` rows, as many as rank 0 says."""
        chains, before = self._chains, self.step
        chains.calls = []
        chains.raise_deferred()  # before the other ranks wait for this one
        if chains.warming_up:
            most = min(most, chains.warmup - before)
        else:
            most = min(most, self.largest)
        count, over = self._size.size(most), self._left() <= 0.0 and before > self._first
        count, self.over = self._ranks.agree(lambda: chains.state.position, count, over)
        if guard.requested or self.over:
            return None, {}
        if chains.warming_up:
            stop = min(stop, before + count)
        block: Block = chains.advance(count, math.inf, guard, stop)
        self._size.made(count)  # rows; a row may be many steps
        return block


def joined_blocks(blocks: list[Block]) -> Block:
    """Join the draws of several calls."""
    if not blocks:
        return None, {}
    xp = namespace(*blocks[0][1].values())
    stats = {name: xp.concat([block[1][name] for block in blocks], axis=1) for name in blocks[0][1]}
    if blocks[0][0] is None:
        return None, stats
    return xp.concat([block[0] for block in blocks], axis=1), stats


_ALL = Thinning(1, each=True)


class Chains:
    """Chains that you advance yourself, in a loop of your own.

    Parameters
    ----------
    sampler : Sampler
        HMC, NUTS, MCLMC, SGLD, SGHMC or BAOAB.
    init : (P,) or (C, P) array, a fit, or "ensemble", optional
        Start of all chains, or of each, as in :meth:`Sampler.sample`.
    chains : int or sequence of int, optional
        Number of chains, or their ids. Default: the rows of `init`, else 4.
    seed : int, Generator, SeedSequence or None
        64-bit key of all random numbers. The same seed gives the draws of :meth:`Sampler.sample`.
    warmup : int, optional
        Steps in which the sampler adapts. Default: as :meth:`Sampler.sample`.

    Attributes
    ----------
    position : (C, P) array
        Current draws of the chains.
    step : int
        Steps made so far, warmup included.
    warming_up : bool
        Whether the next step is a step of warmup.
    settings : dict
        Settings of the sampler on this target.

    Raises
    ------
    TypeError, ValueError
        For bad arguments or a bad start.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> chains = rb.Chains(rb.HMC(target), chains=2, warmup=100)
    >>> _ = chains.advance(100)  # warmup
    >>> positions, stats = chains.advance(5)
    >>> positions.shape, stats["accepted"].shape
    ((2, 5, 10), (2, 5))
    """

    def __init__(
        self,
        sampler: Any,
        init: Any = None,
        *,
        chains: int | Sequence[int] | None = None,
        seed: checks.Seed = 0,
        warmup: int | None = None,
    ) -> None:
        density = self._on("Chains", sampler, None)
        call = SimpleNamespace(init=init, chains=chains, warmup=warmup, density=density)
        call.seed = checks.seed("Chains", seed)
        call.executor, call.progress, call.max_seconds = None, False, None
        if warmup is None:
            call.warmup = sampler._warmup(None, sampler._default_thin)
        call.thinning = _ALL
        self._chains: Any
        with self._interruptible() as guard:
            self._chains, _ = sampler._start("Chains", call, guard)

    @classmethod
    def load(cls, sampler: Any, data: bytes) -> Chains:
        """Return the chains that `save` saved, with the options of `sampler`.

        Parameters
        ----------
        sampler : Sampler
            On the same target. Values that warmup has found come from `data`.
        data : bytes
            From :meth:`save`, or ``bytes(draws.state)`` of HMC and NUTS.

        Raises
        ------
        TypeError, ValueError
            If the bytes hold no chains of this sampler and target.
        """
        name = "Chains.load"
        if not isinstance(data, bytes | bytearray | memoryview):
            hint = ""
            if isinstance(data, State):
                hint = ": give bytes(state)"
            elif isinstance(getattr(data, "state", None), State):
                hint = ": give bytes(draws.state)"
            elif isinstance(data, Chains):
                hint = ": give chains.save()"
            raise TypeError(f"[{name}] data must be bytes, got {checks.summary(data)}{hint}")
        state = archive.state_from(bytes(data))
        found = cls.__new__(cls)
        density = found._on(name, sampler, state)
        with found._interruptible() as guard:
            start = Start.at(placed(density.xp, state), _ALL)
            found._chains = sampler._chains(name, density, start, guard)
        return found

    def _on(self, function: str, sampler: Any, state: Any) -> Density:
        """Keep the sampler, and return its density."""
        if isinstance(sampler, type) or not callable(getattr(sampler, "_density_for", None)):
            got = checks.summary(sampler)
            if isinstance(sampler, type):
                got = f"the class {sampler.__name__}"
            raise TypeError(f"[{function}] sampler must be one such as HMC(target), got {got}")
        density: Density = sampler._density_for(state)
        self._sampler, self._density = sampler, density
        self.settings = dict(sampler._settings_on(density))
        return density

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[InterruptGuard]:
        """Let Ctrl-C end native code."""
        with InterruptGuard(self._density.group) as guard:
            try:
                yield guard
            except Interrupted:
                raise KeyboardInterrupt from None

    @property
    def position(self) -> Array:
        """Current draws (C, P)."""
        position: Array = self._chains.position()
        return position

    @property
    def step(self) -> int:
        """Steps made so far, warmup included."""
        return self._chains.step  # type: ignore[no-any-return]

    @property
    def warming_up(self) -> bool:
        """Whether the next step is a step of warmup."""
        return self._chains.warming_up  # type: ignore[no-any-return]

    def advance(self, num_steps: int = 1) -> tuple[Array, dict[str, Array]]:
        """Make steps of all chains.

        Parameters
        ----------
        num_steps : int
            Steps K, at least 1. HMC and NUTS: transitions.

        Returns
        -------
        positions : (C, K, P) array
            Positions after each step.
        stats : dict of (C, K) arrays
            Statistics of each step, as ``stats`` of :class:`Draws`.

        Raises
        ------
        NonFiniteError
            If a parameter of SGLD, SGHMC or BAOAB becomes infinite or NaN.

        Notes
        -----
        After Ctrl-C or an error the chains stay at their last step. Its positions are lost, so
        advance by few steps if you need them.
        """
        count = checks.integer("Chains.advance", "num_steps", num_steps, minimum=1, maximum=2**39)
        end, blocks = self.step + count, list[Block]()
        with self._interruptible() as guard:
            while self.step < end:
                block = self._chains.advance(end - self.step, math.inf, guard, end)
                if guard.requested:
                    raise KeyboardInterrupt
                blocks.append((namespace(block[0]).asarray(block[0], copy=True), block[1]))
            self._chains.raise_deferred()
        positions, stats = joined_blocks(blocks)
        assert positions is not None
        return positions, stats

    def save(self) -> bytes:
        """Return the bytes from which :meth:`load` continues the chains."""
        return archive.bytes_of(self._chains.state)

    def copy(self) -> Chains:
        """Return a copy that continues independently."""
        return Chains.load(self._sampler, self.save())

    __copy__ = copy

    def __deepcopy__(self, memo: object) -> Chains:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return Chains.load, (self._sampler, self.save())

    def __repr__(self) -> str:
        chains, dim = self.position.shape
        phase = "warming up" if self.warming_up else "warm"
        name = type(self._sampler).__name__
        return f"Chains({name}, {chains} chains, dim {dim}, step {self.step}, {phase})"


explain({"__all__": ["Chains"], "Chains": Chains})
