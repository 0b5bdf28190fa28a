"""A posterior whose last layer is integrated out: what is left of it, and what comes back."""

# With a Gaussian likelihood and a normal prior the weights of the last dense layer, given all other
# parameters, are normal: their integral is a closed form (``cpp/cpu/density/last_layer.h``), and
# exact draws of them complete a position. Shapes: C chains, P parameters of the whole posterior, R
# of what is left, H units below the last layer, J outputs, K = H + 1 with a bias, else H.

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ribbit._arrays import checks
from ribbit._arrays.checks import FloatArray
from ribbit._backends.codes import COLUMNS, OPS
from ribbit._backends.density_table import DensityTable, IntegratedLayer
from ribbit.errors import DTypeError, ShapeError
from ribbit.targets.likelihoods import Gaussian
from ribbit.targets.prior_table import PriorTable
from ribbit.targets.priors import Normal
from ribbit.targets.spec import DensitySpec, digest

if TYPE_CHECKING:
    import numpy.typing as npt

# Plain gradients that one with the layer integrated out may cost, by count. Where it took 3.7 times
# as long (8-30-1) effective samples per second doubled, where 4.8 (8-50-1) they did not.
_MOST = 4.0


@dataclass(frozen=True, eq=False)
class IntegratedSpec(DensitySpec):
    """The arguments of a posterior with its last layer integrated out."""

    whole: DensitySpec  # the posterior of all P parameters
    layer: IntegratedLayer  # what is integrated out

    def __reduce__(self) -> tuple[Any, ...]:
        return integrate, ("Posterior", self.whole)

    @property
    def below(self) -> int:
        """Parameters of the layers below the last one; the first ones of a position."""
        return self.model.dim - self.layer.mean.size

    @property
    def dim(self) -> int:
        """Number of parameters R that are left, a learned noise included."""
        return self.whole.dim - self.layer.mean.size

    @property
    def parameter_groups(self) -> npt.NDArray[np.int64]:
        """Place (K,) of the first number of each array that is left, ascending."""
        starts = self.whole.parameter_groups
        left: npt.NDArray[np.int64] = starts[starts < self.below]
        return np.append(left, self.below) if self.below < self.dim else left

    @property
    def parameter_blocks(self) -> npt.NDArray[np.int64]:
        """As those of the whole posterior, of the layers that are left."""
        blocks = self.whole.parameter_blocks
        left: npt.NDArray[np.int64] = blocks[blocks[:, 0] < self.below]
        return left

    def density_table(self, **options: Any) -> DensityTable:
        """Return what the log density is made of; no option fits here."""
        if options:
            raise TypeError(f"[Posterior] expected no {next(iter(options))} of an integrated layer")
        table = self.model.table if self.layer.alone else self.model.table[:-1]
        return replace(super().density_table(), table=table, integrated=self.layer)

    def rows(self, chosen: npt.NDArray[np.int64]) -> IntegratedSpec:
        """Return the same with the rows `chosen` (n,) alone, a copy of them."""
        return integrate("Posterior.subset", self.whole.rows(chosen))

    def init(
        self,
        seed: checks.Seed = 0,
        chains: int | npt.ArrayLike | None = None,
        *,
        scheme: str = "he",
    ) -> FloatArray:
        """Draw a starting position: that of the whole posterior, without the last layer."""
        start: FloatArray = self.reduce(
            "Posterior.init", self.whole.init(seed, chains, scheme=scheme)
        )
        return start

    def reduce(self, function: str, position: Any) -> Any:
        """Return a position (..., R) as it is, and (..., P) without the last layer."""
        shape = getattr(position, "shape", None)
        if not isinstance(shape, tuple):
            raise DTypeError(
                f"[{function}] expected a position as array, got {checks.summary(position)}"
            )
        if shape and shape[-1] == self.whole.dim:
            end = self.model.dim
            return np.concatenate([position[..., : self.below], position[..., end:]], axis=-1)
        if not shape or shape[-1] != self.dim:
            raise ShapeError(
                f"[{function}] expected a position (..., {self.dim}), or (..., {self.whole.dim}) "
                f"with the last layer, got shape {shape}"
            )
        return position

    def describe(self) -> dict[str, Any]:
        """Return that of the whole posterior, and how many weights are integrated out."""
        return {**self.whole.describe(), "integrated": self.layer.mean.size}

    @functools.cached_property
    def fingerprint(self) -> dict[str, str]:
        """As that of the whole posterior, which it differs from."""
        table = self.whole.table
        own = {"prior": digest(table.rows, table.mean, "last layer"), "integrated": "last layer"}
        return self.whole.fingerprint | own


