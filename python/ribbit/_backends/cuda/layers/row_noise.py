"""Dense layers and convolutions with noise for each row: ``cuda/kernels/row_noise_kernels.h``."""

# Shapes: C weight samples, P parameters, R rows of a panel. The numbers of the second path, weights
# and gradients, lie P behind those of the first.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ribbit._arrays.device import Launch, blocks_of
from ribbit._arrays.random_numbers import ROW_NOISE, SIGNS
from ribbit._backends.codes import ESTIMATORS, OPS
from ribbit._backends.cuda.layers import op_table, products
from ribbit._backends.cuda.layers.panel import Backward, Panel, Row
from ribbit._backends.cuda.layers.products import Operand
from ribbit._backends.cuda.layers.window import grouped, kernel, sliding, turned_kernel
from ribbit.protocols import Array

REPARAM, LOCAL, FLIPOUT = (ESTIMATORS[name] for name in ("reparam", "local", "flipout"))
PAIRED = (OPS["dense"], OPS["conv"])  # operations with two paths


@dataclass(frozen=True)
class Paths:
    """What a layer's two paths are made with."""

    estimator: int  # `LOCAL` or `FLIPOUT`
    # (3,) uint64: seed, step and the sample of the first chain; chain c takes the noise of sample +
    # c
    where: Array
    mean: int  # addresses of (P,)
    scale: int
    half: int  # P
    kept: tuple[int, ...]  # addresses of (C, R, size) for each of `sizes_of`


def channels_of(row: Row) -> tuple[int, int]:
    """Return the channels of a layer's input and output: what a weight belongs to."""
    if row["op"] == OPS["conv"]:
        return row["channels"], row["out_channels"]
    return row["in_size"], row["out_size"]


def sizes_of(row: Row, estimator: int) -> tuple[int, ...]:
    """Return how much is kept per data row from the way forward to the way back."""
    # Local: scalars, the derivative by the second path. Flipout: words of 32 bits, the signs of
    # input and output.
    if estimator == LOCAL:
        return (row["out_size"],)
    return tuple(4 * _sign_blocks(channels) for channels in channels_of(row))


def arrays_of(row: Row, estimator: int) -> list[tuple[int, int]]:
    """Return offset and size of arrays with two paths; flipout's biases have one noise for all."""
    if row["op"] not in PAIRED:
        return []
    return [
        array
        for array in op_table.arrays_of(row)
        if estimator == LOCAL or array[0] == row["weight"]
    ]


def write(panel: Panel, number: int, row: Row, paths: Paths) -> Backward:
    """Append value = f(first path + noise); backward: the gradients of both paths and of x."""
    layer = _layer(panel, number, row)
    return (_write_local if paths.estimator == LOCAL else _write_flipout)(
        panel, number, row, paths, layer
    )


@dataclass(frozen=True)
class _Layer:
    """A layer as products, of a panel's rows."""

    inputs: Callable[..., Operand]  # ``inputs(transposed=)``: (rows x places, entries)
    weights: Callable[[int, int], Operand]  # ``weights(address, chain_stride)``: (entries, outs)
    deltas: Operand  # (rows x cells, terms), of the layer's output
    # ``turned(address, chain_stride)``: weights as (terms, channels)
    turned: Callable[[int, int], Operand]
    places: int  # of a row's output and input
    cells: int
    entries: int
    terms: int
    channels: int
    outs: int


def _layer(panel: Panel, number: int, row: Row) -> _Layer:
    scalar, source, out = panel.scalar, panel.cells[row["input"]], panel.cells[number + 1]
    channels, outs = channels_of(row)
    given = source.value, source.chain_stride

    def weights(base: int, stride: int) -> Operand:
        return products.matrix(scalar, base, stride, outs)

    if row["op"] == OPS["dense"]:

        def inputs(*, transposed: bool) -> Operand:
            return products.matrix(scalar, *given, channels, transposed=transposed)

        def turned(base: int, stride: int) -> Operand:
            return products.matrix(scalar, base, stride, outs, transposed=True)

        deltas = products.matrix(scalar, out.delta or 0, out.chain_stride, outs)
        return _Layer(inputs, weights, deltas, turned, 1, 1, channels, outs, channels, outs)

    window, taps = sliding(row), row["kernel_height"] * row["kernel_width"]

    def kernels(base: int, stride: int) -> Operand:
        return kernel(scalar, row, base, stride)

    def patches(*, transposed: bool) -> Operand:
        return Operand(f"Patches<{scalar}, {window}, {_flag(transposed)}, false>", given)

    def turned_kernels(base: int, stride: int) -> Operand:
        return turned_kernel(scalar, row, base, stride)

    name = f"DeltaPatches<{scalar}, {window}, {outs}>"
    return _Layer(
        patches,
        kernels,
        Operand(name, (out.delta, out.chain_stride)),
        turned_kernels,
        places=row["out_height"] * row["out_width"],
        cells=row["height"] * row["width"],
        entries=taps * channels,
        terms=taps * outs,
        channels=channels,
        outs=outs,
    )


