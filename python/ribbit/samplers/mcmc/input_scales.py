"""One matrix for the inputs of each layer, from where a chain goes and its gradients."""

# Inputs of a layer go together: units of a tanh layer see the same rows, and the mean of a unit
# goes with its bias. In coordinates in which they do not the step is limited by no single
# direction. With V the second moment of a block's positions about their mean and R that of its
# gradients, both the mean over its units, the matrix is M = S S, the geometric mean of V and the
# inverse of R, of all matrices the one whose whitened coordinates S^-1 (positions) come nearest to
# a standard normal, by the distance between gradients (Seyboldt, Carlson and Carpenter 2026). Of a
# Gaussian whose units are alike that is their covariance. Shapes: C chains, P parameters, B blocks
# of a inputs and b units, M the sum of a^2 over blocks.

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import to_host
from ribbit.density import Density
from ribbit.protocols import Array
from ribbit.results.state import InputProducts
from ribbit.samplers.mcmc import matrices

if TYPE_CHECKING:
    import numpy.typing as npt


HostArray: TypeAlias = "npt.NDArray[np.float64]"

_DOUBT = 50.0  # vectors by which a moment is drawn to a multiple of the identity


class Whitening(NamedTuple):
    """Coordinates z of positions: theta = scale times the mixed z."""

    inverse_mass: HostArray  # (C, P): squares of the scales; of a block's parameters all the same
    mixing: HostArray  # (C, M): symmetric matrices whose squares have a mean diagonal of 1
    # (C,): root of the sum of the variances of a window's positions in these coordinates
    spread: HostArray


