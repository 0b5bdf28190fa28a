"""NumPy: float32, hand-written gradient, every large array allocated once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.harness.framework import Prepared
from benchmarks.workloads.leapfrog import Leapfrog
from benchmarks.workloads.random_weights import Normals, Reparam


def versions() -> dict[str, str]:
    """Versions of NumPy and of its BLAS."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {"numpy": np.__version__, "blas": f"{blas['name']} {blas['version']}"}


class _Network:
    """Value and gradient of one chain, in buffers that are reused."""

    def __init__(self, workload: Leapfrog) -> None:
        self.workload = workload
        x, y = workload.data
        self.x, self.y = x, y
        widths = workload.sizes[1:]
        self.value = [np.empty((workload.rows, w), np.float32) for w in widths]
        self.slope = [np.empty((workload.rows, w), np.float32) for w in widths[:-1]]
        self.delta = [np.empty((workload.rows, w), np.float32) for w in widths]
        self.ones = np.ones(workload.rows, np.float32)
        self.rows = np.arange(workload.rows)
        # sum over terms of log(scale sqrt(2 pi))
        half_log_2pi = 0.5 * np.log(2 * np.pi)
        self.constant = -workload.dim * (np.log(workload.prior_scale) + half_log_2pi)
        if workload.likelihood == "gaussian":
            self.constant -= y.size * (np.log(workload.noise_scale) + half_log_2pi)

    def views(self, flat: Any) -> list[tuple[Any, Any]]:
        layers, at = [], 0
        sizes = self.workload.sizes
        for a, b in pairwise(sizes):
            weight = flat[at : at + a * b].reshape(a, b)
            layers.append((weight, flat[at + a * b : at + (a + 1) * b]))
            at += (a + 1) * b
        return layers

    def value_and_grad(self, theta: Any, layers: Any, grad: Any, grad_layers: Any) -> float:
        """Write the gradient into `grad`; `layers` and `grad_layers` are views."""
        relu = self.workload.activation == "relu"
        h = self.x
        for k, (weight, bias) in enumerate(layers):
            value = self.value[k]
            np.matmul(h, weight, out=value)
            value += bias
            if k < len(layers) - 1:
                slope = self.slope[k]
                if relu:
                    np.greater(value, 0.0, out=slope, casting="unsafe")
                    np.maximum(value, 0.0, out=value)
                else:
                    gate = self.delta[k]  # free until the backward pass
                    np.negative(value, out=gate)
                    np.exp(gate, out=gate)
                    gate += 1.0
                    np.reciprocal(gate, out=gate)
                    np.subtract(1.0, gate, out=slope)
                    slope *= value
                    slope += 1.0
                    slope *= gate
                    value *= gate
            h = value
        delta = self.delta[-1]
        total = self.constant
        if self.workload.likelihood == "gaussian":
            np.subtract(self.y, h, out=delta)
            delta *= 1.0 / self.workload.noise_scale
            flat = delta.ravel()
            total -= 0.5 * float(flat @ flat)
            delta *= 1.0 / self.workload.noise_scale
        else:
            h -= h.max(axis=1, keepdims=True)
            np.exp(h, out=delta)
            norm = delta.sum(axis=1, keepdims=True)
            total += float(h[self.rows, self.y].sum() - np.log(norm).sum())
            delta /= -norm
            delta[self.rows, self.y] += 1.0
        for k in range(len(layers) - 1, -1, -1):
            grad_weight, grad_bias = grad_layers[k]
            below = self.value[k - 1] if k > 0 else self.x
            np.matmul(below.T, delta, out=grad_weight)
            np.matmul(self.ones, delta, out=grad_bias)
            if k > 0:
                np.matmul(delta, layers[k][0].T, out=self.delta[k - 1])
                delta = self.delta[k - 1]
                delta *= self.slope[k - 1]
        precision = 1.0 / self.workload.prior_scale**2
        total -= 0.5 * precision * float(theta @ theta)
        grad -= np.float32(precision) * theta
        return float(total)


def leapfrog(workload: Leapfrog) -> Prepared:
    """Loop over chains outside, over steps inside: one chain's arrays stay in cache."""
    network = _Network(workload)
    start, kick = workload.start
    theta, momentum, grad = (np.empty(workload.dim, np.float32) for _ in range(3))
    layers, grad_layers = network.views(theta), network.views(grad)
    step = np.empty_like(theta)
    eps, half = np.float32(workload.step_size), np.float32(0.5 * workload.step_size)

    def run() -> tuple[Any, Any]:
        ends = np.empty_like(start)
        values = np.empty(workload.chains)
        for chain in range(workload.chains):
            theta[:] = start[chain]
            momentum[:] = kick[chain]
            network.value_and_grad(theta, layers, grad, grad_layers)
            np.multiply(grad, half, out=step)
            np.add(momentum, step, out=momentum)
            for left in range(workload.num_steps, 0, -1):
                np.multiply(momentum, eps, out=step)
                np.add(theta, step, out=theta)
                values[chain] = network.value_and_grad(theta, layers, grad, grad_layers)
                np.multiply(grad, eps if left > 1 else half, out=step)
                np.add(momentum, step, out=momentum)
            ends[chain] = theta
        return ends, values

    return Prepared(
        run,
        lambda result: {"position": result[0], "logdensity": result[1]},
        "hand-written gradient, preallocated arrays, Python loop",
    )


def reparam(workload: Reparam) -> Prepared:
    """SFC64 ziggurat normals straight into the result, then in place."""
    mean, rho = workload.variational
    rng = np.random.Generator(np.random.SFC64(workload.seed))
    out = np.empty((workload.samples, workload.dim), np.float32)

    def run() -> Any:
        scale = np.log1p(np.exp(rho))
        for row in out:
            rng.standard_normal(dtype=np.float32, out=row)
            row *= scale
            row += mean
        return out

    return Prepared(run, lambda w: {"weights": w}, "SFC64, in place, memory reused")


def normals(workload: Normals) -> Prepared:
    """Fill one array."""
    rng = np.random.Generator(np.random.SFC64(workload.seed))
    out = np.empty(workload.count, np.float32)

    def run() -> Any:
        return rng.standard_normal(dtype=np.float32, out=out)

    return Prepared(run, lambda z: {"normals": z}, "SFC64, memory reused")


PREPARE = {"leapfrog": leapfrog, "reparam": reparam, "normals": normals}
