"""The last two dense layers of predictions in TF32 as one launch (``last_layers_kernels.h``)."""

# Where it pays is decided by shapes alone, never by how many rows or samples there are, or how much
# memory a block has: the order of its additions is its own.

from __future__ import annotations

import math

from ribbit._arrays.device import STATIC_SHARED, Launch
from ribbit._backends.cuda.layers.products import (
    DEPTH,
    L2_RATE,
    MOST_STRIDE,
    MOST_WIDE,
    PROCESSORS,
    TENSOR_RATE,
    Operand,
    tensor_time,
)

_LEAST, _MOST_OUTPUTS = 65, 16
_COLUMNS = (128, 192, 256, 320, 416)  # of a block: all that there are, and what is beyond them
_ROWS = (32, 64, 128, 256)
_MOST_FRAGMENTS = 52  # of a warp, of 16 rows by 8 columns: what its registers hold
_MANY = 4096  # rows of each multiprocessor, for which it is decided
_MEMORY_RATE = 13  # bytes of an H100's device memory for each multiprocessor and clock, assumed


def takes(n: int, k: int, outputs: int) -> bool:
    """Whether one launch beats a wide product (n columns, k terms) and a narrow one."""
    if not _LEAST <= n <= _COLUMNS[-1] or outputs > _MOST_OUTPUTS:
        return False
    copies = PROCESSORS
    one = min(_time(rows, _MANY, n, k, outputs, copies) for rows in _ROWS)
    wide = -(-k // DEPTH) * tensor_time(_MANY, n, 1, copies)
    moved = 4 * _MANY / _MEMORY_RATE
    return one < max(wide, (k + n) * moved) + n * moved


def launch(
    a: Operand,
    b: Operand,
    bias: tuple[int | None, int],
    last: Operand,
    code: int,
    sink: Operand,
    *,
    m: int,
    n: int,
    k: int,
    outputs: int,
    chains: int,
    room: int,
) -> Launch | None:
    """Return the launch of sink = f(a b + bias) last for every chain, None for sizes beyond it."""
    # bias: address, and numbers from chain to chain. chains and room decide the tile and no bit.
    strides = a.fields[2], b.fields[2], last.fields[2]
    if max(m, n, k) >= MOST_WIDE or max(strides) >= MOST_STRIDE:
        return None
    columns = _columns(n)
    fitting = [rows for rows in _ROWS if _shared(rows, columns) <= room]
    rows = min(fitting, key=lambda rows: _time(rows, m, n, k, outputs, chains))
    four_a, four_b = a.aligned and k % 4 == 0, b.aligned and n % 4 == 0
    sizes = f"{rows}, {columns}, {4 if four_a else 1}, {4 if four_b else 1}"
    size = _shared(rows, columns)
    return Launch(
        f"LastLayers<{code}, {sink.name}, {sizes}>",
        (*a.fields, *b.fields, *bias, *last.fields, *sink.fields, m, n, k, outputs),
        (-(-m // rows), 1, 1),
        chains_along=2,
        shared=size if size > STATIC_SHARED else 0,
    )


def _columns(n: int) -> int:
    return next(columns for columns in _COLUMNS if n <= columns)


def _shared(rows: int, columns: int) -> int:
    """Return the bytes of the kernel's `Shared`: stages of terms, parts of sums, the bias."""
    parts = 2 * 16 * (2 * rows + 8)
    return 4 * (3 * DEPTH * (columns + 8) + max(3 * rows * (DEPTH + 4), parts) + columns)


def _time(rows: int, m: int, n: int, k: int, outputs: int, copies: int) -> float:
    """Return the clocks of the busiest multiprocessor by tiles of some rows: the paper's model."""
    columns, steps = _columns(n), -(-k // DEPTH)
    high, wide = rows // 32, columns // 32  # fragments of a warp
    if high * wide > _MOST_FRAGMENTS:
        return math.inf
    turns = -(-(-(-m // rows) * copies) // PROCESSORS)
    multiplied = steps * rows * columns * DEPTH / TENSOR_RATE
    read = steps * 4 * DEPTH * (rows + n) / L2_RATE
    # Instructions of a step, of two outputs and of the rest, near to what is counted.
    step = 2 * high * wide + 10 * high + 11 * wide + 50
    pair, rest = 8 * high * wide + 100, 22 * high * wide + 500
    resident = min(turns, 2 if high * wide <= 20 else 1)
    issued = 2 * (steps * step + -(-outputs // 2) * pair + rest)
    return turns * max(multiplied, read, issued / min(0.9, 0.45 + 0.3 * resident))
