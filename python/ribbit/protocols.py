"""Protocols between Ribbit's samplers and a target. Read this to use a target of your own.

A sampler uses neither networks nor data, only the protocols below. :class:`ribbit.Posterior`
implements all of them; your own object may implement any. The smallest target has two members::

    class Banana:
        dim = 2

        def value_and_grad(self, theta, rows=None):  # theta (C, 2), float64
            x, y = theta[:, 0], theta[:, 1]
            r = y - x**2
            lp = -0.5 * x**2 - 10.0 * r**2  # (C,)
            grad = np.stack([-x + 40.0 * r * x, -20.0 * r], axis=1)  # (C, 2)
            return lp, grad

    draws = rb.HMC(Banana(), step_size=0.05, num_leapfrog_steps=20).sample(1000, init=np.zeros(2))

Everything else is optional and looked up with ``getattr``; :class:`LogDensity` lists it.

Shapes: C = chains, P = ``dim``, S = weight samples, N = rows, K = outputs, M = terms. Arrays belong
to the target's library (``array_namespace``, default NumPy), in C order. A target must not keep or
change its arguments. Its results are copied if a later call could overwrite them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = [
    "Array",
    "Completes",
    "GaussNewtonDensity",
    "InterruptFlag",
    "LogDensity",
    "MaskedDensity",
    "NativeIsokinetic",
    "NativeSteps",
    "NativeTrajectory",
    "NativeTree",
    "Predictive",
    "PredictiveTerms",
    "RowGroup",
    "SplitLogDensity",
    "TreeDraw",
    "VariationalDensity",
]

# An array of any library that follows the Python array API standard.
Array: TypeAlias = Any


class RowGroup(Protocol):
    """Processes that share the rows of a target: its attribute ``group``, unless that is None.

    Implemented by :class:`ribbit.distributed.Group`. Every rank runs the same program, and all make
    these calls in the same order.

    Examples
    --------
    >>> class Alone:
    ...     rank, size = 0, 1
    ...     def gather(self, send, receive, sizes):
    ...         receive[:] = send
    ...     def exchange(self, send, send_sizes, receive, receive_sizes):
    ...         receive[:] = send
    >>> group = rb.distributed.Group(Alone())
    >>> group.rank, group.size, group.first("said by rank 0")
    (0, 1, 'said by rank 0')
    """

    @property
    def rank(self) -> int:
        """Number of this process, in 0 .. size - 1."""
        ...

    @property
    def size(self) -> int:
        """Number of processes."""
        ...

    def collect(self, data: bytes) -> list[bytes]:
        """Return the data of each rank."""
        ...

    def first(self, value: Any = None) -> Any:
        """Return the value of rank 0."""
        ...

    def agree(self, wish: bool, number: int, place: int) -> tuple[bool, int]:
        """Return whether a rank asks to stop, and the number of rank 0.

        Raises on every rank unless `place` is the same on all.
        """
        ...

    def alike(self, function: str, stated: dict[str, str]) -> None:
        """Raise on every rank unless all state the same."""
        ...

    def end(self) -> None:
        """End a run on every rank."""
        ...

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks of an error that they may not have."""
        ...


