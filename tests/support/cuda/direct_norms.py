"""Direct convolutions whose sinks make filter response norms, launched, and what they should make.

Chains of images; parameters of norms lie behind one another and begin anywhere.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ribbit._arrays.device import pack
from tests.support.cuda.cpu_device import NAMESPACE as xp
from tests.support.cuda.direct_convolutions import expected, parts, tile

SIZES = ("8, 8, 32, 64", "16, 8, 16, 16", "16, 16, 32, 96", "32, 32, 16, 16")
SINKS = ("false, ResponseNormSink<3>", "false, ResponseNormSink<0>", "true, ResponseNormDeltaSink")
NAMES = tuple(f"DirectConvolution<{size}, {sink}>" for size in SIZES for sink in SINKS)
CHAINS, GAP, EPSILON = 2, 3, 1e-3

Run = Callable[..., Sequence[np.ndarray]]
Check = Callable[[Sequence[np.ndarray]], None]


def problem(rng: np.random.Generator, name: str, rows: int) -> tuple[Run, Check]:
    """Return ``run(device)`` and what raises AssertionError for another result than that."""
    return (backward if parts(name)[-1] else forward)(rng, name, rows)


class Arrays:
    """Numbers of a problem: images, weights as they lie, gamma, beta, tau and bias of a chain."""

    def __init__(self, rng, name, rows):
        self.height, self.width, self.channels, self.outs, self.turned = parts(name)
        self.rng, self.rows = rng, rows
        self.x = self.numbers(self.channels)
        inner = (self.outs, self.channels) if self.turned else (self.channels, self.outs)
        self.weights = self.some(CHAINS, 3, 3, *inner) * np.float32(0.2)
        self.parameters = self.some(CHAINS, 4, self.outs)
        self.stride = 4 * self.outs + GAP
        self.image = rows * height_width(self) * self.outs

    def some(self, *shape):
        return self.rng.standard_normal(shape).astype(np.float32)

    def numbers(self, channels):
        return self.some(CHAINS, self.rows, self.height, self.width, channels)

    def launch(self, device, name, fields):
        """`fields` come behind images and weights, and take the addresses of the parameters."""
        size = self.weights[0].size + GAP
        flat = np.full((CHAINS, size), np.nan, np.float32)
        flat[:, 1 : 1 + self.weights[0].size] = self.weights.reshape(CHAINS, -1)
        own = np.full((CHAINS, self.stride), np.nan, np.float32)
        own[:, 1 : 1 + 4 * self.outs] = self.parameters.reshape(CHAINS, -1)
        held, kept = xp.asarray(flat), xp.asarray(own)
        places = [device.pointer(kept) + 4 * (1 + i * self.outs) for i in range(4)]
        head = [xp.asarray(self.x), self.x[0].size, device.pointer(held) + 4, size]
        across, down, shared = tile(self.height, self.width, self.outs)
        lines = self.rows * self.height
        grid = (-(-lines // down), self.outs // across, CHAINS)
        members = [*head, *fields(*places), lines]
        limit = shared if shared > 48 * 1024 else 0
        device.kernels([name])[name](grid, pack(device, members), limit)

    def by_channel(self, which):
        """gamma, beta, tau or bias in double, to go with images."""
        return self.parameters[:, which, None, None, None].astype(float)


def height_width(arrays):
    return arrays.height * arrays.width


def forward(rng: np.random.Generator, name: str, rows: int) -> tuple[Run, Check]:
    """out = f(norm(x * W + b) + other), f'(..), what the norm reads and 1 / root mean squares."""
    a = Arrays(rng, name, rows)
    other, silu = a.numbers(a.outs), "<3>" in name

    def run(device):
        made = [xp.asarray(np.full_like(other, 7.0)) for _ in range(3)]
        value, derivative, z = made
        inverse = xp.asarray(np.full((CHAINS, rows, a.outs), 7.0, np.float32))

        def fields(gamma, beta, tau, bias):
            return [
                *(bias, a.stride, z, a.image, gamma, beta, tau, a.stride),
                *(value, derivative, a.image, xp.asarray(other), a.image),
                *(inverse, rows * a.outs, EPSILON),
            ]

        a.launch(device, name, fields)
        return [one.get() for one in (value, derivative, z, inverse)]

    def check(found):
        value, derivative, z, inverse = (one.astype(float) for one in found)
        sums, most = expected(a.x.astype(float), a.weights.astype(float))
        bound = 2.0**-23 * (9 * a.channels + 3) * (most + abs(a.by_channel(3)))
        assert (abs(z - sums - a.by_channel(3)) <= bound).all()
        # the rest of the z that is there: 30 roundings of a sum of squares at most
        r = 1 / np.sqrt((z**2).mean(axis=(2, 3)) + EPSILON)
        np.testing.assert_allclose(inverse, r, rtol=2e-6)
        gamma, beta, tau = (a.by_channel(i) for i in range(3))
        scaled = gamma * r[:, :, None, None] * z
        v = np.maximum(scaled + beta, tau) + other
        s = 1 / (1 + np.exp(-v))
        bound = 2.0**-18 * (abs(scaled) + abs(beta) + abs(tau) + abs(other) + 1)
        f, d = (v * s, s + v * s * (1 - s)) if silu else (v, np.ones_like(v))
        assert (abs(value - f) <= bound).all()
        assert (abs(derivative - d) <= bound).all()
        # the control: without the threshold, which a quarter or more of all numbers meet
        assert np.mean(abs(value - other - scaled - beta) > 0.1) > 0.1

    return run, check


