"""Priors over parameters: independent, normalised, of mean 0 but for normals that say another.

A prior resolves to rows of the prior table of the native log density, one per parameter array:
offset, size, kind, a, b, c.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

import numpy as np

from ribbit._arrays import checks
from ribbit._backends.codes import PRIORS
from ribbit.errors import ShapeError
from ribbit.targets import gamma_functions

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "GammaPrecision",
    "HalfCauchy",
    "HalfNormal",
    "InverseGamma",
    "Laplace",
    "Logistic",
    "Normal",
    "Prior",
    "ScaleMixture",
    "ScalePrior",
    "StudentT",
]

LOG_NOISE = "log_noise"
"""Name of the extra parameter of a likelihood that learns its noise."""


class Prior:
    """Base of the priors.

    With ``fan_in=True`` the scales are divided by sqrt(fan-in) of each parameter array; a bias has
    fan-in 1 and keeps its scale.
    """

    kind: ClassVar[int]  # code in the prior table
    fan_in: bool

    def table_values(self, fan_in: int = 1) -> tuple[float, float, float]:
        """Return (a, b, c) of the prior table for a parameter with this fan-in."""
        raise NotImplementedError

    def spread(self, fan_in: int = 1) -> float:
        """Return the sd for a parameter with this fan-in; its scale where the sd is infinite."""
        raise NotImplementedError

    @property
    def sd(self) -> float:
        """Marginal standard deviation at fan-in 1; infinite when there is none."""
        return self.spread()

    def named(self) -> tuple[str, ...]:
        """Return the names of parameters that the prior says something of; a target has them."""
        return ()

    def means(self, function: str, parameter: Parameter, dim: int) -> npt.NDArray[np.float64]:
        """Return the mean of each number of a parameter (size,), of a model of `dim` in all."""
        del function, dim
        return np.zeros(parameter.size)

    def centres(self, function: str, parameter: Parameter, dim: int) -> npt.NDArray[np.float64]:
        """Return what the core subtracts before it takes the density (size,): the mean."""
        return self.means(function, parameter, dim)

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able description from which `from_description` rebuilds the prior."""
        return {"prior": type(self).__name__, **dataclasses.asdict(self)}  # type: ignore[call-overload]

    def _set_positive(self, *names: str) -> None:
        owner = type(self).__name__
        for name in names:
            object.__setattr__(self, name, checks.positive(owner, name, getattr(self, name)))
        if "fan_in" in self.__dict__:
            object.__setattr__(self, "fan_in", checks.boolean(owner, "fan_in", self.fan_in))

    def _divisor(self, fan_in: int) -> float:
        return math.sqrt(fan_in) if self.fan_in else 1.0


