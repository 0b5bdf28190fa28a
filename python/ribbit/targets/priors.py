"""Priors over parameters: independent, normalised, with mean 0 unless a normal sets another.

A prior resolves to rows of the prior table of the native log density, one per parameter array:
offset, size, kind, a, b, c.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.keywords import explain
from ribbit._backends.codes import PRIORS
from ribbit.errors import ShapeError
from ribbit.targets.prior_base import LearnedScales, Means, Parameter, Prior, PriorLike, ScalePrior
from ribbit.targets.scale_priors import GammaPrecision, HalfCauchy, HalfNormal, InverseGamma

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "GammaPrecision",
    "HalfCauchy",
    "HalfNormal",
    "Horseshoe",
    "InverseGamma",
    "Laplace",
    "Logistic",
    "Normal",
    "Prior",
    "ScaleMixture",
    "ScalePrior",
    "StudentT",
]


@dataclass(frozen=True, eq=False, repr=False)
class Normal(Prior):
    """Normal prior N(mean, scale**2).

    Parameters
    ----------
    scale : float or ScalePrior
        Standard deviation, > 0. A `HalfNormal`, `HalfCauchy` or `InverseGamma` (of the variance)
        learns it with the weights. The target then has one more parameter for each scale, its
        logarithm, after the others. Positions hold z = w / scale instead of the weights w, so the
        posterior has no funnel if the data say little about a scale (Betancourt and Girolami 2015).
        `Posterior.unravel` and predictions return w.
    fan_in : bool, default False
        Divide the scale by sqrt(fan-in); the mean stays.
    per : {"array", "layer", "input", "unit", "weight", "all"}, default "array"
        Group of weights that shares a learned scale. "array": an array of parameters. "layer": a
        layer with its bias. "input": the weights that leave one input, a row of the matrix
        (automatic relevance determination, Neal 1996). "unit": the weights that enter one unit, a
        column. "weight": each weight. "all": all parameters with this prior. With "input" and
        "unit", biases share one scale per array.
    mean : float, array or dict of arrays, default 0.0
        A number for all parameters with this prior, or an array of the parameter's shape (or flat).
        Also a flat vector (``model.dim``,) for the whole model, or a dict of arrays by name, as
        from `Model.unravel`; entries of other parameters are ignored. Arrays are in host memory,
        copied, and kept in float64.

    Raises
    ------
    TypeError, ValueError
        If the scale is not a positive finite number or a prior of one, if the mean is not finite,
        or if a learned scale has a mean. A target raises ValueError for means that do not fit its
        parameters.

    References
    ----------
    Neal (1996), "Bayesian learning for neural networks", sections 1.2 and 4.1.

    Betancourt and Girolami (2015), "Hamiltonian Monte Carlo for hierarchical models", section 3.

    Pearce, Leibfried and Brintrup (2020), "Uncertainty in neural networks: approximately Bayesian
    ensembling", for ensembles whose members have priors around draws of the prior.

    Examples
    --------
    An anchored ensemble. With weights from other data as ``mean=`` this would be fine-tuning.

    >>> import numpy as np, ribbit as rb
    >>> model, x = rb.mlp(1, (8,), 1), np.linspace(-1.0, 1.0, 200)[:, None]
    >>> members = []
    >>> for anchor in 0.7 * rb.random.normal((3, model.dim), seed=1):
    ...     prior = rb.Normal(0.7, mean=anchor)
    ...     target = rb.Posterior(model, x, np.sin(3 * x), prior=prior, likelihood=rb.Gaussian(0.1))
    ...     fit = rb.DeepEnsemble(target, members=1).fit(20, init=anchor[None], progress=False)
    ...     members.append(fit.draws().positions)
    >>> np.concatenate(members).shape
    (3, 1, 25)

    A learned scale for each layer's weights, and one for the biases of all layers:

    >>> prior = {"*.weight": rb.Normal(rb.HalfNormal(1.0), fan_in=True),
    ...          "*.bias": rb.Normal(rb.InverseGamma(3.0, 1.0), per="all")}
    >>> target = rb.Posterior(model, x, np.sin(3 * x), prior=prior, likelihood=rb.Gaussian(0.1))
    >>> list(target.unravel(target.init(seed=0)))[-3:]
    ['log_scale.0.weight', 'log_scale.*.bias', 'log_scale.2.weight']
    """

    kind: ClassVar[int] = PRIORS["Normal"]
    _order = ": the first argument is the standard deviation; the mean is 0, or mean= by name"
    scale: float | ScalePrior
    fan_in: bool = field(default=False, kw_only=True)
    per: str = field(default="array", kw_only=True)
    mean: float | npt.ArrayLike | Mapping[str, npt.ArrayLike] = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        learned = isinstance(self.scale, ScalePrior)
        if learned:
            check_one("Normal", "scale", self.scale)
        self._set_positive(*(() if learned else ("scale",)))
        checks.choice("Normal", "per", self.per, _PER)
        if self.per != "array" and not learned:
            raise ValueError(
                f"[Normal] expected per with a prior of the scale, got scale {self.scale!r}"
            )
        mean: Any = self.mean
        if isinstance(mean, Mapping):
            mean = {name: _host_mean(f"mean[{name!r}]", value) for name, value in mean.items()}
        elif isinstance(mean, numbers.Real):
            mean = checks.real("Normal", "mean", mean)
        else:
            mean = _host_mean("mean", mean)
        if learned and not (isinstance(mean, float) and mean == 0.0):
            raise ValueError(
                f"[Normal] expected mean 0 with a prior of the scale, got {checks.summary(mean)}"
            )
        object.__setattr__(self, "mean", mean)

    def __repr__(self) -> str:
        mean = f", mean={checks.summary(self.mean)}"
        if isinstance(self.mean, float):
            mean = f", mean={self.mean!r}" if self.mean else ""
        per = f", per={self.per!r}" if isinstance(self.scale, ScalePrior) else ""
        return f"Normal(scale={self.scale!r}, fan_in={self.fan_in!r}{per}{mean})"

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Normal) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        parts = self.mean if isinstance(self.mean, Mapping) else {None: self.mean}
        # + 0.0: a negative zero is a zero.
        arrays = ((name, np.asarray(part) + 0.0) for name, part in parts.items())
        means = frozenset((name, part.shape, part.tobytes()) for name, part in arrays)
        return self.scale, self.fan_in, self.per, means

    def _named(self) -> tuple[str, ...]:
        """Return the names in a dict of means."""
        return tuple(self.mean) if isinstance(self.mean, Mapping) else ()

    def _means(self, function: str, parameter: Parameter, dim: int) -> Means:
        """Return the mean of each number of a parameter, of a model of `dim` in all."""
        name, size, mean = parameter.name, parameter.size, self.mean
        if isinstance(mean, float):
            return mean
        shapes = [parameter.shape]
        if isinstance(mean, Mapping):
            if name not in mean:
                raise ValueError(
                    f"[{function}] expected a mean of the prior of {name!r}, got means of "
                    f"{', '.join(mean) or 'nothing'}"
                )
            found = np.asarray(mean[name], np.float64)
        else:
            found = np.asarray(mean, np.float64)
            if found.shape == (dim,):
                return found[parameter.offset : parameter.offset + size]
            shapes += [(size,), (dim,)]
        if found.shape not in shapes:
            expected = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
            raise ShapeError(
                f"[{function}] expected the mean of the prior of {name!r} of shape {expected}, "
                f"got {checks.summary(found)}"
            )
        return found.reshape(-1)

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able description from which `from_description` rebuilds the prior."""
        described: dict[str, Any] = {"prior": "Normal", "scale": self.scale, "fan_in": self.fan_in}
        if isinstance(self.scale, ScalePrior):
            described |= {"scale": self.scale.describe(), "per": self.per}
        mean = self.mean
        if isinstance(mean, Mapping):
            described["mean"] = {name: np.asarray(part).tolist() for name, part in mean.items()}
        elif not isinstance(mean, float) or mean:
            described["mean"] = np.asarray(mean).tolist()
        return described

    def _table_values(self, fan_in: int = 1) -> tuple[float, float, float]:
        """Return (scale, 0, 0); of z, (1, 0, 0), where the scale is learned."""
        return self._spread(fan_in), 0.0, 0.0

    def _spread(self, fan_in: int = 1) -> float:
        """Return the sd, the scale itself; that of z, 1, where the scale is learned."""
        if isinstance(self.scale, ScalePrior):
            return 1.0
        return self.scale / self._divisor(fan_in)

    @property
    def sd(self) -> float:
        """Marginal standard deviation of a weight with fan-in 1; may be infinite."""
        return self.scale.root_mean_square if isinstance(self.scale, ScalePrior) else self.scale

    def _learned_scales(self) -> LearnedScales | None:
        """Return the scales that are learned with the weights, None where the prior is fixed."""
        if not isinstance(self.scale, ScalePrior):
            return None
        return LearnedScales(self.scale, self.per, self._divisor)