@runtime_checkable
class LogDensity(Protocol):
    """A log density with its gradient, enough for HMC.

    Optional attributes, looked up with ``getattr``, with their defaults:

    ``dtype``
        Dtype of positions, float32 or float64. Default float64.
    ``array_namespace``
        Module that owns the arrays (numpy, cupy, array_api_strict ...). Default numpy.
    ``init(seed=0, chains=None)``
        A start (P,), or (chains, P) if `chains` is an integer; a sequence of chain ids gives one
        row per id. A row depends on (seed, id) alone. Without it ``sample`` needs ``init=``.
    ``terms_and_grad(theta)``, ``leapfrog(...)``, ``advance(...)``, ``isokinetic(...)``
        See :class:`SplitLogDensity`, :class:`NativeTrajectory`, :class:`NativeSteps` and
        :class:`NativeIsokinetic`.
    ``no_u_turn(...)``
        See :class:`NativeTree`. Default None.
    ``group``
        See :class:`RowGroup`; all its ranks take part in each evaluation. Default None.
    ``complete(...)``, ``reduce(...)``, ``full_dim``
        See :class:`Completes`. Default None.
    ``integrated``
        Name of the part that is integrated out. Default None, for nothing. Such a density is not a
        sum over rows: samplers and fits that need a sum refuse it.
    ``num_rows``
        Number N of data rows. Needed for minibatches.
    ``rows_per_chain``
        True if ``value_and_grad`` also takes `rows` (C, n), a minibatch for each chain, so that one
        call serves all chains. Default False: one call for each chain.
    ``subset(rows)``, ``log_likelihood(theta)``
        The same target of some rows alone, and the log likelihood (C,) of its rows at theta (C, P).
        ``sample(init="ensemble")`` needs them, ``num_rows``, ``init`` and ``advance``.
    ``prior_mean``
        (P,) mean of each parameter's prior. Default 0.
    ``prior_sd``
        (P,) marginal sd of each parameter's prior at temperature 1, or its scale if that sd is
        infinite. Needed by ``inverse_mass_matrix="prior"``.
    ``parameter_groups``
        (K,) ints, ascending from 0: the index at which each array of parameters begins, such as a
        layer's weights or biases. MCLMC finds one scale for each with
        ``inverse_mass_matrix="layers"``, its default without a ``noise_floor``.
    ``parameter_blocks``
        (B, 3) ints, ascending: first parameter, inputs and outputs of blocks (inputs, outputs) in C
        order, such as a layer's weights followed by its biases as one more input. MCLMC whitens the
        inputs of each with ``inverse_mass_matrix="inputs"``, for NumPy arrays. Needs
        ``parameter_groups``. Default None.
    ``noise_floor``
        Smallest sd of noise that a network predicts for each row, in the target's units of y. From
        0.05 on (meant for y with sd 1), MCLMC's default is "inputs" if there are
        ``parameter_blocks``. Default 0.
    ``shared_prior_sd``
        The prior sd that all network weights share, or None (default). Gives HMC's default
        trajectory length.
    ``temperature``
        Temperature by which the log density is divided. Default 1.0. HMC uses it only in the two
        defaults above.
    ``dropout_layers``
        Names of Dropout layers, such as ("2: Dropout(0.1)",). If it is not empty, HMC refuses the
        target.
    ``precision_reference``
        The same target with gradients as accurate as float32, if its own are less accurate. HMC
        then compares a short trajectory of both before a run. Default None.
    ``interruptible``
        True if ``leapfrog`` polls its `interrupt` flag. Default False: Ctrl-C then raises
        KeyboardInterrupt inside the target's code while that code runs.

    Examples
    --------
    >>> class Normal:
    ...     dim, dtype = 3, np.dtype(np.float64)
    ...     def value_and_grad(self, theta, rows=None):
    ...         return -0.5 * (theta**2).sum(axis=-1), -theta
    >>> isinstance(Normal(), rb.protocols.LogDensity)
    True
    """

    @property
    def dim(self) -> int:
        """P, the number of parameters."""
        ...

    def value_and_grad(self, theta: Array, rows: Any = None) -> tuple[Array, Array]:
        """Return the log density and its gradient.

        Parameters
        ----------
        theta : (C, P) array
            Positions, in ``dtype``.
        rows : (n,) int64 NumPy array or None
            Rows of a minibatch, to be scaled by N/n; None: all rows. HMC does not pass it.

        Returns
        -------
        lp : (C,) array
            Tempered log density, float64 if possible. NaN or infinite: the proposal is rejected and
            flagged as diverging.
        grad : (C, P) array
        """
        ...


@runtime_checkable
class SplitLogDensity(Protocol):
    """A log density given as a sum of terms.

    HMC adds the *differences* of the terms, so that the energy error keeps its digits if large
    terms move in opposite directions. Posterior: likelihood and prior, M = 2. ``term_names`` has
    their M names.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> isinstance(target, rb.protocols.SplitLogDensity)
    True
    >>> terms, grad = target.terms_and_grad(target.init(seed=0, chains=2))
    >>> terms.shape  # log likelihood and log prior
    (2, 2)
    """

    def terms_and_grad(self, theta: Array) -> tuple[Array, Array]:
        """Return terms (C, M) in float64, which sum to the log density, and the gradient."""
        ...


