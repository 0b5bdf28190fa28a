"""LSTMs."""

from __future__ import annotations

from ribbit._backends.cuda.layers import products
from ribbit._backends.cuda.layers.op import Op
from ribbit._backends.cuda.layers.panel import Backward, Panel, Row
from ribbit._backends.cuda.layers.products import Operand

_GATE_COLUMNS = 64  # of a tile, for 16 units


def write(panel: Panel, number: int, row: Row) -> Backward:
    """Append the last state, or all; backward: the gradients of the three arrays and of x."""
    source, out = panel.cells[row["input"]], panel.cells[number + 1]
    scalar, dim, count = panel.scalar, panel.dim, panel.count
    steps, channels, units = row["width"], row["channels"], row["out_channels"]
    everything = row["argument"] != 0
    # What is kept, one after the other: gates and cells of all steps, delta of the cell, and the
    # states where the layer gives the last one alone.
    gates, stride = panel.state(number)
    cells, _ = panel.state(number, 4 * steps * units)
    cell_delta, _ = panel.state(number, 5 * steps * units)
    states, states_stride = panel.state(number, 5 * steps * units + units)
    if everything:
        states, states_stride = out.value, out.chain_stride
    recurrent = panel.theta(row["third"]) or 0
    weight = panel.theta(row["weight"]) or 0

    def at(address: int, step: int, width: int = units) -> int:
        return address + step * width * panel.itemsize

    inputs = products.activation_sink(
        scalar, 0, panel.theta(row["bias"]), dim, gates, None, stride, 4 * units
    )
    panel.forward.append(
        products.product(
            scalar,
            products.matrix(scalar, source.value, source.chain_stride, channels),
            products.matrix(scalar, weight, dim, 4 * units),
            inputs,
            m=count * steps,
            n=4 * units,
            k=channels,
            passes=panel.passes.forward,
            room=panel.block_shared,
        )
    )
    for step in range(steps):
        wanted = not everything and step + 1 == steps
        sink = Operand(
            f"LstmSink<{scalar}>",
            (
                at(gates, step, 4 * units),
                at(cells, step),
                at(states, step),
                out.value if wanted else None,
                stride,
                stride,
                states_stride,
                out.chain_stride,
                units,
                steps,
                step,
            ),
        )
        before = at(states, max(step - 1, 0))
        panel.forward.append(
            products.product(
                scalar,
                products.matrix(scalar, before, states_stride, steps * units),
                Operand(f"GateColumns<{scalar}>", (recurrent, dim, units)),
                sink,
                m=count,
                n=-(-units // (_GATE_COLUMNS // 4)) * _GATE_COLUMNS,
                k=units if step > 0 else 0,
                passes=panel.passes.forward,
                room=panel.block_shared,
                joins=True,
            )
        )

    def backward() -> None:
        for step in reversed(range(steps)):
            given = out.delta or 0
            if everything:
                given = at(given, step)
            last = step + 1 == steps
            sink = Operand(
                f"LstmBackSink<{scalar}>",
                (
                    at(gates, step, 4 * units),
                    at(cells, step),
                    cell_delta,
                    given if everything or last else None,
                    stride,
                    out.chain_stride,
                    out.size,
                    units,
                    steps,
                    step,
                ),
            )
            behind = at(gates, min(step + 1, steps - 1), 4 * units)
            panel.backward.append(
                products.product(
                    scalar,
                    products.matrix(scalar, behind, stride, steps * 4 * units),
                    products.matrix(scalar, recurrent, dim, 4 * units, transposed=True),
                    sink,
                    m=count,
                    n=units,
                    k=0 if last else 4 * units,
                    passes=panel.passes.backward,
                    room=panel.block_shared,
                    chains=panel.chains,
                )
            )
        deltas = products.matrix(scalar, gates, stride, 4 * units)
        left = products.matrix(scalar, source.value, source.chain_stride, channels, transposed=True)
        terms = count * steps
        products.weight_gradient(panel, number, left, deltas, channels, 4 * units, terms, row)
        earlier = Operand(f"StatesBefore<{scalar}, {steps}>", (states, states_stride, units))
        third = {**row, "weight": row["third"], "bias": -1}
        products.weight_gradient(panel, number, earlier, deltas, units, 4 * units, terms, third)
        if source.delta is None:
            return
        into = products.delta_sink(scalar, source, channels)
        panel.backward.append(
            products.product(
                scalar,
                deltas,
                products.matrix(scalar, weight, dim, 4 * units, transposed=True),
                into,
                m=count * steps,
                n=channels,
                k=4 * units,
                passes=panel.passes.backward,
                room=panel.block_shared,
                chains=panel.chains,
            )
        )

    return backward


def _arrays(row: Row) -> tuple[int, int, int]:
    units = row["out_channels"]
    return row["channels"] * 4 * units, 4 * units, units * 4 * units


def _state(row: Row) -> int:
    # gates and cells of all steps, delta of the cell, states if not given
    steps, units = row["width"], row["out_channels"]
    return (5 if row["argument"] else 6) * steps * units + units


OPERATIONS = {"lstm": Op(write, False, _arrays, lambda row: row["width"], _state, joins=True)}
