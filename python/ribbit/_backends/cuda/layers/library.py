"""Products of dense layers by a vendor's library, where what ends them is the library's, too.

An activation that it does not know would be a pass of its own over memory, which costs more than
the library saves; slopes are not made.
"""

from __future__ import annotations

from ribbit._arrays.device import WORKSPACE_BYTES, Launch, product_name
from ribbit._backends.codes import ACTIVATIONS
from ribbit._backends.cuda.layers.panel import Cell, Panel
from ribbit._backends.cuda.layers.products import Operand, aligned

__all__ = ["product"]

_NARROW = 64  # columns or terms up to which kernels of ribbit's own are kept
_IDENTITY, _RELU = ACTIVATIONS["identity"], ACTIVATIONS["relu"]


def product(
    panel: Panel,
    code: int,
    a: Operand,
    b: Operand,
    bias: tuple[int | None, int],
    out: Cell,
    *,
    n: int,
    k: int,
) -> Launch | None:
    """Return the launch of value = f(a b + bias), None where it is not one of the library's.

    code: of f. bias: address and numbers from chain to chain. By shapes and what the library takes:
    the same for every panel.
    """
    library, (at, stride) = panel.library, bias
    if library is None or code not in (_IDENTITY, _RELU) or out.derivative is not None:
        return None
    fits = a.aligned and b.aligned and aligned([at, out.value], [stride, out.chain_stride, n, k])
    if not fits or min(n, k) <= _NARROW or panel.scalar != "float":
        return None
    name = product_name(n, k, relu=code == _RELU, bias=at is not None)
    (a_base, a_stride, _), (b_base, b_stride, _) = a.fields, b.fields
    strides = a_stride, b_stride, out.chain_stride
    # A value that no mask reaches is there once, for all samples.
    batches = library.batches if out.chain_stride else (1,)
    if not library.products.takes(name, library.rows, batches, strides):
        return None
    given = a_base, a_stride, b_base, b_stride, at, stride, out.value, out.chain_stride
    return Launch(
        name,
        (*given, panel.count, library.workspace, WORKSPACE_BYTES),
        (1, 1, 1),
        chains_along=2,
    )
