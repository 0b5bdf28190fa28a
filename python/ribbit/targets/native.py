"""Values, gradients and steps of a posterior, computed by the native log density."""

# Shapes: C chains, P = dim parameters, N rows.

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, overload

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays import positions as positions_
from ribbit._arrays.checks import FloatArray
from ribbit._arrays.update_rules import RULES, check_moments
from ribbit._backends.codes import ESTIMATORS, INTEGRATORS
from ribbit.protocols import RowGroup
from ribbit.targets.likelihoods import Array64
from ribbit.targets.predictive import NetworkPredictive, check_addresses
from ribbit.targets.spec import DensitySpec

if TYPE_CHECKING:
    import numpy.typing as npt

_FIRST_ROW = np.zeros(1, dtype=np.int64)


def _pair(function: str, name: str, value: object) -> tuple[float, float]:
    """Return a list or tuple of two numbers as floats."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise TypeError(f"[{function}] expected {name} as two numbers, got {checks.summary(value)}")
    return checks.real(function, name, value[0]), checks.real(function, f"{name}[1]", value[1])


class NativeSteps:
    """Minibatch steps of a target that has `_native`."""

    _native: Any
    _spec: DensitySpec

    @property
    def group(self) -> RowGroup | None:
        """The processes that share the rows; None if all rows are here."""
        return None if self._spec.ranks is None else self._spec.ranks.group

    def advance(
        self,
        position: FloatArray,
        first: FloatArray | None,
        second: FloatArray | None,
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
        interrupt: Any = None,
        keep: npt.NDArray[np.int64] | None = None,
        kept: FloatArray | None = None,
    ) -> tuple[
        FloatArray,
        FloatArray | None,
        FloatArray | None,
        npt.NDArray[np.int64],
        Array64,
    ]:
        """Return position, moments, failed step (-1: none) and its largest |gradient| (C,)."""
        # Step s of chain c uses batch s mod M of epoch s div M, with M = ceil(N / batch_size); its
        # noise has the counter (seed, update noise, s, c, parameter). Batches are runs of the keyed
        # permutation of ``core/permutation_hd.h``. step_size, noise: (n,), the factors of the sd.
        # first, second (C, P): velocities or moments of the rule; "kinetic": velocities and scales,
        # in epochs of 2 M steps, there and back. prior: weight of the log prior, 1 or 0.
        # adapt_until: steps before this one move the preconditioner. On the CPU `kept` (C, K, P) is
        # filled with the positions after the steps `keep` (K,) of the call, 0-based and ascending.
        function = "Posterior.advance"
        code = RULES[checks.choice(function, "rule", rule, RULES)]
        check_moments(function, rule, first, second)
        decays = _pair(function, "decay", decay)
        keeps = () if keep is None else (keep, kept)
        try:
            out: Any = self._native.advance(
                position,
                first,
                second,
                seed,
                chains,
                first_step,
                batch_size,
                step_size,
                noise,
                code,
                prior,
                friction,
                previous_step_size,
                *decays,
                epsilon,
                adapt_until,
                interrupt,
                *keeps,
            )
        except (TypeError, ValueError) as error:
            checks.blame(function, error, locals())
            raise
        return out  # type: ignore[no-any-return]

    # Read by the samplers: `keep` is taken. On the method, so that one that replaces it is asked
    # for no more than the protocol says.
    advance.keeps_positions = True  # type: ignore[attr-defined]


class NativeDensity:
    """Base class of `Posterior`: log density, gradient, trajectories, variational steps."""

    term_names: ClassVar[tuple[str, ...]] = ("log likelihood", "log prior")
    dim: int
    dtype: np.dtype[Any]
    array_namespace: ModuleType
    x: FloatArray
    temperature: float
    likelihood_temperature: float
    integrated: str | None
    joint: Any
    _native: Any
    _predictive: NetworkPredictive
    _spec: DensitySpec

    @property
    def num_rows(self) -> int:
        """Number of data rows N."""
        return self._spec.num_rows

    def value_and_grad(
        self, theta: FloatArray, rows: npt.ArrayLike | None = None
    ) -> tuple[Any, FloatArray]:
        """Return the tempered log density and its gradient.

        Parameters
        ----------
        theta : numpy.ndarray
            (P,) or (C, P) in the target's dtype.
        rows : array of int, optional
            Minibatch (n,): indices in [0, N), repeats count again. The likelihood is scaled by
            N / n.

        Returns
        -------
        lp : numpy.float64 or numpy.ndarray
            Log density, () or (C,) float64.
        grad : numpy.ndarray
            Its gradient, (P,) or (C, P), in the target's dtype.

        Raises
        ------
        TypeError, ValueError
            If `theta` or `rows` has the wrong dtype or shape, or an index is out of range.
        """
        function = "Posterior.value_and_grad"
        if rows is not None:
            self._needs_rows(function)
        theta, single = self._position(function, theta)
        batch = None
        if rows is not None:
            batch = checks.integer_array(function, "rows", rows, below=self.num_rows)
        likelihood, prior, grad = self._native.value_and_grad(theta, batch)
        # Each part is divided on its own, so that the terms of terms_and_grad add up exactly.
        parts, rest = self._spec.temper(likelihood, prior)
        lp = parts + rest
        return (lp[0], grad[0]) if single else (lp, grad)

    def terms_and_grad(self, theta: FloatArray) -> tuple[Array64, FloatArray]:
        """Return tempered likelihood and prior, (2,) or (C, 2) float64, and the gradient."""
        function = "Posterior.terms_and_grad"
        theta, single = self._position(function, theta)
        likelihood, prior, grad = self._native.value_and_grad(theta, None)
        terms = self.array_namespace.stack(self._spec.temper(likelihood, prior), axis=-1)
        return (terms[0], grad[0]) if single else (terms, grad)

    def leapfrog(
        self,
        position: FloatArray,
        momentum: FloatArray,
        grad: FloatArray | None,
        step_size: npt.ArrayLike,
        num_steps: npt.ArrayLike,
        *,
        inverse_mass: FloatArray | None = None,
        made: npt.NDArray[np.int64] | None = None,
        interrupt: Any = None,
    ) -> tuple[FloatArray, FloatArray, Array64, FloatArray]:
        """Run a leapfrog trajectory of every chain in native code (Neal 2011, section 2.3).

        Reversible: negate the final momentum and run again.

        Parameters
        ----------
        position, momentum, grad : numpy.ndarray
            (C, P) in the target's dtype; `grad` is the gradient at `position`, or None to evaluate
            it.
        step_size : array
            () or (C,), float64.
        num_steps : array of int
            () or (C,), >= 1.
        inverse_mass : numpy.ndarray, optional
            Diagonal (P,) or (C, P) in the target's dtype; None is the identity.
        made : numpy.ndarray, optional
            (C,) int64, filled with the number of steps made. On the CPU a chain whose momentum is
            no longer finite ends at the next multiple of 8.
        interrupt : InterruptFlag, optional
            Ends the call from another thread.

        Returns
        -------
        position, momentum : numpy.ndarray
            (C, P), new arrays.
        terms : numpy.ndarray
            (C, 2) float64 at the end, as in `terms_and_grad`; NaN for a chain that ended early.
        grad : numpy.ndarray
            (C, P) at the end.

        Raises
        ------
        TypeError, ValueError
            If shapes or dtypes do not fit, or a number of steps is below one.

        Examples
        --------
        >>> x = np.linspace(-1, 1, 20)[:, None]
        >>> target = rb.Posterior(
        ...     rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
        ... )
        >>> start = target.init(seed=0, chains=2)
        >>> momentum = rb.random.normal((2, target.dim), seed=1).astype(target.dtype)
        >>> q, p, terms, grad = target.leapfrog(start, momentum, None, 0.01, 10)
        >>> back, *_ = target.leapfrog(q, -p, grad, 0.01, 10)
        >>> bool(np.allclose(back, start, atol=1e-4))
        True
        """
        xp = self.array_namespace
        if grad is None and xp is not np:
            grad = self.terms_and_grad(position)[1]
        trajectory = positions_.trajectory(
            xp,
            "Posterior.leapfrog",
            position,
            momentum,
            grad,
            step_size,
            num_steps,
            inverse_mass,
            self.dtype,
            self.dim,
        )
        positions_.check_made("Posterior.leapfrog", made, trajectory[0].shape[0])
        *arrays, mass = trajectory
        return self._leapfrog(*arrays, inverse_mass=mass, made=made, interrupt=interrupt)

    def _leapfrog(
        self,
        *arrays: Any,
        inverse_mass: FloatArray | None,
        made: npt.NDArray[np.int64] | None = None,
        interrupt: Any = None,
    ) -> tuple[FloatArray, FloatArray, Array64, FloatArray]:
        """Run the trajectories of `leapfrog` from arrays that are known to fit."""
        xp = self.array_namespace
        if xp is np:  # what is contiguous is not copied
            arrays = (*[None if a is None else np.ascontiguousarray(a) for a in arrays],)
        try:
            out = self._native.leapfrog(*arrays, inverse_mass, interrupt)
        except (TypeError, ValueError) as error:
            checks.blame("Posterior.leapfrog", error, locals())
            raise
        position, momentum, likelihood, prior, grad, *counts = out
        if made is not None:  # a device makes all of them: a look at each would wait for it
            made[...] = counts[0] if counts else arrays[-1]
        return position, momentum, xp.stack(self._spec.temper(likelihood, prior), axis=-1), grad

    # Read by the samplers: `made` is filled. On the method, so that a method that replaces it is
    # asked for no more than the protocol says.
    leapfrog.counts_steps = True  # type: ignore[attr-defined]
    # The method itself, so that chains of the core pass no method by that replaces or wraps it.
    leapfrog.in_core = leapfrog  # type: ignore[attr-defined]

    def isokinetic(
        self,
        position: FloatArray,
        velocity: FloatArray,
        grad: FloatArray,
        terms: Array64,
        *,
        seed: int,
        chains: npt.NDArray[np.uint32],
        first_step: int,
        integrator: str,
        step_size: Array64,
        decoherence_length: Array64,
        num_steps: npt.NDArray[np.int64],
        scale: FloatArray | None = None,
        blocks: npt.NDArray[np.int64] | None = None,
        mixing: FloatArray | None = None,
        turns: bool = True,
        interrupt: Any = None,
    ) -> tuple[FloatArray, FloatArray, FloatArray, Array64, Array64, Array64]:
        """Return position, velocity, grad, terms, energy (C,) and errors (C, n) after the steps."""
        # Formulas: ``core/isokinetic_hd.h``; the noise has the counter (seed, refresh, step, chain,
        # parameter). decoherence_length (C,): infinity is no noise. scale (P,) or (C, P): whitened
        # coordinates are position / scale. blocks (B, 3), as `parameter_blocks`, with mixing
        # (C, M): symmetric matrices (inputs, inputs), flat and concatenated, that multiply them.
        # turns: a step that is not finite is undone and turns the chain round, else it ends the
        # chain. energy: gained by all kicks. errors: of each step, NaN if not finite, 0 after the
        # last.
        function = "Posterior.isokinetic"
        code = INTEGRATORS[checks.choice(function, "integrator", integrator, INTEGRATORS)]
        try:
            out: Any = self._native.isokinetic(
                position,
                velocity,
                grad,
                terms,
                seed,
                chains,
                first_step,
                code,
                step_size,
                decoherence_length,
                num_steps,
                scale,
                blocks,
                mixing,
                checks.boolean(function, "turns", turns),
                interrupt,
            )
        except (TypeError, ValueError) as error:
            checks.blame(function, error, locals())
            raise
        return out  # type: ignore[no-any-return]

    def advance_variational(
        self,
        state: FloatArray,
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
        interrupt: Any = None,
    ) -> tuple[FloatArray, Array64, int, float]:
        """Return state (6, P), records (3, n), failed step (-1: none), its largest |gradient|."""
        # Adam on (mean, rho), with weights mean + softplus(rho) * eps: it climbs the mean, over
        # `num_samples`, of the batch's log likelihood / (likelihood_temperature * temperature),
        # plus kl_weight times (entropy of q + E[log prior] / temperature). state: mean, rho, first
        # and second moment of mean, then of rho. closed: E[log prior] in closed form. records,
        # before each step: the batch's log likelihood (not scaled), E[log q] and E[log prior], all
        # untempered.
        function = "Posterior.advance_variational"
        name = checks.choice(function, "estimator", estimator, ESTIMATORS)
        decays = _pair(function, "decay", decay)
        if name != "reparam" and self._spec.table.scales is not None:
            raise ValueError(
                "[BBB] expected estimator='reparam' where scales of weights are learned, "
                f"got {name!r}"
            )
        if name != "reparam":  # noise for each row
            check_addresses("BBB", self._predictive.model, self.num_rows)
        try:
            out: Any = self._native.advance_variational(
                state,
                seed,
                first_step,
                batch_size,
                num_samples,
                ESTIMATORS[name],
                checks.boolean(function, "closed", closed),
                step_size,
                kl_weight,
                *decays,
                epsilon,
                interrupt,
            )
        except (TypeError, ValueError) as error:
            checks.blame(function, error, locals())
            raise
        return out  # type: ignore[no-any-return]

    @overload
    def log_likelihood(self, theta: FloatArray) -> Any: ...
    @overload
    def log_likelihood(self, theta: FloatArray, x: npt.ArrayLike, y: npt.ArrayLike) -> Array64: ...
    def log_likelihood(
        self, theta: FloatArray, x: npt.ArrayLike | None = None, y: npt.ArrayLike | None = None
    ) -> Any:
        """Return the untempered log likelihood of the data, or of new rows row by row.

        Parameters
        ----------
        theta : numpy.ndarray
            (P,) or (C, P) in the target's dtype; all P parameters, also if some are integrated out.
        x, y : array, optional
            New rows (N', *input_shape) and their targets: both or neither.

        Returns
        -------
        numpy.float64 or numpy.ndarray
            () or (C,), the sum over all N rows, each times its weight (`sample_weight`). With `x`
            and `y` the terms (C, N') of each row, for theta (C, P), without weights.

        Raises
        ------
        TypeError, ValueError
            If shapes or dtypes do not fit, or one of `x` and `y` is missing.
        """
        if x is not None and y is not None:
            return self._predictive.log_likelihood(theta, x, y)
        function = "Posterior.log_likelihood"
        if x is not None or y is not None:
            raise TypeError(f"[{function}] expected both x and y or neither, got one of them")
        if self.integrated is not None:
            return self.joint.log_likelihood(theta)
        theta, single = self._position(function, theta)
        value, _ = self._native.value(theta, None)
        return value[0] if single else value

    def log_prior(self, theta: FloatArray) -> Any:
        """Return the untempered log prior, () or (C,) float64, normalised.

        Parameters
        ----------
        theta : numpy.ndarray
            (P,) or (C, P) in the target's dtype; all P parameters, also if some are integrated out.

        Raises
        ------
        TypeError, ValueError
            If `theta` has the wrong dtype or shape.
        """
        function = "Posterior.log_prior"
        if self.integrated is not None:
            return self.joint.log_prior(theta)
        theta, single = self._position(function, theta)
        # The prior does not depend on the rows: one is enough.
        _, value = self._native.value(theta, _FIRST_ROW)
        return value[0] if single else value

    def _position(self, function: str, theta: Any) -> tuple[Any, bool]:
        return positions_.position(
            self.array_namespace, function, "theta", theta, self.dtype, self.dim
        )

    def _needs_rows(self, function: str) -> None:
        """Raise where the density is no sum over rows."""
        if self.integrated is not None:
            raise ValueError(
                f"[{function}] expected a density that is a sum over rows, got one with its "
                f"{self.integrated} integrated out (marginalize=)"
            )

    def _needs_one_process(self, function: str) -> None:
        """Raise where the rows lie on several ranks."""
        if self._spec.ranks is not None:
            raise ValueError(
                f"[{function}] expected a posterior without group=, got one whose rows lie on "
                f"{self._spec.ranks.group.size} ranks: only whole gradients are made together"
            )