@dataclass(frozen=True, eq=False, repr=False)
class Normal(Prior):
    """Normal prior N(mean, scale**2).

    Parameters
    ----------
    scale : float
        Standard deviation, > 0.
    fan_in : bool, default False
        Divide the scale by sqrt(fan-in); the mean stays.
    mean : float, array or dict of arrays, default 0.0
        One number for all parameters that have this prior; an array of the shape of the parameter,
        or flat; the flat vector (``model.dim``,) of all parameters, of which each takes its own; or
        an array for each parameter by its name, as `Model.unravel` returns them (those of the
        model's others are not read). Arrays are in host memory, copied, and kept in float64.

    Raises
    ------
    TypeError, ValueError
        If the scale is not a positive finite number, or the mean not finite. A target raises
        ValueError for means that do not fit its parameters.

    References
    ----------
    Pearce, Leibfried and Brintrup (2020), "Uncertainty in neural networks: approximately Bayesian
    ensembling", for ensembles whose members have priors around draws of the prior.

    Examples
    --------
    An anchored ensemble; ``mean=theta`` of other data instead of an anchor is fine-tuning.

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
    """

    kind: ClassVar[int] = PRIORS["Normal"]
    scale: float
    fan_in: bool = field(default=False, kw_only=True)
    mean: float | npt.ArrayLike | Mapping[str, npt.ArrayLike] = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        self._set_positive("scale")
        mean: Any = self.mean
        if isinstance(mean, Mapping):
            mean = {name: _host_mean(f"mean[{name!r}]", value) for name, value in mean.items()}
        elif isinstance(mean, numbers.Real):
            mean = checks.real("Normal", "mean", mean)
        else:
            mean = _host_mean("mean", mean)
        object.__setattr__(self, "mean", mean)

    def __repr__(self) -> str:
        mean = f", mean={checks.summary(self.mean)}"
        if isinstance(self.mean, float):
            mean = f", mean={self.mean!r}" if self.mean else ""
        return f"Normal(scale={self.scale!r}, fan_in={self.fan_in!r}{mean})"

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Normal) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        parts = self.mean if isinstance(self.mean, Mapping) else {None: self.mean}
        # + 0.0: a negative zero is a zero.
        arrays = ((name, np.asarray(part) + 0.0) for name, part in parts.items())
        means = frozenset((name, part.shape, part.tobytes()) for name, part in arrays)
        return self.scale, self.fan_in, means

    def named(self) -> tuple[str, ...]:
        """Return the names in a dict of means."""
        return tuple(self.mean) if isinstance(self.mean, Mapping) else ()

    def means(self, function: str, parameter: Parameter, dim: int) -> npt.NDArray[np.float64]:
        """Return the mean of each number of a parameter (size,), of a model of `dim` in all.

        Raises
        ------
        ValueError
            If there is none for the parameter, or one of another shape.
        """
        name, size, mean = parameter.name, parameter.size, self.mean
        if isinstance(mean, float):
            return np.full(size, mean, np.float64)
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
        mean = self.mean
        if isinstance(mean, Mapping):
            described["mean"] = {name: np.asarray(part).tolist() for name, part in mean.items()}
        elif not isinstance(mean, float) or mean:
            described["mean"] = np.asarray(mean).tolist()
        return described

    def table_values(self, fan_in: int = 1) -> tuple[float, float, float]:
        """Return (scale, 0, 0)."""
        return self.scale / self._divisor(fan_in), 0.0, 0.0

    def spread(self, fan_in: int = 1) -> float:
        """Return the sd, the scale itself."""
        return self.scale / self._divisor(fan_in)


def _host_mean(name: str, value: object) -> npt.NDArray[np.float64]:
    mean = np.asarray(checks.data("Normal", name, value, np.dtype(np.float64)), np.float64)
    if mean.size == 0:
        raise ShapeError(f"[Normal] expected {name} as a number or an array, got an empty one")
    mean.flags.writeable = False
    return mean


@dataclass(frozen=True)
class Laplace(Prior):
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
    """

    kind: ClassVar[int] = PRIORS["Laplace"]
    scale: float
    fan_in: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self._set_positive("scale")

    def table_values(self, fan_in: int = 1) -> tuple[float, float, float]:
        """Return (scale, 0, 0)."""
        return self.scale / self._divisor(fan_in), 0.0, 0.0

    def spread(self, fan_in: int = 1) -> float:
        """Return the sd, sqrt(2) scale."""
        return math.sqrt(2.0) * self.scale / self._divisor(fan_in)


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
    """

    kind: ClassVar[int] = PRIORS["StudentT"]
    df: float
    scale: float
    fan_in: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self._set_positive("df", "scale")

    def table_values(self, fan_in: int = 1) -> tuple[float, float, float]:
        """Return (df, scale, 0)."""
        return self.df, self.scale / self._divisor(fan_in), 0.0

    def spread(self, fan_in: int = 1) -> float:
        """Return the sd for df > 2, else the scale."""
        factor = math.sqrt(self.df / (self.df - 2.0)) if self.df > 2.0 else 1.0
        return factor * self.scale / self._divisor(fan_in)

    @property
    def sd(self) -> float:
        """Marginal standard deviation at fan-in 1; infinite for df <= 2."""
        return self.spread() if self.df > 2.0 else math.inf


