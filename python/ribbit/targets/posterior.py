"""The posterior of a network: prior times likelihood over all rows, tempered as stated.

`Posterior` is where networks and samplers meet; it implements the protocols of ``protocols.py``.
Shapes: C chains, S draws, P = dim parameters, N rows, D inputs, K outputs, J columns of y.
"""

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
from ribbit.targets.likelihoods import Array64, Kind, Likelihood
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
from ribbit.targets.stepped import collapse, warn_of_steps
from ribbit.targets.units import Units, warn_of_scale
from ribbit.targets.vanishing import vanishing_noise

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Posterior"]


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Posterior(NativeDensity, NativeSteps, GaussNewton):
    """The posterior of a network given data.

    log density = (log likelihood / likelihood_temperature + log prior) / temperature, summed over
    all N rows (each times its weight, where rows have weights), normalising constants included.

    Parameters
    ----------
    model : Model
        The network.
    x : array
        Rows ``(N, *input_shape)``: any real dtype, byte order or strides. The names of the columns
        of a frame (pandas, polars) are kept: frames of new inputs are matched by name. Images
        (N, H, W, C) of uint8 stay bytes and are scaled to [0, 1] while they are read: a quarter of
        the memory.

        In device memory (CuPy, or anything with the CUDA array interface or DLPack): everything
        runs on the device, and positions are CuPy arrays. A memory-mapped file (``np.load(path,
        mmap_mode="r")``, rows one behind the other) stays where it lies: a step reads its rows
        there, and converts what is no `dtype` then; the bits are those of the rows in memory.
    y : array
        Targets (N, J); (N,) means (N, 1). Integer labels (N,) for `Categorical`. Where x is.
    prior : Prior or dict of str to Prior
        One prior for all parameters, or patterns of names (fnmatch), the first that matches wins.
        A learned noise takes the likelihood's ``log_noise_prior``, or the entry "log_noise" here.
    likelihood : Likelihood
        What the outputs mean.
    temperature : float, default 1.0
        Divides the whole log density, > 0 (Wenzel et al. 2020).
    likelihood_temperature : float, default 1.0
        Divides the log likelihood alone, > 0.
    sample_weight : array, optional
        (N,) numbers >= 0: how often the log likelihood of each row counts. 2 is the row twice (the
        same posterior, up to rounding), 0 the row left out; with `standardize` also in the means
        and sds. Of the rows passed here: predictions and log likelihoods of new rows have none.
        For data in host memory.
    dtype : dtype, optional
        float32 (default) or float64, of positions and gradients; log densities are float64 always.
    precision : {"float32", "mixed", "float64", "tf32"}, optional
        How matrix products are computed. "float32" and "float64" say no more than `dtype`, which
        decides when absent. The others are for data in device memory, in float32, on tensor cores
        (compute capability 8.0 or more). "mixed": products of the forward pass from three TF32
        products each, as accurate as float32, those of gradients in TF32 (10 bits behind the
        leading one). "tf32": all in TF32, with a `PrecisionWarning`; HMC compares a short
        trajectory with float32 before a run and warns again when the energies differ. Log
        densities are as accurate as float32 in all of them, so that HMC stays exact; networks
        small enough for whole trajectories in one launch, products of 16 columns or fewer and
        gradients of weights with 16 inputs or fewer are computed in float32 always.

    standardize : bool, default False
        Shift and scale every column of x (of images and sequences every channel, the same at all
        places), and of y for a regression, to mean 0 and sd 1 before the network sees it; images of
        bytes, tokens, labels and counts stay. Columns in any unit will do, such as 1e-310 or 1e300;
        the sd of y must be from 1e-150 to 1e150. A column whose numbers differ by rounding alone is
        constant (the rule is that of :class:`ribbit.datasets.Scaler`). `predict` takes inputs and
        gives means, intervals and log likelihoods in the units of the data passed here, also from
        saved draws and fits. `prior`, `likelihood` and positions (a known noise sd, "log_noise")
        are in the standardised units.
    group : Group, optional
        Processes that have the rows together, such as ``rb.distributed.from_mpi()``: every rank
        runs the same program and gives its own rows here, those of ``group.rows(N, shards)``. N
        and the data are then those of all ranks, every evaluation is made by all of them, and the
        draws are the same bits on each rank and for every number of ranks. For data in host
        memory; `standardize`, ``marginalize="last_layer"``, ``init="ensemble"`` and Laplace
        approximations are refused. See ``docs/guide/scale.md``.
    shards : int, optional
        Into how many runs of rows gradients are cut, 1 to 16; their sums are added by a fixed tree.
        Default: by N and P, or 16 with a group. The bits of draws depend on it, in rounding alone.
    marginalize : {"auto", "last_layer"} or None, default "auto"
        "last_layer": the weights of the last Dense layer, its bias too, are integrated out in
        closed form, for a `Gaussian` likelihood with one noise sd for all outputs, a `Normal` prior
        of that layer and data in host memory. HMC, NUTS and MCLMC then sample the other parameters,
        R of the P, from their exact marginal density under the temperatures: the integral of what
        is divided by them. For every kept draw the weights of the last layer are drawn anew from
        their normal law given all else, also where a proposal was rejected, so that
        ``draws.positions`` (C, D, P), predictions and files are those of the whole posterior;
        states and the statistic "lp" are those of what was sampled. A gradient costs about five
        times the plain one of a single layer of 50 units
        (products and an inverse of 51 columns, in float64), twice that of two such layers; steps
        are several times longer. The density is no sum over rows: `rows`, minibatches and fits are
        refused. "auto": the posterior itself is whole, and `sample` of `HMC` and `NUTS` with
        nothing set that depends on the parameters (step size, length, mass) moves :attr:`marginal`
        where that fits and costs little. Other samplers move the whole posterior; `MCLMC`, whose
        warmup has a fixed number of steps, took longer with the marginal. None: never.

    Attributes
    ----------
    dim : int
        Number of parameters P; more than the model's by one for each output when the noise is
        learned ("log_noise", behind them, the logarithms of the noise sds; a single one with
        ``per_output=False``), and by one for each learned scale of weights, the
        last ones. With `marginalize` the number R of those that are left; `full_dim` is P then and
        always.
    integrated : str or None
        What is integrated out: "last layer".
    marginal : Posterior or None
        This one with ``marginalize="last_layer"``, where "auto" takes it.
    joint : Posterior
        The posterior of all P parameters: this one without `marginalize`.
    x, y : array
        The data (N, D) and (N, J), copied and converted once (images of uint8 stay bytes),
        read-only: changing the arrays that were passed does not change the target. Standardised
        where that was asked for. Arrays in device
        memory that have the target's dtype already are not copied: leave them unchanged. So are
        memory-mapped files; of one of those x reads rows as arrays, such as ``x[5:9]``.
    sample_weight : array or None
        Of the rows, (N,) in the target's dtype, read-only; None where each counts once.
    precision : str
        "float32", "mixed", "float64" or "tf32".
    array_namespace : module
        Library of the arrays: numpy or cupy.
    normal_prior : bool
        Whether every parameter's prior is a `Normal`.
    prior_mean, prior_sd : numpy.ndarray
        (P,) float64, read-only: mean and untempered sd of the prior of each parameter; its scale
        where the sd is infinite. A prior that all parameters share takes no memory here.
    shared_prior_sd : float or None
        The sd that all weights and biases share, None if they do not; "log_noise" not counted.

    Raises
    ------
    GroupError
        On every rank, where the ranks of a `group` do not fit each other: their versions,
        instruction sets, arguments or numbers of rows, or one whose arguments are refused.
    TypeError, ValueError
        If an argument does not fit: shapes, dtypes, NaN or infinite data, labels out of range, a
        parameter without a prior, a temperature that is not positive, a precision that contradicts
        the dtype or that neither the data's memory nor the device has.
    ImportError, RuntimeError
        For data in device memory: when CuPy, ribbit's CUDA module or NVRTC is missing; when there
        is no driver, or no device that the module has code for.

    Warns
    -----
    PrecisionWarning
        For precision="tf32".
    ScaleWarning
        For a column of x, or of y in a regression, that is far from unit scale (mean or sd above
        10, or sd below 0.01 in 20 rows or more) under one prior for all weights. With
        `standardize` for a column that a few far cells flatten, such as one of 1e12 among numbers
        of the order of one (the rule is that of :func:`ribbit.datasets.standardize`).
    PriorWarning
        For a pattern of `prior` behind one that matches all that it does and more.
    NoiseWarning
        For a column of y under `HeteroscedasticGaussian` without a floor where a quarter of the
        rows or more have frequent values (each of 10 rows and of 5 % of them, or more).

    Notes
    -----
    A subclass or a wrapper may replace `value_and_grad`. Samplers then call it from Python and run
    nothing natively. BBB, LaplaceApproximation, MCDropout and ``init="ensemble"`` need more than
    `value_and_grad` and refuse such a target. All refuse one that replaces `log_prior` or
    `log_likelihood` alone.

    References
    ----------
    Wenzel et al. (2020), "How good is the Bayes posterior in deep neural networks really?",
    section 2. Of `marginalize`: Rasmussen and Williams (2006), "Gaussian processes for machine
    learning", section 2.1, with features that are sampled.

    Examples
    --------
    The last layer integrated out: 11 parameters are sampled, draws have all 17.

    >>> import numpy as np, ribbit as rb
    >>> x = np.linspace(-1.0, 1.0, 40)[:, None]
    >>> options = {"prior": rb.Normal(1.0), "likelihood": rb.Gaussian()}
    >>> model = rb.mlp(1, (5,), 1, activation="tanh")
    >>> target = rb.Posterior(model, x, np.sin(3 * x), marginalize="last_layer", **options)
    >>> hmc = rb.HMC(target, step_size=0.05, num_leapfrog_steps=10)
    >>> state, info = hmc.step(hmc.init(target.init(seed=1)))
    >>> state.position.shape, target.full_dim
    ((1, 11), 17)
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
        spec = on_every_rank(
            name,
            check_group(name, group),
            lambda: self._checked(
                *(model, x, y, prior, likelihood, temperature, likelihood_temperature),
                *(sample_weight, dtype, precision, standardize, marginalize, shards, group),
            ),
        )
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

    @staticmethod
    def _checked(
        model: Model,
        x: Any,
        y: Any,
        prior: PriorLike,
        likelihood: Likelihood,
        temperature: float,
        likelihood_temperature: float,
        sample_weight: Any,
        dtype: Any,
        precision: Precision | None,
        standardize: bool,
        marginalize: str | None,
        shards: int | None,
        group: RowGroup | None,
    ) -> DensitySpec:
        """Return the arguments, checked."""
        name, units = "Posterior", None
        check_options(name, group, standardize, marginalize)
        weights = checks.row_weights(name, sample_weight, some=group is not None)
        ones = len(weights) if group is None and checks.counts_once(weights) else None
        weights = None if ones is not None else weights
        columns = checks.column_names(name, "x", x)
        x = mapped(checks.matched(name, x, None))
        if checks.boolean(name, "standardize", standardize):
            check_model(name, model)
            noise = check_likelihood(name, likelihood)
            units = Units.of(name, model, x, y, noise, weights, titles=columns)
        data = model, x, y, prior, likelihood
        how = temperature, likelihood_temperature, dtype, precision
        if marginalize is not None:
            checks.choice(name, "marginalize", marginalize, ("auto", "last_layer"))
        integrates = marginalize is not None and group is None
        spec = DensitySpec.of(name, *data, *how, units, integrates, weights, shards, columns)
        if ones is not None and ones != spec.x.shape[0]:
            raise ShapeError(
                f"[{name}] expected sample_weight of shape ({spec.x.shape[0]},), got ({ones},)"
            )
        if group is None and weights is not None and not np.any(spec.weights):
            raise DataError(
                f"[{name}] expected a sample_weight above 0 in {spec.dtype}, got "
                f"{weights.max():.6g}"
            )
        if group is not None and spec.backend.device is not None:
            raise ValueError(f"[{name}] expected data in host memory for group=, got x on a device")
        return spec

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
        """Into how many runs gradients cut the rows, where that was set; None: by N and P."""
        return self._spec.shards

    @property
    def kind(self) -> Kind:
        """One of "regression", "classification" and "count"."""
        return self.likelihood.kind

    @property
    def noise_at(self) -> int:
        """Place of the first "log_noise" in a position, where the noise is learned."""
        return self.model.dim

    @property
    def noises(self) -> int:
        """How many numbers "log_noise" has: one for each output, 0 where none is learned."""
        return self.likelihood.noises(self.model.output_shape)

    @functools.cached_property
    def parameter_groups(self) -> npt.NDArray[np.int64]:
        """Place (K,) in a position where each array of weights, biases or the like begins."""
        return self._spec.parameter_groups

    @property
    def parameter_blocks(self) -> npt.NDArray[np.int64] | None:
        """See :class:`ribbit.protocols.LogDensity`; None for data on a device."""
        return self._spec.parameter_blocks if self.array_namespace is np else None

    @property
    def noise_floor(self) -> float:
        """See :class:`ribbit.protocols.LogDensity`."""
        return self.likelihood.noise_floor

    @property
    def columns(self) -> tuple[str | int, ...] | None:
        """Names of the columns of x, if it was a frame: predictions take others by these names."""
        return self._predictive.columns

    @property
    def flat(self) -> bool:
        """Whether y was (N,), so that predictions of a single output are (N,) and not (N, 1)."""
        return self._spec.flat

    @property
    def precision_reference(self) -> Posterior | None:
        """The same posterior in float32 where this one's gradients are plain TF32, else None."""
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
        """Draw a starting position: the model's `Model.init`, "log_noise" at 0.

        A learned scale starts at its prior's median, moved towards the size of its weights by at
        most one sd of the prior, and what it multiplies where the weights are the model's.

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
        """The posterior of all P parameters; the same object where nothing is integrated out."""
        spec = self._spec
        return _of_spec(spec.whole) if isinstance(spec, IntegratedSpec) else self

    @property
    def reduce(self) -> Callable[..., FloatArray] | None:
        """See `protocols.Completes`; None where nothing is integrated out."""
        return self._spec.reduce if isinstance(self._spec, IntegratedSpec) else None

    @property
    def complete(self) -> Callable[..., FloatArray] | None:
        """See `protocols.Completes`; None where nothing is integrated out."""
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

    # Read by the samplers: `_hamiltonian_run` completes by itself. As on `_hamiltonian`.
    _complete.in_runs = _complete  # type: ignore[attr-defined]

    def subset(self, rows: npt.ArrayLike) -> Posterior:
        """Return the posterior of some of the rows alone: those held out, or those left.

        Parameters
        ----------
        rows : array of int
            Rows (n,) in [0, N), at least one; repeats count again.

        Returns
        -------
        Posterior
            Of the same model, prior, likelihood and temperatures, and the same units; its rows are
            a copy. The likelihood is not scaled: it is that of n rows.

        Raises
        ------
        TypeError, ValueError
            If `rows` is no array of whole numbers or one is out of range.

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
        return collapse(self._spec, replace(self._predictive, units=None), positions)

    def _vanishing_noise(self, positions: FloatArray) -> tuple[str, str] | None:
        """Say that a learned noise sd has nearly vanished; see `vanishing.vanishing_noise`."""
        return vanishing_noise(self._spec, self.noise_at, positions)

    def unravel(self, theta: FloatArray) -> dict[str, FloatArray]:
        """Return named views of a position (..., P): as `Model.unravel`, with "log_noise".

        "log_noise" is (...) if there is one, else (..., K), one for each output.

        Where scales are learned, the arrays of the model are copies, the weights as the network
        sees them, and the logarithms of the scales follow, such as "log_scale.0.weight".

        Raises
        ------
        TypeError, ValueError
            If `theta` is no array or its last axis is not P.
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
        """Return what each draw predicts at `x`; see `NetworkPredictive.predictive`."""
        return self._predictive.predictive(theta, x)

    def inputs(self, count: int) -> Any:
        """Return at most `count` of the data's inputs ``(n, *input_shape)``, evenly spaced.

        In the units that they were given in: what `predictive` takes, up to rounding. With a group
        all ranks call it.
        """
        most = checks.integer("Posterior.inputs", "count", count)
        every = -(-self.num_rows // max(1, most))
        ranks, units = self._spec.ranks, self._spec.units
        rows = self.x[::every, ...] if ranks is None else spaced(ranks, self.x, every)
        rows = rows.reshape((rows.shape[0], *self.model.input_shape))
        return rows if units is None else units.raw_inputs(rows)

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
            Without Dropout layers, for arguments that do not fit, or where a layer is integrated
            out.
        """
        self._needs_rows("Posterior.masked")
        return MaskedPosterior(
            self._spec, rate=rate, length_scale=length_scale, precision=precision
        )

    def compile(self) -> None:
        """Compile, ahead of the first draw, what samplers on a device launch; elsewhere do nothing.

        Kernels are compiled by NVRTC, once for a device's kind, and kept in
        ``$XDG_CACHE_HOME/ribbit`` (``~/.cache/ribbit``). One gradient, one leapfrog step and
        predictions at some rows are computed for it.
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
        """Kernels that compute: "avx512", "avx2", "baseline", "neon", "cuda"; bits depend on it."""
        return str(self._spec.backend.instruction_set)

    @property
    def fingerprint(self) -> dict[str, str]:
        """Digests of model, prior, likelihood, temperatures, data, dtype and instruction set.

        The weights of rows belong to the data.

        Samplers put it into their states: a run is resumed on the target that it was started on.
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
