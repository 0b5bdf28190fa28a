"""The last dense layer, the likelihood and the way back through both (``tail_kernels.h``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ribbit._arrays.device import STATIC_SHARED, THREADS, Launch
from ribbit._backends.codes import OPS
from ribbit._backends.cuda.layers.panel import Cell, Panel, Row

_MOST_OUTPUTS = 16
_MOST_SHARED = 112 * 1024  # bytes that let two blocks share a multiprocessor of sm_90
# Rows of a block, up to how many of a run: where they are few, blocks are to be many.
_ROWS = ((1024, (8,)), (2048, (16,)), (1 << 62, (64, 32, 16)))


def block_rows(rows: Sequence[Row], codes: Sequence[int], run: int) -> int:
    """Return the rows of a block, 0 if the last layer is not for this kernel; by shapes."""
    last = rows[-1]
    fits = (
        len(rows) > 1
        and last["op"] == OPS["dense"]
        and codes[len(rows) - 1] == 0
        and last["out_size"] <= _MOST_OUTPUTS
        and last["in_size"] % 4 == 0
    )
    wanted = next(some for most, some in _ROWS if run <= most)
    sizes = (last["in_size"], last["out_size"])
    return next((n for n in wanted if shared_bytes(*sizes, n) <= _MOST_SHARED), 0) if fits else 0


def shared_bytes(inputs: int, outputs: int, rows: int, parts: int = 1) -> int:
    """Return the bytes of `Tail`'s `Shared`, which has the inputs of a part of the rows."""
    wide, line = -(-outputs // 4) * 4, inputs + (16 - inputs) % 32
    each = 2 if rows >= 32 else 1
    return (
        4 * (rows // parts * line + inputs * wide + THREADS * each * wide + 2 * rows * wide)
        + 8 * THREADS
    )


def write(
    panel: Panel,
    block: int,  # of `block_rows`
    source: Cell,  # the layer's inputs
    row: Row,  # the last one
    kind: int,  # of the likelihood
    # members of the kernel: from y to the weight, and where the sums go
    likelihood: tuple[Any, Any],
    *,
    steps: bool,  # the inputs are those of a ReLU, whose slopes are not read
) -> tuple[Launch, Launch]:
    """Return the launch that ends a forward pass, and the one that begins the backward pass."""
    inputs, outputs, bias = row["in_size"], row["out_size"], row["bias"]
    arrays = ((row["weight"], inputs * outputs), *([(bias, outputs)] if bias >= 0 else []))
    sums = panel.partials(arrays, panel.slices[len(panel.codes) - 1].count)
    first = panel.first % panel.run // block
    given, places = likelihood
    assert not source.add()
    head = (
        source.value,
        source.derivative,
        source.delta,
        source.chain_stride,
        panel.theta(row["weight"]),
        panel.theta(bias),
        panel.dim,
        *given,
    )
    parts = 1 if shared_bytes(inputs, outputs, block) <= panel.block_shared else 2
    size = shared_bytes(inputs, outputs, block, parts)
    sizes = f"{kind}, {inputs}, {outputs}, {block}, {'true' if steps else 'false'}"

    def launch(backward: int) -> Launch:
        return Launch(
            f"Tail<{sizes}>" if parts == 1 else f"Tail<{sizes}, {parts}>",
            (
                *head,
                backward,
                sums.slice(first, panel.itemsize),
                sums.size,
                sums.slice_stride,
                int(panel.adds),
                *places,
            ),
            (-(-panel.count // block), 1, 1),
            shared=size if size > STATIC_SHARED else 0,
        )

    return launch(0), launch(1)
