"""What priors of scales need of the gamma function: its derivatives, and a median."""

from __future__ import annotations

import math

__all__ = ["digamma", "gamma_log_median", "trigamma"]

_FAR = 10.0  # from here on the asymptotic series are exact to 1e-15
# Bernoulli numbers B2, B4, .. B14
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


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
