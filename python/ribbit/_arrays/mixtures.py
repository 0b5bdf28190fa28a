"""The law of y, a mixture over draws, of NumPy arrays by the native core."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit import _core
from ribbit.protocols import PredictiveTerms

if TYPE_CHECKING:
    import numpy.typing as npt


def quantiles(
    kind: str, terms: PredictiveTerms, levels: Sequence[float]
) -> npt.NDArray[np.float64]:
    """Return quantiles (Q, N, K) of y, levels in (0, 1)."""
    return _core.mixture_quantiles(*_mixture(kind, terms), list(levels))


def cdf(kind: str, terms: PredictiveTerms, y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return P(Y <= y) of y (N, K)."""
    return _core.mixture_cdf(*_mixture(kind, terms), np.ascontiguousarray(y))


def crps(terms: PredictiveTerms, y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the continuous ranked probability score of y (N, K) under a regression."""
    return _core.mixture_crps(*_mixture("regression", terms), np.ascontiguousarray(y))


def _mixture(kind: str, terms: PredictiveTerms) -> tuple[Any, Any, float]:
    """Values (S, N, K), widths of the noise in that shape (counts: none), degrees of freedom."""
    values = _floats(terms.values)
    if kind == "count":
        return values, None, math.inf
    df = math.inf if terms.noise_df is None else float(terms.noise_df)
    return values, np.broadcast_to(_floats(terms.noise_width), values.shape), df


def _floats(array: Any) -> npt.NDArray[Any]:
    """Return an aligned float32 or float64 array, without a copy if possible."""
    single = np.asarray(array).dtype == np.float32
    return np.require(array, np.float32 if single else np.float64, "A")
