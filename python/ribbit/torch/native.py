"""Modules that our layers cover, as posteriors of the native core."""

# Shapes: P parameters, N rows; images (N, C, H, W) in torch, (N, H, W, C) here.

from __future__ import annotations

import functools
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
        """Return the description of the network; of images, as a module: see `attach`."""
        found = super().describe()
        if len(self.model.input_shape) != 3:
            return found
        return {"module": {key: found[key] for key in ("model", "likelihood")}}


def _torch_inputs(known: NetworkPredictive) -> _TorchInputs:
    return _TorchInputs(
        known.model, known.likelihood, known.description, units=known.units, scales=known.scales
    )


class _Masked(MaskedPosterior):
    """Masks of a module's Dropout layers; predictions take what the module takes."""

    def __reduce__(self) -> tuple[Any, ...]:
        options: dict[str, Any] = self._options
        return functools.partial(_Masked, **options), (self._spec,)

    @property
    def network_predictive(self) -> NetworkPredictive:
        """What predicts, without the data and without masks."""
        return _torch_inputs(super().network_predictive)


class NativePosterior(Posterior):
    """A module of layers that Ribbit covers: a `ribbit.Posterior`, run by the native core.

    It has all attributes of `Posterior`. Inputs of predictions are in the module's layout, images
    with the channels first.

    Attributes
    ----------
    native : bool
        True.
    trained : numpy.ndarray
        The module's own weights (P,), for ``sample(init=target.trained)``.
    names : tuple of str
        The module's names for ``model.parameters``.
    batch_size : int or None
        Batch size of the DataLoader.

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
    def _of(
        posterior: Posterior,
        compiled: Compiled,
        batch_size: int | None,
        columns: tuple[str | int, ...] | None,
    ) -> NativePosterior:
        """Return a posterior of the model as one of the module."""
        made = object.__new__(NativePosterior)
        made._fill(replace(posterior._spec, columns=columns))
        vars(made).update(_compiled=compiled, batch_size=batch_size)
        return made

    def _fill(self, spec: DensitySpec) -> None:
        """Set every field; predictions take the inputs of the module."""
        super()._fill(spec)
        object.__setattr__(self, "_predictive", _torch_inputs(self._predictive))

    @property
    def dropout_layers(self) -> tuple[str, ...]:
        """Dropout layers that the module had in training mode, as ``"2: Dropout(0.1)"``."""
        every = zip(self.model.dropout_layers, self._compiled.dropping, strict=True)
        return tuple(text for text, training in every if training)

    @functools.cached_property
    def marginal(self) -> Posterior | None:
        """As for `Posterior`; None for images, whose last layer is sampled like the others."""
        found = None if len(self.model.input_shape) == 3 else super().marginal
        if found is not None:
            object.__setattr__(found, "_predictive", _torch_inputs(found._predictive))
        return found

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
        """The module's names for the model's arrays."""
        return self._compiled.names

    @property
    def trained(self) -> FloatArray:
        """The module's own weights (P,), with "log_noise" at 0."""
        own = self._compiled.trained
        return np.concatenate([own, np.zeros(self.dim - len(own), own.dtype)])

    def state_dict(self, theta: FloatArray) -> dict[str, torch.Tensor]:
        """Return a position (P,) as a state dict for ``module.load_state_dict``.

        Raises
        ------
        TypeError, ValueError
            If `theta` is not an array (P,).
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
        """Return at most `count` of the data's inputs (n, ...), in the module's layout."""
        rows = np.asarray(super().inputs(count)).reshape(-1, *self.model.input_shape)
        return np.moveaxis(rows, -1, 1) if rows.ndim == 4 else rows

    def describe(self) -> Any:
        """Return a description for files; for images it is meant for `ribbit.torch.attach`."""
        return self._predictive.describe()