@runtime_checkable
class NativeTrajectory(Protocol):
    """A target that runs whole leapfrog trajectories itself (in C++, in CUDA, under a JIT).

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> isinstance(target, rb.protocols.NativeTrajectory)
    True
    """

    def leapfrog(
        self,
        position: Array,
        momentum: Array,
        grad: Array,
        step_size: Array,
        num_steps: npt.NDArray[np.int64],
        *,
        inverse_mass: Array | None = None,
        interrupt: InterruptFlag | None = None,
    ) -> tuple[Array, Array, Array, Array]:
        """Run `num_steps` leapfrog steps per chain; inputs are not changed.

        Parameters
        ----------
        position, momentum, grad : (C, P) array
            `grad` is the gradient at `position`.
        step_size : (C,) float64 array
        num_steps : (C,) int64 NumPy array
            At least 1 each. Always on the host, because it decides control flow.
        inverse_mass : (P,) or (C, P) array or None
            Diagonal of the inverse mass matrix in the target's dtype; None is the identity.
        interrupt : InterruptFlag, optional
            To be polled at least every 20 ms if the target is ``interruptible``; once it is set the
            call raises ``ribbit._core.Interrupted``.

        Returns
        -------
        position, momentum : (C, P) array
            New arrays.
        terms : (C, M) float64 array
            Terms of the tempered log density at the end.
        grad : (C, P) array
            Gradient at the end, a new array.

        Notes
        -----
        A chain whose momentum is no longer finite may end at any later step, if its results are not
        finite either; the proposal is then rejected. A method with an attribute ``counts_steps``
        also gets ``made=``, an int64 array (C,) to fill with the number of steps made, for the
        statistic "n_steps".
        """
        ...


@dataclass(frozen=True, slots=True)
class TransitionDraw:
    """What a Hamiltonian transition of every chain has done."""

    position: Array  # (C, P): of the state that is kept
    grad: Array
    terms: Array  # (C, M) float64: its log density in parts
    logdensity: Array  # (C,) float64: sum of the terms; minus it, plus the kinetic energy
    energy: Array
    # (C,) float64: of the proposal minus that of the start; infinite where anything of it is not
    # finite
    energy_error: Array
    acceptance: Array  # (C,) float64: probability that the proposal is accepted
    num_steps: npt.NDArray[np.int64]  # (C,) int64: leapfrog steps that were made
    accepted: Array  # (C,) bool
    diverging: Array


@runtime_checkable
class NativeTransition(Protocol):
    """A target that makes whole transitions of Hamiltonian Monte Carlo itself. NumPy arrays."""

    # Not asked if its `leapfrog` lacks an attribute ``in_transitions``: a class that replaces
    # trajectories is not passed by.

    def hamiltonian(
        self,
        position: Array,  # (C, P): `grad` is the gradient at `position`
        grad: Array,
        terms: Array,  # (C, M) float64: terms of the tempered log density at `position`
        step_size: npt.NDArray[np.float64],  # (C,) float64
        num_steps: npt.NDArray[np.int64],  # (C,) int64: leapfrog steps, at least 1 each
        *,
        # (P,) or (C, P) or None: diagonal of the inverse mass matrix; None is the identity
        inverse_mass: Array | None = None,
        seed: int,
        step: int,
        chains: npt.NDArray[np.uint32],
        divergence_threshold: float,  # a larger energy error is a divergence
        interrupt: InterruptFlag | None = None,
    ) -> TransitionDraw:
        """Draw a momentum, run the trajectory and accept it or not; inputs are not changed."""
        # seed, step, chains (C,): counter of the random numbers, streams momentum and accept.
        ...


@runtime_checkable
class Completes(Protocol):
    """A target whose density concerns some of its parameters, with the rest integrated out.

    Samplers move P = ``dim`` parameters (C, P); for every kept draw the rest is drawn from its
    conditional distribution. Starts may have either size.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3),
    ...     marginalize="last_layer",
    ... )
    >>> isinstance(target, rb.protocols.Completes), target.dim, target.full_dim
    (True, 6, 10)
    """

    @property
    def full_dim(self) -> int:
        """Number Q of all parameters, as in kept draws."""
        ...

    def complete(
        self,
        position: Array,
        *,
        seed: int,
        step: int,
        chains: npt.NDArray[np.uint32],
        interrupt: InterruptFlag | None = None,
    ) -> Array:
        """Return all parameters (C, Q), with the rest drawn given position (C, P).

        Parameters
        ----------
        position : (C, P) array
        seed, step, chains
            Counter of the random numbers; chains (C,) ids.
        interrupt : InterruptFlag, optional
            As in :class:`NativeTrajectory`; passed if the target is ``interruptible``.
        """
        ...

    def reduce(self, function: str, position: Array) -> Array:
        """Return the moved parameters (..., P) of all (..., Q); `function` is for errors."""
        ...


