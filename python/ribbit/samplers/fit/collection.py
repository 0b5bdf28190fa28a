"""Moments of the weights at the ends of epochs, while an optimiser goes on."""

# Shapes: M members, P parameters, K deviations.

from __future__ import annotations

from types import ModuleType

from ribbit._arrays.namespace import errstate, from_host, namespace
from ribbit.protocols import Array
from ribbit.results.state import StochasticState, Welford
from ribbit.results.swag import SWAGFit
from ribbit.samplers.sgmcmc.stepper import Stepper
from ribbit.store import Checkpoint

_POINTS = 20  # of the history of a collection


class Collection:
    """Running mean, sum of squares and the last deviations (Maddox et al. 2019, algorithm 1)."""

    def __init__(
        self, stepper: Stepper, epochs: int, max_rank: int, before: SWAGFit | None
    ) -> None:
        self.stepper, self.epochs, self._max_rank = stepper, epochs, max_rank
        self.first_step: int | None = None
        self.moments: Welford | None = None
        self._deviations: list[Array] = []  # (M, P) each, the oldest first
        if before is not None and before.count:
            self.first_step = before.first_step
            self.moments = Welford(before.mean, before.squares, before.count)
            kept = before.deviations
            self._deviations = [kept[:, k, :] for k in range(kept.shape[1])]
        self.taken = 0  # iterates of this call

    def restore(self, store: Checkpoint, xp: ModuleType) -> None:
        """Go on from a stored fit."""
        self.taken = int(store.header["loop"]["taken"])
        counts = store.header["collected"]
        if not counts["count"]:
            return
        self.first_step = counts["first_step"]
        mean, squares, kept = (
            from_host(xp, store.arrays[name]) for name in ("mean", "squares", "deviations")
        )
        self.moments = Welford(mean, squares, counts["count"])
        self._deviations = [kept[:, k, :] for k in range(kept.shape[1])]

    def take(self, state: StochasticState, first_step: int) -> None:
        """Keep the weights (M, P) of a state at the end of an epoch."""
        position = state.position
        xp = namespace(position)
        if self.moments is None:
            self.first_step = first_step
            self.moments = Welford.start(xp, position.shape)
        with errstate(xp):  # weights that run away: the optimiser's own error says so
            self.moments = self.moments.update(xp, position)
        # From the mean that has this iterate in it, as in the paper: the first deviation is 0.
        away = xp.astype(position, xp.float64) - self.moments.mean
        self._deviations.append(xp.astype(away, position.dtype))
        del self._deviations[: -self._max_rank]
        self.taken += 1

    def looks(self) -> bool:
        """Whether the objective belongs into the history now."""
        return self.taken % -(-self.epochs // _POINTS) == 0

    def moments_of(self, state: StochasticState) -> tuple[Array, Array, Array, int]:
        """Return mean, squares (M, P), deviations (M, K, P) and how many iterates they are of."""
        position = state.position
        xp = namespace(position)
        members, dim = position.shape
        if self.moments is None:
            mean = xp.astype(position, xp.float64)
            nothing = xp.zeros((members, 0, dim), dtype=position.dtype)
            return mean, xp.zeros_like(mean), nothing, 0
        kept = xp.stack(self._deviations, axis=1)
        return self.moments.mean, self.moments.squares, kept, self.moments.count
