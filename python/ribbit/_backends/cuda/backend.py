"""Kernels on arrays of a device: data rows, log densities, forward passes."""

# Shapes: S samples, P parameters, N rows, K outputs. `Cuda` has the methods of ``cpu.Cpu``.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.checks import check_rows
from ribbit._arrays.device import Device
from ribbit._arrays.namespace import (
    dtype_in,
    from_device,
    host_dtype,
    is_device_array,
    namespace,
    to_host,
)
from ribbit._arrays.positions import position
from ribbit._backends.cuda.density import DeviceDensity
from ribbit._backends.cuda.forward import Forward, numbered_outputs, predictive_moments
from ribbit._backends.cuda.forward_cache import with_forward
from ribbit._backends.cuda.samples import Drawn, Masked, Samples, Stored
from ribbit._backends.density_table import DensityTable, LikelihoodTable, NetworkTable
from ribbit.errors import DataError, DTypeError
from ribbit.protocols import Array

if TYPE_CHECKING:
    import numpy.typing as npt

_T = TypeVar("_T")


@dataclass(frozen=True)
class Cuda:
    """Computes with a device's arrays of one dtype, float32 or float64."""

    device: Device
    dtype: np.dtype[Any]  # float32 or float64, of positions, outputs and gradients

    @property
    def xp(self) -> ModuleType:
        """Library of the arrays."""
        return self.device.xp

    @property
    def instruction_set(self) -> str:
        """Which kernels compute: the bits of draws depend on it."""
        return "cuda"

    def rows(self, function: str, network: NetworkTable, x: Any, moved: Any = None) -> Array:
        """Return data rows as a finite flat (N, D) in the dtype or uint8, copied if necessary."""
        # moved: makes other numbers of rows.
        own = self.xp.empty((0,))
        if not is_device_array(x):
            namespace(own, np.asarray(x), function=function)  # says what is mixed
        given = from_device(function, "x", x)
        namespace(own, given, function=function)
        given = given if moved is None else moved(given)
        return _device_rows(function, network, given, self.dtype)

    def given(self, function: str, name: str, array: Any) -> Any:
        """Return an argument that comes with the backend's arrays as a host array to check."""
        if not is_device_array(array):
            namespace(self.xp.empty((0,)), np.asarray(array), function=function)
        return to_host(from_device(function, name, array))

    def own(self, checked: npt.NDArray[Any], given: Any) -> Array:
        """Return checked host data (N, J) on the device: `given`, its source, if it fits."""
        if is_device_array(given):
            array = from_device("ribbit", "y", given)
            if host_dtype(array) == checked.dtype and array.flags.c_contiguous:
                return self.xp.reshape(array, checked.shape)
        return self.xp.asarray(checked)

    def density(
        self,
        tables: DensityTable,
        x: Array,
        y: Array,
        constants: npt.NDArray[np.float64] | None = None,
    ) -> DeviceDensity:
        """Return the log density of rows x (N, D) and targets y (N, J)."""
        # constants (N,): what each row's log likelihood has of y alone.
        return DeviceDensity(self.device, tables, x, y, constants)

    def position(self, function: str, theta: Any, dim: int) -> tuple[Array, bool]:
        """Return parameters (dim,) or (S, dim) as (S, dim), and whether they were (dim,)."""
        return position(self.xp, function, "theta", theta, self.dtype, dim)

    def stored(self, theta: Array, scales: Any = None) -> Stored:
        """Return weights (C, D, P) in memory as samples, draw by draw."""
        _refuse_scales(scales)
        chains, draws, dim = theta.shape
        flat = self.xp.reshape(self.xp.permute_dims(theta, (1, 0, 2)), (draws * chains, dim))
        return Stored(self.position("predict", flat, dim)[0])

    def drawn(self, mean: Array, scale: Array, seed: int, scales: Any = None) -> Drawn:
        """Return independent normal weights, drawn while they are used, as samples."""
        _refuse_scales(scales)
        return Drawn(self.xp.ascontiguousarray(mean), self.xp.ascontiguousarray(scale), seed)

    def scaled_weights(self, theta: Array, scales: Any) -> Array:
        """Refuse: learned scales are for arrays in host memory."""
        _refuse_scales(scales)
        return theta

    def masked(
        self, theta: Array, rates: Sequence[float], seed: int, *, shared: bool, first_row: int
    ) -> Masked:
        """Return one weight vector (P,) under masks as samples."""
        return Masked(theta, rates, seed, shared, first_row)

    def outputs(
        self,
        function: str,
        network: NetworkTable,
        source: Samples,
        x: Any,
        *,
        first: int,
        count: int,
        noises: int = 0,
        precision: str = "float32",
    ) -> tuple[Array, Array]:
        """Return raw outputs (S, N, K) of samples first, .. and their log noises (S, noises)."""
        width = network.output_shape[0]

        def use(forward: Forward) -> tuple[Array, Array]:
            return numbered_outputs(forward, first, count, width, noises)

        return self._predicted(function, network, source, x, count, precision, use)

    def moments(
        self,
        network: NetworkTable,
        likelihood: LikelihoodTable,
        source: Samples,
        x: Any,
        *,
        count: int,
        precision: str = "float32",
    ) -> tuple[Array, ...]:
        """Return the sums of `NetworkPredictive.predictive_moments` of samples 0 .. count - 1."""
        width = network.output_shape[0]

        def use(forward: Forward) -> tuple[Array, ...]:
            return predictive_moments(forward, likelihood, count, width)

        return self._predicted("predict", network, source, x, count, precision, use)

    def _predicted(
        self,
        function: str,
        network: NetworkTable,
        source: Samples,
        x: Any,
        count: int,
        precision: str,
        use: Callable[[Forward], _T],
    ) -> _T:
        """Return what `use` makes of the forward passes of `count` samples at x."""
        rows, given = self.rows(function, network, x), from_device(function, "x", x)
        copied = given.dtype != rows.dtype or not given.flags.c_contiguous
        return with_forward(
            *(self.device, network.table, rows, source, count, precision, use), passing=copied
        )


def _refuse_scales(scales: Any) -> None:
    if scales is not None:
        raise ValueError(
            "[predict] expected draws in host memory where scales of weights are learned, got "
            "draws on a device"
        )


def _device_rows(function: str, network: NetworkTable, x: Array, dtype: np.dtype[Any]) -> Array:
    """Return rows of a device array as a finite flat (N, D) in `dtype` or uint8."""
    xp = namespace(x, function=function)
    shape = network.input_shape
    check_rows(function, tuple(x.shape), shape, str(x.shape))
    if not xp.isdtype(x.dtype, ("bool", "integral", "real floating")):
        raise DTypeError(f"[{function}] expected x as real numbers, got dtype {x.dtype}")
    count = x.shape[0]
    if x.dtype == xp.uint8 and len(shape) == 3:
        return xp.ascontiguousarray(xp.reshape(x, (count, -1)))
    flat = xp.astype(xp.reshape(x, (count, -1)), dtype_in(xp, dtype), copy=False)
    good = xp.isfinite(flat)
    what = f"finite {dtype} values in x"
    if network.tokens:
        good = good & (flat >= 0) & (flat < network.tokens) & (flat == xp.floor(flat))
        what = f"integer tokens in [0, {network.tokens}) in x"
    if not bool(xp.all(good)):
        first = int(np.argmin(to_host(good)))
        index = tuple(int(i) for i in np.unravel_index(first, (count, *shape)))
        got = checks.summary(to_host(x)[index])
        raise DataError(f"[{function}] expected {what}, got {got} at {index}")
    return xp.ascontiguousarray(flat)