def _write_local(panel: Panel, number: int, row: Row, paths: Paths, layer: _Layer) -> Backward:
    scalar = panel.scalar
    source, out, (slope,) = panel.cells[row["input"]], panel.cells[number + 1], paths.kept
    variance = Operand(
        f"VarianceSink<{scalar}>",
        (_at(panel, paths.scale, row["bias"]), slope, out.chain_stride, layer.outs),
    )
    panel.forward.append(_mean_path(panel, number, layer, paths, row, (paths.mean, 0)))
    panel.forward.append(
        _forward(
            panel,
            layer,
            _squared(scalar, layer.inputs(transposed=False)),
            _squared(scalar, layer.weights(_at(panel, paths.scale, row["weight"]) or 0, 0)),
            variance,
        )
    )
    noise = _address(panel, paths, ROW_NOISE, 2 * row["index"])
    fields = (*noise, out.value, out.derivative, slope, out.chain_stride, panel.count, out.size)
    name = f"LocalNoise<{scalar}, {panel.codes[number]}>"
    panel.forward.append(Launch(name, fields, (blocks_of(panel.count * -(-out.size // 4)), 1, 1)))

    def backward() -> None:
        _mean_backward(panel, number, row, paths, layer)
        size = panel.count * out.size
        along = (out.delta, slope, out.chain_stride, size)
        panel.backward.append(Launch(f"Multiply<{scalar}>", along, (blocks_of(size), 1, 1)))
        squares = _squared(scalar, layer.inputs(transposed=True))
        bias = row["bias"] if row["bias"] < 0 else row["bias"] + paths.half
        _second_gradient(panel, number, row, paths, layer, squares, bias)
        if source.delta is None:
            return
        stride = source.chain_stride
        into = (source.delta, source.derivative, source.value, stride, layer.channels)
        sink = Operand(f"LocalDeltaSink<{scalar}>", into)
        turned = layer.turned(_at(panel, paths.scale, row["weight"]) or 0, 0)
        panel.backward.append(_down(panel, layer, _squared(scalar, turned), sink))

    return backward


def _write_flipout(panel: Panel, number: int, row: Row, paths: Paths, layer: _Layer) -> Backward:
    scalar, source, out = panel.scalar, panel.cells[row["input"]], panel.cells[number + 1]
    both = []  # members of Signs for the input and the output
    for side, (channels, words) in enumerate(zip(channels_of(row), paths.kept, strict=True)):
        blocks = _sign_blocks(channels)
        stride = panel.rows * 4 * blocks
        noise = _address(panel, paths, SIGNS, 2 * row["index"] + side)
        fields = (*noise, words, stride, panel.count, blocks)
        panel.forward.append(Launch("RowSigns", fields, (blocks_of(panel.count * blocks), 1, 1)))
        both.append((words, stride, 4 * blocks))
    inward, outward = both

    def flipped(*, transposed: bool) -> Operand:
        inputs = layer.inputs(transposed=transposed)
        # a dense layer has as many channels as columns
        channels = layer.channels if row["op"] == OPS["conv"] else 0
        types = f"{scalar}, {inputs.name}, {layer.places}, {channels}, {_flag(transposed)}"
        return Operand(f"Flipped<{types}>", (*inputs.fields, *inward))

    weight = (panel.theta(row["weight"]) or 0) + paths.half * panel.itemsize
    bias = panel.parameters, panel.dim  # drawn
    panel.forward.append(_mean_path(panel, number, layer, paths, row, bias))
    into = (*outward, out.value, out.derivative, out.chain_stride, layer.outs)
    sink = Operand(f"FlipoutSink<{scalar}, {panel.codes[number]}, {layer.places}>", into)
    deviations = layer.weights(weight, panel.dim)
    panel.forward.append(_forward(panel, layer, flipped(transposed=False), deviations, sink))

    def backward() -> None:
        _mean_backward(panel, number, row, paths, layer)
        sizes = panel.count, layer.places, layer.outs
        along = (*outward, out.delta, out.chain_stride, *sizes)
        grid = (blocks_of(panel.count * out.size), 1, 1)
        panel.backward.append(Launch(f"FlipRows<{scalar}>", along, grid))
        _second_gradient(panel, number, row, paths, layer, flipped(transposed=True), -1)
        if source.delta is None:
            return
        below = (*inward, source.delta, source.derivative, source.chain_stride, layer.channels)
        sink = Operand(f"FlipoutDeltaSink<{scalar}, {layer.cells}>", below)
        panel.backward.append(_down(panel, layer, layer.turned(weight, panel.dim), sink))

    return backward


def _mean_path(
    panel: Panel, number: int, layer: _Layer, paths: Paths, row: Row, bias: tuple[int, int]
) -> Launch:
    """Return: value = x M + b; bias: address and chain stride of the parameters it is one of."""
    out, (base, stride) = panel.cells[number + 1], bias
    sink = products.activation_sink(
        panel.scalar,
        0,
        _at(panel, base, row["bias"]),
        stride,
        out.value,
        None,
        out.chain_stride,
        layer.outs,
    )
    mean = layer.weights(_at(panel, paths.mean, row["weight"]) or 0, 0)
    return _forward(panel, layer, layer.inputs(transposed=False), mean, sink)


def _mean_backward(panel: Panel, number: int, row: Row, paths: Paths, layer: _Layer) -> None:
    """Append the gradients by M and b, and the part of the first path in that of x."""
    source = panel.cells[row["input"]]
    inputs = layer.inputs(transposed=True)
    _gradient(panel, number, row, layer, inputs)
    if source.delta is None:
        return
    into = products.delta_sink(panel.scalar, source, layer.channels)
    mean = layer.turned(_at(panel, paths.mean, row["weight"]) or 0, 0)
    panel.backward.append(_down(panel, layer, mean, into))


def _second_gradient(
    panel: Panel,
    number: int,
    row: Row,
    paths: Paths,
    layer: _Layer,
    inputs: Operand,
    bias: int,
) -> None:
    """Append the gradients of the second path; the output's delta is along it already."""
    moved = {**row, "weight": row["weight"] + paths.half, "bias": bias}
    _gradient(panel, number, moved, layer, inputs)


def _gradient(panel: Panel, number: int, row: Row, layer: _Layer, inputs: Operand) -> None:
    out, terms = panel.cells[number + 1], panel.count * layer.places
    delta = products.matrix(panel.scalar, out.delta or 0, out.chain_stride, layer.outs)
    blocks = grouped(row) if row["op"] == OPS["conv"] else ""
    products.weight_gradient(
        panel, number, inputs, delta, layer.entries, layer.outs, terms, row, blocks
    )


def _forward(panel: Panel, layer: _Layer, a: Operand, b: Operand, sink: Operand) -> Launch:
    m, n, k = panel.count * layer.places, layer.outs, layer.entries
    return products.product(
        panel.scalar,
        a,
        b,
        sink,
        m=m,
        n=n,
        k=k,
        passes=panel.passes.forward,
        chains=panel.chains,
        room=panel.block_shared,
    )


def _down(panel: Panel, layer: _Layer, turned: Operand, sink: Operand) -> Launch:
    m, n, k = panel.count * layer.cells, layer.channels, layer.terms
    return products.product(
        panel.scalar,
        layer.deltas,
        turned,
        sink,
        m=m,
        n=n,
        k=k,
        passes=panel.passes.backward,
        room=panel.block_shared,
    )


def _squared(scalar: str, operand: Operand) -> Operand:
    return Operand(f"Squared<{scalar}, {operand.name}>", operand.fields)


def _at(panel: Panel, base: int, offset: int) -> int | None:
    """Address of a parameter in an array (P,), None for an offset below zero."""
    return None if offset < 0 else base + offset * panel.itemsize


def _address(panel: Panel, paths: Paths, purpose: int, layer: int) -> tuple[Any, ...]:
    """Members of RowAddress."""
    return paths.where, panel.subset, panel.subset_stride, panel.first, 0, purpose, layer


def _sign_blocks(channels: int) -> int:
    return -(-channels // 128)


def _flag(value: bool) -> str:
    return "true" if value else "false"
