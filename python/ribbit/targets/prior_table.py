"""The prior table of a target: every parameter with its prior."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays.warning import warn
from ribbit._backends.density_table import prior_constants
from ribbit.errors import PriorWarning
from ribbit.models.layers import Parameter as NetworkParameter
from ribbit.targets.prior_base import LOG_NOISE, Means, Parameter, Prior, PriorLike, ScalePrior
from ribbit.targets.scales import ScaleBuilder, ScaleTable

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class PriorTable:
    """Priors resolved for the parameters of one target."""

    # (G, 6) float64: offset, size, kind, a, b, c; the segments cover the parameters once
    rows: npt.NDArray[np.float64]
    # (G,) float64, standard deviation of each segment, or its scale if the sd is infinite
    spreads: npt.NDArray[np.float64]
    means: tuple[Means, ...]  # G means, each a float or an array of the segment's size
    # what the core subtracts before it takes the density: the means, but 0 for the log of a scale
    centres: tuple[Means, ...]
    # the one sd of all network parameters, None when they differ or scales are learned; "log_noise"
    # not counted
    shared: float | None
    # learned scales of weights; their logarithms are the last parameters, their weights z
    scales: ScaleTable | None = None

    @functools.cached_property
    def dim(self) -> int:
        """Number of parameters P."""
        return int(self.rows[:, 1].sum())

    @property
    def spread(self) -> npt.NDArray[np.float64]:
        """The standard deviations of all parameters (P,), read-only."""
        return self._vector(self.spreads.tolist())

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        """The means of all parameters (P,), read-only."""
        return self._vector(self.means)

    @property
    def centre(self) -> npt.NDArray[np.float64]:
        """The centres of all parameters (P,), read-only."""
        return self._vector(self.centres)

    def _vector(self, values: Sequence[Means]) -> npt.NDArray[np.float64]:
        """Return the values of segments as (P,); if they all are one number, without memory."""
        if all(isinstance(value, float) for value in values) and len({*values}) == 1:
            return np.broadcast_to(np.float64(values[0]), (self.dim,))
        sizes = self.rows[:, 1].astype(np.int64)
        vector = np.concatenate([*map(np.broadcast_to, values, sizes)])
        vector.flags.writeable = False
        return vector


def patterns_of(prior: PriorLike) -> Mapping[str, Prior]:
    """Return a prior as patterns of names."""
    return {"*": prior} if isinstance(prior, Prior) else prior


def chosen(patterns: Mapping[str, Prior], name: str) -> tuple[str, Prior | None]:
    """Return the first pattern that a parameter's name matches and its prior, "" and None."""
    return next(((k, v) for k, v in patterns.items() if fnmatchcase(name, k)), ("", None))


def warn_of_hidden(function: str, prior: PriorLike, parameters: Iterable[Parameter]) -> None:
    """Warn of patterns behind one that matches all that they do and more: they change nothing."""
    # Not of one behind several that have all of its parameters together, or the same: so stands
    # what is meant for the rest, of a network that has no rest.
    names = [p.name for p in parameters]
    before: list[tuple[str, set[str]]] = []
    for pattern in patterns_of(prior):
        found = {name for name in names if fnmatchcase(name, pattern)}
        wider = next((other for other, had in before if found < had), None) if found else None
        if wider is not None:
            warn(
                f"[{function}] expected patterns of prior with the particular before the general, "
                f"got {pattern!r} behind {wider!r}, which matches all that it does: the first that "
                f"matches wins, so {pattern!r} changes nothing. Put it first",
                PriorWarning,
            )
        before.append((pattern, found))


