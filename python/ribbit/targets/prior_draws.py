"""Draws of the prior of a target, for predictions before any data are seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import from_host
from ribbit._backends.codes import PRIORS
from ribbit.results.prediction import Prediction
from ribbit.targets.likelihoods import Array64
from ribbit.targets.prior_table import PriorTable

_Generators: TypeAlias = "tuple[np.random.Generator, np.random.Generator]"


def _scale_mixture(rng: _Generators, shape: tuple[int, int], *how: float) -> Array64:
    weight, first, second = how
    return np.where(rng[1].random(shape) < weight, first, second) * rng[0].standard_normal(shape)


def _gamma_precision(rng: _Generators, shape: tuple[int, int], *how: float) -> Array64:
    # A gamma variate of concentration a is one of a + 1 times u**(1 / a): no small a underflows.
    a, b, _ = how
    log_gamma = np.log(rng[0].standard_gamma(a + 1.0, shape)) + np.log1p(-rng[1].random(shape)) / a
    logs: Array64 = 0.5 * (np.log(b) - log_gamma)
    return logs


# Draws of a parameter around its centre, by the kind of its prior and the numbers of its row.
_DRAWS: dict[str, Callable[..., Array64]] = {
    "Normal": lambda rng, shape, a, *_: a * rng[0].standard_normal(shape),
    "Laplace": lambda rng, shape, a, *_: rng[0].laplace(0.0, a, shape),
    "StudentT": lambda rng, shape, df, a, _: a * rng[0].standard_t(df, shape),
    "Logistic": lambda rng, shape, a, *_: rng[0].logistic(0.0, a, shape),
    "ScaleMixture": _scale_mixture,
    "GammaPrecision": _gamma_precision,
    "HalfNormal": lambda rng, shape, a, *_: np.log(np.abs(a * rng[0].standard_normal(shape))),
    "HalfCauchy": lambda rng, shape, a, *_: np.log(np.abs(a * rng[0].standard_cauchy(shape))),
}


def drawn(table: PriorTable, count: int, seed: int, dtype: np.dtype[Any]) -> Any:
    """Return positions (count, P) from the untempered prior; row s depends on (seed, s) alone."""
    out = np.empty((count, table.dim), dtype)
    names = {code: name for name, code in PRIORS.items()}
    seeds = np.random.SeedSequence(seed).spawn(len(table.rows))
    for row, centre, one in zip(table.rows, table.centres, seeds, strict=True):
        offset, size, kind = (int(value) for value in row[:3])
        first, second = map(np.random.default_rng, one.spawn(2))
        made = _DRAWS[names[kind]]((first, second), (count, size), *row[3:].tolist())
        with np.errstate(over="ignore"):
            out[:, offset : offset + size] = centre + made
    return out


def predicted(
    name: str,
    target: Any,
    table: PriorTable,
    x: Any,
    num_draws: int,
    seed: checks.Seed,
    keep: bool,
) -> Prediction:
    """Return what draws of the prior predict at `x`; see `Posterior.prior_predictive`."""
    count = checks.integer(name, "num_draws", num_draws, minimum=1, maximum=2**31 - 1)
    number = checks.seed(name, seed)
    what = f"{count} draws of {table.dim} parameters"
    checks.memory(name, 2 * count * table.dim, np.float64, what)
    predictive = target.network_predictive
    predictive.check_inputs(x)
    positions = from_host(target.array_namespace, drawn(table, count, number, target.dtype))
    return Prediction(predictive, x, positions=positions[None, ...], keep=keep)
