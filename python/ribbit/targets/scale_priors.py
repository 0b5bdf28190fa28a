"""Priors of a scale: of the noise sd, and of the sds of weights that are learned with them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ribbit._backends.codes import PRIORS
from ribbit.targets.prior_base import ScalePrior

_FAR = 10.0  # from here on the asymptotic series are exact to 1e-15
# Bernoulli numbers B2, B4, .. B14
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


@dataclass(frozen=True)
class GammaPrecision(ScalePrior):
    """Gamma prior of the precision scale**-2, with density b**a x**(a - 1) exp(-b x) / Gamma(a).

    NumPyro's Bayesian neural network has this prior of the noise: ``prec_obs ~ Gamma(3, 1)``,
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
        If an argument is not a positive finite number. From a target, if it is the prior of
        weights.

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

    def _table_values(self, fan_in: int = 1) -> tuple[float, float, float]:
        """Return (concentration, rate, 0)."""
        del fan_in
        return self.concentration, self.rate, 0.0

    def _spread(self, fan_in: int = 1) -> float:
        """Return the sd of the log scale, sqrt(trigamma(a)) / 2."""
        del fan_in
        return 0.5 * math.sqrt(trigamma(self.concentration))

    @property
    def log_mean(self) -> float:
        """Mean of the logarithm of the scale, (log b - digamma(a)) / 2."""
        return 0.5 * (math.log(self.rate) - digamma(self.concentration))

    @property
    def log_median(self) -> float:
        """Median of the logarithm of the scale."""
        median = gamma_log_median(self.concentration)
        return 0.5 * (math.log(self.rate) - median)

    @property
    def root_mean_square(self) -> float:
        """Root of the mean variance, b / (a - 1); infinite for a <= 1."""
        above = self.concentration - 1.0
        return math.sqrt(self.rate / above) if above > 0.0 else math.inf


class InverseGamma(GammaPrecision):
    """Inverse gamma prior of the variance scale**2; the same distribution as `GammaPrecision`.

    The variance has the density b**a v**(-a - 1) exp(-b / v) / Gamma(a), so 1 / v is gamma with the
    same two numbers.

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

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> noise = rb.Gaussian(log_noise_prior=rb.InverseGamma(3.0, 1.0))
    >>> target = rb.Posterior(rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=noise)
    >>> list(target.unravel(target.init(seed=0)))[-1]
    'log_noise'
    """


@dataclass(frozen=True)
class _Half(ScalePrior):
    """Half of a distribution around 0 with a scale."""

    _order = ": the first argument is the scale, the only one"
    scale: float

    def __post_init__(self) -> None:
        self._set_positive("scale")

    def _table_values(self, fan_in: int = 1) -> tuple[float, float, float]:
        """Return (scale, 0, 0)."""
        del fan_in
        return self.scale, 0.0, 0.0


@dataclass(frozen=True)
class HalfNormal(_Half):
    """Half-normal prior of a scale: the absolute value of N(0, scale**2).

    Parameters
    ----------
    scale : float
        Scale of the half-normal, > 0.

    Raises
    ------
    TypeError, ValueError
        If the scale is not a positive finite number. From a target, if it is the prior of weights.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> noise = rb.Gaussian(log_noise_prior=rb.HalfNormal(1.0))
    >>> target = rb.Posterior(rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=noise)
    >>> list(target.unravel(target.init(seed=0)))[-1]
    'log_noise'
    """

    kind: ClassVar[int] = PRIORS["HalfNormal"]

    def _spread(self, fan_in: int = 1) -> float:
        """Return the sd of the log scale, pi / sqrt(8): half that of the log of a chi-square."""
        del fan_in
        return math.pi / math.sqrt(8.0)

    @property
    def log_mean(self) -> float:
        """Mean of the logarithm of the scale."""
        return math.log(self.scale) + 0.5 * (math.log(2.0) + digamma(0.5))

    @property
    def log_median(self) -> float:
        """Median of the logarithm of the scale: the upper quartile of a normal variate."""
        from statistics import NormalDist  # not with ribbit: slow to load

        return math.log(self.scale) + math.log(NormalDist().inv_cdf(0.75))

    @property
    def root_mean_square(self) -> float:
        """Root of the mean of tau**2, the scale."""
        return self.scale


@dataclass(frozen=True)
class HalfCauchy(_Half):
    """Half-Cauchy prior of a scale, with density 2 / (pi s (1 + (tau / s)**2)), tau > 0.

    Parameters
    ----------
    scale : float
        s > 0, the median of tau.

    Raises
    ------
    TypeError, ValueError
        If the scale is not a positive finite number. From a target, if it is the prior of weights.

    References
    ----------
    Gelman (2006), "Prior distributions for variance parameters in hierarchical models", section 3.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> noise = rb.Gaussian(log_noise_prior=rb.HalfCauchy(1.0))
    >>> target = rb.Posterior(rb.mlp(1, (3,), 1), x, 2 * x, prior=rb.Normal(1.0), likelihood=noise)
    >>> list(target.unravel(target.init(seed=0)))[-1]
    'log_noise'
    """

    kind: ClassVar[int] = PRIORS["HalfCauchy"]

    def _spread(self, fan_in: int = 1) -> float:
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


def digamma(x: float) -> float:
    """Return d log Gamma(x) / dx for x > 0 (Abramowitz and Stegun 6.3.5 and 6.3.18)."""
    shift = 0.0
    while x < _FAR:
        shift += 1.0 / x
        x += 1.0
    r = 1.0 / x
    series = sum(b / (2.0 * n) * r ** (2 * n) for n, b in enumerate(_BERNOULLI, 1))
    return math.log(x) - 0.5 * r - series - shift


def trigamma(x: float) -> float:
    """Return d^2 log Gamma(x) / dx^2 for x > 0 (Abramowitz and Stegun 6.4.6 and 6.4.12)."""
    shift = 0.0
    while x < _FAR:
        shift += 1.0 / x / x
        x += 1.0
    r = 1.0 / x
    series = sum(b * r ** (2 * n + 1) for n, b in enumerate(_BERNOULLI, 1))
    return r + 0.5 * r * r + series + shift


def gamma_log_median(a: float) -> float:
    """Return the logarithm of the median of Gamma(a, 1), a > 0, to 1e-6 where it is a float."""
    # By bisection on log x of P(a, x) = x^a e^-x / Gamma(a + 1) sum_n x^n / ((a + 1) .. (a + n)).
    if a > 0.2:  # Wilson and Hilferty
        guess = math.log(a) + 3.0 * math.log1p(-1.0 / (9.0 * a))
        if a > 1e3:
            return guess
        low, high = guess - 0.5, guess + 0.5
    else:  # the first term alone: too low
        low = (math.lgamma(a + 1.0) - math.log(2.0)) / a
        high = low + 1.0
    for _ in range(25):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _lower_gamma(a, middle) < 0.5 else (low, middle)
    return 0.5 * (low + high)


def _lower_gamma(a: float, log_x: float) -> float:
    x, n = math.exp(log_x), 0
    term = total = 1.0
    while term > 1e-12 * total:
        n += 1
        term *= x / (a + n)
        total += term
    return total * math.exp(a * log_x - x - math.lgamma(a + 1.0))
