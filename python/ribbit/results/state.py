"""Everything a chain needs to go on: position, tuning, counters. Never changed in place."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import from_host
from ribbit.errors import ShapeError
from ribbit.protocols import Array

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = [
    "Adaptation",
    "AnyState",
    "DualAveraging",
    "EnergyErrors",
    "GradientSquares",
    "InputProducts",
    "MicrocanonicalState",
    "State",
    "StochasticState",
    "Welford",
    "placed",
]


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """State of C chains between two transitions.

    State and sampler determine every later draw; there is no hidden generator.

    Attributes
    ----------
    position : (C, P) array
    logdensity : (C,) float64 array
        Tempered log density at `position`.
    grad : (C, P) array
        Its gradient.
    terms : (C, M) float64 array
        Its terms, see :class:`ribbit.protocols.SplitLogDensity`.
    step : int
        Transitions done so far, warmup included; the counter of the random numbers.
    seed : int
        64-bit key of the random numbers.
    chains : (C,) uint32 NumPy array
        Ids of the chains. A chain's draws depend on its own id only.
    step_size : (C,) float64 array
    num_steps : (C,) int64 NumPy array
        Leapfrog steps per transition, on the host: it decides control flow.
    capped : (C,) bool NumPy array
        Whether `num_steps` was cut to ``max_num_leapfrog_steps``.
    inverse_mass : (P,) or (C, P) array or None
        Diagonal of the inverse mass matrix; None is the identity.
    adaptation : Adaptation or None
        Running sums of the adaptation while in warmup.
    warmup : int
        Planned transitions of warmup; they decide the windows of the adaptation.
    target : dict of str to str, or None
        The target's ``fingerprint``, part by part; None if it has none.
    divergences : (C,) int64 NumPy array or None
        Divergent transitions since the last draw of a thinned run; None if the run is not thinned.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> state = rb.HMC(target, step_size=0.1).init(target.init(seed=0, chains=2), seed=0)
    >>> state.position.shape, state.step
    ((2, 10), 0)
    """

    position: Array
    logdensity: Array
    grad: Array
    terms: Array
    step: int
    seed: int
    chains: npt.NDArray[np.uint32]
    step_size: Array
    num_steps: npt.NDArray[np.int64]
    capped: npt.NDArray[np.bool_]
    inverse_mass: Array | None = None
    adaptation: Adaptation | None = None
    warmup: int = 0
    target: dict[str, str] | None = None
    divergences: npt.NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        _check_state(self)

    def __repr__(self) -> str:
        chains, dim = self.position.shape
        phase = f"warmup {self.step}/{self.warmup}" if self.step < self.warmup else "warm"
        return f"State({chains} chains, dim {dim}, step {self.step}, {phase}, seed {self.seed})"


@dataclass(frozen=True, slots=True, eq=False)
class StochasticState:
    """State of C chains between two steps along stochastic gradients.

    Attributes
    ----------
    position : (C, P) array
    logdensity : (C,) float64 array
        Tempered log density on all rows; NaN unless it is tracked.
    first_moment : (C, P) array or None
        Velocity of SGHMC and of BAOAB (whitened), or running mean of the gradients of Adam.
    second_moment : (C, P) array or None
        Running mean of the squared gradients; for BAOAB the scales of the parameters.
    step : int
        Steps done so far, warmup included; the counter of batches and random numbers.
    seed : int
        64-bit key of the random numbers.
    chains : (C,) uint32 NumPy array
        Ids of the chains. A chain's draws depend on its own id only.
    warmup : int
        Planned steps of warmup.
    target : dict of str to str, or None
        The target's ``fingerprint``, part by part; None if it has none.
    step_size : (C,) float64 NumPy array or None
        Found by pilot runs, the same for all chains; None if it was given.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> state = rb.SGLD(target, batch_size=5).init(target.init(seed=0, chains=2), seed=0)
    >>> state.position.shape, state.step
    ((2, 10), 0)
    """

    position: Array
    logdensity: Array
    first_moment: Array | None
    second_moment: Array | None
    step: int
    seed: int
    chains: npt.NDArray[np.uint32]
    warmup: int = 0
    target: dict[str, str] | None = None
    step_size: npt.NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        _check_state(self)

    def __repr__(self) -> str:
        chains, dim = self.position.shape
        return f"StochasticState({chains} chains, dim {dim}, step {self.step}, seed {self.seed})"


@dataclass(frozen=True, slots=True, eq=False)
class MicrocanonicalState:
    """State of C chains between two steps of MCLMC, or two transitions of its adjusted form.

    Attributes
    ----------
    position : (C, P) array
    logdensity : (C,) float64 array
        Tempered log density at `position`.
    grad : (C, P) array
        Its gradient.
    terms : (C, M) float64 array
        Its terms, see :class:`ribbit.protocols.SplitLogDensity`.
    velocity : (C, P) array or None
        Direction in which the chain moves; its length does not matter. None in the adjusted form,
        in which each transition draws its own.
    step : int
        Steps (transitions of the adjusted form) done so far, warmup included; the counter of the
        random numbers.
    seed : int
        64-bit key of the random numbers.
    chains : (C,) uint32 NumPy array
        Ids of the chains. A chain's draws depend on its own id only.
    step_size : (C,) float64 NumPy array
    decoherence_length : (C,) float64 NumPy array
        Length over which a direction is forgotten; in the adjusted form the mean length of a
        trajectory.
    energy_squares : (C,) float64 NumPy array
        Sum of the squared energy errors of the steps since warmup.
    inverse_mass : (P,) or (C, P) array or None
        Squared scales of whitened coordinates; None is the identity.
    mixing : (C, M) array or None
        Symmetric matrices for the inputs of each of the target's ``parameter_blocks``, flat and
        concatenated. Whitened coordinates are multiplied by them before scaling. None: identity.
    adaptation : Adaptation or None
        Running sums of the adaptation while in warmup.
    warmup : int
        Planned steps of warmup.
    target : dict of str to str, or None
        The target's ``fingerprint``, part by part; None if it has none.
    divergences : (C,) int64 NumPy array or None
        Divergent steps since the last draw of a thinned run; None if the run is not thinned.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> mclmc = rb.MCLMC(target, step_size=0.1, decoherence_length=1.0)
    >>> state = mclmc.init(target.init(seed=0, chains=2), seed=0)
    >>> state.position.shape, state.step
    ((2, 10), 0)
    """

    position: Array
    logdensity: Array
    grad: Array
    terms: Array
    velocity: Array | None
    step: int
    seed: int
    chains: npt.NDArray[np.uint32]
    step_size: HostArray
    decoherence_length: HostArray
    energy_squares: HostArray
    inverse_mass: Array | None = None
    mixing: Array | None = None
    adaptation: Adaptation | None = None
    warmup: int = 0
    target: dict[str, str] | None = None
    divergences: npt.NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        _check_state(self)

    def __repr__(self) -> str:
        chains, dim = self.position.shape
        phase = f"warmup {self.step}/{self.warmup}" if self.step < self.warmup else "warm"
        return (
            f"MicrocanonicalState({chains} chains, dim {dim}, step {self.step}, {phase}, "
            f"seed {self.seed})"
        )


AnyState: TypeAlias = State | StochasticState | MicrocanonicalState


def _check_state(state: Any) -> None:
    """Raise unless the fields that all states have are of their kinds; steps make many."""
    name = type(state).__name__
    if len(getattr(state.position, "shape", ())) != 2:
        got = checks.summary(state.position)
        raise ShapeError(f"[{name}] position must be an array of shape (C, P), got {got}")
    for key in ("step", "warmup"):
        value = getattr(state, key)
        if type(value) is not int or value < 0:
            checks.integer(name, key, value, minimum=0)


HostArray: TypeAlias = "npt.NDArray[np.float64]"


_GAMMA = 0.05
_T0 = 10.0
_KAPPA = 0.75
_ENOUGH = 20  # settled updates: an average of fewer is noise
_LAG = 0.336  # log of 1.4: how much the average of all of warmup may exceed the settled one


_LOG_MIN, _LOG_MAX = math.log(1e-12), math.log(1e7)


@dataclass(frozen=True, slots=True, eq=False)
class DualAveraging:
    """Nesterov's dual averaging of log step sizes (Hoffman and Gelman 2014, algorithm 5)."""

    # If trajectories are brief at first, a second average begins with the full ones: these may need
    # far smaller steps, and the first average lags behind (of 4-30-1, 200 rows and a noise of 0.01
    # it would accept nothing). The second is of a tenth of the transitions, and noisy: it is taken
    # where the first is more than 1.4 times as large, and not of fewer than 20 updates.

    log_step: HostArray  # (C,) float64: log of the step size to use next
    # (C,) float64: log of the averaged step size, the one to keep in the end
    log_average: HostArray
    # (C,) float64: running mean of target minus observed acceptance (the paper's H-bar)
    error: HostArray
    # (C,) float64: where log_step is drawn to (the paper's mu, log of 10 times the first step size)
    centre: HostArray
    # (C,) float64: as log_average, of the settled updates alone; 0 before the first
    log_settled: HostArray
    count: int  # updates so far; those whose trajectories were as long as later ones
    settled: int

    @staticmethod
    def start(step_size: HostArray) -> DualAveraging:
        """Begin at `step_size` (C,)."""
        log_step = _each(math.log, step_size)
        zero = np.zeros_like(log_step)
        centre = _each(lambda e: math.log(10.0 * e), step_size)
        return DualAveraging(log_step, zero, zero, centre, zero, 0, 0)

    def update(
        self, acceptance: HostArray, target: float, *, settled: bool = False
    ) -> DualAveraging:
        """Take the acceptance (C,) of one more transition into account."""
        count = self.count + 1
        weight = 1.0 / (count + _T0)
        decay = count**-_KAPPA
        pull = math.sqrt(count) / _GAMMA
        error = (1.0 - weight) * self.error + weight * (target - acceptance)
        log_step = np.clip(self.centre - pull * error, _LOG_MIN, _LOG_MAX)
        log_average = decay * log_step + (1.0 - decay) * self.log_average
        log_settled, full = self.log_settled, self.settled
        if settled:
            full += 1
            fade = full**-_KAPPA
            log_settled = fade * log_step + (1.0 - fade) * log_settled
        return DualAveraging(log_step, log_average, error, self.centre, log_settled, count, full)

    def step_size(self) -> HostArray:
        """Step size to explore with, (C,)."""
        return _each(math.exp, self.log_step)

    def average(self) -> HostArray:
        """Step size to keep, (C,)."""
        if not self.count:
            return self.step_size()
        lags = self.settled >= _ENOUGH and self.log_average > self.log_settled + _LAG
        return _each(math.exp, np.where(lags, self.log_settled, self.log_average))