class InputScales:
    """Matrices of the blocks of a target."""

    def __init__(self, density: Density) -> None:
        self.blocks = blocks_of(density)
        end = 0
        for first, inputs, outputs in self.blocks.tolist():
            if first < end or inputs < 1 or outputs < 1 or first + inputs * outputs > density.dim:
                raise ValueError(
                    "[MCLMC] expected the target's parameter_blocks to ascend from 0, below P = "
                    f"{density.dim}, got {checks.summary(self.blocks)}"
                )
            end = first + inputs * outputs
        self._size = int((self.blocks[:, 1] ** 2).sum())

    @staticmethod
    def lacks(density: Density) -> str | None:
        """Return what a target lacks to have matrices, or None."""
        if density.xp is not np:
            return "arrays of another library than NumPy"
        blocks = getattr(density.target, "parameter_blocks", None)
        if blocks is None:
            return f"{type(density.target).__name__} without them"
        return None if len(blocks) else "no layer of at most 64 inputs"

    def start(self, chains: int) -> InputProducts:
        """Nothing seen yet."""
        zero = np.zeros((chains, self._size))
        return InputProducts(zero, zero, 0)

    def identity(self, chains: int) -> HostArray:
        """Matrices (C, M) that mix nothing."""
        one = np.concatenate([np.eye(a).ravel() for a in self.blocks[:, 1].tolist()])
        return np.repeat(one[None], chains, axis=0)

    def check(self, matrices: Array, chains: int) -> None:
        """Raise ValueError for matrices of other blocks, or other chains."""
        wanted = chains, self._size
        if tuple(matrices.shape) != wanted:
            raise ValueError(
                f"[MCLMC] expected a state with matrices {wanted} of the target's "
                f"parameter_blocks, got {tuple(matrices.shape)}"
            )

    def check_scales(self, inverse_mass: Array | None, chains: int) -> None:
        """Raise ValueError for scales that do not commute with matrices: unequal in a block."""
        fits = False
        if inverse_mass is not None and inverse_mass.ndim == 2 and len(inverse_mass) == chains:
            ends = [(first, first + a * b) for first, a, b in self.blocks.tolist()]
            parts = [inverse_mass[:, first:end] for first, end in ends]
            fits = all(bool((part == part[:, :1]).all()) for part in parts)
        if not fits:
            raise ValueError(
                "[MCLMC] expected a state with matrices to have an inverse_mass (C, P) that is the "
                "same within each of the target's parameter_blocks, got another"
            )

    def update(
        self, before: InputProducts, mean: Array, position: Array, grad: Array
    ) -> InputProducts:
        """Take one more position (C, P) and its gradient into account; `mean`: of those before."""
        count = before.count + 1
        away = np.asarray(to_host(position), np.float64) - to_host(mean)
        away *= ((count - 1.0) / count) ** 0.5
        slope = np.asarray(to_host(grad), np.float64)
        return InputProducts(
            before.positions + self._products(away), before.gradients + self._products(slope), count
        )

    def whitening(
        self, found: InputProducts, variance: HostArray, inverse_mass: HostArray
    ) -> Whitening:
        """Return what a window with variances (C, P) has found, beside scales of arrays (C, P)."""
        # Scales of arrays stay for what lies in no block, and if a block's moments say nothing.
        scales, squares = inverse_mass.copy(), variance / inverse_mass
        mixing = self.identity(len(scales))
        for (first, a, b), at in zip(self.blocks.tolist(), self._places(), strict=True):
            place = slice(first, first + a * b)
            weight = b * float(found.count)
            v = found.positions[:, at].reshape(-1, a, a) / (found.count - 1.0)
            r = found.gradients[:, at].reshape(-1, a, a) / found.count
            known = np.isfinite(v).all(axis=(1, 2)) & np.isfinite(r).all(axis=(1, 2))
            known &= (np.trace(v, axis1=1, axis2=2) > 0.0) & (np.trace(r, axis1=1, axis2=2) > 0.0)
            if not known.any():
                continue
            spread = v[known]
            metric = _between(_drawn(v[known], weight), _drawn(r[known], weight))
            scale = np.trace(metric, axis1=1, axis2=2) / a
            root, over = matrices.roots(metric / scale[:, None, None])
            mixing[known, at] = root.reshape(-1, a * a)
            scales[known, place] = scale[:, None]
            whitened = np.einsum("cij,cjk,cki->ci", over, spread, over)
            squares[known, place] = np.repeat(whitened / scale[:, None], b, axis=1)
        return Whitening(scales, mixing, np.sqrt(squares.sum(axis=1)))

    def spread(
        self,
        found: InputProducts,
        variance: HostArray,
        inverse_mass: HostArray,
        mixing: HostArray,
    ) -> HostArray:
        """Return the spread (C,) of a window's positions in coordinates that are there."""
        squares = variance / inverse_mass
        for (first, a, b), at in zip(self.blocks.tolist(), self._places(), strict=True):
            v = found.positions[:, at].reshape(-1, a, a) / (found.count - 1.0)
            over = matrices.inverse(mixing[:, at].reshape(-1, a, a))
            own = np.einsum("cij,cjk,cki->ci", over, v, over)
            scale = inverse_mass[:, first : first + a * b].reshape(-1, a, b)
            squares[:, first : first + a * b] = (own[:, :, None] / scale).reshape(-1, a * b)
        found_spread: HostArray = np.sqrt(squares.sum(axis=1))
        return found_spread

    def growth(
        self,
        before: tuple[HostArray, HostArray],
        after: tuple[HostArray, HostArray],
    ) -> HostArray:
        """Return by how much (C,) a step of new coordinates is longer than of old, at most."""
        # Each: inverse mass (C, P) and mixing (C, M).
        ratio = np.sqrt(after[0] / before[0])
        for (first, a, b), at in zip(self.blocks.tolist(), self._places(), strict=True):
            old, new = (one[1][:, at].reshape(-1, a, a) for one in (before, after))
            place = slice(first, first + a * b)
            turned = matrices.product(matrices.inverse(old), new)
            ratio[:, place] *= matrices.stretch(turned)[:, None]
        largest: HostArray = ratio.max(axis=1)
        return largest

    def _places(self) -> list[slice]:
        ends = np.cumsum(self.blocks[:, 1] ** 2).tolist()
        return [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]

    def _products(self, values: HostArray) -> HostArray:
        """Products (C, M) of the inputs of values (C, P), the mean over units."""
        parts = []
        for first, a, b in self.blocks.tolist():
            own = values[:, first : first + a * b].reshape(-1, a, b)
            # no matmul: BLAS may round by the number of threads
            parts.append(np.einsum("cik,cjk->cij", own, own).reshape(-1, a * a) / b)
        return np.concatenate(parts, axis=1)


def blocks_of(density: Density) -> npt.NDArray[np.int64]:
    """Return a target's blocks (B, 3); ValueError for what are none."""
    given = np.asarray(density.target.parameter_blocks)
    if given.ndim != 2 or given.shape[1] != 3 or not np.issubdtype(given.dtype, np.integer):
        raise ValueError(
            "[MCLMC] expected the target's parameter_blocks as (B, 3) ints, got "
            f"{given.dtype} {given.shape}"
        )
    return np.ascontiguousarray(given, np.int64)


def _drawn(moment: HostArray, weight: float) -> HostArray:
    """Moments (C, a, a) of `weight` vectors, drawn to a multiple of the identity."""
    a = moment.shape[1]
    mean = np.trace(moment, axis1=1, axis2=2)[:, None, None] / a
    drawn: HostArray = (weight * moment + _DOUBT * mean * np.eye(a)) / (weight + _DOUBT)
    return drawn


def _between(v: HostArray, r: HostArray) -> HostArray:
    """Geometric mean of v and the inverse of r (C, a, a)."""
    root, over = matrices.roots(r)
    middle, _ = matrices.roots(matrices.product(root, v, root))
    found = matrices.product(over, middle, over)
    mean: HostArray = 0.5 * (found + np.swapaxes(found, 1, 2))
    return mean
