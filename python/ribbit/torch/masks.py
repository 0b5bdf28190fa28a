"""Dropout layers of a module whose masks have addresses: seed, step, layer, row, unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ribbit._arrays import random_numbers

if TYPE_CHECKING:
    import numpy.typing as npt


DROPOUT: Any = torch.nn.modules.dropout._DropoutNd
"""The base of all Dropout layers of torch."""


class Address:
    """Which masks the next call of a module takes."""

    def __init__(self) -> None:
        self.active = False

    def set(
        self, *, seed: int, step: int, layer: int, rows: npt.NDArray[np.uint32] | None, purpose: int
    ) -> None:
        """Give an address; rows None: one mask for all rows."""
        self.active, self.seed, self.step, self.layer = True, seed, step, layer
        self.rows, self.purpose, self.calls = rows, purpose, 0


class Mask(torch.nn.Module):
    """A Dropout layer whose mask has an address: seed, step, layer, row of the data, unit."""

    def __init__(self, address: Address, rate: float, spatial: bool, text: str) -> None:
        super().__init__()
        self.address, self.rate, self.spatial, self.text = address, rate, spatial, text

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by 0 with probability `rate`, else by 1 / (1 - rate)."""
        at = self.address
        if not at.active:
            return x
        shape = tuple(x.shape[1:2]) if self.spatial else tuple(x.shape[1:])
        units = int(np.prod(shape, dtype=np.int64))
        ids = np.zeros(1, np.uint32) if at.rows is None else at.rows
        u = random_numbers.uniform(
            np,
            (len(ids), units),
            seed=at.seed,
            step=at.step,
            chains=ids,
            purpose=at.purpose,
            layer=at.layer + at.calls,
        )
        at.calls += 1
        kept = torch.from_numpy((u >= self.rate) / (1.0 - self.rate)).to(x)
        ones = (1,) * (x.ndim - 2) if self.spatial else ()
        return x * kept.reshape(len(ids), *shape, *ones)

    def extra_repr(self) -> str:
        """Return the rate."""
        return f"rate={self.rate:g}"


# Whether one unit of a mask is a whole channel.
_DROPS_CHANNELS: dict[Any, bool] = {
    torch.nn.Dropout: False,
    torch.nn.Dropout1d: True,
    torch.nn.Dropout2d: True,
    torch.nn.Dropout3d: True,
}


def place_masks(
    function: str, module: torch.nn.Module, rate: float | None
) -> tuple[Address, tuple[float, ...]]:
    """Put masks in the place of Dropout layers; return their address and rates."""
    address, rates = Address(), []
    for name, part in list(module.named_modules()):
        if "Dropout" not in type(part).__name__ or not getattr(part, "p", 0.0):
            continue
        kind = type(part)
        if kind not in _DROPS_CHANNELS:
            raise TypeError(
                f"[{function}] expected Dropout, Dropout1d, Dropout2d or Dropout3d, got "
                f"{kind.__name__} at {name!r}"
            )
        own = float(part.p) if rate is None else rate
        owner, _, last = name.rpartition(".")
        setattr(
            module.get_submodule(owner), last, Mask(address, own, _DROPS_CHANNELS[kind], str(part))
        )
        rates.append(own)
    return address, tuple(rates)


def dropping(module: torch.nn.Module) -> frozenset[str]:
    """Return the names of Dropout layers in training mode, with a rate above 0."""
    return frozenset(
        name
        for name, part in module.named_modules()
        if isinstance(part, DROPOUT) and part.training and part.p
    )
