"""Activations that stand alone, and sums of two values with the activation that follows."""

from __future__ import annotations

from ribbit._arrays.device import Launch, blocks_of
from ribbit._backends.cuda.layers.op import Op
from ribbit._backends.cuda.layers.panel import Backward, Cell, Panel, Row


def write(panel: Panel, number: int, row: Row) -> Backward:
    """Append value = f(a) or f(a + b); backward: the gradients of a and b."""
    out, size = panel.cells[number + 1], panel.count * row["out_size"]
    sources = [panel.cells[row[name]] for name in ("input", "second") if row[name] >= 0]
    a, b = sources[0], sources[1] if len(sources) > 1 else None
    if number not in [place for _, place in panel.sums.values()]:  # of which a norm makes the value
        panel.forward.append(
            Launch(
                f"Elementwise<{panel.scalar}, {panel.codes[number]}>",
                (
                    a.value,
                    a.chain_stride,
                    None if b is None else b.value,
                    0 if b is None else b.chain_stride,
                    out.value,
                    out.derivative,
                    out.chain_stride,
                    size,
                ),
                (blocks_of(size), 1, 1),
            )
        )

    def backward() -> None:
        for source in sources:
            if source.delta is None or source.leave(out):
                continue
            settle(panel, source)
            hand_down(panel, out, source)

    return backward


def settle(panel: Panel, cell: Cell) -> None:
    """Append what makes the part of a delta that was left to others."""
    left = cell.take()
    if left is not None:
        hand_down(panel, left, cell)


def hand_down(panel: Panel, out: Cell, source: Cell) -> None:
    """Append: the delta of a value is part of that of its source."""
    if source.delta == out.delta:  # lent
        source.add()
        return
    size = panel.count * out.size
    panel.backward.append(
        Launch(
            f"HandDown<{panel.scalar}>",
            (
                out.delta,
                out.chain_stride,
                source.delta,
                source.derivative,
                source.chain_stride,
                size,
                int(source.add()),
            ),
            (blocks_of(size), 1, 1),
        )
    )


OPERATIONS = {"activation": Op(write), "add": Op(write, True)}
