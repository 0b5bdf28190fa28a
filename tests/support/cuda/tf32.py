"""TF32 by exact double arithmetic."""

import numpy as np


def nearest(x, *, ties_away=True):
    """TF32 numbers nearest to float32 ones, from exact double arithmetic."""
    with np.errstate(invalid="ignore"):
        exact = np.abs(x.astype(np.float64))
        unit = np.maximum(2.0 ** (np.frexp(exact)[1] - 11.0), 2.0**-136)  # subnormals: 2^-149+13
        places = exact / unit
        rounded = np.floor(places + 0.5) if ties_away else np.rint(places)
        size = np.where(rounded * unit >= 2.0**128, np.inf, rounded * unit)
    return np.copysign(np.where(np.isfinite(x), size, exact), x).astype(np.float32)
