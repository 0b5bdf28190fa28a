"""Draws as the ``xarray.DataTree`` of ArviZ."""

# Shapes: C chains, D draws per chain, P parameters, N rows, K outputs.

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import library_of, namespace, to_host
from ribbit._arrays.packages import needing
from ribbit.errors import MissingError
from ribbit.protocols import Array
from ribbit.results import observations
from ribbit.results.lazy import Numbers
from ribbit.results.running import by_chain, inputs, join, of_draws, same_rows
from ribbit.results.zarr_group import attributes

if TYPE_CHECKING:
    import numpy.typing as npt

_NAME = "Draws.to_datatree"
_ROW = "row"
_OF_DRAWS = ("posterior", "sample_stats", "warmup_posterior", "warmup_sample_stats")

# Axes of a parameter block, the last one first: what it gives, what it takes, where.
_AXES = ("out", "in", "place", "column")


class Blocks(NamedTuple):
    """Positions as named arrays (C, D, ...), the dimensions behind the first two, their layers."""

    arrays: dict[str, npt.NDArray[Any]]
    dims: dict[str, list[str]]
    layers: dict[str, str]


def to_datatree(draws: Any, x: Any, y: Any, predict_at: Any, seed: checks.Seed) -> Any:
    """Return draws as an ArviZ ``DataTree``; see `ribbit.Draws.to_datatree`."""
    with needing(_NAME, "arviz_base"):
        from arviz_base import from_dict
    key = checks.seed(_NAME, seed)
    if (x is None) != (y is None):
        given = "y alone" if x is None else "x alone (predict_at= takes new inputs)"
        raise ValueError(f"[{_NAME}] expected x and y of the observed rows, got {given}")
    names = getattr(draws.predictive, "columns", None)
    x, predict_at = (checks.matched(_NAME, rows, names) for rows in (x, predict_at))
    blocks = _blocks(draws, draws.positions)
    groups: dict[str, dict[str, Any]] = {
        "posterior": blocks.arrays,
        "sample_stats": {k: to_host(v) for k, v in draws.stats.items()},
    }
    if draws.warmup_positions is not None and draws.warmup_stats is not None:
        groups["warmup_posterior"] = _blocks(draws, draws.warmup_positions).arrays
        groups["warmup_sample_stats"] = {k: to_host(v) for k, v in draws.warmup_stats.items()}
    # A group of statistics that were never written, or positions that were not kept.
    groups = {
        name: group
        for name, group in groups.items()
        if group and all(values.shape[1] > 0 for values in group.values())
    }
    if x is not None:
        groups |= _observed(draws, x, y, key)
    if predict_at is not None:
        groups["predictions"] = {"y": _draws_of_y(draws, predict_at, key)}
        groups["predictions_constant_data"] = {"x": _host(predict_at)}
    return _convert(from_dict, draws, groups, blocks)


def _blocks(draws: Any, positions: Array) -> Blocks:
    """Split positions (C, D, P) by layer; one block "theta" where nobody knows the layers."""
    host = to_host(positions)
    unravel = getattr(draws.predictive, "unravel", None)
    if unravel is None:
        return Blocks({"theta": host}, {"theta": ["theta_dim"]}, {})
    arrays = {name: np.asarray(values) for name, values in unravel(host).items()}
    dims = {
        name: [f"{name}_{_axis(i)}" for i in range(values.ndim - 2)][::-1]
        for name, values in arrays.items()
    }
    stack = getattr(getattr(draws.predictive, "model", None), "layers", ())
    kinds = {
        name: type(stack[int(index)]).__name__
        for name in arrays
        for index in [name.partition(".")[0]]
        if index.isdigit() and int(index) < len(stack)
    }
    return Blocks(arrays, dims, kinds)


def _axis(i: int) -> str:
    return _AXES[i] if i < len(_AXES) else f"axis{i}"