def _each(function: Callable[[float], float], values: HostArray) -> HostArray:
    """Apply a scalar function per chain; a vectorised one may round the last chains differently."""
    return np.array([function(float(v)) for v in values])


@dataclass(frozen=True, slots=True, eq=False)
class Welford:
    """Running mean and sum of squares per chain and parameter, float64 (Welford 1962)."""

    mean: Array  # (C, P) float64
    squares: Array
    count: int

    @staticmethod
    def start(xp: ModuleType, shape: tuple[int, ...]) -> Welford:
        """Nothing seen yet."""
        zero = xp.zeros(shape, dtype=xp.float64)
        return Welford(zero, zero, 0)

    def update(self, xp: ModuleType, position: Array) -> Welford:
        """Take one more position (C, P)."""
        count = self.count + 1
        position = xp.astype(position, xp.float64)
        delta = position - self.mean
        mean = self.mean + delta / count
        return Welford(mean, self.squares + delta * (position - mean), count)

    def variance(self) -> Array:
        """Variance (C, P), shrunk towards 1e-3 as in Stan: weight n/(n+5) against 5/(n+5)."""
        n = self.count
        return (n / (n + 5.0)) * (self.squares / (n - 1)) + 1e-3 * (5.0 / (n + 5.0))


@dataclass(frozen=True, slots=True, eq=False)
class EnergyErrors:
    """Which step size gives the wanted energy errors: a weighted mean that forgets."""

    needed: HostArray  # (C,) float64: sum of weights times squared error of a step / step size^6
    weight: HostArray  # (C,) float64: sum of the weights

    @staticmethod
    def start(chains: int) -> EnergyErrors:
        """Nothing seen yet."""
        return EnergyErrors(np.zeros(chains), np.zeros(chains))


