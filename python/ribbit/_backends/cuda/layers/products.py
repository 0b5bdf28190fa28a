"""Matrix products of the device: operands, sinks and launches by the names of the C++ types.

Sizes: C chains, R rows of a panel. Every operand holds one matrix per chain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ribbit._arrays.device import Launch
from ribbit._backends.cuda.layers.panel import Panel, Row

__all__ = [
    "Operand",
    "activation_sink",
    "delta_sink",
    "matrix",
    "product",
    "weight_gradient",
]

_DEPTH = 16  # terms of a sum that lie in shared memory at a time
_NARROW = 16  # columns, or weights of an output, that a tile of 64 would be mostly padding for
_TALL = 1024  # rows that fill a device with tiles of 128


@dataclass(frozen=True)
class Operand:
    """A C++ type that stands for a matrix, with its members."""

    name: str
    fields: tuple[Any, ...]


def matrix(
    scalar: str, base: int, chain_stride: int, row_stride: int, *, transposed: bool = False
) -> Operand:
    """Return the matrix whose element (i, j) is at base + chain chain_stride + i row_stride + j."""
    flag = "true" if transposed else "false"
    return Operand(f"Matrix<{scalar}, {flag}>", (base, chain_stride, row_stride))


def with_ones(scalar: str, operand: Operand, rows: int) -> Operand:
    """Return an operand with a row of ones below its `rows` rows."""
    return Operand(f"WithOnes<{scalar}, {operand.name}>", (*operand.fields, rows))


def activation_sink(
    scalar: str,
    code: int,
    bias: int | None,
    bias_stride: int,
    value: int,
    derivative: int | None,
    chain_stride: int,
    width: int,
) -> Operand:
    """Return the sink value = f(sum + bias), derivative = f'(sum + bias)."""
    fields = (bias, bias_stride, value, derivative, chain_stride, width)
    return Operand(f"ActivationSink<{scalar}, {code}>", fields)


def delta_sink(
    scalar: str, delta: int, derivative: int | None, chain_stride: int, width: int, *, add: bool
) -> Operand:
    """Return the sink delta = sum times derivative, added to what is there if `add`."""
    return Operand(f"DeltaSink<{scalar}>", (delta, derivative, chain_stride, width, int(add)))


def product(
    scalar: str,
    a: Operand,
    b: Operand,
    sink: Operand,
    *,
    m: int,
    n: int,
    k: int,
    slices: int = 1,
    passes: int = 0,
    joins: bool = False,
) -> Launch:
    """Return the launch of sink(m, n) = sum over k of a(m, k) b(k, n) for every chain.

    With `passes` on tensor cores, unless there are 16 columns or fewer: the bits of a row do not
    depend on how many there are. `joins`: the sink's kJoins.
    """
    operands = f"{a.name}, {b.name}, {sink.name}"
    if passes and n > _NARROW:
        tile_m, tile_n = (16 if m <= 16 else 64 if m < _TALL else 128), 64
        across = {16: 8, 64: 4, 128: 2}[tile_m]  # warps
        if joins:
            tile_m, across = 128, 1
        name = f"TensorProduct<{operands}, {passes}, {tile_m}, {tile_n}, {across}>"
    else:
        tile_m, tile_n = (64, 16) if n <= 16 else (16, 64) if m <= 16 else (64, 64)
        name = f"Product<{scalar}, {operands}, {tile_m}, {tile_n}, {_DEPTH}>"
    length = -(-k // slices)
    return Launch(
        name,
        (*a.fields, *b.fields, *sink.fields, m, n, k, slices, length),
        (-(-m // tile_m), -(-n // tile_n), slices),
        chains_along=2,
    )


def weight_gradient(
    panel: Panel,
    number: int,
    inputs: Operand,
    delta: Operand,
    rows: int,
    width: int,
    terms: int,
    row: Row,
    blocks: str = "",
) -> None:
    """Append the gradient of a weight (rows, width) and of the bias, sums over `terms` places.

    `inputs` is (rows, terms) and `delta` (terms, width). Row `number` of the table says into how
    many partial sums they are cut; the panels of a pass add to each other. `blocks`: sizes of a
    weight that is zero outside blocks, ``taps, channels, outs, groups``.
    """
    scalar, bias, slices = panel.scalar, row["bias"], panel.slices[number]
    whole = slices == 1
    fields = (
        panel.grad if whole else panel.partials,
        panel.dim,
        0 if whole else panel.partial_stride,
        row["weight"],
        bias,
        rows,
        width,
        int(panel.first > 0),
    )
    name = f"GroupedGradientSink<{scalar}, {blocks}>" if blocks else f"GradientSink<{scalar}>"
    sink = Operand(name, fields)
    if bias >= 0:
        inputs, rows = with_ones(scalar, inputs, rows), rows + 1
    passes = panel.passes.backward if rows > _NARROW else 0
    panel.backward.append(
        product(scalar, inputs, delta, sink, m=rows, n=width, k=terms, slices=slices, passes=passes)
    )
