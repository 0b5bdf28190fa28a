"""Recurrent layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ribbit._arrays import checks
from ribbit._backends.codes import OPS
from ribbit.models.layers import _window
from ribbit.models.layers._table import Table, TorchArrays, Value

__all__ = ["LSTM"]


@dataclass(frozen=True)
class LSTM:
    """A long short-term memory layer on a sequence (T, C), starting from zero state.

    With ``z = x_t @ W + h_{t-1} @ U + b`` split into four parts i, f, g, o of `units`: ``c_t =
    sigmoid(f) c_{t-1} + sigmoid(i) tanh(g)``, ``h_t = sigmoid(o) tanh(c_t)``. Parameters: weight
    (C, 4 units), recurrent (units, 4 units), bias (4 units,).

    Parameters
    ----------
    units : int
        Length of the state.
    sequence : bool, default False
        True: output all states (T, units); False: the last one (units,).

    Raises
    ------
    TypeError, ValueError
        If `units` is not a positive integer or `sequence` not a bool.

    References
    ----------
    Hochreiter and Schmidhuber (1997), with the forget gate of Gers et al. (2000).

    Examples
    --------
    >>> layers = [rb.LSTM(6, sequence=True), rb.Flatten(), rb.Dense(2)]
    >>> model = rb.Model(layers, input_shape=(20, 3))
    >>> model.output_shape, model.dim
    ((2,), 482)
    """

    op: ClassVar[int] = OPS["lstm"]
    torch: ClassVar[TorchArrays] = TorchArrays(
        {
            "weight": ("weight_ih_l0",),
            "recurrent": ("weight_hh_l0",),
            "bias": ("bias_ih_l0", "bias_hh_l0"),
        }
    )
    units: int
    sequence: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        units = checks.integer("LSTM", "units", self.units, minimum=1, maximum=2**29)
        object.__setattr__(self, "units", units)
        object.__setattr__(self, "sequence", checks.boolean("LSTM", "sequence", self.sequence))

    def _compile(self, table: Table, value: Value) -> Value:
        """Write weight, recurrent and bias; argument 1: all states."""
        length, channels = _window.sequence(table, self, value)
        units, gates = self.units, 4 * self.units
        weight = table.parameter("weight", (channels, gates), fan_in=channels, is_weight=True)
        recurrent = table.parameter("recurrent", (units, gates), fan_in=units, is_weight=True)
        bias = table.parameter("bias", (gates,))
        return table.row(
            self.op,
            value,
            (length, units) if self.sequence else (units,),
            weight=weight,
            bias=bias,
            third=recurrent,
            argument=int(self.sequence),
            height=1,
            width=length,
            channels=channels,
            out_channels=units,
        )
