"""Roots, inverses and norms of small matrices, without BLAS and LAPACK."""

# These choose their kernels, and with them the order of sums, by the processor and the number of
# threads: scales that went through them would have other bits on other machines. Here are sums in
# loops of `numpy.einsum`, the four operations and square roots alone, as many for each chain
# whatever the chains beside it. Shapes: C chains, a x a.

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


HostArray: TypeAlias = "npt.NDArray[np.float64]"

# Of Newton's iteration: the root of an eigenvalue that is x of the trace grows by half in each
# until it is near, and takes six more; enough for x = 1e-12, where rounding has the word. A chain
# whose error is `_NEAR` has one left, as errors are squared.
_ITERATIONS, _NEAR = 42, 1e-9
_SQUARINGS = 12  # of matrices up to 65 x 65: a norm is too small by a thousandth at most


def product(first: HostArray, *others: HostArray) -> HostArray:
    """Return the product (C, a, a) of matrices, from the left."""
    for other in others:
        first = np.einsum("cij,cjk->cik", first, other)
    return first


def inverse(matrix: HostArray) -> HostArray:
    """Return the inverses (C, a, a) of positive matrices, by elimination without pivots."""
    left = matrix.copy()
    for k in range(matrix.shape[1]):
        pivot = left[:, k, k].copy()
        row, column = left[:, k, :] / pivot[:, None], left[:, :, k].copy()
        left -= column[:, :, None] * row[:, None, :]
        left[:, k, :], left[:, :, k] = row, -column / pivot[:, None]
        left[:, k, k] = 1.0 / pivot
    return left


def roots(matrix: HostArray) -> tuple[HostArray, HostArray]:
    """Return the roots of positive matrices (C, a, a), and their inverses."""
    # Newton's iteration for both together, without inverses (Higham 2008, Functions of Matrices,
    # equation 6.35), of matrices whose trace is 1.
    one = np.eye(matrix.shape[1])
    trace = np.trace(matrix, axis1=1, axis2=2)[:, None, None]
    root, over = matrix / trace, np.repeat(one[None], len(matrix), axis=0)
    left = np.arange(len(matrix))
    for _ in range(_ITERATIONS):
        away = one - product(over[left], root[left])
        step = one + 0.5 * away
        root[left], over[left] = product(root[left], step), product(step, over[left])
        left = left[~(np.abs(away).max(axis=(1, 2)) < _NEAR)]
        if left.size == 0:
            break
    scale = np.sqrt(trace)
    return _even(root) * scale, _even(over) / scale


def stretch(matrix: HostArray) -> HostArray:
    """Return by how much (C,) matrices (C, a, a) stretch a vector at most."""
    # The mean of the eigenvalues of the product with its transpose, weighted by a high power of
    # them.
    squares = np.einsum("cji,cjk->cik", matrix, matrix)
    power = squares
    for _ in range(_SQUARINGS):
        power = power / np.trace(power, axis1=1, axis2=2)[:, None, None]
        power = product(power, power)
    weight = np.trace(power, axis1=1, axis2=2)
    found: HostArray = np.sqrt(np.einsum("cij,cji->c", power, squares) / weight)
    return found


def _even(matrix: HostArray) -> HostArray:
    """Symmetric to the last bit."""
    found: HostArray = 0.5 * (matrix + np.swapaxes(matrix, 1, 2))
    return found
