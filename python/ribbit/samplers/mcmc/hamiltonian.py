"""What HMC and NUTS share: where chains start, and how a state goes on.

Shapes: C chains, P parameters, M terms.
"""

from __future__ import annotations

import dataclasses
import weakref
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ribbit._arrays import checks
from ribbit.density import Density
from ribbit.interrupt import InterruptGuard
from ribbit.protocols import Array
from ribbit.results.state import State
from ribbit.sample import Stepwise
from ribbit.samplers.mcmc.precision_probe import warn_of_precision
from ribbit.samplers.mcmc.tuning import Tuning

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Evaluated", "Hamiltonian"]


class Hamiltonian(Stepwise[State]):
    """Base class of the samplers whose transitions follow Hamiltonian trajectories."""

    # A transition takes long, and each has statistics of its own.
    _chunked: ClassVar[bool] = False
    # Leapfrog steps that test the precision of gradients; None: those of a trajectory.
    _probe_steps: ClassVar[int | None] = None

    _tuning: Tuning

    def __init__(self, density: Density, divergence_threshold: float) -> None:
        super().__init__(density)
        self._threshold = checks.positive(
            type(self).__name__, "divergence_threshold", divergence_threshold
        )
        # Tuning arrays of the state adopted last, by identity; a cache, not state of the chains.
        self._adopted: tuple[Any, Any, Any] = (None, None, None)
        self._evaluated = Evaluated()

    @abstractmethod
    def _transition(
        self, state: State, guard: InterruptGuard | None
    ) -> tuple[State, dict[str, Array]]:
        """Make one transition of all chains."""

    def _check_warmup(self, function: str, warmup: int) -> None:
        """Raise unless `warmup` transitions can adapt what is to be adapted."""
        self._tuning.check_warmup(function, warmup)

    def _init(
        self,
        function: str,
        position: Array,
        seed: int,
        chains: npt.ArrayLike | None,
        warmup: int,
        guard: InterruptGuard | None,
    ) -> State:
        density = self._density
        q, ids = self._start_arrays(function, position, seed, chains, warmup)
        self._check_warmup(function, warmup)
        terms, grad, logdensity = density.evaluate(function, q, ids, guard)
        tuned = self._tuning.start(q, terms, grad, seed, ids, warmup, guard)
        reference = density.precision_reference
        if reference is not None:
            probed = dict(tuned)
            if self._probe_steps is not None:
                probed["num_steps"] = np.full(ids.shape, self._probe_steps, dtype=np.int64)
            warn_of_precision(
                function,
                density,
                Density(reference, function=function),
                q,
                probed,
                seed=seed,
                chains=ids,
                divergence_threshold=self._threshold,
                guard=guard,
            )
        self._adopted = tuned["num_steps"], tuned["step_size"], tuned["inverse_mass"]
        state = State(
            position=q,
            logdensity=logdensity,
            grad=grad,
            terms=terms,
            step=0,
            seed=seed,
            chains=ids,
            warmup=warmup,
            target=density.fingerprint,
            **tuned,
        )
        self._evaluated.add(state)
        return state

    def _advance(
        self, state: Any, num_steps: int, guard: InterruptGuard | None
    ) -> tuple[State, dict[str, Array]]:
        for _ in range(num_steps):
            state, info = self._transition(state, guard)
        self._evaluated.add(state)
        return state, info

    def _adopt(self, function: str, state: Any, guard: InterruptGuard | None) -> State:
        """Put this sampler's target and fixed settings into a state; what was adapted stays."""
        if not isinstance(state, State):
            raise TypeError(f"[{function}] expected a State, got {checks.summary(state)}")
        num_steps, step_size, mass = self._adopted
        if (
            state.num_steps is num_steps
            and state.step_size is step_size
            and state.inverse_mass is mass
            and state in self._evaluated
        ):
            return state  # `step` again and again: nothing has changed
        density = self._density
        density.check_state(function, state)
        changes: dict[str, Any] = {}
        if state not in self._evaluated:
            # Of another sampler, or from a file. On the same target the same bits come out.
            terms, grad, logdensity = density.evaluate(
                function, state.position, state.chains, guard, resumed=True
            )
            changes |= {"terms": terms, "grad": grad, "logdensity": logdensity}
        changes |= {"target": density.fingerprint, **self._tuning.adopt(state)}
        adopted: State = dataclasses.replace(state, **changes)
        self._evaluated.add(adopted)
        self._adopted = adopted.num_steps, adopted.step_size, adopted.inverse_mass
        return adopted


class Evaluated:
    """The states at which a sampler knows its density: all that it made and that still exist.

    A state is known by its position, terms and gradient, the arrays themselves: a state from a
    file, or with another position, is not. Of arrays without weak references only the last count.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Callable[[], Any], ...]] = {}
        self._last: tuple[Any, ...] = ()

    def __reduce__(self) -> tuple[type[Evaluated], tuple[()]]:
        return Evaluated, ()

    def add(self, state: Any) -> None:
        """Know a state whose terms and gradient are those of the density at its position."""
        known, key = self._known, id(state.terms)
        try:
            known[key] = (
                weakref.ref(state.terms, lambda _: known.pop(key, None)),
                weakref.ref(state.position),
                weakref.ref(state.grad),
            )
        except TypeError:
            self._last = state.terms, state.position, state.grad

    def __contains__(self, state: Any) -> bool:
        arrays, known = (state.terms, state.position, state.grad), self._known.get(id(state.terms))
        kept = self._last if known is None else tuple(one() for one in known)
        return bool(kept) and all(a is b for a, b in zip(arrays, kept, strict=True))
