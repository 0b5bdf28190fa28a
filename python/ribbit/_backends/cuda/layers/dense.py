"""Dense layers, with the activation that follows."""

from __future__ import annotations

from ribbit._arrays.device import Launch
from ribbit._backends.cuda.layers import few_rows, library, products
from ribbit._backends.cuda.layers.op import Op
from ribbit._backends.cuda.layers.panel import Backward, Panel, Row
from ribbit._backends.cuda.layers.products import Operand

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
    stride = dim if panel.chains > 1 else 0  # of one chain nothing lies behind
    w = products.matrix(scalar, weight, stride, outputs)
    passes, code, added = panel.passes, panel.codes[number], (panel.theta(bias), dim)
    launch = library.product(panel, code, x, w, added, out, n=outputs, k=inputs)
    if launch is None:
        launch = _product(panel, x, w, sink, count, outputs, inputs, passes.forward)
    panel.forward.append(launch)

    def backward() -> None:
        delta = products.matrix(scalar, out.delta or 0, out.chain_stride, outputs)
        left = products.matrix(scalar, source.value, source.chain_stride, inputs, transposed=True)
        products.weight_gradient(panel, number, left, delta, inputs, outputs, count, row)
        if source.delta is None:
            return
        back = products.matrix(scalar, weight, stride, outputs, transposed=True)
        into = products.delta_sink(scalar, source, inputs)
        ways = count, inputs, outputs, passes.backward
        panel.backward.append(_product(panel, delta, back, into, *ways))

    return backward


def _product(
    panel: Panel, a: Operand, b: Operand, sink: Operand, m: int, n: int, k: int, passes: int
) -> Launch:
    if panel.gradients and few_rows.takes(panel.scalar, panel.run, n, k, passes):
        return few_rows.product(a, b, sink, m=m, n=n, k=k)
    return products.product(
        panel.scalar,
        a,
        b,
        sink,
        m=m,
        n=n,
        k=k,
        passes=passes,
        chains=panel.chains,
        room=panel.block_shared,
    )


OPERATIONS = {
    "dense": Op(
        write,
        True,
        lambda row: (row["in_size"] * row["out_size"], row["out_size"], 0),
        lambda row: 1,
        joins=True,
    )
}