_PER = ("array", "layer", "input", "unit", "weight", "all")


def _host_mean(name: str, value: object) -> npt.NDArray[np.float64]:
    mean = np.asarray(checks.data("Normal", name, value, np.dtype(np.float64)), np.float64)
    if mean.size == 0:
        raise ShapeError(f"[Normal] expected {name} as a number or an array, got an empty one")
    mean.flags.writeable = False
    return mean


@dataclass(frozen=True)
class _OneScale(Prior):
    """Symmetric prior around 0 whose only parameter is a scale."""

    _order = ": the first argument is the scale; the prior is centred at 0"
    _sd_per_scale: ClassVar[float]
    scale: float
    fan_in: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self._set_positive("scale")

    def _table_values(self, fan_in: int = 1) -> tuple[float, float, float]:
        """Return (scale, 0, 0)."""
        return self.scale / self._divisor(fan_in), 0.0, 0.0

    def _spread(self, fan_in: int = 1) -> float:
        """Return the sd."""
        return self._sd_per_scale * self._table_values(fan_in)[0]


@dataclass(frozen=True)
class Laplace(_OneScale):
    """Laplace prior with density exp(-abs(w) / scale) / (2 scale); sd sqrt(2) scale.

    Parameters
    ----------
    scale : float
        Scale, > 0.
    fan_in : bool, default False
        Divide the scale by sqrt(fan-in).

    Raises
    ------
    TypeError, ValueError
        If the scale is not a positive finite number.

    Examples
    --------
    >>> prior = rb.Laplace(1.0)
    >>> round(prior.sd, 4)
    1.4142
    """

    kind: ClassVar[int] = PRIORS["Laplace"]
    _sd_per_scale = math.sqrt(2.0)


