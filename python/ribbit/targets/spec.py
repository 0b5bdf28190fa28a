"""What a log density of a network on data is made from; `Posterior` and its masked form have one.

Shapes: P parameters, N rows, D inputs, J columns of y.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.checks import FloatArray
from ribbit._arrays.namespace import from_host, to_host
from ribbit._backends import dispatch
from ribbit._backends import precision as _precision
from ribbit._backends.density_table import DensityTable, prior_constants
from ribbit.models.model import Model
from ribbit.targets import likelihoods, prior_table, priors
from ribbit.targets.likelihoods import Array64, Likelihood
from ribbit.targets.prior_base import Prior, PriorLike
from ribbit.targets.prior_table import PriorTable
from ribbit.targets.priors import Normal
from ribbit.targets.units import Units

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["DensitySpec", "digest"]


@dataclass(frozen=True, eq=False)
class DensitySpec:
    """Checked arguments of a posterior, and the data where they are computed with.

    Attributes
    ----------
    model, likelihood, prior
        As they were given.
    log_noise : Prior or None
        Prior of a learned noise.
    table : PriorTable
        The priors of all parameters.
    temperature, likelihood_temperature : float
    dtype : numpy dtype
    precision : str
    backend : Cpu or Cuda
    x : (N, D) array
    y : (N, J) array
    constants : (N,) float64 NumPy array or None
        What the log likelihood of each row has of y alone.
    """

    model: Model
    likelihood: Likelihood
    prior: PriorLike
    log_noise: Prior | None
    table: PriorTable
    temperature: float
    likelihood_temperature: float
    dtype: np.dtype[Any]
    precision: str
    backend: dispatch.Backend
    x: FloatArray = field(repr=False)
    y: FloatArray = field(repr=False)
    flat: bool  # one output, whose y was (N,): predictions are (N,) too
    constants: Array64 | None = field(repr=False)
    units: Units | None  # of the user's data, where x and y are standardised; else None
    integrates: bool  # whether a sampler may integrate the last layer out where that pays

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
    ) -> DensitySpec:
        """Check the arguments of `Posterior`; `name` stands in its errors.

        units: those that x and y were in before they were standardised. integrates: whether a
        sampler may integrate the last layer out.
        """
        if not isinstance(model, Model):
            raise TypeError(f"[{name}] expected model as a Model, got {checks.summary(model)}")
        prior = priors.check(name, prior)
        likelihood = likelihoods.check(name, likelihood)
        temperature = checks.positive(name, "temperature", temperature)
        likelihood_temperature = checks.positive(
            name, "likelihood_temperature", likelihood_temperature
        )
        chosen, how = _precision.resolve(name, dtype, precision)
        log_noise = _log_noise_prior(name, likelihood)
        resolved = prior_table.resolve(name, prior, model.parameters, log_noise=log_noise)
        resolved.spread.flags.writeable = resolved.mean.flags.writeable = False
        backend = dispatch.backend_of_data(name, chosen, x=x, y=y)
        if resolved.scales is not None and backend.device is not None:
            raise ValueError(
                f"[{name}] expected data in host memory for learned scales of weights, got x on a "
                "device: use scales that are known there, such as Normal(1.0)"
            )
        flat = getattr(y, "ndim", None) == 1 or np.ndim(y) == 1
        _precision.check_memory(name, how, backend.device)
        rows = backend.rows(name, model.network, x)
        host = likelihood.targets(
            name, backend.given(name, "y", y), rows.shape[0], model.output_shape, chosen
        )
        targets = backend.own(host, y)
        for array in (rows, targets):
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
            likelihood.constants(host),
            units,
            integrates,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A backend cannot be pickled; it is found again from the data.
        x = self.x.reshape((-1, *self.model.input_shape))
        y = self.y[:, 0] if self.flat else self.y
        terms = self.prior, self.likelihood, self.temperature, self.likelihood_temperature
        how = None, self.precision, self.units, self.integrates
        return DensitySpec.of, ("Posterior", self.model, x, y, *terms, *how)

    @property
    def dim(self) -> int:
        """Number of parameters P, a learned noise and learned scales included."""
        return int(self.table.mean.size)

    @property
    def num_rows(self) -> int:
        """Number of data rows N."""
        return int(self.x.shape[0])

    def density(
        self,
        *,
        likelihood: Likelihood | None = None,
        prior: Array64 | None = None,
        rates: Array64 | None = None,
        learned: tuple[int, ...] = (),
        precision: str | None = None,
    ) -> Any:
        """Return the native log density; what is given replaces what the spec says.

        Parameters
        ----------
        likelihood : Likelihood, optional
        prior : (G, 6) array, optional
            Prior table.
        rates : (R,) array, optional
            Masks are active, with these rates of the rows of the layer table.
        learned : tuple of int
            Rows whose rates are learned.
        precision : str, optional
        """
        rows = self.table.rows if prior is None else prior
        term = (likelihood or self.likelihood).table("Posterior", self.model.output_shape)
        tables = DensityTable(
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
        )
        return self.backend.density(tables, self.x, self.y, self.constants)

    def rows(self, chosen: npt.NDArray[np.int64]) -> DensitySpec:
        """Return the same with the rows `chosen` (n,) alone, a copy of them."""
        xp = self.backend.xp
        places = from_host(xp, chosen)
        x, y = (xp.take(array, places, axis=0) for array in (self.x, self.y))
        for array in (x, y):
            if isinstance(array, np.ndarray):
                array.flags.writeable = False
        constants = None if self.constants is None else self.constants[chosen]
        return dataclasses.replace(self, x=x, y=y, constants=constants)

    def centre(self) -> FloatArray | None:
        """Return what the prior is centred at as the backend takes it, None where all is 0."""
        if not self.table.centre.any():
            return None
        host = checks.data("Posterior", "mean of the prior", self.table.centre, self.dtype)
        return from_host(self.backend.xp, host)  # type: ignore[no-any-return]

    def temper(self, likelihood: Any, prior: Any) -> tuple[Any, Any]:
        """Return both parts of the log density (C,): likelihood / (T_l T) and prior / T."""
        scale = self.likelihood_temperature * self.temperature
        return likelihood / scale, prior / self.temperature

    def init(
        self, seed: int = 0, chains: int | npt.ArrayLike | None = None, *, scheme: str = "he"
    ) -> FloatArray:
        """Draw a starting position: the model's `Model.init`, "log_noise" at 0, scales near it."""
        start = self.model.init(seed, chains, scheme=scheme, dtype=self.dtype)
        scales: list[Any] = []
        if self.table.scales is not None:
            start, *scales = self.table.scales.position(start)
        if self.likelihood.learns_noise:
            noise = np.zeros((*start.shape[:-1], 1), dtype=self.dtype)
            start = np.concatenate([start, noise], axis=-1)
        start = np.concatenate([start, *scales], axis=-1)
        return from_host(self.backend.xp, start)  # type: ignore[no-any-return]

    @functools.cached_property
    def fingerprint(self) -> dict[str, str]:
        """What decides the log density and the bits of draws, part by part, as short texts."""
        table = self.table
        return {
            "model": digest(self.model.describe()),
            "prior": digest(
                table.rows, table.centre, *([] if table.scales is None else [table.scales.rows])
            ),
            "likelihood": digest(self.likelihood.describe()),
            "temperature": repr(self.temperature),
            "likelihood temperature": repr(self.likelihood_temperature),
            "data": digest(
                to_host(self.x),
                to_host(self.y),
                None if self.units is None else self.units.describe(),
            ),
            "dtype": self.dtype.name,
            "instruction set": self.backend.instruction_set,
        }

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
            **({} if self.units is None else {"units": self.units.describe()}),
            **({} if self.table.scales is None else {"learned_scales": True}),
        }


def digest(*parts: Any) -> str:
    """Return 32 hexadecimal digits of arrays and descriptions."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, np.ndarray):
            found.update(f"{part.dtype.str}{part.shape}".encode())
            found.update(np.ascontiguousarray(part).data.cast("B"))
        else:
            found.update(json.dumps(part, sort_keys=True, default=str).encode())
    return found.hexdigest()


def _log_noise_prior(function: str, likelihood: Likelihood) -> Prior | None:
    if not likelihood.learns_noise:
        return None
    prior = getattr(likelihood, "log_noise_prior", None)
    if prior is None:
        return Normal(1.0)
    if not isinstance(prior, Prior):
        got = checks.summary(prior)
        raise TypeError(f"[{function}] expected log_noise_prior as a prior, got {got}")
    return prior
