"""One scale for each array of a network's parameters, from where a chain goes and its gradients."""

# The mean square of a component of the gradient over the posterior is the mean curvature in its
# direction (Fisher's identity, where the density falls to 0 at its ends). Weights of one layer have
# about the same, those of different layers do not: that of the last layer is often a hundred times
# that of the others, and one step for all is then as small as the last layer needs it. With v the
# mean variance of an array's positions and r^2 the mean square of its gradients the scale s by
# which it is divided is s^4 = v / r^2: of all scales those come nearest to a standard normal, by
# the distance between gradients (Seyboldt, Carlson and Carpenter 2026, for each parameter by
# itself). Of a Gaussian that is its sd. Scales nearer to 1 / r make longer steps, of which more is
# bias. One scale for each parameter (tried as 1 / r and as its power 3/4) follows units that take
# each other's place, and is out of date before long: energy errors of single chains then had
# variances of hundreds per parameter, where a tenth was wanted. A layer's scale stays. Shapes: C
# chains, P parameters, K arrays.

from __future__ import annotations

import itertools
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.namespace import to_host
from ribbit.density import Density
from ribbit.protocols import Array
from ribbit.results.state import GradientSquares
from ribbit.samplers.mcmc.input_scales import InputScales
from ribbit.samplers.mcmc.options import inverse_mass

if TYPE_CHECKING:
    import numpy.typing as npt


HostArray: TypeAlias = "npt.NDArray[np.float64]"

# Numbers by which a mean square of gradients is drawn to that of all parameters, which is of the
# steepest: few of a single log noise are known, and a scale that is too small does less harm.
_DOUBT = 5.0

# A noise floor, in units of y, from which "inputs" is the default: with 0.01 a single row of energy
# is predicted as badly as without one, with 0.05 none is (docs/developer/ensemble_starts.md).
_FLOOR = 0.05


class LayerScales:
    """Inverse mass of chains, the same within each array of parameters."""

    def __init__(self, density: Density) -> None:
        starts = np.asarray(density.target.parameter_groups, np.int64)
        self._bounds = [*starts.tolist(), density.dim]
        self._sizes = np.diff(self._bounds)
        if self._bounds[0] != 0 or (self._sizes <= 0).any():
            raise ValueError(
                "[MCLMC] expected the target's parameter_groups to ascend from 0, below P = "
                f"{density.dim}, got {checks.summary(starts)}"
            )

    def start(self, chains: int) -> GradientSquares:
        """Nothing seen yet."""
        return GradientSquares(np.zeros((chains, len(self._sizes))), 0)

    def check(self, found: GradientSquares, chains: int) -> None:
        """Raise ValueError for sums of other arrays, or other chains."""
        wanted = chains, len(self._sizes)
        if found.sums.shape != wanted:
            raise ValueError(
                f"[MCLMC] expected sums of squared gradients {wanted} in the state's adaptation, "
                f"got {found.sums.shape}"
            )

    def update(self, xp: ModuleType, before: GradientSquares, grad: Array) -> GradientSquares:
        """Take the gradient (C, P) of one more position into account."""
        wide = xp.astype(grad, xp.float64)
        means = to_host(self._means(xp, wide * wide))
        return GradientSquares(before.sums + means, before.count + 1)

    def inverse_mass(self, xp: ModuleType, variance: Array, found: GradientSquares) -> HostArray:
        """Return s^2 (C, P) of the variances (C, P) of positions and the squares of gradients."""
        # NaN if these say nothing, such as those of a chain that has not moved.
        squares = self._doubted(found.sums / found.count, self._sizes * float(found.count))
        spread = to_host(self._means(xp, variance))
        known = np.isfinite(squares) & (squares > 0.0) & np.isfinite(spread) & (spread > 0.0)
        squares, spread = np.where(known, squares, np.nan), np.where(known, spread, np.nan)
        return np.repeat(np.sqrt(spread / squares), self._sizes, axis=1)

    def _means(self, xp: ModuleType, values: Array) -> Array:
        """Mean (C, K) of values (C, P) over each array."""
        bounds = itertools.pairwise(self._bounds)
        return xp.stack([xp.mean(values[:, a:b], axis=1) for a, b in bounds], axis=1)

    def _doubted(self, mean: HostArray, weight: npt.NDArray[np.float64]) -> HostArray:
        """Means (C, K) of `weight` (K,) numbers, drawn to the mean of all."""
        # no matmul: BLAS rounds by the number of chains
        overall = np.sum(mean * self._sizes, axis=1) / self._sizes.sum()
        drawn: HostArray = (weight * mean + _DOUBT * overall[:, None]) / (weight + _DOUBT)
        return drawn


def scales_of(
    density: Density, matrix: Array | str | None, *, auto: bool
) -> tuple[str | None, Array | None]:
    """Return where scales come from, "given" for an array, and what is fixed of them."""
    # auto: whether "auto" may be "layers" or "inputs", because no step or length is stated in other
    # coordinates. Adjusted chains of NumPyro's small network need 15 % more gradients with
    # "layers".
    name = "inverse_mass_matrix"
    has_layers = getattr(density.target, "parameter_groups", None) is not None
    if isinstance(matrix, str):
        checks.choice("MCLMC", name, matrix, ("auto", "prior", "adapt", "layers", "inputs"))
        if matrix == "auto" and auto and has_layers:
            floor = getattr(density.target, "noise_floor", None)
            floored = floor is not None and checks.real("MCLMC", "noise_floor", floor) >= _FLOOR
            return ("inputs" if floored and InputScales.lacks(density) is None else "layers"), None
        if matrix == "auto":
            return None, None
        if matrix == "inputs":
            lacks = InputScales.lacks(density)
            if lacks is None and not has_layers:
                lacks = f"{type(density.target).__name__} without parameter_groups"
            if lacks is not None:
                raise ValueError(
                    f"[MCLMC] expected a target with parameter_blocks for {name}='inputs', got "
                    f"{lacks}: 'layers' has a scale for each array"
                )
            return matrix, None
        if matrix == "layers":
            if not has_layers:
                raise ValueError(
                    f"[MCLMC] expected a target with parameter_groups for {name}='layers', got "
                    f"{type(density.target).__name__} without them"
                )
            return matrix, None
        return matrix, inverse_mass(density, matrix, "MCLMC")
    return (None if matrix is None else "given"), inverse_mass(density, matrix, "MCLMC")