@dataclass(frozen=True, slots=True, eq=False)
class GradientSquares:
    """Squared gradients that chains have met, by array of parameters."""

    sums: HostArray  # (C, K) float64: sum over positions of the mean square within each of K arrays
    count: int  # positions


@dataclass(frozen=True, slots=True, eq=False)
class InputProducts:
    """Second moments of the inputs of each block, the mean over its units; blocks end to end."""

    # (C, M) float64: sums of the products of distances from the running mean, and of gradients
    positions: HostArray
    gradients: HostArray
    count: int  # positions


@dataclass(frozen=True, slots=True, eq=False)
class Adaptation:
    """What is being adapted; None for what is fixed."""

    dual: DualAveraging | None
    welford: Welford | None
    errors: EnergyErrors | None = None
    gradients: GradientSquares | None = None
    products: InputProducts | None = None


# What lies where the target's arrays do; the rest decides control flow and stays on the host.
_PLACED = (
    *("position", "logdensity", "grad", "terms", "velocity", "inverse_mass"),
    *("first_moment", "second_moment"),
)


def placed(xp: ModuleType, state: AnyState) -> AnyState:
    """Return a state of NumPy arrays, read from a file, as one of the library `xp`."""
    if xp is np:
        return state
    names = (*_PLACED, "step_size") if isinstance(state, State) else _PLACED
    found = {name: getattr(state, name, None) for name in names}
    changes: dict[str, Any] = {k: from_host(xp, v) for k, v in found.items() if v is not None}
    adaptation = getattr(state, "adaptation", None)
    if adaptation is not None and adaptation.welford is not None:
        old = adaptation.welford
        mean, squares = from_host(xp, old.mean), from_host(xp, old.squares)
        welford = dataclasses.replace(old, mean=mean, squares=squares)
        changes["adaptation"] = dataclasses.replace(adaptation, welford=welford)
    return dataclasses.replace(state, **changes)
