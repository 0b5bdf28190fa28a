"""Products of few rows, whose terms the warps of a block share out (``few_rows_kernels.h``)."""

from __future__ import annotations

from ribbit._arrays.device import Launch
from ribbit._backends.cuda.layers.products import Operand

MOST_ROWS = 512  # of a run: from there on tiles with all terms fill a device
_LEAST_TERMS, _LEAST_COLUMNS = 64, 17
_M, _N = 32, 16  # outputs of a block
# Bytes of the kernel's memory: two stages of 16 terms and padding for each warp, and the sums.
_SHARED = 4 * 8 * (2 * (_M + _N) * 20 + _M * _N)


def takes(scalar: str, run: int, n: int, k: int, passes: int) -> bool:
    """Whether a product is one of these: by shapes and the rows of a run, whatever the panel."""
    few = run <= MOST_ROWS and n >= _LEAST_COLUMNS and k >= _LEAST_TERMS
    return scalar == "float" and not passes and few


def product(a: Operand, b: Operand, sink: Operand, *, m: int, n: int, k: int) -> Launch:
    """Return the launch of sink(m, n) = sum over k of a(m, k) b(k, n) for every chain."""
    # a: rows in memory; b: a matrix in memory, transposed or not; sink: any.
    fours = (
        a.aligned and k % 4 == 0,
        b.aligned and (k if b.transposed else n) % 4 == 0,
        sink.aligned and n % 4 == 0,
    )
    vectors = ", ".join("4" if four else "1" for four in fours)
    return Launch(
        f"FewRowsProduct<{b.name}, {sink.name}, {vectors}>",
        (*a.fields, *b.fields, *sink.fields, m, n, k),
        (-(-m // _M), -(-n // _N), 1),
        chains_along=2,
        shared=_SHARED,
    )
