"""Embeddings of tokens."""

from __future__ import annotations

from ribbit._arrays.device import Launch, blocks_of
from ribbit._backends.cuda.layers.op import Op
from ribbit._backends.cuda.layers.panel import Backward, Panel, Row

_TOKENS, _CHANNELS = 64, 32  # of a block of EmbeddingGradient


def write(panel: Panel, number: int, row: Row) -> Backward:
    """Append value = rows of the table; backward: the gradient of the table."""
    source, out = panel.cells[row["input"]], panel.cells[number + 1]
    scalar, dim, vocabulary, channels = panel.scalar, panel.dim, row["argument"], row["channels"]
    positions = panel.count * row["in_size"]
    tokens = (source.value, source.chain_stride)
    panel.forward.append(
        Launch(
            f"Embedding<{scalar}>",
            (
                *tokens,
                panel.theta(row["weight"]),
                dim,
                out.value,
                out.chain_stride,
                positions,
                vocabulary,
                channels,
            ),
            (blocks_of(panel.count * out.size), 1, 1),
        )
    )

    def backward() -> None:
        first, slices, length = panel.cut(number, positions)
        place = (panel.grad, dim, 0, row["weight"])
        if panel.slices[number].count > 1:
            arrays = ((row["weight"], vocabulary * channels),)
            sums = panel.partials(arrays, panel.slices[number].count)
            place = (sums.slice(first, panel.itemsize), sums.size, sums.slice_stride, 0)
        panel.backward.append(
            Launch(
                f"EmbeddingGradient<{scalar}>",
                (
                    *tokens,
                    out.delta,
                    out.chain_stride,
                    *place,
                    positions,
                    vocabulary,
                    channels,
                    slices,
                    length,
                    int(panel.adds),
                ),
                (-(-vocabulary // _TOKENS), -(-channels // _CHANNELS), slices),
                chains_along=2,
            )
        )

    return backward


OPERATIONS = {
    "embedding": Op(
        write,
        arrays=lambda row: (row["argument"] * row["channels"], 0, 0),
        terms=lambda row: row["in_size"],
    )
}
