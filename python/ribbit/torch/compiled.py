"""Modules that our layers cover, as one of our models."""

# Shapes: P parameters, n rows; images (n, C, H, W) in torch, (n, H, W, C) here.

from __future__ import annotations

import copy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import nn

from ribbit._arrays.checks import FloatArray
from ribbit.models.model import Model
from ribbit.targets.prior_base import Prior, PriorLike
from ribbit.targets.prior_table import chosen, patterns_of
from ribbit.torch.masks import DROPOUT
from ribbit.torch.tracing import NotCovered, Tracer, layers_of


@dataclass(frozen=True)
class Compiled:
    """A module as one of our models."""

    model: Model
    names: tuple[str, ...]  # the module's names of the model's arrays, in flat order
    trained: FloatArray  # (P,): the module's own weights
    # of each Dropout layer of the model, whether the module had it in training mode
    dropping: tuple[bool, ...]
    buffers: dict[str, torch.Tensor]  # what the module's state dict has in addition


def compile_module(
    module: nn.Module, x: torch.Tensor, dtype: np.dtype[Any], dropping: frozenset[str]
) -> Compiled:
    """Return a module as a model, checked on rows x (n, ...) against the module's own outputs."""
    if any(not p.requires_grad for p in module.parameters()):
        raise NotCovered("some of its parameters are fixed (requires_grad=False)")
    every = [p for _, p in module.named_parameters(remove_duplicate=False)]
    if len({id(p) for p in every}) < len(every):
        raise NotCovered("some of its layers share an array")
    if not x.is_floating_point():
        raise NotCovered(f"its inputs are {str(x.dtype).removeprefix('torch.')}")
    if x.ndim not in (2, 4):
        raise NotCovered(f"its inputs have shape {tuple(x.shape[1:])}, neither rows nor images")
    try:
        graph = Tracer().trace(copy.deepcopy(module))  # code that changes buffers runs here
    except Exception as error:  # what fx cannot follow, in the words of whatever failed
        raise NotCovered(f"its forward cannot be traced ({type(error).__name__})") from error
    parts = dict(module.named_modules())
    stack, called = layers_of(graph, parts)
    owners = [name for name in called if any(True for _ in parts[name].parameters())]
    if len(set(owners)) < len(owners):
        raise NotCovered("a layer with weights is called twice")
    shape = tuple(x.shape[1:])
    shape = shape if len(shape) < 3 else (*shape[1:], shape[0])  # channels last
    try:
        model = Model(tuple(stack), input_shape=shape)
        trained = model.from_torch(module, x.double().numpy(), dtype=dtype)
    except (TypeError, ValueError) as error:
        raise NotCovered(f"as a model: {error}") from error
    names = tuple(
        f"{owner}.{name}" if owner else name
        for owner in owners
        for name, _ in parts[owner].named_parameters()
    )
    drops = [name for name in called if isinstance(parts[name], DROPOUT) and parts[name].p]
    rates = tuple(name in dropping for name in drops)
    buffers = {key: value for key, value in module.state_dict().items() if key not in names}
    compiled = Compiled(model, names, trained, rates, buffers)
    mine = to_state(compiled, trained)
    for name, value in module.named_parameters():
        if name not in mine or not torch.equal(mine[name].double(), value.detach().cpu().double()):
            raise NotCovered(f"its array {name!r} does not come back as it was")
    return compiled


def to_state(compiled: Compiled, theta: FloatArray) -> dict[str, torch.Tensor]:
    """Return weights (P,) under the module's names."""
    arrays = compiled.model.to_torch_state_dict(theta)
    buffers = {name: value.clone() for name, value in compiled.buffers.items()}
    return dict(zip(compiled.names, arrays.values(), strict=True)) | buffers


def native_prior(prior: PriorLike, compiled: Compiled) -> PriorLike:
    """Return a prior whose patterns are of the module's names as one of the model's."""
    patterns = patterns_of(prior)
    for one in patterns.values():
        mean = getattr(one, "mean", 0.0)
        if not isinstance(mean, int | float):
            raise NotCovered("the prior has means in arrays, in torch's order of axes")
    if isinstance(prior, Prior):
        return prior
    found: dict[str, Prior] = {}
    for name, parameter in zip(compiled.names, compiled.model.parameters, strict=True):
        _, own = chosen(patterns, name)
        if own is None:
            raise ValueError(
                f"[posterior] expected a prior for {name!r}, got patterns {list(patterns)}"
            )
        found[parameter.name] = own
    names = compiled.names
    unused = [
        pattern
        for pattern in patterns
        if pattern != "log_noise" and not any(fnmatchcase(name, pattern) for name in names)
    ]
    if unused:
        raise ValueError(
            f"[posterior] expected patterns of prior to match one of {', '.join(names)}, "
            f"got {unused[0]!r}"
        )
    if "log_noise" in patterns:
        found["log_noise"] = patterns["log_noise"]
    return found
