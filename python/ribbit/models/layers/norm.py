"""Normalisation within one data row, so that the likelihood stays a product over rows.

Batch normalisation would couple the rows, so it has no posterior of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ribbit._arrays import checks
from ribbit._backends.codes import OPS
from ribbit.errors import ShapeError
from ribbit.models.layers._table import MAX_SIZE, Table, TorchArrays, Value

__all__ = ["FilterResponseNorm", "GroupNorm", "LayerNorm"]

_TORCH_NAMES = {"gamma": ("weight",), "beta": ("bias",)}


@dataclass(frozen=True)
class FilterResponseNorm:
    """Filter response normalisation of an image (H, W, C) or sequence (T, C).

    ``y = max(gamma * x / sqrt(mean of x^2 over all places + eps) + beta, tau)``, channel by
    channel. Parameters: gamma (C,) starts at 1, beta (C,) and tau (C,) at 0.

    Parameters
    ----------
    threshold : bool, default True
        Whether to learn a threshold tau; without it y is not cut off. In a tie the gradient goes to
        tau.
    eps : float, default 1e-6
        Added to the mean square.

    Raises
    ------
    TypeError, ValueError
        If `threshold` is not a bool or `eps` not a finite number > 0.

    References
    ----------
    Singh and Krishnan (2020), "Filter response normalization layer", section 3.

    Examples
    --------
    >>> layers = [rb.Conv2D(4, 3), rb.FilterResponseNorm(), rb.Flatten(), rb.Dense(2)]
    >>> model = rb.Model(layers, input_shape=(8, 8, 3))
    >>> model.output_shape, model.dim
    ((2,), 414)
    """

    op: ClassVar[int] = OPS["filter_response_norm"]
    threshold: bool = field(default=True, kw_only=True)
    eps: float = field(default=1e-6, kw_only=True)

    def __post_init__(self) -> None:
        flag = checks.boolean("FilterResponseNorm", "threshold", self.threshold)
        object.__setattr__(self, "threshold", flag)
        object.__setattr__(self, "eps", checks.positive("FilterResponseNorm", "eps", self.eps))

    def _compile(self, table: Table, value: Value) -> Value:
        """Write gamma, beta and tau; number: eps."""
        if len(value.shape) not in (2, 3):
            raise ShapeError(
                f"[{table.function}] expected an image (H, W, C) or a sequence (T, C) for {self}, "
                f"got {value.shape}"
            )
        channels = value.shape[-1]
        columns = table.scale_and_shift(channels)
        if self.threshold:
            columns["third"] = table.parameter("tau", (channels,))
        return table.row(self.op, value, value.shape, **columns, channels=channels, number=self.eps)


@dataclass(frozen=True)
class LayerNorm:
    """Normalisation over the last axis of (C,), (T, C) or (H, W, C), at each place.

    ``y = gamma * (x - mean) / sqrt(variance + eps) + beta``. Parameters: gamma (C,) starts at 1,
    beta (C,) at 0.

    Parameters
    ----------
    eps : float, default 1e-5
        Added to the variance.

    Raises
    ------
    TypeError, ValueError
        If `eps` is not a finite number > 0.

    References
    ----------
    Ba, Kiros and Hinton (2016), "Layer normalization", equation 4.

    Examples
    --------
    >>> layers = [rb.Dense(5), rb.LayerNorm()]
    >>> model = rb.Model(layers, input_shape=(3,))
    >>> model.output_shape, model.dim
    ((5,), 30)
    """

    op: ClassVar[int] = OPS["layer_norm"]
    torch: ClassVar[TorchArrays] = TorchArrays(_TORCH_NAMES, units=True)
    eps: float = 1e-5

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", checks.positive("LayerNorm", "eps", self.eps))

    def _compile(self, table: Table, value: Value) -> Value:
        """Write gamma and beta; number: eps."""
        channels = value.shape[-1]
        columns = table.scale_and_shift(channels)
        return table.row(self.op, value, value.shape, **columns, channels=channels, number=self.eps)


@dataclass(frozen=True)
class GroupNorm:
    """Normalisation over groups of channels and all places: (C,), (T, C) or (H, W, C).

    ``y = gamma * (x - mean) / sqrt(variance + eps) + beta``, mean and biased variance over the
    channels of a group and all places, gamma and beta channel by channel. Instance normalisation
    has as many groups as channels. Parameters: gamma (C,) starts at 1, beta (C,) at 0.

    Parameters
    ----------
    groups : int
        Number of groups of neighbouring channels; it divides C.
    eps : float, default 1e-5
        Added to the variance.

    Raises
    ------
    TypeError, ValueError
        If `groups` is not a positive integer or `eps` not a finite number > 0.
    ShapeError
        In `Model`, if the channels do not divide into groups.

    References
    ----------
    Wu and He (2018), "Group normalization", equations 1 and 4.

    Examples
    --------
    >>> layers = [rb.Conv2D(4, 3), rb.GroupNorm(2), rb.Flatten(), rb.Dense(2)]
    >>> model = rb.Model(layers, input_shape=(8, 8, 3))
    >>> model.output_shape, model.dim
    ((2,), 410)
    """

    op: ClassVar[int] = OPS["group_norm"]
    torch: ClassVar[TorchArrays] = TorchArrays(
        _TORCH_NAMES, units=True, any_order=lambda row: row["argument"] in (1, row["channels"])
    )
    groups: int
    eps: float = 1e-5

    def __post_init__(self) -> None:
        groups = checks.integer("GroupNorm", "groups", self.groups, minimum=1, maximum=MAX_SIZE)
        object.__setattr__(self, "groups", groups)
        object.__setattr__(self, "eps", checks.positive("GroupNorm", "eps", self.eps))

    def _compile(self, table: Table, value: Value) -> Value:
        """Write gamma and beta; argument: groups, number: eps."""
        channels = value.shape[-1]
        if channels % self.groups != 0:
            raise ShapeError(
                f"[{table.function}] expected channels that divide into {self.groups} groups, "
                f"got {channels} channels"
            )
        columns = table.scale_and_shift(channels) | {"argument": self.groups}
        return table.row(self.op, value, value.shape, **columns, channels=channels, number=self.eps)