def _check(draws: Any, x: Any) -> tuple[Any, Any]:
    """Return what predicts at x, and x as an array, or raise why nothing does."""
    if draws.predictive is None:
        raise TypeError(
            f"[{_NAME}] expected draws of a target with predictions, such as Posterior, for data "
            "in the tree, got a target without `predictive`"
        )
    if draws.positions.shape[1] == 0:
        raise MissingError(f"[{_NAME}] expected kept draws for data in the tree, got none")
    draws.predict(x)  # checks the inputs
    rows, count = inputs(_NAME, x, draws.predictive), math.prod(draws.positions.shape[:2])
    checks.memory(_NAME, count * len(rows), np.float64, f"{count} draws x {len(rows)} rows")
    return draws.predictive, rows


def _observed(draws: Any, x: Any, y: Any, key: int) -> dict[str, dict[str, Any]]:
    """Log likelihood (C, D, N), draws of y at the observed rows, and the rows themselves."""
    predictive, x = _check(draws, x)
    same_rows(_NAME, y, x)

    def density(numbers: Numbers, theta: Array) -> npt.NDArray[Any]:
        parts = of_draws(predictive, "log_likelihood", numbers, theta, x, y)
        return np.concatenate([to_host(part) for part in parts])

    drawn, given = _draws_of_y(draws, x, key), _host(y)
    return {
        "log_likelihood": {"y": by_chain(draws.positions, len(y), density)},
        "posterior_predictive": {"y": drawn},
        # of a single output both are without its axis
        "observed_data": {"y": given.reshape(given.shape[: drawn.ndim - 2])},
        "constant_data": {"x": _host(x)},
    }


def _draws_of_y(draws: Any, x: Any, key: int) -> npt.NDArray[Any]:
    """One y of every draw, its noise included: (C, D, N), or (C, D, N, K) for K > 1 outputs."""
    predictive, x = _check(draws, x)

    def one_each(numbers: Numbers, theta: Array) -> npt.NDArray[Any]:
        parts = of_draws(predictive, "predictive", numbers, theta, x)
        terms = join(namespace(theta), list(parts), axis=0)
        xp = namespace(terms.values)
        return to_host(observations.sample(xp, predictive.kind, terms, key, numbers))

    drawn = by_chain(draws.positions, len(x), one_each)
    return drawn[..., 0] if drawn.shape[-1] == 1 else drawn


def _host(values: Any) -> npt.NDArray[Any]:
    """Return data (N, ...) on the host."""
    return to_host(values) if library_of(values) is not None else np.asarray(values)


def _convert(from_dict: Any, draws: Any, groups: dict[str, Any], blocks: Blocks) -> Any:
    """Name dimensions and coordinates, and build the tree."""
    attrs = attributes(draws)
    chains = list(range(draws.positions.shape[0]))
    coords = {"chain": draws.settings.get("chains", chains)}
    known = {name: group for name, group in groups.items() if name in _OF_DRAWS}
    with warnings.catch_warnings():
        # More chains than draws is no mistake here.
        warnings.filterwarnings("ignore", message="Found chain dimension to be longer")
        tree = from_dict(
            known,
            dims=blocks.dims,
            coords=coords,
            attrs={"/": attrs, "posterior": attrs} if "posterior" in known else {"/": attrs},
            save_warmup=True,
        )
        # y has other dimensions in each group: every group is converted by itself
        for name in [name for name in groups if name not in known]:
            dims = _dims(name, groups[name])
            part = from_dict({name: groups[name]}, dims=dims, pred_dims=dims, coords=coords)
            tree[name] = part[name]
    for group in ("posterior", "warmup_posterior"):
        for name, layer in blocks.layers.items() if group in tree.children else ():
            tree[group][name].attrs["layer"] = layer
    return tree


def _dims(name: str, group: dict[str, npt.NDArray[Any]]) -> dict[str, list[str]]:
    """Dimensions of inputs and of y, without those of chains and draws."""
    sampled = name in ("log_likelihood", "posterior_predictive", "predictions")
    inner = {"x": "input", "y": "output"}
    return {
        key: [_ROW, *(f"{inner[key]}{i or ''}" for i in range(values.ndim - 1 - 2 * sampled))]
        for key, values in group.items()
    }
