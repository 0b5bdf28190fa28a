"""The law of y at each row: the mixture over draws, noise included.

Shapes: S draws, n rows, K outputs, Q levels. Terms of draws have draws first; everything here is
float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from ribbit.protocols import Array, PredictiveTerms
from ribbit.results.counts import count_quantile
from ribbit.results.mixtures import Law, Normal, StudentT, mixture_quantile

__all__ = ["components", "law_of", "quantiles"]


def law_of(terms: PredictiveTerms) -> Law:
    """Return the law of the noise of a regression at scale 1."""
    return Normal() if terms.noise_df is None else StudentT(terms.noise_df)


def components(xp: ModuleType, terms: PredictiveTerms) -> tuple[Array, Array]:
    """Means, and widths of the noise, of the mixture of each row and output, (n K, S) each.

    In C order, so that sums over draws do not depend on how the rows were cut.
    """
    values = xp.permute_dims(xp.astype(terms.values, xp.float64), (1, 2, 0))
    width = xp.permute_dims(xp.astype(terms.noise_width, xp.float64), (1, 2, 0))
    pair = [xp.reshape(a, (-1,)) for a in (values, width + xp.zeros_like(values))]
    mean, width = (xp.reshape(a, (-1, values.shape[-1])) for a in pair)
    return mean, width


def quantiles(xp: ModuleType, kind: str, terms: PredictiveTerms, levels: Sequence[float]) -> Array:
    """Quantiles (Q, n, K) of y: to rounding, or of counts the smallest that reach the level."""
    mean, width = components(xp, terms)
    if kind == "count":
        found = [count_quantile(xp, mean, xp.full_like(mean[:, 0], q)) for q in levels]
        result = xp.stack(found, axis=0)
    else:
        result = mixture_quantile(xp, law_of(terms), mean, width, levels)
    return xp.reshape(result, (len(levels), *terms.values.shape[1:]))
