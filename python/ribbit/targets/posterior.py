"""The posterior of a network: prior times likelihood over all rows, tempered as stated."""

# `Posterior` is where networks and samplers meet; it implements the protocols of ``protocols.py``.
# Shapes: C chains, S draws, P = dim parameters, N rows, D inputs, K outputs, J columns of y.

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ribbit._arrays import checks, device_kernels
from ribbit._arrays.checks import FloatArray
from ribbit._arrays.keywords import explain
from ribbit._arrays.mapped import mapped
from ribbit._arrays.positions import host_position
from ribbit._arrays.tables import html_table
from ribbit._backends import precision as _precision
from ribbit._backends.precision import Precision
from ribbit.errors import DataError, ShapeError
from ribbit.models.model import Model
from ribbit.models.model import check as check_model
from ribbit.protocols import PredictiveTerms, RowGroup
from ribbit.results.prediction import Prediction
from ribbit.targets.curvature import GaussNewton
from ribbit.targets.dropout import MaskedPosterior
from ribbit.targets.last_layer import IntegratedSpec, integrate, pays
from ribbit.targets.likelihoods import Array64, HeteroscedasticGaussian, Kind, Likelihood
from ribbit.targets.likelihoods import check as check_likelihood
from ribbit.targets.members import public
from ribbit.targets.native import NativeDensity, NativeSteps
from ribbit.targets.predictive import NetworkPredictive, unravel
from ribbit.targets.prior_base import PriorLike
from ribbit.targets.prior_draws import predicted
from ribbit.targets.prior_table import warn_of_hidden
from ribbit.targets.priors import Normal
from ribbit.targets.ranks import check_group, check_options, on_every_rank, spaced
from ribbit.targets.spec import DensitySpec
from ribbit.targets.stepped import collapse, vanishing_noise, warn_of_steps
from ribbit.targets.units import Units, warn_of_scale

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Posterior"]


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Posterior(NativeDensity, NativeSteps, GaussNewton):
    """The posterior of a network given data, to be sampled or fitted.

    log density = (log likelihood / likelihood_temperature + log prior) / temperature, with the log
    likelihood summed over all N rows (each multiplied by its weight) and all normalising constants.

    Parameters
    ----------
    model : Model
        The network.
    x : array
        Inputs ``(N, *input_shape)`` of any real dtype, byte order or strides. Column names of a
        frame (pandas, polars) are kept, and frames of new inputs are matched by them. uint8 images
        (N, H, W, C) stay bytes and are scaled to [0, 1] on the fly. GPU arrays (CuPy, CUDA array
        interface or DLPack): everything runs on the GPU, and positions are CuPy arrays.
        Memory-mapped files (``np.load(path, mmap_mode="r")``, contiguous rows) are not copied: each
        step reads its rows from the file and converts them to `dtype`. Results are bit-identical to
        the same rows in memory.
    y : array
        Targets (N, J); (N,) means (N, 1). Integer labels (N,) for `Categorical`. In the same kind
        of memory as x.
    prior : Prior or dict of str to Prior
        One prior for all parameters, or a dict of name patterns (fnmatch); the first match counts.
        A learned noise takes the likelihood's ``log_noise_prior``, or the entry "log_noise" here.
    likelihood : Likelihood
        Distribution of y given the outputs of the network.
    temperature : float, default 1.0
        Divides the whole log density, > 0 (Wenzel et al. 2020).
    likelihood_temperature : float, default 1.0
        Divides the log likelihood alone, > 0.
    sample_weight : array, optional
        (N,) numbers >= 0 that multiply the log likelihood of each row; with `standardize` they also
        weigh means and sds. 2 equals the row twice (up to rounding), 0 leaves the row out.
        Predictions and log likelihoods of new rows have no weights. For data in host memory.
    dtype : dtype, optional
        float32 (default) or float64, of positions and gradients. Log densities are always float64.
    precision : {"float32", "mixed", "float64", "tf32"}, optional
        Precision of matrix products. Default: `dtype`. "mixed" and "tf32" are for float32 data in
        GPU memory, on tensor cores (compute capability 8.0 or more). "mixed": the forward pass is
        as accurate as float32 (three TF32 products each), gradients use TF32. "tf32": all products
        use TF32, with a `PrecisionWarning`. HMC then compares a short trajectory with float32
        before a run and warns if the energies differ. Log densities are always as accurate as
        float32, so HMC stays exact. Small networks and small products use float32 anyway.
    standardize : bool, default False
        Shift and scale every column of x (every channel of images and sequences), and of y for a
        regression, to mean 0 and sd 1 before the network sees it. Images of bytes, tokens, labels
        and counts stay. `predict` takes inputs and returns means, intervals and log likelihoods in
        the units of the data passed here, also from saved draws and fits. `prior`, `likelihood` and
        positions (a known noise sd, "log_noise") are in standardised units. The sd of y must be
        from 1e-150 to 1e150. A column whose numbers differ by rounding alone is constant, as for
        :class:`ribbit.datasets.Scaler`.
    group : Group, optional
        Processes that share the rows, such as ``rb.distributed.from_mpi()``. Every rank runs the
        same program and passes its own rows here (``group.rows(N, shards)``). N counts the rows of
        all ranks, all ranks take part in every evaluation, and draws are bit-identical on each rank
        and for any number of ranks. For data in host memory. Excludes `standardize`,
        ``marginalize="last_layer"``, ``init="ensemble"`` and Laplace approximations.
    shards : int, optional
        Number of runs of rows, 1 to 16, whose gradients are summed by a fixed tree. Changes results
        by rounding alone. Default: depends on N and P; 16 with a group.
    marginalize : {"auto", "last_layer"} or None, default "auto"
        "last_layer": integrate out weights and bias of the last Dense layer in closed form. This
        needs a `Gaussian` likelihood with one noise sd for all outputs, a `Normal` prior of that
        layer and data in host memory. HMC, NUTS and MCLMC then sample the other R of the P
        parameters from their exact marginal density, and every kept draw gets new last-layer
        weights from their exact conditional distribution. So ``draws.positions`` (C, D, P),
        predictions and files concern the whole posterior, and states and the statistic "lp" the R
        parameters. A gradient costs two to five times as much, but steps are several times longer.
        The density is then not a sum over rows, so minibatches and fits are refused. "auto": `HMC`
        and `NUTS` with automatic step size, length and mass sample :attr:`marginal` if it exists
        and costs little; other samplers use the whole posterior. None: never.

    Attributes
    ----------
    dim : int
        Number of parameters P: the model's, then one "log_noise" (log of the noise sd) per output
        if the noise is learned (a single one with ``per_output=False``), then one per learned scale
        of weights. If a layer is integrated out, the number R of the others; `full_dim` is always
        P.
    integrated : str or None
        "last layer" if that is integrated out.
    marginal : Posterior or None
        This posterior with ``marginalize="last_layer"``, if "auto" uses it.
    joint : Posterior
        The posterior of all P parameters: this one without `marginalize`.
    x, y : array
        The data (N, D) and (N, J), standardised if you asked for it, read-only. They are copied and
        converted once (uint8 images stay bytes). GPU arrays of the target's dtype and memory-mapped
        files are not copied: leave them unchanged.
    sample_weight : array or None
        Weights of the rows, (N,) in the target's dtype, read-only; None without weights.
    precision : str
        "float32", "mixed", "float64" or "tf32".
    array_namespace : module
        Library of the arrays: numpy or cupy.
    normal_prior : bool
        Whether every parameter's prior is a `Normal`.
    prior_mean, prior_sd : numpy.ndarray
        (P,) float64, read-only: mean and untempered sd of each parameter's prior, or its scale if
        the sd is infinite.
    shared_prior_sd : float or None
        The sd that all weights and biases share, None if they do not; "log_noise" is not counted.

    Raises
    ------
    GroupError
        On every rank of a `group`, if versions, instruction sets, arguments or numbers of rows of
        the ranks do not fit each other, or the arguments of one rank are refused.
    TypeError, ValueError
        For wrong shapes or dtypes, NaN or infinite data, labels out of range, a parameter without a
        prior, or a temperature that is not positive. Also for a precision that contradicts the
        dtype or that the hardware does not have.
    ImportError, RuntimeError
        For GPU arrays: if CuPy, ribbit's CUDA module, NVRTC, a driver or a suitable GPU is missing.

    Warns
    -----
    PrecisionWarning
        For precision="tf32".
    ScaleWarning
        If all weights share one prior and a column of x, or of y in a regression, is far from unit
        scale. That is a mean or sd above 10, or an sd below 0.01 in 20 rows or more. With
        `standardize`, if a few extreme values flatten a column, as for
        :func:`ribbit.datasets.standardize`.
    PriorWarning
        If a pattern of `prior` never applies, because an earlier one matches all its parameters.
    NoiseWarning
        If a quarter of the rows or more have frequent values in a column of y (each in at least 10
        rows and 5 % of them), under `HeteroscedasticGaussian` without a floor.

    Notes
    -----
    A subclass or wrapper may replace `value_and_grad`; samplers then call it from Python, without
    native code. BBB, LaplaceApproximation, MCDropout and ``init="ensemble"`` refuse such a target.
    All refuse one that replaces `log_prior` or `log_likelihood` alone.

    References
    ----------
    Wenzel et al. (2020), "How good is the Bayes posterior in deep neural networks really?", section
    2. For `marginalize`: Rasmussen and Williams (2006), "Gaussian processes for machine learning",
    section 2.1, with sampled features.

    Examples
    --------
    With the last layer integrated out, 11 parameters are sampled and draws have all 17:

    >>> import numpy as np, ribbit as rb
    >>> x = np.linspace(-1.0, 1.0, 40)[:, None]
    >>> options = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian()}
    >>> model = rb.mlp(1, (5,), 1, activation="tanh")
    >>> target = rb.Posterior(model, x, np.sin(3 * x), marginalize="last_layer", **options)
    >>> hmc = rb.HMC(target, step_size=0.05, num_leapfrog_steps=10)
    >>> draws = hmc.sample(10, warmup=0, chains=2, progress=False)
    >>> draws.state.position.shape, draws.positions.shape
    ((2, 11), (2, 10, 17))
    """

    model: Model
    prior: PriorLike
    likelihood: Likelihood
    temperature: float
    likelihood_temperature: float
    dtype: np.dtype[Any]
    precision: str
    dim: int
    full_dim: int
    integrated: str | None
    x: FloatArray
    y: FloatArray
    sample_weight: FloatArray | None
    normal_prior: bool
    shared_prior_sd: float | None
    _native: Any
    _spec: DensitySpec
    _predictive: NetworkPredictive
    array_namespace: ModuleType
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
        sample_weight: npt.ArrayLike | None = None,
        dtype: npt.DTypeLike | None = None,
        precision: Precision | None = None,
        standardize: bool = False,
        marginalize: Literal["auto", "last_layer"] | None = "auto",
        group: RowGroup | None = None,
        shards: int | None = None,
    ) -> None:
        name = "Posterior"
        check_group(name, group)

        def checked() -> DensitySpec:
            check_options(name, group, standardize, marginalize)
            weights = checks.row_weights(name, sample_weight, some=group is not None)
            ones = len(weights) if group is None and checks.counts_once(weights) else None
            weights = None if ones is not None else weights
            columns = checks.column_names(name, "x", x)
            inputs, units = mapped(checks.matched(name, x, None)), None
            if checks.boolean(name, "standardize", standardize):
                check_model(name, model)
                noise = check_likelihood(name, likelihood)
                units = Units.of(name, model, inputs, y, noise, weights, titles=columns)
            data = model, inputs, y, prior, likelihood
            how = temperature, likelihood_temperature, dtype, precision
            if marginalize is not None:
                checks.choice(name, "marginalize", marginalize, ("auto", "last_layer"))
            integrates = marginalize is not None and group is None
            spec = DensitySpec.of(name, *data, *how, units, integrates, weights, shards, columns)
            if ones is not None and ones != spec.own_rows:
                raise ShapeError(
                    f"[{name}] expected sample_weight of shape ({spec.own_rows},), got ({ones},)"
                )
            if group is None and weights is not None and not np.any(spec.weights):
                raise DataError(
                    f"[{name}] expected a sample_weight above 0 in {spec.dtype}, got "
                    f"{weights.max():.6g}"
                )
            if group is not None and spec.backend.device is not None:
                raise ValueError(
                    f"[{name}] expected data in host memory for group=, got x on a device"
                )
            return spec

        spec = on_every_rank(name, group, checked)
        if group is not None:
            spec = spec.joined(name, group)
        self._fill(integrate(name, spec) if marginalize == "last_layer" else spec)
        _precision.warn_of_tf32(name, self.precision)
        on_every_rank(name, group, self._warn)

    def _warn(self) -> None:
        """Warn of data that do not go with the model; with a group on rank 0 alone."""
        spec = self._spec
        if spec.ranks is not None and spec.ranks.group.rank > 0:
            return
        if spec.units is None:
            warn_of_scale(self.model, *spec.seen, self.prior, self.likelihood)
        warn_of_steps(spec)
        warn_of_hidden("Posterior", self.prior, self.model.parameters)

    def _fill(self, spec: DensitySpec) -> None:
        """Set every field from the checked arguments."""
        model, table = spec.model, spec.table
        for key, value in {
            "_spec": spec,
            "model": model,
            "prior": spec.prior,
            "likelihood": spec.likelihood,
            "temperature": spec.temperature,
            "likelihood_temperature": spec.likelihood_temperature,
            "dtype": spec.dtype,
            "precision": spec.precision,
            "dim": spec.dim,
            "full_dim": spec.whole.dim if isinstance(spec, IntegratedSpec) else spec.dim,
            "integrated": "last layer" if isinstance(spec, IntegratedSpec) else None,
            "x": spec.x,
            "y": spec.y,
            "sample_weight": spec.weights,
            "normal_prior": bool((table.rows[:, 2] == Normal.kind).all()),
            "shared_prior_sd": table.shared,
            "array_namespace": spec.backend.xp,
            "_native": spec.density(),
            "_predictive": NetworkPredictive(
                model, spec.likelihood, spec.describe(), units=spec.units, scales=table.scales
            ),
        }.items():
            object.__setattr__(self, key, value)

    def __repr__(self) -> str:
        return (
            f"Posterior({self.model!r}, {self.num_rows} rows, prior={self.prior!r}, "
            f"likelihood={self.likelihood!r}, "
            f"{'' if self.sample_weight is None else 'sample_weight=..., '}"
            f"temperature={self.temperature:g}, "
            f"likelihood_temperature={self.likelihood_temperature:g}, dtype={self.dtype}, "
            f"precision={self.precision!r}"
            f"{', marginalize=' + repr('last_layer') if self.integrated else ''}"
            f"{'' if self.shards is None else f', shards={self.shards}'}"
            f"{'' if self.group is None else f', group={self.group!r}'})"
        )

    def _repr_html_(self) -> str:
        """Return a table for a notebook, and that of the model."""
        left = f" of {self.full_dim:,}, the {self.integrated} integrated out"
        facts = {
            "rows": f"{self.num_rows:,}",
            "columns": ", ".join(map(str, self.columns or ())),
            "parameters": f"{self.dim:,}" + (left if self.integrated else ""),
            "prior": repr(self.prior),
            "likelihood": repr(self.likelihood),
            "dtype": str(self.dtype),
        }
        shown = [fact for fact in facts.items() if fact[1]]
        return html_table(type(self).__name__, shown) + self.model._repr_html_()

    def __dir__(self) -> list[str]:
        return public(super().__dir__())

    def __reduce__(self) -> tuple[Any, ...]:
        # The native part cannot be pickled; it is rebuilt from the arguments.
        return _of_spec, (self._spec, type(self)), self._added()

    def _added(self) -> dict[str, Any]:
        """Return the attributes that a subclass, or code from outside, gave this object."""
        made = {*Posterior.__dataclass_fields__, "array_namespace"}
        return {
            name: value
            for name, value in vars(self).items()
            if name not in made
            and not isinstance(getattr(type(self), name, None), functools.cached_property)
        }

    def _like(self, spec: DensitySpec) -> Any:
        """Return the posterior of another spec, of this class and with what was added to this."""
        made = _of_spec(spec, type(self))
        vars(made).update(self._added())
        return made

    @property
    def prior_mean(self) -> Array64:
        """Mean of the prior (P,) of each parameter, read-only."""
        return self._spec.table.mean

    @property
    def prior_sd(self) -> Array64:
        """Untempered prior sd (P,) of each parameter, or its scale if the sd is infinite."""
        return self._spec.table.spread

    @property
    def dropout_layers(self) -> tuple[str, ...]:
        """Dropout layers as ``"2: Dropout(0.1)"``; they are the identity here."""
        return self.model.dropout_layers

    @property
    def shards(self) -> int | None:
        """Number of runs of rows in gradients, if it was set, else None."""
        return self._spec.shards

    @property
    def kind(self) -> Kind:
        """One of "regression", "classification" and "count"."""
        return self.likelihood.kind

    @property
    def noise_at(self) -> int:
        """Index of the first "log_noise" in a position; None if the noise is not learned."""
        return self.model.dim

    @functools.cached_property
    def parameter_groups(self) -> npt.NDArray[np.int64]:
        """Index (K,) in a position at which each array of weights or biases begins."""
        return self._spec.parameter_groups

    @property
    def parameter_blocks(self) -> npt.NDArray[np.int64] | None:
        """See :class:`ribbit.protocols.LogDensity`; None for data on a GPU."""
        return self._spec.parameter_blocks if self.array_namespace is np else None

    @property
    def noise_floor(self) -> float:
        """See :class:`ribbit.protocols.LogDensity`."""
        return self.likelihood.noise_floor

    @property
    def columns(self) -> tuple[str | int, ...] | None:
        """Column names of x if it was a frame; inputs of predictions are matched by them."""
        return self._predictive.columns

    @property
    def flat(self) -> bool:
        """Whether y was (N,), so that predictions of a single output are (N,) and not (N, 1)."""
        return self._spec.flat

    @property
    def precision_reference(self) -> Posterior | None:
        """The same posterior in float32 if this one's gradients are plain TF32, else None."""
        if self.precision != "tf32" or self._native.precision != "tf32":
            return None
        return _of_spec(replace(self._spec, precision="float32"))

    def init(
        self,
        seed: checks.Seed = 0,
        chains: int | npt.ArrayLike | None = None,
        *,
        scheme: str = "he",
    ) -> FloatArray:
        """Return random starting positions from `Model.init`, with "log_noise" at 0.

        A learned scale starts at its prior's median, moved towards the size of its weights by at
        most one sd of the prior. The numbers it multiplies start so that the weights are the
        model's.

        Parameters
        ----------
        seed : int, Generator, SeedSequence or None, default 0
            As in :meth:`Sampler.sample`.
        chains : int or array of int, optional
            Number of chains, or their ids (C,).
        scheme : {"he", "small"}, default "he"
            As in `Model.init`.

        Returns
        -------
        numpy.ndarray
            (dim,), or (chains, dim), in the target's dtype.

        Raises
        ------
        TypeError, ValueError
            If an argument is out of its range.
        """
        return self._spec.init(seed, chains, scheme=scheme)

    @functools.cached_property
    def marginal(self) -> Posterior | None:
        """The same posterior with its last layer integrated out, or None.

        None if `marginalize` is None, the layer is integrated out already or cannot be, or a
        gradient would take more than four times the operations; see `last_layer.pays`.
        """
        spec = self._spec
        if isinstance(spec, IntegratedSpec) or not spec.integrates or not pays(spec):
            return None
        try:
            return _of_spec(integrate("Posterior", spec))
        except (TypeError, ValueError):  # it does not fit: nobody asked for it
            return None

    @property
    def joint(self) -> Posterior:
        """The posterior of all P parameters; the same object if nothing is integrated out."""
        spec = self._spec
        return _of_spec(spec.whole) if isinstance(spec, IntegratedSpec) else self

    @property
    def reduce(self) -> Callable[..., FloatArray] | None:
        """Function that leaves the layer that is integrated out off starts, else None."""
        return self._spec.reduce if isinstance(self._spec, IntegratedSpec) else None

    def _widen(self, position: FloatArray) -> FloatArray:
        """Return positions (C, P) of R parameters, with zeros for the last layer."""
        spec = self._spec
        assert isinstance(spec, IntegratedSpec)
        layer = np.zeros((position.shape[0], spec.layer.mean.size), position.dtype)
        parts = position[:, : spec.below], layer, position[:, spec.below :]
        return np.concatenate(parts, axis=1)

    @property
    def complete(self) -> Callable[..., FloatArray] | None:
        """Function that draws the layer that is integrated out, else None."""
        return self._complete if isinstance(self._spec, IntegratedSpec) else None

    def _complete(
        self,
        position: FloatArray,
        *,
        seed: int,
        step: int,
        chains: npt.NDArray[np.uint32],
        interrupt: Any = None,
    ) -> FloatArray:
        name = "Posterior.complete"
        theta, single = host_position(name, "position", position, self.dtype, self.dim)
        place = (
            checks.seed(name, seed),
            checks.integer(name, "step", step, minimum=0, maximum=2**40 - 1),
            checks.chain_ids(name, chains),
        )
        if len(place[2]) != len(theta):
            raise ShapeError(f"[{name}] expected {len(theta)} chains, got {len(place[2])}")
        try:
            whole: FloatArray = self._native.complete(theta, *place, interrupt)
        except (TypeError, ValueError) as error:
            checks.blame(name, error, locals())
            raise
        return whole[0] if single else whole

    # Read by the samplers: chains of the core complete their draws.
    _complete.in_core = _complete  # type: ignore[attr-defined]

    def subset(self, rows: npt.ArrayLike) -> Posterior:
        """Return the posterior of some of the rows.

        Parameters
        ----------
        rows : array of int
            Rows (n,) in [0, N), at least one; repeats count again.

        Returns
        -------
        Posterior
            With the same model, prior, likelihood, temperatures and units; its rows are a copy. The
            likelihood is the sum over n rows, not scaled to N.

        Raises
        ------
        TypeError, ValueError
            If `rows` is not an array of integers, or one is out of range.

        Examples
        --------
        >>> import numpy as np
        >>> import ribbit as rb
        >>> x = np.linspace(-1, 1, 20)[:, None]
        >>> target = rb.Posterior(
        ...     rb.mlp(1, (), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
        ... )
        >>> target.subset(range(5)).num_rows
        5
        """
        function = "Posterior.subset"
        self._needs_one_process(function)
        chosen = checks.integer_array(function, "rows", rows, below=self.num_rows)
        part: Posterior = self._like(self._spec.rows(chosen))
        return part

    def _noise_collapse(self, positions: FloatArray) -> tuple[float, str] | None:
        """Return the share of rows whose noise sd has vanished; see `stepped.collapse`."""
        if not isinstance(self.likelihood, HeteroscedasticGaussian):
            return None
        return collapse(self._spec, replace(self._predictive, units=None), positions)

    def _vanishing_noise(self, positions: FloatArray) -> tuple[str, str] | None:
        """Say that a learned noise sd has nearly vanished; see `vanishing.vanishing_noise`."""
        return vanishing_noise(self._spec, self.noise_at, positions)

    def unravel(self, theta: FloatArray) -> dict[str, FloatArray]:
        """Return named views of a position (..., P), as `Model.unravel`, with "log_noise".

        "log_noise" is (...) if there is one, else (..., K), one for each output.

        With learned scales, the arrays are copies with the scaled weights, as the network sees
        them. The log scales follow, such as "log_scale.0.weight".

        Raises
        ------
        TypeError, ValueError
            If `theta` is not an array or its last axis is not P.
        """
        return unravel("Posterior.unravel", self._predictive, theta)

    def prior_predictive(
        self,
        x: npt.ArrayLike,
        num_draws: int = 1000,
        *,
        seed: checks.Seed = 0,
        keep: bool = False,
    ) -> Prediction:
        """Predictions at inputs before any data are seen: from draws of the prior.

        Weights, learned scales and a learned noise are drawn from their priors, not tempered. With
        `standardize` predictions are in the units of y. Look at them to choose priors: they show
        which functions, and which y, the model holds for plausible.

        Parameters
        ----------
        x : (N, ...) array
            As for :meth:`Draws.predict`.
        num_draws : int, default 1000
            S, >= 1.
        seed : int, Generator, SeedSequence or None, default 0
            As in :meth:`Sampler.sample`; draw s depends on (seed, s) alone.
        keep : bool, default False
            Keep what every draw predicts, as :meth:`Draws.predict` does.

        Returns
        -------
        Prediction

        Raises
        ------
        TypeError, ValueError
            If an argument does not fit.

        Examples
        --------
        >>> x = np.linspace(-1, 1, 20)[:, None]
        >>> target = rb.Posterior(
        ...     rb.mlp(1, 20, 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=rb.Gaussian(0.3)
        ... )
        >>> prior = target.prior_predictive(x, 500, seed=1, keep=True)
        >>> prior.interval(0.9)[0].shape, prior.samples.shape  # of y; functions to plot
        ((20, 1), (1, 500, 20, 1))
        """
        spec = self._spec.whole if isinstance(self._spec, IntegratedSpec) else self._spec
        name = "Posterior.prior_predictive"
        return predicted(name, self, spec.table, x, num_draws, seed, keep)

    def outputs(self, theta: FloatArray, x: npt.ArrayLike) -> FloatArray:
        """Return the raw outputs of the network at `x`; see `NetworkPredictive.outputs`."""
        return self._predictive.outputs(theta, x)

    def predictive(self, theta: FloatArray, x: npt.ArrayLike) -> PredictiveTerms:
        """Return the prediction of each draw at `x`; see `NetworkPredictive.predictive`."""
        return self._predictive.predictive(theta, x)

    def inputs(self, count: int) -> Any:
        """Return at most `count` of the data's inputs ``(n, *input_shape)``, evenly spaced.

        In the units of the data as passed, up to rounding. With a group, all ranks must call it.
        """
        most = checks.integer("Posterior.inputs", "count", count)
        every = -(-self.num_rows // max(1, most))
        ranks, units = self._spec.ranks, self._spec.units
        rows = self.x[::every, ...] if ranks is None else spaced(ranks, self.x, every)
        rows = rows.reshape((rows.shape[0], *self.model.input_shape))
        return rows if units is None else units.raw_inputs(rows)

    def check_inputs(self, x: npt.ArrayLike) -> None:
        """Raise unless `x` is a valid input of predictions."""
        self._predictive.check_inputs(x)

    def predictive_moments(
        self, positions: FloatArray, x: npt.ArrayLike
    ) -> tuple[tuple[Array64, ...], bool]:
        """Return running sums over draws (C, D, P) in their order, and `PredictiveTerms.binary`."""
        return self._predictive.predictive_moments(positions, x)

    @property
    def network_predictive(self) -> NetworkPredictive:
        """The network as a predictive object, without the data."""
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
            Without Dropout layers, for bad arguments, or if a layer is integrated out.
        """
        self._needs_rows("Posterior.masked")
        return MaskedPosterior(
            self._spec, rate=rate, length_scale=length_scale, precision=precision
        )

    def compile(self) -> None:
        """Compile the GPU kernels of samplers before the first draw; without a GPU do nothing.

        Kernels are compiled by NVRTC, once for each kind of GPU, and kept in
        ``$XDG_CACHE_HOME/ribbit`` (``~/.cache/ribbit``). This computes one gradient, one leapfrog
        step and predictions at some rows.
        """
        device = self._spec.backend.device
        if device is None:
            return
        device.kernels(device_kernels.names(self.dtype))
        theta = self.init(chains=1)
        _, grad = self.value_and_grad(theta)
        self.leapfrog(theta, self.array_namespace.zeros_like(theta), grad, 1e-3, 1)
        self.predictive(theta, self.inputs(32))  # as a run monitors

    @property
    def instruction_set(self) -> str:
        """Instruction set: avx512, avx2, baseline, neon or cuda. Rounding depends on it."""
        return str(self._spec.backend.instruction_set)

    @property
    def fingerprint(self) -> dict[str, str]:
        """Checksums of model, prior, likelihood, data, dtype and instruction set.

        Samplers store it in their states, and resume a run only on the target it started with.
        """
        return self._spec.fingerprint

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able description, without data, for `predictive_from_description`."""
        return self._predictive.describe()


def _of_spec(spec: DensitySpec, kind: type[Posterior] = Posterior) -> Posterior:
    posterior = object.__new__(kind)
    posterior._fill(spec)
    return posterior


explain(globals())
