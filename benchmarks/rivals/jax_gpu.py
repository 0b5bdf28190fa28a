"""JAX on a GPU: the rows of the GPU table, each one compiled program.

Trajectories are loops inside of it, as BlackJAX and NumPyro make them. Products are float32 without
TF32 but where the row asks for it.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others are in this process, too
import jax
import jax.numpy as jnp

from benchmarks.harness.device_events import calls_of

Call = Callable[[], Any]


def times(call: Call, repeats: int) -> list[float]:
    """Seconds of a call, several at a time, to their end on the device, after a warm-up."""

    def seconds(many: int) -> float:
        begun = time.perf_counter()
        for _ in range(many):
            found = call()
        jax.block_until_ready(found)
        return time.perf_counter() - begun

    jax.block_until_ready(call())  # compiles
    seconds(2)
    many = calls_of(seconds(1))
    return [seconds(many) / many for _ in range(repeats)]


def prepare(name: str, small: bool = False) -> Call | None:
    """Return what one call of a row does, None for a row that has no rival here."""
    make = _ROWS.get(name)
    return None if make is None else make(small)


def _sampling(small: bool) -> Call:
    samples, dim = (3, 1_000) if small else (1_000, 478_410)
    mean, rho = jnp.zeros(dim), jnp.full((dim,), -3.0)

    @jax.jit
    def draw(mean: Any, rho: Any, key: Any) -> Any:
        return mean + jax.nn.softplus(rho) * jax.random.normal(key, (samples, dim))

    keys = itertools.cycle(jax.random.split(jax.random.key(0), 8))
    return lambda: draw(mean, rho, next(keys))


def _forward(precision: str) -> Callable[[bool], Call]:
    def make(small: bool) -> Call:
        samples, rows, together = (4, 40, 2) if small else (1_000, 10_000, 50)
        x = jax.random.normal(jax.random.key(0), (rows, 784))
        sizes = (784, 400, 400, 10)
        weights = [
            (
                jax.random.normal(jax.random.key(i), (samples // together, together, a, b))
                / a**0.5,
                jnp.zeros((samples // together, together, 1, b)),
            )
            for i, (a, b) in enumerate(itertools.pairwise(sizes))
        ]

        @jax.jit
        def moments(weights: Any, x: Any) -> Any:
            def some(total: Any, part: Any) -> Any:
                h = jnp.broadcast_to(x, (together, *x.shape))
                for i, (w, b) in enumerate(part):
                    h = jnp.matmul(h, w, precision=precision) + b
                    h = jax.nn.relu(h) if i + 1 < len(part) else jax.nn.softmax(h, -1)
                return (total[0] + h.sum(0), total[1] + (h * h).sum(0)), None

            begin = jnp.zeros((rows, 10)), jnp.zeros((rows, 10))
            return jax.lax.scan(some, begin, weights)[0]

        return lambda: moments(weights, x)

    return make


def _update(small: bool) -> Call:
    shape = (2, 1_000) if small else (100, 478_410)

    def step(q: Any, p: Any, g: Any) -> Any:
        p = p + 1e-4 * g
        return q + 1e-4 * p, p

    move = jax.jit(step, donate_argnums=(0, 1))
    held = [jnp.zeros(shape), jnp.zeros(shape)]
    g = jnp.zeros(shape)

    def run() -> Any:
        held[:] = move(*held, g)
        return held[0]

    return run


def _silu(x: Any) -> Any:
    return x * jax.nn.sigmoid(x)


def _weights(sizes: tuple[int, ...], key: Any) -> Any:
    return [
        (0.1 * jax.random.normal(k, (a, b)), jnp.zeros(b))
        for k, (a, b) in zip(
            jax.random.split(key, len(sizes) - 1), itertools.pairwise(sizes), strict=True
        )
    ]


def _outputs(weights: Any, x: Any) -> Any:
    for i, (w, b) in enumerate(weights):
        x = jnp.matmul(x, w, precision="highest") + b
        x = _silu(x) if i + 1 < len(weights) else x
    return x


def _prior(weights: Any) -> Any:
    return -0.5 * sum((a * a).sum() for a in jax.tree.leaves(weights))


def _trajectory(density: Any, steps: int) -> Any:
    """Return a function of (q, p) that makes `steps` leapfrog steps, compiled."""
    grad = jax.grad(density)

    def step(_: Any, state: Any) -> Any:
        q, p = state
        p = jax.tree.map(lambda a, g: a + 1e-4 * g, p, grad(q))
        return jax.tree.map(lambda a, b: a + 1e-4 * b, q, p), p

    return lambda q, p: jax.lax.fori_loop(0, steps, step, (q, p))


def _trajectories(chains: int, steps: int) -> Callable[[bool], Call]:
    def make(small: bool) -> Call:
        count, number = (min(chains, 3), 2) if small else (chains, steps)
        x = jax.random.normal(jax.random.key(0), (500, 8))
        y = jax.random.normal(jax.random.key(1), (500, 1))

        def density(weights: Any) -> Any:
            return -50.0 * ((y - _outputs(weights, x)) ** 2).sum() + _prior(weights)

        keys = jax.random.split(jax.random.key(2), count)
        q = jax.vmap(lambda key: _weights((8, 50, 50, 1), key))(keys)
        p = jax.tree.map(jnp.zeros_like, q)
        run = jax.jit(jax.vmap(_trajectory(density, number)))
        return lambda: run(q, p)

    return make


def _rows(small: bool) -> Call:
    rows, steps = (40, 2) if small else (58_368, 100)
    x = jax.random.normal(jax.random.key(0), (rows, 22))
    y = (jax.random.normal(jax.random.key(1), (rows, 1)) > 0).astype(jnp.float32)

    def density(weights: Any) -> Any:
        f = _outputs(weights, x)
        return (y * f - jax.nn.softplus(f)).sum() + _prior(weights)

    q = _weights((22, 40, 1), jax.random.key(2))
    p = jax.tree.map(jnp.zeros_like, q)
    run = jax.jit(_trajectory(density, steps))
    return lambda: run(q, p)


_ROWS: dict[str, Callable[[bool], Call]] = {
    "bbb-sampling": _sampling,
    "mc-forward": _forward("highest"),
    "mc-forward-tf32": _forward("default"),
    "leapfrog-update": _update,
    "hmc-1000-chains": _trajectories(1_000, 20),
    "hmc-1-chain": _trajectories(1, 200),
    "hmc-58368-rows": _rows,
}
