"""Dense layers, with the activation that follows."""

from __future__ import annotations

from ribbit._arrays.device import Launch
from ribbit._backends.cuda.layers import few_rows, last_layers, products
from ribbit._backends.cuda.layers.op import Op
from ribbit._backends.cuda.layers.panel import Backward, Panel, Row
from ribbit._backends.cuda.layers.products import Operand


def write(panel: Panel, number: int, row: Row) -> Backward:
    """Append value = f(x W + b); backward: the gradients of W, b and x."""
    if number in panel.made:
        return lambda: None
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
    passes, launch = panel.passes, _with_last(panel, number, row, x, w)
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


def _with_last(panel: Panel, number: int, row: Row, x: Operand, w: Operand) -> Launch | None:
    """Return the launch of a layer and of the last one, None where they are not made together."""
    scalar, dim, sizes = panel.scalar, panel.dim, (row["out_size"], row["in_size"])
    if number not in panel.last or scalar != "float" or panel.passes.forward != 1:
        return None
    behind, its_row = panel.last[number]
    out, outputs = panel.cells[behind + 1], its_row["out_size"]
    if not last_layers.takes(*sizes, outputs):
        return None
    sink = products.activation_sink(
        scalar,
        panel.codes[behind],
        panel.theta(its_row["bias"]),
        dim,
        out.value,
        None,
        out.chain_stride,
        outputs,
    )
    weight, stride = panel.theta(its_row["weight"]) or 0, dim if panel.chains > 1 else 0
    launch = last_layers.launch(
        x,
        w,
        (panel.theta(row["bias"]), dim),
        products.matrix(scalar, weight, stride, outputs),
        panel.codes[number],
        sink,
        m=panel.count,
        n=sizes[0],
        k=sizes[1],
        outputs=outputs,
        chains=panel.chains,
        room=panel.block_shared,
    )
    if launch is not None:
        panel.made.add(behind)
    return launch


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