@dataclass(frozen=True, slots=True)
class TreeDraw:
    """Result of one transition of the no-U-turn sampler for C chains.

    Attributes
    ----------
    position, grad : (C, P) array
        The drawn state, and the gradient there.
    terms : (C, M) float64 array
        Terms of the tempered log density there.
    kinetic, energy_error : (C,) float64 NumPy array
        Its kinetic energy, and its energy minus the energy of the start.
    acceptance : (C,) float64 NumPy array
        Mean of min(1, exp(-energy error)) over all leapfrog steps.
    num_steps, depth : (C,) int64 NumPy array
        Leapfrog steps, and kept doublings.
    diverging : (C,) bool NumPy array
        Whether an energy error above the threshold has ended the tree.
    at_max_depth : (C,) bool NumPy array
        Whether only the largest depth has ended the tree.

    Examples
    --------
    >>> import dataclasses
    >>> [field.name for field in dataclasses.fields(rb.protocols.TreeDraw)][:3]
    ['position', 'terms', 'grad']
    """

    position: Array
    terms: Array
    grad: Array
    kinetic: npt.NDArray[np.float64]
    energy_error: npt.NDArray[np.float64]
    acceptance: npt.NDArray[np.float64]
    num_steps: npt.NDArray[np.int64]
    depth: npt.NDArray[np.int64]
    diverging: npt.NDArray[np.bool_]
    at_max_depth: npt.NDArray[np.bool_]


@runtime_checkable
class NativeTree(Protocol):
    """A target that grows the trees of the no-U-turn sampler itself. NumPy arrays.

    Formulas and the counters of the random numbers are in ``core/no_u_turn_hd.h``.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> isinstance(target, rb.protocols.NativeTree)
    True
    """

    def no_u_turn(
        self,
        position: Array,
        momentum: Array,
        grad: Array,
        terms: Array,
        step_size: npt.NDArray[np.float64],
        *,
        inverse_mass: Array | None = None,
        seed: int,
        step: int,
        chains: npt.NDArray[np.uint32],
        max_tree_depth: int,
        divergence_threshold: float,
        interrupt: InterruptFlag | None = None,
    ) -> TreeDraw:
        """Return one transition of every chain; inputs are not changed.

        Parameters
        ----------
        position, momentum, grad : (C, P) array
            `grad` is the gradient at `position`.
        terms : (C, M) float64 array
            Terms of the tempered log density at `position`.
        step_size : (C,) float64 NumPy array
        inverse_mass : (P,) or (C, P) array or None
            Diagonal of the inverse mass matrix; None is the identity.
        seed, step, chains
            Counter of the random numbers; chains (C,) ids.
        max_tree_depth : int
            Largest number of doublings.
        divergence_threshold : float
            Energy error above which a tree ends.
        interrupt : InterruptFlag, optional
            As in :class:`NativeTrajectory`.
        """
        ...