@dataclass(frozen=True)
class Logistic(Prior):
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
    """

    kind: ClassVar[int] = PRIORS["Logistic"]
    scale: float
    fan_in: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self._set_positive("scale")

    def table_values(self, fan_in: int = 1) -> tuple[float, float, float]:
        """Return (scale, 0, 0)."""
        return self.scale / self._divisor(fan_in), 0.0, 0.0

    def spread(self, fan_in: int = 1) -> float:
        """Return the sd, pi scale / sqrt(3)."""
        return math.pi / math.sqrt(3.0) * self.scale / self._divisor(fan_in)


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

    def table_values(self, fan_in: int = 1) -> tuple[float, float, float]:
        """Return (weight, scale1, scale2)."""
        divisor = self._divisor(fan_in)
        return self.weight, self.scale1 / divisor, self.scale2 / divisor

    def spread(self, fan_in: int = 1) -> float:
        """Return the sd of the mixture."""
        rest = 1.0 - self.weight
        sd = math.hypot(math.sqrt(self.weight) * self.scale1, math.sqrt(rest) * self.scale2)
        return sd / self._divisor(fan_in)


class ScalePrior(Prior):
    """Base of the priors of a scale, a positive number that a target has as its logarithm.

    Their density is that of u = log(scale), the Jacobian included. They go where a target has such
    a parameter: the noise sd (``log_noise_prior=``, or the entry "log_noise" of a dict of priors).
    """

    fan_in = False

    @property
    def log_mean(self) -> float:
        """Mean of the logarithm of the scale."""
        raise NotImplementedError

    @property
    def log_median(self) -> float:
        """Median of the logarithm of the scale."""
        raise NotImplementedError

    def means(self, function: str, parameter: Parameter, dim: int) -> npt.NDArray[np.float64]:
        """Return the mean of the log scale (size,)."""
        del function, dim
        return np.full(parameter.size, self.log_mean)

    def centres(self, function: str, parameter: Parameter, dim: int) -> npt.NDArray[np.float64]:
        """Return zeros (size,): the density is of the log scale itself."""
        del function, dim
        return np.zeros(parameter.size)


@dataclass(frozen=True)
class GammaPrecision(ScalePrior):
    """Gamma prior of the precision scale**-2, with density b**a x**(a - 1) exp(-b x) / Gamma(a).

    The prior of the noise in NumPyro's Bayesian neural network: ``prec_obs ~ Gamma(3, 1)``,
    ``sigma = 1 / sqrt(prec_obs)``.

    Parameters
    ----------
    concentration : float
        a > 0.
    rate : float
        b > 0, in units of the variance: the mean of the precision is a / b.

    Raises
    ------
    TypeError, ValueError
        If an argument is not a positive finite number; a target, for a prior of weights.

    Examples
    --------
    >>> import numpy as np, ribbit as rb
    >>> noise = rb.Gaussian(log_noise_prior=rb.GammaPrecision(3.0, 1.0))
    >>> target = rb.Posterior(rb.mlp(1, (5, 5), 1, activation="tanh"), np.zeros((4, 1)),
    ...                       np.zeros(4), prior=rb.Normal(1.0), likelihood=noise)
    >>> target.unravel(target.init(seed=0))["log_noise"].shape
    ()
    """

    kind: ClassVar[int] = PRIORS["GammaPrecision"]
    concentration: float
    rate: float

    def __post_init__(self) -> None:
        self._set_positive("concentration", "rate")

    def table_values(self, fan_in: int = 1) -> tuple[float, float, float]:
        """Return (concentration, rate, 0)."""
        del fan_in
        return self.concentration, self.rate, 0.0

    def spread(self, fan_in: int = 1) -> float:
        """Return the sd of the log scale, sqrt(trigamma(a)) / 2."""
        del fan_in
        return 0.5 * math.sqrt(gamma_functions.trigamma(self.concentration))

    @property
    def log_mean(self) -> float:
        """Mean of the logarithm of the scale, (log b - digamma(a)) / 2."""
        return 0.5 * (math.log(self.rate) - gamma_functions.digamma(self.concentration))

    @property
    def log_median(self) -> float:
        """Median of the logarithm of the scale."""
        median = gamma_functions.gamma_log_median(self.concentration)
        return 0.5 * (math.log(self.rate) - median)


class InverseGamma(GammaPrecision):
    """Inverse gamma prior of the variance scale**2: `GammaPrecision` by its other name.

    The variance has the density b**a v**(-a - 1) exp(-b / v) / Gamma(a); v is inverse gamma where
    1 / v is gamma, with the same two numbers.

    Parameters
    ----------
    concentration : float
        a > 0.
    rate : float
        b > 0, in units of the variance.

    Raises
    ------
    TypeError, ValueError
        As for `GammaPrecision`.
    """


@dataclass(frozen=True)
class HalfNormal(ScalePrior):
    """Half-normal prior of a scale: the absolute value of N(0, scale**2).

    Parameters
    ----------
    scale : float
        Its own scale, > 0.

    Raises
    ------
    TypeError, ValueError
        If the scale is not a positive finite number; a target, for a prior of weights.
    """

    kind: ClassVar[int] = PRIORS["HalfNormal"]
    scale: float

    def __post_init__(self) -> None:
        self._set_positive("scale")

    def table_values(self, fan_in: int = 1) -> tuple[float, float, float]:
        """Return (scale, 0, 0)."""
        del fan_in
        return self.scale, 0.0, 0.0

    def spread(self, fan_in: int = 1) -> float:
        """Return the sd of the log scale, pi / sqrt(8): half that of the log of a chi-square."""
        del fan_in
        return math.pi / math.sqrt(8.0)

    @property
    def log_mean(self) -> float:
        """Mean of the logarithm of the scale."""
        return math.log(self.scale) + 0.5 * (math.log(2.0) + gamma_functions.digamma(0.5))

    @property
    def log_median(self) -> float:
        """Median of the logarithm of the scale: the upper quartile of a normal variate."""
        return math.log(self.scale) + math.log(NormalDist().inv_cdf(0.75))


@dataclass(frozen=True)
class HalfCauchy(ScalePrior):
    """Half-Cauchy prior of a scale, with density 2 / (pi s (1 + (tau / s)**2)), tau > 0.

    Parameters
    ----------
    scale : float
        s > 0, the median of tau.

    Raises
    ------
    TypeError, ValueError
        If the scale is not a positive finite number; a target, for a prior of weights.

    References
    ----------
    Gelman (2006), "Prior distributions for variance parameters in hierarchical models", section 3.
    """

    kind: ClassVar[int] = PRIORS["HalfCauchy"]
    scale: float

    def __post_init__(self) -> None:
        self._set_positive("scale")

    def table_values(self, fan_in: int = 1) -> tuple[float, float, float]:
        """Return (scale, 0, 0)."""
        del fan_in
        return self.scale, 0.0, 0.0

    def spread(self, fan_in: int = 1) -> float:
        """Return the sd of the log scale, pi / 2: that of a hyperbolic secant."""
        del fan_in
        return math.pi / 2.0

    @property
    def log_mean(self) -> float:
        """Mean of the logarithm of the scale, log s."""
        return math.log(self.scale)

    @property
    def log_median(self) -> float:
        """Median of the logarithm of the scale, log s."""
        return math.log(self.scale)


PriorLike: TypeAlias = Prior | Mapping[str, Prior]


class Parameter(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def fan_in(self) -> int: ...


def check(function: str, prior: object) -> PriorLike:
    """Return `prior`, or raise TypeError if it is neither a prior nor a dict of priors."""
    if isinstance(prior, Prior):
        return prior
    if not isinstance(prior, Mapping) or not prior:
        got = "an empty dict" if isinstance(prior, Mapping) else checks.summary(prior)
        raise TypeError(f"[{function}] expected prior as a prior or a dict of priors, got {got}")
    for pattern, value in prior.items():
        if not isinstance(pattern, str) or not isinstance(value, Prior):
            got = f"{checks.summary(pattern)}: {checks.summary(value)}"
            raise TypeError(f"[{function}] expected prior as pattern: prior, got {got}")
    return dict(prior)


_PRIORS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (Normal, Laplace, StudentT, Logistic, ScaleMixture)
    + (GammaPrecision, InverseGamma, HalfNormal, HalfCauchy)
}


def describe(prior: PriorLike) -> dict[str, Any]:
    """Return a JSON-able description of a prior or a dict of priors."""
    if isinstance(prior, Prior):
        return prior.describe()
    return {"patterns": {pattern: value.describe() for pattern, value in prior.items()}}


def from_description(description: object) -> PriorLike:
    """Rebuild a prior, or a dict of priors, from `describe`.

    Raises
    ------
    TypeError, ValueError
        If the description is not one of a prior.
    """
    function = "priors.from_description"
    given = checks.mapping(function, "description", description)
    if "patterns" in given:
        patterns = checks.mapping(function, "patterns", given["patterns"])
        return {
            pattern: checks.rebuild(
                function, "prior", checks.mapping(function, pattern, value), _PRIORS
            )
            for pattern, value in patterns.items()
        }
    prior: Prior = checks.rebuild(function, "prior", given, _PRIORS)
    return prior
