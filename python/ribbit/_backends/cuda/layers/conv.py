"""Convolutions."""

from __future__ import annotations

from dataclasses import replace

from ribbit._backends.cuda.layers import direct_conv, norm, products
from ribbit._backends.cuda.layers.op import Op
from ribbit._backends.cuda.layers.panel import Backward, Panel, Row
from ribbit._backends.cuda.layers.products import Operand
from ribbit._backends.cuda.layers.window import grouped, kernel, sliding, turned_kernel

_MOST_TAPS = 32  # that have bits of a word


def write(panel: Panel, number: int, row: Row) -> Backward:
    """Append value = f(x * W + b); backward: the gradients of W, b and x."""
    scalar, dim, count = panel.scalar, panel.dim, panel.count
    source, out = panel.cells[row["input"]], panel.cells[number + 1]
    window, channels, outs = sliding(row), row["channels"], row["out_channels"]
    places, cells = row["out_height"] * row["out_width"], row["height"] * row["width"]
    taps = row["kernel_height"] * row["kernel_width"]
    weight = panel.theta(row["weight"]) or 0

    def patches(*, transposed: bool, steps: bool = False) -> Operand:
        flags = ", ".join("true" if flag else "false" for flag in (transposed, steps))
        name = f"Patches<{scalar}, {window}, {flags}>"
        fields = source.value, source.chain_stride
        fits = products.aligned([source.value], [source.chain_stride, channels])
        return Operand(name, fields, found=True, transposed=transposed, aligned=fits)

    sink = products.activation_sink(
        scalar,
        panel.codes[number],
        panel.theta(row["bias"]),
        dim,
        out.value,
        out.derivative,
        out.chain_stride,
        outs,
    )
    if direct_conv.fits(panel, row, source):
        if number in panel.norms.behind and direct_conv.has_images(row):
            behind, its_row = panel.norms.behind[number]
            if norm.is_aligned(panel, behind):
                sink = norm.response_sink(panel, behind, its_row, panel.theta(row["bias"]))
        panel.forward.append(
            direct_conv.launch(
                row,
                (source.value, source.chain_stride),
                (weight, dim),
                sink,
                lines=count * row["height"],
                turned=False,
                room=panel.block_shared,
            )
        )
    else:
        panel.forward.append(
            products.product(
                scalar,
                patches(transposed=False),
                kernel(scalar, row, weight, dim),
                sink,
                m=count * places,
                n=outs,
                k=taps * channels,
                passes=panel.passes.forward,
                chains=panel.chains,
                room=panel.block_shared,
            )
        )

    def gradient() -> None:
        delta = products.matrix(scalar, out.delta or 0, out.chain_stride, outs)
        _, slices, length = panel.cut(number, count * places)
        lines = row["out_width"] % products.DEPTH == 0 or products.DEPTH % row["out_width"] == 0
        whole = places % products.DEPTH == 0 and (slices == 1 or length % products.DEPTH == 0)
        steps = scalar == "float" and lines and whole
        products.weight_gradient(
            panel,
            number,
            patches(transposed=True, steps=steps),
            delta,
            taps * channels,
            outs,
            count * places,
            row,
            grouped(row),
        )

    def backward() -> None:
        if direct_conv.gradient_fits(panel, row, source):
            direct_conv.gradient(panel, number, source, out, row)
        elif products.has_taps(panel, row, source):
            products.tap_gradient(panel, number, window, source, out, count * places, row)
        else:
            gradient()
        if source.delta is None:
            return
        into = products.delta_sink(scalar, source, channels)
        if direct_conv.fits(panel, row, source, turned=True):
            if number in panel.norms.before and direct_conv.has_images(row, turned=True):
                before, its_row = panel.norms.before[number]
                into = norm.response_delta_sink(panel, before, its_row, source, into)
            panel.backward.append(
                direct_conv.launch(
                    row,
                    (out.delta or 0, out.chain_stride),
                    (weight, dim),
                    into,
                    lines=count * row["height"],
                    turned=True,
                    room=panel.block_shared,
                )
            )
            return
        given = Operand(
            f"DeltaPatches<{scalar}, {window}, {outs}>",
            (out.delta, out.chain_stride),
            found=True,
            aligned=products.aligned([out.delta], [out.chain_stride, outs]),
        )
        turned = turned_kernel(scalar, row, weight, dim)
        if scalar == "float" and _skips_taps(row):
            # Cells that the same taps meet side by side: the others' terms are passed over.
            name = f"OrderedDeltaPatches<{scalar}, {window}, {outs}>"
            given = replace(given, name=name, fields=(*given.fields, count))
            name = f"OrderedDeltaSink<{scalar}, {window}>"
            into = replace(into, name=name, fields=(*into.fields, count))
        panel.backward.append(
            products.product(
                scalar,
                given,
                turned,
                into,
                m=count * cells,
                n=channels,
                k=taps * outs,
                passes=panel.passes.backward,
                chains=panel.chains,
                room=panel.block_shared,
            )
        )

    return backward


def _skips_taps(row: Row) -> bool:
    """Whether most taps meet no cell, and tiles of a product can have the same taps."""
    strides = row["stride_height"], row["stride_width"]
    taps = row["kernel_height"] * row["kernel_width"]
    return (
        max(strides) > 1
        and row["height"] % strides[0] == row["width"] % strides[1] == 0
        and row["out_channels"] % products.DEPTH == 0
        and taps < _MOST_TAPS
    )


def _arrays(row: Row) -> tuple[int, int, int]:
    taps = row["kernel_height"] * row["kernel_width"]
    size = taps * row["channels"] * row["out_channels"] // row["argument"]
    return size, row["out_channels"], 0


OPERATIONS = {
    "conv": Op(write, True, _arrays, lambda row: row["out_height"] * row["out_width"], joins=True)
}
