"""PyTorch: convolutional and recurrent networks, eager or compiled, contiguous or channels last."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.harness.framework import Prepared, fastest
from benchmarks.workloads.network_gradient import NetworkGradient
from benchmarks.workloads.networks import Array, same_padding


class Net:
    """A `net` (see `workloads.networks`) on rows (N, C, H, W), kernels (out, in, kh, kw)."""

    def __init__(self, arrays: list[Any]) -> None:
        self.left: Iterator[Any] = iter(arrays)

    def conv(self, x: Any, filters: int, kernel: Any, stride: int = 1, same: bool = True) -> Any:
        weight, bias = next(self.left), next(self.left)
        sizes = zip(x.shape[2:], kernel, strict=True)
        pads = [same_padding(n, k, stride) if same else (0, 0) for n, k in sizes]
        if any(before != behind for before, behind in pads):
            x = F.pad(x, [cells for pad in reversed(pads) for cells in pad])
            pads = [(0, 0), (0, 0)]
        return F.conv2d(x, weight, bias, stride, [before for before, _ in pads])

    def frn(self, x: Any) -> Any:
        gamma, beta, tau = (next(self.left)[:, None, None] for _ in range(3))
        scale = gamma * torch.rsqrt((x * x).mean((2, 3), keepdim=True) + 1e-6)
        return torch.maximum(torch.addcmul(beta, x, scale), tau)

    def silu(self, x: Any) -> Any:
        return F.silu(x)

    def relu(self, x: Any) -> Any:
        return F.relu(x)

    def add(self, x: Any, other: Any) -> Any:
        return x + other

    def max_pool(self, x: Any, window: Any, stride: Any) -> Any:
        return F.max_pool2d(x, window, stride)

    def mean(self, x: Any) -> Any:
        return x.mean((2, 3))

    def flatten(self, x: Any) -> Any:
        return x.permute(0, 2, 3, 1).flatten(1)

    def dense(self, x: Any, units: int) -> Any:
        weight, bias = next(self.left), next(self.left)
        return torch.addmm(bias, x, weight)

    def embed(self, x: Any, tokens: int, units: int) -> Any:
        return F.embedding(x, next(self.left)).permute(0, 2, 1)[:, :, None]

    def lstm(self, x: Any, units: int) -> Any:
        """`torch.lstm`; its second bias is 0."""
        weight, recurrent, bias = (next(self.left) for _ in range(3))
        steps = x[:, :, 0].permute(2, 0, 1)
        zero = steps.new_zeros(1, steps.shape[1], units)
        arrays = [weight, recurrent, bias, torch.zeros_like(bias)]
        return torch.lstm(steps, [zero, zero], arrays, True, 1, 0.0, True, False, False)[1][0]


class Loop(Net):
    """The LSTM written out, which the compiler sees through."""

    def lstm(self, x: Any, units: int) -> Any:
        weight, recurrent, bias = (next(self.left) for _ in range(3))
        steps = F.linear(x[:, :, 0].permute(2, 0, 1), weight, bias)
        state = cell = steps.new_zeros(steps.shape[1], units)
        for z in steps:
            i, f, g, o = torch.addmm(z, state, recurrent.t()).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            state = torch.sigmoid(o) * torch.tanh(cell)
        return state


def native(array: Array, values: np.ndarray[Any, Any]) -> Any:
    """Lay an array out as PyTorch has it: kernels (out, in, kh, kw), gates (gates, in)."""
    tensor = torch.from_numpy(values)
    order = {"conv": (3, 2, 0, 1), "lstm": (1, 0)}.get(array.kind)
    return (tensor.permute(order) if order else tensor).clone(memory_format=torch.contiguous_format)


def ours(array: Array, tensor: Any) -> np.ndarray[Any, Any]:
    """Undo `native`, flat."""
    order = {"conv": (2, 3, 1, 0), "lstm": (1, 0)}.get(array.kind)
    return np.asarray((tensor.permute(order) if order else tensor).reshape(-1))


def logdensity(workload: NetworkGradient, net: type[Net]) -> Callable[[Any, Any, Any], Any]:
    """Return the normalised log posterior: f(arrays, x, y)."""
    constant = workload.dim * (math.log(workload.prior_scale) + 0.5 * math.log(2 * math.pi))

    def value(arrays: Any, x: Any, y: Any) -> Any:
        loglik = -F.cross_entropy(workload.wiring(net(arrays), x), y, reduction="sum")
        squares = sum((a * a).sum() for a in arrays)
        return loglik - 0.5 * squares / workload.prior_scale**2 - constant

    return value


def network(workload: NetworkGradient, variant: str) -> Prepared:
    """Gradient by the arrays, in PyTorch's own layouts."""
    torch.set_num_threads(workload.threads)
    torch.compiler.reset()  # it compiles a function only some eight times in a process
    data, y = (torch.from_numpy(a) for a in workload.data)
    parts = zip(workload.layout.arrays, workload.split(workload.start), strict=True)
    start = [native(array, values) for array, values in parts]

    def form(net: type[Net], last: bool) -> Callable[[], Any]:
        layout = torch.channels_last if last else torch.contiguous_format
        images = data.ndim == 4
        x = data.permute(0, 3, 1, 2).contiguous(memory_format=layout) if images else data
        leaves = [
            (a.contiguous(memory_format=layout) if a.ndim == 4 else a.clone()).requires_grad_(True)
            for a in start
        ]
        density = logdensity(workload, net)
        if variant == "compile":
            density = torch.compile(density, fullgraph=True, dynamic=False)

        def run() -> Any:
            value = density(leaves, x, y)
            return value.detach(), torch.autograd.grad(value, leaves)

        return run

    forms = {"channels last": form(Net, True), "contiguous": form(Net, False)}
    if workload.tokens:
        forms = {"torch.lstm": form(Net, True), "lstm as a loop": form(Loop, True)}
    winner, wasted = fastest(forms, turns=2)

    def answer(found: Any) -> dict[str, Any]:
        pairs = zip(workload.layout.arrays, found[1], strict=True)
        gradient = np.concatenate([ours(array, grad) for array, grad in pairs])
        return {"value": found[0].numpy(), "gradient": gradient}

    how = "autograd" if variant == "eager" else "torch.compile of the log density"
    return Prepared(forms[winner], answer, f"{how}; {winner}", wasted)
