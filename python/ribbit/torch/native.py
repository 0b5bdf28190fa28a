"""Modules that our layers cover, as posteriors of the native core.

Shapes: P parameters, N rows; images (N, C, H, W) in torch, (N, H, W, C) here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch

from ribbit._arrays import checks
from ribbit._arrays.checks import FloatArray
from ribbit._arrays.positions import one_position
from ribbit.targets.dropout import MaskedPosterior
from ribbit.targets.posterior import Posterior
from ribbit.targets.predictive import NetworkPredictive
from ribbit.targets.spec import DensitySpec
from ribbit.torch.compiled import Compiled, to_state
from ribbit.torch.data import tensor

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["NativePosterior"]


@dataclass(frozen=True)
class _TorchInputs(NetworkPredictive):
    """Predictions whose inputs are tensors or arrays as the module takes them."""

    def network_inputs(self, function: str, x: npt.ArrayLike) -> Any:
        """Return inputs (N, ...) with the channels last."""
        x = checks.matched(function, x, self.columns)
        rows = tensor(function, "x", x, torch.float64).numpy()
        return super().network_inputs(
            function, np.moveaxis(rows, 1, -1) if rows.ndim == 4 else rows
        )

    def describe(self) -> Any:
        """Return the description of the network; None of images, which a file has otherwise."""
        return None if len(self.model.input_shape) == 3 else super().describe()


class _Masked(MaskedPosterior):
    """Masks of a module's Dropout layers; predictions take what the module takes."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _masked, (self._spec, self._options)

    @property
    def network_predictive(self) -> NetworkPredictive:
        """What predicts, without the data and without masks."""
        known = super().network_predictive
        return _TorchInputs(known.model, known.likelihood, known.description, units=known.units)


def _masked(spec: DensitySpec, options: dict[str, Any]) -> _Masked:
    return _Masked(spec, **options)


class NativePosterior(Posterior):
    """A module whose layers are ours: a `ribbit.Posterior`, run by the native core.

    Everything a `Posterior` has it has too; inputs of predictions are what the module takes, images
    with the channels first.

    Attributes
    ----------
    native : bool
        True.
    trained : numpy.ndarray
        (P,) the module's own weights, for ``sample(init=target.trained)``.
    names : tuple of str
        The module's names of ``model.parameters``.
    batch_size : int or None
        That of the DataLoader.

    Examples
    --------
    >>> import torch
    >>> import ribbit.torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    >>> x = torch.linspace(-1, 1, 20)[:, None]
    >>> target = rb.torch.posterior(net, rb.Gaussian(0.1), (x, 2 * x), prior=rb.Normal(1.0))
    >>> isinstance(target, rb.torch.NativePosterior), target.native
    (True, True)
    """

    native: ClassVar[bool] = True
    why: ClassVar[str] = ""
    _compiled: Compiled
    batch_size: int | None

    @staticmethod
    def of(
        posterior: Posterior,
        compiled: Compiled,
        batch_size: int | None,
        columns: tuple[str | int, ...] | None,
    ) -> NativePosterior:
        """Return a posterior of the model as one of the module."""
        return _native(replace(posterior._spec, columns=columns), compiled, batch_size)

    def __reduce__(self) -> tuple[Any, ...]:
        return _native, (self._spec, self._compiled, self.batch_size, type(self)), self._added()

    @property
    def marginal(self) -> Posterior | None:
        """As of `Posterior`; None of images, whose marginal takes inputs with the channels last."""
        return None if len(self.model.input_shape) == 3 else super().marginal

    def masked(
        self,
        *,
        rate: float | Literal["concrete"] | None = None,
        length_scale: float | None = None,
        precision: float | None = None,
    ) -> MaskedPosterior:
        """Return the same posterior with its Dropout layers active; see `Posterior.masked`."""
        return _Masked(self._spec, rate=rate, length_scale=length_scale, precision=precision)

    @property
    def names(self) -> tuple[str, ...]:
        """The module's names of the model's arrays."""
        return self._compiled.names

    @property
    def trained(self) -> FloatArray:
        """The module's own weights (P,), with "log_noise" at 0."""
        own = self._compiled.trained
        return np.concatenate([own, np.zeros(self.dim - len(own), own.dtype)])

    def state_dict(self, theta: FloatArray) -> dict[str, torch.Tensor]:
        """Return a position (P,) as the module's state dict: for ``module.load_state_dict``.

        Raises
        ------
        TypeError, ValueError
            If `theta` is no array (P,).
        """
        theta = one_position("state_dict", theta, self.dim)
        weights = self._predictive.model.ravel(
            {
                name: np.asarray(value)
                for name, value in self.unravel(np.asarray(theta, self.dtype)).items()
                if name in {p.name for p in self.model.parameters}
            }
        )
        return to_state(self._compiled, weights)

    def inputs(self, count: int) -> Any:
        """Return at most `count` of the data's inputs (n, ...), as the module takes them."""
        rows = np.asarray(super().inputs(count)).reshape(-1, *self.model.input_shape)
        return np.moveaxis(rows, -1, 1) if rows.ndim == 4 else rows

    def subset(self, rows: npt.ArrayLike) -> NativePosterior:
        """Return the posterior of some of the rows alone."""
        part = super().subset(rows)
        return NativePosterior.of(part, self._compiled, self.batch_size, self.columns)

    def describe(self) -> Any:
        """Return a description for files; None of images, see `ribbit.torch.attach`."""
        return self._predictive.describe()


def _native(
    spec: DensitySpec,
    compiled: Compiled,
    batch_size: int | None,
    kind: type[NativePosterior] = NativePosterior,
) -> NativePosterior:
    posterior = object.__new__(kind)
    posterior._fill(spec)
    known = posterior._predictive
    made = _TorchInputs(
        known.model, known.likelihood, known.description, units=known.units, scales=known.scales
    )
    for name, value in {
        "_predictive": made,
        "_compiled": compiled,
        "batch_size": batch_size,
    }.items():
        object.__setattr__(posterior, name, value)
    return posterior
