"""Residual blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ribbit._arrays import checks
from ribbit._backends.codes import OPS
from ribbit.errors import ShapeError
from ribbit.models.layers._table import Layer, Table, Value, is_layer

__all__ = ["Residual"]


@dataclass(frozen=True)
class Residual:
    """The sum of two paths, ``main(x) + shortcut(x)`` (He et al. 2016, equation 1).

    Parameters
    ----------
    main : sequence of layers
        At least one.
    shortcut : sequence of layers, default ()
        None: the identity.

    Raises
    ------
    TypeError, ValueError
        If a path is not a sequence of layers.

    Examples
    --------
    >>> main = rb.Activation("relu"), rb.Dense(5)
    >>> layers = [rb.Dense(5), rb.Residual(main), rb.Dense(1)]
    >>> model = rb.Model(layers, input_shape=(3,))
    >>> model.output_shape, model.dim
    ((1,), 56)
    """

    op: ClassVar[int] = OPS["add"]
    main: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()

    def __post_init__(self) -> None:
        for name in ("main", "shortcut"):
            path = checks.items("Residual", name, getattr(self, name), "layers")
            for i, layer in enumerate(path):
                if not is_layer(layer):
                    got = checks.summary(layer)
                    raise TypeError(f"[Residual] expected {name}[{i}] as a layer, got {got}")
            object.__setattr__(self, name, path)
        if not self.main:
            raise ValueError("[Residual] expected at least one layer in main, got none")

    def _compile(self, table: Table, value: Value) -> Value:
        """Write both paths, then a row that adds them."""
        ends = []
        for name in ("main", "shortcut"):
            end = value
            for i, layer in enumerate(getattr(self, name)):
                with table.layer(f"{name}.{i}", layer):
                    end = layer._compile(table, end)
            ends.append(end)
        main, shortcut = ends
        if main.shape != shortcut.shape:
            raise ShapeError(
                f"[{table.function}] expected both paths of Residual to give the same shape, "
                f"got {main.shape} and {shortcut.shape}"
            )
        if main.number == value.number:
            raise ValueError(f"[{table.function}] expected main to compute something, got {self}")
        return table.row(self.op, main, main.shape, second=shortcut.number)
