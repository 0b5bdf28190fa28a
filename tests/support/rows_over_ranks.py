"""The same rows in one process and over ranks that are threads."""

from collections.abc import Callable
from typing import Any

import numpy as np

import ribbit as rb
from tests.support.five_networks import NETWORKS
from tests.support.ranks import on_ranks

ROWS = 333  # of 11 panels, the last one of 13 rows


def data(network: str = "perceptron") -> tuple[Any, np.ndarray, np.ndarray]:
    """Return a network and rows for it."""
    model = NETWORKS[network]
    rng = np.random.default_rng(7)
    shape = (ROWS, *model.input_shape)
    x = rng.integers(0, 5, shape).astype(float) if network == "cnn-lstm" else rng.normal(size=shape)
    return model, x, rng.normal(size=(ROWS, *model.output_shape))


def posterior(
    group: Any = None, network: str = "perceptron", shards: int = 16, **options: Any
) -> rb.Posterior:
    """Return the posterior of all rows, or a rank's share of it."""
    model, x, y = data(network)
    x, y = options.pop("x", x), options.pop("y", y)
    mine = slice(None) if group is None else group.rows(ROWS, shards)
    weights = options.pop("weights", None)
    given = {"prior": rb.Normal(0.5), "likelihood": rb.Gaussian(), "marginalize": None, **options}
    if weights is not None:
        given["sample_weight"] = weights[mine]
    return rb.Posterior(model, x[mine], y[mine], group=group, shards=shards, **given)


def same_on_ranks(ranks: int, found: Callable[[Any], list[np.ndarray]]) -> None:
    """Hold what each of some ranks finds to what one process finds, bit by bit."""
    expected = found(None)
    for one in on_ranks(ranks, found):
        if isinstance(one, BaseException):
            raise one
        for got, wanted in zip(one, expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
