"""Embeddings of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ribbit._arrays import checks
from ribbit._backends.codes import OPS
from ribbit.errors import ShapeError
from ribbit.models.layers._table import MAX_SIZE, Table, Value

__all__ = ["Embedding"]


_MOST_TOKENS = 2**24


@dataclass(frozen=True)
class Embedding:
    """A vector for each token: (T,) integers in [0, vocab_size) -> (T, units).

    The first layer of a model. Parameters: weight (vocab_size, units). The fan-in counts as
    `units`, so that vectors of any length start with a norm of about sqrt(2).

    Parameters
    ----------
    vocab_size : int
        Number of tokens, at most 2**24 (the integers that float32 holds exactly).
    units : int
        Length of the vectors.

    Raises
    ------
    TypeError, ValueError
        If a size is not a positive integer.

    Examples
    --------
    >>> layers = [rb.Embedding(100, 8), rb.LSTM(4), rb.Dense(2)]
    >>> model = rb.Model(layers, input_shape=(20,))
    >>> model.output_shape, model.dim
    ((2,), 1018)
    """

    op: ClassVar[int] = OPS["embedding"]
    vocab_size: int
    units: int

    def __post_init__(self) -> None:
        for name, most in (("vocab_size", _MOST_TOKENS), ("units", MAX_SIZE)):
            size = checks.integer("Embedding", name, getattr(self, name), minimum=1, maximum=most)
            object.__setattr__(self, name, size)

    def _compile(self, table: Table, value: Value) -> Value:
        """Write weight (vocab_size, units)."""
        if value.number != 0 or len(value.shape) != 1:
            raise ShapeError(
                f"[{table.function}] expected {self} as the first layer, on tokens (T,), "
                f"got an input {value.shape} for layer {table.place}"
            )
        shape = (self.vocab_size, self.units)
        weight = table.parameter("weight", shape, fan_in=self.units, is_weight=True)
        # Two embeddings of the same tokens, in a Residual: both must know them.
        table.tokens = min(table.tokens or self.vocab_size, self.vocab_size)
        return table.row(
            self.op,
            value,
            (*value.shape, self.units),
            weight=weight,
            argument=self.vocab_size,
            channels=self.units,
        )
