"""Parameters of a module as one flat vector, and their prior in native code."""

# Shapes: P parameters, C chains.

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ribbit._arrays import checks
from ribbit._arrays.checks import FloatArray
from ribbit._arrays.warning import warn
from ribbit._backends import dispatch
from ribbit._backends.density_table import DensityTable, prior_constants
from ribbit.errors import ModuleWarning
from ribbit.models.layers import Dense
from ribbit.models.model import Model
from ribbit.targets import likelihoods
from ribbit.targets.likelihoods import Array64
from ribbit.targets.prior_table import PriorTable
from ribbit.targets.priors import Normal

if TYPE_CHECKING:
    import numpy.typing as npt


_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)  # what a padding of 0 under N(0, 1) takes off


@dataclass(frozen=True)
class ModuleParameter:
    """One array of a module in the flat vector."""

    name: str
    shape: tuple[int, ...]  # in torch's order of axes
    offset: int  # place of its first number
    fan_in: int  # numbers behind one output: the product of all axes but the first; 1 of a vector
    is_weight: bool  # whether a start draws it (two axes or more)
    initial: float | None  # where other arrays start; None: where the module has them

    @property
    def size(self) -> int:
        """Numbers in the array."""
        return math.prod(self.shape)


def parameters_of(module: torch.nn.Module) -> tuple[ModuleParameter, ...]:
    """Return the parameters that want a gradient, in the module's order, shared ones once."""
    found, offset = [], 0
    owners = dict(module.named_modules())
    for name, array in module.named_parameters():
        if not array.requires_grad:
            continue
        shape = tuple(array.shape)
        weight = len(shape) >= 2
        owner, _, last = name.rpartition(".")
        initial: float | None = None
        if last.endswith("bias"):
            initial = 0.0
        elif "Norm" in type(owners[owner]).__name__:
            initial = 1.0
        fan_in = math.prod(shape[1:]) if weight else 1
        found.append(ModuleParameter(name, shape, offset, fan_in, weight, initial))
        offset += found[-1].size
    return tuple(found)


def dtype_of(function: str, module: torch.nn.Module, dtype: npt.DTypeLike | None) -> np.dtype[Any]:
    """Return the dtype that weights are sampled in; TypeError for weights that have no values."""
    for name, p in module.named_parameters():
        got = str(p.dtype).removeprefix("torch.")
        if isinstance(p, torch.nn.parameter.UninitializedParameter):
            got = "one whose shape is not known yet: call the module once"
        elif p.device.type == "meta":
            got = "one on the meta device, which holds no values"
        elif p.is_floating_point():
            continue
        raise TypeError(f"[{function}] expected parameter {name!r} of real numbers, got {got}")
    found = sorted({str(p.dtype).removeprefix("torch.") for p in module.parameters()})
    chosen = checks.float_dtype(
        function, dtype if dtype is not None else "float64" if "float64" in found else "float32"
    )
    if dtype is None and (len(found) > 1 or found[0] not in ("float32", "float64")):
        warn(
            f"[{function}] expected parameters of float32 or of float64, got {', '.join(found)}: "
            f"all are sampled in {chosen}, and state_dict(theta) has that dtype; dtype= says so "
            "without a warning",
            ModuleWarning,
        )
    return chosen


class NativePrior:
    """The log prior of a flat vector and its gradient, by the formulas of the core."""

    # The core evaluates priors with a network. Here that is one dense layer of about P weights
    # whose single row is 0: its outputs and the likelihood's gradient are exactly 0, whatever the
    # weights.

    def __init__(self, table: PriorTable, dtype: np.dtype[Any], temperature: float) -> None:
        self._arguments = table, dtype, temperature
        self.dim = table.dim
        width = math.isqrt(self.dim - 1) + 1
        height = -(-self.dim // width)
        self._padding = width * height - self.dim
        rows = table.rows
        if self._padding:
            last = (self.dim, self._padding, Normal.kind, *Normal(1.0)._table_values())
            rows = np.concatenate([rows, np.array([last])])
        model = Model([Dense(width, bias=False)], input_shape=(height,))  # type: ignore[arg-type]
        x, y = np.zeros((1, height), dtype), np.zeros((1, width), dtype)
        centre = table.centre
        precision = "float64" if dtype == np.float64 else "float32"
        self._native = dispatch.backend_of_data("posterior", dtype, x=x, y=y).density(
            DensityTable(
                model.table,
                rows,
                prior_constants(rows),
                likelihoods.Gaussian(1.0)._table("posterior", model.output_shape),
                temperature,
                1.0,
                precision=precision,
                centre=np.pad(centre, (0, self._padding)).astype(dtype) if centre.any() else None,
            ),
            x,
            y,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return NativePrior, self._arguments

    def value_and_grad(self, theta: FloatArray) -> tuple[Array64, FloatArray]:
        """Return the untempered log prior (C,) and the tempered gradient (C, P) at (C, P)."""
        if self._padding:
            theta = np.pad(theta, ((0, 0), (0, self._padding)))
        _, value, grad = self._native.value_and_grad(np.ascontiguousarray(theta), None)
        return value + self._padding * _HALF_LOG_2PI, grad[:, : self.dim]
