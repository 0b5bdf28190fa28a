"""The posterior of a network: prior times likelihood over all rows, tempered as stated.

`Posterior` is where networks and samplers meet; it implements the protocols of ``protocols.py``.
Shapes: C chains, S draws, P = dim parameters, N rows, D inputs, K outputs, J columns of y.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

import numpy as np

from ribbit import _checks, _core, layers, likelihoods, priors
from ribbit._checks import FloatArray
from ribbit._predictive import NetworkPredictive, predictive_from_description
from ribbit.errors import DTypeError, ShapeError
from ribbit.likelihoods import Array64, Kind, Likelihood
from ribbit.model import Model
from ribbit.priors import LOG_NOISE, Normal, Prior, PriorLike
from ribbit.protocols import PredictiveTerms

if TYPE_CHECKING:
    import numpy.typing as npt

    from ribbit.masked import MaskedPosterior


__all__ = ["NetworkPredictive", "Posterior", "predictive_from_description"]

_FIRST_ROW = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Posterior:
    """The posterior of a network given data.

    log density = (log likelihood / likelihood_temperature + log prior) / temperature, summed over
    all N rows, normalising constants included.

    Parameters
    ----------
    model : Model
        The network.
    x : array
        Rows (N, *input_shape): any real dtype, byte order or strides.
    y : array
        Targets (N, J); (N,) means (N, 1). Integer labels (N,) for `Categorical`.
    prior : Prior or dict of str to Prior
        One prior for all parameters, or patterns of names (fnmatch), the first that matches wins.
        A learned noise takes the likelihood's ``log_noise_prior``, or the entry "log_noise" here.
    likelihood : Likelihood
        What the outputs mean.
    temperature : float, default 1.0
        Divides the whole log density, > 0 (Wenzel et al. 2020).
    likelihood_temperature : float, default 1.0
        Divides the log likelihood alone, > 0.
    dtype : dtype, default float32
        float32 or float64, of positions and gradients; log densities are float64 always.

    Attributes
    ----------
    dim : int
        Number of parameters P; one more than the model's when the noise is learned ("log_noise",
        the last, the logarithm of the noise sd).
    x, y : numpy.ndarray
        The data (N, D) and (N, J), copied and converted once, read-only: changing the arrays that
        were passed does not change the target.
    normal_prior : bool
        Whether every parameter's prior is a `Normal`.
    prior_sd : numpy.ndarray
        (P,) float64, sd of the prior per parameter, untempered; its scale where that is infinite.
    shared_prior_sd : float or None
        The sd that all weights and biases share, None if they do not; "log_noise" not counted.
    dropout_layers : tuple of str
        Dropout layers as ``"2: Dropout(0.1)"``; they are the identity here.

    Raises
    ------
    TypeError, ValueError
        If an argument does not fit: shapes, dtypes, NaN or infinite data, labels out of range, a
        parameter without a prior, a temperature that is not positive.

    References
    ----------
    Wenzel et al. (2020), "How good is the Bayes posterior in deep neural networks really?",
    section 2.
    """

    model: Model
    prior: PriorLike
    likelihood: Likelihood
    temperature: float
    likelihood_temperature: float
    dtype: np.dtype[Any]
    dim: int
    x: FloatArray
    y: FloatArray
    normal_prior: bool
    prior_sd: Array64
    shared_prior_sd: float | None
    dropout_layers: tuple[str, ...]
    _native: Any
    _prior_rows: Array64
    _predictive: NetworkPredictive
    array_namespace: ClassVar[ModuleType] = np
    interruptible: ClassVar[bool] = True

    def __init__(
        self,
        model: Model,
        x: npt.ArrayLike,
        y: npt.ArrayLike,
        *,
        prior: PriorLike,
        likelihood: Likelihood,
        temperature: float = 1.0,
        likelihood_temperature: float = 1.0,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        name = "Posterior"
        if not isinstance(model, Model):
            raise TypeError(f"[{name}] expected model as a Model, got {_checks.summary(model)}")
        prior = priors.check(name, prior)
        likelihood = likelihoods.check(name, likelihood)
        temperature = _checks.positive(name, "temperature", temperature)
        likelihood_temperature = _checks.positive(
            name, "likelihood_temperature", likelihood_temperature
        )
        chosen = _checks.float_dtype(name, dtype)
        log_noise = _log_noise_prior(name, likelihood)
        resolved = priors.resolve(name, prior, model.parameters, log_noise=log_noise)
        rows = model.rows(name, x, chosen)
        targets = likelihood.targets(name, y, rows.shape[0], model.output_shape, chosen)
        for array in (rows, targets, resolved.spread):
            array.flags.writeable = False
        native = _core.LogDensity32 if chosen == np.float32 else _core.LogDensity64
        description = {
            "model": model.describe(),
            "likelihood": likelihood.describe(),
            "prior": priors.describe(prior),
            "log_noise_prior": None if log_noise is None else log_noise.describe(),
            "temperature": temperature,
            "likelihood_temperature": likelihood_temperature,
            "dtype": chosen.name,
            "num_rows": rows.shape[0],
        }
        for key, value in {
            "model": model,
            "prior": prior,
            "likelihood": likelihood,
            "temperature": temperature,
            "likelihood_temperature": likelihood_temperature,
            "dtype": chosen,
            "dim": model.dim + int(likelihood.learns_noise),
            "x": rows,
            "y": targets,
            "normal_prior": bool((resolved.rows[:, 2] == 0).all()),
            "prior_sd": resolved.spread,
            "_prior_rows": resolved.rows,
            "shared_prior_sd": resolved.shared,
            "dropout_layers": layers.names_of_dropout(model.layers),
            "_native": native(
                model.table,
                model.rates,
                resolved.rows,
                int(likelihood.learns_noise) or likelihood.code,
                likelihood.table_scale,
                rows,
                targets,
                temperature,
                likelihood_temperature,
            ),
            "_predictive": NetworkPredictive(model, likelihood, description),
        }.items():
            object.__setattr__(self, key, value)

    def __repr__(self) -> str:
        return (
            f"Posterior({self.model!r}, {self.num_rows} rows, prior={self.prior!r}, "
            f"likelihood={self.likelihood!r}, temperature={self.temperature:g}, "
            f"likelihood_temperature={self.likelihood_temperature:g}, dtype={self.dtype})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # The native part cannot be pickled; it is rebuilt from the arguments.
        x = self.x.reshape((-1, *self.model.input_shape))
        settings = (self.prior, self.likelihood, self.temperature, self.likelihood_temperature)
        return _rebuild, (self.model, x, self.y, *settings, self.dtype.name)

    @property
    def num_rows(self) -> int:
        """Number of data rows N."""
        return int(self.x.shape[0])

    @property
    def kind(self) -> Kind:
        """One of "regression", "classification" and "count"."""
        return self.likelihood.kind

    def init(
        self,
        seed: int = 0,
        chains: int | npt.ArrayLike | None = None,
        *,
        scheme: str = "he",
    ) -> FloatArray:
        """Draw a starting position: the model's `Model.init`, "log_noise" at 0.

        Parameters
        ----------
        seed : int, default 0
            In [0, 2**64).
        chains : int or array of int, optional
            Number of chains, or their ids (C,).
        scheme : {"he", "small"}, default "he"
            As in `Model.init`.

        Returns
        -------
        numpy.ndarray
            (P,), or (chains, P), in the target's dtype.

        Raises
        ------
        TypeError, ValueError
            If an argument is out of its range.
        """
        start = self.model.init(seed, chains, scheme=scheme, dtype=self.dtype)
        if self.likelihood.learns_noise:
            noise = np.zeros((*start.shape[:-1], 1), dtype=self.dtype)
            return np.concatenate([start, noise], axis=-1)
        return start

    def unravel(self, theta: FloatArray) -> dict[str, FloatArray]:
        """Return named views of a position (..., P): as `Model.unravel`, with "log_noise" (...).

        Raises
        ------
        TypeError, ValueError
            If `theta` is no array or its last axis is not P.
        """
        if not self.likelihood.learns_noise:
            return self.model.unravel(theta)
        shape = getattr(theta, "shape", None)
        if not isinstance(shape, tuple):
            got = _checks.summary(theta)
            raise DTypeError(f"[Posterior.unravel] expected an array (..., {self.dim}), got {got}")
        if not shape or shape[-1] != self.dim:
            raise ShapeError(f"[Posterior.unravel] expected shape (..., {self.dim}), got {shape}")
        views = self.model.unravel(theta[..., :-1])
        views[LOG_NOISE] = theta[..., -1]  # with the ellipsis a view, for (P,) too
        return views

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
        theta, single = _checks.position(function, "theta", theta, self.dtype, self.dim)
        batch = None if rows is None else self._rows(function, rows)
        likelihood, prior, grad = self._native.value_and_grad(theta, batch)
        # Each part is divided on its own, so that the terms of terms_and_grad add up exactly.
        parts, rest = self._temper(likelihood, prior)
        lp = parts + rest
        return (lp[0], grad[0]) if single else (lp, grad)

    def terms_and_grad(self, theta: FloatArray) -> tuple[Array64, FloatArray]:
        """Return the log density in two parts, tempered likelihood and prior, and its gradient.

        Parameters
        ----------
        theta : numpy.ndarray
            (P,) or (C, P) in the target's dtype.

        Returns
        -------
        terms : numpy.ndarray
            (2,) or (C, 2) float64; their sum is the log density.
        grad : numpy.ndarray
            (P,) or (C, P).

        Raises
        ------
        TypeError, ValueError
            If `theta` has the wrong dtype or shape.
        """
        function = "Posterior.terms_and_grad"
        theta, single = _checks.position(function, "theta", theta, self.dtype, self.dim)
        likelihood, prior, grad = self._native.value_and_grad(theta, None)
        terms = np.stack(self._temper(likelihood, prior), axis=-1)
        return (terms[0], grad[0]) if single else (terms, grad)

    def leapfrog(
        self,
        position: FloatArray,
        momentum: FloatArray,
        grad: FloatArray,
        step_size: npt.ArrayLike,
        num_steps: npt.ArrayLike,
        *,
        inverse_mass: FloatArray | None = None,
        interrupt: Any = None,
    ) -> tuple[FloatArray, FloatArray, Array64, FloatArray]:
        """Run a leapfrog trajectory of every chain in native code (Neal 2011, section 2.3).

        Parameters
        ----------
        position, momentum, grad : numpy.ndarray
            (C, P) in the target's dtype; `grad` is the gradient at `position`.
        step_size : array
            () or (C,), float64.
        num_steps : array of int
            () or (C,), >= 1.
        inverse_mass : numpy.ndarray, optional
            Diagonal (P,) or (C, P) in the target's dtype; None is the identity.
        interrupt : InterruptFlag, optional
            Ends the call from another thread.

        Returns
        -------
        position, momentum : numpy.ndarray
            (C, P), new arrays.
        terms : numpy.ndarray
            (C, 2) float64 at the end, as in `terms_and_grad`.
        grad : numpy.ndarray
            (C, P) at the end.

        Raises
        ------
        TypeError, ValueError
            If shapes or dtypes do not fit, or a number of steps is below one.
        """
        trajectory = _checks.trajectory(
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
        out = self._native.leapfrog(*trajectory, interrupt)
        position, momentum, likelihood, prior, grad = out
        return position, momentum, np.stack(self._temper(likelihood, prior), axis=-1), grad

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
        rule: int,
        prior: float,
        friction: float,
        decay: tuple[float, float],
        epsilon: float,
        adapt_until: int,
        interrupt: Any = None,
    ) -> tuple[
        FloatArray,
        FloatArray | None,
        FloatArray | None,
        npt.NDArray[np.int64],
        Array64,
    ]:
        """Make stochastic-gradient steps of every chain in native code.

        See `protocols.NativeSteps`, where the arguments are explained.

        Raises
        ------
        TypeError, ValueError
            If shapes or dtypes do not fit.
        """
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
            rule,
            prior,
            friction,
            *decay,
            epsilon,
            adapt_until,
            interrupt,
        )
        return out  # type: ignore[no-any-return]

    def advance_variational(
        self,
        state: FloatArray,
        *,
        seed: int,
        first_step: int,
        batch_size: int,
        num_samples: int,
        estimator: int,
        closed: bool,
        step_size: npt.NDArray[np.float64],
        kl_weight: npt.NDArray[np.float64],
        decay: tuple[float, float],
        epsilon: float,
        interrupt: Any = None,
    ) -> tuple[FloatArray, Array64, int, float]:
        """Make steps of a mean-field Gaussian in native code; see `protocols.VariationalDensity`.

        Raises
        ------
        TypeError, ValueError
            If shapes or dtypes do not fit.
        """
        out: Any = self._native.advance_variational(
            state,
            seed,
            first_step,
            batch_size,
            num_samples,
            estimator,
            closed,
            step_size,
            kl_weight,
            *decay,
            epsilon,
            interrupt,
        )
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
            (P,) or (C, P) in the target's dtype.
        x, y : array, optional
            New rows (N', *input_shape) and their targets: both or neither.

        Returns
        -------
        numpy.float64 or numpy.ndarray
            () or (C,), the sum over all N rows; with `x` and `y` the (C, N') terms of each row,
            for theta (C, P).

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
        theta, single = _checks.position(function, "theta", theta, self.dtype, self.dim)
        value, _ = self._native.value(theta, None)
        return value[0] if single else value

    def log_prior(self, theta: FloatArray) -> Any:
        """Return the untempered log prior, () or (C,) float64, normalised.

        Parameters
        ----------
        theta : numpy.ndarray
            (P,) or (C, P) in the target's dtype.

        Raises
        ------
        TypeError, ValueError
            If `theta` has the wrong dtype or shape.
        """
        function = "Posterior.log_prior"
        theta, single = _checks.position(function, "theta", theta, self.dtype, self.dim)
        # The prior does not depend on the rows: one is enough.
        _, value = self._native.value(theta, _FIRST_ROW)
        return value[0] if single else value

    def outputs(self, theta: FloatArray, x: npt.ArrayLike) -> FloatArray:
        """Return the raw outputs of the network at `x`; see `NetworkPredictive.outputs`."""
        return self._predictive.outputs(theta, x)

    def predictive(self, theta: FloatArray, x: npt.ArrayLike) -> PredictiveTerms:
        """Return what each draw predicts at `x`; see `NetworkPredictive.predictive`."""
        return self._predictive.predictive(theta, x)

    def check_inputs(self, x: npt.ArrayLike) -> None:
        """Raise unless `x` can be predicted at; see `NetworkPredictive.check_inputs`."""
        self._predictive.check_inputs(x)

    def predictive_moments(
        self, positions: FloatArray, x: npt.ArrayLike
    ) -> tuple[tuple[Array64, ...], bool]:
        """Return running sums over draws; see `protocols.NativePredictive`."""
        return self._predictive.predictive_moments(positions, x)

    @property
    def network_predictive(self) -> NetworkPredictive:
        """What predicts, without the data."""
        return self._predictive

    def masked(
        self,
        *,
        rate: float | Literal["concrete"] | None = None,
        length_scale: float | None = None,
        precision: float | None = None,
    ) -> MaskedPosterior:
        """Return the same posterior with its Dropout layers active; see `MaskedPosterior`.

        Raises
        ------
        TypeError, ValueError
            Without Dropout layers, or for arguments that do not fit.
        """
        from ribbit.masked import MaskedPosterior

        return MaskedPosterior(self, rate=rate, length_scale=length_scale, precision=precision)

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able description, without data, for `predictive_from_description`."""
        return self._predictive.describe()

    def _temper(self, likelihood: Array64, prior: Array64) -> tuple[Array64, Array64]:
        # (C,), (C,): likelihood / (T_l T) and prior / T.
        scale = self.likelihood_temperature * self.temperature
        return likelihood / scale, prior / self.temperature

    def _rows(self, function: str, rows: npt.ArrayLike) -> npt.NDArray[np.int64]:
        return _checks.integer_array(function, "rows", rows, below=self.num_rows)


def _log_noise_prior(function: str, likelihood: Likelihood) -> Prior | None:
    if not likelihood.learns_noise:
        return None
    prior = getattr(likelihood, "log_noise_prior", None)
    if prior is None:
        return Normal(1.0)
    if not isinstance(prior, Prior):
        got = _checks.summary(prior)
        raise TypeError(f"[{function}] expected log_noise_prior as a prior, got {got}")
    return prior


def _rebuild(
    model: Model,
    x: FloatArray,
    y: FloatArray,
    prior: PriorLike,
    likelihood: Likelihood,
    temperature: float,
    likelihood_temperature: float,
    dtype: str,
) -> Posterior:
    return Posterior(
        model,
        x,
        y,
        prior=prior,
        likelihood=likelihood,
        temperature=temperature,
        likelihood_temperature=likelihood_temperature,
        dtype=dtype,
    )
