"""What a log density of a network on data is made from, of `Posterior` and its masked form."""

# Shapes: P parameters, N rows, D inputs, J columns of y.

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.checks import FloatArray
from ribbit._arrays.columns import blocks
from ribbit._arrays.mapped import MappedRows, mapped
from ribbit._arrays.namespace import from_host, to_host
from ribbit._arrays.shards import DEFAULT_SHARDS, MOST_SHARDS, row_bounds
from ribbit._backends import dispatch
from ribbit._backends import precision as _precision
from ribbit._backends.codes import COLUMNS
from ribbit._backends.density_table import DensityTable, prior_constants
from ribbit.errors import ShapeError
from ribbit.models.layers._table import Parameter
from ribbit.models.model import Model
from ribbit.models.model import check as check_model
from ribbit.targets import likelihoods, prior_table, priors
from ribbit.targets.likelihoods import Array64, Likelihood
from ribbit.targets.prior_base import Prior, PriorLike
from ribbit.targets.prior_table import PriorTable
from ribbit.targets.priors import Normal
from ribbit.targets.ranks import Ranks, handshake, spaced, weights_of_all
from ribbit.targets.units import Units

if TYPE_CHECKING:
    import numpy.typing as npt

_SEEN_INPUTS, _SEEN_TARGETS = 512, 1 << 17  # rows at most that all ranks of a group see
# Inputs of a block, biases counted: a step mixes each weight with as many others, and a chain keeps
# a matrix.
_FEWEST_INPUTS, _MOST_INPUTS = 2, 65
_DIGESTS = {key: f"digest of the {key}" for key in ("model", "prior", "likelihood")}