@dataclass(frozen=True)
class StudentT(Prior):
    """Student's t prior: scale times a t variate; sd scale sqrt(df / (df - 2)) for df > 2.

    Parameters
    ----------
    df : float
        Degrees of freedom, > 0.
    scale : float
        Scale, > 0.
    fan_in : bool, default False
        Divide the scale by sqrt(fan-in).

    Raises
    ------
    TypeError, ValueError
        If df or the scale is not a positive finite number.

    Examples
    --------
    >>> prior = rb.StudentT(4.0, 1.0)
    >>> round(prior.sd, 4)
    1.4142
    """

    kind: ClassVar[int] = PRIORS["StudentT"]
    _order = ": the arguments are df and scale, in this order; the prior is centred at 0"
    df: float
    scale: float
    fan_in: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self._set_positive("df", "scale")

    def _table_values(self, fan_in: int = 1) -> tuple[float, float, float]:
        """Return (df, scale, 0)."""
        return self.df, self.scale / self._divisor(fan_in), 0.0

    def _spread(self, fan_in: int = 1) -> float:
        """Return the sd for df > 2, else the scale."""
        factor = math.sqrt(self.df / (self.df - 2.0)) if self.df > 2.0 else 1.0
        return factor * self._table_values(fan_in)[1]

    @property
    def sd(self) -> float:
        """Marginal standard deviation at fan-in 1; infinite for df <= 2."""
        return self._spread() if self.df > 2.0 else math.inf