def resolve(
    function: str,
    # one prior for all, or patterns (fnmatch, case-sensitive); the first that matches wins
    prior: PriorLike,
    parameters: Iterable[Parameter],  # parameters with name, offset, size and fan-in, in flat order
    *,
    # prior of the extra last parameters "log_noise"; None when there are none. Only an entry of
    # exactly that name in `prior` replaces it: no pattern reaches it.
    log_noise: Prior | None = None,
    noises: int = 1,  # how many there are
    # dtype of the positions, in which squares of the scales must be normal numbers. None: they are
    # not checked.
    dtype: np.dtype[Any] | None = None,
) -> PriorTable:
    """Give every parameter its prior."""
    patterns = patterns_of(prior)
    network = list(parameters)
    for pattern in patterns:
        if pattern != LOG_NOISE and not any(fnmatchcase(p.name, pattern) for p in network):
            names = ", ".join(p.name for p in network)
            raise ValueError(
                f"[{function}] expected patterns of prior to match one of {names}, got {pattern!r}"
            )
    known = {p.name for p in network} | {LOG_NOISE}
    for one in patterns.values():
        unknown = [name for name in one._named() if name not in known]
        if unknown:
            raise ValueError(
                f"[{function}] expected means of parameters of the model, got one of "
                f"{unknown[0]!r}: its parameters are {', '.join(p.name for p in network)}"
            )
    priors: list[tuple[str, Any]] = []  # name and prior of each row
    rows: list[tuple[float, ...]] = []
    sizes: list[int] = []
    spreads: list[float] = []
    means: list[Means] = []
    centres: list[Means] = []
    dim = sum(p.size for p in network)
    builder = ScaleBuilder()
    for p in network:
        pattern, own = chosen(patterns, p.name)
        if own is None:
            raise ValueError(
                f"[{function}] expected a prior for {p.name!r}, got patterns {list(patterns)}"
            )
        if isinstance(own, ScalePrior):
            raise ValueError(
                f"[{function}] expected a prior of weights for {p.name!r}, got {own!r}, which "
                "is of a scale: it goes into log_noise_prior= or Normal(scale=)"
            )
        learned = own._learned_scales()
        if learned is not None:
            builder.add(function, p, pattern, learned)
        priors.append((p.name, own))
        rows.append((p.offset, p.size, own.kind, *own._table_values(p.fan_in)))
        sizes.append(p.size)
        spreads.append(own._spread(p.fan_in))
        means.append(own._means(function, p, dim))
        centres.append(own._centres(function, p, dim))
    shared = spreads[0] if len(set(spreads)) == 1 else None
    if log_noise is not None:
        extra = patterns.get(LOG_NOISE, log_noise)
        if extra._learned_scales() is not None:
            raise ValueError(
                f"[{function}] expected a prior of {LOG_NOISE!r} of a known scale, got {extra!r}"
            )
        priors.append((LOG_NOISE, extra))
        parameter = NetworkParameter(LOG_NOISE, (noises,), 0, 1, False)  # as if alone in a model
        rows.append((dim, noises, extra.kind, *extra._table_values()))
        sizes.append(noises)
        spreads.append(extra._spread())
        means.append(extra._means(function, parameter, noises))
        centres.append(extra._centres(function, parameter, noises))
    scales = builder.table()
    for array in () if scales is None else scales.arrays:
        shared = None
        priors.append((array.name, array.prior))
        rows.append((sum(sizes), array.count, array.prior.kind, *array.prior._table_values()))
        sizes.append(array.count)
        spreads.append(array.prior._spread())
        means.append(array.prior.log_mean)
        centres.append(0.0)
    table = np.array(rows, dtype=np.float64)
    if dtype is not None:
        _check_range(function, priors, table, np.array(spreads), dtype)
    return PriorTable(table, np.array(spreads), tuple(means), tuple(centres), shared, scales)


def _check_range(
    function: str,
    priors: list[tuple[str, Any]],
    table: npt.NDArray[np.float64],
    spreads: npt.NDArray[np.float64],
    dtype: np.dtype[Any],
) -> None:
    """Raise unless variances and constants of the densities are normal numbers of dtype."""
    # Masses of HMC and steps of BAOAB are variances.
    limits = np.finfo(dtype)
    with np.errstate(over="ignore", under="ignore"):
        constants = prior_constants(table)
        fits = np.isfinite(constants[:, :4].astype(dtype)).all(axis=1) & np.isfinite(
            constants[:, 4]
        )
        variances = spreads**2
        fits &= (variances >= limits.tiny) & (variances <= limits.max)
    if not fits.all():
        name, prior = priors[int(np.argmin(fits))]
        wider = " or use dtype='float64'" if dtype == np.float32 else ""
        raise ValueError(
            f"[{function}] expected a prior of {name!r} whose squared scale is a {dtype} number "
            f"between {limits.tiny:.1g} and {limits.max:.1g}, got {prior!r}: change the scale (or "
            f"the units of the data){wider}"
        )
