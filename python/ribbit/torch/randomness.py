"""Find out if a user's code is random: it draws numbers, or its second result differs."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch


def _states(devices: list[int]) -> list[Any]:
    seen: Any = np.random.get_state()  # noqa: NPY002  the generator that others draw from
    numbers = [bytes(torch.get_rng_state().numpy()), random.getstate(), bytes(seen[1]), seen[2]]
    return numbers + [bytes(torch.cuda.get_rng_state(d).numpy()) for d in devices]


@contextlib.contextmanager
def watched(device: torch.device | None = None) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether the code inside drew from a global generator."""
    devices = [device.index or 0] if device is not None and device.type == "cuda" else []
    numbers, python = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices=devices):
        before = _states(devices)
        after: list[Any] = []
        try:
            yield lambda: after != before
        finally:
            after = _states(devices)
            np.random.set_state(numbers)  # noqa: NPY002
            random.setstate(python)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Tell whether two results agree, up to rounding."""
    return a.shape == b.shape and torch.allclose(
        a.double(), b.double(), rtol=1e-4, atol=1e-6, equal_nan=True
    )
