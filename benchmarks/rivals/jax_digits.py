"""JAX on digits: Bayes by Backprop and SGLD, an epoch per compiled scan."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.rivals.jax_net import forward, unravel, versions
from benchmarks.workloads.digits import Digits


def batches(problem: Digits, key: Any) -> Any:
    """Row numbers (steps, batch) of an epoch; rows that fill no batch are left out."""
    steps = problem.rows // problem.batch
    order = jax.random.permutation(key, problem.rows)
    return order[: steps * problem.batch].reshape(steps, problem.batch)


def loglikelihood(logits: Any, y: Any) -> Any:
    """Sum over the rows."""
    return jnp.sum(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1))


def elbo_gradient(problem: Digits) -> Any:
    """Gradient of the negative bound of a batch, KL weighted by its share of the rows."""
    weight = problem.batch / problem.rows

    def value(parameters: Any, key: Any, x: Any, y: Any) -> Any:
        mean, rho = parameters
        scale = jax.nn.softplus(rho)
        ratio = scale / problem.prior_scale
        kl = jnp.sum(0.5 * (ratio**2 + (mean / problem.prior_scale) ** 2 - 1.0) - jnp.log(ratio))
        pairs = zip(unravel(mean, problem.sizes), unravel(scale, problem.sizes), strict=True)
        last = len(problem.sizes) - 2
        for k, ((w, b), (s, t)) in enumerate(pairs):
            noise = jax.random.normal(jax.random.fold_in(key, k), (x.shape[0], w.shape[1]))
            x = x @ w + b + jnp.sqrt((x * x) @ (s * s) + t * t) * noise
            x = jax.nn.relu(x) if k < last else x
        return weight * kl - loglikelihood(x, y)

    return jax.grad(value)


def bbb_epoch(problem: Digits) -> Any:
    """Adam as in Kingma and Ba 2015 on the bound of a batch; (carry, key, x, y) -> carry."""
    gradient = elbo_gradient(problem)

    def adam(p: Any, m: Any, v: Any, count: Any) -> Any:
        m, v = m / (1.0 - 0.9**count), v / (1.0 - 0.999**count)
        return p - problem.learning_rate * m / (jnp.sqrt(v) + 1e-8)

    def epoch(carry: Any, key: Any, x: Any, y: Any) -> Any:
        def step(carry: Any, inputs: Any) -> Any:
            parameters, first, second, count = carry
            rows, key = inputs
            grads = gradient(parameters, key, x[rows], y[rows])
            first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
            second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
            count = count + 1.0
            moved = [adam(*a, count) for a in zip(parameters, first, second, strict=True)]
            return (tuple(moved), first, second, count), None

        shuffle, noise = jax.random.split(key)
        rows = batches(problem, shuffle)
        return lax.scan(step, carry, (rows, jax.random.split(noise, len(rows))))[0]

    return epoch


def sgld_epoch(problem: Digits) -> Any:
    """Step theta + (eps / 2) g + sqrt(eps) xi; (theta, key, x, y) -> theta."""
    eps, factor = problem.step_size, problem.rows / problem.batch

    def logdensity(theta: Any, x: Any, y: Any) -> Any:
        logits = forward(unravel(theta, problem.sizes), x, "relu")
        prior = -0.5 * jnp.sum(theta * theta) / problem.prior_scale**2
        return factor * loglikelihood(logits, y) + prior

    def epoch(theta: Any, key: Any, x: Any, y: Any) -> Any:
        def step(theta: Any, inputs: Any) -> Any:
            rows, key = inputs
            kick = 0.5 * eps * jax.grad(logdensity)(theta, x[rows], y[rows])
            return theta + kick + eps**0.5 * jax.random.normal(key, theta.shape), None

        shuffle, noise = jax.random.split(key)
        rows = batches(problem, shuffle)
        return lax.scan(step, theta, (rows, jax.random.split(noise, len(rows))))[0]

    return epoch


def predictor(problem: Digits, x: Any) -> Any:
    """Mean probabilities of weight draws (BBB), or those of one vector (SGLD)."""

    def one(theta: Any) -> Any:
        return jax.nn.softmax(forward(unravel(theta, problem.sizes), x, "relu"))

    def drawn(carry: Any, key: Any) -> Any:
        mean, scale = carry[0][0], jax.nn.softplus(carry[0][1])
        keys = jax.random.split(key, problem.draws)
        draws = lax.map(lambda k: one(mean + scale * jax.random.normal(k, mean.shape)), keys)
        return draws.mean(axis=0)

    return jax.jit(drawn if problem.method == "bbb" else lambda theta, key: one(theta))


def learn(problem: Digits, seed: int) -> dict[str, Any]:
    """Run epochs until the level is reached."""
    x, y, x_test, _ = (jnp.asarray(a) for a in problem.data)
    theta = jnp.asarray(problem.start(seed))
    state: Any = theta
    if problem.method == "bbb":
        rho = jnp.full(theta.shape, np.log(np.expm1(problem.init_scale)), jnp.float32)
        zeros = jnp.zeros_like(theta)
        state = ((theta, rho), (zeros, zeros), (zeros, zeros), jnp.float32(0.0))
    epoch = bbb_epoch(problem) if problem.method == "bbb" else sgld_epoch(problem)
    key = jax.random.key(seed)
    begun = time.perf_counter()
    compiled = jax.jit(epoch).lower(state, key, x, y).compile()
    compiling = time.perf_counter() - begun
    predict = predictor(problem, x_test)
    seconds, errors, probabilities = [], [], []
    for number in range(problem.epochs):
        now = jax.random.fold_in(key, number)
        begun = time.perf_counter()
        state = jax.block_until_ready(compiled(state, now, x, y))
        seconds.append(time.perf_counter() - begun)
        probabilities.append(np.asarray(predict(state, now)))
        later = probabilities[-1:] if problem.method == "bbb" else probabilities
        errors.append(problem.error(np.mean(later[len(later) // 2 :], axis=0)))
        if errors[-1] <= problem.level:
            break
    return {
        "compile": compiling,
        "seconds": seconds,
        "errors": errors,
        "form": "jit, scan over the steps of an epoch",
        "versions": versions(),
    }