def backward(rng: np.random.Generator, name: str, rows: int) -> tuple[Run, Check]:
    """The delta of the norm's value, where asked for, of its input, and terms of gradients."""
    a = Arrays(rng, name, rows)
    z, slope, above = (a.numbers(a.outs) for _ in range(3))
    inverse = (1 / np.sqrt((z.astype(float) ** 2).mean(axis=(2, 3)) + EPSILON)).astype(np.float32)

    def run(device):
        found = []
        for asked in (True, False):
            delta, below = (xp.asarray(np.full_like(z, 7.0)) for _ in range(2))
            terms = xp.asarray(np.full((CHAINS, rows, 3, a.outs), 7.0, np.float32))

            def fields(gamma, beta, tau, _, asked=asked, delta=delta, below=below, terms=terms):
                return [
                    *(delta if asked else None, xp.asarray(slope), a.image, a.outs),
                    *(xp.asarray(above), a.image, 1, xp.asarray(z), a.image),
                    *(gamma, beta, tau, a.stride, xp.asarray(inverse), rows * a.outs),
                    *(terms, rows * 3 * a.outs, below, a.image),
                ]

            a.launch(device, name, fields)
            found += [one.get() for one in (below, terms, delta)]
        return found

    def check(found):
        below, terms, delta = (one.astype(float) for one in found[:3])
        for one, other in zip(found[:2], found[3:5], strict=True):
            np.testing.assert_array_equal(one, other)
        assert (found[5] == 7.0).all()
        taken = a.weights[:, ::-1, ::-1].swapaxes(3, 4).astype(float)
        sums, most = expected(a.x.astype(float), taken)
        d, most = slope * (sums + above), abs(slope) * (most + abs(above))
        unit = 2.0**-23 * (9 * a.channels + 30)
        assert (abs(delta - d) <= unit * most).all()
        gamma, beta, tau = (a.by_channel(i) for i in range(3))
        r = inverse[:, :, None, None].astype(float)
        keep = gamma * r * z + beta > tau
        share = 1 / height_width(a)
        by_gamma, along = r * (keep * d * z), r * most * abs(z)
        for place, (term, bound) in enumerate(
            [(by_gamma, along), (keep * d, most), (~keep * d, most)]
        ):
            wrong = abs(terms[:, :, place] - term.sum(axis=(2, 3)))
            assert (wrong <= unit * bound.sum(axis=(2, 3))).all()

        def by_input(direct, terms):
            return direct, r * r * share * z * terms.sum(axis=(2, 3), keepdims=True)

        direct, other = by_input(gamma * r * keep * d, gamma * by_gamma)
        bound = sum(map(abs, by_input(abs(gamma) * r * most, abs(gamma) * along)))
        assert (abs(below - (direct - other)) <= unit * bound).all()
        # the control: what goes by way of the root mean square
        assert np.median(abs(below - direct)) > 10 * np.median(unit * bound)

    return run, check