@dataclass(frozen=True)
class Logistic(_OneScale):
    """Logistic prior with density sech(w / (2 scale))**2 / (4 scale); sd pi scale / sqrt(3).

    Parameters
    ----------
    scale : float
        Scale, > 0.
    fan_in : bool, default False
        Divide the scale by sqrt(fan-in).

    Raises
    ------
    TypeError, ValueError
        If the scale is not a positive finite number.

    Examples
    --------
    >>> prior = rb.Logistic(1.0)
    >>> round(prior.sd, 4)
    1.8138
    """

    kind: ClassVar[int] = PRIORS["Logistic"]
    _sd_per_scale = math.pi / math.sqrt(3.0)


@dataclass(frozen=True)
class ScaleMixture(Prior):
    """Mixture weight N(0, scale1**2) + (1 - weight) N(0, scale2**2) (Blundell et al. 2015, eq. 7).

    Parameters
    ----------
    weight : float
        Probability of the first component, in (0, 1).
    scale1, scale2 : float
        Standard deviations of the components, > 0.
    fan_in : bool, default False
        Divide both scales by sqrt(fan-in).

    Raises
    ------
    TypeError, ValueError
        If the weight is not in (0, 1) or a scale not a positive finite number.

    Examples
    --------
    >>> prior = rb.ScaleMixture(0.5, 1.0, 0.01)
    >>> round(prior.sd, 4)
    0.7071
    """

    kind: ClassVar[int] = PRIORS["ScaleMixture"]
    weight: float
    scale1: float
    scale2: float
    fan_in: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        weight = checks.fraction("ScaleMixture", "weight", self.weight)
        object.__setattr__(self, "weight", weight)
        self._set_positive("scale1", "scale2")

    def _table_values(self, fan_in: int = 1) -> tuple[float, float, float]:
        """Return (weight, scale1, scale2)."""
        divisor = self._divisor(fan_in)
        return self.weight, self.scale1 / divisor, self.scale2 / divisor

    def _spread(self, fan_in: int = 1) -> float:
        """Return the sd of the mixture."""
        weight, sd1, sd2 = self._table_values(fan_in)
        most = max(sd1, sd2)  # whose square may be infinite
        a, b = sd1 / most, sd2 / most
        return most * math.sqrt(weight * a * a + (1.0 - weight) * b * b)


@dataclass(frozen=True)
class Horseshoe(Prior):
    """Regularised horseshoe: most weights near 0, few far from it, none beyond a slab.

    A weight is m z with z ~ N(0, 1) and m**-2 = (tau lambda)**-2 + c**-2, with local scales lambda
    ~ half-Cauchy(1), a global scale tau ~ half-Cauchy(``global_scale``) and a slab c**2 ~ inverse
    gamma(df / 2, df s**2 / 2). Its tails are Student t with scale s. All scales are learned with
    the weights, as for `Normal`; each array has one tau and one c.

    Parameters
    ----------
    global_scale : float
        Scale of tau, > 0. For p0 relevant inputs of D and N rows with noise sd sigma, Piironen and
        Vehtari advise p0 / (D - p0) sigma / sqrt(N).
    slab_scale : float, default 2.0
        s > 0.
    slab_df : float, default 4.0
        Degrees of freedom of the slab, > 0.
    per : {"weight", "input", "unit", "array"}, default "weight"
        Group of weights that shares a local scale, as in `Normal`.
    fan_in : bool, default False
        Divide m by sqrt(fan-in).

    Raises
    ------
    TypeError, ValueError
        If a number is not positive and finite. From a target, if "input" or "unit" is used for an
        array that is not a matrix.

    References
    ----------
    Piironen and Vehtari (2017), "Sparsity information and regularization in the horseshoe and other
    shrinkage priors", section 2.3 and eq. 3.12; Ghosh, Yao and Doshi-Velez (2018), "Structured
    variational learning of Bayesian neural networks with horseshoe priors", for networks.

    Examples
    --------
    >>> import numpy as np, ribbit as rb
    >>> prior = {"0.weight": rb.Horseshoe(0.1, per="input"), "*": rb.Normal(1.0)}
    >>> x = rb.random.normal((50, 8), seed=1)
    >>> target = rb.Posterior(rb.mlp(8, (5,), 1), x, x[:, 0], prior=prior,
    ...                       likelihood=rb.Gaussian(0.1))
    >>> list(target.unravel(target.init(seed=0)))[-3:]
    ['log_local.0.weight', 'log_global.0.weight', 'log_slab.0.weight']
    """

    kind: ClassVar[int] = PRIORS["Normal"]  # of z
    global_scale: float
    slab_scale: float = 2.0
    slab_df: float = 4.0
    per: str = field(default="weight", kw_only=True)
    fan_in: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self._set_positive("global_scale", "slab_scale", "slab_df")
        checks.choice("Horseshoe", "per", self.per, ("weight", "input", "unit", "array"))

    def _table_values(self, fan_in: int = 1) -> tuple[float, float, float]:
        """Return (1, 0, 0), those of z."""
        del fan_in
        return 1.0, 0.0, 0.0

    def _spread(self, fan_in: int = 1) -> float:
        """Return the sd of z, 1."""
        del fan_in
        return 1.0

    @property
    def sd(self) -> float:
        """Upper bound of a weight's sd, from its slab alone; infinite for slab_df <= 2."""
        return self._slab.root_mean_square

    @property
    def _slab(self) -> InverseGamma:
        half = 0.5 * self.slab_df
        return InverseGamma(half, half * self.slab_scale**2)

    def _learned_scales(self) -> LearnedScales:
        """Return the local scales, the global one and the slab."""
        shared = HalfCauchy(self.global_scale)
        return LearnedScales(HalfCauchy(1.0), self.per, self._divisor, shared, self._slab)