@runtime_checkable
class NativeSteps(Protocol):
    """A target that makes many stochastic-gradient steps itself, for SGLD, SGHMC, BAOAB and Adam.

    Such a target also has ``num_rows``, N. Step s of chain c uses batch s mod M of epoch s div M,
    with M = ceil(N / batch_size). Batches are runs of the keyed permutation
    ``core/permutation_hd.h``; they differ by at most one row, the longer ones first. The noise has
    the counter (seed, update noise, s, c, parameter). Epochs of the rule "kinetic" have 2 M steps,
    through the batches of one order and back.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> isinstance(target, rb.protocols.NativeSteps)
    True
    """

    def advance(
        self,
        position: Array,
        first: Array | None,
        second: Array | None,
        *,
        seed: int,
        chains: npt.NDArray[np.uint32],
        first_step: int,
        batch_size: int,
        step_size: npt.NDArray[np.float64],
        noise: npt.NDArray[np.float64],
        rule: str,
        prior: float,
        friction: float,
        previous_step_size: float,
        decay: tuple[float, float],
        epsilon: float,
        adapt_until: int,
        interrupt: InterruptFlag | None = None,
    ) -> tuple[Array, Array | None, Array | None, npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return every chain after n steps; inputs are not changed.

        Parameters
        ----------
        position : (C, P) array
        first, second : (C, P) array or None
            Velocities or moments of the rule; "kinetic": velocities and scales.
        seed, chains, first_step
            Counter of batches and noise; chains (C,) ids.
        batch_size : int
            Largest number of rows of a batch; N: all rows in their own order.
        step_size : (n,) float64 NumPy array
        noise : (n,) float64 NumPy array
            Factors of the noise's sd.
        rule : {"langevin", "friction", "adam", "kinetic"}
            See ``samplers/sgmcmc/rule.py`` for the formulas.
        prior : float
            Weight of the log prior: 1, or 0 for the likelihood alone.
        previous_step_size : float
            Step size of the previous step: a velocity is multiplied by the root of the ratio of the
            two.
        friction, decay, epsilon
            Constants of the rule.
        adapt_until : int
            Steps before this one move the preconditioner.
        interrupt : InterruptFlag, optional
            As in :class:`NativeTrajectory`.

        Returns
        -------
        position, first, second : (C, P) array or None
            New arrays.
        failed : (C,) int64 NumPy array
            The step of the call at which a chain became infinite or NaN, else -1.
        largest : (C,) float64 NumPy array
            Largest absolute gradient of that step.
        """
        ...


@runtime_checkable
class NativeIsokinetic(Protocol):
    """A target that makes many steps of microcanonical dynamics itself, for MCLMC.

    A position moves at speed one along a direction, which the gradient turns: formulas in
    ``core/isokinetic_hd.h``. Noise with the counter (seed, refresh, step, chain, parameter) makes
    the direction forget itself. NumPy arrays.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> isinstance(target, rb.protocols.NativeIsokinetic)
    True
    """

    def isokinetic(
        self,
        position: Array,
        velocity: Array,
        grad: Array,
        terms: Array,
        *,
        seed: int,
        chains: npt.NDArray[np.uint32],
        first_step: int,
        integrator: str,
        step_size: npt.NDArray[np.float64],
        decoherence_length: npt.NDArray[np.float64],
        num_steps: npt.NDArray[np.int64],
        scale: Array | None = None,
        blocks: npt.NDArray[np.int64] | None = None,
        mixing: Array | None = None,
        turns: bool = True,
        interrupt: InterruptFlag | None = None,
    ) -> tuple[Array, Array, Array, Array, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return every chain after `num_steps` steps; inputs are not changed.

        Parameters
        ----------
        position, velocity, grad : (C, P) array
            `grad` is the gradient at `position`; the velocity's length does not matter.
        terms : (C, M) float64 array
            Terms of the tempered log density at `position`.
        seed, chains, first_step
            Counter of the noise; chains (C,) ids.
        integrator : {"leapfrog", "mclachlan"}
        step_size, decoherence_length : (C,) float64 NumPy array
            Step size, and the length over which a direction is forgotten; infinity: no noise.
        num_steps : (C,) int64 NumPy array
            At least 1 each.
        scale : (P,) or (C, P) array or None
            Scales of the whitened coordinates position / scale, in which the steps are made; None:
            ones.
        blocks : (B, 3) int64 array, optional
            As ``parameter_blocks`` of :class:`LogDensity`.
        mixing : (C, M) array, optional
            For a target with blocks: symmetric matrices (inputs, inputs) of each, flat and
            concatenated. Whitened coordinates (inputs, outputs) are multiplied by them before
            scaling. Scales are then equal within each block.
        turns : bool
            True: undo a step that is not finite, and turn the chain round. False: end the chain
            before it.
        interrupt : InterruptFlag, optional
            As in :class:`NativeTrajectory`.

        Returns
        -------
        position, velocity, grad : (C, P) array
            New arrays.
        terms : (C, M) float64 array
            Terms at the new position.
        energy : (C,) float64 NumPy array
            Energy gained by all kicks; the energy error is this minus the gain of the log density.
        errors : (C, n) float64 NumPy array
            Energy error of each step, NaN if it was not finite, 0 after a chain's last; n is the
            largest of `num_steps`.
        """
        ...


@runtime_checkable
class GaussNewtonDensity(Protocol):
    """A target that knows its own curvature, for :class:`ribbit.LaplaceApproximation`.

    A subset, "all" or "last_layer", has Q consecutive parameters. NumPy arrays.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> isinstance(target, rb.protocols.GaussNewtonDensity)
    True
    """

    def subset_size(self, function: str, subset: str) -> tuple[int, int]:
        """Return a subset's first parameter and Q, or raise in the name of `function`."""
        ...

    def gauss_newton(
        self, theta: Array, subset: str, interrupt: InterruptFlag | None = None
    ) -> Iterator[npt.NDArray[np.float64]]:
        """Yield blocks A (n, Q) at theta (P,); the sum of A^T A is the Gauss-Newton matrix.

        It is tempered, of minus the log density. Blocks have about 30 MB; a run may end between
        them.
        """
        ...

    def prior_curvature(self, theta: Array, subset: str) -> npt.NDArray[np.float64]:
        """Return minus the second derivatives (Q,) of the tempered log prior, >= 0."""
        ...

    @property
    def noise_scale(self) -> float | None:
        """The known sd of normal noise, None for any other likelihood."""
        ...

    def residuals(self, theta: Array) -> tuple[float, float]:
        """Return the sum of squared residuals over the noise variance, and their number."""
        ...

    def prior_groups(self, function: str, subset: str) -> dict[str, tuple[slice, float]]:
        """Return index and prior sd of each group of a subset; raise unless a prior is normal.

        Parameters that belong to no group keep their prior.
        """
        ...

    def rescaled(self, prior_sd: dict[str, float], noise_sd: float | None = None) -> Any:
        """Return the same target with other prior sds, by group name, and another noise sd."""
        ...


class InterruptFlag(Protocol):
    """A flag that stops native code; ``ribbit._core.InterruptFlag``.

    Examples
    --------
    >>> from ribbit import _core
    >>> flag = _core.InterruptFlag()
    >>> flag.set()
    >>> flag.is_set()
    True
    """

    def set(self) -> None:
        """Ask for a stop."""
        ...

    def clear(self) -> None:
        """Withdraw the request."""
        ...

    def is_set(self) -> bool:
        """Whether a stop was requested."""
        ...


@dataclass(frozen=True, slots=True)
class PredictiveTerms:
    """Predictions of S weight vectors for N rows; shapes may broadcast to (S, N, K).

    Attributes
    ----------
    mean : (S, N, K) array or None
        Mean of y given the weights: regression and counts.
    noise_sd : array broadcastable to (S, N, K), or None
        Standard deviation of y given the weights (not tempered): regression and counts.
    probs : (S, N, K) array or None
        Classification: class probabilities, or with `binary` the probability that y = 1.
    binary : bool
        True if `probs` are K separate Bernoulli probabilities and not one distribution over K.
    noise_df : float or None
        Degrees of freedom of Student-t noise; None if the noise is normal, or without regression.
    noise_scale : array broadcastable to (S, N, K), or None
        Scale of Student-t noise, which has no finite `noise_sd` if ``noise_df <= 2``.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> hmc = rb.HMC(target, step_size=0.05, num_leapfrog_steps=10)
    >>> draws = hmc.sample(20, warmup=0, seed=1, progress=False)
    >>> terms = draws.predictive.predictive(draws.positions[0], x)
    >>> type(terms).__name__
    'PredictiveTerms'
    """

    mean: Array | None = None
    noise_sd: Array | None = None
    probs: Array | None = None
    binary: bool = False
    noise_df: float | None = None
    noise_scale: Array | None = None

    @property
    def values(self) -> Array:
        """`probs`, or `mean` without them: (S, N, K)."""
        return self.mean if self.probs is None else self.probs

    @property
    def noise_width(self) -> Array:
        """`noise_scale`, or `noise_sd` of normal noise."""
        return self.noise_sd if self.noise_df is None else self.noise_scale


@runtime_checkable
class Predictive(Protocol):
    """Predictions at new inputs for given weights, as ``Draws.predict`` needs them.

    Optional attributes: ``numbered = True`` if a prediction also depends on the number of its draw,
    as a dropout mask does. ``predictive`` and ``log_likelihood`` then get ``first=`` and ``row=``,
    the numbers of the first draw and row. ``flat = True`` shows predictions of a single output as
    (N,). ``columns`` has the column names of the data; frames of new inputs are matched by them. A
    method ``check_inputs(x)`` that raises for a wrong x saves a forward pass.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> hmc = rb.HMC(target, step_size=0.05, num_leapfrog_steps=10)
    >>> draws = hmc.sample(20, warmup=0, seed=1, progress=False)
    >>> isinstance(draws.predictive, rb.protocols.Predictive)
    True
    """

    @property
    def kind(self) -> Literal["regression", "classification", "count"]:
        """Kind of the likelihood, which decides the fields of :class:`PredictiveTerms`."""
        ...

    def outputs(self, theta: Array, x: Array) -> Array:
        """Return raw outputs of the network, (S, N, K'), for weights (S, P), without dropout."""
        ...

    def predictive(self, theta: Array, x: Array) -> PredictiveTerms:
        """Return mean and noise, or probabilities, for weights (S, P) at inputs x (N, ...).

        Sample s depends on ``theta[s]`` and row n on ``x[n]`` alone, so that results do not depend
        on chunks of either.
        """
        ...

    def log_likelihood(self, theta: Array, x: Array, y: Array) -> Array:
        """Return the untempered log density of each row and weight vector, (S, N) float64."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able description from which a Predictive without data can be rebuilt."""
        ...


@runtime_checkable
class NativePredictive(Predictive, Protocol):
    """Predictions whose statistics over draws need no pass in Python."""

    def predictive_moments(
        self, positions: Array, x: Array
    ) -> tuple[tuple[npt.NDArray[np.float64], ...], bool]:
        """Return sums over draws (C, D, P), draw by draw, and `PredictiveTerms.binary`."""
        # The sums: the first draw's means, or probabilities, v_0 (N, K); the sums of v_s - v_0 and
        # of its square (N, K); the summed noise variances (N, K), or for classification the summed
        # entropies (N,).
        ...


@runtime_checkable
class VariationalDensity(Protocol):
    """A target for mean-field variational inference (Bayes by Backprop).

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> isinstance(target, rb.protocols.VariationalDensity)
    True
    """

    @property
    def dim(self) -> int:
        """P, the number of parameters."""
        ...

    @property
    def num_rows(self) -> int:
        """N, the rows of the data."""
        ...

    @property
    def normal_prior(self) -> bool:
        """Whether every prior is normal, so that its expectation has a closed form."""
        ...

    def advance_variational(
        self,
        state: Array,
        *,
        seed: int,
        first_step: int,
        batch_size: int,
        num_samples: int,
        estimator: str,
        closed: bool,
        step_size: npt.NDArray[np.float64],
        kl_weight: npt.NDArray[np.float64],
        decay: tuple[float, float],
        epsilon: float,
        interrupt: InterruptFlag | None = None,
    ) -> tuple[Array, npt.NDArray[np.float64], int, float]:
        """Return the state after n steps of Adam on (mean, rho); inputs are not changed.

        A step climbs the mean over `num_samples` weights mean + softplus(rho) * eps of the batch's
        log likelihood / (likelihood_temperature * temperature), plus kl_weight times (entropy of q
        + E[log prior] / temperature).

        Parameters
        ----------
        state : (6, P) array
            mean, rho, and Adam's moments: mean's first and second, rho's first and second.
        seed, first_step
            Counter of batches (of chain 0) and noise.
        batch_size : int
            As in :class:`NativeSteps`.
        num_samples : int
        estimator : {"reparam", "local", "flipout"}
            Reparameterised weights, local reparameterisation, flipout.
        closed : bool
            E[log prior] in closed form, else from the weight samples.
        step_size, kl_weight : (n,) float64 NumPy array
        decay, epsilon
            Constants of Adam.
        interrupt : InterruptFlag, optional
            As in :class:`NativeTrajectory`.

        Returns
        -------
        state : (6, P) array
        records : (3, n) float64 NumPy array
            Before each step: log likelihood of the batch (untempered, not scaled), E[log q], E[log
            prior] (untempered).
        failed : int
            The step of the call at which a parameter became infinite or NaN, else -1.
        largest : float
            Largest absolute gradient of that step.
        """
        ...


@runtime_checkable
class MaskedDensity(Protocol):
    """A target whose Dropout layers can be masked by counter-based random numbers (MC dropout).

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> model = rb.Model([rb.Dense(8), rb.Dropout(0.1), rb.Dense(1)], input_shape=(1,))
    >>> target = rb.Posterior(model, x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3))
    >>> isinstance(target.masked(), rb.protocols.MaskedDensity)
    True
    """

    @property
    def dim(self) -> int:
        """P, the number of parameters."""
        ...

    def masked_value_and_grad(
        self, theta: Array, rows: Any = None, *, seed: int, step: int
    ) -> tuple[Array, Array]:
        """Return log density and gradient, as in `LogDensity`, under the masks of (seed, step).

        Chain c takes the masks of sample c.
        """
        ...
