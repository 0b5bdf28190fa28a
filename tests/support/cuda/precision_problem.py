"""A regression in one of the precisions of a device."""

import warnings

import numpy as np

import ribbit as rb
from ribbit.errors import PrecisionWarning


def build(xp, model, precision, *, rows=30, noise=0.3, data=None, **options):
    """A regression whose warning is not asked for."""
    rng = np.random.default_rng(11)
    shapes = (rows, *model.input_shape), (rows, *model.output_shape)
    x, y = [rng.normal(size=shape) for shape in shapes] if data is None else data
    options = {"prior": rb.Normal(0.5), "likelihood": rb.Gaussian(noise), **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)
        return rb.Posterior(model, xp.asarray(x), xp.asarray(y), precision=precision, **options)
