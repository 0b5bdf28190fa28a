"""Protocols between Ribbit's samplers and a target. Read this to use a target of your own.

:class:`LogDensity` is the whole contract; :class:`ribbit.Posterior` implements it, and
:class:`Predictive`. The smallest target has two members::

    class Banana:
        dim = 2

        def value_and_grad(self, theta, rows=None):  # theta (C, 2), float64
            x, y = theta[:, 0], theta[:, 1]
            r = y - x**2
            lp = -0.5 * x**2 - 10.0 * r**2  # (C,)
            grad = np.stack([-x + 40.0 * r * x, -20.0 * r], axis=1)  # (C, 2)
            return lp, grad

    draws = rb.HMC(Banana(), step_size=0.05, num_leapfrog_steps=20).sample(1000, init=np.zeros(2))

Shapes: C = chains, P = ``dim``, S = weight samples, N = rows, K = outputs, M = terms. Arrays belong
to the target's library (``array_namespace``, default NumPy), in C order. A target must not keep or
change its arguments. Its results are copied if a later call could overwrite them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

__all__ = ["Array", "InterruptFlag", "LogDensity", "Predictive", "PredictiveTerms", "RowGroup"]

# An array of any library that follows the Python array API standard.
Array: TypeAlias = Any


class RowGroup(Protocol):
    """Processes that share the rows of a target; implemented by :class:`ribbit.distributed.Group`.

    Every rank runs the same program, and all make these calls in the same order.

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

    @property
    def size(self) -> int:
        """Number of processes."""

    def collect(self, data: bytes) -> list[bytes]:
        """Return the data of each rank."""

    def first(self, value: Any = None) -> Any:
        """Return the value of rank 0."""

    def agree(self, wish: bool, number: int, place: int) -> tuple[bool, int]:
        """Return whether a rank asks to stop, and the number of rank 0.

        Raises on every rank unless `place` is the same on all.
        """

    def alike(self, function: str, stated: dict[str, str]) -> None:
        """Raise on every rank unless all state the same."""

    def end(self) -> None:
        """End a run on every rank."""

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks of an error that they may not have."""


@runtime_checkable
class LogDensity(Protocol):
    """A log density with its gradient, enough for HMC, NUTS and MCLMC.

    Everything else is optional:

    - ``dtype``: dtype of positions, float32 or float64. Default float64.
    - ``array_namespace``: module of the arrays (cupy, array_api_strict ...). Default numpy.
    - ``init(seed=0, chains=None)``: a start (P,), or (chains, P) for an integer. A sequence of
      chain ids gives one row per id; a row depends on (seed, id) alone. Needed without ``init=``.
    - ``terms_and_grad(theta)``: terms (C, M) in float64, which sum to the log density, and the
      gradient. Energy errors then keep their digits if large terms cancel.
    - ``term_names``: the M names of the terms, for messages.
    - ``fingerprint``: dict of strings that identify the target. A state resumes on the same alone.
    - ``temperature``: temperature by which the log density is divided. Default 1.
    - ``prior_mean``: mean (P,) of each parameter's prior. Default 0.
    - ``prior_sd``: sd (P,) of each parameter's prior at temperature 1, or its scale if the sd is
      infinite. Needed by ``inverse_mass_matrix="prior"``.
    - ``shared_prior_sd``: prior sd of all network weights, if they share one. Default None.
    - ``normal_prior``: True if all priors are normal. Positions far outside are then reported.
    - ``parameter_groups``: (K,) ints, ascending from 0: where each array of parameters begins.
      MCLMC finds a scale for each with ``inverse_mass_matrix="layers"``.
    - ``parameter_blocks``: (B, 3) ints, ascending: first parameter, inputs and outputs of blocks in
      C order, biases as one more input. MCLMC whitens their inputs (``"inputs"``, NumPy arrays).
    - ``noise_floor``: smallest sd of noise, in units of y. From 0.05 on, MCLMC's default is
      "inputs" if there are ``parameter_blocks``. Default 0.
    - ``num_rows``: number N of data rows. Needed for minibatches.
    - ``rows_per_chain``: True if `rows` may be (C, n), a minibatch for each chain. Default False.
    - ``subset(rows)``, ``log_likelihood(theta)``: the same target of some rows alone, and the log
      likelihood (C,). ``init="ensemble"`` needs both, ``num_rows``, ``init`` and ``advance``.
    - ``integrated``: name of the part that is integrated out. Default None. Samplers and fits that
      need a sum over rows refuse such a density.
    - ``dropout_layers``: names of Dropout layers. HMC refuses a target that has some.
    - ``group``: the :class:`RowGroup` whose ranks all take part in each evaluation. Default None.
    - ``precision_reference``: the same target with gradients as accurate as float32. HMC and NUTS
      compare a short trajectory of both before a run. Default None.
    - ``predictive``, ...: the members of :class:`Predictive`. Draws then predict.
    - ``inputs(count)``: about `count` inputs, whose predictions a run monitors.
    - ``leapfrog``: whole trajectories, as :meth:`ribbit.Posterior.leapfrog`. An attribute
      ``counts_steps`` of the method says that it takes ``made=``.
    - ``advance``, ``isokinetic``, ``advance_variational``, ``gauss_newton``, ``masked``: steps and
      curvature in native code, as in :class:`ribbit.Posterior`.
    - ``interruptible``: True if these methods poll their `interrupt`, an :class:`InterruptFlag`,
      every 20 ms. Default False: Ctrl-C raises KeyboardInterrupt inside the target's code.

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

    def clear(self) -> None:
        """Withdraw the request."""

    def is_set(self) -> bool:
        """Whether a stop was requested."""


