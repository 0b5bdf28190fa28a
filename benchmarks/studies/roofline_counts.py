"""Count the necessary work of a workload: products, elementwise work, bytes from memory.

Elementwise work is counted in slots. A slot is the time of one float32 multiply-add per lane at
the measured peak, so a flop of a product costs half a slot. Integer and logic operations also cost
half a slot, because the core has twice as many units for them. The constants follow from the
formulas of the kernels, in the shortest form we know at float32 accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from benchmarks.harness.workload import gradient_flops
from benchmarks.workloads.leapfrog import Leapfrog
from benchmarks.workloads.networks import Layout, Shape, same_padding

# slots per element
SILU = 20.0  # exp 11, reciprocal 4, value and derivative 4; times the delta in the backward pass
RELU = 3.0  # maximum, mask, times the delta
PHILOX = 12.5  # a random word: 10 rounds of 4 words, 4 multiplies and 6 logic operations each
NORMAL = PHILOX + 16.0  # half of a Box-Muller pair: logarithm and root, cosine and sine
SOFTPLUS = 20.0  # exp and logarithm; its derivative shares the exp
LEAPFROG = 4.0  # per parameter: the prior's score and density, kick, drift
ADAM = 12.0  # two moments, root, quotient, step
SOFTMAX = 20.0  # per output: exp, sum, quotient, log likelihood, delta
GAUSSIAN = 4.0  # per output: residual, square, sum, delta
FRN = 10.0  # square and sum, scale, threshold; backward: compare, three sums, two products
LSTM = 95.0  # per unit and step: three sigmoids, two hyperbolic tangents, cell, backward pass
MOMENTUM = NORMAL + 4.0  # per parameter and draw of HMC: a normal, two kinetic energies
ISOKINETIC = NORMAL + 10.0  # per parameter and step of MCLMC: rotation, noise, norm, drift


@dataclass(frozen=True)
class Costs:
    """Slots per element of the work of a network other than products."""

    silu: float
    relu: float
    softmax: float
    frn: float
    lstm: float
    light: float  # sums, means, each cell of a pool, gathered rows


GRADIENT = Costs(SILU, RELU, SOFTMAX, FRN, LSTM, 2.0)
# Without derivatives and backward pass. SiLU: exp 10, reciprocal 3, product. Softmax: exp, maximum,
# sum, quotient. FRN: square, scale, threshold. LSTM: no backward pass (12).
FORWARD = Costs(14.0, 1.0, 15.0, 3.0, 83.0, 1.0)


@dataclass(frozen=True)
class Count:
    """Work of a run: flops of products, slots of elementwise work, bytes that leave the caches."""

    flops: float
    slots: float
    bytes: float = 0.0
    working_set: float = 0.0

    def floor(self, peak: float, bandwidth: float, cache: float) -> tuple[float, str]:
        """Return least seconds and their bound; bytes count if the working set leaves the cache.

        Parameters
        ----------
        peak : float
            Flop/s of float32 multiply-adds, all threads.
        bandwidth : float
            Bytes/s read and written by a copy, all threads.
        cache : float
            Bytes of the last-level cache.
        """
        compute = (self.flops + 2.0 * self.slots) / peak
        memory = self.bytes / bandwidth if self.working_set > cache else 0.0
        return (compute, "arithmetic") if compute >= memory else (memory, "memory")


def _units(sizes: tuple[int, ...]) -> int:
    """Return the number of hidden units of an MLP."""
    return sum(sizes[1:-1])


def _likelihood(workload: Any) -> float:
    return SOFTMAX if workload.likelihood == "categorical" else GAUSSIAN


def _gradient_slots(workload: Any, rows: int) -> float:
    """Return slots of activations and likelihood for one gradient of an MLP."""
    act = SILU if workload.activation == "silu" else RELU
    return rows * (act * _units(workload.sizes) + _likelihood(workload) * workload.sizes[-1])


def leapfrog(w: Any) -> Count:
    gradients = (w.num_steps + 1) * w.chains
    slots = gradients * (_gradient_slots(w, w.rows) + LEAPFROG * w.dim)
    inputs = 4.0 * w.rows * (w.sizes[0] + 1)
    # the inputs once per step, for all chains together
    traffic = (w.num_steps + 1) * (inputs + 20.0 * w.dim * w.chains)
    return Count(w.flops, slots, traffic, inputs + 12.0 * w.dim * w.chains)


def bbb(w: Any) -> Count:
    per_parameter = NORMAL + SOFTPLUS + 2 * ADAM + 10.0  # draw, KL and its derivatives
    slots = w.epochs * (_gradient_slots(w, w.rows) + per_parameter * w.dim)
    inputs = 4.0 * w.rows * (w.sizes[0] + 1)
    traffic = w.epochs * (inputs + 48.0 * w.dim)
    return Count(w.flops, slots, traffic, inputs + 32.0 * w.dim)


def mc_forward(w: Any) -> Count:
    # a maximum per unit; deviation, sum and sum of squares per output
    slots = w.draws * (w.rows * (_units(w.sizes) + 3.0 * w.sizes[-1]) + (NORMAL + 1.0) * w.dim)
    return Count(w.flops, slots, 12.0 * w.rows, 12.0 * w.rows + 12.0 * w.dim)


def mc_dropout(w: Any) -> Count:
    per_row = (PHILOX + 3.0) * _units(w.sizes) + (SOFTMAX + 3.0) * w.sizes[-1]
    traffic = 4.0 * w.rows * (w.sizes[0] + 2 * w.sizes[-1])
    return Count(w.flops, w.samples * w.rows * per_row, traffic, traffic + 4.0 * w.dim)


def sgld(w: Any) -> Count:
    slots = w.num_steps * (_gradient_slots(w, w.batch) + (NORMAL + LEAPFROG) * w.dim)
    traffic = w.num_steps * 4.0 * (w.batch * (w.sizes[0] + 1) + 2 * w.dim)
    return Count(w.flops, slots, traffic, 4.0 * w.rows * w.sizes[0] + 8.0 * w.dim)


def reparam(w: Any) -> Count:
    slots = w.units * (NORMAL + 1.0) + SOFTPLUS * w.dim
    traffic = 4.0 * w.units + 8.0 * w.dim
    return Count(0.0, slots, traffic, traffic)


def normals(w: Any) -> Count:
    return Count(0.0, w.units * NORMAL, 4.0 * w.units, 4.0 * w.units)


class Elements(Layout):
    """A `net` on shapes that counts slots per row, and products at taps inside the image."""

    def __init__(
        self, wiring: Callable[[Any, Any], Any], input_shape: Shape, costs: Costs = GRADIENT
    ) -> None:
        self.slots, self.costs = 0.0, costs
        super().__init__(wiring, input_shape)
        self.slots += costs.softmax * self.outputs

    def conv(
        self, x: Shape, filters: int, kernel: Shape, stride: int = 1, same: bool = True
    ) -> Any:
        y = super().conv(x, filters, kernel, stride, same)
        if same:
            self.macs[-1] = (
                x[2]
                * filters
                * math.prod(_met(n, k, stride) for n, k in zip(x[:2], kernel, strict=True))
            )
        return y

    def frn(self, x: Shape) -> Shape:
        self.slots += self.costs.frn * math.prod(x)
        return super().frn(x)

    def silu(self, x: Shape) -> Shape:
        self.slots += self.costs.silu * math.prod(x)
        return x

    def relu(self, x: Shape) -> Shape:
        self.slots += self.costs.relu * math.prod(x)
        return x

    def add(self, x: Shape, other: Shape) -> Shape:
        self.slots += self.costs.light * math.prod(x)
        return super().add(x, other)

    def max_pool(self, x: Shape, window: Shape, stride: Shape) -> Shape:
        y = super().max_pool(x, window, stride)
        # one comparison forward, one backward
        self.slots += self.costs.light * math.prod(window) * math.prod(y)
        return y

    def mean(self, x: Shape) -> Shape:
        self.slots += self.costs.light * math.prod(x)
        return super().mean(x)

    def embed(self, x: Shape, tokens: int, units: int) -> Shape:
        self.slots += self.costs.light * math.prod(x) * units
        return super().embed(x, tokens, units)

    def lstm(self, x: Shape, units: int) -> Shape:
        self.slots += self.costs.lstm * x[1] * units
        return super().lstm(x, units)


def _met(size: int, kernel: int, stride: int) -> int:
    """Return the number of taps inside the image, over all places along one axis."""
    before = same_padding(size, kernel, stride)[0]
    places = -(-size // stride)
    return sum(0 <= p * stride + t - before < size for p in range(places) for t in range(kernel))


def network(w: Any) -> Count:
    counted = Elements(w.wiring, w.input_shape)
    slots = w.rows * counted.slots + LEAPFROG * w.dim
    inputs = 4.0 * w.rows * math.prod(w.input_shape)
    return Count(counted.gradient_flops(w.rows), slots, inputs + 8.0 * w.dim, inputs + 8.0 * w.dim)


def _one_gradient(of: Any, rows: int) -> Count:
    """Count a gradient on `rows` rows, with prior, kick and drift."""
    if not isinstance(of, Leapfrog):
        return network(replace(of, rows=rows))
    slots = _gradient_slots(of, rows) + LEAPFROG * of.dim
    bytes_ = 4.0 * rows * (of.sizes[0] + 1) + 8.0 * of.dim
    return Count(gradient_flops(of.sizes, rows), slots, bytes_, bytes_)


def _prediction(w: Any) -> Count:
    """Count the forward passes of all draws, and the sums of mean and variance."""
    of, passes = w.of, float(w.draws * w.chains * w.new_rows)
    if isinstance(of, Leapfrog):
        products = sum(a * b for a, b in pairwise(of.sizes))
        act = FORWARD.silu if of.activation == "silu" else FORWARD.relu
        slots, outputs = act * _units(of.sizes), of.sizes[-1]
    else:
        counted = Elements(of.wiring, of.input_shape, FORWARD)
        products, slots, outputs = sum(counted.macs), counted.slots, counted.outputs
    inputs = float(w.x.nbytes)
    return Count(2.0 * passes * products, passes * (slots + 2.0 * outputs), inputs, inputs)


def call(w: Any) -> Count:
    """Count a whole call: its gradients, and the work of the sampler per parameter and gradient."""
    if w.new_rows:
        return _prediction(w)
    one = _one_gradient(w.of, w.batch if w.call == "SGLD.sample" else w.of.rows)
    more = {
        "HMC.sample": w.chains * w.draws * MOMENTUM,
        "MCLMC.sample": w.gradients * ISOKINETIC,
        "SGLD.sample": w.gradients * NORMAL,
        "BBB.fit": w.gradients * (NORMAL + SOFTPLUS + 2 * ADAM + 10.0 - LEAPFROG),
    }[w.call]
    n = w.gradients
    return Count(n * one.flops, n * one.slots + more * w.dim, n * one.bytes, one.working_set)


COUNTS: dict[str, Callable[[Any], Count]] = {
    "leapfrog": leapfrog,
    "bbb": bbb,
    "mc_forward": mc_forward,
    "mc_dropout": mc_dropout,
    "sgld": sgld,
    "network": network,
    "reparam": reparam,
    "normals": normals,
    "call": call,
}
