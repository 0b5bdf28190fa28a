"""The problems of `benchmarks.effective` in JAX, and runs whose chains are shared out over devices.

Chains go through one compiled program on each CPU device (`vmap` there): of the forms that were
raced for NUTS it won on every problem. Draws are made 50 per call, compiled before.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.rivals import jax_net
from benchmarks.rivals.jax_networks import Mixed
from benchmarks.workloads.effective_problems import Problem
from benchmarks.workloads.effective_run import Run
from benchmarks.workloads.networks import Layout, lenet5

versions = jax_net.versions
THIN = 50  # steps per draw of samplers that have one gradient in a step


def network(problem: Problem, x: Any) -> Callable[[Any], Any]:
    """Return f(flat weights) -> outputs (K, N); an MLP takes x as columns, which is faster."""
    if not problem.sizes:
        images, shapes = jnp.asarray(x, jnp.float32), Layout(lenet5, (28, 28, 1)).arrays

        def convolutional(weights: Any) -> Any:
            ends = np.cumsum([array.size for array in shapes])[:-1]
            pieces = jnp.split(weights, ends)
            arrays = [p.reshape(a.shape) for p, a in zip(pieces, shapes, strict=True)]
            return lenet5(Mixed(arrays), images).T

        return convolutional
    columns = jnp.asarray(np.asarray(x).T, jnp.float32)

    def dense(weights: Any) -> Any:
        h, at = columns, 0
        for k, (a, b) in enumerate(pairwise(problem.sizes)):
            h = weights[at : at + a * b].reshape(a, b).T @ h
            at += a * b
            if problem.bias:
                h = h + weights[at : at + b][:, None]
                at += b
            h = jnp.tanh(h) if k < len(problem.sizes) - 2 else h
        return h

    return dense


def log_likelihood(problem: Problem) -> Callable[[Any, Any], Any]:
    """f(weights, log noise) up to a constant; log noise is not looked at where there is none."""
    outputs, y = network(problem, problem.data.x), jnp.asarray(problem.data.y)
    if problem.noise == "classes":
        rows = jnp.arange(y.size)
        return lambda weights, _: jnp.sum(jax.nn.log_softmax(outputs(weights), axis=0)[y, rows])
    y = y.astype(jnp.float32)

    def normal(weights: Any, log_noise: Any) -> Any:
        f = outputs(weights)
        if problem.learns_noise:
            z = (y - f[0]) * jnp.exp(-log_noise)
            return -0.5 * jnp.sum(z * z) - y.size * log_noise
        sd = jax.nn.softplus(f[1])
        z = (y - f[0]) / sd
        return -0.5 * jnp.sum(z * z) - jnp.sum(jnp.log(sd))

    return normal


def logdensity(problem: Problem) -> Callable[[Any], Any]:
    """Return the log density of flat parameters (P,), up to a constant."""
    likelihood = log_likelihood(problem)
    noise = {"normal": lambda s: -0.5 * s * s, "gamma": lambda s: -6.0 * s - jnp.exp(-2.0 * s)}

    def value(theta: Any) -> Any:
        weights, log_noise = (theta[:-1], theta[-1]) if problem.learns_noise else (theta, 0.0)
        prior = -0.5 * jnp.sum(weights**2) / problem.prior_scale**2
        if problem.learns_noise:
            prior = prior + noise[problem.noise](log_noise)
        return likelihood(weights, log_noise) + prior

    return value


def start(problem: Problem, key: Any) -> Any:
    """Positions (C, P) from the prior N(0, prior_scale^2), for libraries without a start."""
    shape = (problem.chains, problem.dim)
    return problem.prior_scale * jax.random.normal(key, shape, jnp.float32)


def inference_loop(step: Callable[[Any], Any], count: int, thin: int = 1) -> Callable[[Any], Any]:
    """One chain: state -> state, draws (count, P), gradients; every `thin`-th step is a draw."""

    def run(state: Any) -> Any:
        def inner(carry: Any, _: Any) -> Any:
            state, spent = carry
            state, theta, taken = step(state)
            return (state, spent + taken), theta if thin == 1 else None

        def outer(carry: Any, _: Any) -> Any:
            if thin == 1:
                return inner(carry, None)
            (state, spent), _ = lax.scan(inner, carry, None, length=thin - 1)
            state, theta, taken = step(state)
            return (state, spent + taken), theta

        (state, spent), draws = lax.scan(outer, (state, jnp.float32(0)), None, length=count)
        return state, draws, spent

    return run


class Chains(Run):
    """A run in JAX: `warm_up` gives states (C, ...), `step` one transition of one chain."""

    library = "jax"
    thin = 1

    def __init__(self, problem: Problem, seed: int, threads: int) -> None:
        super().__init__()
        self.problem, self.seed = problem, seed
        self.devices = jax.devices()[:threads]
        if problem.chains % len(self.devices):
            self.devices = self.devices[:1]
        self.versions = versions() | {self.library: __import__(self.library).__version__}
        self.form = f"float32, vmap on each of {len(self.devices)} devices"
        self.target = logdensity(problem)
        self.key = jax.random.key(seed)

    def density(self, theta: Any) -> tuple[Any, Any]:
        """Of what is sampled."""
        both = jax.vmap(jax.value_and_grad(self.flat_density))
        return both(jnp.asarray(theta, jnp.float32))  # type: ignore[no-any-return]

    def flat_density(self, theta: Any) -> Any:
        """Log density by the problem's own parameters."""
        return self.target(theta)

    def compiled(self, function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
        """Compile `function` of one chain for all; arguments have a leading axis of chains."""
        count = len(self.devices)

        def cut(a: Any) -> Any:
            return a.reshape(count, -1, *a.shape[1:])

        mapped = jax.pmap(jax.vmap(function), devices=self.devices)
        with self.compiling():
            program = mapped.lower(*jax.tree.map(cut, arguments)).compile()

        def run(*arguments: Any) -> Any:
            found = program(*jax.tree.map(cut, arguments))
            joined = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), found)
            return jax.block_until_ready(joined)

        return run

    @abstractmethod
    def warm_up(self) -> Any:
        """Tune; return the states (C, ...) that `step` takes, `gradients` counted."""

    @abstractmethod
    def step(self, state: Any) -> tuple[Any, Any, Any]:
        """One transition of one chain: state, theta (P,), gradients."""

    def start(self) -> None:
        """Warm up, and compile what draws."""
        self.states = self.warm_up()
        loop = inference_loop(self.step, self.problem.block, self.thin)
        self.more = self.compiled(loop, self.states)

    def draw(self, count: int) -> Any:
        """Block after block."""
        found = []
        for _ in range(count // self.problem.block):
            self.states, draws, spent = self.more(self.states)
            self.gradients += float(np.asarray(spent, np.float64).sum())
            found.append(np.asarray(draws))
        return np.concatenate(found, axis=1)