def pays(spec: DensitySpec) -> bool:
    """Return whether integrating the last layer out costs little enough, by multiply-adds."""
    # Of a row, with m weights of which K J are the last layer's: 3 m in a plain gradient; on top of
    # it a second forward pass, K' (K' + 1) for the products in float64, which count twice (K' = K +
    # J), and H^2 for the deltas. The inverse takes K^3 for all rows. Layers that share weights are
    # undercounted, so that networks of them are left alone.
    row = dict(zip(COLUMNS, spec.model.table[-1].tolist(), strict=True))
    if row["op"] != OPS["dense"] or len(spec.model.table) == 1 or spec.backend.device is not None:
        return False
    inputs, outputs, plain = row["in_size"], row["out_size"], 3.0 * spec.model.dim
    terms = inputs + (row["bias"] >= 0)
    columns = terms + outputs
    again = spec.model.dim - terms * outputs
    extra = again + columns * (columns + 1) + inputs**2 + terms**3 / spec.num_rows
    return bool(plain + extra <= _MOST * plain)


def integrate(name: str, spec: DensitySpec) -> IntegratedSpec:
    """Return what is left of a posterior once its last layer is integrated out."""
    what = f"[{name}] expected marginalize='last_layer' with"
    model, layer = spec.model, spec.model.layers[-1]
    if type(spec.likelihood) is not Gaussian:
        raise TypeError(f"{what} a Gaussian likelihood, got {spec.likelihood!r}")
    if len(spec.likelihood.scales(model.output_shape)) > 1:
        raise TypeError(
            f"{what} one noise sd for all outputs, such as rb.Gaussian(per_output=False), got "
            f"{spec.likelihood!r} and {model.output_shape[0]} outputs"
        )
    if spec.backend.device is not None:
        raise TypeError(f"{what} data in host memory, got data on a device")
    if spec.table.scales is not None:
        raise ValueError(f"{what} priors of known scales, got {spec.prior!r}")
    row, last = dict(zip(COLUMNS, model.table[-1].tolist(), strict=True)), len(model.table) - 1
    if row["op"] != OPS["dense"] or row["input"] != last:
        raise ValueError(f"{what} a model that ends in a Dense layer, got {layer!r} at its end")
    inputs, outputs, below = row["in_size"], row["out_size"], row["weight"]
    bias = row["bias"] >= 0
    alone = last == 0
    if not alone and below == 0:
        raise ValueError(f"{what} parameters below the last layer, or no layer at all, got none")
    size = (inputs + bias) * outputs
    segments = spec.table.rows
    offsets = segments[:, 0]
    own = (offsets >= below) & (offsets < model.dim)
    if not (segments[own, 2] == Normal.kind).all():
        raise ValueError(f"{what} a Normal prior of the last layer, got {spec.prior!r}")
    if spec.dim == size:
        raise ValueError(
            f"{what} something left to sample, got a model of one layer with known noise: its "
            "posterior is normal"
        )
    end = below + size
    whole = spec.table
    rows = segments[~own].copy()
    rows[rows[:, 0] >= end, 0] -= size
    spreads = set(whole.spreads[offsets < below].tolist())
    means = tuple(itertools.compress(whole.means, ~own))
    centres = tuple(itertools.compress(whole.centres, ~own))
    shared = spreads.pop() if len(spreads) == 1 else None
    table = PriorTable(rows, whole.spreads[~own], means, centres, shared)
    integrated = IntegratedLayer(
        bias,
        alone,
        np.ascontiguousarray(whole.spread[below:end].reshape(-1, outputs)[:, 0]),
        np.ascontiguousarray(whole.mean[below:end].reshape(-1, outputs)),
    )
    given = {f.name: getattr(spec, f.name) for f in fields(DensitySpec)}
    return IntegratedSpec(**given | {"table": table}, whole=spec, layer=integrated)
