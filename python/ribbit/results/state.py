"""The state of chains between transitions. It is never changed in place."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ribbit import _core
from ribbit._arrays import checks
from ribbit._arrays.namespace import from_host
from ribbit.errors import ShapeError
from ribbit.protocols import Array

if TYPE_CHECKING:
    import numpy.typing as npt


class State:
    """State of the chains of HMC or NUTS between two transitions: bytes and views of them.

    A state and a sampler determine all later draws. The bytes are the same in all languages, and
    they are read when an attribute is first used. Arrays are read-only.

    Parameters
    ----------
    data : bytes
        Bytes of chains: from ``bytes(state)``, a file, or the C function ``ribbit_chains_save``.

    Attributes
    ----------
    position : (C, P) float32 or float64 array
        Positions of the chains, without the parameters that the target integrates out.
    grad : (C, P) array
        Gradient of the tempered log density at `position`.
    terms : (C, M) float64 array
        Terms of the tempered log density, which sum to it.
    step : int
        Transitions done so far, warmup included.
    seed : int
        64-bit key of the random numbers.
    chains : (C,) uint32 array
        Ids of the chains. The draws of a chain depend on its own id only.
    warmup : int
        Transitions of warmup.
    step_size : (C,) float64 array
        Step size of the next transition.
    inverse_mass_matrix : (P,) or (C, P) array or None
        Diagonal of the inverse mass matrix; None is the identity.
    divergences : (C,) int64 array
        Divergent transitions since the last draw.
    kernel : str
        "hmc" or "nuts".
    target : dict of str to str, or None
        The target's ``fingerprint``, part by part; None if it has none.

    Raises
    ------
    TypeError
        If `data` is not bytes.
    ValueError
        On first use, if the bytes hold no chains.

    Examples
    --------
    >>> import numpy as np
    >>> import ribbit as rb
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> draws = rb.HMC(target).sample(20, warmup=100, chains=2, progress=False)
    >>> draws.state
    State(2 chains, dim 6, step 120, warm, seed 0)
    >>> draws.state.position.shape  # 4 weights of the last layer are integrated out
    (2, 6)
    >>> rb.samplers.State(bytes(draws.state)).step
    120
    """

    __slots__ = ("_bytes", "_fields")

    def __init__(self, data: bytes) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"[State] data must be bytes, got {checks.summary(data)}")
        self._bytes = bytes(data)
        self._fields: dict[str, Any] | None = None

    @staticmethod
    def _of(fields: Mapping[str, int | str | npt.NDArray[Any]]) -> State:
        """Return the state with these fields; arrays (C, n) have a row for each chain."""
        return State(_core.write_fields(dict(fields)))

    @staticmethod
    def _merged(states: Sequence[State]) -> State:
        """Join the chains of several states. Fields without a row for each chain must be equal."""
        fields = dict(states[0].fields)
        for other in (state.fields for state in states[1:]):
            for name in sorted(fields.keys() | other.keys()):
                if not _joinable(fields.get(name), other.get(name)):
                    raise ValueError(f"[State] the chains differ in {name!r}, do not join them")
        for name in [name for name, value in fields.items() if _has_rows(value)]:
            fields[name] = np.concatenate([state.fields[name] for state in states])
        return State._of(fields)

    def _split(self, chains: slice) -> State:
        """Return the state of some of the chains."""
        return State._of({k: v[chains] if _has_rows(v) else v for k, v in self.fields.items()})

    @property
    def fields(self) -> dict[str, Any]:
        """All fields by name: ints, texts and arrays, (C, n) if each chain has its own row."""
        if self._fields is None:
            try:
                self._fields = _core.read_fields(self._bytes)
            except UnicodeDecodeError:
                why = "the bytes hold no chains that can continue: a text has wrong bytes"
                raise ValueError(f"[State] {why}") from None
            except ValueError as error:
                raise ValueError(f"[State] {error}") from None
        return self._fields

    def _array(self, name: str) -> npt.NDArray[Any]:
        array: npt.NDArray[Any] = self.fields[name]
        return array

    @property
    def position(self) -> npt.NDArray[Any]:
        """Positions (C, P)."""
        return self._array("position")

    @property
    def grad(self) -> npt.NDArray[Any]:
        """Gradient (C, P) of the tempered log density."""
        return self._array("grad")

    @property
    def terms(self) -> npt.NDArray[np.float64]:
        """Terms (C, M) of the tempered log density."""
        return self._array("terms")

    @property
    def step(self) -> int:
        """Transitions done so far."""
        return int(self.fields["step"])

    @property
    def seed(self) -> int:
        """Key of the random numbers."""
        return int(self.fields["seed"])

    @property
    def chains(self) -> npt.NDArray[np.uint32]:
        """Ids (C,) of the chains."""
        return self._array("chains")[:, 0]

    @property
    def warmup(self) -> int:
        """Transitions of warmup."""
        return int(self.fields["warmup"])

    @property
    def step_size(self) -> npt.NDArray[np.float64]:
        """Step size (C,) of the next transition."""
        return self._array("step_size")[:, 0]

    @property
    def inverse_mass_matrix(self) -> npt.NDArray[Any] | None:
        """Diagonal (P,) or (C, P) of the inverse mass matrix; None is the identity."""
        return self._array("inverse_mass") if "inverse_mass" in self.fields else None

    @property
    def divergences(self) -> npt.NDArray[np.int64]:
        """Divergent transitions (C,) since the last draw."""
        return self._array("divergences")[:, 0]

    @property
    def kernel(self) -> str:
        """Name of the kernel."""
        return str(self.fields["kernel"])

    @property
    def target(self) -> dict[str, str] | None:
        """Fingerprint of the target, part by part."""
        lines = self.fields.get("target", "").split("\n")[:-1]
        return dict(line.split("=", 1) for line in lines) or None

    def __bytes__(self) -> bytes:
        return self._bytes

    def __reduce__(self) -> tuple[type[State], tuple[bytes]]:
        return State, (self._bytes,)

    def __repr__(self) -> str:
        return _described(self)


def _described(state: AnyState) -> str:
    """Return the text of a state of MCMC: its size and its place in the run."""
    chains, dim = state.position.shape
    phase = f"warmup {state.step}/{state.warmup}" if state.step < state.warmup else "warm"
    return (
        f"{type(state).__name__}({chains} chains, dim {dim}, step {state.step}, {phase}, "
        f"seed {state.seed})"
    )


def _has_rows(value: object) -> bool:
    """Return whether a field has a row for each chain."""
    return isinstance(value, np.ndarray) and value.ndim == 2


def _joinable(one: Any, other: Any) -> bool:
    """Return whether two states with these values of a field can be joined."""
    if _has_rows(one) and _has_rows(other):
        return bool(one.dtype == other.dtype and one.shape[1] == other.shape[1])
    return type(one) is type(other) and np.array_equal(one, other)


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
    >>> sgld = rb.SGLD(target, step_size=1e-4, batch_size=5)
    >>> draws = sgld.sample(10, warmup=0, thin=1, chains=2, progress=False)
    >>> draws.state.position.shape, draws.state.step
    ((2, 10), 10)
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
        Its terms, which sum to it.
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
    >>> draws = mclmc.sample(10, warmup=0, thin=1, chains=2, progress=False)
    >>> draws.state.position.shape, draws.state.step
    ((2, 10), 10)
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
        return _described(self)


AnyState: TypeAlias = State | StochasticState | MicrocanonicalState


def _check_state(state: Any) -> None:
    """Check the fields that all states have. It must be fast, because steps make many states."""
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
_LOG_MIN, _LOG_MAX = math.log(1e-12), math.log(1e7)


@dataclass(frozen=True, slots=True, eq=False)
class DualAveraging:
    """Nesterov's dual averaging of log step sizes (Hoffman and Gelman 2014, algorithm 5)."""

    log_step: HostArray  # (C,) float64: log of the step size to use next
    # (C,) float64: log of the averaged step size, the one to keep in the end
    log_average: HostArray
    # (C,) float64: running mean of target minus observed acceptance (the paper's H-bar)
    error: HostArray
    # (C,) float64: the centre that pulls log_step (the paper's mu, log of 10 times the first step)
    centre: HostArray
    count: int  # updates so far

    @staticmethod
    def start(step_size: HostArray) -> DualAveraging:
        """Begin at `step_size` (C,)."""
        log_step = _each(math.log, step_size)
        zero = np.zeros_like(log_step)
        centre = _each(lambda e: math.log(10.0 * e), step_size)
        return DualAveraging(log_step, zero, zero, centre, 0)

    def update(self, acceptance: HostArray, target: float) -> DualAveraging:
        """Take the acceptance (C,) of one more transition into account."""
        count = self.count + 1
        weight = 1.0 / (count + _T0)
        decay = count**-_KAPPA
        pull = math.sqrt(count) / _GAMMA
        error = (1.0 - weight) * self.error + weight * (target - acceptance)
        log_step = np.clip(self.centre - pull * error, _LOG_MIN, _LOG_MAX)
        log_average = decay * log_step + (1.0 - decay) * self.log_average
        return DualAveraging(log_step, log_average, error, self.centre, count)

    def step_size(self) -> HostArray:
        """Step size to explore with, (C,)."""
        return _each(math.exp, self.log_step)

    def average(self) -> HostArray:
        """Step size to keep, (C,)."""
        if not self.count:
            return self.step_size()
        return _each(math.exp, self.log_average)


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
    """Running means with decaying weights, which give the step size for wanted energy errors."""

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
    """The running sums of the adaptation. None: the value is fixed."""

    dual: DualAveraging | None
    welford: Welford | None
    errors: EnergyErrors | None = None
    gradients: GradientSquares | None = None
    products: InputProducts | None = None


# Fields in the target's array library. The others decide control flow and stay on the host.
_PLACED = (
    *("position", "logdensity", "grad", "terms", "velocity", "inverse_mass"),
    *("first_moment", "second_moment"),
)


def placed(xp: ModuleType, state: AnyState) -> AnyState:
    """Return a state of NumPy arrays, read from a file, as one of the library `xp`."""
    if xp is np or isinstance(state, State):
        return state
    found = {name: getattr(state, name, None) for name in _PLACED}
    changes: dict[str, Any] = {k: from_host(xp, v) for k, v in found.items() if v is not None}
    adaptation = getattr(state, "adaptation", None)
    if adaptation is not None and adaptation.welford is not None:
        old = adaptation.welford
        mean, squares = from_host(xp, old.mean), from_host(xp, old.squares)
        welford = dataclasses.replace(old, mean=mean, squares=squares)
        changes["adaptation"] = dataclasses.replace(adaptation, welford=welford)
    return dataclasses.replace(state, **changes)
