"""Dense layers, with the activation that follows."""

from __future__ import annotations

from ribbit._backends.cuda.layers import products
from ribbit._backends.cuda.layers.op import Op
from ribbit._backends.cuda.layers.panel import Backward, Panel, Row

__all__ = ["OPERATIONS"]


def write(panel: Panel, number: int, row: Row) -> Backward:
    """Append value = f(x W + b); backward: the gradients of W, b and x."""
    scalar, dim, count = panel.scalar, panel.dim, panel.count
    source, out = panel.cells[row["input"]], panel.cells[number + 1]
    inputs, outputs, bias = row["in_size"], row["out_size"], row["bias"]
    weight = panel.theta(row["weight"]) or 0
    sink = products.activation_sink(
        scalar,
        panel.codes[number],
        panel.theta(bias),
        dim,
        out.value,
        out.derivative,
        out.chain_stride,
        outputs,
    )
    x = products.matrix(scalar, source.value, source.chain_stride, inputs)
    w = products.matrix(scalar, weight, dim, outputs)
    passes = panel.passes
    panel.forward.append(
        products.product(
            scalar,
            x,
            w,
            sink,
            m=count,
            n=outputs,
            k=inputs,
            passes=passes.forward,
            chains=panel.chains,
        )
    )

    def backward() -> None:
        delta = products.matrix(scalar, out.delta or 0, out.chain_stride, outputs)
        left = products.matrix(scalar, source.value, source.chain_stride, inputs, transposed=True)
        products.weight_gradient(panel, number, left, delta, inputs, outputs, count, row)
        if source.delta is None:
            return
        back = products.matrix(scalar, weight, dim, outputs, transposed=True)
        into = products.delta_sink(scalar, source, inputs)
        panel.backward.append(
            products.product(
                scalar,
                delta,
                back,
                into,
                m=count,
                n=inputs,
                k=outputs,
                passes=passes.backward,
                chains=panel.chains,
            )
        )

    return backward


OPERATIONS = {
    "dense": Op(
        write,
        True,
        lambda row: (row["in_size"] * row["out_size"], row["out_size"], 0),
        lambda row: 1,
        joins=True,
    )
}