def check(function: str, prior: object) -> PriorLike:
    """Return `prior`, or raise TypeError if it is neither a prior nor a dict of priors."""
    if isinstance(prior, Prior):
        return check_one(function, "prior", prior)
    if not isinstance(prior, Mapping) or not prior:
        got = "an empty dict" if isinstance(prior, Mapping) else checks.summary(prior)
        expected = f"[{function}] expected prior as a prior or a dict of priors"
        raise TypeError(f"{expected}, got {got}: for example rb.Normal(1.0)")
    for pattern, value in prior.items():
        if not isinstance(pattern, str) or not isinstance(value, Prior):
            got = f"{checks.summary(pattern)}: {checks.summary(value)}"
            raise TypeError(f"[{function}] expected prior as pattern: prior, got {got}")
        check_one(function, f"prior[{pattern!r}]", value)
    return dict(prior)


def check_one(function: str, name: str, prior: object) -> Prior:
    """Return `prior`, or raise TypeError if the core does not know it."""
    return cast("Prior", checks.known_class(function, name, "a prior", prior, Prior, _PRIORS))


_PRIORS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        *(Normal, Laplace, StudentT, Logistic, ScaleMixture),
        *(GammaPrecision, InverseGamma, HalfNormal, HalfCauchy, Horseshoe),
    )
}


def describe(prior: PriorLike) -> dict[str, Any]:
    """Return a JSON-able description of a prior or a dict of priors."""
    if isinstance(prior, Prior):
        return prior.describe()
    return {"patterns": {pattern: value.describe() for pattern, value in prior.items()}}


def from_description(description: object) -> PriorLike:
    """Rebuild a prior, or a dict of priors, from `describe`."""
    function = "priors.from_description"
    given = checks.mapping(function, "description", description)
    if "patterns" in given:
        patterns = checks.mapping(function, "patterns", given["patterns"])
        return {
            pattern: _rebuilt(function, checks.mapping(function, pattern, value))
            for pattern, value in patterns.items()
        }
    return _rebuilt(function, given)


def _rebuilt(function: str, given: Mapping[str, Any]) -> Prior:
    scale = given.get("scale")
    if isinstance(scale, Mapping):  # learned
        given = {**given, "scale": checks.rebuild(function, "prior", scale, _PRIORS)}
    prior: Prior = checks.rebuild(function, "prior", given, _PRIORS)
    return prior


explain(globals())