@dataclass(frozen=True, eq=False)
class DensitySpec:
    """Checked arguments of a posterior, and the data where they are computed with."""

    model: Model  # as they were given
    likelihood: Likelihood
    prior: PriorLike
    log_noise: Prior | None  # prior of a learned noise
    table: PriorTable  # the priors of all parameters
    temperature: float
    likelihood_temperature: float
    dtype: np.dtype[Any]
    precision: str
    backend: dispatch.Backend
    x: FloatArray = field(repr=False)  # (N, D)
    y: FloatArray = field(repr=False)  # (N, J)
    flat: bool  # one output, whose y was (N,): predictions are (N,) too
    # (N,) float64 or None: what the log likelihood of each row has of y alone
    constants: Array64 | None = field(repr=False)
    units: Units | None  # of the user's data, where x and y are standardised; else None
    integrates: bool  # whether a sampler may integrate the last layer out where that pays
    # (N,) or None: how often the log likelihood of each row counts; None: once
    weights: FloatArray | None = field(repr=False)
    # into which all rows are cut; None: by shapes
    shards: int | None = field(default=None, kw_only=True)
    columns: tuple[str | int, ...] | None = field(default=None, kw_only=True)  # names, of a frame
    # with a group: who has which rows. All else here is of this rank's own.
    ranks: Ranks | None = field(default=None, repr=False, kw_only=True)
    # ((n, D), (m, J)) or None: with a group: inputs and targets of some rows of all ranks, evenly
    # spaced
    of_all: tuple[Any, Any] | None = field(default=None, repr=False, kw_only=True)

    @staticmethod
    def of(
        name: str,
        model: Model,
        x: Any,
        y: Any,
        prior: PriorLike,
        likelihood: Likelihood,
        temperature: float,
        likelihood_temperature: float,
        dtype: npt.DTypeLike | None,
        precision: str | None,
        units: Units | None = None,
        integrates: bool = True,
        weights: FloatArray | None = None,
        shards: int | None = None,
        columns: tuple[str | int, ...] | None = None,
    ) -> DensitySpec:
        """Check the arguments of `Posterior`; `name` stands in its errors."""
        check_model(name, model)
        x = mapped(x)
        prior = priors.check(name, prior)
        likelihood = likelihoods.check(name, likelihood)
        temperature = checks.positive(name, "temperature", temperature)
        likelihood_temperature = checks.positive(
            name, "likelihood_temperature", likelihood_temperature
        )
        chosen, how = _precision.resolve(name, dtype, precision)
        log_noise = log_noise_prior(name, likelihood)
        resolved = prior_table.resolve(
            name,
            prior,
            model.parameters,
            log_noise=log_noise,
            noises=likelihood.noises(model.output_shape),
            dtype=chosen,
        )
        backend = dispatch.backend_of_data(name, chosen, x=x, y=y)
        if resolved.scales is not None and backend.device is not None:
            raise ValueError(
                f"[{name}] expected data in host memory for learned scales of weights, got x on a "
                "device: use scales that are known there, such as Normal(1.0)"
            )
        if shards is not None:
            checks.integer(name, "shards", shards, minimum=1, maximum=MOST_SHARDS)
            if backend.device is not None:
                raise ValueError(
                    f"[{name}] expected data in host memory for shards=, got x on a device"
                )
        flat = getattr(y, "ndim", None) == 1 or np.ndim(y) == 1
        _precision.check_memory(name, how, backend.device)
        moved = None if units is None else functools.partial(units.inputs, name)
        rows = backend.rows(name, model.network, x, moved)
        y = y if units is None else units.targets(name, y)
        host = likelihood._targets(
            name, backend.given(name, "y", y), rows.shape[0], model.output_shape, chosen
        )
        targets = backend.own(host, y)
        weights = _weights_of(name, weights, rows, chosen, backend)
        for array in (rows, targets, weights):
            if isinstance(array, np.ndarray):
                array.flags.writeable = False
        return DensitySpec(
            model,
            likelihood,
            prior,
            log_noise,
            resolved,
            temperature,
            likelihood_temperature,
            chosen,
            how,
            backend,
            rows,
            targets,
            flat and targets.shape[1] == 1,
            likelihood._constants(host),
            units,
            integrates,
            weights,
            shards=shards,
            columns=columns,
        )

    def joined(self, name: str, group: Any) -> DensitySpec:
        """Return the spec of all rows of a group's ranks, given those of this rank."""
        shards = DEFAULT_SHARDS if self.shards is None else self.shards
        weights = weights_of_all(name, group, self.weights)
        own = dataclasses.replace(self, shards=shards, weights=weights)
        # In words first: digests say that something differs, not what.
        stated = {
            "dtype": own.dtype.name,
            "network": repr(own.model),
            "likelihood": repr(own.likelihood),
            "prior": repr(own.prior),
            "precision": own.precision,
            "kind of inputs": "bytes" if own.x.dtype == np.uint8 else "numbers",
            "dimensions of y": "1" if own.flat else "2",
            **{_DIGESTS.get(key, key): value for key, value in own._stated("").items()},
        }
        weight = own.total_rows
        ranks = handshake(name, group, shards, stated, own.own_rows, weight, own._digests)
        every_x, every_y = (-(-ranks.total // most) for most in (_SEEN_INPUTS, _SEEN_TARGETS))
        seen = spaced(ranks, own.x, every_x), spaced(ranks, own.y, every_y)
        return dataclasses.replace(own, ranks=ranks, of_all=seen)

    @property
    def seen(self) -> tuple[Any, Any]:
        """Rows of x and of y that warnings look at: all, or with a group some of all ranks."""
        return (self.x, self.y) if self.of_all is None else self.of_all

    def __reduce__(self) -> tuple[Any, ...]:
        # A backend cannot be pickled; it is found again from the data.
        if self.ranks is not None:
            raise TypeError(
                "[Posterior] expected a posterior without group= to pickle, got one whose rows lie "
                "on several ranks"
            )
        x = self.x.reshape((-1, *self.model.input_shape))
        y = self.y[:, 0] if self.flat else self.y
        terms = self.prior, self.likelihood, self.temperature, self.likelihood_temperature
        how = None, self.precision, None, self.integrates, self.weights, self.shards, self.columns
        return _again, (self.units, "Posterior", self.model, x, y, *terms, *how)

    @property
    def dim(self) -> int:
        """Number of parameters P, a learned noise and learned scales included."""
        return self.table.dim

    @property
    def parameter_groups(self) -> npt.NDArray[np.int64]:
        """Place (K,) of the first number of each array of parameters, ascending."""
        starts = [parameter.offset for parameter in self.model.parameters]
        starts += [self.model.dim] if self.likelihood.learns_noise else []
        scales = self.table.scales
        if scales is not None:
            starts += [self.dim - scales.count + array.first for array in scales.arrays]
        return np.array(starts, np.int64)

    @property
    def parameter_blocks(self) -> npt.NDArray[np.int64]:
        """Blocks (B, 3) of the weights of a layer and its biases: first number, inputs, outputs."""
        return blocks_of(self.model.parameters)

    @property
    def own_rows(self) -> int:
        """Number of data rows that are here."""
        return int(self.x.shape[0])

    @property
    def num_rows(self) -> int:
        """Number of data rows N, of all ranks."""
        return self.own_rows if self.ranks is None else self.ranks.total

    @property
    def total_rows(self) -> float:
        """Sum of the weights of the rows; N where they have none."""
        if self.ranks is not None:
            return self.ranks.weight
        return float(self.num_rows if self.weights is None else self.weights.sum(dtype=np.float64))

    def density(self, **options: Any) -> Any:
        """Return the native log density; options: those of `density_table`."""
        tables = self.density_table(**options)
        native = self.backend.density(tables, self.x, self.y, self.constants)
        if self.ranks is not None:
            native.join(self.ranks.group, self.shards, self.num_rows)
        elif self.shards is not None:
            native.set_shards(self.shards)
        return native

    def density_table(
        self,
        *,
        likelihood: Likelihood | None = None,
        prior: Array64 | None = None,  # (G, 6): prior table
        # (R,): masks are active, with these rates of the rows of the layer table
        rates: Array64 | None = None,
        learned: tuple[int, ...] = (),  # rows whose rates are learned
        precision: str | None = None,
    ) -> DensityTable:
        """Return what the log density is made of; what is given replaces what the spec says."""
        rows = self.table.rows if prior is None else prior
        term = (likelihood or self.likelihood)._table("Posterior", self.model.output_shape)
        return DensityTable(
            self.model.table,
            rows,
            prior_constants(rows),
            term,
            self.temperature,
            self.likelihood_temperature,
            rates,
            learned,
            precision or self.precision,
            self.centre(),
            scales=None if self.table.scales is None else self.table.scales.rows,
            weights=self.weights,
        )

    def rows(self, chosen: npt.NDArray[np.int64]) -> DensitySpec:
        """Return the same with the rows `chosen` (n,) alone, a copy of them."""
        xp = self.backend.xp
        places = from_host(xp, chosen)
        y = xp.take(self.y, places, axis=0)
        if isinstance(self.x, MappedRows):
            size = chosen.size * self.x.shape[1]
            checks.memory("Posterior.subset", size, self.x.dtype, f"{chosen.size} rows of a file")
            x = self.x[chosen]
        else:
            x = xp.take(self.x, places, axis=0)
        constants = None if self.constants is None else self.constants[chosen]
        weights = None if self.weights is None else self.weights[chosen]
        for array in (x, y, weights):
            if isinstance(array, np.ndarray):
                array.flags.writeable = False
        return dataclasses.replace(self, x=x, y=y, constants=constants, weights=weights)

    def centre(self) -> FloatArray | None:
        """Return what the prior is centred at as the backend takes it, None where all is 0."""
        if not self.table.centre.any():
            return None
        centre = np.array(self.table.centre)  # of its own: the check refuses a repeated number
        host = checks.data("Posterior", "mean of the prior", centre, self.dtype)
        return from_host(self.backend.xp, host)  # type: ignore[no-any-return]

    def temper(self, likelihood: Any, prior: Any) -> tuple[Any, Any]:
        """Return both parts of the log density (C,): likelihood / (T_l T) and prior / T."""
        scale = self.likelihood_temperature * self.temperature
        return likelihood / scale, prior / self.temperature

    def init(
        self,
        seed: checks.Seed = 0,
        chains: int | npt.ArrayLike | None = None,
        *,
        scheme: str = "he",
    ) -> FloatArray:
        """Draw a starting position: the model's `Model.init`, "log_noise" at 0, scales near it."""
        start = self.model.init(seed, chains, scheme=scheme, dtype=self.dtype)
        scales: list[Any] = []
        if self.table.scales is not None:
            start, *scales = self.table.scales.position(start)
        if noises := self.likelihood.noises(self.model.output_shape):
            noise = np.zeros((*start.shape[:-1], noises), dtype=self.dtype)
            start = np.concatenate([start, noise], axis=-1)
        start = np.concatenate([start, *scales], axis=-1)
        return from_host(self.backend.xp, start)  # type: ignore[no-any-return]

    @functools.cached_property
    def fingerprint(self) -> dict[str, str]:
        """What decides the log density and the bits of draws, part by part, as short texts."""
        return self._stated(self._data())

    def _stated(self, data: str) -> dict[str, str]:
        table = self.table
        return {
            "model": digest(self.model.describe()),
            "prior": digest(
                table.rows, table.centre, *([] if table.scales is None else [table.scales.rows])
            ),
            "likelihood": digest(self.likelihood.describe()),
            "temperature": repr(self.temperature),
            "likelihood temperature": repr(self.likelihood_temperature),
            "data": data,
            **({} if self.shards is None else {"shards": str(self.shards)}),
            "dtype": self.dtype.name,
            "instruction set": self.backend.instruction_set,
        }

    def _data(self) -> str:
        """Return the digest of all rows; with shards the same whatever ranks have them."""
        units = None if self.units is None else self.units.describe()
        if self.shards is None:
            return self._digest(slice(None), units)
        if self.ranks is not None:
            return digest(self.ranks.digests, units)
        return digest(self._digests(row_bounds(self.own_rows, self.shards, self.shards)), units)

    def _digests(self, bounds: list[int]) -> list[str]:
        """Return the digests of the rows between neighbouring bounds."""
        pairs = itertools.pairwise(bounds)
        return [self._digest(slice(low, high), None) for low, high in pairs]

    def _digest(self, rows: slice, units: Any) -> str:
        weights = [] if self.weights is None else [self.weights[rows]]
        x = self.x.part(rows) if isinstance(self.x, MappedRows) else to_host(self.x[rows, ...])
        return digest(x, to_host(self.y[rows, ...]), units, *weights)

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able description, without data."""
        return {
            "model": self.model.describe(),
            "likelihood": self.likelihood.describe(),
            "prior": priors.describe(self.prior),
            "log_noise_prior": None if self.log_noise is None else self.log_noise.describe(),
            "temperature": self.temperature,
            "likelihood_temperature": self.likelihood_temperature,
            "dtype": self.dtype.name,
            "precision": self.precision,
            "num_rows": self.num_rows,
            "flat": self.flat,
            **({} if self.columns is None else {"columns": list(self.columns)}),
            **({} if self.units is None else {"units": self.units.describe()}),
            **({} if self.table.scales is None else {"learned_scales": True}),
            "tables": self._tables(),
        }

    def _tables(self) -> dict[str, Any]:
        """Return what model, prior and likelihood compile to: what the C library reads."""
        likelihood = self.likelihood._table("describe", self.model.output_shape)
        return {
            "columns": list(COLUMNS),
            "layers": self.model.table.tolist(),
            "rates": self.model.rates.tolist(),
            "prior": [[*map(int, row[:3]), *row[3:].tolist()] for row in self.table.rows],
            "likelihood": [likelihood.kind, likelihood.scales[0], likelihood.constant]
            + (list(likelihood.scales) if len(likelihood.scales) > 1 else []),
            **({"centre": self.table.centre.tolist()} if self.table.centre.any() else {}),
        }


def _again(units: Units | None, *arguments: Any) -> DensitySpec:
    """Return a pickled spec, whose data are in their units already."""
    return dataclasses.replace(DensitySpec.of(*arguments), units=units)


def _weights_of(
    name: str, weights: Any, rows: Any, dtype: np.dtype[Any], backend: dispatch.Backend
) -> FloatArray | None:
    if weights is None:
        return None
    if backend.device is not None:
        raise ValueError(
            f"[{name}] expected data in host memory for sample_weight, got x on a device, whose "
            "kernels count every row once: repeat rows instead, or give temperatures"
        )
    if weights.shape[0] != rows.shape[0]:
        raise ShapeError(
            f"[{name}] expected sample_weight of shape ({rows.shape[0]},), got {weights.shape}"
        )
    return checks.data(name, "sample_weight", weights, dtype)


def digest(*parts: Any) -> str:
    """Return 32 hexadecimal digits of arrays and descriptions."""
    import hashlib  # not with ribbit: slow to load

    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, np.ndarray | MappedRows):
            found.update(f"{part.dtype.str}{part.shape}".encode())
            # Between two blocks Ctrl-C is served.
            for rows, _ in () if 0 in part.shape else blocks(part if part.ndim else part[None]):
                found.update(rows.data.cast("B"))
        else:
            found.update(json.dumps(part, sort_keys=True, default=str).encode())
    return found.hexdigest()


def log_noise_prior(function: str, likelihood: Likelihood) -> Prior | None:
    """Return the prior of a learned noise, None if no noise is learned."""
    if not likelihood.learns_noise:
        return None
    prior = getattr(likelihood, "log_noise_prior", None)
    return Normal(1.0) if prior is None else priors.check_one(function, "log_noise_prior", prior)


def blocks_of(parameters: Sequence[Parameter]) -> npt.NDArray[np.int64]:
    """Return (B, 3): first parameter, inputs and outputs of each block, ascending."""
    # The inputs of a block are those of a layer's weights, then 1 for its biases. The curvature in
    # the weights of a unit is, up to a factor, the second moment of these inputs (Martens and
    # Grosse 2015, "Optimizing neural networks with Kronecker-factored approximate curvature").
    # No block: more than 64 inputs besides biases, filters in groups, and embeddings, whose outputs
    # do not see all that the array's axes hold.
    found: list[list[int]] = []
    layer = ""
    for parameter in parameters:
        outputs = parameter.shape[-1]
        inputs = math.prod(parameter.shape[:-1])
        own, _, what = parameter.name.rpartition(".")
        goes_on = (
            own == layer
            and what in ("recurrent", "bias")
            and found[-1][2] == outputs
            and found[-1][0] + found[-1][1] * outputs == parameter.offset
        )
        if goes_on:
            found[-1][1] += inputs
        elif parameter.is_weight and inputs == parameter.fan_in:
            found.append([parameter.offset, inputs, outputs])
            layer = own
        else:
            layer = ""
    kept = [block for block in found if _FEWEST_INPUTS <= block[1] <= _MOST_INPUTS]
    return np.array(kept, np.int64).reshape(-1, 3)
