"""Pools: the largest value of a window, or the mean."""

from __future__ import annotations

from ribbit._arrays.device import Launch, blocks_of
from ribbit._backends.codes import OPS
from ribbit._backends.cuda.layers.op import Op
from ribbit._backends.cuda.layers.panel import Backward, Panel, Row
from ribbit._backends.cuda.layers.window import sliding


def write(panel: Panel, number: int, row: Row) -> Backward:
    """Append the largest of each window, or the mean; backward: the gradient of x."""
    source, out = panel.cells[row["input"]], panel.cells[number + 1]
    largest = "true" if row["op"] == OPS["max_pool"] else "false"
    types = f"<{panel.scalar}, {sliding(row)}, {largest}>"
    given = (source.value, source.chain_stride, out.value)
    panel.forward.append(
        Launch(
            f"Pool{types}",
            (*given, out.chain_stride, panel.count),
            (blocks_of(panel.count * out.size), 1, 1),
        )
    )

    def backward() -> None:
        if source.delta is None:
            return
        panel.backward.append(
            Launch(
                f"PoolBackward{types}",
                (
                    *given,
                    out.delta,
                    out.chain_stride,
                    source.delta,
                    source.derivative,
                    source.chain_stride,
                    panel.count,
                    int(source.add()),
                ),
                (blocks_of(panel.count * source.size), 1, 1),
            )
        )

    return backward


OPERATIONS = {"max_pool": Op(write), "average_pool": Op(write)}
