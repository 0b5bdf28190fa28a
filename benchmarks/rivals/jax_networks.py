"""JAX: convolutional and recurrent networks, jit of value_and_grad."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.harness.framework import Prepared, fastest
from benchmarks.rivals.jax_net import logprior, ready
from benchmarks.workloads.network_gradient import NetworkGradient
from benchmarks.workloads.networks import lenet5, same_padding


class Net:
    """A `net` (see `workloads.networks`) on rows (N, H, W, C)."""

    def __init__(self, arrays: Any) -> None:
        self.left: Iterator[Any] = iter(arrays)

    def conv(self, x: Any, filters: int, kernel: Any, stride: int = 1, same: bool = True) -> Any:
        weight, bias = next(self.left), next(self.left)
        y = lax.conv_general_dilated(
            x,
            weight,
            (stride, stride),
            "SAME" if same else "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return y + bias

    def frn(self, x: Any) -> Any:
        gamma, beta, tau = (next(self.left) for _ in range(3))
        scale = gamma * lax.rsqrt(jnp.mean(x * x, axis=(1, 2), keepdims=True) + 1e-6)
        return jnp.maximum(x * scale + beta, tau)

    def silu(self, x: Any) -> Any:
        return jax.nn.silu(x)

    def relu(self, x: Any) -> Any:
        return jax.nn.relu(x)

    def add(self, x: Any, other: Any) -> Any:
        return x + other

    def max_pool(self, x: Any, window: Any, stride: Any) -> Any:
        sizes, steps = (1, *window, 1), (1, *stride, 1)
        return lax.reduce_window(x, -jnp.inf, lax.max, sizes, steps, "VALID")

    def mean(self, x: Any) -> Any:
        return jnp.mean(x, axis=(1, 2))

    def flatten(self, x: Any) -> Any:
        return x.reshape(x.shape[0], -1)

    def dense(self, x: Any, units: int) -> Any:
        weight, bias = next(self.left), next(self.left)
        return x @ weight + bias

    def embed(self, x: Any, tokens: int, units: int) -> Any:
        return jnp.take(next(self.left), x, axis=0, mode="clip")[:, None]

    def lstm(self, x: Any, units: int) -> Any:
        weight, recurrent, bias = (next(self.left) for _ in range(3))

        def step(carry: Any, z: Any) -> Any:
            state, cell = carry
            i, f, g, o = jnp.split(z + state @ recurrent, 4, axis=1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(cell), cell), None

        # the products with the inputs, of all steps at once; time first
        gates = jnp.swapaxes(x[:, 0], 0, 1) @ weight + bias
        zero = jnp.zeros((x.shape[0], units), x.dtype)
        return lax.scan(step, (zero, zero), gates)[0][0]


class Slices(Net):
    """Windows as shifted slices: a convolution is one product with the gathered cells.

    What its backward pass is then is products and slices too, where XLA's own is slow on a CPU.
    """

    def _cells(self, x: Any, window: Any, stride: Any) -> list[Any]:
        last = [n - k + 1 for n, k in zip(x.shape[1:3], window, strict=True)]
        return [
            x[:, r : r + last[0] : stride[0], s : s + last[1] : stride[1]]
            for r in range(window[0])
            for s in range(window[1])
        ]

    def conv(self, x: Any, filters: int, kernel: Any, stride: int = 1, same: bool = True) -> Any:
        weight, bias = next(self.left), next(self.left)
        sizes = zip(x.shape[1:3], kernel, strict=True)
        pads = [same_padding(n, k, stride) if same else (0, 0) for n, k in sizes]
        cells = self._cells(jnp.pad(x, [(0, 0), *pads, (0, 0)]), kernel, (stride, stride))
        return jnp.concatenate(cells, axis=-1) @ weight.reshape(-1, filters) + bias

    def max_pool(self, x: Any, window: Any, stride: Any) -> Any:
        first, *others = self._cells(x, window, stride)
        for cell in others:
            first = jnp.where(cell > first, cell, first)
        return first


class Mixed(Slices):
    """XLA's convolutions, max pools by slices."""

    conv = Net.conv


FORMS: dict[str, type[Net]] = {
    "lax.conv_general_dilated": Net,
    "windows as slices": Slices,
    "lax.conv_general_dilated, pools by slices": Mixed,
}


def logdensity(workload: NetworkGradient, net: type[Net]) -> Callable[[Any, Any, Any], Any]:
    """Return the normalised log posterior: f(arrays, x, y)."""
    prior = logprior(workload)

    def value(arrays: Any, x: Any, y: Any) -> Any:
        logprobs = jax.nn.log_softmax(workload.wiring(net(arrays), x))
        return jnp.sum(jnp.take_along_axis(logprobs, y[:, None], axis=1)) + prior(arrays)

    return value


def network(workload: NetworkGradient) -> Prepared:
    """Gradient by the arrays, in their own shapes."""
    x, y = (jnp.asarray(a) for a in workload.data)
    arrays = [jnp.asarray(a) for a in workload.split(workload.start)]
    forms = {
        name: ready(jax.jit(jax.value_and_grad(logdensity(workload, net))), arrays, x, y)
        for name, net in FORMS.items()
        if net is not Mixed or workload.wiring is lenet5  # elsewhere there is no 3 x 3 pool
    }
    winner, wasted = fastest(forms, turns=2)

    def answer(found: Any) -> dict[str, Any]:
        gradient = np.concatenate([np.asarray(a).ravel() for a in found[1]])
        return {"value": np.asarray(found[0]), "gradient": gradient}

    return Prepared(forms[winner], answer, f"jit of value_and_grad, NHWC; {winner}", wasted)
