"""Elementwise activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ribbit._arrays import checks
from ribbit._backends.codes import ACTIVATIONS, OPS
from ribbit.models.layers._table import Table, Value

__all__ = ["Activation"]


@dataclass(frozen=True)
class Activation:
    """An elementwise activation.

    Parameters
    ----------
    name : str
        identity, relu, tanh, silu, sigmoid, gelu (exact, with the error function), softplus,
        leaky_relu (slope 0.01 below 0) or elu (exp(x) - 1 below 0).

    Raises
    ------
    TypeError, ValueError
        If `name` is not one of these.

    Examples
    --------
    >>> layers = [rb.Dense(4), rb.Activation("tanh"), rb.Dense(1)]
    >>> model = rb.Model(layers, input_shape=(2,))
    >>> model.output_shape, model.dim
    ((1,), 17)
    """

    op: ClassVar[int] = OPS["activation"]
    name: str

    def __post_init__(self) -> None:
        checks.choice("Activation", "name", self.name, ACTIVATIONS)

    def _compile(self, table: Table, value: Value) -> Value:
        """Write a row whose argument is the code of the activation."""
        return table.row(self.op, value, value.shape, argument=ACTIVATIONS[self.name])
