"""The native core on NumPy arrays: data rows, log densities, forward passes."""

# Shapes: S samples, P parameters, N rows, K outputs. `Cpu` has the methods of
# ``cuda.backend.Cuda``.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ribbit import _core
from ribbit._arrays import checks, overrides
from ribbit._arrays.checks import check_rows, row_blocks
from ribbit._arrays.mapped import MappedRows
from ribbit._arrays.positions import host_position
from ribbit._backends.density_table import DensityTable, LikelihoodTable, NetworkTable

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class Cpu:
    """Computes with NumPy arrays of one dtype, float32 or float64."""

    dtype: np.dtype[Any]  # float32 or float64, of positions, outputs and gradients
    xp: ClassVar[ModuleType] = np
    device: ClassVar[None] = None

    @property
    def instruction_set(self) -> str:
        """Which kernels compute: the bits of draws depend on it."""
        return _core.isa()

    def rows(self, function: str, network: NetworkTable, x: Any, moved: Any = None) -> Any:
        """Return data rows as a finite flat (N, D) copy in the dtype, or in uint8 for images."""
        # `MappedRows` stay mapped. moved: makes other numbers of rows.
        stored = isinstance(x, MappedRows)
        array = x if stored else checks.numeric(function, "x", x)
        check_rows(function, array.shape, network.input_shape, checks.summary(array))
        if stored:
            return self._mapped(function, network, x if moved is None else moved(x))
        if array.dtype == np.uint8 and len(network.input_shape) == 3:
            return np.array(array, order="C").reshape(array.shape[0], -1)
        flat = checks.data(function, "x", array, self.dtype, moved).reshape(array.shape[0], -1)
        blocks = row_blocks(*flat.shape)
        _check_tokens(function, network, ((part.start, flat[part]) for part in blocks))
        return flat

    def _mapped(self, function: str, network: NetworkTable, x: MappedRows) -> MappedRows:
        images = x.dtype == np.uint8 and len(network.input_shape) == 3
        flat = x.reshape((x.shape[0], -1))
        if x.checked and (images or x.dtype == self.dtype):
            return flat  # of a posterior that comes from elsewhere
        if not images:
            flat = flat.read_as(self.dtype)
            flat.check_finite(function, "x")
        _check_tokens(function, network, flat.blocks())
        return flat.known()

    def given(self, function: str, name: str, array: Any) -> Any:
        """Return an argument that comes with the backend's arrays as a host array to check."""
        del function, name
        return array

    def own(self, checked: npt.NDArray[Any], given: Any) -> npt.NDArray[Any]:
        """Return checked host data (N, J) as an array of the backend."""
        del given
        return checked

    def density(
        self,
        tables: DensityTable,
        x: Any,
        y: npt.NDArray[Any],
        constants: npt.NDArray[np.float64] | None = None,
    ) -> Any:
        """Return the native log density of rows x (N, D) and targets y (N, J)."""
        del constants
        masked, last = tables.rates is not None, tables.integrated
        return _core.LogDensity(
            tables.table,
            np.zeros(len(tables.table)) if tables.rates is None else tables.rates,
            tables.prior,
            tables.likelihood.kind,
            tables.likelihood.scales,
            tables.likelihood.constant,
            x.parts(images=x.dtype == np.uint8) if isinstance(x, MappedRows) else x,
            y,
            tables.temperature,
            tables.likelihood_temperature,
            masked,
            bool(tables.learned),
            tables.centre,
            None if last is None else (last.bias, last.alone, last.sd, last.mean),
            tables.scales,
            tables.weights,
        )

    def position(self, function: str, theta: Any, dim: int) -> tuple[npt.NDArray[Any], bool]:
        """Return parameters (dim,) or (S, dim) as (S, dim), and whether they were (dim,)."""
        return host_position(function, "theta", theta, self.dtype, dim)

    def stored(self, theta: npt.NDArray[Any], scales: Any = None) -> Any:
        """Return weights (C, D, P), or positions of `scales` (K, 8), as samples, draw by draw."""
        return _core.WeightSource.stored(np.ascontiguousarray(theta), scales)

    def drawn(
        self, mean: npt.NDArray[Any], scale: npt.NDArray[Any], seed: int, scales: Any = None
    ) -> Any:
        """Return normal weights or positions, drawn while they are used, as samples."""
        mean, scale = (np.ascontiguousarray(a, self.dtype) for a in (mean, scale))
        return _core.WeightSource.drawn(mean, scale, seed, scales)

    def scaled_weights(
        self, theta: npt.NDArray[Any], scales: npt.NDArray[np.float64]
    ) -> npt.NDArray[Any]:
        """Return what learned scales (K, 8) make of positions (..., P), as these."""
        flat = np.ascontiguousarray(theta).reshape(-1, theta.shape[-1])
        return _core.scaled_weights(flat, scales).reshape(theta.shape)

    def masked(
        self,
        theta: npt.NDArray[Any],
        rates: Sequence[float],
        seed: int,
        *,
        shared: bool,
        first_row: int,
    ) -> Any:
        """Return one weight vector (P,) under masks as samples; the network has their rates."""
        del rates
        return _core.WeightSource.masked(np.ascontiguousarray(theta), seed, shared, first_row)

    def outputs(
        self,
        function: str,
        network: NetworkTable,
        source: Any,
        x: Any,
        *,
        first: int,
        count: int,
        noises: int = 0,
        precision: str = "float32",
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return raw outputs (S, N, K) of samples first, .. and their log noises (S, noises)."""
        del precision
        rows = self.rows(function, network, x)
        out, last = _core.forward(network.table, network.rates, source, first, count, rows, noises)
        return out.reshape((*out.shape[:2], *network.output_shape)), last

    def jacobian(
        self,
        function: str,
        network: NetworkTable,
        theta: npt.NDArray[Any],
        x: Any,
        interrupt: Any = None,
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return outputs (N, K) of theta (P,) at rows of x and their derivatives (N, K, P)."""
        rows = self.rows(function, network, x)
        return _core.jacobian(network.table, network.rates, theta, rows, interrupt)

    def moments(
        self,
        network: NetworkTable,
        likelihood: LikelihoodTable,
        source: Any,
        x: Any,
        *,
        count: int,
        precision: str = "float32",
    ) -> tuple[npt.NDArray[np.float64], ...]:
        """Return the sums of `NetworkPredictive.predictive_moments` of samples 0 .. count - 1."""
        del precision
        rows = self.rows("predict", network, x)
        return _core.predictive_moments(
            network.table,
            network.rates,
            source,
            likelihood.kind,
            likelihood.scales,
            likelihood.constant,
            count,
            rows,
        )


def _check_tokens(
    function: str, network: NetworkTable, blocks: Iterable[tuple[int, npt.NDArray[Any]]]
) -> None:
    """Raise a DataError unless the rows of a network of tokens are such; first row and rows."""
    for first, rows in blocks if network.tokens else ():
        good = (rows >= 0) & (rows < network.tokens) & (rows == np.floor(rows))
        expected = f"integer tokens in [0, {network.tokens})"
        checks.all_true(function, expected, "x", rows, good, first)


# The densities that chains of the core move on.
NATIVE = _core.LogDensity, _core.PointerDensity


def pointer_density(address: int, dim: int, user_data: int, parallel: bool) -> Any:
    """Return the native log density behind a C function's address; see `CallableDensity`."""
    return _core.PointerDensity(address, dim, user_data, parallel)


def xla_handler() -> Any:
    """Return the core's handler of XLA programs in a capsule."""
    return _core.xla_log_density()


def xla_number(function: str, target: Any) -> int:
    """Return the number by which XLA programs find the density of a live host target."""
    overrides.check(function, target)
    overrides.needed(function, target, "leapfrog")  # as native as its density
    native = getattr(target, "_native", None)
    try:
        if isinstance(native, _core.LogDensity):
            return native.xla_number
    except ValueError:  # masks
        pass
    raise TypeError(
        f"[{function}] expected target as a Posterior with data in host memory, got "
        f"{checks.summary(target)}"
    )