@dataclass(frozen=True, slots=True)
class PredictiveTerms:
    """Predictions of S weight vectors for N rows; shapes may broadcast to (S, N, K).

    Attributes
    ----------
    mean, noise_sd : array or None
        Mean and standard deviation of y given the weights, not tempered: regression and counts.
    probs : array or None
        Classification: class probabilities, or with `binary` the probability that y = 1.
    binary : bool
        True if `probs` are K separate Bernoulli probabilities and not one distribution over K.
    noise_df : float or None
        Degrees of freedom of Student-t noise; None for other noise or none.
    noise_scale : array or None
        Scale of Student-t noise, which has no finite `noise_sd` if ``noise_df <= 2``.

    Examples
    --------
    >>> terms = rb.protocols.PredictiveTerms(probs=np.full((2, 5, 3), 1 / 3))
    >>> terms.values.shape
    (2, 5, 3)
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

    Optional members:

    - ``numbered``: True if a prediction also depends on the number of its draw, as a dropout mask
      does. ``predictive`` and ``log_likelihood`` then get ``first=`` and ``row=``, the numbers of
      the first draw and row. Default False.
    - ``flat``: True shows predictions of a single output as (N,). Default False.
    - ``columns``: column names of the data, by which frames of new inputs are matched.
    - ``check_inputs(x)``: raises for a wrong x, which saves a forward pass.
    - ``predictive_moments(positions, x)``: sums over draws (C, D, P), as in `Posterior`.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> target = rb.Posterior(
    ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
    ... )
    >>> isinstance(target, rb.protocols.Predictive)
    True
    """

    @property
    def kind(self) -> Literal["regression", "classification", "count"]:
        """Kind of the likelihood, which decides the fields of :class:`PredictiveTerms`."""

    def outputs(self, theta: Array, x: Array) -> Array:
        """Return raw outputs of the network, (S, N, K'), for weights (S, P), without dropout."""

    def predictive(self, theta: Array, x: Array) -> PredictiveTerms:
        """Return mean and noise, or probabilities, for weights (S, P) at inputs x (N, ...).

        Sample s depends on ``theta[s]`` and row n on ``x[n]`` alone, so that results do not depend
        on chunks of either.
        """

    def log_likelihood(self, theta: Array, x: Array, y: Array) -> Array:
        """Return the untempered log density of each row and weight vector, (S, N) float64."""

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able description from which a Predictive without data can be rebuilt."""
