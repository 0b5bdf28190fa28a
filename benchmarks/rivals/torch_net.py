"""What the entries built on PyTorch share: the network and its log density."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional as F


def versions() -> dict[str, str]:
    """Version of PyTorch."""
    return {"torch": torch.__version__}


def unravel(flat: Any, sizes: tuple[int, ...]) -> list[tuple[Any, Any]]:
    """Split (P,) or (C, P) into views [(weight, bias)]."""
    counts = [n for a, b in pairwise(sizes) for n in (a * b, b)]
    parts = torch.split(flat, counts, dim=-1)
    layers = []
    for k, (a, b) in enumerate(pairwise(sizes)):
        weight = parts[2 * k].reshape(*flat.shape[:-1], a, b)
        layers.append((weight, parts[2 * k + 1]))
    return layers


def ravel(layers: Any) -> Any:
    """Join [(weight, bias)] to (P,)."""
    return torch.cat([a.detach().reshape(-1) for layer in layers for a in layer])


def outputs(layers: Any, x: Any) -> Any:
    """Compute the outputs (N, K) of a ReLU network."""
    for weight, bias in layers[:-1]:
        x = F.relu(torch.addmm(bias, x, weight))
    return torch.addmm(layers[-1][1], x, layers[-1][0])


def batch_logdensity(workload: Any) -> Callable[..., Any]:
    """Normalised log density estimated on a batch: f(layers, x, y) of a classifier."""
    factor = workload.rows / workload.batch
    constant = workload.dim * (math.log(workload.prior_scale) + 0.5 * math.log(2 * math.pi))

    def value(layers: Any, x: Any, y: Any) -> Any:
        loglik = -F.cross_entropy(outputs(layers, x), y, reduction="sum")
        squares = sum((a * a).sum() for layer in layers for a in layer)
        return factor * loglik - 0.5 * squares / workload.prior_scale**2 - constant

    return value
